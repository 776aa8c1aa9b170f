//! The course of a run: one event after the other, each carried out on the node it is for.

use std::time::Duration;

use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, SpaceId};
use rhizome_memory::{FragmentId, Lane};
use rhizome_mesh::proto::{
    address_book,
    replication::{Input, Output},
};

use super::{
    super::{
        events::{Event, NodeIndex},
        hostile::{self, Hostility},
        node::Batch,
        store::Item,
    },
    Netsim,
};

/// How long a dial to nobody takes to fail.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the disk takes to sync.
const SYNC_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(12));
/// How often a hostile node does something to each neighbour.
const MISCHIEF_EVERY: Duration = Duration::from_millis(500);

impl Netsim {
    pub(super) fn step(&mut self) {
        let Some((at, event)) = self.agenda.pop() else {
            return;
        };
        self.now = at;
        self.steps += 1;
        self.note(&event);
        match event {
            Event::Frame {
                from,
                to,
                link,
                frame,
            } => {
                if self.delivers(link) {
                    let from = self.nodes[from as usize].id;
                    self.handle(to, Input::Frame { from, frame });
                }
            }
            Event::Push {
                from,
                to,
                link,
                lane,
                id,
                item,
            } => {
                if self.delivers(link) {
                    self.pushed(from, to, lane, id, &item);
                }
            }
            Event::Timer { node, life } => self.timer(node, life),
            Event::Synced { node, life, mark } => {
                if self.nodes[node as usize].life == life {
                    self.synced(node, mark);
                }
            }
            Event::Dialled { from, to, life } => self.dialled(from, to, life),
            Event::Lost { link } => {
                if self
                    .links
                    .get(link)
                    .is_some_and(|connection| connection.dead)
                {
                    self.close(link);
                }
            }
            Event::Restart { node, life } => {
                if self.nodes[node as usize].life == life {
                    self.boot(node);
                }
            }
            Event::Mischief { node, life } => self.mischief(node, life),
        }
    }

    fn note(&mut self, event: &Event) {
        let (kind, node, content): (u8, u32, &[u8]) = match event {
            Event::Frame { to, frame, .. } => (1, *to, frame),
            Event::Push { to, id, .. } => (2, *to, id.as_bytes()),
            Event::Timer { node, .. } => (3, *node, &[]),
            Event::Synced { node, mark, .. } => (4, *node, &mark.to_le_bytes()),
            Event::Dialled { from, to, .. } => (5, *from, &to.to_le_bytes()),
            Event::Lost { link } => (6, 0, &link.to_le_bytes()),
            Event::Restart { node, .. } => (7, *node, &[]),
            Event::Mischief { node, .. } => (8, *node, &[]),
        };
        self.trace.update(&self.now.as_nanos().to_le_bytes());
        self.trace
            .update(&[kind])
            .update(&node.to_le_bytes())
            .update(content);
    }

    fn delivers(&self, link: u64) -> bool {
        self.links
            .get(link)
            .is_some_and(|connection| !connection.dead)
    }

    pub(super) fn boot(&mut self, node: NodeIndex) {
        let seed = self.dice.next();
        let space: SpaceId = self.founding.space;
        let config = self.config.clone();
        let memo = &mut self.memo;
        self.nodes[node as usize].start(seed, config, space, memo);
        for neighbour in self.nodes[node as usize].neighbours.clone() {
            let known = address_book::Input::Known(self.nodes[neighbour as usize].id);
            self.tell_book(node, known);
        }
        let life = self.nodes[node as usize].life;
        if self.is_hostile(node) {
            self.agenda
                .add(self.now + MISCHIEF_EVERY, Event::Mischief { node, life });
        }
        self.set_timer(node);
    }

