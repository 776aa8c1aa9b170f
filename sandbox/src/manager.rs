//! Every sandbox of one node.
//!
//! A sandbox is an [`Entry`](entry::Entry): its state in memory, and beside it on disk a
//! directory with `state.json`, the console log and, while it runs, the directory that its
//! monitor works in. One task owns each running monitor ([`watch`]); whoever wants the sandbox to
//! end cancels its token, and the task does the rest.

mod create;
mod entry;
mod files;
mod leftovers;
mod watch;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{FlockOperation, flock};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

pub use files::{DirEntry, FileDownload, FileKind, FileStat};

use crate::{
    Progress, SandboxConfig, SandboxError, SandboxId, SandboxInfo, SandboxSpec,
    channel::{DoorStream, ExecHandle, ExecRequest, GuestChannel},
    driver::{VmmDriver, qemu::Qemu, read_console},
    image::ImageStore,
    probe::{self, AccelDecision},
    silent,
    staging::make_private_dir,
};
use entry::Entry;

/// Connections of all guests that wait for the node to take them; a full queue makes guests wait.
const DOOR_QUEUE: usize = 64;
/// Time that monitors have to be gone when the node goes down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Fewest characters of an id that are looked up as a prefix.
const MIN_PREFIX: usize = 3;

/// A connection that a guest opened to its node.
#[derive(Debug)]
pub struct DoorConnection {
    /// Whose guest.
    pub sandbox: SandboxId,
    /// The bytes of the connection, both ways.
    pub stream: DoorStream,
}

/// Every sandbox of one node; cheap to clone.
///
/// [`Self::shutdown`] ends them all; so does the end of the process, however it comes.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: SandboxConfig,
    /// One directory per sandbox.
    dir: PathBuf,
    images: ImageStore,
    driver: Arc<dyn VmmDriver>,
    accel: OnceCell<AccelDecision>,
    entries: Mutex<BTreeMap<SandboxId, Arc<Entry>>>,
    doors: mpsc::Sender<DoorConnection>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Held for as long as this lives: one daemon per directory.
    _lock: File,
}

impl Sandboxes {
    /// Opens the sandbox directory; leftovers of a daemon that died are ended and listed as failed.
    ///
    /// # Errors
    /// [`SandboxError::Directory`] and [`SandboxError::InUse`].
    pub async fn open(
        config: SandboxConfig,
    ) -> Result<(Self, mpsc::Receiver<DoorConnection>), SandboxError> {
        let driver = Arc::new(Qemu::new(config.qemu.clone()));
        Self::open_with(config, driver).await
    }

    /// As [`Self::open`], with another driver than QEMU.
    ///
    /// # Errors
    /// [`SandboxError::Directory`] and [`SandboxError::InUse`].
    pub async fn open_with(
        config: SandboxConfig,
        driver: Arc<dyn VmmDriver>,
    ) -> Result<(Self, mpsc::Receiver<DoorConnection>), SandboxError> {
        let dir = config.dir.clone();
        let lock = lock(&dir)?;
        let images = ImageStore::open(&config)?;
        let found = leftovers::read(&dir).map_err(|source| SandboxError::Directory {
            path: dir.clone(),
            source,
        })?;
        let (doors, opened) = mpsc::channel(DOOR_QUEUE);
        let entries = found.into_iter().map(|entry| (entry.id, Arc::new(entry)));
        let inner = Inner {
            dir,
            images,
            driver,
            accel: OnceCell::new(),
            entries: Mutex::new(entries.collect()),
            doors,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            config,
            _lock: lock,
        };
        let sandboxes = Self {
            inner: Arc::new(inner),
        };
        sandboxes.inner.prune();
        Ok((sandboxes, opened))
    }

    /// Makes a sandbox and returns once its guest answers.
    ///
    /// # Errors
    /// Whatever step failed; everything done before it is undone, and the sandbox stays listed as
    /// failed, with its console log. A request that cannot be met leaves nothing.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own; a dropped future leaves a sandbox to be killed.
    pub async fn create(
        &self,
        spec: SandboxSpec,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        let inner = Arc::clone(&self.inner);
        if inner.stop.is_cancelled() {
            return Err(SandboxError::Stopping);
        }
        let work = self
            .inner
            .tasks
            .spawn(async move { create::create(&inner, spec, &progress).await });
        work.await.unwrap_or(Err(SandboxError::Stopping))
    }

