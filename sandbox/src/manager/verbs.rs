//! What can be asked of a sandbox that is there.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    Sandboxes,
    act::{Work, perform},
    capture::SnapshotOptions,
    catalogue, create,
};
use crate::{
    Progress, SandboxError, SandboxId, SandboxInfo, SnapshotInfo, SnapshotRef,
    chunks::PackId,
    life::{Action, Phase},
    silent,
};

/// Time a guest has to answer a ping before it counts as out of reach.
const PING_LIMIT: Duration = Duration::from_secs(5);
/// Fewest characters of a manifest that are looked up as a prefix.
const MIN_PREFIX: usize = 4;

/// Whether a guest answers: asked of the guest itself, on the path that requests take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether it answered.
    pub answers: bool,
    /// How long that took, in microseconds.
    pub ping_us: Option<u64>,
    /// Why it did not, for people.
    pub problem: Option<String>,
}

impl Sandboxes {
    /// Holds a sandbox's processors; its memory stays.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] and its kin, [`SandboxError::Driver`].
    pub async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, SandboxError> {
        self.simple(id, Action::Pause).await
    }

    /// Lets a paused sandbox go on, with its clock set.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] and its kin, [`SandboxError::Driver`], [`SandboxError::Guest`].
    pub async fn unpause(&self, id: &SandboxId) -> Result<SandboxInfo, SandboxError> {
        self.simple(id, Action::Unpause).await
    }

    /// Shuts the guest down cleanly and keeps its disk.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] and its kin.
    pub async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, SandboxError> {
        self.simple(id, Action::Stop).await
    }

    /// Boots the guest of a stopped sandbox again, on the disk it left.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] and its kin, and what a boot meets; it is stopped then.
    pub async fn start(
        &self,
        id: &SandboxId,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        let (inner, entry) = (Arc::clone(&self.inner), self.inner.entry(id)?);
        self.spawned(async move { create::start(&inner, &entry, &progress).await })
            .await
    }

