//! What runs a microVM.
//!
//! A driver starts a monitor in a directory of its own and hands back a [`Vm`]. It knows nothing
//! of images, names or state files; those are the manager's.
//!
//! A monitor outlives the daemon that started it: its sockets are its own, its guest's memory is
//! a [`GuestRam`] that it holds open, and the next daemon finds all of it again by process id and
//! start time ([`VmmDriver::attach`]). What is left of a guest when its monitor is stopped is its
//! memory, its disks and the state of its devices ([`Vm::save_device`]); from these three any
//! number of guests can be started again ([`VmmDriver::restore`]).

mod cage;
pub mod cloud_hypervisor;
mod confine;
mod console;
mod device_file;
mod host;
mod launch;
mod overlay;
mod program;
pub mod qemu;
mod qmp;
mod ram;
mod sockets;
mod vm;
mod watch;

use std::{fmt, io, path::PathBuf, sync::Arc};

use futures::future::{BoxFuture, FutureExt};

use crate::{Accel, DriverChoice, SandboxConfig, SandboxId, command::CommandError};
use cloud_hypervisor::CloudHypervisor;
use qemu::Qemu;

pub(crate) use cage::describe as describe_limits;
pub use console::{Console, read_console};
pub(crate) use host::{end_process, host_cpu, monitors_in, process_cpu_ms, process_start, tsc_khz};
pub(crate) use launch::open_disk_socket;
pub use ram::GuestRam;
pub use vm::{Monitor, Tether, Vm};

/// Name of the driver [`qemu`].
pub const QEMU_MICROVM: &str = "qemu-microvm";
/// Name of the driver [`cloud_hypervisor`].
pub const CLOUD_HYPERVISOR: &str = "cloud-hypervisor";

/// Returns the driver that new sandboxes get.
///
/// [`DriverChoice::Auto`] is QEMU, wherever it is installed: a guest at rest goes on under the
/// driver it ran under alone, so nodes that choose alike can wake each other's. Cloud Hypervisor
/// stands in where there is no QEMU.
pub fn choose(config: &SandboxConfig) -> Arc<dyn VmmDriver> {
    let qemu = Qemu::new(config.qemu.clone());
    let other = CloudHypervisor::new(config.cloud_hypervisor.clone());
    match config.driver {
        DriverChoice::Qemu => Arc::new(qemu),
        DriverChoice::CloudHypervisor => Arc::new(other),
        DriverChoice::Auto if qemu.program().is_err() && other.program().is_ok() => Arc::new(other),
        DriverChoice::Auto => Arc::new(qemu),
    }
}

/// Returns a driver by its name.
pub(crate) fn named(config: &SandboxConfig, name: &str) -> Option<Arc<dyn VmmDriver>> {
    match name {
        QEMU_MICROVM => Some(Arc::new(Qemu::new(config.qemu.clone()))),
        CLOUD_HYPERVISOR => {
            let program = config.cloud_hypervisor.clone();
            Some(Arc::new(CloudHypervisor::new(program)))
        }
        _ => None,
    }
}

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

/// What a driver can do besides starting a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Save a guest and start it again.
    pub snapshot: bool,
    /// Start more than one guest from one that was saved.
    pub fork: bool,
    /// Take over a monitor that a former daemon started.
    pub reattach: bool,
    /// Start guests on one memory that they share until they write to it.
    pub copy_on_write: bool,
    /// Start a guest whose disks are still on their way ([`Arriving::behind`]).
    pub disks_behind: bool,
}

/// A guest at rest, without its disks: those lie in the new VM's directory already.
#[derive(Debug)]
pub struct SavedState {
    /// The state of the devices, as [`Vm::save_device`] wrote it.
    pub device: PathBuf,
    /// The memory. The new guest writes to it, so it starts one guest and no second; unless it is
    /// a template ([`GuestRam::is_template`]), which starts any number with a driver that can
    /// copy on write.
    pub ram: GuestRam,
}

/// A guest at rest that is still on its way.
pub struct Arriving<'a> {
    /// The memory: of the right size, and filled meanwhile; or a template, which is whole.
    pub ram: GuestRam,
    /// Ends when memory and disks are whole, with the state of the devices.
    pub whole: BoxFuture<'a, Result<PathBuf, DriverError>>,
    /// Numbers of the disks that are not waited for: somebody serves them at the socket of that
    /// number in the VM's directory, until [`Vm::take_disks`]. For drivers that can
    /// ([`Capabilities::disks_behind`]).
    pub behind: Vec<u32>,
}

