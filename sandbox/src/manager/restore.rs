//! Steps and verbs about going on from a snapshot.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Inner, Sandboxes,
    act::{Work, perform},
    behind, boot, capture, create, directory,
    entry::{Entry, Machine, MachineDisk},
    now_ms,
    pool::Ready,
    session,
};
use crate::{
    Progress, Reliance, SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    chunks::{ChunkError, ChunkStore, PackId, ReadChunks, StoreKey},
    image::{Image, ImageError},
    life::{Action, Lease, Phase, Refused, State},
    progress::step,
    silent,
    snapshot::{self, Frozen, Incompatible, Manifest, SnapshotError},
    staging::make_private_dir,
};

/// From what a sandbox goes on.
#[derive(Clone)]
pub(super) enum Source {
    /// From the chunk store.
    Store {
        manifest: Arc<Manifest>,
        snapshot: SnapshotRef,
        key: StoreKey,
        copy: bool,
        /// Where its chunks come from, if not all of its packs are here.
        arriving: Option<Arc<dyn ReadChunks>>,
    },
    /// A copy that was started ahead.
    Ready(Arc<Ready>),
    /// From another that was just stopped; with the machine it has.
    Frozen {
        frozen: Arc<Frozen>,
        machine: Machine,
    },
}

impl Source {
    /// Whether others may go on from the same.
    pub(super) fn is_copy(&self) -> bool {
        match self {
            Self::Store { copy, .. } => *copy,
            Self::Frozen { .. } | Self::Ready(_) => true,
        }
    }
}

/// On what it depends whether a sandbox goes on.
#[derive(Debug, Clone, Default)]
pub struct Relying {
    /// Go on whatever of it is not here.
    pub force: bool,
    /// What else is relied on, beside what the sandbox itself does.
    pub reliances: Vec<Reliance>,
}

/// A small file that is written into a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// Its path.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// How a sandbox is made from a snapshot.
#[derive(Debug, Clone, Default)]
pub struct ResumeOptions {
    /// Make another sandbox, with an id and randomness of its own, instead of the same one.
    pub as_new: bool,
    /// The name of another sandbox; the same one keeps its own.
    pub name: Option<String>,
    /// Labels instead of those it had.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its lease.
    pub lease: Option<Lease>,
    /// Go on although something that it relies on is not here.
    pub force: bool,
    /// What else is relied on, beside what the sandbox itself does.
    pub reliances: Vec<Reliance>,
    /// What it may reach, instead of what it might where it slept.
    pub network: Option<crate::egress::Policy>,
    /// Secrets of this node that it may use if it might use those of these names where it slept.
    pub secrets: Vec<String>,
    /// Files that are in the guest before a program of it goes on; below `/run`, which is memory.
    pub tell: Vec<GuestFile>,
    /// Where its chunks come from while its packs are on their way; the manifest is here. The
    /// sandbox goes on when its memory has come, where the driver can do that.
    pub arriving: Option<Arc<dyn ReadChunks>>,
}

