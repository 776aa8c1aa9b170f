//! How a sandbox is made: a list of steps, each beside what undoes it.
//!
//! | step | undone by |
//! |---|---|
//! | reserve: checked, counted, listed | taken off the list |
//! | directory with the first state | removed ([`reserve`]'s caller), or kept as a failed sandbox |
//! | image, disk | the monitor's directory is removed ([`Entry::end`]) |
//! | monitor | killed when [`Vm`] is dropped |
//! | guest: channel, clock, tools | the channel closes when dropped |
//!
//! A crash in between leaves a state file that says `creating` or `booting`; the next daemon ends
//! what is left ([`super::leftovers`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{sync::mpsc, time::timeout};
use tracing::{debug, info, warn};

use super::{
    Inner,
    entry::{Entry, Monitor},
    now_ms, watch,
};
use crate::{
    Accel, Fingerprint, Progress, SandboxError, SandboxId, SandboxInfo, SandboxSpec, SandboxState,
    channel::{ChannelError, ChannelLimits, DoorStream, GuestChannel},
    command::{Helper, find_program},
    driver::{Disk, Vm, VmRequest},
    fingerprint::{self, Tools},
    image::Image,
    probe::boot_id,
    progress::step,
    staging::make_private_dir,
};

/// Memory of a guest of the minimal image and of one with a userland, in MiB.
const DEFAULT_MEMORY_MIB: u32 = 256;
const DEFAULT_USERLAND_MEMORY_MIB: u32 = 512;
/// Less than this does not boot.
const MIN_MEMORY_MIB: u32 = 128;
/// Size of a guest's writable disk; the file is sparse and grows with what is written.
const UPPER_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Time a guest has to come up: ten times the median and more, since a loaded host is no fault of
/// the guest's.
const TCG_BOOT_DEADLINE: Duration = Duration::from_secs(60);
const KVM_BOOT_DEADLINE: Duration = Duration::from_secs(15);
/// How often a guest that does not come up is started.
const BOOT_TRIES: u32 = 2;
/// Most environment variables and labels of one sandbox, and their longest name and value.
const MAX_PAIRS: usize = 256;
const MAX_KEY_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 32 * 1024;
/// Makes a sandbox from what was asked for to a guest that answers.
pub(super) async fn create(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    progress: &Progress,
) -> Result<SandboxInfo, SandboxError> {
    check(&spec, inner)?;
    let image = inner.images.resolve(&spec.image, progress).await?;
    let decision = inner.accel(progress).await?;
    let entry = reserve(inner, spec, &image, decision.accel).await?;
    let made = tokio::select! {
        biased;
        () = entry.kill.cancelled() => Err(SandboxError::Cancelled { id: entry.id }),
        made = boot(inner, &entry, &image, progress) => made,
    };
    match made {
        Ok((vm, channel, doors)) => {
            inner.tasks.spawn(watch::forward_doors(
                Arc::clone(inner),
                Arc::clone(&entry),
                doors,
            ));
            inner
                .tasks
                .spawn(watch::watch(Arc::clone(&entry), vm, channel));
            info!(sandbox = %entry.id, image = %image.info.name, "sandbox is ready");
            Ok(entry.info())
        }
        Err(error) => {
            entry.end(match &error {
                SandboxError::Cancelled { .. } => SandboxState::Killed,
                error => SandboxState::Failed {
                    reason: told(error),
                },
            });
            inner.prune();
            Err(error)
        }
    }
}

/// Refuses what cannot be met.
fn check(spec: &SandboxSpec, inner: &Inner) -> Result<(), SandboxError> {
    let invalid = |what: String| Err(SandboxError::Invalid { what });
    if let Some(name) = &spec.name {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.is_empty()
            || name.len() > 64
            || !name.bytes().all(plain)
            || name.starts_with(['.', '-'])
        {
            return invalid(format!(
                "`{}` is not a sandbox name: 1 to 64 of a-z A-Z 0-9 . _ -, not beginning with . or -",
                name.escape_debug().take(64).collect::<String>()
            ));
        }
        if name.parse::<SandboxId>().is_ok() {
            return invalid(format!("`{name}` could be taken for a sandbox id"));
        }
    }
    let limits = &inner.config.limits;
    if spec.memory_mib != 0 && spec.memory_mib < MIN_MEMORY_MIB {
        return invalid(format!(
            "a guest needs {MIN_MEMORY_MIB} MiB of memory; {} were asked for",
            spec.memory_mib
        ));
    }
    if spec.memory_mib > limits.max_memory_mib {
        return Err(SandboxError::LimitReached {
            what: "MiB of memory per sandbox",
            limit: limits.max_memory_mib.into(),
        });
    }
    if spec.vcpus > limits.max_vcpus {
        return Err(SandboxError::LimitReached {
            what: "virtual CPUs per sandbox",
            limit: limits.max_vcpus.into(),
        });
    }
    for (what, pairs) in [("environment", &spec.env), ("labels", &spec.labels)] {
        let too_large = pairs.len() > MAX_PAIRS
            || pairs.iter().any(|(key, value)| {
                key.is_empty()
                    || key.len() > MAX_KEY_BYTES
                    || value.len() > MAX_VALUE_BYTES
                    || key.contains(['=', '\0'])
                    || value.contains('\0')
            });
        if too_large {
            return invalid(format!(
                "the {what} may have {MAX_PAIRS} entries, with names of up to {MAX_KEY_BYTES} and values of up to {MAX_VALUE_BYTES} bytes, without `=` in a name or a zero byte"
            ));
        }
    }
    Ok(())
}

