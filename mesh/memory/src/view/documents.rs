//! The documents in use: each behind a lock of its own, and a bounded number of them loaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use automerge::{Automerge, Change};

use super::live::Live;
use crate::{FragmentId, document::DocKey};

/// Most documents kept loaded; a small one takes 19 KiB.
const MAX_LIVE: usize = 256;
/// Most bytes, as saved, of the documents kept loaded.
const MAX_LIVE_BYTES: usize = 32 * 1024 * 1024;

/// Whether a fragment that others build on may still become durable.
///
/// Whoever learns that it never will breaks the promise, before anything else can be seen of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promise(Arc<AtomicBool>);

impl Promise {
    /// Says that the fragment will never be durable.
    pub(crate) fn give_up(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether it never will be.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A change that was composed and is on its way to be durable.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) change: Change,
    /// The fragment that carries it, once there is one.
    pub(super) fragment: Option<(FragmentId, Promise)>,
}

/// One document, as far as it is in use.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// As the fragments applied so far make it, if it is loaded.
    pub(super) live: Option<Live>,
    /// What was composed on it and is not applied yet, each upon those before it.
    pub(super) pending: Vec<Pending>,
    /// The document with all of that on top, if somebody has built it.
    pub(super) tip: Option<Automerge>,
}

impl Document {
    /// Forgets the changes that were applied, and those that will never be, with all that was
    /// composed upon them.
    pub(super) fn forget_settled(&mut self) {
        if let Some(live) = &self.live {
            let index = &live.index;
            self.pending
                .retain(|pending| index.by_hash(&pending.change.hash()).is_none());
        }
        let is_broken = |pending: &Pending| {
            let promise = pending.fragment.as_ref().map(|(_, promise)| promise);
            promise.is_some_and(Promise::is_broken)
        };
        if let Some(place) = self.pending.iter().position(is_broken) {
            self.pending.truncate(place);
            self.tip = None;
        }
        if self.pending.is_empty() {
            self.tip = None;
        }
    }

    /// Forgets a composed change, and what was composed upon it.
    pub(super) fn release(&mut self, change: &[u8]) {
        let is_it = |pending: &Pending| pending.change.raw_bytes() == change;
        if let Some(place) = self.pending.iter().position(is_it) {
            self.pending.truncate(place);
            self.tip = None;
        }
    }

    /// Forgets a composed change that has its verdict.
    pub(super) fn settle(&mut self, id: &FragmentId) {
        self.pending
            .retain(|pending| pending.fragment.as_ref().is_none_or(|(of, _)| of != id));
    }

    /// Returns whether this fragment was composed here and is not applied yet.
    pub(super) fn awaits(&self, id: &FragmentId) -> bool {
        self.pending
            .iter()
            .any(|pending| pending.fragment.as_ref().is_some_and(|(of, _)| of == id))
    }
}

/// A document with its lock.
pub(super) type Cell = Arc<Mutex<Document>>;

/// Locks a document.
pub(super) fn lock(cell: &Cell) -> MutexGuard<'_, Document> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The documents in use.
///
/// A document is locked before this, never the other way round.
#[derive(Debug, Default)]
pub(super) struct Documents(Mutex<Cells>);

#[derive(Debug, Default)]
struct Cells {
    cells: BTreeMap<DocKey, Entry>,
    by_use: BTreeMap<u64, DocKey>,
    clock: u64,
    bytes: usize,
    /// Documents that have changed in a transaction that is not committed.
    uncommitted: BTreeSet<DocKey>,
}

#[derive(Debug)]
struct Entry {
    cell: Cell,
    used: u64,
    bytes: usize,
}

impl Documents {
    /// Returns a document, which need not be loaded.
    pub(super) fn cell(&self, key: &DocKey) -> Cell {
        let mut cells = self.cells();
        cells.clock += 1;
        let clock = cells.clock;
        cells.by_use.insert(clock, *key);
        let entry = cells.cells.entry(*key).or_insert_with(|| Entry {
            cell: Cell::default(),
            used: clock,
            bytes: 0,
        });
        let cell = Arc::clone(&entry.cell);
        let before = std::mem::replace(&mut entry.used, clock);
        if before != clock {
            cells.by_use.remove(&before);
        }
        cell
    }

    /// Returns a document that is in use already.
    pub(super) fn peek(&self, key: &DocKey) -> Option<Cell> {
        let cells = self.cells();
        cells.cells.get(key).map(|entry| Arc::clone(&entry.cell))
    }

    /// Notes how large a document is now, and lets go of those that nobody has used for longest.
    pub(super) fn keep(&self, key: &DocKey, bytes: usize) {
        let mut cells = self.cells();
        let cells = &mut *cells;
        if let Some(entry) = cells.cells.get_mut(key) {
            cells.bytes = cells.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        if cells.cells.len() <= MAX_LIVE && cells.bytes <= MAX_LIVE_BYTES {
            return;
        }
        let mut gone = Vec::new();
        for (used, key) in &cells.by_use {
            let left = cells.cells.len() - gone.len();
            if left <= 1 || (left <= MAX_LIVE && cells.bytes <= MAX_LIVE_BYTES) {
                break;
            }
            let entry = &cells.cells[key];
            // Nobody can begin to use it while we look.
            if Arc::strong_count(&entry.cell) == 1 && lock(&entry.cell).pending.is_empty() {
                cells.bytes -= entry.bytes;
                gone.push((*used, *key));
            }
        }
        for (used, key) in gone {
            cells.by_use.remove(&used);
            cells.cells.remove(&key);
        }
    }

    /// Notes that a document has changed in the transaction that is open.
    pub(super) fn note_uncommitted(&self, key: DocKey) {
        self.cells().uncommitted.insert(key);
    }

    /// Notes that the transaction is over.
    pub(super) fn note_committed(&self) {
        self.cells().uncommitted.clear();
    }

    /// Returns whether what readers see of a document is not what was applied to it.
    pub(super) fn is_uncommitted(&self, key: &DocKey) -> bool {
        self.cells().uncommitted.contains(key)
    }

    /// Unloads all documents; what was composed stays noted.
    pub(super) fn unload(&self) {
        let all: Vec<Cell> = {
            let cells = self.cells();
            let entries = cells.cells.values();
            entries.map(|entry| Arc::clone(&entry.cell)).collect()
        };
        for cell in all {
            let mut document = lock(&cell);
            document.live = None;
            document.tip = None;
        }
    }

    fn cells(&self) -> MutexGuard<'_, Cells> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
