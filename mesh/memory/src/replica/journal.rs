//! Group commit: many wait, one writes and syncs for all.
//!
//! Whoever waits while nobody leads becomes the leader: it takes all that is queued, writes and
//! syncs it as one batch, and wakes those whose records were in it, and one of the others to lead
//! the next. A lone publisher pays for no change of threads; with many, each sync carries all that
//! came in during the one before.
//!
//! When a batch fails, so does everything queued behind it, because it may build on it, and the
//! generation goes up: positions that were given out under an earlier one are void.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, Thread},
};

use bytes::Bytes;
use rhizome_identity::{Hash, SignedRecord};

use super::state::Inner;
use crate::{
    Fragment, FragmentId,
    store::{LogError, NewRecord, RecordKind},
};

/// The most records of one batch.
const BATCH_RECORDS: usize = 2048;
/// A batch takes no further record once it has this many bytes.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// What waits to become durable.
#[derive(Debug, Default)]
pub(super) struct Journal {
    queue: Mutex<Queue>,
    /// Somebody stopped leading; only [`Journal::drain`] waits for that.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    entries: Vec<Entry>,
    is_led: bool,
    generation: u64,
}

/// One record on its way to the disk.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Item,
    pub(super) wire: Bytes,
    pub(super) ticket: Arc<Ticket>,
}

/// What the record is.
#[derive(Debug)]
pub(super) enum Item {
    Fragment {
        fragment: Arc<Fragment>,
        own: bool,
        /// The change inside, if we composed it.
        change: Option<Bytes>,
    },
    Record(SignedRecord),
    Body(Hash),
    Evidence {
        fragment: Box<Fragment>,
        other: FragmentId,
    },
}

/// How a waiting caller learns what became of its record.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    outcome: OnceLock<Result<u64, LogError>>,
    /// Who sleeps until there is an outcome, or until it is this record's turn to lead.
    sleeper: OnceLock<Thread>,
    freed: Mutex<Vec<Fragment>>,
}

/// The positions given out are void: an earlier write failed.
#[derive(Debug)]
pub(super) struct Stale;

impl Entry {
    pub(super) fn new(item: Item, wire: Bytes) -> Self {
        Self {
            item,
            wire,
            ticket: Arc::default(),
        }
    }

    /// Returns the entry that keeps a fragment as proof that its author contradicted `other`.
    pub(super) fn evidence(fragment: Fragment, other: FragmentId) -> Self {
        let mut wire = other.as_bytes().to_vec();
        wire.extend_from_slice(&fragment.encode());
        let fragment = Box::new(fragment);
        Self::new(Item::Evidence { fragment, other }, Bytes::from(wire))
    }

    pub(super) fn record(&self) -> NewRecord {
        let kind = match self.item {
            Item::Fragment { .. } => RecordKind::Fragment,
            Item::Record(_) => RecordKind::Authority,
            Item::Body(_) => RecordKind::Body,
            Item::Evidence { .. } => RecordKind::Evidence,
        };
        NewRecord {
            kind,
            payload: self.wire.clone(),
        }
    }
}

/// Reads what [`Entry::evidence`] wrote.
pub(super) fn read_evidence(payload: &[u8]) -> Option<(FragmentId, Fragment)> {
    let (other, wire) = payload.split_first_chunk::<32>()?;
    let fragment = Fragment::decode(&Bytes::copy_from_slice(wire)).ok()?;
    Some((FragmentId::from_bytes(*other), fragment))
}

impl Ticket {
    /// Leaves the held fragments that the committed one set free.
    pub(super) fn set_freed(&self, freed: Vec<Fragment>) {
        if !freed.is_empty() {
            *self.freed.lock().unwrap_or_else(PoisonError::into_inner) = freed;
        }
    }

    fn settle(&self, outcome: Result<u64, LogError>) {
        // Set once: a ticket is in one batch.
        let _ = self.outcome.set(outcome);
    }

    fn wake(&self) {
        if let Some(sleeper) = self.sleeper.get() {
            sleeper.unpark();
        }
    }

    pub(super) fn take_freed(&self) -> Vec<Fragment> {
        std::mem::take(&mut *self.freed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Journal {
    /// Returns the generation under which positions are given out now.
    pub(super) fn generation(&self) -> u64 {
        self.queue().generation
    }

    /// Queues records, in order; with `generation`, only if no write has failed since.
    pub(super) fn submit(
        &self,
        entries: Vec<Entry>,
        generation: Option<u64>,
    ) -> Result<Vec<Arc<Ticket>>, Stale> {
        let tickets = entries
            .iter()
            .map(|entry| Arc::clone(&entry.ticket))
            .collect();
        let mut queue = self.queue();
        if generation.is_some_and(|generation| generation != queue.generation) {
            return Err(Stale);
        }
        queue.entries.extend(entries);
        Ok(tickets)
    }

    /// Waits until a record is durable, writing for all if nobody else does; returns its arrival.
    pub(super) fn wait(&self, inner: &Inner, ticket: &Ticket) -> Result<u64, LogError> {
        let mut queue = self.queue();
        loop {
            if let Some(outcome) = ticket.outcome.get() {
                return outcome.clone();
            }
            if queue.is_led {
                // Before the lock is let go, so that whoever settles the ticket finds it.
                ticket.sleeper.get_or_init(thread::current);
                drop(queue);
                thread::park();
                queue = self.queue();
            } else {
                queue = self.lead(inner, queue);
            }
        }
    }

    /// Waits until nothing is queued or being written.
    pub(super) fn drain(&self, inner: &Inner) {
        let mut queue = self.queue();
        loop {
            if queue.is_led {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            } else if queue.entries.is_empty() {
                return;
            } else {
                queue = self.lead(inner, queue);
            }
        }
    }

    fn lead<'a>(
        &'a self,
        inner: &Inner,
        mut queue: MutexGuard<'a, Queue>,
    ) -> MutexGuard<'a, Queue> {
        queue.is_led = true;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.wire.len();
            bytes <= BATCH_BYTES
        };
        let count = queue
            .entries
            .iter()
            .take(BATCH_RECORDS)
            .take_while(fits)
            .count();
        let count = count.max(1).min(queue.entries.len());
        let rest = queue.entries.split_off(count);
        let batch = std::mem::replace(&mut queue.entries, rest);
        drop(queue);

        // A panic in there is a bug of ours; nobody may hang on it, nor build on what it left.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| inner.commit(&batch)));
        let outcome = outcome.unwrap_or_else(|_| {
            inner.log.refuse_writes();
            Err(LogError::ReadOnly)
        });

        let mut settled: Vec<Arc<Ticket>> = Vec::with_capacity(batch.len());
        let mut queue = self.queue();
        queue.is_led = false;
        match outcome {
            Ok(arrivals) => {
                for (entry, arrival) in batch.into_iter().zip(arrivals) {
                    entry.ticket.settle(Ok(arrival));
                    settled.push(entry.ticket);
                }
            }
            Err(error) => {
                queue.generation += 1;
                for entry in batch.into_iter().chain(queue.entries.drain(..)) {
                    entry.ticket.settle(Err(error.clone()));
                    settled.push(entry.ticket);
                }
            }
        }
        match queue.entries.first() {
            // Whoever waits for it and is not asleep yet finds that nobody leads.
            Some(next) => settled.push(Arc::clone(&next.ticket)),
            // Under the lock, so that no batch overtakes it: one small write, no sync.
            None => inner.log.settle(),
        }
        drop(queue);
        // Without the lock, which the woken ask for first; the next leader before all others.
        settled.iter().rev().for_each(|ticket| ticket.wake());
        self.changed.notify_all();
        self.queue()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
