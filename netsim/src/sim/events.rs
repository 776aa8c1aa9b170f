//! What is going to happen, in order.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use bytes::Bytes;
use rhizome_identity::Hash;
use rhizome_memory::Lane;

/// A node, by its place in the run.
pub(super) type NodeIndex = u32;

/// Something that happens at one instant.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame of replication reaches `to` on connection `link`.
    Frame {
        from: NodeIndex,
        to: NodeIndex,
        link: u64,
        frame: Bytes,
    },
    /// A pushed item reaches `to` on connection `link`.
    Push {
        from: NodeIndex,
        to: NodeIndex,
        link: u64,
        lane: Lane,
        id: Hash,
        item: Bytes,
    },
    /// The cores of a node are due.
    Timer { node: NodeIndex, life: u32 },
    /// What a node wrote up to `mark` is durable.
    Synced {
        node: NodeIndex,
        life: u32,
        mark: u64,
    },
    /// A dial ends: the other side answers, or nobody does.
    Dialled {
        from: NodeIndex,
        to: NodeIndex,
        life: u32,
    },
    /// Both sides of a connection notice that it is dead.
    Lost { link: u64 },
    /// A crashed node starts again.
    Restart { node: NodeIndex, life: u32 },
    /// A hostile node does something.
    Mischief { node: NodeIndex, life: u32 },
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    seq: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// The events to come, by time and, among equals, in the order they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    next_seq: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Duration, event: Event) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.heap.push(Reverse(Entry { at, seq, event }));
    }

    pub(super) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<(Duration, Event)> {
        self.heap
            .pop()
            .map(|Reverse(entry)| (entry.at, entry.event))
    }
}
