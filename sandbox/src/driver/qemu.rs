//! QEMU's `microvm` machine.
//!
//! The machine has no BIOS options, no PCI, no network device: a serial console, one
//! virtio-serial port and the disks. What speaks for each word of the command line is in
//! `docs/sandbox.md`.
//!
//! How the monitor is held in:
//! - it works in a directory that it can neither list nor change, is given only names relative to
//!   it, and needs no right to enter the data directory; what it makes itself, its sockets, lies
//!   in a directory below;
//! - where the daemon is root, it runs as a user of its own (one per sandbox, without a name or a
//!   password), without capabilities, in network, IPC and UTS namespaces of its own;
//! - QEMU's own seccomp filter forbids it to start processes or to gain rights;
//! - its guest's memory and its control socket are handed to it open.
//!
//! How it outlives its daemon: it is in a session of its own, nothing that it needs ends with the
//! daemon, and whatever the daemon listened to is a socket that the next one can open again.

mod command_line;
mod confine;
mod device_file;
mod monitor;
mod sockets;
mod watch;

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use tokio::{
    process::{Child, Command},
    sync::{OnceCell, oneshot},
};

use super::{
    Arriving, Capabilities, Console, DriverError, GuestRam, Monitor, SavedState, Tether, Vm,
    VmRequest, VmmDriver,
    cage::{Cage, Share},
    process_start,
    qmp::Qmp,
};
use crate::{
    Accel,
    command::{Helper, find_program},
    staging::link_or_copy,
};
use confine::Confinement;
use monitor::{QemuMonitor, control};
use watch::Process;

/// The program looked for on `PATH`.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// Time the monitor has to answer; it takes milliseconds on an idle host.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Time in which a monitor that hung up may still say why it ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Listens before the monitor runs, so that there is nothing to wait for.
const CONTROL_SOCKET: &str = "control.sock";
/// What the monitor makes itself.
const RUN_DIR: &str = "run";
const CHANNEL_SOCKET: &str = "run/channel.sock";
const CONSOLE_SOCKET: &str = "run/console.sock";

/// Starts QEMU microvms.
#[derive(Debug)]
pub struct Qemu {
    program: Option<PathBuf>,
    version: OnceCell<String>,
}

impl Qemu {
    /// Uses this program, or the one on `PATH`.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self {
            program,
            version: OnceCell::new(),
        }
    }

    /// Returns the program, if it is there.
    ///
    /// # Errors
    /// [`DriverError::NotInstalled`].
    pub fn program(&self) -> Result<PathBuf, DriverError> {
        let name = match &self.program {
            Some(path) => path.display().to_string(),
            None => PROGRAM.to_owned(),
        };
        find_program(&name).ok_or(DriverError::NotInstalled { program: name })
    }

    async fn read_version(&self) -> Result<String, DriverError> {
        let program = self.program()?;
        let said = Helper::new(&program.to_string_lossy())
            .arg("--version")
            .limit(Duration::from_secs(20))
            .output()
            .await?;
        let text = String::from_utf8_lossy(&said);
        let version = text
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("unknown");
        Ok(format!(
            "qemu {}",
            version.chars().take(32).collect::<String>()
        ))
    }

    /// Starts a monitor and lets its guest begin.
    async fn launch(
        &self,
        request: &VmRequest,
        ram: GuestRam,
        begin: Begin<'_>,
    ) -> Result<Vm, DriverError> {
        let program = self.program()?;
        let machine = self.describe(request).await?;
        let (has, needs) = (ram.size(), u64::from(request.memory_mib) << 20);
        if has != needs {
            return Err(DriverError::Saved {
                what: format!("its memory has {has} bytes, the guest {needs}"),
            });
        }
        let user = Confinement::choose(request);
        let disks = prepare(request, &user)?;
        let listener = sockets::listen(&request.dir, CONTROL_SOCKET)?;
        let mut words = user.wrap(largest_disk(request))?;
        words.push(program.into_os_string());
        let incoming = matches!(begin, Begin::Load(_));
        let arguments = command_line::arguments(request, &disks, incoming)?;
        words.extend(arguments.into_iter().map(OsString::from));
        let console = Console::create(&request.console).map_err(io_error(&request.console))?;
        let child = spawn(&words, &request.dir, &ram, listener)?;
        let pid = child.id().ok_or(DriverError::Host {
            what: "the monitor's process id",
        })?;
        let share = Share {
            memory_mib: request.memory_mib,
            vcpus: request.vcpus,
        };
        let held = Held {
            pid,
            started: process_start(pid).unwrap_or_default(),
            machine,
            ram,
            cage: Cage::around(pid, &cage_name(request, pid), share),
        };
        hold(Process::Ours(child), held, request, console, begin).await
    }

    async fn describe(&self, request: &VmRequest) -> Result<String, DriverError> {
        Ok(command_line::describe(request, &self.version().await?))
    }

    async fn take_over(
        &self,
        request: &VmRequest,
        pid: u32,
        started: u64,
    ) -> Result<Vm, DriverError> {
        let cage = Cage::find(&cage_name(request, pid));
        let Some(process) = Process::find(pid, started) else {
            cage.remove();
            return Err(DriverError::Gone { pid });
        };
        let memory = format!("/proc/{pid}/fd/0");
        let memory = Path::new(&memory);
        let ram = GuestRam::adopt(memory, request.memory_mib).map_err(io_error(memory))?;
        let console = Console::resume(&request.console).map_err(io_error(&request.console))?;
        let held = Held {
            pid,
            started,
            machine: self.describe(request).await?,
            ram,
            cage,
        };
        hold(process, held, request, console, Begin::AsItIs).await
    }
}

