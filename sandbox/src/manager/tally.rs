//! How often what was done, and how long it took: what an operator watches.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Sandboxes;
use crate::{SnapshotRef, life::Action};

/// Upper bounds of the durations that are told apart, in milliseconds.
pub const DURATION_BOUNDS_MS: [u64; 10] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000,
];

/// How often an action was done, and how long that took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActionTally {
    /// Times that it was done.
    pub done: u64,
    /// Times that it failed and was taken back, or was interrupted.
    pub failed: u64,
    /// Times that it took at most as long as each of [`DURATION_BOUNDS_MS`], of those done.
    pub within: [u64; DURATION_BOUNDS_MS.len()],
    /// Time that those done took together, in milliseconds.
    pub took_ms: u64,
}

/// What the sandboxes of a node did since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Each action that was done, by its word.
    pub actions: BTreeMap<&'static str, ActionTally>,
    /// Commands that were started.
    pub execs: u64,
    /// Commands that could not be.
    pub execs_failed: u64,
    /// Snapshots that were taken, to sleep in or on request.
    pub snapshots: u64,
    /// Bytes that were read for them.
    pub snapshot_bytes_read: u64,
    /// Bytes of them that the store did not have.
    pub snapshot_bytes_new: u64,
    /// Bytes that these take in the store.
    pub snapshot_bytes_stored: u64,
}

/// The tally as it is kept.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Tally>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn action(&self, action: Action, took: Duration, done: bool) {
        let mut tally = self.lock();
        let tally = tally.actions.entry(action.as_str()).or_default();
        if !done {
            tally.failed += 1;
            return;
        }
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tally.done += 1;
        tally.took_ms = tally.took_ms.saturating_add(took_ms);
        for (within, bound) in tally.within.iter_mut().zip(DURATION_BOUNDS_MS) {
            *within += u64::from(took_ms <= bound);
        }
    }

    pub(super) fn exec(&self, started: bool) {
        let mut tally = self.lock();
        match started {
            true => tally.execs += 1,
            false => tally.execs_failed += 1,
        }
    }

    pub(super) fn snapshot(&self, taken: &SnapshotRef) {
        let mut tally = self.lock();
        tally.snapshots += 1;
        tally.snapshot_bytes_read += taken.bytes_read;
        tally.snapshot_bytes_new += taken.bytes_new;
        tally.snapshot_bytes_stored += taken.bytes_stored;
    }
}

impl Sandboxes {
    /// Returns what was done since the daemon started.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.inner.counts.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_up_to_each_bound() {
        let counts = Counts::default();
        counts.action(Action::Create, Duration::from_millis(50), true);
        counts.action(Action::Create, Duration::from_millis(700), true);
        counts.action(Action::Create, Duration::from_secs(600), true);
        counts.action(Action::Create, Duration::from_millis(1), false);
        let tally = counts.lock().actions["create"].clone();
        assert_eq!((tally.done, tally.failed, tally.took_ms), (3, 1, 600_750));
        assert_eq!(tally.within, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    }
}
