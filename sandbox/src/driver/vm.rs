//! A running microVM, whichever driver runs it.

use std::{fmt, path::Path};

use futures::future::{BoxFuture, FutureExt};
use tokio::{net::UnixStream, sync::watch};
use tokio_util::sync::CancellationToken;

use super::{DriverError, GuestRam};

/// What a driver does to one monitor of its own; everything else about a [`Vm`] is the same for
/// all drivers.
pub trait Monitor: fmt::Debug + Send + Sync {
    /// Opens the guest's channel.
    fn connect(&self) -> BoxFuture<'_, Result<UnixStream, DriverError>>;
    /// Stops the guest.
    fn pause(&self) -> BoxFuture<'_, Result<(), DriverError>>;
    /// Lets the guest run.
    fn resume(&self) -> BoxFuture<'_, Result<(), DriverError>>;
    /// Writes the state of a paused guest's devices to a new file.
    fn save_device<'a>(&'a self, to: &'a Path) -> BoxFuture<'a, Result<(), DriverError>>;
    /// Returns how the guest stands, in the monitor's words.
    fn status(&self) -> BoxFuture<'_, Option<String>>;
    /// Returns the guest's memory.
    fn ram(&self) -> Result<GuestRam, DriverError>;
    /// Uses these disks, by number and name in the VM's directory, from their files from now on.
    /// Done already is fine.
    fn take_disks<'a>(
        &'a self,
        disks: &'a [(u32, String)],
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        let _ = disks;
        let what = "take a disk over";
        async move {
            Err(DriverError::Unsupported {
                driver: "of this guest",
                what,
            })
        }
        .boxed()
    }
}

/// What ties a monitor to this daemon: a task that waits for the monitor's end holds the other
/// side.
#[derive(Debug, Clone, Default)]
pub struct Tether {
    /// Cancelled when the monitor is to be killed.
    pub kill: CancellationToken,
    /// Cancelled when the daemon goes and the monitor stays.
    pub release: CancellationToken,
}

/// A running microVM. Dropping it kills the monitor; [`Self::release`] lets it live.
#[derive(Debug)]
pub struct Vm {
    /// The monitor's process id.
    pub pid: u32,
    /// When that process started, in the kernel's clock ticks: with the id, it names one process.
    pub started: u64,
    /// Becomes `Some(how)` once the monitor has ended.
    pub ended: watch::Receiver<Option<String>>,
    tether: Tether,
    monitor: Box<dyn Monitor>,
}

impl Vm {
    /// Puts a microVM together; for drivers.
    pub fn new(
        pid: u32,
        started: u64,
        ended: watch::Receiver<Option<String>>,
        tether: Tether,
        monitor: Box<dyn Monitor>,
    ) -> Self {
        Self {
            pid,
            started,
            ended,
            tether,
            monitor,
        }
    }

    /// Opens the guest's channel: one session at a time, so the stream before must be closed.
    ///
    /// What the guest wrote while nobody was connected is lost.
    ///
    /// # Errors
    /// [`DriverError::Gone`], or [`DriverError::Io`] for the socket.
    pub async fn connect(&self) -> Result<UnixStream, DriverError> {
        self.monitor.connect().await
    }

    /// Stops the guest: its processors stand still, its clock with them. Stopped already is fine.
    ///
    /// # Errors
    /// [`DriverError::Control`].
    pub async fn pause(&self) -> Result<(), DriverError> {
        self.monitor.pause().await
    }

    /// Lets the guest run. Running already is fine.
    ///
    /// # Errors
    /// [`DriverError::Control`].
    pub async fn resume(&self) -> Result<(), DriverError> {
        self.monitor.resume().await
    }

    /// Writes the state of a paused guest's devices to `to`, whole or not at all.
    ///
    /// Until the guest runs again, this, [`Self::ram`] and the disks are of one moment.
    ///
    /// # Errors
    /// [`DriverError::Control`], also when the guest runs; [`DriverError::Io`].
    pub async fn save_device(&self, to: &Path) -> Result<(), DriverError> {
        self.monitor.save_device(to).await
    }

    /// Asks the monitor how its guest stands (`running`, `paused`, `internal-error`, …); `None`
    /// if it does not say.
    pub async fn status(&self) -> Option<String> {
        self.monitor.status().await
    }

    /// Returns the guest's memory, as it changes under a guest that runs.
    ///
    /// # Errors
    /// [`DriverError::Gone`] and [`DriverError::Io`].
    pub fn ram(&self) -> Result<GuestRam, DriverError> {
        self.monitor.ram()
    }

    /// Has the monitor use disks that were served to it ([`super::Arriving::behind`]) from their
    /// files, which are whole: whoever serves them may go after that. Repeating it is fine.
    ///
    /// # Errors
    /// [`DriverError::Control`], [`DriverError::Unsupported`].
    pub async fn take_disks(&self, disks: &[(u32, String)]) -> Result<(), DriverError> {
        self.monitor.take_disks(disks).await
    }

    /// Kills the monitor and waits until it is gone.
    pub async fn kill(&self) {
        self.tether.kill.cancel();
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

    /// Lets go of the monitor without ending it, for [`super::VmmDriver::attach`] by the next
    /// daemon. The stream of the guest's channel is for the caller to close.
    pub fn release(&self) {
        self.tether.release.cancel();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if !self.tether.release.is_cancelled() {
            self.tether.kill.cancel();
        }
    }
}
