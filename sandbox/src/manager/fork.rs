//! Copies of a sandbox that go on beside it.

use std::sync::Arc;

use futures::{StreamExt, stream};

use super::{
    Inner, Sandboxes,
    act::{Work, perform},
    capture::{Remembered, SnapshotOptions},
    entry::Entry,
    restore::{self, ResumeOptions, Source},
    session,
};
use crate::{
    Progress, SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    life::{Action, Lease, Phase},
    progress::step,
};

/// Copies that are started at the same time.
const AT_ONCE: usize = 4;
/// Most copies of one request.
const MAX_COPIES: usize = 256;

/// What copies are to be.
#[derive(Debug, Clone, Default)]
pub struct ForkOptions {
    /// How many.
    pub count: usize,
    /// Their names: this, with a number. Without it they have none.
    pub name: Option<String>,
    /// Their lease.
    pub lease: Option<Lease>,
}

impl Sandboxes {
    /// Makes copies of a sandbox, each with an id, a name, randomness and a clock of its own. It
    /// goes on, or stays paused, or sleeps on.
    ///
    /// # Errors
    /// Whatever taking or making a copy meets. Copies that were made before are ended again: all
    /// or none.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn fork(
        &self,
        id: &SandboxId,
        copies: ForkOptions,
        options: SnapshotOptions,
        progress: Progress,
    ) -> Result<Vec<SandboxInfo>, SandboxError> {
        if !(1..=MAX_COPIES).contains(&copies.count) {
            return Err(SandboxError::Invalid {
                what: format!("1 to {MAX_COPIES} copies can be made at once"),
            });
        }
        let entry = self.inner.entry(id)?;
        if entry.settled().await == Phase::Hibernated {
            let snapshot = entry.info().snapshot;
            let snapshot = snapshot.ok_or(SandboxError::NoSnapshot { id: *id })?;
            return self
                .fork_sleeping(&snapshot, copies, options, progress)
                .await;
        }
        let inner = Arc::clone(&self.inner);
        self.spawned(async move {
            let mut work = Work::new(progress);
            work.options = Some(options);
            work.copies = reserve(&inner, &entry, &copies).await?;
            let made = work.copies.clone();
            match perform(&inner, &entry, Action::Fork, &mut work).await {
                Ok(()) => Ok(made.iter().map(|entry| entry.info()).collect()),
                Err(error) => {
                    for entry in &made {
                        restore::forget(&inner, entry).await;
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    async fn fork_sleeping(
        &self,
        snapshot: &SnapshotRef,
        copies: ForkOptions,
        options: SnapshotOptions,
        progress: Progress,
    ) -> Result<Vec<SandboxInfo>, SandboxError> {
        let mut made = Vec::new();
        for number in 1..=copies.count {
            let resume = resume_options(&copies, number);
            let copy = self
                .restore(snapshot, &options.key, resume, Arc::clone(&progress))
                .await;
            match copy {
                Ok(info) => made.push(info),
                Err(error) => {
                    for info in made {
                        let _ = self.kill(&info.id).await;
                    }
                    return Err(error);
                }
            }
        }
        Ok(made)
    }
}

/// Lists the copies before anything is done to the one they are made from: names and limits are
/// refused while that costs nothing.
async fn reserve(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    copies: &ForkOptions,
) -> Result<Vec<Arc<Entry>>, SandboxError> {
    let record = entry.record();
    let remembered = Remembered {
        info: record.info,
        env: record.env,
    };
    let mut made: Vec<Arc<Entry>> = Vec::new();
    for number in 1..=copies.count {
        let options = resume_options(copies, number);
        match restore::child(inner, &remembered, &options, None) {
            Ok(copy) => made.push(copy),
            Err(error) => {
                for copy in &made {
                    restore::forget(inner, copy).await;
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

fn resume_options(copies: &ForkOptions, number: usize) -> ResumeOptions {
    ResumeOptions {
        as_new: true,
        name: copies.name.as_ref().map(|name| match copies.count {
            1 => name.clone(),
            _ => format!("{name}-{number}"),
        }),
        lease: copies.lease.clone(),
        ..ResumeOptions::default()
    }
}

/// Starts the copies, each from what was taken.
pub(super) async fn spread(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let frozen = work.frozen.clone().ok_or_else(|| session::none(entry))?;
    let machine = entry
        .record()
        .run
        .machine
        .ok_or_else(|| session::none(entry))?;
    let source = Source::Frozen { frozen, machine };
    let count = work.copies.len();
    step(
        &work.progress,
        "fork",
        format_args!("starting {count} copies"),
    );
    let copies = work.copies.clone();
    let started = copies.into_iter().map(|copy| {
        let mut part = Work::new(Arc::clone(&work.progress));
        part.source = Some(source.clone());
        let inner = Arc::clone(inner);
        async move { perform(&inner, &copy, Action::Resume, &mut part).await }
    });
    let results: Vec<_> = stream::iter(started)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    results.into_iter().collect()
}
