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

use super::command_line::{node, served_node};
use crate::driver::{
    DriverError, GuestRam, Monitor, device_file,
    launch::{CHANNEL_SOCKET, control, io_error},
    qmp::Qmp,
    sockets,
};

/// Time the state of the devices has to be read; it takes milliseconds.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);
/// What the monitor calls the file that it reads the state from.
const STATE_NAME: &str = "device";
/// Number of the file that it writes the state to.
const STATE_SET: u32 = 1;

/// One QEMU process.
#[derive(Debug)]
pub(super) struct QemuMonitor {
    dir: PathBuf,
    pid: u32,
    /// Its machine, as a saved state names it.
    machine: String,
    ram: GuestRam,
    control: Mutex<Qmp>,
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
        // How the reading of a state stands is told, not asked for.
        let told = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        qmp.execute("migrate-set-capabilities", told)
            .await
            .map_err(control("tell how it stands"))?;
        Ok(Self {
            dir,
            pid,
            machine,
            ram,
            control: Mutex::new(qmp),
        })
    }

    /// Gives a monitor that waits for it the state of its devices.
    pub(super) async fn load(&self, state: &File) -> Result<(), DriverError> {
        let mut qmp = self.control.lock().await;
        let loaded = async {
            qmp.hand(STATE_NAME, state.as_fd()).await?;
            let uri = format!("fd:{STATE_NAME}");
            qmp.migrate("migrate-incoming", &uri, MIGRATION_LIMIT)
                .await?;
            match qmp.status().await?.as_str() {
                "paused" | "prelaunch" => Ok(()),
                other => Err(io::Error::other(format!("the guest is {other}"))),
            }
        };
        loaded.await.map_err(control("restore its guest"))
    }

    /// Writes the state of the devices and nothing of the memory, whose place is a file of ours
    /// and the monitor's own pages. QEMU does that in one go and as often as it is asked; it was
    /// made for Xen, which has the memory elsewhere too.
    async fn save(&self, to: &Path) -> Result<(), DriverError> {
        let mut qmp = self.control.lock().await;
        let state = device_file::blank().map_err(io_error(to))?;
        let saved = async {
            match qmp.status().await?.as_str() {
                "paused" | "prelaunch" => {}
                other => return Err(io::Error::other(format!("the guest is {other}"))),
            }
            qmp.lend(STATE_SET, device_file::to_write(&state)?.as_fd())
                .await?;
            let arguments = json!({ "filename": format!("/dev/fdset/{STATE_SET}"), "live": false });
            let saved = qmp.execute("xen-save-devices-state", arguments).await;
            let back = json!({ "fdset-id": STATE_SET });
            qmp.execute("remove-fd", back).await?;
            saved.map(drop)
        };
        saved.await.map_err(control("save its guest"))?;
        device_file::write(&state, &self.machine, to)
    }
}

/// Puts a disk's own file below its device, in the place of what was served.
///
/// The daemon may have gone after any of the commands, so what is there is looked at first.
async fn take_disk(qmp: &mut Qmp, number: u32, name: &str) -> io::Result<()> {
    let (node, served, own) = (
        node(number),
        served_node(number),
        format!("disk{number}-own"),
    );
    let answer = qmp
        .execute("query-named-block-nodes", json!({ "flat": true }))
        .await?;
    let nodes = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_there = |wanted: &str| {
        let mut names = nodes.iter().map(|node| node["node-name"].as_str());
        names.any(|name| name == Some(wanted))
    };
    if !is_there(&served) {
        return Ok(());
    }
    let file = json!({
        "driver": "file", "node-name": own, "filename": name, "discard": "unmap",
        "cache": { "no-flush": true },
    });
    if !is_there(&own) {
        qmp.execute("blockdev-add", file).await?;
    }
    let over = json!({ "options": [{
        "driver": "raw", "node-name": node, "file": own, "discard": "unmap",
        "cache": { "no-flush": true },
    }] });
    qmp.execute("blockdev-reopen", over).await?;
    let gone = json!({ "node-name": served });
    qmp.execute("blockdev-del", gone).await.map(drop)
}

impl Monitor for QemuMonitor {
    fn connect(&self) -> BoxFuture<'_, Result<UnixStream, DriverError>> {
        sockets::connect(&self.dir, CHANNEL_SOCKET, Some(self.pid)).boxed()
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let mut qmp = self.control.lock().await;
            let stopped = qmp.execute("stop", json!({})).await;
            stopped.map(drop).map_err(control("stop its guest"))
        }
        .boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let mut qmp = self.control.lock().await;
            let run = qmp.execute("cont", json!({})).await;
            run.map(drop).map_err(control("let its guest run"))
        }
        .boxed()
    }

    fn save_device<'a>(&'a self, to: &'a Path) -> BoxFuture<'a, Result<(), DriverError>> {
        self.save(to).boxed()
    }

    fn status(&self) -> BoxFuture<'_, Option<String>> {
        async { self.control.lock().await.status().await.ok() }.boxed()
    }

    fn take_disks<'a>(
        &'a self,
        disks: &'a [(u32, String)],
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        async move {
            let mut qmp = self.control.lock().await;
            for (number, name) in disks {
                let taken = take_disk(&mut qmp, *number, name).await;
                taken.map_err(control("use a disk that is whole"))?;
            }
            Ok(())
        }
        .boxed()
    }

    fn ram(&self) -> Result<GuestRam, DriverError> {
        self.ram.try_clone().map_err(io_error(&self.dir))
    }
}
