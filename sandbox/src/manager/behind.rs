//! Sandboxes that go on before their disks are there.
//!
//! The disks are served to the monitor and filled behind the guest ([`snapshot::Behind`]); when all
//! is there the monitor uses the files themselves and nobody is needed any more. A guest that asks
//! for what nobody has is paused, and goes on by itself when it can be had. Which parts are there
//! outlives this process, and so does the guest; the next one serves the disks from its start, and
//! fills them once it is told from where ([`Sandboxes::go_on_arriving`]).

use std::{
    fs, io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    Inner, Sandboxes,
    act::{Work, perform, told},
    boot, directory,
    entry::Entry,
    restore, session,
};
use crate::{
    ArrivingDisks, Progress, SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    chunks::{ChunkId, ReadChunks, StoreKey},
    driver::VmmDriver,
    life::{Action, LeaseEnd, Phase},
    progress::step,
    silent,
    snapshot::{self, Behind, Manifest},
};

/// How long until what nobody had is asked for again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a sandbox that waits for its disk is held at least.
const HELD: Duration = Duration::from_millis(500);
/// How long an action waits for disks that are on their way.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it looks whether they still come.
const LOOK: Duration = Duration::from_millis(500);

/// Whether an action takes the disks as they are, so that they have to be whole.
pub(super) fn needs_disks(action: Action) -> bool {
    matches!(
        action,
        Action::Snapshot
            | Action::Fork
            | Action::Hibernate
            | Action::LeaseEnds(LeaseEnd::Hibernate)
            | Action::Stop
    )
}

/// Waits until a sandbox has its disks.
pub(super) async fn whole(entry: &Entry, progress: &Progress) -> Result<(), SandboxError> {
    let began = Instant::now();
    loop {
        let arriving = entry.shown().arriving;
        let Some(arriving) = arriving.filter(|_| entry.phase().is_running()) else {
            return Ok(());
        };
        if arriving.waits.is_some() || began.elapsed() > PATIENCE {
            return Err(SandboxError::Arriving {
                id: entry.id,
                left: arriving.left,
                why: arriving.waits,
            });
        }
        let left = arriving.left >> 20;
        step(
            progress,
            "disks",
            format_args!("{left} MiB are on their way"),
        );
        match entry.behind() {
            Some(behind) => drop(timeout(LOOK, behind.stopped()).await),
            None => sleep(LOOK).await,
        }
    }
}

/// Starts a monitor whose guest goes on when its memory is there.
pub(super) async fn begin(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    driver: &dyn VmmDriver,
    manifest: Arc<Manifest>,
    reader: Arc<dyn ReadChunks>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let request = entry.request().ok_or_else(|| session::none(entry))?;
    let (marks, progress) = (entry.marks_dir(), Arc::clone(&work.progress));
    let woken = snapshot::wake_ahead(driver, &request, manifest, reader, &marks, progress);
    let (vm, behind) = woken.await?;
    // The commit that follows writes it down.
    let standing = behind.standing();
    entry.show(|record| {
        record.info.arriving = Some(ArrivingDisks {
            bytes: standing.bytes,
            left: standing.left,
            waits: None,
        });
    });
    entry.set_behind(Some(Arc::new(behind)));
    work.stream = Some(vm.connect().await?);
    boot::hold(inner, entry, vm)
}

/// Waits until the disks of a sandbox that is being woken cannot be had.
pub(super) async fn fails(entry: &Entry) -> SandboxError {
    let Some(behind) = entry.behind() else {
        return std::future::pending().await;
    };
    let why = behind.failed().await;
    SandboxError::Arriving {
        id: entry.id,
        left: behind.standing().left,
        why: Some(why),
    }
}

/// Forgets what was known of disks on their way.
pub(super) fn forget(entry: &Entry) -> Result<(), SandboxError> {
    if let Some(behind) = entry.set_behind(None) {
        behind.stop();
    }
    entry.show(|record| record.info.arriving = None);
    let marks = entry.marks_dir();
    match fs::remove_dir_all(&marks) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(directory(&marks)(error)),
        _ => Ok(()),
    }
}

/// Serves the disks that another daemon served; what is not there of them waits.
pub(super) fn serve_again(entry: &Arc<Entry>) {
    let info = entry.info();
    if info.arriving.is_none() || !info.state.is_running() {
        return;
    }
    let Some(request) = entry.request() else {
        return;
    };
    let found = Behind::find(&request.dir, &entry.marks_dir());
    match found.and_then(|behind| behind.listen(&request).map(|()| behind)) {
        Ok(behind) => drop(entry.set_behind(Some(Arc::new(behind)))),
        // The guest waits for its disks, and whoever asks is told.
        Err(error) => {
            let error = SandboxError::from(error);
            warn!(sandbox = %entry.id, error = %told(&error), "disks on their way cannot be served");
        }
    }
}

/// Fills the disks of a sandbox behind it, in a task of its own.
pub(super) fn tend(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let Some(behind) = entry.behind() else { return };
    let (inner, entry) = (Arc::clone(inner), Arc::clone(entry));
    let owner = Arc::clone(&inner);
    owner.tasks.spawn(async move {
        tokio::select! {
            biased;
            () = inner.stop.cancelled() => {}
            () = behind.stopped() => {}
            () = fill(&inner, &entry, &behind) => {}
        }
    });
}

