//! What runs a microVM.

pub mod qemu;

use std::{fmt, path::PathBuf};

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::Accel;

/// A microVM to start.
#[derive(Debug, Clone)]
pub struct VmRequest {
    /// 0700 directory of this VM: console log and what else the driver writes.
    pub dir: PathBuf,
    /// Directory of its sockets; short enough for socket paths.
    pub sockets: PathBuf,
    /// The bootable kernel.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initramfs: PathBuf,
    /// Block devices, in the order the guest sees them.
    pub disks: Vec<Disk>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// `kvm` or `tcg`.
    pub accel: Accel,
    /// Words added to the kernel's command line.
    pub kernel_args: Vec<String>,
}

/// A block device of a microVM.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The raw file behind it.
    pub path: PathBuf,
    /// Whether the guest may write.
    pub read_only: bool,
}

/// Starts microVMs.
pub trait VmmDriver: fmt::Debug + Send + Sync {
    /// Returns the driver's name, as in `SandboxInfo::driver`.
    fn name(&self) -> &'static str;

    /// Returns the monitor's name and version.
    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>>;

    /// Returns the CPU model that guests get.
    fn cpu_model(&self, accel: Accel) -> String;

    /// Starts a microVM; returns once its channel socket exists, long before the guest answers.
    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>>;
}

/// A running microVM. Dropping it kills the monitor.
#[derive(Debug)]
pub struct Vm {
    /// The monitor's process id.
    pub pid: u32,
    /// The socket of the guest's channel.
    pub channel: PathBuf,
    /// The console log.
    pub console: PathBuf,
    /// Becomes `Some(how)` when the monitor ended.
    pub ended: watch::Receiver<Option<String>>,
}

/// Why a microVM could not be started or went away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The monitor is not installed.
    #[error("`{program}` was not found")]
    NotInstalled {
        /// The program looked for.
        program: String,
    },
}

impl DriverError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        None
    }
}
