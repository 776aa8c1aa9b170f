//! What is going to happen, in order.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use bytes::Bytes;
use rhizome_memory::Lane;

use super::arena::ItemIndex;

/// A node, by its place in the run.
pub(super) type NodeIndex = u32;

/// A pushed item on its way.
#[derive(Clone, Debug)]
pub(super) enum Pushed {
    /// One that is what its author signed.
    Item(ItemIndex),
    /// Anything else.
    Raw(Lane, Bytes),
}

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
        to: NodeIndex,
        link: u64,
        item: Pushed,
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
    /// A node that is down starts.
    Start { node: NodeIndex, life: u32 },
    /// A node stops, with what it had not synced; it starts again after `down`, if ever.
    Stop {
        node: NodeIndex,
        down: Option<Duration>,
    },
    /// A node publishes.
    Publish { node: NodeIndex },
    /// A hostile node does something.
    Mischief { node: NodeIndex, life: u32 },
}

impl Event {
    /// Returns a number for its kind, the node it is for, and what it carries, for the trace.
    pub(super) fn parts(&self) -> (u8, NodeIndex, EventContent<'_>) {
        use EventContent::{Bytes, Nothing, Number};
        match self {
            Self::Frame { to, frame, .. } => (1, *to, Bytes(frame)),
            Self::Push {
                to,
                item: Pushed::Item(item),
                ..
            } => (2, *to, Number((*item).into())),
            Self::Push {
                to,
                item: Pushed::Raw(_, bytes),
                ..
            } => (3, *to, Bytes(bytes)),
            Self::Timer { node, .. } => (4, *node, Nothing),
            Self::Synced { node, mark, .. } => (5, *node, Number(*mark)),
            Self::Dialled { from, to, .. } => (6, *from, Number((*to).into())),
            Self::Lost { link } => (7, 0, Number(*link)),
            Self::Start { node, .. } => (8, *node, Nothing),
            Self::Stop { node, .. } => (9, *node, Nothing),
            Self::Publish { node } => (10, *node, Nothing),
            Self::Mischief { node, .. } => (11, *node, Nothing),
        }
    }

    /// Returns what it is, for people.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Frame { .. } => "frame",
            Self::Push { .. } => "push",
            Self::Timer { .. } => "timer",
            Self::Synced { .. } => "synced",
            Self::Dialled { .. } => "dialled",
            Self::Lost { .. } => "lost",
            Self::Start { .. } => "start",
            Self::Stop { .. } => "stop",
            Self::Publish { .. } => "publish",
            Self::Mischief { .. } => "mischief",
        }
    }
}

/// What of an event goes into the trace.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventContent<'a> {
    Nothing,
    Number(u64),
    Bytes(&'a [u8]),
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
