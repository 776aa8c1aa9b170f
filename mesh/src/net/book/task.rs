//! The task behind the address book: news in, dials out, the file now and then.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use rhizome_identity::{NodeId, NodeInfo};
use rhizome_memory::now_ms;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, debug_span, warn};

use crate::{
    net::{
        blobs::Blobs,
        gossip::Gossip,
        sync::{Sync, encode_infos, kind},
    },
    proto::{
        address_book::{AddressBook, Input, Output},
        relays,
    },
};

use super::{BookTask, Entry, MAX_STRANGERS, News, file, relays::Keeper};

/// How soon changes are written. A node that dies before it has written where the others moved
/// may not find them again if it comes back elsewhere itself.
const SAVE_AFTER: Duration = Duration::from_millis(100);
/// How often our own addresses are looked at.
const OWN_CHECK_EVERY: Duration = Duration::from_secs(5);

/// What the task needs beside the book.
struct Run {
    task: BookTask,
    sync: Sync,
    gossip: Gossip,
    blobs: Blobs,
    core: AddressBook,
    relays: Keeper,
    started: Instant,
    dials: JoinSet<(NodeId, bool)>,
}

impl BookTask {
    /// Runs until `stop`, then writes what is not written yet.
    pub(crate) async fn run(
        self,
        sync: Sync,
        gossip: Gossip,
        blobs: Blobs,
        seed: u64,
        stop: CancellationToken,
    ) {
        let me = self.book.shared.key.id();
        let relays = Keeper::new(self.book.shared.net.clone());
        let mut run = Run {
            task: self,
            sync,
            gossip,
            blobs,
            core: AddressBook::new(me, seed),
            relays,
            started: Instant::now(),
            dials: JoinSet::new(),
        };
        let mut own_check = tokio::time::interval(OWN_CHECK_EVERY);
        own_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let redial = run.core.next_deadline().map(|due| run.started + due);
            let save = run.task.dirty_since.map(|since| since + SAVE_AFTER);
            let relay_due = run.relays.deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(news) = run.task.news.recv() => run.news(news).await,
                Some(dialled) = run.dials.join_next() => {
                    if let Ok((node, reached)) = dialled {
                        run.dialled(node, reached);
                    }
                }
                () = until(save) => run.task.save().await,
                () = until(redial) => {
                    let outputs = run.core.handle_timeout(run.started.elapsed());
                    run.carry_out(outputs);
                }
                home = run.relays.home_changed() => {
                    let changed = run.relays.home_is(&run.task.book.shared.relays, home).await;
                    run.relays_changed(changed);
                }
                () = until(relay_due) => {
                    let changed = run.relays.due(&run.task.book.shared.relays).await;
                    run.relays_changed(changed);
                }
                _ = own_check.tick() => run.check_own().await,
            }
        }
        run.dials.shutdown().await;
        if run.task.dirty_since.is_some() {
            run.task.save().await;
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Run {
    async fn news(&mut self, news: News) {
        match news {
            News::Learn(from, infos) => self.learn(from, infos).await,
            News::Up(peer) => {
                self.relay_news(relays::Input::Up(peer)).await;
                self.task.last_seen.insert(peer, now_ms());
                self.task.touch();
                self.tell(Input::Up(peer));
                self.gossip.peer(peer, true).await;
                self.blobs.sweep();
                // Everything we know, once per session: a few hundred bytes per member.
                for payload in encode_infos(&self.task.book.infos()) {
                    self.sync.send(&peer, kind::NODE_INFOS, payload);
                }
            }
            News::Down(peer) => {
                self.task.last_seen.insert(peer, now_ms());
                self.task.touch();
                self.gossip.peer(peer, false).await;
                self.tell(Input::Down(peer));
                self.relay_news(relays::Input::Down(peer)).await;
            }
            News::Members(members) => self.members(members).await,
        }
    }

    async fn members(&mut self, members: BTreeSet<NodeId>) {
        let task = &mut self.task;
        let strangers = std::mem::take(&mut task.strangers);
        let (now_members, strangers): (Vec<_>, Vec<_>) = strangers
            .into_iter()
            .partition(|(node, _)| members.contains(node));
        task.strangers = strangers.into_iter().collect();
        let left: Vec<NodeId> = task.members.difference(&members).copied().collect();
        let joined: Vec<NodeId> = members.difference(&task.members).copied().collect();
        task.members = members;
        for node in left {
            self.task.book.entries().remove(&node);
            self.task.last_seen.remove(&node);
            self.task.touch();
            self.tell(Input::Forget(node));
            self.relay_news(relays::Input::Ends(node)).await;
        }
        let infos = now_members.into_iter().map(|(_, entry)| entry.bytes);
        self.learn(None, infos.collect()).await;
        for node in joined {
            if let Some(url) = self.task.book.info(&node).and_then(|info| info.relay) {
                self.relay_news(relays::Input::Serves(node, url)).await;
            }
            self.tell(Input::Known(node));
            self.if_connected(node);
        }
        self.use_own_relay().await;
    }

    fn dialled(&mut self, node: NodeId, reached: bool) {
        if reached {
            // The dial may have ended because a session was there already.
            self.if_connected(node);
        } else {
            self.tell(Input::DialFailed(node));
        }
    }

    /// Says again that a session is up: the core forgets what it hears of a node too early.
    fn if_connected(&mut self, node: NodeId) {
        if self.sync.is_connected(&node) {
            self.tell(Input::Up(node));
        }
    }

    /// Keeps what is newer than what we have and passes it on.
    async fn learn(&mut self, from: Option<NodeId>, infos: Vec<Bytes>) {
        let mut news = Vec::new();
        for entry in infos.into_iter().filter_map(Entry::parse) {
            let node = entry.info.node;
            if node == self.task.book.shared.key.id() {
                continue;
            }
            if !self.task.members.contains(&node) {
                if self.task.strangers.len() < MAX_STRANGERS
                    || self.task.strangers.contains_key(&node)
                {
                    self.task.strangers.insert(node, entry);
                }
                continue;
            }
            let (info, bytes) = (entry.info.clone(), entry.bytes.clone());
            let Some(moved) = self.keep(entry) else {
                continue;
            };
            news.push(bytes);
            let relays = &self.task.book.shared.relays;
            let relay = info.relay.clone();
            let changed = self.relays.announced(relays, node, relay).await;
            self.relays_changed(changed);
            if moved {
                self.task.book.point(&info);
                self.tell(Input::Moved(node));
            }
        }
        for payload in encode_infos(&news) {
            self.sync
                .send_all(kind::NODE_INFOS, &payload, from.as_ref());
        }
    }

    /// Replaces a member's entry by a newer one; says whether the member is reached otherwise now.
    fn keep(&mut self, entry: Entry) -> Option<bool> {
        let mut entries = self.task.book.entries();
        let known = entries.get(&entry.info.node);
        if known.is_some_and(|known| known.info.seq_ms >= entry.info.seq_ms) {
            return None;
        }
        let reached = |info: &NodeInfo| (info.addrs.clone(), info.via.clone());
        let moved = known.is_none_or(|known| reached(&known.info) != reached(&entry.info));
        entries.insert(entry.info.node, entry);
        drop(entries);
        self.task.touch();
        Some(moved)
    }

    async fn check_own(&mut self) {
        self.tell_own();
        self.use_own_relay().await;
    }

    /// Makes ourselves a client of the relay that we serve, so that whoever reaches it reaches us.
    async fn use_own_relay(&mut self) {
        if let Some(url) = self.task.book.own_relay()
            && self.sync.is_member()
        {
            let me = self.task.book.shared.key.id();
            self.relay_news(relays::Input::Serves(me, url)).await;
        }
    }

    /// Tells the peers our own entry if it has changed.
    fn tell_own(&self) {
        if self.task.book.refresh_own() {
            debug!(addrs = ?self.task.book.own().addrs, "own entry changed");
            for payload in encode_infos(&[self.task.book.own_info()]) {
                self.sync.send_all(kind::NODE_INFOS, &payload, None);
            }
        }
    }

    async fn relay_news(&mut self, news: relays::Input) {
        let changed = self.relays.tell(&self.task.book.shared.relays, news).await;
        self.relays_changed(changed);
    }

    /// Points the endpoint at everybody anew when other relays are in use.
    fn relays_changed(&self, changed: bool) {
        if !changed {
            return;
        }
        let infos: Vec<_> = self
            .task
            .book
            .entries()
            .values()
            .map(|entry| entry.info.clone())
            .collect();
        for info in infos {
            self.task.book.point(&info);
        }
        self.tell_own();
    }

    fn tell(&mut self, input: Input) {
        let outputs = self.core.handle(self.started.elapsed(), input);
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            let Output::Dial(node) = output;
            let sync = self.sync.clone();
            let span = debug_span!("dial", peer = %node.fmt_short());
            self.dials.spawn(
                async move {
                    let dialled = sync.dial(node).await;
                    if let Err(error) = &dialled {
                        debug!(error = error as &dyn std::error::Error, "not reached");
                    }
                    (node, dialled.is_ok())
                }
                .instrument(span),
            );
        }
    }
}

impl BookTask {
    fn touch(&mut self) {
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    async fn save(&mut self) {
        self.dirty_since = None;
        let entries = self.book.entries().clone();
        let nodes: BTreeSet<NodeId> = entries
            .keys()
            .chain(self.last_seen.keys())
            .copied()
            .collect();
        let saved: Vec<file::Saved> = nodes
            .into_iter()
            .map(|node| file::Saved {
                node,
                info: entries
                    .get(&node)
                    .map(|entry| entry.bytes.to_vec())
                    .unwrap_or_default(),
                last_seen_ms: self.last_seen.get(&node).copied(),
            })
            .collect();
        let path = self.path.clone();
        let stored = tokio::task::spawn_blocking(move || file::store(&path, &saved)).await;
        if let Ok(Err(error)) = stored {
            warn!(path = %self.path.display(), %error, "cannot write the address book");
        }
    }
}