async fn fill(inner: &Arc<Inner>, entry: &Arc<Entry>, behind: &Arc<Behind>) {
    loop {
        let brought = tokio::select! {
            biased;
            why = behind.failed() => Err(why),
            brought = behind.bring_some() => brought.map_err(|why| {
                // Nobody has asked for it yet; it is told to who looks.
                tracing::debug!(sandbox = %entry.id, %why, "a part of a disk cannot be had yet");
                String::new()
            }),
        };
        match brought {
            Ok(more) => {
                if is_held(entry) {
                    // What fails for another reason than that nobody has it fails again at once.
                    sleep(HELD).await;
                    if behind.bring_failed().await.is_ok() {
                        let_go(inner, entry).await;
                    }
                }
                if !more {
                    break;
                }
            }
            Err(why) if !why.is_empty() => hold(inner, entry, why).await,
            Err(_) => tokio::select! {
                biased;
                why = behind.failed() => hold(inner, entry, why).await,
                () = sleep(AGAIN) => {}
            },
        }
    }
    // From here on the guest needs nobody.
    while let Some(vm) = entry.vm() {
        match vm.take_disks(&behind.disks()).await {
            Ok(()) => break,
            Err(error) => {
                // It is served on, which is as good while this process lives.
                let error = SandboxError::from(error);
                warn!(sandbox = %entry.id, error = %told(&error), "a monitor does not take over its disks");
                drop(vm);
                sleep(AGAIN).await;
            }
        }
    }
    if is_held(entry) {
        let_go(inner, entry).await;
    }
    let written = entry.change(|record| record.info.arriving = None);
    if let Err(error) = written {
        warn!(sandbox = %entry.id, %error, "cannot write down that its disks are here");
    }
    if let Err(error) = forget(entry) {
        warn!(sandbox = %entry.id, error = %told(&error), "what was known of arriving disks stays");
    }
    info!(sandbox = %entry.id, "all of its disks is here");
}

/// Whether the sandbox is paused because it waits for a disk.
fn is_held(entry: &Entry) -> bool {
    entry
        .info()
        .arriving
        .is_some_and(|arriving| arriving.waits.is_some())
}

/// Pauses a sandbox that asked for what nobody has.
async fn hold(inner: &Arc<Inner>, entry: &Arc<Entry>, why: String) {
    // One that somebody paused is theirs to let go on.
    if entry.phase() == Phase::Paused && !is_held(entry) {
        return;
    }
    warn!(sandbox = %entry.id, %why, "a sandbox waits for its disk");
    wait_for(entry, Some(why));
    let mut work = Work::new(silent());
    if let Err(error) = perform(inner, entry, Action::Pause, &mut work).await {
        warn!(sandbox = %entry.id, error = %told(&error), "it cannot be paused");
        wait_for(entry, None);
    }
}

/// Lets it go on.
async fn let_go(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let why = entry.info().arriving.and_then(|arriving| arriving.waits);
    wait_for(entry, None);
    let mut work = Work::new(silent());
    match perform(inner, entry, Action::Unpause, &mut work).await {
        Ok(()) => info!(sandbox = %entry.id, "what it waited for is here"),
        Err(error) => {
            warn!(sandbox = %entry.id, error = %told(&error), "it cannot go on yet");
            wait_for(entry, why);
        }
    }
}

/// Says why it is paused, until the next commit writes that down.
fn wait_for(entry: &Entry, why: Option<String>) {
    entry.show(|record| {
        if let Some(arriving) = &mut record.info.arriving {
            arriving.waits = why;
        }
    });
}

impl Sandboxes {
    /// Returns the sandboxes whose disks are still on their way.
    #[must_use]
    pub fn arriving(&self) -> Vec<SandboxInfo> {
        let mut all = self.list();
        all.retain(|info| info.arriving.is_some() && info.state.is_running());
        all
    }

    /// Returns the chunks of a snapshot without which its sandbox cannot go on, in the order in
    /// which they are read; its manifest is here.
    ///
    /// # Errors
    /// [`SandboxError::Chunks`] and [`SandboxError::Snapshot`].
    pub async fn needed_first(
        &self,
        snapshot: &SnapshotRef,
        key: &StoreKey,
    ) -> Result<Vec<ChunkId>, SandboxError> {
        let manifest = restore::manifest_of(&self.inner, &snapshot.manifest, key).await?;
        let maps = [&manifest.device, &manifest.ram].into_iter();
        Ok(maps
            .flat_map(|map| map.chunks.iter().flatten())
            .copied()
            .collect())
    }

    /// Goes on filling the disks of a sandbox that a former daemon woke ahead of them: `chunks` has
    /// what it slept in.
    ///
    /// # Errors
    /// [`SandboxError::NoSnapshot`] if it is not known what that was; [`SandboxError::Chunks`] and
    /// [`SandboxError::Snapshot`] if that cannot be read or is of other disks.
    pub async fn go_on_arriving(
        &self,
        id: &SandboxId,
        key: &StoreKey,
        chunks: Arc<dyn ReadChunks>,
    ) -> Result<(), SandboxError> {
        let entry = self.inner.entry(id)?;
        let none = || SandboxError::NoSnapshot { id: *id };
        let snapshot = entry.info().snapshot.ok_or_else(none)?;
        let manifest = restore::manifest_of(&self.inner, &snapshot.manifest, key).await?;
        let Some(behind) = entry.behind() else {
            return Ok(());
        };
        if behind.is_fed() {
            return Ok(());
        }
        behind.feed(&manifest, &chunks)?;
        tend(&self.inner, &entry);
        Ok(())
    }
}