    fn handle(&mut self, node: NodeIndex, input: Input) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut() else {
            return;
        };
        let outputs = running.replication.handle(self.now, input, &n.store);
        self.carry_out(node, outputs);
        self.set_timer(node);
    }

    fn carry_out(&mut self, node: NodeIndex, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, frame } => self.send(node, self.by_id[&to], &frame),
                Output::Admit {
                    from,
                    lane,
                    batch,
                    items,
                } => {
                    let (outcomes, mark) =
                        self.nodes[node as usize].admit(lane, &items, &mut self.memo);
                    let batch = Batch {
                        from,
                        lane,
                        batch,
                        outcomes,
                    };
                    self.admitted(node, batch, mark);
                }
                Output::Replica { .. } => self.replicas += 1,
                Output::InSync { .. } => self.in_sync += 1,
                Output::Misbehaved { peer, what } => {
                    let whom = self.by_id[&peer];
                    self.sent_away.push((node, whom, what));
                    if let Some(link) = self.links.between(node, whom) {
                        self.close(link);
                    }
                    self.tell_book(node, address_book::Input::Forget(peer));
                }
                _ => {}
            }
        }
    }

    /// Answers for a batch once it is durable.
    fn admitted(&mut self, node: NodeIndex, batch: Batch, mark: Option<u64>) {
        if let Some(mark) = mark {
            if let Some(running) = self.nodes[node as usize].running.as_mut() {
                running.batches.entry(mark).or_default().push(batch);
            }
            self.sync_later(node, mark);
        } else {
            let Batch {
                from,
                lane,
                batch,
                outcomes,
            } = batch;
            self.handle(
                node,
                Input::AdmitDone {
                    from,
                    lane,
                    batch,
                    outcomes,
                },
            );
        }
    }

    pub(super) fn sync_later(&mut self, node: NodeIndex, mark: u64) {
        let life = self.nodes[node as usize].life;
        let takes = self.dice.between(SYNC_TIME.0, SYNC_TIME.1);
        self.agenda
            .add(self.now + takes, Event::Synced { node, life, mark });
    }

    fn synced(&mut self, node: NodeIndex, mark: u64) {
        let n = &mut self.nodes[node as usize];
        let mut items = n.store.sync(mark);
        let freed = n.durable(&items, &mut self.memo);
        if n.hostility == Some(Hostility::WithheldPredecessor) {
            items.retain(|item| {
                let first = item.own
                    && item.lane != Lane::Authority
                    && self
                        .memo
                        .fragment(&item.bytes)
                        .is_some_and(|own| own.header.seq == 0);
                if first {
                    n.store.hide(item.lane, &item.id);
                }
                !first
            });
        }
        for item in items {
            self.stored(node, item);
        }
        let Some(running) = self.nodes[node as usize].running.as_mut() else {
            return;
        };
        let later = running.batches.split_off(&(mark + 1));
        let done = std::mem::replace(&mut running.batches, later);
        for Batch {
            from,
            lane,
            batch,
            outcomes,
        } in done.into_values().flatten()
        {
            self.handle(
                node,
                Input::AdmitDone {
                    from,
                    lane,
                    batch,
                    outcomes,
                },
            );
        }
        if let Some(mark) = freed {
            self.sync_later(node, mark);
        }
    }

    fn stored(&mut self, node: NodeIndex, item: Item) {
        let Item {
            lane,
            id,
            bytes,
            own,
        } = item;
        if own && lane != Lane::Authority {
            let fragment = self.memo.fragment(&bytes).expect("its own");
            self.acked.insert(fragment.id, node);
            self.claim_position(fragment.header.author, fragment.header.seq, fragment.id);
        }
        self.handle(node, Input::Stored { lane, id, own });
        if self.push {
            for peer in self.connected(node) {
                let Some(link) = self.links.between(node, peer) else {
                    continue;
                };
                let arrivals = self.links.arrivals(&mut self.dice, node, peer);
                self.bytes += bytes.len() as u64;
                let item = if self.nodes[node as usize].store.breaks(lane) {
                    hostile::broken(&bytes)
                } else {
                    bytes.clone()
                };
                for after in arrivals {
                    let item = item.clone();
                    let push = Event::Push {
                        from: node,
                        to: peer,
                        link,
                        lane,
                        id,
                        item,
                    };
                    self.agenda.add(self.now + after, push);
                }
            }
        }
    }

    /// An author's position never has two fragments, however often its node crashed.
    fn claim_position(&mut self, author: AgentId, seq: u64, id: FragmentId) {
        let first = *self.positions.entry((author, seq)).or_insert(id);
        assert!(
            first == id,
            "position {seq} was used twice; {}",
            self.replay()
        );
    }

    fn pushed(&mut self, from: NodeIndex, to: NodeIndex, lane: Lane, id: Hash, item: &Bytes) {
        let n = &mut self.nodes[to as usize];
        if n.running.is_none() || n.store.holds(&id) {
            return;
        }
        let _ = from;
        let (_, mark) = n.admit(lane, std::slice::from_ref(item), &mut self.memo);
        if let Some(mark) = mark {
            self.sync_later(to, mark);
        }
    }

    fn connected(&self, node: NodeIndex) -> Vec<NodeIndex> {
        let Some(running) = &self.nodes[node as usize].running else {
            return Vec::new();
        };
        running
            .replication
            .peers()
            .map(|peer| self.by_id[peer])
            .collect()
    }

    fn send(&mut self, from: NodeIndex, to: NodeIndex, frame: &Bytes) {
        let Some(link) = self.links.between(from, to) else {
            return;
        };
        let copies = match self.nodes[from as usize].hostility {
            Some(Hostility::Flood) => 20,
            _ => 1,
        };
        for _ in 0..copies {
            self.bytes += frame.len() as u64;
            for after in self.links.arrivals(&mut self.dice, from, to) {
                let frame = frame.clone();
                self.agenda.add(
                    self.now + after,
                    Event::Frame {
                        from,
                        to,
                        link,
                        frame,
                    },
                );
            }
        }
    }

    fn timer(&mut self, node: NodeIndex, life: u32) {
        let n = &mut self.nodes[node as usize];
        if n.life != life {
            return;
        }
        let Some(running) = n.running.as_mut() else {
            return;
        };
        if running.timer != Some(self.now) {
            // Set for a deadline that has moved since.
            return;
        }
        running.timer = None;
        let outputs = running.replication.handle_timeout(self.now, &n.store);
        let dials = running.book.handle_timeout(self.now);
        self.carry_out(node, outputs);
        self.dial(node, dials);
        self.set_timer(node);
    }

    fn set_timer(&mut self, node: NodeIndex) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut() else {
            return;
        };
        let deadlines = [
            running.replication.next_deadline(),
            running.book.next_deadline(),
        ];
        let Some(due) = deadlines.into_iter().flatten().min() else {
            return;
        };
        let due = due.max(self.now);
        if running.timer.is_none_or(|set| set > due || set < self.now) {
            running.timer = Some(due);
            let life = n.life;
            self.agenda.add(due, Event::Timer { node, life });
        }
    }

    fn tell_book(&mut self, node: NodeIndex, input: address_book::Input) {
        let Some(running) = self.nodes[node as usize].running.as_mut() else {
            return;
        };
        let dials = running.book.handle(self.now, input);
        self.dial(node, dials);
        self.set_timer(node);
    }

    fn dial(&mut self, node: NodeIndex, dials: Vec<address_book::Output>) {
        let life = self.nodes[node as usize].life;
        for dial in dials {
            let address_book::Output::Dial(peer) = dial else {
                continue;
            };
            let to = self.by_id[&peer];
            let answers = self.links.may_reach(node, to);
            let takes = if answers {
                3 * self.links.latency(&mut self.dice, node, to)
            } else {
                DIAL_TIMEOUT
            };
            self.agenda.add(
                self.now + takes,
                Event::Dialled {
                    from: node,
                    to,
                    life,
                },
            );
        }
    }

    fn dialled(&mut self, from: NodeIndex, to: NodeIndex, life: u32) {
        if self.nodes[from as usize].life != life {
            return;
        }
        let (us, them) = (self.nodes[from as usize].id, self.nodes[to as usize].id);
        if !self.links.may_reach(from, to) || self.nodes[to as usize].running.is_none() {
            return self.tell_book(from, address_book::Input::DialFailed(them));
        }
        if self
            .links
            .between(from, to)
            .is_some_and(|link| self.delivers(link))
        {
            // Both dialled at once, and the other dial won.
            return self.tell_book(from, address_book::Input::Up(them));
        }
        self.links.connect(from, to);
        for (node, peer) in [(from, them), (to, us)] {
            self.tell_book(node, address_book::Input::Up(peer));
            self.handle(node, Input::PeerUp(peer));
        }
    }

    fn close(&mut self, link: u64) {
        let Some(connection) = self.links.close(link) else {
            return;
        };
        let (a, b) = connection.ends;
        for (node, peer) in [(a, b), (b, a)] {
            let peer = self.nodes[peer as usize].id;
            self.handle(node, Input::PeerDown(peer));
            self.tell_book(node, address_book::Input::Down(peer));
        }
    }

    fn mischief(&mut self, node: NodeIndex, life: u32) {
        let n = &self.nodes[node as usize];
        if n.life != life {
            return;
        }
        if n.hostility == Some(Hostility::Garbage) {
            for peer in self.connected(node) {
                let len = 1 + self.dice.below(600);
                let mut frame = self.dice.bytes(len);
                // Half of it looks like a frame of some kind, to get past the first check.
                if self.dice.chance(500) {
                    frame[0] = u8::try_from(1 + self.dice.below(7)).expect("at most seven");
                }
                self.send(node, peer, &frame.into());
            }
        }
        self.agenda
            .add(self.now + MISCHIEF_EVERY, Event::Mischief { node, life });
    }
}
