//! What this host can run, found by running it.
//!
//! That `/dev/kvm` opens says little: there are hosts on which a tiny guest runs in it and Linux
//! hangs. So the real kernel is booted once, with a deadline, and the answer kept until the host,
//! QEMU or the kernel changes.

mod doctor;

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use doctor::{Check, CheckStatus, report};

use crate::{
    Accel, Progress, SandboxConfig, SandboxError, SandboxId,
    channel::{ChannelLimits, GuestChannel},
    driver::{DriverError, QEMU_MICROVM, VmRequest, VmmDriver},
    image::{Image, ImageStore},
    progress::step,
    staging::{DirLock, write_atomic},
};

/// Time a kernel under KVM has to come up; it takes well under a second where KVM works.
const KVM_DEADLINE: Duration = Duration::from_secs(6);
/// Memory of the probe's guest, in MiB.
const PROBE_MEMORY_MIB: u32 = 192;
const KVM_DEVICE: &str = "/dev/kvm";
/// What is said of a device that is there and cannot be used.
const CLOSED: &str = "is closed";

/// How guests will run on this host, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccelDecision {
    /// `kvm` or `tcg`.
    pub accel: Accel,
    /// Why, in one sentence.
    pub reason: String,
}

/// What a kept answer depends on.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Conditions {
    boot_id: String,
    vmm: String,
    kernel: String,
    root: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    conditions: Conditions,
    works: bool,
    reason: String,
}

/// Decides how guests run here.
pub(crate) async fn decide(
    config: &SandboxConfig,
    images: &ImageStore,
    driver: &dyn VmmDriver,
    progress: &Progress,
) -> Result<AccelDecision, SandboxError> {
    if config.accel == Accel::Tcg && driver.emulates() {
        return Ok(AccelDecision {
            accel: Accel::Tcg,
            reason: "emulation was asked for".to_owned(),
        });
    }
    let (works, reason) = match kvm_is_open() {
        _ if config.accel == Accel::Tcg => (false, "emulation was asked for".to_owned()),
        Ok(()) => try_kvm(config, images, driver, progress).await?,
        Err(reason) => (false, reason),
    };
    if !works && !driver.emulates() {
        let driver = driver.name();
        return Err(DriverError::NeedsKvm { driver, reason }.into());
    }
    match (works, config.accel) {
        (true, _) => Ok(AccelDecision {
            accel: Accel::Kvm,
            reason,
        }),
        (false, Accel::Kvm) => Err(DriverError::NoKvm { reason }.into()),
        (false, _) => Ok(AccelDecision {
            accel: Accel::Tcg,
            reason,
        }),
    }
}

/// Tells whether a monitor may use KVM at all.
///
/// # Errors
/// Why not, in one sentence.
pub fn kvm_is_open() -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let device = match OpenOptions::new().read(true).write(true).open(KVM_DEVICE) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{KVM_DEVICE} is not there"));
        }
        Err(error) => return Err(format!("{KVM_DEVICE} {CLOSED}: {error}")),
    };
    // Under root the monitor is an unprivileged user with the device's group, and stays one.
    let mode = device
        .metadata()
        .map_or(0, |meta| meta.permissions().mode());
    if rustix::process::geteuid().is_root() && mode & 0o060 != 0o060 && mode & 0o006 != 0o006 {
        return Err(format!(
            "{KVM_DEVICE} {CLOSED} to anyone but root, and monitors never are root"
        ));
    }
    Ok(())
}

async fn try_kvm(
    config: &SandboxConfig,
    images: &ImageStore,
    driver: &dyn VmmDriver,
    progress: &Progress,
) -> Result<(bool, String), SandboxError> {
    let image = images.minimal(progress).await?;
    let conditions = Conditions {
        boot_id: boot_id(),
        vmm: driver.version().await?,
        kernel: image.info.kernel.clone(),
        root: rustix::process::geteuid().is_root(),
    };
    let dir = config.images_dir.join("probe");
    let directory = |source| SandboxError::Directory {
        path: dir.clone(),
        source,
    };
    let lock = DirLock::acquire(&dir, || {
        step(
            progress,
            "probe",
            "waiting for another daemon that tries KVM",
        );
    })
    .await
    .map_err(directory)?;
    let kept = dir.join(match driver.name() {
        QEMU_MICROVM => "kvm.json".to_owned(),
        other => format!("kvm-{other}.json"),
    });
    if let Some(kept) = read_kept(&kept).filter(|kept| kept.conditions == conditions) {
        return Ok((kept.works, kept.reason));
    }
    step(progress, "probe", "trying KVM with the real kernel");
    let staging = lock.stage().map_err(directory)?;
    let (works, reason) = boot(driver, &image, staging.path()).await;
    let answer = Kept {
        conditions,
        works,
        reason,
    };
    let json = serde_json::to_vec(&answer).expect("an answer becomes JSON");
    write_atomic(&kept, &json).map_err(directory)?;
    Ok((answer.works, answer.reason))
}

/// Boots the kernel under KVM and tells whether its guest came up, and what was seen.
async fn boot(driver: &dyn VmmDriver, image: &Image, dir: &Path) -> (bool, String) {
    let vm_dir = dir.join("vm");
    if let Err(error) = crate::staging::make_private_dir(&vm_dir) {
        return (false, format!("KVM could not be tried: {error}"));
    }
    let request = VmRequest {
        id: SandboxId::from_bytes([0; 16]),
        dir: vm_dir,
        console: dir.join("console.log"),
        kernel: image.kernel(),
        initramfs: image.initramfs(),
        disks: Vec::new(),
        memory_mib: PROBE_MEMORY_MIB,
        vcpus: 1,
        accel: Accel::Kvm,
        kernel_args: Vec::new(),
    };
    let vm = match driver.start(&request).await {
        Ok(vm) => vm,
        Err(error) => return (false, format!("a guest under KVM did not start: {error}")),
    };
    let stream = match vm.connect().await {
        Ok(stream) => stream,
        Err(error) => return (false, format!("a guest under KVM did not start: {error}")),
    };
    let limits = ChannelLimits {
        hello_deadline: KVM_DEADLINE,
        ..ChannelLimits::default()
    };
    let answer = match GuestChannel::start(stream, limits).await {
        Ok(_) => (true, "a kernel boots under KVM".to_owned()),
        Err(_) => {
            let status = vm.status().await.unwrap_or_else(|| "silent".to_owned());
            match vm.ended.borrow().clone() {
                Some(how) => (false, format!("a guest under KVM ended: {how}")),
                None => (
                    false,
                    format!(
                        "{KVM_DEVICE} opens, but a kernel in it did not come up within {} seconds (monitor: {status})",
                        KVM_DEADLINE.as_secs()
                    ),
                ),
            }
        }
    };
    vm.kill().await;
    answer
}

fn read_kept(path: &Path) -> Option<Kept> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Returns the id the host's kernel drew when it started.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the bytes that may still be written below a directory; the nearest one that exists
/// is asked.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let existing = dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
