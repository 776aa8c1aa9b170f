//! Guests that have booted already and wait for whoever wants one.
//!
//! Creating a sandbox is booting a kernel that has been booted a thousand times before. So a
//! guest of each shape that is asked for is booted once more, with nobody's name and nobody's
//! data, and put to rest as soon as its agent answers. The next sandbox of that shape is a copy of
//! it, with an id, a host name, a clock, randomness and a network of its own: what a fork gets
//! (ADR 0020).
//!
//! What waits is in this daemon's memory, beside a directory with the state of its devices and
//! its disk. It goes with the daemon, however that ends; [`sweep`] removes what it leaves.

mod ready;
mod waiting;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::net::UnixStream;
use tracing::{debug, info, warn};

use super::{
    Inner, Sandboxes,
    act::{self, Work, perform},
    boot, create, directory,
    entry::Machine,
    network::Nowhere,
    now_ms,
    restore::{self, Source},
};
use crate::{
    Accel, Fingerprint, Progress, SandboxError, SandboxInfo, SandboxSpec,
    channel::{ChannelLimits, GuestChannel, Quiesce},
    driver::{Disk, VmRequest},
    fingerprint::{self, Tools},
    image::Image,
    life::Action,
    progress::step,
    snapshot::{Freeze, HostFacts, freeze},
    staging::make_private_dir,
};
pub(super) use ready::Ready;
pub use waiting::PoolInfo;
pub(super) use waiting::{Pool, Shape};
use waiting::{Scratch, Waiting};

/// Time after a boot in which whoever asked for it has the processors for themselves.
const GROW_DELAY: Duration = Duration::from_secs(5);
/// Time after a create in which whoever asked for it has the processors for themselves.
const READY_DELAY: Duration = Duration::from_secs(1);
/// Time that a guest has to come up.
const BOOT_DEADLINE: Duration = Duration::from_secs(60);
/// Time in which a guest reports the memory that it freed; each copy is smaller for it.
const SETTLE: Duration = Duration::from_secs(4);
/// The host name of a guest that is nobody's yet.
const HOSTNAME: &str = "sandbox";
/// What tells the locale, the first that is set.
const LOCALES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];
/// Where a guest's monitor works while it boots, below its own directory.
const VM: &str = "vm";

impl Sandboxes {
    /// Returns the guests that wait, the most used last.
    #[must_use]
    pub fn pool(&self) -> Vec<PoolInfo> {
        self.inner.pool.list()
    }

    /// Boots a guest that waits for the next sandbox of this image and size, unless one does.
    ///
    /// # Errors
    /// [`SandboxError::Invalid`] on a node without a pool, or for a guest that does not fit into
    /// it; [`SandboxError::LimitReached`]; whatever the boot meets.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn warm(&self, spec: SandboxSpec, progress: Progress) -> Result<(), SandboxError> {
        let inner = Arc::clone(&self.inner);
        self.spawned(async move { warm(&inner, spec, &progress).await })
            .await
    }

    /// Lets go of the guests that wait and returns how many there were. Sandboxes that were made
    /// from them go on.
    pub fn drain_pool(&self) -> usize {
        self.inner.pool.clear()
    }
}

/// Removes what a daemon that was killed left of guests that were to wait, their monitors first;
/// returns how many of these ran.
pub(super) async fn sweep(dir: &Path) -> usize {
    let mut ended = 0;
    for found in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        for monitor in boot::monitors_of(&found.path().join(VM), None) {
            boot::end_recorded(&monitor).await;
            ended += 1;
        }
    }
    let _ = std::fs::remove_dir_all(dir);
    ended
}

/// Returns what a copy for this sandbox would depend on; `None` without a pool.
pub(super) async fn shape_of(inner: &Inner, info: &SandboxInfo) -> Option<Shape> {
    if !inner.pool.is_on() || !inner.driver.capabilities().fork {
        return None;
    }
    let host = HostFacts::of(&*inner.driver, info.accel).await.ok()?;
    Some(Shape::of(info, host))
}