impl VmmDriver for Qemu {
    fn name(&self) -> &'static str {
        "qemu-microvm"
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            self.version
                .get_or_try_init(|| self.read_version())
                .await
                .cloned()
        }
        .boxed()
    }

    fn cpu_model(&self, accel: Accel) -> &'static str {
        cpu_model(accel)
    }

    fn machine(&self, accel: Accel) -> String {
        command_line::machine(accel)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            snapshot: true,
            fork: true,
            reattach: true,
        }
    }

    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            let ram = GuestRam::create(request.memory_mib).map_err(io_error(&request.dir))?;
            self.launch(request, ram, Begin::Boot).await
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
            let machine = self.describe(request).await?;
            let state = device_file::read(&saved.device, &machine)?;
            let ram = saved.ram.try_clone().map_err(io_error(&request.dir))?;
            let begin = Begin::Load(async { Ok(state) }.boxed());
            self.launch(request, ram, begin).await
        }
        .boxed()
    }

    fn restore_arriving<'a>(
        &'a self,
        request: &'a VmRequest,
        arriving: Arriving<'a>,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            let machine = self.describe(request).await?;
            let state = async move { device_file::read(&arriving.whole.await?, &machine) };
            let begin = Begin::Load(state.boxed());
            self.launch(request, arriving.ram, begin).await
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        request: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        self.take_over(request, pid, started).boxed()
    }
}

fn cpu_model(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "host",
        // x86-64-v2 without the wide vectors that emulation makes slower, and with a source of
        // randomness for the guest's first key.
        Accel::Auto | Accel::Tcg => "Nehalem-v1,+rdrand",
    }
}

/// How the guest of a monitor begins.
enum Begin<'a> {
    Boot,
    /// From the state of its devices, which may be on its way; it stays paused.
    Load(BoxFuture<'a, Result<File, DriverError>>),
    AsItIs,
}

/// What a monitor is known by.
struct Held {
    pid: u32,
    started: u64,
    machine: String,
    ram: GuestRam,
    cage: Cage,
}

/// Names the groups of one monitor, also for the next daemon.
fn cage_name(request: &VmRequest, pid: u32) -> String {
    format!("{}-{pid}", request.id)
}

fn largest_disk(request: &VmRequest) -> u64 {
    let size = |disk: &super::Disk| fs::metadata(&disk.path).map_or(0, |meta| meta.len());
    let writable = request.disks.iter().filter(|disk| disk.writable);
    writable.map(size).max().unwrap_or(0)
}

