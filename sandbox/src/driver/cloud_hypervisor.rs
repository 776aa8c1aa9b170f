//! Cloud Hypervisor: a small monitor for hosts where KVM works.
//!
//! It is told what to do over its REST interface ([`api`]), one process a sandbox. Its machine has
//! PCI, a serial console, the disks, a balloon and a virtio socket, over which the guest's channel
//! goes ([`vsock`]); there is no network card. What holds it in is the same as for every monitor
//! (`driver/launch.rs`), and it filters the system calls of each of its threads by itself.
//!
//! Where we want it otherwise than it does by itself:
//! - **It starts a guest anew that resets itself.** A sandbox whose guest panicked has lost its
//!   state and must not be followed by a fresh one. So the names of kernel and initial file system
//!   are removed once it has read them: after a reset it finds none, and ends.
//! - **Its snapshots hold a copy of the memory**, since the guest's has no name in a file system.
//!   We have that memory already, so the copy is thrown away; and a guest that is restored reads
//!   its own memory onto itself, which changes nothing.
//! - **Its snapshots say which files of the host a guest has.** We keep the state of the devices
//!   alone and make the configuration anew, so that no snapshot says which files are opened.

mod api;
mod machine;
mod monitor;
mod vsock;

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};

use super::{
    Capabilities, DriverError, GuestRam, Monitor, SavedState, Vm, VmRequest, VmmDriver,
    confine::Confinement,
    device_file,
    launch::{self, CONSOLE_SOCKET, Held, INITRAMFS, KERNEL, io_error},
    program::{self, Program},
    sockets,
};
use crate::Accel;
use api::Api;
use monitor::CloudHypervisorMonitor;

/// The program looked for on `PATH`.
pub(crate) const PROGRAM: &str = "cloud-hypervisor";
/// Oldest version that is used. Those before guess a disk's format from its content, which is the
/// guest's to write: it could name any file of the host as what lies behind.
const OLDEST: (u32, u32) = (52, 0);
/// Time the monitor has to answer; it takes milliseconds on an idle host.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Where a saved state is handed to the monitor, in the VM's directory.
const LOAD_DIR: &str = "load";
const STATE_FILE: &str = "state.json";
const CONFIG_FILE: &str = "config.json";
const MEMORY_FILE: &str = "memory-ranges";
/// The guest's memory, as the monitor finds it.
const MEMORY: &str = "/proc/self/fd/0";

/// Starts Cloud Hypervisor.
#[derive(Debug)]
pub struct CloudHypervisor {
    program: Program,
}

impl CloudHypervisor {
    /// Uses this program, or the one on `PATH`.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self {
            program: Program::new(program, PROGRAM),
        }
    }

    /// Returns the program, if it is there.
    ///
    /// # Errors
    /// [`DriverError::NotInstalled`].
    pub fn program(&self) -> Result<PathBuf, DriverError> {
        self.program.find()
    }

    fn read_version(&self, said: &str) -> Result<String, DriverError> {
        let word = said.split_whitespace().nth(1).unwrap_or_default();
        let version = program::clipped(word.trim_start_matches('v'));
        let Some(number) = parse_version(&version) else {
            return Err(DriverError::Control {
                command: "say its version",
                source: io::Error::other("that is not how Cloud Hypervisor says it"),
            });
        };
        if number < OLDEST {
            return Err(DriverError::TooOld {
                program: self.program()?.display().to_string(),
                found: version,
                oldest: format!("{}.{}", OLDEST.0, OLDEST.1),
            });
        }
        Ok(format!("cloud-hypervisor {version}"))
    }

    async fn describe(&self, request: &VmRequest) -> Result<String, DriverError> {
        Ok(machine::describe(request, &self.version().await?))
    }

    /// Starts a monitor and lets its guest begin: from its kernel, or from a state.
    async fn launch(
        &self,
        request: &VmRequest,
        ram: GuestRam,
        state: Option<Vec<u8>>,
    ) -> Result<Vm, DriverError> {
        if request.accel != Accel::Kvm {
            return Err(DriverError::NeedsKvm {
                driver: self.name(),
                reason: "emulation was asked for".to_owned(),
            });
        }
        let program = self.program()?;
        let described = self.describe(request).await?;
        launch::fits(&ram, request)?;
        let user = Confinement::choose(request);
        let disks = launch::prepare(request, &user)?;
        let config = machine::config(request, &disks);
        if let Some(state) = &state {
            place_state(request, &user, &config, state)?;
        }
        let arguments = ["--api-socket", "fd=1"].map(str::to_owned).to_vec();
        // Until it is thrown away, a snapshot holds what the guest's memory holds.
        let largest = launch::largest_disk(request).max(ram.size());
        let held = launch::start(program, arguments, request, &user, &ram, largest)?;
        let begin = match state {
            Some(_) => Begin::Load,
            None => Begin::Boot(Box::new(config)),
        };
        hold(held, described, ram, request, user, begin).await
    }
}