impl Sandboxes {
    /// Wakes a sandbox that sleeps here; one that is paused goes on, one that runs stays as it is.
    /// One that was lost goes back to what it slept in last, if it ever slept.
    ///
    /// # Errors
    /// [`SandboxError::NoSnapshot`], [`SandboxError::Snapshot`] and whatever the guest's start
    /// meets; the sandbox then sleeps on.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn resume(
        &self,
        id: &SandboxId,
        key: &StoreKey,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        self.resume_relying(id, key, Relying::default(), progress)
            .await
    }

    /// As [`Self::resume`], with more that is relied on, or with less.
    ///
    /// # Errors
    /// As [`Self::resume`]; [`SandboxError::Contract`] unless `relying` goes over it.
    pub async fn resume_relying(
        &self,
        id: &SandboxId,
        key: &StoreKey,
        relying: Relying,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        let entry = self.inner.entry(id)?;
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.spawned(async move {
            let mut work = Work::new(progress);
            work.key = Some(key);
            work.relying = relying;
            perform(&inner, &entry, Action::Resume, &mut work).await?;
            Ok(entry.info())
        })
        .await
    }

    /// Makes a sandbox from any snapshot whose packs are in [`Self::chunks`]: the same one, here,
    /// or another.
    ///
    /// # Errors
    /// [`SandboxError::Snapshot`], [`SandboxError::Refused`] if the same one runs here,
    /// [`SandboxError::LimitReached`], and whatever the guest's start meets; nothing is left then.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn restore(
        &self,
        snapshot: &SnapshotRef,
        key: &StoreKey,
        options: ResumeOptions,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        let inner = Arc::clone(&self.inner);
        let (snapshot, key) = (snapshot.clone(), key.clone());
        self.spawned(async move {
            let arriving = options.arriving.clone();
            let source = load(&inner, snapshot.clone(), &key, options.as_new, arriving).await?;
            let relying = Relying {
                force: options.force,
                reliances: options.reliances.clone(),
            };
            keeps_contract(&source, options.network.as_ref(), &relying)?;
            let Source::Store { manifest, .. } = &source else {
                unreachable!("it was loaded from the store");
            };
            let remembered = remembered(manifest)?;
            let ahead = options.arriving.is_some();
            let asleep = here(&inner, &remembered.info.id, &options)?;
            let entry = match asleep {
                Some(entry) => {
                    let objects = snapshot.objects();
                    let (store, pin) = (inner.chunks.clone(), capture::asleep(&entry.id));
                    let pin = move || pin_it(&store, &pin, &objects, ahead);
                    capture::blocking(&entry, pin).await??;
                    entry
                        .change(|record| record.info.snapshot = Some(snapshot))
                        .map_err(directory(&entry.dir))?;
                    entry
                }
                None => {
                    let objects = snapshot.objects();
                    let made = child(&inner, &remembered, &options, Some(snapshot))?;
                    // A copy keeps what it is made from only while it is made.
                    let pin = match options.as_new {
                        true => capture::pending(&made.id),
                        false => capture::asleep(&made.id),
                    };
                    let store = inner.chunks.clone();
                    let pin = move || pin_it(&store, &pin, &objects, ahead);
                    let pinned = capture::blocking(&made, pin).await;
                    if let Err(error) = pinned.and_then(|pinned| Ok(pinned?)) {
                        forget(&inner, &made).await;
                        return Err(error);
                    }
                    made
                }
            };
            let new = entry.phase() == Phase::Creating;
            let mut work = Work::new(progress);
            work.source = Some(source);
            work.tell = options.tell;
            match perform(&inner, &entry, Action::Resume, &mut work).await {
                Ok(()) => {
                    if options.as_new {
                        capture::drop_capture(&inner, &entry).await?;
                    }
                    behind::tend(&inner, &entry);
                    Ok(entry.info())
                }
                Err(error) => {
                    if new {
                        forget(&inner, &entry).await;
                    }
                    Err(error)
                }
            }
        })
        .await
    }
}

impl Sandboxes {
    /// Returns what was known of a sandbox when a snapshot was taken of it.
    ///
    /// # Errors
    /// [`SandboxError::Chunks`] and [`SandboxError::Snapshot`].
    pub async fn remembered(
        &self,
        snapshot: &SnapshotRef,
        key: &StoreKey,
    ) -> Result<SandboxInfo, SandboxError> {
        let manifest = manifest_of(&self.inner, &snapshot.manifest, key).await?;
        Ok(remembered(&manifest)?.info)
    }
}

fn pin_it(
    store: &ChunkStore,
    pin: &str,
    objects: &[PackId],
    ahead: bool,
) -> Result<(), ChunkError> {
    match ahead {
        true => store.pin_ahead(pin, objects),
        false => store.pin(pin, objects),
    }
}

pub(super) async fn manifest_of(
    inner: &Arc<Inner>,
    manifest: &PackId,
    key: &StoreKey,
) -> Result<Manifest, SandboxError> {
    let (store, wanted, with) = (inner.chunks.clone(), *manifest, key.clone());
    let bytes =
        tokio::task::spawn_blocking(move || store.get_object(&with, capture::KIND, &wanted));
    let bytes = bytes.await.map_err(|_| SandboxError::Stopping)??;
    Ok(Manifest::parse(&bytes)?)
}

/// Reads a manifest and finds out whether it fits here.
async fn load(
    inner: &Arc<Inner>,
    snapshot: SnapshotRef,
    key: &StoreKey,
    copy: bool,
    arriving: Option<Arc<dyn ReadChunks>>,
) -> Result<Source, SandboxError> {
    let manifest = manifest_of(inner, &snapshot.manifest, key).await?;
    let host = inner.host_for(&manifest.about).await?;
    snapshot::compatible(&manifest, &host).map_err(SnapshotError::from)?;
    Ok(Source::Store {
        manifest: Arc::new(manifest),
        snapshot,
        key: key.clone(),
        copy,
        arriving,
    })
}

