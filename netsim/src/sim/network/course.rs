//! The course of a run: one event after the other, each carried out on the node it is for.

use std::{sync::Arc, time::Duration};

use rhizome_identity::{AgentId, ForkProof, SpaceId};
use rhizome_memory::{FragmentId, Lane};
use rhizome_mesh::proto::{
    address_book,
    replication::{Input, Output},
};

use super::{
    super::{
        arena::ItemIndex,
        events::{Event, NodeIndex, Pushed},
        hostile::Hostility,
        invariants::Invariant,
        node::{Admitted, Batch, hash_of},
    },
    Netsim,
};

/// How long the disk takes to sync.
const SYNC_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(12));

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
                if self.links.is_alive(link) {
                    let from = self.nodes[from as usize].id;
                    self.handle(to, Input::Frame { from, frame });
                }
            }
            Event::Push { to, link, item } => {
                if self.links.is_alive(link) {
                    self.pushed(to, &item);
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
            Event::Start { node, life } => {
                let n = &self.nodes[node as usize];
                if n.life == life && !n.is_up() {
                    self.boot(node);
                }
            }
            Event::Stop { node, down } => self.stop(node, down),
            Event::Publish { node } => {
                self.publish(node as usize);
            }
            Event::Mischief { node, life } => self.mischief(node, life),
        }
    }

    pub(super) fn boot(&mut self, node: NodeIndex) {
        let seed = self.dice.next();
        let space: SpaceId = self.founding.space;
        let config = self.config.clone();
        let n = &mut self.nodes[node as usize];
        n.start(seed, config, space, &mut self.arena);
        self.links.set_up(node, true);
        for neighbour in self.nodes[node as usize].neighbours.clone() {
            let known = address_book::Input::Known(self.nodes[neighbour as usize].id);
            self.tell_book(node, known);
        }
        if self.is_hostile(node) {
            self.next_mischief(node);
        }
        self.set_timer(node);
    }

    pub(super) fn handle(&mut self, node: NodeIndex, input: Input) {
        let now = self.now;
        let n = &mut self.nodes[node as usize];
        if !n.is_up() {
            return;
        }
        let outputs = n.replicate(&self.arena, |core, held| core.handle(now, input, held));
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
                    let n = &mut self.nodes[node as usize];
                    let admitted = n.admit(self.now, lane, &items, &mut self.arena);
                    self.check_admitted(node, &admitted.taken);
                    self.show_forks(node);
                    let batch = Batch {
                        from,
                        lane,
                        batch,
                        outcomes: admitted.outcomes,
                    };
                    self.answer_when_durable(node, batch, admitted.mark);
                }
                Output::Replica { .. } => self.replicas += 1,
                Output::InSync { .. } => self.in_sync += 1,
                Output::Misbehaved { peer, what } => {
                    let whom = self.by_id[&peer];
                    self.sent_away.push((node, whom, what));
                    self.give_up(node, whom);
                    self.tell_book(node, address_book::Input::Forget(peer));
                }
                _ => {}
            }
        }
    }

    /// Shows the mesh those forks whose turn it is at this node.
    fn show_forks(&mut self, node: NodeIndex) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut().filter(|_| n.hostility.is_none()) else {
            return;
        };
        let authority = Arc::clone(&running.authority);
        let due = running.watch.take_due(self.now, |(space, author)| {
            authority.frozen(author, space).is_some()
        });
        for (one, other) in due.to_show {
            let envelope = |id| {
                let item = self.arena.item(self.arena.find(&hash_of(id))?);
                Some(item.fragment()?.envelope.to_vec())
            };
            let (Some(a), Some(b)) = (envelope(other), envelope(one)) else {
                continue;
            };
            let proof = ForkProof { a, b };
            let proven = self.founding.prove_fork(node as usize, &authority, proof);
            if let Some(record) = proven {
                self.write_record(node, record.bytes());
            }
        }
        // Each may be the one that counts from now on.
        for (one, _) in due.shown {
            let mut admitted = Admitted::default();
            if let Some(item) = self.arena.find(&hash_of(one)) {
                let n = &mut self.nodes[node as usize];
                n.admit_item(self.now, item, &self.arena, &mut admitted);
            }
            self.write_freed(node, &admitted);
        }
    }

    fn answer_when_durable(&mut self, node: NodeIndex, batch: Batch, mark: Option<u64>) {
        let Some(mark) = mark else {
            return self.handle(node, batch.into());
        };
        if let Some(running) = self.nodes[node as usize].running.as_mut() {
            running.batches.entry(mark).or_default().push(batch);
        }
        self.sync_later(node, mark);
    }

    pub(super) fn sync_later(&mut self, node: NodeIndex, mark: u64) {
        let life = self.nodes[node as usize].life;
        let takes = self.dice.between(SYNC_TIME.0, SYNC_TIME.1);
        self.agenda
            .add(self.now + takes, Event::Synced { node, life, mark });
    }

    fn synced(&mut self, node: NodeIndex, mark: u64) {
        let n = &mut self.nodes[node as usize];
        let before = n
            .running
            .as_ref()
            .map(|running| Arc::clone(&running.authority));
        let mut items = n.store.sync(mark, &self.arena);
        let freed = n.durable(self.now, &items, &mut self.arena);
        let after = n.running.as_ref().map(|running| &running.authority);
        let has_new_rights = match (&before, after) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            _ => false,
        };
        if n.hostility == Some(Hostility::WithheldPredecessor) {
            let arena = &self.arena;
            items.retain(|item| {
                let first = arena.item(*item).fragment();
                let first = first.is_some_and(|f| n.store.is_own(*item) && f.header.seq == 0);
                if first {
                    n.store.hide(&arena.item(*item).id);
                }
                !first
            });
        }
        self.note_durable(node, &items);
        for item in items {
            self.stored(node, item);
        }
        if let Some(running) = self.nodes[node as usize].running.as_mut() {
            let later = running.batches.split_off(&(mark + 1));
            let done = std::mem::replace(&mut running.batches, later);
            for batch in done.into_values().flatten() {
                self.handle(node, batch.into());
            }
        }
        self.write_freed(node, &freed);
        if has_new_rights {
            self.rights_changed(node);
        }
    }

    fn write_freed(&mut self, node: NodeIndex, freed: &Admitted) {
        self.check_admitted(node, &freed.taken);
        if let Some(mark) = freed.mark {
            self.sync_later(node, mark);
        }
    }

    /// Counts what a node now has of what it was promised.
    pub(super) fn note_durable(&mut self, node: NodeIndex, items: &[ItemIndex]) {
        let is_promised = |item: &&ItemIndex| self.is_promised(**item);
        let more = items.iter().filter(is_promised).count();
        self.nodes[node as usize].acked_here += more;
    }

    pub(super) fn is_promised(&self, item: ItemIndex) -> bool {
        self.acked.get(item as usize).copied().unwrap_or(false)
    }

    fn stored(&mut self, node: NodeIndex, item: ItemIndex) {
        let stored = self.arena.item(item);
        let (lane, id) = (stored.lane, stored.id);
        let own = self.nodes[node as usize].store.is_own(item);
        if own && let Some(fragment) = stored.fragment() {
            let (author, seq, id) = (fragment.header.author, fragment.header.seq, fragment.id);
            self.acknowledge(node, item);
            self.claim_position(author, seq, id);
        }
        self.handle(node, Input::Stored { lane, id, own });
        if self.push {
            self.push_to_all(node, item);
        }
    }

    /// Tells the publisher that its fragment is durable: from here on it must not be lost.
    fn acknowledge(&mut self, node: NodeIndex, item: ItemIndex) {
        self.acked_count += 1;
        let n = &self.nodes[node as usize];
        if n.hostility.is_some() || self.is_revoked(n) {
            return;
        }
        let at = item as usize;
        if self.acked.len() <= at {
            self.acked.resize(at + 1, false);
        }
        self.acked[at] = true;
        self.promised += 1;
        self.nodes[node as usize].acked_here += 1;
    }

    /// Takes back what was promised of a chain beyond a cut.
    pub(super) fn break_promises(&mut self, author: AgentId, beyond: Option<u64>) {
        let broken: Vec<ItemIndex> = (0..self.arena.len())
            .filter(|item| self.is_promised(*item))
            .filter(|item| {
                let fragment = self.arena.item(*item).fragment();
                fragment.is_some_and(|fragment| {
                    let header = &fragment.header;
                    header.author == author && beyond.is_none_or(|last| header.seq > last)
                })
            })
            .collect();
        for item in broken {
            self.acked[item as usize] = false;
            self.promised -= 1;
            for node in &mut self.nodes {
                node.acked_here -= usize::from(node.store.holds(item));
            }
        }
    }

    /// An author's position never has two fragments, however often its node crashed.
    fn claim_position(&mut self, author: AgentId, seq: u64, id: FragmentId) {
        let first = *self.positions.entry((author, seq)).or_insert(id);
        if first != id {
            let what = format!("position {seq} of {} was used twice", author.fmt_short());
            self.violate(Invariant::OnePosition, what);
        }
    }

    fn pushed(&mut self, to: NodeIndex, pushed: &Pushed) {
        let now = self.now;
        let n = &mut self.nodes[to as usize];
        if !n.is_up() {
            return;
        }
        let mut admitted = Admitted::default();
        match pushed {
            Pushed::Item(item) => {
                n.admit_item(now, *item, &self.arena, &mut admitted);
            }
            Pushed::Raw(lane, bytes) => {
                let lane: Lane = *lane;
                admitted = n.admit(now, lane, std::slice::from_ref(bytes), &mut self.arena);
            }
        }
        self.write_freed(to, &admitted);
        self.show_forks(to);
        self.set_timer(to);
    }

    fn timer(&mut self, node: NodeIndex, life: u32) {
        let now = self.now;
        let n = &mut self.nodes[node as usize];
        if n.life != life {
            return;
        }
        let Some(running) = n.running.as_mut() else {
            return;
        };
        if running.timer != Some(now) {
            // Set for a deadline that has moved since.
            return;
        }
        running.timer = None;
        let dials = running.book.handle_timeout(now);
        self.show_forks(node);
        let n = &mut self.nodes[node as usize];
        let outputs = n.replicate(&self.arena, |core, held| core.handle_timeout(now, held));
        self.carry_out(node, outputs);
        self.dial(node, dials);
        self.set_timer(node);
    }

    pub(super) fn set_timer(&mut self, node: NodeIndex) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut() else {
            return;
        };
        let deadlines = [
            running.replication.next_deadline(),
            running.book.next_deadline(),
            running
                .watch
                .next_deadline()
                .filter(|_| n.hostility.is_none()),
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

    pub(super) fn tell_book(&mut self, node: NodeIndex, input: address_book::Input) {
        let now = self.now;
        let Some(running) = self.nodes[node as usize].running.as_mut() else {
            return;
        };
        let dials = running.book.handle(now, input);
        self.dial(node, dials);
        self.set_timer(node);
    }
}