/// Counts the sandbox against the limits, lists it and makes its directory.
async fn reserve(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    image: &Image,
    accel: Accel,
) -> Result<Arc<Entry>, SandboxError> {
    let id = SandboxId::random().map_err(|error| SandboxError::Directory {
        path: inner.dir.clone(),
        source: error.into(),
    })?;
    let memory_mib = match (spec.memory_mib, &image.root_format) {
        (0, None) => DEFAULT_MEMORY_MIB,
        (0, Some(_)) => DEFAULT_USERLAND_MEMORY_MIB,
        (asked, _) => asked,
    };
    let info = SandboxInfo {
        id,
        name: spec.name,
        image: image.info.name.clone(),
        image_id: image.info.id.clone(),
        state: SandboxState::Creating,
        driver: inner.driver.name().to_owned(),
        accel,
        memory_mib,
        vcpus: spec.vcpus.max(1),
        created_ms: now_ms(),
        boot_ms: None,
        labels: spec.labels,
        fingerprint: Fingerprint {
            kernel: image.info.kernel.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            cpu: inner.driver.cpu_model(accel).to_owned(),
            accel: accel.to_string(),
            driver: inner.driver.name().to_owned(),
            vmm: inner.driver.version().await?,
            memory_mib,
            image: image.info.name.clone(),
            image_id: image.info.id.clone(),
            network: "none".to_owned(),
            ..Fingerprint::default()
        },
    };
    let dir = inner.dir.join(id.to_string());
    let entry = Arc::new(Entry::new(
        dir,
        info,
        image.environment(&spec.env),
        inner.stop.child_token(),
    ));
    list(inner, &entry)?;
    let written = make_private_dir(&entry.dir).and_then(|()| entry.save());
    if let Err(source) = written {
        inner.entries().remove(&id);
        let _ = fs::remove_dir_all(&entry.dir);
        return Err(SandboxError::Directory {
            path: entry.dir.clone(),
            source,
        });
    }
    Ok(entry)
}

/// Lists the sandbox if the limits and the others' names allow it.
fn list(inner: &Inner, entry: &Arc<Entry>) -> Result<(), SandboxError> {
    let limits = &inner.config.limits;
    let new = entry.info();
    let mut entries = inner.entries();
    let running: Vec<_> = entries
        .values()
        .map(|entry| entry.info())
        .filter(|info| !info.state.has_ended())
        .collect();
    if let Some(other) = running
        .iter()
        .find(|info| info.name.is_some() && info.name == new.name)
    {
        return Err(SandboxError::NameTaken {
            name: other.name.clone().unwrap_or_default(),
            id: other.id,
        });
    }
    if running.len() >= limits.max_running {
        return Err(SandboxError::LimitReached {
            what: "running sandboxes",
            limit: limits.max_running as u64,
        });
    }
    let memory: u64 = running.iter().map(|info| u64::from(info.memory_mib)).sum();
    if memory + u64::from(new.memory_mib) > u64::from(limits.max_total_memory_mib) {
        return Err(SandboxError::LimitReached {
            what: "MiB of memory for all sandboxes",
            limit: limits.max_total_memory_mib.into(),
        });
    }
    entries.insert(entry.id, Arc::clone(entry));
    Ok(())
}

type Booted = (Vm, GuestChannel, mpsc::Receiver<DoorStream>);

/// Boots the guest and learns what it is.
async fn boot(
    inner: &Inner,
    entry: &Arc<Entry>,
    image: &Image,
    progress: &Progress,
) -> Result<Booted, SandboxError> {
    let request = prepare(entry, image, progress).await?;
    let begun = Instant::now();
    step(
        progress,
        "boot",
        format_args!("booting {} ({})", image.info.name, request.accel),
    );
    let mut tried = 1;
    let (vm, channel, doors) = loop {
        match start(inner, entry, &request).await {
            // A guest that hangs early is started once more: seen on hosts so busy that the
            // guest's first timer was lost.
            Err(SandboxError::Guest {
                source: ChannelError::NotReady { .. },
                ..
            }) if tried < BOOT_TRIES => {
                tried += 1;
                warn!(sandbox = %entry.id, "the guest did not come up; trying once more");
                step(
                    progress,
                    "boot",
                    "the guest did not come up; trying once more",
                );
            }
            other => break other?,
        }
    };
    let boot_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let guest = |source| SandboxError::Guest {
        id: entry.id,
        source,
    };
    channel.set_time(SystemTime::now()).await.map_err(guest)?;
    let mut fingerprint = entry.info().fingerprint;
    let tools = match image.tools() {
        Some(tools) => {
            fingerprint.tools = tools;
            Tools::Keep
        }
        None => {
            step(progress, "boot", "asking the guest for its tools");
            Tools::Ask
        }
    };
    fingerprint::probe(&channel, &entry.env, tools, &mut fingerprint).await;
    if tools == Tools::Ask
        && let Err(error) = image.keep_tools(&fingerprint.tools)
    {
        debug!(%error, "the tools of an image cannot be kept");
    }
    let cpu = match request.accel {
        Accel::Kvm => Some(channel.info().await.map_err(guest)?.cpu),
        Accel::Auto | Accel::Tcg => None,
    };
    let ready = entry.ready(channel.clone(), |info| {
        info.boot_ms = Some(boot_ms);
        info.fingerprint = fingerprint;
        if let Some(cpu) = cpu {
            info.fingerprint.cpu = format!("host: {cpu}");
        }
    });
    ready.map_err(directory(&entry.dir))?;
    step(
        progress,
        "ready",
        format_args!("the guest answered after {boot_ms} ms"),
    );
    Ok((vm, channel, doors))
}