/// Makes a sandbox from a guest that waits. `None` if none waits, or the copy did not work: the
/// sandbox is then to be booted.
pub(super) async fn take(
    inner: &Arc<Inner>,
    shape: &Shape,
    info: &SandboxInfo,
    env: &BTreeMap<String, String>,
    image: &Image,
    progress: &Progress,
) -> Result<Option<SandboxInfo>, SandboxError> {
    let begun = Instant::now();
    let Some(waiting) = inner.pool.take(shape) else {
        return Ok(None);
    };
    let mut info = info.clone();
    info.fingerprint = learned(&waiting.fingerprint, &info.fingerprint, env);
    if create::keeps_contract(&info).is_err() {
        // A boot says so in the usual way.
        return Ok(None);
    }
    let ready = waiting.take_ready();
    if let Some(ready) = &ready {
        step(progress, "boot", "taking a guest that stands by");
        info.id = ready.id;
    } else {
        step(progress, "boot", "copying a guest that waits");
    }
    let entry = match create::list(inner, info.clone(), env.clone()) {
        Ok(entry) => entry,
        Err(error) => {
            if let Some(ready) = ready {
                waiting.put_ready(ready);
            }
            return Err(error);
        }
    };
    let mut work = Work::new(Arc::clone(progress));
    work.source = Some(match ready {
        Some(ready) => Source::Ready(ready),
        None => Source::Frozen {
            frozen: Arc::clone(&waiting.frozen),
            machine: waiting.machine.clone(),
        },
    });
    let made = match image.mark_used(&entry.dir) {
        Ok(()) => perform(inner, &entry, Action::Resume, &mut work).await,
        Err(error) => Err(directory(&entry.dir)(error)),
    };
    // Until here its files have to be there.
    drop(waiting.scratch);
    match made {
        Ok(()) => {
            stand_by(inner, shape.clone(), info);
            let boot_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let written = entry.change(|record| record.info.boot_ms = Some(boot_ms));
            written.map_err(directory(&entry.dir))?;
            step(
                progress,
                "ready",
                format_args!("the guest answered after {boot_ms} ms"),
            );
            Ok(Some(entry.info()))
        }
        Err(error @ (SandboxError::Cancelled { .. } | SandboxError::Stopping)) => Err(error),
        Err(error) => {
            warn!(sandbox = %entry.id, error = %act::told(&error), "a copy of a guest that waits did not work; booting");
            inner.pool.remove(shape);
            restore::forget(inner, &entry).await;
            Ok(None)
        }
    }
}

/// Returns what runs in a copy: what the guest said before it waited, and what is the sandbox's
/// own.
fn learned(guest: &Fingerprint, own: &Fingerprint, env: &BTreeMap<String, String>) -> Fingerprint {
    let mut learned = guest.clone();
    learned.network.clone_from(&own.network);
    learned.image.clone_from(&own.image);
    learned.env.extend(env.keys().cloned());
    if let Some(locale) = LOCALES.iter().find_map(|name| env.get(*name)) {
        learned.locale.clone_from(locale);
    }
    learned
}

/// Starts a copy ahead of the next who asks for one, in a while and in the background.
fn stand_by(inner: &Arc<Inner>, shape: Shape, info: SandboxInfo) {
    let held = Arc::clone(inner);
    inner.tasks.spawn(async move {
        let work = async {
            tokio::time::sleep(READY_DELAY).await;
            let _one = held.pool.growing.lock().await;
            start_ahead(&held, &shape, &info).await;
        };
        tokio::select! {
            biased;
            () = held.stop.cancelled() => {}
            () = work => {}
        }
    });
}

/// Starts a copy ahead, unless there is one. Without it a create is a copy that is made then.
async fn start_ahead(inner: &Arc<Inner>, shape: &Shape, info: &SandboxInfo) {
    if !inner.driver.capabilities().copy_on_write || create::has_room(inner, info).is_err() {
        return;
    }
    let Some(waiting) = inner.pool.bare(shape) else {
        return;
    };
    match Ready::make(inner, &waiting, info).await {
        Ok(ready) => {
            waiting.put_ready(Arc::new(ready));
            if !inner.pool.fits() {
                waiting.take_ready();
            }
        }
        Err(error) => debug!(error = %act::told(&error), "no copy can be started ahead"),
    }
}

async fn warm(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    progress: &Progress,
) -> Result<(), SandboxError> {
    let (info, image) = create::described(inner, spec, progress).await?;
    let Some(shape) = shape_of(inner, &info).await else {
        return Err(SandboxError::Invalid {
            what: "this node keeps no guests that wait; start it with `--pool N`".to_owned(),
        });
    };
    tokio::select! {
        biased;
        () = inner.stop.cancelled() => Err(SandboxError::Stopping),
        made = make(inner, &shape, &image, &info, progress) => made,
    }
}

/// Boots a guest of this shape that will wait, in a while and in the background, unless one does.
pub(super) fn grow(inner: &Arc<Inner>, shape: Shape, image: Image, info: SandboxInfo) {
    if inner.pool.has(&shape) || inner.pool.growing.try_lock().is_err() {
        return;
    }
    let held = Arc::clone(inner);
    inner.tasks.spawn(async move {
        let work = async {
            tokio::time::sleep(GROW_DELAY).await;
            make(&held, &shape, &image, &info, &crate::silent()).await
        };
        tokio::select! {
            biased;
            () = held.stop.cancelled() => {}
            made = work => if let Err(error) = made {
                debug!(error = %act::told(&error), "no guest can be made to wait");
            },
        }
    });
}

