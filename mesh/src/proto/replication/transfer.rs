//! Items on their way: batches out, batches in, acknowledgements.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rhizome_identity::Hash;
use rhizome_memory::Lane;

use super::{
    Config, Context, Holdings, ItemOutcome, Output,
    frame::{Frame, MAX_BATCH_ITEMS, MAX_ITEMS_BYTES},
    peer::Peer,
};
use crate::proto::Mono;

/// Most items queued for one peer in one lane; the next session finds the others.
const MAX_QUEUED: usize = 16 * 1024;

/// What has a window of its own: records never wait for what fragments have on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Control,
    Content,
}

impl Class {
    fn of(lane: Lane) -> Self {
        match lane {
            Lane::Authority => Self::Control,
            Lane::Space(_) => Self::Content,
        }
    }
}

/// What is on its way to one peer.
#[derive(Debug)]
pub(super) struct Outbox {
    queues: BTreeMap<Lane, VecDeque<Hash>>,
    /// Everything queued or on its way, so that no item goes twice.
    taken: BTreeSet<(Lane, Hash)>,
    /// Items that were read but did not fit into the last batch of their lane.
    left_over: BTreeMap<Lane, (Hash, Bytes)>,
    in_flight: BTreeMap<u64, Batch>,
    next_batch: u64,
}

#[derive(Debug)]
struct Batch {
    lane: Lane,
    ids: Vec<Hash>,
    sent_at: Mono,
}

impl Outbox {
    /// Returns an empty outbox whose batches count from `first_batch`.
    pub(super) fn new(first_batch: u64) -> Self {
        Self {
            queues: BTreeMap::new(),
            taken: BTreeSet::new(),
            left_over: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_batch: first_batch,
        }
    }

    pub(super) fn queued(&self, lane: Lane) -> usize {
        let left_over = self.left_over.contains_key(&lane);
        self.queues.get(&lane).map_or(0, VecDeque::len) + usize::from(left_over)
    }

    pub(super) fn is_busy(&self, lane: Lane) -> bool {
        self.queued(lane) > 0 || self.in_flight.values().any(|batch| batch.lane == lane)
    }

    pub(super) fn deadline(&self, config: &Config) -> Option<Mono> {
        self.in_flight
            .values()
            .map(|batch| batch.sent_at + config.ack_timeout)
            .min()
    }

    pub(super) fn retain_lanes(&mut self, lanes: &BTreeSet<Lane>) {
        self.queues.retain(|lane, _| lanes.contains(lane));
        self.taken.retain(|(lane, _)| lanes.contains(lane));
        self.left_over.retain(|lane, _| lanes.contains(lane));
    }

    /// Returns whether one more batch of this class may be on its way.
    fn has_room(&self, class: Class, window: usize) -> bool {
        let batches = self.in_flight.values().map(|batch| batch.lane);
        batches.filter(|lane| Class::of(*lane) == class).count() < window
    }

    /// Takes the next item from the first of those lanes that has one.
    fn next(
        &mut self,
        may: impl Fn(Lane) -> bool,
        held: &impl Holdings,
    ) -> Option<(Lane, Hash, Bytes)> {
        let left_over = self.left_over.keys().copied().find(|lane| may(*lane));
        if let Some(lane) = left_over {
            let (id, item) = self.left_over.remove(&lane)?;
            return Some((lane, id, item));
        }
        loop {
            let (&lane, queue) = self
                .queues
                .iter_mut()
                .find(|(lane, queue)| !queue.is_empty() && may(**lane))?;
            let id = queue.pop_front()?;
            // One at a time: with several, what is missing from the result would be anyone's guess.
            let item = held
                .items(lane, &[id], MAX_ITEMS_BYTES - 4)
                .into_iter()
                .next();
            match item {
                Some(item) if item.len() + 4 <= MAX_ITEMS_BYTES => return Some((lane, id, item)),
                _ => self.taken.remove(&(lane, id)),
            };
        }
    }
}

impl Peer {
    /// Queues items for the peer.
    pub(super) fn enqueue(&mut self, lane: Lane, mut ids: Vec<Hash>, held: &impl Holdings) {
        ids.retain(|id| !self.outbox.taken.contains(&(lane, *id)));
        if ids.is_empty() {
            return;
        }
        held.causal_order(lane, &mut ids);
        let queue = self.outbox.queues.entry(lane).or_default();
        for id in ids.into_iter().take(MAX_QUEUED.saturating_sub(queue.len())) {
            if self.outbox.taken.insert((lane, id)) {
                queue.push_back(id);
            }
        }
    }

    /// Sends a record made here at once: a revocation shall not depend on gossip, which may drop it.
    pub(super) fn push_record(&mut self, cx: &mut Context<'_>, id: Hash, held: &impl Holdings) {
        if self.is_greeted() && self.lanes.contains_key(&Lane::Authority) {
            self.enqueue(Lane::Authority, vec![id], held);
            self.pump(cx, held);
        }
    }