/// Opens what a monitor offers and lets its guest begin. A monitor of ours that fails is ended; a
/// foreign one is left as it is.
async fn hold(
    process: Process,
    held: Held,
    request: &VmRequest,
    console: Console,
    begin: Begin<'_>,
) -> Result<Vm, DriverError> {
    let Held { pid, started, .. } = held;
    let tether = Tether::default();
    let (told, ended) = tokio::sync::watch::channel(None);
    let (said, listen) = oneshot::channel();
    tokio::spawn(watch::watch_over(
        process,
        held.cage,
        console,
        listen,
        tether.clone(),
        told,
    ));
    // Until there is a `Vm` to drop.
    let guard = match begin {
        Begin::AsItIs => &tether.release,
        Begin::Boot | Begin::Load(_) => &tether.kill,
    };
    let guard = guard.clone().drop_guard();
    let foreign = matches!(begin, Begin::AsItIs);
    let opened = async {
        let open = async {
            let stream = sockets::connect(&request.dir, CONTROL_SOCKET, None).await?;
            Qmp::open(stream).await.map_err(control("greet"))
        };
        let qmp = tokio::time::timeout(OPEN_LIMIT, open).await;
        let qmp = qmp.unwrap_or(Err(DriverError::NotReady {
            seconds: OPEN_LIMIT.as_secs(),
        }))?;
        let stream = sockets::connect(&request.dir, CONSOLE_SOCKET, Some(pid)).await?;
        let _ = said.send(stream);
        let dir = request.dir.clone();
        let monitor = QemuMonitor::new(dir, pid, held.machine, held.ram, qmp).await?;
        match begin {
            Begin::Boot => monitor.resume().await?,
            Begin::Load(state) => monitor.load(&state.await?).await?,
            Begin::AsItIs => {}
        }
        Ok(monitor)
    };
    match opened.await {
        Ok(monitor) => {
            guard.disarm();
            Ok(Vm::new(pid, started, ended, tether, Box::new(monitor)))
        }
        Err(error) if foreign => Err(error),
        Err(error @ DriverError::Saved { .. }) => {
            drop(guard);
            let _ = ended.clone().wait_for(Option::is_some).await;
            Err(error)
        }
        Err(error) => {
            // A monitor that failed hangs up first and is reaped a moment later.
            let mut end = ended.clone();
            let over = tokio::time::timeout(LAST_WORDS, end.wait_for(Option::is_some)).await;
            let how = over.ok().and_then(Result::ok).and_then(|how| how.clone());
            drop(guard);
            // An error means that the watcher is gone, and the monitor with it.
            let _ = ended.clone().wait_for(Option::is_some).await;
            Err(match how {
                Some(how) => DriverError::Ended { how },
                None => error,
            })
        }
    }
}

/// Starts the monitor: its input is the guest's memory, its output the socket it is controlled by.
fn spawn(
    words: &[OsString],
    dir: &Path,
    ram: &GuestRam,
    listener: OwnedFd,
) -> Result<Child, DriverError> {
    let memory = ram.descriptor().map_err(io_error(dir))?;
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(dir)
        .env_clear()
        .stdin(Stdio::from(memory))
        .stdout(Stdio::from(listener))
        .stderr(Stdio::piped());
    command.spawn().map_err(|source| DriverError::Spawn {
        program: words[0].to_string_lossy().into_owned(),
        source,
    })
}

/// Puts everything the monitor opens into its directory; returns the disks' names there.
fn prepare(request: &VmRequest, user: &Confinement) -> Result<Vec<String>, DriverError> {
    let place = |from: &Path, name: &str| {
        let to = request.dir.join(name);
        // A second try finds the first one's link.
        let _ = fs::remove_file(&to);
        link_or_copy(from, &to).map_err(io_error(&to))
    };
    place(&request.kernel, "kernel")?;
    place(&request.initramfs, "initramfs")?;
    let mut names = Vec::new();
    for (number, disk) in request.disks.iter().enumerate() {
        if disk.writable {
            let name = disk.path.file_name().unwrap_or_default().to_string_lossy();
            user.own(&disk.path)?;
            names.push(name.into_owned());
        } else {
            let name = format!("disk{number}");
            place(&disk.path, &name)?;
            names.push(name);
        }
    }
    user.enter(&request.dir)?;
    user.give(&request.dir.join(RUN_DIR))?;
    for socket in [CHANNEL_SOCKET, CONSOLE_SOCKET] {
        let _ = fs::remove_file(request.dir.join(socket));
    }
    Ok(names)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DriverError + '_ {
    move |source| DriverError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_program_is_told_with_the_package() {
        let qemu = Qemu::new(Some("/no/such/qemu".into()));
        let error = qemu.version().await.unwrap_err();
        assert!(matches!(error, DriverError::NotInstalled { .. }));
        assert!(error.hint().unwrap().contains("qemu-system-x86"));
    }
}
