//! Group commit: many wait, one writes and syncs for all.
//!
//! Whoever waits while nobody leads becomes the leader: it takes all that is queued, writes and
//! syncs it as one batch, and wakes those whose records were in it, and one of the others to lead
//! the next. A lone publisher pays for no change of threads; with many, each sync carries all that
//! came in during the one before.
//!
//! A record may be given its place before it is complete ([`Journal::reserve`]): a fragment is
//! signed after the next of its chain may follow it. A batch ends before the first place that is
//! not filled; whoever fills it comes to wait, and leads if nobody does.
//!
//! When a batch fails, so does everything queued behind it, because it may build on it, and the
//! generation goes up: positions that were given out under an earlier one are void, and whoever
//! composes upon such a fragment is told by its [`Promise`].

use std::{
    collections::VecDeque,
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
    view::Promise,
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
    places: VecDeque<Place>,
    /// The number of the first place.
    first: u64,
    is_led: bool,
    generation: u64,
}

/// One place in the queue.
#[derive(Debug)]
struct Place {
    ticket: Arc<Ticket>,
    /// What is to be written there, once it is complete.
    record: Option<(Item, Bytes)>,
}

/// A place in the queue for a record that is not complete yet.
///
/// Dropped without having been filled, it fails, and all behind it.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    journal: &'a Journal,
    number: u64,
    ticket: Arc<Ticket>,
    is_filled: bool,
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
        /// The body, if it has a file of its own that is not written yet.
        file: Option<Bytes>,
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
    promise: Promise,
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

    /// Returns the entry that keeps a fragment as proof that its author contradicted `other`: the
    /// signed header proves it, so the body is not kept.
    pub(super) fn evidence(fragment: Fragment, other: FragmentId) -> Self {
        let mut wire = other.as_bytes().to_vec();
        wire.extend_from_slice(&fragment.stripped());
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
    let wire = Bytes::copy_from_slice(wire);
    let fragment = Fragment::decode_stripped(&wire).or_else(|_| Fragment::decode(&wire));
    Some((FragmentId::from_bytes(*other), fragment.ok()?))
}

impl Ticket {
    /// Leaves the held fragments that the committed one set free.
    pub(super) fn set_freed(&self, freed: Vec<Fragment>) {
        if !freed.is_empty() {
            *self.freed.lock().unwrap_or_else(PoisonError::into_inner) = freed;
        }
    }

    fn settle(&self, outcome: Result<u64, LogError>) {
        if outcome.is_err() {
            self.promise.give_up();
        }
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

    /// Queues records, in order.
    pub(super) fn submit(&self, entries: Vec<Entry>) -> Vec<Arc<Ticket>> {
        let tickets = entries
            .iter()
            .map(|entry| Arc::clone(&entry.ticket))
            .collect();
        let places = entries.into_iter().map(|entry| Place {
            ticket: entry.ticket,
            record: Some((entry.item, entry.wire)),
        });
        self.queue().places.extend(places);
        tickets
    }

    /// Gives out the next place in the queue, if no write has failed since `generation`.
    ///
    /// Until it is filled, nothing behind it is written: fill it soon, and then wait.
    pub(super) fn reserve(&self, generation: u64) -> Result<Reserved<'_>, Stale> {
        let ticket = Arc::<Ticket>::default();
        let mut queue = self.queue();
        if generation != queue.generation {
            return Err(Stale);
        }
        let number = queue.first + queue.places.len() as u64;
        queue.places.push_back(Place {
            ticket: Arc::clone(&ticket),
            record: None,
        });
        Ok(Reserved {
            journal: self,
            number,
            ticket,
            is_filled: false,
        })
    }

    /// Waits until a record is durable, writing for all if nobody else does; returns its arrival.
    pub(super) fn wait(&self, inner: &Inner, ticket: &Ticket) -> Result<u64, LogError> {
        let mut queue = self.queue();
        loop {
            if let Some(outcome) = ticket.outcome.get() {
                return outcome.clone();
            }
            if queue.is_led || !queue.is_ready() {
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
            if queue.places.is_empty() && !queue.is_led {
                return;
            } else if queue.is_led || !queue.is_ready() {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
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
        let batch = queue.take_batch();
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
                settled.extend(batch.into_iter().map(|entry| entry.ticket));
                settled.extend(queue.drain_from(0));
                settled
                    .iter()
                    .for_each(|ticket| ticket.settle(Err(error.clone())));
                queue.generation += 1;
            }
        }
        match queue.places.front() {
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

    /// Returns how many places are given out and not taken by a batch.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue().places.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Returns whether the first place is filled.
    fn is_ready(&self) -> bool {
        self.places
            .front()
            .is_some_and(|place| place.record.is_some())
    }

    /// Takes what the next batch is to hold: the first record, and as many more as fit.
    fn take_batch(&mut self) -> Vec<Entry> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_RECORDS
            && let Some(place) = self.places.front_mut()
            && let Some((_, wire)) = &place.record
        {
            bytes += wire.len();
            if bytes > BATCH_BYTES && !batch.is_empty() {
                break;
            }
            let place = self.places.pop_front().expect("the front was seen");
            self.first += 1;
            batch.extend(place.record.map(|(item, wire)| Entry {
                item,
                wire,
                ticket: place.ticket,
            }));
        }
        batch
    }

    /// Returns where a place is, unless it was drained.
    fn index_of(&self, number: u64, ticket: &Arc<Ticket>) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        // Numbers of drained places are given out again.
        let is_it = |place: &&Place| Arc::ptr_eq(&place.ticket, ticket);
        self.places.get(index).filter(is_it).map(|_| index)
    }

    /// Takes all places from the one with this index on; what was to be filled there never will be.
    fn drain_from(&mut self, index: usize) -> Vec<Arc<Ticket>> {
        let gone = self.places.split_off(index.min(self.places.len()));
        gone.into_iter().map(|place| place.ticket).collect()
    }
}

impl Reserved<'_> {
    /// Returns what tells those who build on the record whether it may still become durable.
    pub(super) fn promise(&self) -> Promise {
        self.ticket.promise.clone()
    }

    /// Completes the record; the ticket says what becomes of it.
    pub(super) fn fill(mut self, item: Item, wire: Bytes) -> Arc<Ticket> {
        self.is_filled = true;
        let mut queue = self.journal.queue();
        if let Some(index) = queue.index_of(self.number, &self.ticket) {
            queue.places[index].record = Some((item, wire));
        }
        drop(queue);
        Arc::clone(&self.ticket)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.is_filled {
            return;
        }
        let mut queue = self.journal.queue();
        let Some(index) = queue.index_of(self.number, &self.ticket) else {
            return;
        };
        let gone = queue.drain_from(index);
        gone.iter()
            .for_each(|ticket| ticket.settle(Err(LogError::Interrupted)));
        queue.generation += 1;
        drop(queue);
        gone.iter().for_each(|ticket| ticket.wake());
        self.journal.changed.notify_all();
    }
}