/// Makes a guest of this shape wait, unless one does. `info` is a sandbox's of the shape.
async fn make(
    inner: &Arc<Inner>,
    shape: &Shape,
    image: &Image,
    info: &SandboxInfo,
    progress: &Progress,
) -> Result<(), SandboxError> {
    let _one = inner.pool.growing.lock().await;
    if inner.pool.has(shape) {
        return Ok(());
    }
    create::has_room(inner, info)?;
    step(progress, "warm", "booting a guest that will wait");
    let id = create::new_id(inner)?;
    let path = inner.pool.dir().join(id.to_string());
    let scratch = Scratch::make(path.clone()).map_err(directory(&path))?;
    let path = scratch.path();
    let vm_dir = path.join(VM);
    make_private_dir(&vm_dir).map_err(directory(&vm_dir))?;
    let machine = boot::lay_out(image, &vm_dir, &id, HOSTNAME, false, progress).await?;
    let request = request_of(&machine, info, id, path);
    // Dropped before it is done, it is killed.
    let vm = inner.driver.start(&request).await?;
    let channel = open(vm.connect().await?, &request).await?;
    let _nowhere = Nowhere::attach(inner, id, &channel).await;
    let fingerprint = greet(&channel, &request, image, info).await?;
    let quiesced = channel.quiesce(Quiesce::default()).await;
    quiesced.map_err(|error| SandboxError::Quiesce {
        id,
        what: error.to_string(),
    })?;
    // What frees memory here tells nobody when it has been reported.
    tokio::time::sleep(SETTLE).await;
    channel.close();
    let frozen = freeze(&vm, &request, path, Freeze::Copy).await?;
    vm.kill().await;
    boot::remove_dir(&vm_dir)?;
    let kept = inner.pool.keep(Waiting {
        shape: shape.clone(),
        image: info.image.clone(),
        frozen: Arc::new(frozen),
        machine,
        fingerprint,
        made_ms: now_ms(),
        taken: 0,
        scratch: Arc::new(scratch),
        ready: Arc::default(),
    });
    if !kept {
        let limit = inner.config.limits.max_waiting_mib;
        return Err(SandboxError::Invalid {
            what: format!(
                "such a guest takes more memory than the {limit} MiB that guests may wait in"
            ),
        });
    }
    info!(image = %info.image, memory_mib = info.memory_mib, "a guest waits");
    start_ahead(inner, shape, info).await;
    Ok(())
}

fn request_of(
    machine: &Machine,
    info: &SandboxInfo,
    id: crate::SandboxId,
    dir: &Path,
) -> VmRequest {
    let disks = machine.disks.iter().map(|disk| Disk {
        path: disk.path.clone(),
        writable: disk.writable,
    });
    VmRequest {
        id,
        dir: dir.join(VM),
        console: dir.join("console.log"),
        kernel: machine.kernel.clone(),
        initramfs: machine.initramfs.clone(),
        disks: disks.collect(),
        memory_mib: info.memory_mib,
        vcpus: info.vcpus,
        accel: info.accel,
        kernel_args: machine.kernel_args.clone(),
    }
}

/// Waits for the guest's agent.
async fn open(stream: UnixStream, request: &VmRequest) -> Result<GuestChannel, SandboxError> {
    let limits = ChannelLimits {
        hello_deadline: BOOT_DEADLINE,
        ..ChannelLimits::default()
    };
    let guest = |source| SandboxError::Guest {
        id: request.id,
        source,
    };
    let started = GuestChannel::start(stream, limits).await;
    // Nobody answers its door: there is no program that would knock.
    let (channel, _doors) = started.map_err(guest)?;
    Ok(channel)
}

/// Learns what runs in a guest.
async fn greet(
    channel: &GuestChannel,
    request: &VmRequest,
    image: &Image,
    info: &SandboxInfo,
) -> Result<Fingerprint, SandboxError> {
    let mut known = info.fingerprint.clone();
    let tools = match image.tools() {
        Some(tools) => {
            known.tools = tools;
            Tools::Keep
        }
        None => Tools::Ask,
    };
    known.env.clear();
    let env = image.environment(&BTreeMap::new());
    fingerprint::probe(channel, &env, tools, &mut known).await;
    if tools == Tools::Ask
        && let Err(error) = image.keep_tools(&known.tools)
    {
        debug!(%error, "the tools of an image cannot be kept");
    }
    if info.accel == Accel::Kvm {
        let guest = |source| SandboxError::Guest {
            id: request.id,
            source,
        };
        known.cpu = format!("host: {}", channel.info().await.map_err(guest)?.cpu);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_killed_daemon_leaves_is_ended_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("pool");
        assert_eq!(sweep(&dir).await, 0);
        let vm = dir.join("one").join(VM);
        make_private_dir(&vm).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .current_dir(&vm)
            .spawn()
            .unwrap();
        assert_eq!(sweep(&dir).await, 1);
        assert!(!child.wait().unwrap().success());
        assert!(!dir.exists());
    }
}
