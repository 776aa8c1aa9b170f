//! One QEMU process, as its daemon holds it.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use serde_json::json;
use tokio::{net::UnixStream, sync::Mutex};

use crate::driver::{
    DriverError, GuestRam, Monitor, device_file,
    launch::{CHANNEL_SOCKET, control, io_error},
    qmp::Qmp,
    sockets,
};

/// Time the state of the devices has to be written or read; it takes milliseconds.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);
/// What the monitor calls the file that carries the state.
const STATE_NAME: &str = "device";

/// One QEMU process.
#[derive(Debug)]
pub(super) struct QemuMonitor {
    dir: PathBuf,
    pid: u32,
    /// Its machine, as a saved state names it.
    machine: String,
    ram: GuestRam,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    qmp: Qmp,
    /// What [`Monitor::save_device`] got since the guest last ran: a guest that stands still has
    /// one state, and QEMU gives it out once.
    saved: Option<File>,
}

impl QemuMonitor {
    /// Takes a monitor that has greeted.
    pub(super) async fn new(
        dir: PathBuf,
        pid: u32,
        machine: String,
        ram: GuestRam,
        mut qmp: Qmp,
    ) -> Result<Self, DriverError> {
        // The memory is a file of ours and no part of the state; how the writing of the rest
        // stands is told, not asked for.
        let capabilities =
            ["x-ignore-shared", "events"].map(|name| json!({ "capability": name, "state": true }));
        let arguments = json!({ "capabilities": capabilities });
        qmp.execute("migrate-set-capabilities", arguments)
            .await
            .map_err(control("say what belongs to a saved state"))?;
        Ok(Self {
            dir,
            pid,
            machine,
            ram,
            control: Mutex::new(Control { qmp, saved: None }),
        })
    }

    /// Gives a monitor that waits for it the state of its devices.
    pub(super) async fn load(&self, state: &File) -> Result<(), DriverError> {
        let mut held = self.control.lock().await;
        let failed = control("restore its guest");
        let loaded = async {
            held.qmp.hand(STATE_NAME, state.as_fd()).await?;
            let uri = format!("fd:{STATE_NAME}");
            held.qmp
                .migrate("migrate-incoming", &uri, MIGRATION_LIMIT)
                .await?;
            match held.qmp.status().await?.as_str() {
                "paused" | "prelaunch" => Ok(()),
                other => Err(io::Error::other(format!("the guest is {other}"))),
            }
        };
        loaded.await.map_err(failed)
    }

    async fn save(&self, to: &Path) -> Result<(), DriverError> {
        let mut held = self.control.lock().await;
        if let Some(state) = &held.saved {
            return device_file::write(state, &self.machine, to);
        }
        let state = device_file::blank().map_err(io_error(to))?;
        let failed = control("save its guest");
        let saved = async {
            match held.qmp.status().await?.as_str() {
                "paused" | "prelaunch" => {}
                // A former daemon saved it, and QEMU does so once. A guest that ran for the
                // moment in between is as good as one that was stopped a moment later.
                "postmigrate" => {
                    held.qmp.execute("cont", json!({})).await?;
                    held.qmp.execute("stop", json!({})).await?;
                }
                other => return Err(io::Error::other(format!("the guest is {other}"))),
            }
            held.qmp.hand(STATE_NAME, state.as_fd()).await?;
            let uri = format!("fd:{STATE_NAME}");
            held.qmp.migrate("migrate", &uri, MIGRATION_LIMIT).await
        };
        saved.await.map_err(failed)?;
        device_file::write(&state, &self.machine, to)?;
        held.saved = Some(state);
        Ok(())
    }
}

impl Monitor for QemuMonitor {
    fn connect(&self) -> BoxFuture<'_, Result<UnixStream, DriverError>> {
        sockets::connect(&self.dir, CHANNEL_SOCKET, Some(self.pid)).boxed()
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let mut held = self.control.lock().await;
            let stopped = held.qmp.execute("stop", json!({})).await;
            stopped.map(drop).map_err(control("stop its guest"))
        }
        .boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let mut held = self.control.lock().await;
            held.saved = None;
            let run = held.qmp.execute("cont", json!({})).await;
            run.map(drop).map_err(control("let its guest run"))
        }
        .boxed()
    }

    fn save_device<'a>(&'a self, to: &'a Path) -> BoxFuture<'a, Result<(), DriverError>> {
        self.save(to).boxed()
    }

    fn status(&self) -> BoxFuture<'_, Option<String>> {
        async { self.control.lock().await.qmp.status().await.ok() }.boxed()
    }

    fn ram(&self) -> Result<GuestRam, DriverError> {
        self.ram.try_clone().map_err(io_error(&self.dir))
    }
}
