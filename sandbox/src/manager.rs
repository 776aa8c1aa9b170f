//! Every sandbox of one node.
//!
//! A sandbox is an [`Entry`](entry::Entry): its state in memory, and beside it on disk a
//! directory with `state.json`, the console log and, while it runs, the directory that its
//! monitor works in. Whatever is done to it is an action of [`crate::life`]: [`act`] does them one
//! at a time, step by step, each written down before it is begun. [`open`] takes over what another
//! daemon left; two tasks per running guest notice when it goes by itself ([`watch`]).

mod act;
mod archive;
mod behind;
mod boot;
mod capture;
mod catalogue;
mod create;
mod entry;
mod files;
mod fork;
mod leases;
mod network;
mod open;
mod pool;
mod restore;
mod session;
mod tally;
mod usage;
mod verbs;
mod watch;

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{Notify, OnceCell, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

pub use capture::SnapshotOptions;
pub use files::{DirEntry, FileDownload, FileKind, FileStat};
pub use fork::ForkOptions;
pub use open::{Mended, end_monitors};
pub use pool::PoolInfo;
pub use restore::{GuestFile, Relying, ResumeOptions};
pub use tally::{ActionTally, DURATION_BOUNDS_MS, Tally};
pub use usage::{Gate, HostTime, MonitorId, MonitorUsage, OverQuota, Readings, Usage};
pub use verbs::Health;

use crate::{
    Limits, Progress, SandboxConfig, SandboxError, SandboxId, SandboxInfo, SandboxSpec,
    channel::{DoorStream, ExecHandle, ExecRequest, GuestChannel},
    chunks::ChunkStore,
    driver::{self, VmmDriver, read_console},
    egress::{Boundaries, EgressConfig, EgressEvent, SecretStore},
    image::ImageStore,
    life::{Action, Leases, Phase, Refused},
    probe::{self, AccelDecision},
    silent,
    snapshot::{About, HostFacts},
    staging::lock_soon,
};
use catalogue::Catalogue;
use entry::Entry;
use pool::Pool;
use tally::Counts;
use usage::LastReadings;

/// Connections of all guests that wait for the node to take them; a full queue makes guests wait.
const DOOR_QUEUE: usize = 64;
/// Time that monitors have to be gone when the node goes down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Where guests are made that will wait.
const POOL: &str = "pool";
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
/// Sandboxes outlive it: [`Self::shutdown`] says what becomes of them, and a process that is
/// killed leaves them to the next one.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

/// What becomes of the sandboxes when their daemon stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// They run on, and the next daemon takes them over.
    #[default]
    Keep,
    /// They are ended.
    Kill,
}

#[derive(Debug)]
struct Inner {
    config: SandboxConfig,
    /// One directory per sandbox.
    dir: PathBuf,
    images: ImageStore,
    chunks: ChunkStore,
    egress: Boundaries,
    egress_events: Mutex<Option<mpsc::Receiver<EgressEvent>>>,
    secrets: SecretStore,
    catalogue: Catalogue,
    pool: Pool,
    driver: Arc<dyn VmmDriver>,
    accel: OnceCell<AccelDecision>,
    entries: Mutex<BTreeMap<SandboxId, Arc<Entry>>>,
    leases: Mutex<Leases>,
    leases_changed: Notify,
    last_readings: LastReadings,
    counts: Counts,
    doors: mpsc::Sender<DoorConnection>,
    /// No action begins any more.
    stop: CancellationToken,
    /// Actions that are under way are left to the next daemon.
    abandon: CancellationToken,
    tasks: TaskTracker,
    /// Held for as long as this lives: one daemon per directory.
    _lock: File,
}

impl Sandboxes {
    /// Opens the sandbox directory and takes over what another daemon left there: guests that run
    /// are ready again, actions that were under way go on or back, what is gone is lost.
    ///
    /// # Errors
    /// [`SandboxError::Directory`], [`SandboxError::InUse`], [`SandboxError::Chunks`].
    pub async fn open(
        config: SandboxConfig,
    ) -> Result<(Self, mpsc::Receiver<DoorConnection>), SandboxError> {
        let driver = driver::choose(&config);
        Self::open_with(config, driver).await
    }