    /// Returns every sandbox, the newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let mut infos: Vec<_> = self.inner.entries().values().map(|e| e.info()).collect();
        infos.sort_by_key(|info| std::cmp::Reverse((info.created_ms, info.id)));
        infos
    }

    /// Returns the sandbox with this id, name or unique prefix of an id.
    ///
    /// A name means the running sandbox that has it, or else the newest one that had it.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`] or [`SandboxError::Ambiguous`].
    pub fn get(&self, wanted: &str) -> Result<SandboxInfo, SandboxError> {
        find(self.list(), wanted)
    }

    /// Starts a command.
    ///
    /// The sandbox's own environment is below what the request sets.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::Exec`].
    pub async fn exec(
        &self,
        id: &SandboxId,
        mut request: ExecRequest,
    ) -> Result<ExecHandle, SandboxError> {
        let entry = self.inner.entry(id)?;
        let channel = entry.channel()?;
        for (name, value) in &entry.env {
            request
                .env
                .entry(name.clone())
                .or_insert_with(|| value.clone());
        }
        let started = channel.exec(request).await;
        started.map_err(|source| SandboxError::Exec { id: *id, source })
    }

    /// Returns the last mebibyte of the guest's console.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`], or [`SandboxError::Directory`] when the log cannot be read.
    pub async fn logs(&self, id: &SandboxId) -> Result<String, SandboxError> {
        let path = self.inner.entry(id)?.console();
        read_console(&path).map_err(|source| SandboxError::Directory { path, source })
    }

    /// Ends a sandbox; one that has ended already is fine.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`].
    pub async fn kill(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let entry = self.inner.entry(id)?;
        entry.kill.cancel();
        entry.wait_ended().await;
        Ok(())
    }

    /// Ends every sandbox and waits for their monitors to be gone.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        let gone = tokio::time::timeout(SHUTDOWN_GRACE, self.inner.tasks.wait()).await;
        if gone.is_err() {
            warn!(
                left = self.inner.tasks.len(),
                "sandbox tasks outlived the shutdown grace period"
            );
        }
    }

    /// Returns the image store.
    pub fn images(&self) -> &ImageStore {
        &self.inner.images
    }

    /// Decides (once per host boot) how guests run here.
    ///
    /// # Errors
    /// When KVM is demanded and does not work, or nothing can run at all.
    pub async fn accel(&self) -> Result<AccelDecision, SandboxError> {
        self.inner.accel(&silent()).await
    }

    /// Returns the channel to the guest of a sandbox that answers.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`] or [`SandboxError::NotRunning`].
    pub fn channel(&self, id: &SandboxId) -> Result<GuestChannel, SandboxError> {
        self.inner.entry(id)?.channel()
    }
}

impl Inner {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: &SandboxId) -> Result<Arc<Entry>, SandboxError> {
        let found = self.entries().get(id).cloned();
        found.ok_or_else(|| SandboxError::Unknown {
            wanted: id.to_string(),
        })
    }

    async fn accel(&self, progress: &Progress) -> Result<AccelDecision, SandboxError> {
        let decide = || probe::decide(&self.config, &self.images, &*self.driver, progress);
        self.accel.get_or_try_init(decide).await.cloned()
    }

    /// Forgets the oldest sandboxes that ended, beyond what the limits keep.
    fn prune(&self) {
        let mut entries = self.entries();
        let mut ended: Vec<_> = entries
            .values()
            .map(|entry| entry.info())
            .filter(|info| info.state.has_ended())
            .map(|info| (info.created_ms, info.id))
            .collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(self.config.limits.max_ended);
        for (_, id) in ended.into_iter().take(surplus) {
            if let Some(entry) = entries.remove(&id) {
                let _ = std::fs::remove_dir_all(&entry.dir);
            }
        }
    }
}

fn find(infos: Vec<SandboxInfo>, wanted: &str) -> Result<SandboxInfo, SandboxError> {
    let unknown = || SandboxError::Unknown {
        wanted: wanted.chars().take(128).collect(),
    };
    if let Ok(id) = wanted.parse::<SandboxId>() {
        let found = infos.into_iter().find(|info| info.id == id);
        return found.ok_or_else(unknown);
    }
    let named = |info: &&SandboxInfo| info.name.as_deref() == Some(wanted);
    let running = infos.iter().filter(named).find(|i| !i.state.has_ended());
    if let Some(info) = running.or_else(|| infos.iter().find(named)) {
        return Ok(info.clone());
    }
    if wanted.len() < MIN_PREFIX {
        return Err(unknown());
    }
    let mut matching = infos
        .into_iter()
        .filter(|info| info.id.to_string().starts_with(wanted));
    let first = matching.next().ok_or_else(unknown)?;
    match matching.count() {
        0 => Ok(first),
        others => Err(SandboxError::Ambiguous {
            wanted: wanted.to_owned(),
            matches: others + 1,
        }),
    }
}

/// Takes the directory for this daemon alone.
fn lock(dir: &std::path::Path) -> Result<File, SandboxError> {
    let directory = |source| SandboxError::Directory {
        path: dir.to_owned(),
        source,
    };
    make_private_dir(dir).map_err(directory)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(".lock"))
        .map_err(directory)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SandboxError::InUse {
            path: dir.to_owned(),
        }),
        Err(error) => Err(directory(error.into())),
    }
}

/// Returns the time in Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