/// Makes the monitor's directory and the guest's disks.
async fn prepare(
    entry: &Entry,
    image: &Image,
    progress: &Progress,
) -> Result<VmRequest, SandboxError> {
    let dir = entry.vm_dir();
    make_private_dir(&dir).map_err(directory(&dir))?;
    image.mark_used(&dir).map_err(directory(&dir))?;
    let info = entry.info();
    let mut kernel_args = vec![format!("rhizome.hostname={}", hostname(&info))];
    let mut disks = Vec::new();
    if let Some(format) = &image.root_format {
        kernel_args.push("rhizome.root=disk0".to_owned());
        kernel_args.push(format!("rhizome.rootfstype={format}"));
        disks.push(Disk {
            path: image.root(),
            writable: false,
        });
        if find_program("mkfs.ext4").is_some() {
            step(progress, "disk", "making the writable disk");
            let path = make_upper(&dir).await?;
            disks.push(Disk {
                path,
                writable: true,
            });
            kernel_args.push("rhizome.upper=disk1".to_owned());
            kernel_args.push("rhizome.upperfstype=ext4".to_owned());
        } else {
            // What is written then lives in the guest's memory.
            kernel_args.push("rhizome.upper=tmpfs".to_owned());
        }
    }
    Ok(VmRequest {
        id: entry.id,
        console: entry.console(),
        kernel: image.kernel(),
        initramfs: image.initramfs(),
        disks,
        memory_mib: info.memory_mib,
        vcpus: info.vcpus,
        accel: info.accel,
        kernel_args,
        dir,
    })
}

/// Makes a sparse file with an empty file system.
async fn make_upper(dir: &Path) -> Result<PathBuf, SandboxError> {
    let path = dir.join("upper");
    let file = fs::File::create(&path).map_err(directory(&path))?;
    file.set_len(UPPER_BYTES).map_err(directory(&path))?;
    drop(file);
    Helper::new("mkfs.ext4")
        // No journal: the disk dies with its guest. Tables are zero already in a sparse file.
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal"])
        .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"])
        .arg(&path)
        .run(|_| {})
        .await
        .map_err(crate::driver::DriverError::from)?;
    Ok(path)
}

/// Starts the monitor and waits for the guest.
async fn start(inner: &Inner, entry: &Entry, request: &VmRequest) -> Result<Booted, SandboxError> {
    let vm = inner.driver.start(request).await?;
    let monitor = Monitor {
        pid: vm.pid,
        started: vm.started,
        boot_id: boot_id(),
    };
    entry.booting(monitor).map_err(directory(&entry.dir))?;
    let stream = vm.connect().await?;
    let limits = ChannelLimits {
        hello_deadline: match request.accel {
            Accel::Kvm => KVM_BOOT_DEADLINE,
            Accel::Auto | Accel::Tcg => TCG_BOOT_DEADLINE,
        },
        ..ChannelLimits::default()
    };
    match GuestChannel::start(stream, limits).await {
        Ok((channel, doors)) => Ok((vm, channel, doors)),
        Err(source) => {
            let status = vm.status().await;
            debug!(sandbox = %entry.id, ?status, %source, "the guest did not come up");
            let how = timeout(watch::LAST_WORDS, vm.wait()).await.ok();
            vm.kill().await;
            Err(match (source, how) {
                // The monitor went first; what it said tells more than a closed socket.
                (ChannelError::Gone | ChannelError::Io { .. }, Some(how)) => {
                    SandboxError::MonitorEnded { id: entry.id, how }
                }
                (source, _) => SandboxError::Guest {
                    id: entry.id,
                    source,
                },
            })
        }
    }
}

fn hostname(info: &SandboxInfo) -> String {
    match &info.name {
        // A host name has no dots or underscores; a sandbox's name may.
        Some(name) => name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect(),
        None => format!("sandbox-{}", info.id.fmt_short()),
    }
}

/// Returns an error with its causes in one line.
fn told(error: &SandboxError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn directory(path: &Path) -> impl FnOnce(io::Error) -> SandboxError + '_ {
    move |source| SandboxError::Directory {
        path: path.to_owned(),
        source,
    }
}