    /// As [`Self::open`], with this driver.
    ///
    /// # Errors
    /// [`SandboxError::Directory`], [`SandboxError::InUse`], [`SandboxError::Chunks`].
    pub async fn open_with(
        config: SandboxConfig,
        driver: Arc<dyn VmmDriver>,
    ) -> Result<(Self, mpsc::Receiver<DoorConnection>), SandboxError> {
        let dir = config.dir.clone();
        let lock = lock(&dir).await?;
        let images = ImageStore::open(&config)?;
        let chunks_dir = config.chunks_dir.clone();
        let chunks = tokio::task::spawn_blocking(move || ChunkStore::open(&chunks_dir));
        let chunks = chunks.await.map_err(|_| SandboxError::Stopping)??;
        let catalogue = Catalogue::open(dir.join("snapshots")).map_err(directory(&dir))?;
        let found = open::read(&dir).map_err(directory(&dir))?;
        pool::sweep(&dir.join(POOL)).await;
        let Limits {
            max_waiting,
            max_waiting_mib,
            ..
        } = config.limits;
        let pool = Pool::new(dir.join(POOL), max_waiting, max_waiting_mib);
        let mut leases = Leases::default();
        for entry in &found {
            if let Some(lease) = entry.info().lease {
                leases.set(entry.id, lease);
            }
        }
        let (doors, opened) = mpsc::channel(DOOR_QUEUE);
        let (egress, egress_events) = Boundaries::new(EgressConfig::new(&dir));
        let secrets = SecretStore::new(&config.secrets_dir);
        let inner = Inner {
            dir,
            egress,
            egress_events: Mutex::new(Some(egress_events)),
            secrets,
            images,
            chunks,
            catalogue,
            pool,
            driver,
            accel: OnceCell::new(),
            entries: Mutex::new(found.into_iter().map(|entry| (entry.id, entry)).collect()),
            leases: Mutex::new(leases),
            leases_changed: Notify::new(),
            last_readings: LastReadings::default(),
            counts: Counts::default(),
            doors,
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            tasks: TaskTracker::new(),
            config,
            _lock: lock,
        };
        let sandboxes = Self {
            inner: Arc::new(inner),
        };
        for entry in sandboxes.inner.entries().values() {
            behind::serve_again(entry);
        }
        open::take_over(&sandboxes.inner).await;
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
        self.spawned(async move { create::create(&inner, spec, &progress).await })
            .await
    }

    /// Does work that goes on when whoever asked for it does not.
    async fn spawned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, SandboxError> {
        if self.inner.stop.is_cancelled() {
            return Err(SandboxError::Stopping);
        }
        let work = self.inner.tasks.spawn(work);
        work.await.unwrap_or(Err(SandboxError::Stopping))
    }