impl VmmDriver for CloudHypervisor {
    fn name(&self) -> &'static str {
        super::CLOUD_HYPERVISOR
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        self.program.version(|said| self.read_version(said)).boxed()
    }

    fn cpu_model(&self, _accel: Accel) -> &'static str {
        "host"
    }

    fn machine(&self, _accel: Accel) -> String {
        machine::machine()
    }

    fn emulates(&self) -> bool {
        false
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            snapshot: true,
            fork: true,
            reattach: true,
            copy_on_write: false,
            disks_behind: false,
        }
    }

    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            let ram = GuestRam::create(request.memory_mib).map_err(io_error(&request.dir))?;
            self.launch(request, ram, None).await
        }
        .boxed()
    }

    fn restore<'a>(
        &'a self,
        request: &'a VmRequest,
        saved: &'a SavedState,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            // A state that is of no use starts no monitor.
            let described = self.describe(request).await?;
            let state = device_file::read_bytes(&saved.device, &described)?;
            let ram = saved.ram.try_clone().map_err(io_error(&request.dir))?;
            self.launch(request, ram, Some(state)).await
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        request: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async move {
            let (held, ram) = launch::find(request, pid, started)?;
            let described = self.describe(request).await?;
            let user = Confinement::choose(request);
            hold(held, described, ram, request, user, Begin::AsItIs).await
        }
        .boxed()
    }
}

/// How the guest of a monitor begins.
enum Begin {
    Boot(Box<machine::Config>),
    /// From what lies in [`LOAD_DIR`]; it stays paused.
    Load,
    AsItIs,
}

/// Puts a saved state where the monitor reads it, and can change nothing.
fn place_state(
    request: &VmRequest,
    user: &Confinement,
    config: &machine::Config,
    state: &[u8],
) -> Result<(), DriverError> {
    let dir = request.dir.join(LOAD_DIR);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).map_err(io_error(&dir))?;
    let config = serde_json::to_vec(config).expect("a configuration becomes JSON");
    for (name, content) in [(CONFIG_FILE, config.as_slice()), (STATE_FILE, state)] {
        let path = dir.join(name);
        fs::write(&path, content).map_err(io_error(&path))?;
        user.show(&path)?;
    }
    let path = dir.join(MEMORY_FILE);
    symlink(MEMORY, &path).map_err(io_error(&path))?;
    user.enter(&dir)
}

async fn hold(
    held: Held,
    described: String,
    ram: GuestRam,
    request: &VmRequest,
    user: Confinement,
    begin: Begin,
) -> Result<Vm, DriverError> {
    let pid = held.pid;
    launch::hold(held, PROGRAM, |said| async move {
        let api = Api::open(&request.dir)?;
        let greeted = tokio::time::timeout(OPEN_LIMIT, api.ping()).await;
        greeted.unwrap_or(Err(DriverError::NotReady {
            seconds: OPEN_LIMIT.as_secs(),
        }))?;
        match begin {
            Begin::Boot(config) => {
                api.create(*config).await?;
                api.boot().await?;
                forget_kernel(&request.dir)?;
            }
            Begin::Load => {
                let restored = api.restore(format!("file://{LOAD_DIR}")).await;
                let dir = request.dir.join(LOAD_DIR);
                fs::remove_dir_all(&dir).map_err(io_error(&dir))?;
                restored?;
                forget_kernel(&request.dir)?;
            }
            Begin::AsItIs => {}
        }
        let stream = sockets::connect(&request.dir, CONSOLE_SOCKET, Some(pid)).await?;
        let _ = said.send(stream);
        let dir = request.dir.clone();
        let monitor = CloudHypervisorMonitor::new(dir, pid, described, ram, user, api);
        Ok(Box::new(monitor) as Box<dyn Monitor>)
    })
    .await
}

/// Removes what a guest that resets itself would be started from.
fn forget_kernel(dir: &Path) -> Result<(), DriverError> {
    for name in [KERNEL, INITRAMFS] {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(io_error(&path))?;
    }
    Ok(())
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_used_is_told_with_the_reason() {
        let missing = CloudHypervisor::new(Some("/no/such/cloud-hypervisor".into()));
        let error = missing.version().await.unwrap_err();
        assert!(matches!(error, DriverError::NotInstalled { .. }));
        assert!(error.hint().unwrap().contains("--cloud-hypervisor"));

        let dir = tempfile::tempdir().unwrap();
        let says = |text: &str| {
            let program = dir.path().join(format!("says-{}", text.len()));
            fs::write(&program, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            CloudHypervisor::new(Some(program))
        };
        let error = says("cloud-hypervisor v41.0.0")
            .version()
            .await
            .unwrap_err();
        assert!(matches!(&error, DriverError::TooOld { found, .. } if found == "41.0.0"));
        assert!(error.hint().unwrap().contains("52.0"), "{:?}", error.hint());
        let other = says("something else").version().await;
        assert!(matches!(other, Err(DriverError::Control { .. })));
        let new = says("cloud-hypervisor v54.0.0-12-gabc").version().await;
        assert_eq!(new.unwrap(), "cloud-hypervisor 54.0.0-12-gabc");
    }

    #[tokio::test]
    async fn emulation_is_refused() {
        let driver = CloudHypervisor::new(Some("/bin/true".into()));
        let request = crate::driver::qemu::test_request(Accel::Tcg);
        let error = driver.start(&request).await.unwrap_err();
        assert!(matches!(error, DriverError::NeedsKvm { .. }), "{error}");
    }
}
