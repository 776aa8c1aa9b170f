//! Steps about taking a snapshot and keeping it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::{Inner, act::Work, boot, catalogue, directory, entry::Entry, session};
use crate::{
    SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    chunks::{ChunkStore, PackId, StoreKey},
    life::{Action, Phase, Plan},
    progress::step,
    snapshot::{self, About, Freeze, Frozen},
    staging::make_private_dir,
};

/// What a manifest is called in the chunk store.
pub(super) const KIND: &str = "snapshot";

/// How a snapshot is taken.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// Under which key it is stored.
    pub key: StoreKey,
    /// A program that the guest runs first, and its arguments.
    pub hook: Option<Vec<String>>,
    /// Time that the hook may take, and then the holding of programs and disks.
    pub deadline: Duration,
}

impl SnapshotOptions {
    /// Time for the hook unless something else is said.
    pub const DEADLINE: Duration = Duration::from_secs(30);

    /// Returns the options for a key, without a hook.
    pub fn new(key: StoreKey) -> Self {
        Self {
            key,
            hook: None,
            deadline: Self::DEADLINE,
        }
    }
}

/// What the manager writes into a manifest, to make the sandbox again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Remembered {
    pub(super) info: SandboxInfo,
    pub(super) env: std::collections::BTreeMap<String, String>,
}

/// Takes memory, devices and disks at one moment.
pub(super) async fn freeze(
    entry: &Entry,
    plan: &Plan,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let vm = entry.vm().ok_or_else(|| session::none(entry))?;
    let request = entry.request().ok_or_else(|| session::none(entry))?;
    let dir = entry.frozen_dir();
    boot::remove(entry, &dir)?;
    make_private_dir(&dir).map_err(directory(&dir))?;
    // Copies of a guest start on a memory that nobody writes to, also if it stays paused.
    let how = match (plan.to, plan.action) {
        (Phase::Ready, _) | (_, Action::Fork) => Freeze::Copy,
        _ => Freeze::Hold,
    };
    step(
        &work.progress,
        "freeze",
        "taking memory and disks at one moment",
    );
    work.stopped = Some(Instant::now());
    let frozen = snapshot::freeze(&vm, &request, &dir, how).await?;
    work.frozen = Some(Arc::new(frozen));
    Ok(())
}

/// Lets the guest run on, and gives up what was taken.
pub(super) async fn unfreeze(entry: &Entry, work: &mut Work) -> Result<(), SandboxError> {
    work.frozen = None;
    let run = entry
        .vm()
        .ok_or_else(|| session::none(entry))?
        .resume()
        .await;
    boot::remove(entry, &entry.frozen_dir())?;
    Ok(run?)
}

/// Stores what was taken; durable and pinned when this returns.
pub(super) async fn capture(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let frozen = work.frozen.clone().ok_or_else(|| session::none(entry))?;
    let request = entry.request().ok_or_else(|| session::none(entry))?;
    let record = entry.record();
    let mut about = About::of(&*inner.driver_of(entry), &request).await?;
    about.image_id.clone_from(&record.info.image_id);
    about.kernel.clone_from(&record.info.fingerprint.kernel);
    about.parent = record
        .info
        .snapshot
        .as_ref()
        .map(|snapshot| snapshot.manifest);
    about.record = serde_json::to_string(&Remembered {
        info: record.info,
        env: record.env,
    })
    .expect("a record becomes JSON");
    let key = work
        .options
        .as_ref()
        .expect("a snapshot has options")
        .key
        .clone();
    let (store, progress) = (inner.chunks.clone(), Arc::clone(&work.progress));
    let pin = pending(&entry.id);
    let taken_ms = about.taken_ms;
    let id = entry.id;
    let cancelled = entry.kill.clone();
    step(&work.progress, "store", "storing memory and disks");
    let job = spawn_blocking(move || {
        let job = Job {
            store: &store,
            key: &key,
            pin: &pin,
        };
        let stored = job.run(&frozen, about, &progress)?;
        if cancelled.is_cancelled() {
            // Whoever ended the sandbox may have let go of this pin before it was made.
            let _ = store.unpin(&pin);
            return Err(SandboxError::Cancelled { id });
        }
        Ok(stored)
    });
    let Stored {
        manifest,
        packs,
        captured,
        pause,
    } = job.await.map_err(|error| SandboxError::Directory {
        path: entry.dir.clone(),
        source: std::io::Error::other(error),
    })??;
    // A guest that goes on stood still for the copies alone; one that is put to sleep does until
    // all is durable.
    let pause = match plan.to {
        Phase::Ready => pause,
        Phase::Hibernated => work.stopped.map_or(Duration::ZERO, |since| since.elapsed()),
        _ => Duration::ZERO,
    };
    let taken = SnapshotRef {
        manifest,
        packs,
        taken_ms,
        bytes_read: captured.bytes_read,
        bytes_new: captured.bytes_new,
        bytes_stored: captured.bytes_stored,
        pause_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
    };
    step(
        &work.progress,
        "store",
        format_args!(
            "{} MiB read, {} MiB new, {} MiB stored",
            taken.bytes_read >> 20,
            taken.bytes_new >> 20,
            taken.bytes_stored >> 20
        ),
    );
    // The commit that follows writes it down.
    entry.show(|record| record.taken = Some(taken));
    Ok(())
}