    /// Returns the name of the driver that new sandboxes get.
    pub fn driver_name(&self) -> &'static str {
        self.inner.driver.name()
    }

    /// Returns every sandbox, the newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let mut infos: Vec<_> = self.inner.entries().values().map(|e| e.shown()).collect();
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
        let channel = entry.channel().await?;
        for (name, value) in entry.record().env {
            request.env.entry(name).or_insert(value);
        }
        for (name, value) in self.inner.egress.env(id) {
            request.env.entry(name).or_insert(value);
        }
        let started = channel.exec(request).await;
        self.inner.counts.exec(started.is_ok());
        if started.is_err() && entry.phase() == Phase::Paused {
            // It was held before it could begin.
            return Err(entry.refused(Action::Exec, Refused::Paused));
        }
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

    /// Stops; what becomes of the sandboxes is `what`. Actions that are under way have a few
    /// seconds to end; the next daemon takes it from there.
    pub async fn shutdown(&self, what: OnShutdown) {
        let inner = &self.inner;
        if what == OnShutdown::Kill {
            let ids: Vec<_> = inner.entries().keys().copied().collect();
            let ended = futures::future::join_all(ids.iter().map(|id| self.end(id)));
            if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
                warn!("sandboxes outlived the shutdown grace period");
            }
        }
        inner.stop.cancel();
        inner.tasks.close();
        let gone = tokio::time::timeout(SHUTDOWN_GRACE, inner.tasks.wait()).await;
        if gone.is_err() {
            warn!(
                left = inner.tasks.len(),
                "actions outlived the shutdown grace period; the next start takes them up"
            );
        }
        inner.abandon.cancel();
        inner.pool.end().await;
        let entries: Vec<_> = inner.entries().values().cloned().collect();
        for entry in entries {
            // The session first: a program that is not kept then waits for the next one, while
            // the end of its handle would end it.
            let _ = session::close(&entry);
            if let Some(behind) = entry.set_behind(None) {
                behind.stop();
            }
            if let Some(vm) = entry.set_vm(None) {
                vm.release();
            }
        }
    }

    /// Ends what runs of a sandbox, as the node goes down with all of them.
    async fn end(&self, id: &SandboxId) {
        let running = self.inner.entry(id).map(|entry| entry.info().state);
        if running.is_ok_and(|state| state.is_running())
            && let Err(error) = self.kill(id).await
        {
            warn!(sandbox = %id, error = %act::told(&error), "cannot end a sandbox");
        }
    }

    /// Returns the chunk store that snapshots go to.
    pub fn chunks(&self) -> &ChunkStore {
        &self.inner.chunks
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

    /// Returns the session with a sandbox's guest, once an action that is under way is over.
    ///
    /// # Errors
    /// [`SandboxError::Refused`], [`SandboxError::StateLost`], [`SandboxError::NotRunning`].
    pub async fn channel(&self, id: &SandboxId) -> Result<GuestChannel, SandboxError> {
        self.inner.entry(id)?.channel().await
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

    /// Returns the driver of a sandbox: another than new ones get, if it was made before this
    /// node's choice changed.
    fn driver_of(&self, entry: &Entry) -> Arc<dyn VmmDriver> {
        self.driver_named(&entry.info().driver)
    }

    /// Returns the driver of this name, or the one that new sandboxes get.
    fn driver_named(&self, name: &str) -> Arc<dyn VmmDriver> {
        match driver::named(&self.config, name) {
            Some(other) if name != self.driver.name() => other,
            _ => Arc::clone(&self.driver),
        }
    }

    /// Returns what a guest at rest, which ran under this driver, finds here: that driver, if it
    /// can be had, and how guests run under it.
    async fn host_for(&self, about: &About) -> Result<HostFacts, SandboxError> {
        let mut driver = self.driver_named(&about.driver);
        if driver.version().await.is_err() {
            driver = Arc::clone(&self.driver);
        }
        let accel = match driver.name() == self.driver.name() {
            true => self.accel(&silent()).await?,
            false => probe::decide(&self.config, &self.images, &*driver, &silent()).await?,
        };
        let mut host = HostFacts::of(&*driver, about.accel).await?;
        // What guests run under here, not what this one ran under.
        host.accel = accel.accel;
        host.max_memory_mib = self.config.limits.max_memory_mib;
        Ok(host)
    }

    /// Forgets the oldest sandboxes that ended, beyond what the limits keep.
    fn prune(&self) {
        let mut entries = self.entries();
        let mut ended: Vec<_> = entries
            .values()
            .map(|entry| entry.info())
            // One that was lost can go back to its snapshot.
            .filter(|info| info.state.has_ended() && info.snapshot.is_none())
            .map(|info| (info.created_ms, info.id))
            .collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(self.config.limits.max_ended);
        for (_, id) in ended.into_iter().take(surplus) {
            self.egress.forget(&id);
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
async fn lock(dir: &Path) -> Result<File, SandboxError> {
    let wanted = dir.to_owned();
    let taken = tokio::task::spawn_blocking(move || lock_soon(&wanted)).await;
    let taken = taken.map_err(|_| SandboxError::Stopping)?;
    taken
        .map_err(directory(dir))?
        .ok_or_else(|| SandboxError::InUse {
            path: dir.to_owned(),
        })
}

fn directory(path: &Path) -> impl FnOnce(io::Error) -> SandboxError + '_ {
    move |source| SandboxError::Directory {
        path: path.to_owned(),
        source,
    }
}

/// Returns the time in Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