/// Refuses a runtime that is not what the sandbox relies on, before any program of its runs.
///
/// What the snapshot holds is as it was; what this host gives it must be the same
/// ([`snapshot::compatible`]), but for the network.
fn keeps_contract(
    source: &Source,
    network: Option<&crate::egress::Policy>,
    relying: &Relying,
) -> Result<(), SandboxError> {
    let Source::Store { manifest, .. } = source else {
        return Ok(());
    };
    if relying.force {
        return Ok(());
    }
    let mut info = remembered(manifest)?.info;
    if let Some(network) = network {
        info.fingerprint.network = network.to_string();
    }
    create::keeps_contract(&info)?;
    relying
        .reliances
        .iter()
        .try_for_each(|of| create::holds(&info, Some(&of.by), &of.contract))
}

fn remembered(manifest: &Manifest) -> Result<capture::Remembered, SandboxError> {
    let unusable = |what: String| SandboxError::Snapshot(SnapshotError::Manifest { what });
    let mut remembered: capture::Remembered = serde_json::from_str(&manifest.about.record)
        .map_err(|error| unusable(error.to_string()))?;
    if remembered.info.id != manifest.about.sandbox {
        return Err(unusable("it tells of two sandboxes".to_owned()));
    }
    // The manifest is what the monitor is started by; the rest is for people.
    remembered.info.memory_mib = manifest.about.memory_mib;
    remembered.info.vcpus = manifest.about.vcpus;
    remembered.info.accel = manifest.about.accel;
    remembered
        .info
        .image_id
        .clone_from(&manifest.about.image_id);
    create::check_pairs(&remembered.info.labels, &remembered.env)?;
    Ok(remembered)
}

/// Returns the sandbox if it is here already and sleeps; forgets it if it is over.
fn here(
    inner: &Arc<Inner>,
    id: &SandboxId,
    options: &ResumeOptions,
) -> Result<Option<Arc<Entry>>, SandboxError> {
    if options.as_new {
        return Ok(None);
    }
    let Ok(entry) = inner.entry(id) else {
        return Ok(None);
    };
    match entry.phase() {
        Phase::Hibernated | Phase::Lost => Ok(Some(entry)),
        Phase::Killed | Phase::Failed => {
            inner.entries().remove(id);
            let _ = std::fs::remove_dir_all(&entry.dir);
            Ok(None)
        }
        phase if phase.is_passing() => Err(entry.refused(Action::Resume, Refused::Busy(phase))),
        _ => Err(entry.refused(Action::Resume, Refused::Running)),
    }
}

/// Lists a sandbox that will be made from another, or from itself elsewhere.
pub(super) fn child(
    inner: &Arc<Inner>,
    remembered: &capture::Remembered,
    options: &ResumeOptions,
    snapshot: Option<SnapshotRef>,
) -> Result<Arc<Entry>, SandboxError> {
    let mut info = remembered.info.clone();
    info.state = State::Creating;
    info.boot_ms = None;
    info.arriving = None;
    // Which secrets of this node it may use is this node's to say, not a snapshot's.
    let known = inner
        .entry(&remembered.info.id)
        .map(|entry| entry.info().secrets);
    let known = known.unwrap_or_default();
    info.secrets
        .retain(|name| known.contains(name) || options.secrets.contains(name));
    if let Some(network) = &options.network {
        info.network = network.clone();
        info.fingerprint.network = network.to_string();
    }
    info.lease.clone_from(&options.lease);
    info.snapshot = snapshot;
    if options.as_new {
        info.parent = Some(info.id);
        info.id = create::new_id(inner)?;
        info.name.clone_from(&options.name);
        info.created_ms = now_ms();
        // What it goes on from is not what it slept in.
        info.snapshot = None;
    }
    if let Some(name) = &info.name {
        create::check_name(name)?;
    }
    if let Some(labels) = &options.labels {
        info.labels.clone_from(labels);
    }
    create::list(inner, info, remembered.env.clone())
}

/// Removes all that is left of a sandbox that could not be made.
pub(super) async fn forget(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    entry.kill.cancel();
    let mut work = Work::new(silent());
    let _ = perform(inner, entry, Action::Kill, &mut work).await;
    let _ = capture::release_all(inner, entry).await;
    inner.entries().remove(&entry.id);
    let _ = std::fs::remove_dir_all(&entry.dir);
}