impl fmt::Debug for Arriving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arriving")
            .field("ram", &self.ram)
            .finish_non_exhaustive()
    }
}

/// Starts microVMs.
pub trait VmmDriver: fmt::Debug + Send + Sync {
    /// Returns the driver's name, as in `SandboxInfo::driver`.
    fn name(&self) -> &'static str;

    /// Returns the monitor's name and version.
    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>>;

    /// Returns the CPU model that guests get.
    fn cpu_model(&self, accel: Accel) -> &'static str;

    /// Returns the machine that guests see, in the driver's own words. A guest at rest can be
    /// started again on an equal one only.
    fn machine(&self, accel: Accel) -> String;

    /// Whether guests run without KVM too.
    fn emulates(&self) -> bool {
        true
    }

    /// Returns what the driver can do besides.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Starts a guest from its kernel; it runs when this returns, and has not booted yet.
    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>>;

    /// Starts a guest where another was saved. It is paused when this returns; connect to it
    /// first, then let it run with [`Vm::resume`].
    fn restore<'a>(
        &'a self,
        request: &'a VmRequest,
        saved: &'a SavedState,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        let _ = (request, saved);
        self.cannot("start a guest that was saved")
    }

    /// As [`Self::restore`], while the guest is still on its way: the monitor can start meanwhile.
    ///
    /// The files of the disks are there already, in their full size.
    fn restore_arriving<'a>(
        &'a self,
        request: &'a VmRequest,
        arriving: Arriving<'a>,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async move {
            if !arriving.behind.is_empty() {
                return Err(DriverError::Unsupported {
                    driver: self.name(),
                    what: "start a guest before its disks are there",
                });
            }
            let saved = SavedState {
                device: arriving.whole.await?,
                ram: arriving.ram,
            };
            self.restore(request, &saved).await
        }
        .boxed()
    }

    /// Takes over a monitor that another daemon started, named by process id and start time.
    ///
    /// The guest stays as it is, running or paused. [`DriverError::Gone`] when there is no such
    /// monitor any more.
    fn attach<'a>(
        &'a self,
        request: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        let _ = (request, pid, started);
        self.cannot("take over a monitor")
    }

    /// Refuses what [`Self::capabilities`] do not hold.
    fn cannot(&self, what: &'static str) -> BoxFuture<'_, Result<Vm, DriverError>> {
        let driver = self.name();
        async move { Err(DriverError::Unsupported { driver, what }) }.boxed()
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
    /// The monitor is not there any more.
    #[error("the monitor with process id {pid} is gone")]
    Gone {
        /// Its process id.
        pid: u32,
    },
    /// The monitor does not answer, or not as one does.
    #[error("the monitor did not do as told: {command}")]
    Control {
        /// What it was told.
        command: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// What was saved of a guest cannot be used.
    #[error("the saved state cannot be used: {what}")]
    Saved {
        /// Why.
        what: String,
    },
    /// The driver cannot do this.
    #[error("the driver {driver} cannot {what}")]
    Unsupported {
        /// Its name.
        driver: &'static str,
        /// What.
        what: &'static str,
    },
    /// The monitor is there, and too old.
    #[error("`{program}` is version {found}, and {oldest} is the oldest that is used")]
    TooOld {
        /// The program.
        program: String,
        /// Its version.
        found: String,
        /// The oldest one that is used.
        oldest: String,
    },
    /// The driver knows no way but KVM, which does not work here.
    #[error("the driver {driver} needs KVM: {reason}")]
    NeedsKvm {
        /// Its name.
        driver: &'static str,
        /// Why there is none.
        reason: String,
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
            Self::NotInstalled { program } if program.contains(cloud_hypervisor::PROGRAM) => Some(
                "install Cloud Hypervisor from its releases, or name the program with `--cloud-hypervisor`"
                    .to_owned(),
            ),
            Self::NotInstalled { .. } => Some(
                "install it with `apt-get install qemu-system-x86`, or name the program in the configuration"
                    .to_owned(),
            ),
            Self::TooOld { oldest, .. } => Some(format!(
                "install version {oldest} or a newer one, or use `--driver qemu-microvm`"
            )),
            Self::NeedsKvm { .. } => {
                Some("use `--driver qemu-microvm`, which can emulate".to_owned())
            }
            Self::Command(error) => error.hint(),
            Self::NoKvm { .. } => Some("use `--accel auto` or `--accel tcg`".to_owned()),
            _ => None,
        }
    }
}
