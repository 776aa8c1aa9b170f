//! What happens behind the publish path: syncing the database, feeding the search index.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Shared, ViewError, tables::guarded};

/// How long a change may wait before the index is fed: feeding it costs several syncs, and what waits
/// is found all the same.
const DELAY: Duration = Duration::from_secs(5);
/// How long the database goes without a sync, which applying has to wait for. After a crash, what
/// came since is replayed.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// So many commits are not left unsynced: until then redb cannot reuse the pages they freed.
const SYNC_COMMITS: u32 = 512;
/// So many fresh documents are not kept waiting.
const HURRY: usize = 512;

#[derive(Debug, Default)]
struct Work {
    stop: bool,
    since: Option<Instant>,
    hurry: bool,
    unsynced: u32,
}

/// A thread that settles what was applied.
#[derive(Debug)]
pub(super) struct Worker {
    work: Arc<(Mutex<Work>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, ViewError> {
        let work = Arc::new((Mutex::new(Work::default()), Condvar::new()));
        let theirs = work.clone();
        let thread = thread::Builder::new()
            .name("rhizome-view".to_owned())
            .spawn(move || run(&shared, &theirs));
        Ok(Self {
            work,
            thread: Some(thread.map_err(ViewError::Thread)?),
        })
    }

    /// Tells the worker that something was applied; `fresh` documents wait for the index.
    pub(super) fn notify(&self, fresh: usize) {
        let mut work = lock(&self.work.0);
        let now = Instant::now();
        let sooner = work.since.is_none_or(|since| since > now);
        if sooner {
            work.since = Some(now);
        }
        work.unsynced += 1;
        let hurry = (fresh >= HURRY || work.unsynced >= SYNC_COMMITS) && !work.hurry;
        work.hurry |= hurry;
        if sooner || hurry {
            self.work.1.notify_one();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.work.0).stop = true;
        self.work.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, work: &(Mutex<Work>, Condvar)) {
    let mut synced = Instant::now();
    loop {
        let mut state = lock(&work.0);
        let stop = loop {
            let due = state.since.map(|since| since + DELAY);
            match due {
                _ if state.stop => break true,
                Some(_) if state.hurry => break false,
                None => state = work.1.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let now = Instant::now();
                    if now >= due {
                        break false;
                    }
                    state = work
                        .1
                        .wait_timeout(state, due - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        };
        state.since = None;
        state.hurry = false;
        let sync = state.unsynced > 0
            && (stop || state.unsynced >= SYNC_COMMITS || synced.elapsed() >= SYNC_EVERY);
        if sync {
            state.unsynced = 0;
            synced = Instant::now();
        } else if state.unsynced > 0 {
            // Nothing more may come: the sync is due all the same.
            state.since = Some(synced + SYNC_EVERY - DELAY);
        }
        drop(state);
        let settle = || {
            if sync {
                shared.store.sync()?;
            }
            shared.settle()
        };
        if let Err(error) = guarded(settle) {
            tracing::warn!(%error, "the view could not be written; it will be derived again");
        }
        if stop {
            shared.search.rest();
            return;
        }
    }
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}