/// Makes the monitor's directory and finds out what machine it runs.
pub(super) async fn materialise(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let dir = entry.vm_dir();
    if !matches!(work.source, Some(Source::Ready(_))) {
        // Half of a former try is of no use.
        boot::remove(entry, &dir)?;
        make_private_dir(&dir).map_err(directory(&dir))?;
    }
    if work.source.is_none() {
        // What it sleeps in is asked for when nothing else is done to it any more.
        let none = SandboxError::NoSnapshot { id: entry.id };
        let (Some(snapshot), Some(key)) = (entry.info().snapshot, work.key.clone()) else {
            return Err(none);
        };
        let source = load(inner, snapshot, &key, false, None).await?;
        keeps_contract(&source, None, &work.relying)?;
        work.source = Some(source);
    }
    let source = work.source.clone().expect("it was just set");
    // The monitor is this host's; all else of the runtime came with the snapshot. The commit that
    // follows writes it down.
    let vmm = inner.driver.version().await?;
    entry.show(|record| record.info.fingerprint.vmm = vmm);
    let machine = match source {
        Source::Store { manifest, .. } => {
            let image = image_of(inner, &manifest.about.image_id, work).await?;
            image.mark_used(&entry.dir).map_err(directory(&entry.dir))?;
            machine_of(&manifest, &image, &dir)
        }
        Source::Ready(ready) => ready.machine.clone(),
        Source::Frozen { machine, .. } => moved(machine, &dir),
    };
    let written = entry.note(|run| run.machine = Some(machine));
    written.map_err(directory(&entry.dir))
}

async fn image_of(inner: &Arc<Inner>, image_id: &str, work: &Work) -> Result<Image, SandboxError> {
    let found = inner.images.resolve(image_id, &work.progress).await;
    found.map_err(|error| match error {
        ImageError::Unknown { .. } => SnapshotError::from(Incompatible::Image {
            image_id: image_id.to_owned(),
        })
        .into(),
        error => error.into(),
    })
}

fn machine_of(manifest: &Manifest, image: &Image, dir: &std::path::Path) -> Machine {
    let disks = &manifest.disks;
    let count = disks.iter().map(|disk| disk.number + 1).max();
    let count = count.unwrap_or(0).max(image.root_format.is_some().into());
    let disks = (0..count).map(|number| {
        let written = disks.iter().find(|disk| disk.number == number);
        match written {
            Some(disk) => MachineDisk {
                path: dir.join(&disk.name),
                writable: true,
            },
            // The only disk that a guest cannot write to is its image's.
            None => MachineDisk {
                path: image.root(),
                writable: false,
            },
        }
    });
    Machine {
        kernel: image.kernel(),
        initramfs: image.initramfs(),
        disks: disks.collect(),
        kernel_args: manifest.about.kernel_args.clone(),
    }
}

/// The same machine, with its disks in another directory.
pub(super) fn moved(mut machine: Machine, dir: &std::path::Path) -> Machine {
    for disk in machine.disks.iter_mut().filter(|disk| disk.writable) {
        if let Some(name) = disk.path.file_name() {
            disk.path = dir.join(name);
        }
    }
    machine
}

/// Starts a monitor while the guest's memory, devices and disks are made, and connects before the
/// guest runs.
pub(super) async fn restore_monitor(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let request = entry.request().ok_or_else(|| session::none(entry))?;
    let source = work.source.clone().ok_or_else(|| session::none(entry))?;
    step(&work.progress, "restore", "reading memory and disks");
    work.begun = Some(std::time::Instant::now());
    let vm = match source {
        Source::Store {
            manifest,
            snapshot,
            key,
            arriving,
            ..
        } => {
            let progress = Arc::clone(&work.progress);
            let driver = inner.driver_of(entry);
            let ahead = driver.capabilities().disks_behind && !manifest.disks.is_empty();
            let reader: Arc<dyn ReadChunks> = match arriving {
                Some(reader) if ahead => {
                    return behind::begin(inner, entry, &*driver, manifest, reader, work).await;
                }
                Some(reader) => reader,
                None => {
                    let store = inner.chunks.clone();
                    let reader = move || store.reader(&key, &snapshot.packs);
                    Arc::new(capture::blocking(entry, reader).await??)
                }
            };
            let woken = snapshot::wake(&*driver, &request, manifest, reader, progress);
            woken.await?.0
        }
        Source::Ready(ready) => ready.take().ok_or_else(|| session::none(entry))?,
        Source::Frozen { frozen, .. } => frozen.fork(&*inner.driver_of(entry), &request).await?,
    };
    work.stream = Some(vm.connect().await?);
    boot::hold(inner, entry, vm)
}