struct Job<'a> {
    store: &'a ChunkStore,
    key: &'a StoreKey,
    pin: &'a str,
}

struct Stored {
    manifest: PackId,
    packs: Vec<PackId>,
    captured: snapshot::Captured,
    pause: Duration,
}

impl Job<'_> {
    fn run(
        &self,
        frozen: &Frozen,
        about: About,
        progress: &crate::Progress,
    ) -> Result<Stored, SandboxError> {
        let mut writer = self.store.writer(self.key);
        let mut captured = snapshot::capture(frozen, about, &mut writer, progress)?;
        let (packs, stats) = writer.finish_with_stats()?;
        // What lay in the writer until now.
        captured.bytes_new = stats.new_bytes;
        captured.bytes_stored = stats.stored_bytes;
        let bytes = captured.manifest.to_bytes();
        let manifest = self.store.put_object(self.key, KIND, &bytes)?;
        let mut objects = vec![manifest];
        objects.extend(&packs);
        self.store.pin(self.pin, &objects)?;
        Ok(Stored {
            manifest,
            packs,
            pause: frozen.pause,
            captured,
        })
    }
}

/// Gives up what was stored and has no lasting name.
pub(super) async fn drop_capture(inner: &Arc<Inner>, entry: &Entry) -> Result<(), SandboxError> {
    unpin(inner, pending(&entry.id)).await?;
    if entry.record().taken.is_none() {
        return Ok(());
    }
    let written = entry.change(|record| record.taken = None);
    written.map_err(directory(&entry.dir))
}

/// Gives what was stored its lasting name.
pub(super) async fn keep(
    inner: &Arc<Inner>,
    entry: &Entry,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let record = entry.record();
    let Some(taken) = record.taken else {
        return Ok(()); // It was done before.
    };
    work.kept = Some(taken.clone());
    let slept = record
        .run
        .journal
        .is_none_or(|journal| !matches!(journal.action, Action::Snapshot));
    let pin = if slept {
        asleep(&entry.id)
    } else {
        catalogue::pin_of(&taken.manifest)
    };
    let (store, objects) = (inner.chunks.clone(), taken.objects());
    blocking(entry, move || store.pin(&pin, &objects)).await??;
    if !slept {
        inner.catalogue.add(&entry.info(), &taken)?;
    }
    let written = entry.change(|record| {
        record.taken = None;
        if slept {
            record.info.snapshot = Some(taken);
        }
    });
    written.map_err(directory(&entry.dir))?;
    unpin(inner, pending(&entry.id)).await
}

/// Lets go of everything that the sandbox holds in the store.
pub(super) async fn release_all(inner: &Arc<Inner>, entry: &Entry) -> Result<(), SandboxError> {
    unpin(inner, asleep(&entry.id)).await?;
    unpin(inner, pending(&entry.id)).await?;
    if entry.record().info.snapshot.is_none() {
        return Ok(());
    }
    let written = entry.change(|record| record.info.snapshot = None);
    written.map_err(directory(&entry.dir))
}

async fn unpin(inner: &Arc<Inner>, name: String) -> Result<(), SandboxError> {
    let store = inner.chunks.clone();
    let unpinned = spawn_blocking(move || store.unpin(&name)).await;
    match unpinned {
        Ok(result) => result.map(|_| ()).map_err(SandboxError::from),
        Err(_) => Err(SandboxError::Stopping),
    }
}

/// Runs what blocks, of no sandbox in particular.
pub(super) async fn blocking_in<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SandboxError> {
    spawn_blocking(work)
        .await
        .map_err(|_| SandboxError::Stopping)
}

pub(super) async fn blocking<T: Send + 'static>(
    entry: &Entry,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SandboxError> {
    spawn_blocking(work)
        .await
        .map_err(|error| SandboxError::Directory {
            path: entry.dir.clone(),
            source: std::io::Error::other(error),
        })
}

/// Names what is being stored of a sandbox.
pub(super) fn pending(id: &SandboxId) -> String {
    format!("capture-{id}")
}

/// Names what a sandbox slept in last.
pub(super) fn asleep(id: &SandboxId) -> String {
    format!("sleep-{id}")
}
