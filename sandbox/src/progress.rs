//! How long work tells where it is.

use std::{fmt, sync::Arc};

/// One step of long work, as it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressEvent<'a> {
    /// Stable short name of the step: `kernel`, `image`, `boot`, …
    pub step: &'a str,
    /// What happens now, as a sentence without a full stop.
    pub detail: &'a str,
    /// Units done, where they can be counted.
    pub done: u64,
    /// Units in all; 0 when unknown.
    pub total: u64,
}

/// Receives [`ProgressEvent`]s; called from any thread and expected not to block.
pub type Progress = Arc<dyn Fn(ProgressEvent<'_>) + Send + Sync>;

/// Returns a [`Progress`] that drops every event.
pub fn silent() -> Progress {
    Arc::new(|_| {})
}

/// Reports one uncounted step.
pub(crate) fn step(progress: &Progress, step: &str, detail: impl fmt::Display) {
    progress(ProgressEvent {
        step,
        detail: &detail.to_string(),
        done: 0,
        total: 0,
    });
}
