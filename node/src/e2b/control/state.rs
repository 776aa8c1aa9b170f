//! What is under way, and what was seen lately; gone with the daemon.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use super::{template::build::LogLine, watch::Sample};

/// Samples of a sandbox's use that are kept.
const MAX_SAMPLES: usize = 720;
/// Lines of a build's log that are kept, and builds of which any are.
const MAX_LINES: usize = 2000;
const MAX_LOGS: usize = 64;

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Working {
    /// Idempotency keys for which a sandbox is being made.
    making: Mutex<BTreeSet<String>>,
    /// One act at a time on each sandbox: two who wake one must not both do.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    samples: Mutex<BTreeMap<String, VecDeque<Sample>>>,
    /// What builds of templates said.
    logs: Mutex<BTreeMap<String, Vec<LogLine>>>,
}

/// The right to make a sandbox for an idempotency key.
#[derive(Debug)]
pub(super) struct Making<'a> {
    working: &'a Working,
    key: String,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(&self.working.making).remove(&self.key);
    }
}

impl Working {
    /// Takes a key, unless somebody has it.
    pub(super) fn make_for(&self, key: &str) -> Option<Making<'_>> {
        lock(&self.making).insert(key.to_owned()).then(|| Making {
            working: self,
            key: key.to_owned(),
        })
    }

    /// Returns what is held while something is done to a sandbox.
    pub(super) fn turn(&self, sandbox: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        // Of those that nobody holds none is needed.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(sandbox.to_owned()).or_default())
    }

    pub(super) fn sampled(&self, sandbox: &str, sample: Sample) {
        let mut all = lock(&self.samples);
        let samples = all.entry(sandbox.to_owned()).or_default();
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    pub(super) fn samples(&self, sandbox: &str) -> Vec<Sample> {
        let all = lock(&self.samples);
        all.get(sandbox)
            .map(|samples| samples.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Adds a line to a build's log; beyond its bound the last one stands for all that follow.
    pub(super) fn log(&self, build: &str, line: LogLine) {
        let mut logs = lock(&self.logs);
        if logs.len() >= MAX_LOGS && !logs.contains_key(build) {
            logs.pop_first();
        }
        let lines = logs.entry(build.to_owned()).or_default();
        if lines.len() == MAX_LINES {
            lines.pop();
        }
        lines.push(line);
    }

    pub(super) fn logged(&self, build: &str) -> Vec<LogLine> {
        lock(&self.logs).get(build).cloned().unwrap_or_default()
    }

    /// Forgets what was seen of a sandbox that is over.
    pub(super) fn forget(&self, sandbox: &str) {
        lock(&self.samples).remove(sandbox);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
