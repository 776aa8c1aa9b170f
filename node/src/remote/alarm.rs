//! Sandboxes that sleep until something happens, and the node that notices.
//!
//! [`condition`] is what they wait for, [`core`] decides, without clocks or sockets of its own, who
//! wakes which when; this is the shell around it: it reads records and memories as they come, hands
//! over the time, and does what is decided. A request to a webhook wakes its sandbox where it
//! arrives.
pub(crate) mod condition;
pub(crate) mod core;
mod hook;
mod when;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_identity::{Hash, NodeId, Role, SpaceId};
use rhizome_memory::{
    Event, Fragment, FragmentId, Hlc, Kind, Lane, ListQuery, MAX_WIRE, MemoryItem, StandingQuery,
    now_ms,
};
use rhizome_sandbox::{SandboxId, egress::Policy, silent};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};
use tracing::{debug, info};

pub(crate) use self::hook::Asked;
use self::{
    condition::{Cause, Condition},
    core::{Alarms, Now, Order, Sleeper},
};
use super::{
    notes::Ledger,
    placement,
    record::{Found, Record, Rest},
    wake::{How, need_of},
};
use crate::{
    control::audit::Note,
    daemon::{
        caller::Caller,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// Most that comes between two looks of which each is looked at by itself.
const MAX_ARRIVED: usize = 256;
/// Records are read again after a change, at most this often.
const REFRESH: Duration = Duration::from_millis(500);
/// And so that they take no more than this part of the time: one in so many.
const REFRESH_SHARE: u32 = 20;
/// How often it is looked for who is connected, while something waits.
const LOOK: Duration = Duration::from_secs(2);
/// And while nothing does.
const IDLE_LOOK: Duration = Duration::from_secs(30);
/// Memories that are held against a standing query at a time.
const PAGE: usize = 256;
/// Newest memories of a space that one is held against that just came to be known.
const LOOK_BACK: usize = 1_000;
/// Wake-ups whose end is not yet taken note of.
const RESULTS: usize = 64;

/// Watches what sandboxes wait for, until the node stops.
pub(crate) async fn watch(node: Arc<Node>) {
    // A node that runs no sandboxes wakes none.
    if node.sandboxes().is_err() {
        return;
    }
    let mut events = node.replica.events();
    let mut shell = Shell::new(Arc::clone(&node));
    loop {
        let wait = shell.wait();
        if wait.is_zero() {
            // However much is being stored.
            let looking = node.stop.run_until_cancelled(shell.look()).await;
            if let Some(Err(error)) = looking {
                debug!(%error, "what sandboxes wait for could not be looked through");
            }
        }
        tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            Some((sandbox, record)) = shell.failed.recv() => {
                shell.alarms.failed(shell.now(), &sandbox, &record);
            }
            heard = events.recv() => {
                if shell.hear(heard).is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// A sandbox that waits for a memory.
struct Waiter {
    sandbox: SandboxId,
    record: FragmentId,
    text: String,
    query: StandingQuery,
    spaces: Vec<SpaceId>,
    since: Hlc,
}

struct Shell {
    node: Arc<Node>,
    started: Instant,
    alarms: Alarms,
    ledger: Ledger,
    /// Something was stored since it was looked at.
    is_stale: bool,
    /// What that is: records are read again if one of them is among it. `None` if it is not known,
    /// or too much.
    arrived: Option<Vec<(Lane, Hash)>>,
    /// All are held against what came before again, not only those that are new.
    looks_back: bool,
    /// When they may be read again.
    next_refresh: Instant,
    next_look: Instant,
    /// Up to where memories were held against the queries, and up to where there are some.
    seen: u64,
    latest: u64,
    failed: mpsc::Receiver<(SandboxId, FragmentId)>,
    fail: mpsc::Sender<(SandboxId, FragmentId)>,
}

impl Shell {
    fn new(node: Arc<Node>) -> Self {
        let started = Instant::now();
        let now = Now {
            wall_ms: now_ms(),
            ticks: Duration::ZERO,
        };
        let (fail, failed) = mpsc::channel(RESULTS);
        Self {
            alarms: Alarms::new(node.id(), now),
            node,
            started,
            ledger: Ledger::default(),
            is_stale: true,
            arrived: None,
            looks_back: false,
            next_refresh: started,
            next_look: started,
            seen: 0,
            latest: 0,
            failed,
            fail,
        }
    }

    fn now(&self) -> Now {
        Now {
            wall_ms: now_ms(),
            ticks: self.started.elapsed(),
        }
    }

    /// Returns how long nothing has to be done.
    fn wait(&self) -> Duration {
        let mut next = self.next_look;
        if self.is_stale {
            next = next.min(self.next_refresh);
        }
        let wait = next.saturating_duration_since(Instant::now());
        match self.alarms.look_again(self.now()) {
            Some(again) => wait.min(again),
            None => wait,
        }
    }

    /// Takes note of what was stored; an error when nothing more will be.
    fn hear(&mut self, heard: Result<Event, broadcast::error::RecvError>) -> Result<(), ()> {
        match heard {
            Ok(Event::Stored {
                arrival, lane, id, ..
            }) => {
                self.is_stale = true;
                match &mut self.arrived {
                    Some(arrived) if arrived.len() < MAX_ARRIVED => arrived.push((lane, id)),
                    arrived => *arrived = None,
                }
                if self.latest == 0 {
                    // What came before is looked back at when it is needed.
                    self.seen = arrival.saturating_sub(1);
                }
                self.latest = self.latest.max(arrival);
            }
            // What could not be read before may be readable now.
            Ok(Event::AuthorityChanged) => {
                (self.is_stale, self.looks_back, self.arrived) = (true, true, None);
            }
            Ok(_) | Err(RecvError::Lagged(_)) => (self.is_stale, self.arrived) = (true, None),
            Err(RecvError::Closed) => return Err(()),
        }
        Ok(())
    }

    /// Looks at everything, and does what is decided.
    async fn look(&mut self) -> Result<(), ApiError> {
        self.next_look = Instant::now() + LOOK;
        let connected: BTreeSet<_> = self.node.connected().into_iter().collect();
        self.alarms.peers(self.now(), connected);
        if self.is_stale && Instant::now() >= self.next_refresh {
            self.refresh().await?;
        }
        for order in self.alarms.tick(self.now()) {
            let (node, fail) = (Arc::clone(&self.node), self.fail.clone());
            self.node.tasks.spawn(async move {
                if let Err(error) = node.rouse(&order).await {
                    debug!(sandbox = %order.sandbox, %error, "a sandbox was not woken");
                    let _ = fail.send((order.sandbox, order.record)).await;
                }
            });
        }
        let waits = self.alarms.is_waited_for_anything();
        self.next_look = Instant::now() + if waits { LOOK } else { IDLE_LOOK };
        Ok(())
    }

    /// Reads the records again, and holds what came since against the queries.
    async fn refresh(&mut self) -> Result<(), ApiError> {
        let begun = Instant::now();
        self.is_stale = false;
        let latest = self.latest;
        let read = match self.arrived.replace(Vec::new()) {
            Some(arrived) if !self.touches_records(&arrived).await? => Ok(Vec::new()),
            _ => self.read_records().await,
        };
        let took = begun.elapsed();
        self.next_refresh = Instant::now() + REFRESH.max(took * REFRESH_SHARE);
        let new = match read {
            Ok(new) => new,
            Err(error) => {
                (self.is_stale, self.arrived) = (true, None);
                return Err(error);
            }
        };
        let waiters = self.waiters();
        if waiters.is_empty() {
            self.seen = latest;
            return Ok(());
        }
        let all = std::mem::take(&mut self.looks_back);
        let (fresh, known): (Vec<_>, Vec<_>) = waiters
            .into_iter()
            .partition(|waiter| all || new.contains(&waiter.sandbox));
        self.look_back(fresh).await?;
        if known.is_empty() {
            self.seen = latest;
            return Ok(());
        }
        self.look_on(known, latest).await
    }

    /// Whether there is something among what came that a record may be, or a note beside it.
    async fn touches_records(&self, arrived: &[(Lane, Hash)]) -> Result<bool, ApiError> {
        let (replica, arrived) = (self.node.replica.clone(), arrived.to_vec());
        blocking(move || {
            arrived.iter().any(|(lane, id)| {
                let wires = replica.wires(*lane, &[*id], MAX_WIRE);
                let kind = wires.first().map(Fragment::decode);
                // What cannot be read says nothing about what it is.
                !matches!(kind, Some(Ok(fragment)) if fragment.header.kind != Kind::Snapshot)
            })
        })
        .await
    }

    async fn read_records(&mut self) -> Result<Vec<SandboxId>, ApiError> {
        self.ledger = self.node.ledger_if_any().await?;
        let sleepers = self.ledger.found.iter().filter(|found| is_alarmed(found));
        let sleepers = sleepers.map(|found| Sleeper {
            sandbox: found.record.sandbox,
            record: found.fragment,
            manifest: found.record.snapshot.manifest,
            holders: found.holders.iter().copied().collect(),
            conditions: found.record.wake_on.clone(),
            leases: self.ledger.leases(found),
            able: self.node.may_rouse(found),
        });
        let sleepers = sleepers.collect();
        Ok(self.alarms.sleepers(self.now(), sleepers))
    }

    fn waiters(&self) -> Vec<Waiter> {
        let waiters = self.alarms.wait_for_memories();
        let waiters = waiters.filter_map(|(sandbox, record, text)| {
            let of_it = |found: &&Found| found.fragment == *record;
            let found = self.ledger.found.iter().find(of_it)?;
            Some(Waiter {
                sandbox: *sandbox,
                record: *record,
                text: text.to_owned(),
                // Records with other queries are not taken for records.
                query: StandingQuery::new(text).ok()?,
                spaces: found.record.spaces.clone(),
                since: found.hlc,
            })
        });
        waiters.collect()
    }

    /// Holds the memories that came before against those that just came to be known.
    async fn look_back(&mut self, mut waiters: Vec<Waiter>) -> Result<(), ApiError> {
        let spaces: BTreeSet<_> = waiters.iter().flat_map(|w| w.spaces.clone()).collect();
        for space in spaces {
            let replica = self.node.replica.clone();
            let query = ListQuery {
                spaces: Some(vec![space]),
                kind: None,
                task: None,
                limit: LOOK_BACK,
                ..ListQuery::default()
            };
            let mut items = blocking(move || replica.list(&query))
                .await?
                .map_err(crate::daemon::fail::replica)?;
            // The oldest that fits is what it waited for.
            items.reverse();
            self.hold_against(&mut waiters, &items);
        }
        Ok(())
    }

    /// Holds what came since the last look against the others.
    async fn look_on(&mut self, mut waiters: Vec<Waiter>, latest: u64) -> Result<(), ApiError> {
        while self.seen < latest {
            let (replica, from) = (self.node.replica.clone(), self.seen);
            let page = blocking(move || replica.watch(None, from, PAGE)).await?;
            let is_last = page.len() < PAGE;
            self.seen = page.last().map_or(latest, |event| event.arrival);
            let items: Vec<_> = page.into_iter().map(|event| event.item).collect();
            self.hold_against(&mut waiters, &items);
            if is_last {
                self.seen = self.seen.max(latest);
            }
        }
        Ok(())
    }

    fn hold_against(&mut self, waiters: &mut [Waiter], items: &[MemoryItem]) {
        for item in items {
            for waiter in waiters.iter_mut() {
                if item.hlc <= waiter.since
                    || !waiter.spaces.contains(&item.space)
                    || !waiter.query.matches(item)
                {
                    continue;
                }
                let cause = Cause::Memory {
                    query: waiter.text.clone(),
                    fragment: item.id,
                    doc: item.doc,
                    title: item.title.clone(),
                };
                let now = self.now();
                self.alarms
                    .noticed(now, &waiter.sandbox, &waiter.record, cause);
            }
        }
    }
}

/// Whether something shall wake a sandbox by itself.
fn is_alarmed(found: &Found) -> bool {
    // Where a partition left two versions and it runs in one, somebody has to say which is meant.
    let runs = found.forks.iter().any(|fork| fork.rest == Rest::Awake);
    found.record.rest == Rest::Asleep && !found.record.wake_on.is_empty() && !runs
}

impl Node {
    /// Whether this node may wake it without being asked; whether it has room shows later.
    fn may_rouse(&self, found: &Found) -> bool {
        let (me, record) = (self.id(), &found.record);
        let authority = self.replica.authority();
        let writes = |space: &SpaceId| {
            let role = authority.role_in(&me, space);
            role.is_some_and(Role::can_write)
        };
        let is_open = self.config.remote || record.runner == me;
        is_open && found.holders.contains(&me) && record.spaces.iter().all(writes)
    }

    /// Wakes a sandbox because what it waits for has come.
    async fn rouse(&self, order: &Order) -> Result<(), ApiError> {
        let ledger = self.ledger(&Caller::Owner).await?;
        let found = ledger
            .found
            .into_iter()
            .find(|found| found.record.sandbox == order.sandbox && found.fragment == order.record);
        let Some(found) = found.filter(|found| found.record.rest == Rest::Asleep) else {
            // Somebody was faster, or it was told to wait for something else.
            return Ok(());
        };
        self.rouse_found(&found, order.cause.clone(), None)
            .await
            .map(drop)
    }

    /// Wakes what was found here, for that reason, if there is room for it.
    async fn rouse_found(
        &self,
        found: &Found,
        cause: Cause,
        body: Option<bytes::Bytes>,
    ) -> Result<crate::api::types::remote::Resumed, ApiError> {
        let record = &found.record;
        let facts = self.own_facts().await?;
        placement::fits(&facts, &need_of(record), record.runner != self.id())
            .map_err(|unfit| placement::nobody(&[ApiError::denied(unfit)]))?;
        let why = match &cause {
            Cause::Time { .. } => "its time came".to_owned(),
            Cause::Memory { fragment, .. } => format!("fragment {fragment} came"),
            Cause::Webhook { bytes } => format!("its webhook was sent {bytes} bytes"),
            Cause::Asked | Cause::Unknown => "somebody asked".to_owned(),
        };
        let how = How {
            wall: self.wall_for(record),
            cause: Some(cause),
            body,
            ..How::default()
        };
        let woken = self.wake_here(found, how, &silent()).await;
        let outcome = match &woken {
            Ok(_) => "ok",
            Err(error) => error.code(),
        };
        if woken.is_ok() {
            info!(sandbox = %record.sandbox, why, "woken");
        }
        let on = Some(record.sandbox.to_string());
        let note = Note::of_daemon("sandbox.wake", on, outcome).detail(why);
        self.audit.note(note).await;
        woken
    }

    /// Returns what it may reach here, if that is less than where it slept: what a node lets
    /// through its wall is its owner's to say, and nobody of here is asking.
    fn wall_for(&self, record: &Record) -> Option<Policy> {
        let is_trusted = |node: &NodeId| {
            let what = "the sandbox";
            *node == self.id()
                || self
                    .peer_may(node, &record.spaces, Role::Admin, what)
                    .is_ok()
        };
        (!is_trusted(&record.runner)).then(Policy::none)
    }

    /// Says whether a record waits for this token.
    fn waits_for_token(found: &Found, token: &rhizome_identity::Hash) -> bool {
        let is_it =
            |one: &Condition| matches!(one, Condition::Webhook { token: its } if its == token);
        found.record.rest == Rest::Asleep && found.record.wake_on.iter().any(is_it)
    }
}
