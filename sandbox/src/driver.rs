//! What runs a microVM.
//!
//! A driver starts a monitor in a directory of its own and hands back the guest's channel. It
//! knows nothing of images, names or state files; those are the manager's.

mod console;
mod host;
pub mod qemu;
mod qmp;
mod spawner;

use std::{fmt, io, path::PathBuf};

use futures::future::BoxFuture;
use tokio::{net::UnixStream, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{Accel, SandboxId, command::CommandError};

pub use console::{Console, read_console};
pub(crate) use host::{end_process, process_start};

/// A microVM to start.
#[derive(Debug, Clone)]
pub struct VmRequest {
    /// The sandbox it is for; names the guest and picks the user its monitor runs as.
    pub id: SandboxId,
    /// Directory of this VM alone; the monitor can reach nothing else of the data directory.
    pub dir: PathBuf,
    /// Where the console log goes; outside `dir`, so that the monitor cannot touch it.
    pub console: PathBuf,
    /// The bootable kernel.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initramfs: PathBuf,
    /// Block devices; the first has the serial `disk0`, the next `disk1`, and so on.
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
    /// The raw file behind it; a writable one lies in the VM's directory.
    pub path: PathBuf,
    /// Whether the guest may write.
    pub writable: bool,
}

/// Starts microVMs.
pub trait VmmDriver: fmt::Debug + Send + Sync {
    /// Returns the driver's name, as in `SandboxInfo::driver`.
    fn name(&self) -> &'static str;

    /// Returns the monitor's name and version.
    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>>;

    /// Returns the CPU model that guests get.
    fn cpu_model(&self, accel: Accel) -> &'static str;

    /// Starts a microVM; returns once the monitor is on its channel, long before the guest is.
    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>>;
}

/// A running microVM. Dropping it kills the monitor.
#[derive(Debug)]
pub struct Vm {
    /// The monitor's process id.
    pub pid: u32,
    /// When that process started, in the kernel's clock ticks: with the id, it names one process.
    pub started: u64,
    /// The guest's channel; taken once.
    pub channel: Option<UnixStream>,
    /// Becomes `Some(how)` once the monitor has ended.
    pub ended: watch::Receiver<Option<String>>,
    kill: CancellationToken,
    control: Option<tokio::sync::Mutex<qmp::Qmp>>,
}

impl Vm {
    /// Asks the monitor how its guest stands (`running`, `internal-error`, …); `None` if it does
    /// not say.
    pub async fn status(&self) -> Option<String> {
        self.control.as_ref()?.lock().await.status().await.ok()
    }

    /// Kills the monitor and waits until it is gone.
    pub async fn kill(&self) {
        self.kill.cancel();
        self.wait().await;
    }

    /// Waits until the monitor has ended and returns how.
    pub async fn wait(&self) -> String {
        let mut ended = self.ended.clone();
        // An error means that the watcher is gone, and the monitor with it.
        let how = ended.wait_for(Option::is_some).await;
        how.ok()
            .and_then(|how| how.clone())
            .unwrap_or_else(|| "nobody saw how".to_owned())
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// Why a microVM could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The monitor is not installed.
    #[error("`{program}` was not found")]
    NotInstalled {
        /// The program looked for.
        program: String,
    },
    /// A helper program is missing or failed.
    #[error("a helper program failed")]
    Command(#[from] CommandError),
    /// A file of the VM could not be made.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The monitor could not be started.
    #[error("cannot start `{program}`")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The monitor ended before its guest could boot.
    #[error("the monitor ended at once: {how}")]
    Ended {
        /// How, with its last words.
        how: String,
    },
    /// The monitor did not open its channel.
    #[error("the monitor was not ready within {seconds} seconds")]
    NotReady {
        /// How long it was given.
        seconds: u64,
    },
    /// KVM was demanded and does not work here.
    #[error("KVM does not work on this host: {reason}")]
    NoKvm {
        /// Why.
        reason: String,
    },
    /// What the host says about itself could not be read.
    #[error("cannot find out {what}")]
    Host {
        /// What.
        what: &'static str,
    },
}

impl DriverError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotInstalled { .. } => Some(
                "install it with `apt-get install qemu-system-x86`, or name the program in the configuration"
                    .to_owned(),
            ),
            Self::Command(error) => error.hint(),
            Self::NoKvm { .. } => Some("use `--accel auto` or `--accel tcg`".to_owned()),
            _ => None,
        }
    }
}