    /// Writes a sandbox down as it is; it goes on.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] and its kin, [`SandboxError::Quiesce`],
    /// [`SandboxError::Snapshot`], [`SandboxError::Chunks`]; the sandbox is then as before.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn snapshot(
        &self,
        id: &SandboxId,
        options: SnapshotOptions,
        progress: Progress,
    ) -> Result<SnapshotRef, SandboxError> {
        let (inner, entry) = (Arc::clone(&self.inner), self.inner.entry(id)?);
        self.spawned(async move {
            let mut work = Work::new(progress);
            work.options = Some(options);
            perform(&inner, &entry, Action::Snapshot, &mut work).await?;
            // One that sleeps is written down already.
            work.kept
                .or(entry.info().snapshot)
                .ok_or(SandboxError::NoSnapshot { id: entry.id })
        })
        .await
    }

    /// Puts a sandbox to sleep: written down whole, its monitor and memory gone.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; the sandbox then runs on.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn hibernate(
        &self,
        id: &SandboxId,
        options: SnapshotOptions,
        progress: Progress,
    ) -> Result<SnapshotRef, SandboxError> {
        let (inner, entry) = (Arc::clone(&self.inner), self.inner.entry(id)?);
        self.spawned(async move {
            let mut work = Work::new(progress);
            work.options = Some(options);
            perform(&inner, &entry, Action::Hibernate, &mut work).await?;
            let slept = work.kept.or(entry.info().snapshot);
            slept.ok_or(SandboxError::NoSnapshot { id: entry.id })
        })
        .await
    }

    /// Ends a sandbox and all that is in it, whatever is done to it at the moment; one that has
    /// ended already is fine.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`].
    pub async fn kill(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (inner, entry) = (Arc::clone(&self.inner), self.inner.entry(id)?);
        if matches!(entry.phase(), Phase::Failed | Phase::Killed) {
            // What is left of it goes with the action that ended it.
            drop(entry.turn.lock().await);
            return Ok(());
        }
        entry.kill.cancel();
        let work = self.inner.tasks.spawn(async move {
            let mut work = Work::new(silent());
            let killed = perform(&inner, &entry, Action::Kill, &mut work).await;
            inner.prune();
            killed
        });
        work.await.unwrap_or(Err(SandboxError::Stopping))
    }

    /// Changes the labels of a sandbox, and keeps that. The sandbox does not look at them.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`], [`SandboxError::Invalid`] for labels that are too many or too
    /// long, [`SandboxError::Directory`].
    pub fn change_labels(
        &self,
        id: &SandboxId,
        change: impl FnOnce(&mut BTreeMap<String, String>),
    ) -> Result<(), SandboxError> {
        let entry = self.inner.entry(id)?;
        // Under the lock of its record, so that two who change at once both do.
        let mut refused = None;
        let written = entry.change(|record| {
            let mut labels = record.info.labels.clone();
            change(&mut labels);
            match create::check_pairs(&labels, &BTreeMap::new()) {
                Ok(()) => record.info.labels = labels,
                Err(error) => refused = Some(error),
            }
        });
        written.map_err(super::directory(&entry.dir))?;
        refused.map_or(Ok(()), Err)
    }

    /// Asks the guest whether it answers.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`].
    pub async fn health(&self, id: &SandboxId) -> Result<Health, SandboxError> {
        let entry = self.inner.entry(id)?;
        let silent = |problem: String| Health {
            answers: false,
            ping_us: None,
            problem: Some(problem),
        };
        let began = Instant::now();
        let pinged = tokio::time::timeout(PING_LIMIT, async {
            let channel = entry.channel().await.map_err(|error| error.to_string())?;
            channel.ping().await.map_err(|error| error.to_string())
        });
        Ok(match pinged.await {
            Ok(Ok(_)) => Health {
                answers: true,
                ping_us: u64::try_from(began.elapsed().as_micros()).ok(),
                problem: None,
            },
            Ok(Err(problem)) => silent(problem),
            Err(_) => silent(format!("no answer within {} s", PING_LIMIT.as_secs())),
        })
    }

    /// Returns every snapshot that this node keeps, the newest first: those that were taken on
    /// request, and those that sandboxes slept in last.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let mut found = self.inner.catalogue.list();
        let entries = self.inner.entries();
        for entry in entries.values() {
            let info = entry.info();
            if let Some(snapshot) = info.snapshot.clone() {
                found.push(catalogue::describe(&info, &snapshot, true));
            }
        }
        drop(entries);
        found.sort_by_key(|info| {
            std::cmp::Reverse((info.snapshot.taken_ms, info.snapshot.manifest))
        });
        found
    }

    /// Returns the snapshot with this manifest, or a unique prefix of it.
    ///
    /// # Errors
    /// [`SandboxError::UnknownSnapshot`], [`SandboxError::Ambiguous`].
    pub fn find_snapshot(&self, wanted: &str) -> Result<SnapshotInfo, SandboxError> {
        let mut matching: Vec<_> = self.snapshots();
        matching.retain(|info| {
            wanted.len() >= MIN_PREFIX && info.snapshot.manifest.to_string().starts_with(wanted)
        });
        matching.dedup_by_key(|info| info.snapshot.manifest);
        match matching.len() {
            0 => Err(SandboxError::UnknownSnapshot {
                wanted: wanted.chars().take(128).collect(),
            }),
            1 => Ok(matching.swap_remove(0)),
            matches => Err(SandboxError::Ambiguous {
                wanted: wanted.to_owned(),
                matches,
            }),
        }
    }

    /// Forgets a snapshot that was taken on request; its packs go when nothing else names them.
    ///
    /// # Errors
    /// [`SandboxError::UnknownSnapshot`]; [`SandboxError::Invalid`] for one that a sandbox sleeps
    /// in, which goes with the sandbox.
    pub async fn remove_snapshot(&self, manifest: &PackId) -> Result<(), SandboxError> {
        let inner = Arc::clone(&self.inner);
        let manifest = *manifest;
        let removed = tokio::task::spawn_blocking(move || {
            // The name first: a crash in between leaves a pin that `doctor --fix` finds.
            let path = inner.dir.join("snapshots");
            let listed = inner.catalogue.remove(&manifest);
            let listed = listed.map_err(super::directory(&path))?;
            inner.chunks.unpin(&catalogue::pin_of(&manifest))?;
            Ok::<_, SandboxError>(listed)
        });
        let removed = removed.await.map_err(|_| SandboxError::Stopping)??;
        if removed {
            return Ok(());
        }
        if self
            .snapshots()
            .iter()
            .any(|info| info.snapshot.manifest == manifest)
        {
            return Err(SandboxError::Invalid {
                what: "a sandbox sleeps in this snapshot, or did last; it goes with the sandbox"
                    .to_owned(),
            });
        }
        Err(SandboxError::UnknownSnapshot {
            wanted: manifest.to_string(),
        })
    }

    async fn simple(&self, id: &SandboxId, action: Action) -> Result<SandboxInfo, SandboxError> {
        let (inner, entry) = (Arc::clone(&self.inner), self.inner.entry(id)?);
        self.spawned(async move {
            perform(&inner, &entry, action, &mut Work::new(silent())).await?;
            Ok(entry.info())
        })
        .await
    }
}
