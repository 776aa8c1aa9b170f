//! One Cloud Hypervisor process, as its daemon holds it.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use cloud_hypervisor_client::models::VmState;
use futures::future::{BoxFuture, FutureExt};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use tokio::{net::UnixStream, sync::Mutex};

use super::{STATE_FILE, api::Api, vsock};
use crate::driver::{
    DriverError, GuestRam, Monitor,
    confine::Confinement,
    device_file,
    launch::{control, io_error},
};

/// Where a snapshot is written, in the VM's directory: the monitor's own, and there for no longer
/// than that takes.
const SAVE_DIR: &str = "save";

/// One Cloud Hypervisor process.
#[derive(Debug)]
pub(super) struct CloudHypervisorMonitor {
    dir: PathBuf,
    pid: u32,
    /// Its machine, as a saved state names it.
    machine: String,
    ram: GuestRam,
    user: Confinement,
    api: Api,
    /// What [`Monitor::save_device`] got since the guest last ran: a guest that stands still has
    /// one state. Held while the monitor is told something.
    saved: Mutex<Option<Vec<u8>>>,
}

impl CloudHypervisorMonitor {
    pub(super) fn new(
        dir: PathBuf,
        pid: u32,
        machine: String,
        ram: GuestRam,
        user: Confinement,
        api: Api,
    ) -> Self {
        Self {
            dir,
            pid,
            machine,
            ram,
            user,
            api,
            saved: Mutex::new(None),
        }
    }

    /// Does `what` unless the guest stands so already.
    async fn unless(
        &self,
        wanted: VmState,
        what: impl Future<Output = Result<(), DriverError>>,
    ) -> Result<(), DriverError> {
        let state = self.api.state().await;
        match state.map_err(control("say how its guest is"))? {
            state if state == wanted => Ok(()),
            _ => what.await,
        }
    }

    async fn save(&self, to: &Path) -> Result<(), DriverError> {
        let mut saved = self.saved.lock().await;
        if let Some(state) = &*saved {
            return device_file::write_bytes(state, &self.machine, to);
        }
        let failed = control("save its guest");
        match self.api.state().await {
            Ok(VmState::Paused) => {}
            Ok(other) => return Err(failed(io::Error::other(format!("the guest is {other}")))),
            Err(error) => return Err(failed(error)),
        }
        let dir = self.dir.join(SAVE_DIR);
        // One that a former daemon did not come to remove.
        let _ = fs::remove_dir_all(&dir);
        self.user.give(&dir)?;
        let told = self.api.snapshot(format!("file://{SAVE_DIR}")).await;
        let path = dir.join(STATE_FILE);
        let read = told.and_then(|()| read_state(&self.dir).map_err(io_error(&path)));
        // With the copy of the memory in it.
        fs::remove_dir_all(&dir).map_err(io_error(&dir))?;
        let state = read?;
        device_file::write_bytes(&state, &self.machine, to)?;
        *saved = Some(state);
        Ok(())
    }
}

impl Monitor for CloudHypervisorMonitor {
    fn connect(&self) -> BoxFuture<'_, Result<UnixStream, DriverError>> {
        vsock::connect(&self.dir, self.pid).boxed()
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let _turn = self.saved.lock().await;
            self.unless(VmState::Paused, self.api.pause()).await
        }
        .boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            let mut saved = self.saved.lock().await;
            *saved = None;
            self.unless(VmState::Running, self.api.resume()).await
        }
        .boxed()
    }

    fn save_device<'a>(&'a self, to: &'a Path) -> BoxFuture<'a, Result<(), DriverError>> {
        self.save(to).boxed()
    }

    fn status(&self) -> BoxFuture<'_, Option<String>> {
        async {
            let state = self.api.state().await.ok()?;
            Some(state.to_string().to_lowercase())
        }
        .boxed()
    }

    fn ram(&self) -> Result<GuestRam, DriverError> {
        self.ram.try_clone().map_err(io_error(&self.dir))
    }
}

/// Reads what the monitor wrote. The directory is its own: whatever it put there in the state's
/// place, it is not followed, waited for, or read beyond its bound.
fn read_state(dir: &Path) -> io::Result<Vec<u8>> {
    let at = File::open(dir)?;
    let file: File = openat2(
        &at,
        Path::new(SAVE_DIR).join(STATE_FILE),
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
    )?
    .into();
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > device_file::MAX_BYTES {
        return Err(io::Error::other("that is not the state of a guest"));
    }
    let mut state = Vec::new();
    file.take(device_file::MAX_BYTES).read_to_end(&mut state)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_file_of_the_monitors_own_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let save = dir.path().join(SAVE_DIR);
        let state = save.join(STATE_FILE);
        fs::create_dir(&save).unwrap();
        fs::write(&state, "state").unwrap();
        assert_eq!(read_state(dir.path()).unwrap(), b"state");

        fs::remove_file(&state).unwrap();
        assert!(read_state(dir.path()).is_err());
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &state).unwrap();
        assert!(read_state(dir.path()).is_err());
        fs::remove_file(&state).unwrap();
        fs::create_dir(&state).unwrap();
        assert!(read_state(dir.path()).is_err());
        fs::remove_dir(&state).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&state).status();
        assert!(made.unwrap().success());
        assert!(read_state(dir.path()).is_err());
        fs::remove_file(&state).unwrap();
        let large = File::create(&state).unwrap();
        large.set_len(device_file::MAX_BYTES + 1).unwrap();
        assert!(read_state(dir.path()).is_err());
    }
}