    /// Sends as many batches as the windows allow, control first.
    pub(super) fn pump(&mut self, cx: &mut Context<'_>, held: &impl Holdings) {
        for class in [Class::Control, Class::Content] {
            self.pump_class(class, cx, held);
        }
    }

    fn pump_class(&mut self, class: Class, cx: &mut Context<'_>, held: &impl Holdings) {
        while self.outbox.has_room(class, cx.node.config.window) {
            let Some((lane, id, item)) = self.outbox.next(|lane| Class::of(lane) == class, held)
            else {
                return;
            };
            let mut bytes = item.len() + 4;
            let mut ids = vec![id];
            let mut items = vec![item];
            while ids.len() < MAX_BATCH_ITEMS {
                let Some((lane, id, item)) = self.outbox.next(|of| of == lane, held) else {
                    break;
                };
                if bytes + item.len() + 4 > MAX_ITEMS_BYTES {
                    self.outbox.left_over.insert(lane, (id, item));
                    break;
                }
                bytes += item.len() + 4;
                ids.push(id);
                items.push(item);
            }
            let batch = self.outbox.next_batch;
            self.outbox.next_batch = batch.wrapping_add(1);
            self.outbox.in_flight.insert(
                batch,
                Batch {
                    lane,
                    ids,
                    sent_at: cx.now,
                },
            );
            cx.send(&Frame::Items { lane, batch, items });
        }
    }

    /// Forgets batches that were not acknowledged: the next session shows what is missing.
    pub(super) fn give_up_batches(&mut self, cx: &mut Context<'_>) {
        let timeout = cx.node.config.ack_timeout;
        let lost: Vec<u64> = self
            .outbox
            .in_flight
            .iter()
            .filter(|(_, batch)| batch.sent_at + timeout <= cx.now)
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(batch) = self.outbox.in_flight.remove(&number) {
                for id in batch.ids {
                    self.outbox.taken.remove(&(batch.lane, id));
                }
                self.reconcile_soon(cx, batch.lane);
            }
        }
    }

    /// Takes the peer's word for what became of a batch.
    pub(super) fn acknowledged(&mut self, cx: &mut Context<'_>, number: u64, stored: &[bool]) {
        let Some(batch) = self.outbox.in_flight.remove(&number) else {
            // Late, or repeated on the way.
            return;
        };
        for (index, id) in batch.ids.into_iter().enumerate() {
            self.outbox.taken.remove(&(batch.lane, id));
            if stored.get(index) == Some(&true) {
                if let Some(state) = self.lanes.get_mut(&batch.lane) {
                    state.progress = true;
                }
                cx.out.push(Output::Replica {
                    peer: cx.peer,
                    lane: batch.lane,
                    id,
                });
            }
        }
    }

    /// Hands a batch of the peer to the store.
    pub(super) fn items(
        &mut self,
        cx: &mut Context<'_>,
        lane: Lane,
        batch: u64,
        items: Vec<Bytes>,
    ) {
        if self.inbox.contains_key(&batch) || items.is_empty() {
            return;
        }
        if self.has_cost_enough(cx) {
            // Unseen: what is good among it is found again by a later session.
            let stored = vec![false; items.len()];
            return cx.send(&Frame::Ack { batch, stored });
        }
        // The sender's view of its window may lag behind ours by as much as the window.
        let class = Class::of(lane);
        let admitting = self
            .inbox
            .values()
            .filter(|lane| Class::of(**lane) == class);
        if admitting.count() >= 2 * cx.node.config.window {
            return self.strike(cx, "sends more batches than it may");
        }
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.expecting = state.expecting.saturating_sub(items.len());
            state.last_items = cx.now;
        }
        self.inbox.insert(batch, lane);
        cx.out.push(Output::Admit {
            from: cx.peer,
            lane,
            batch,
            items,
        });
    }

    /// Tells the peer what became of its batch.
    pub(super) fn admitted(
        &mut self,
        cx: &mut Context<'_>,
        lane: Lane,
        batch: u64,
        outcomes: &[ItemOutcome],
    ) {
        if self.inbox.remove(&batch).is_none() {
            // From before the peer's session was renewed.
            return;
        }
        let held =
            |outcome: &ItemOutcome| matches!(outcome, ItemOutcome::Stored | ItemOutcome::Known);
        cx.send(&Frame::Ack {
            batch,
            stored: outcomes.iter().map(held).collect(),
        });
        let count = |wanted| {
            outcomes
                .iter()
                .filter(|outcome| **outcome == wanted)
                .count()
        };
        if count(ItemOutcome::Stored) > 0
            && let Some(state) = self.lanes.get_mut(&lane)
        {
            state.progress = true;
        }
        if count(ItemOutcome::Waiting) > 0 {
            self.reconcile_soon(cx, Lane::Authority);
            self.reconcile_soon(cx, lane);
        }
        let counted = |wanted| u32::try_from(count(wanted)).unwrap_or(u32::MAX);
        self.declined(cx, counted(ItemOutcome::Declined));
        self.refused(cx, counted(ItemOutcome::Refused));
    }
}
