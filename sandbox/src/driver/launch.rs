//! What is the same for every monitor that is a process of its own: where its files lie, how it
//! is started, and how it is held until its end.
//!
//! How a monitor is held in:
//! - it works in a directory that it can neither list nor change, is given only names relative to
//!   it, and needs no right to enter the data directory; what it makes itself, its sockets, lies
//!   in a directory below;
//! - where the daemon is root, it runs as a user of its own (one per sandbox, without a name or a
//!   password), without capabilities, in namespaces of its own ([`super::confine`]);
//! - its guest's memory and its control socket are handed to it open.
//!
//! How it outlives its daemon: it is in a session of its own, nothing that it needs ends with the
//! daemon, and whatever the daemon listened to is a socket that the next one can open again.

use std::{
    ffi::OsString,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    net::UnixStream,
    process::Command,
    sync::{oneshot, watch},
};

use super::{
    Console, DriverError, GuestRam, Monitor, Tether, Vm, VmRequest,
    cage::{Cage, Share},
    confine::Confinement,
    overlay::Overlay,
    process_start, sockets,
    watch::{Process, watch_over},
};
use crate::staging::link_or_copy;

/// Time in which a monitor that hung up may still say why it ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Listens before the monitor runs, so that there is nothing to wait for.
pub(super) const CONTROL_SOCKET: &str = "control.sock";
/// What the monitor makes itself.
pub(super) const RUN_DIR: &str = "run";
/// The guest's channel.
pub(super) const CHANNEL_SOCKET: &str = "run/channel.sock";
/// The guest's console.
pub(super) const CONSOLE_SOCKET: &str = "run/console.sock";
/// The names that the kernel and the initial file system have in the VM's directory.
pub(super) const KERNEL: &str = "kernel";
pub(super) const INITRAMFS: &str = "initramfs";

/// A monitor that was found or started, and that nobody watches yet.
pub(super) struct Held {
    pub(super) process: Process,
    pub(super) pid: u32,
    pub(super) started: u64,
    cage: Cage,
    console: Console,
}

impl Held {
    /// Whether a former daemon started it.
    fn is_foreign(&self) -> bool {
        matches!(self.process, Process::Foreign(_))
    }
}

/// Puts everything the monitor opens into its directory; returns the disks' names there.
pub(super) fn prepare(request: &VmRequest, user: &Confinement) -> Result<Vec<String>, DriverError> {
    let place = |from: &Path, name: &str| {
        let to = request.dir.join(name);
        // A second try finds the first one's link.
        let _ = fs::remove_file(&to);
        link_or_copy(from, &to).map_err(io_error(&to))
    };
    place(&request.kernel, KERNEL)?;
    place(&request.initramfs, INITRAMFS)?;
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

/// Names the socket in the VM's directory at which a disk is served.
pub(super) fn disk_socket(number: u32) -> String {
    format!("disk{number}.sock")
}

/// Opens the socket at which a disk of this VM is served: to its monitor, and to nobody else where
/// the daemon is root.
///
/// # Errors
/// [`DriverError::Io`].
pub(crate) fn open_disk_socket(request: &VmRequest, number: u32) -> Result<OwnedFd, DriverError> {
    let name = disk_socket(number);
    let listener = sockets::listen(&request.dir, &name)?;
    Confinement::choose(request).own(&request.dir.join(name))?;
    Ok(listener)
}

/// Refuses a memory that is not the guest's.
pub(super) fn fits(ram: &GuestRam, request: &VmRequest) -> Result<(), DriverError> {
    let (has, needs) = (ram.size(), u64::from(request.memory_mib) << 20);
    if has == needs {
        return Ok(());
    }
    Err(DriverError::Saved {
        what: format!("its memory has {has} bytes, the guest {needs}"),
    })
}

/// Returns the size of the largest file that a guest writes.
pub(super) fn largest_disk(request: &VmRequest) -> u64 {
    let size = |disk: &super::Disk| fs::metadata(&disk.path).map_or(0, |meta| meta.len());
    let writable = request.disks.iter().filter(|disk| disk.writable);
    writable.map(size).max().unwrap_or(0)
}

/// Starts a monitor: its input is the guest's memory, its output the socket it is controlled by.
///
/// `largest_file` bounds what it may write to one file.
pub(super) fn start(
    program: PathBuf,
    arguments: Vec<String>,
    request: &VmRequest,
    user: &Confinement,
    ram: &GuestRam,
    largest_file: u64,
) -> Result<Held, DriverError> {
    let listener = sockets::listen(&request.dir, CONTROL_SOCKET)?;
    let mut words = user.wrap(largest_file)?;
    words.push(program.clone().into_os_string());
    words.extend(arguments.into_iter().map(OsString::from));
    let console = Console::create(&request.console).map_err(io_error(&request.console))?;
    let memory = ram.descriptor().map_err(io_error(&request.dir))?;
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .stdin(Stdio::from(memory))
        .stdout(Stdio::from(listener))
        .stderr(Stdio::piped());
    let child = user.spawn(command, &request.dir, &program);
    let child = child.map_err(|source| DriverError::Spawn {
        program: program.to_string_lossy().into_owned(),
        source,
    })?;
    let pid = child.id().ok_or(DriverError::Host {
        what: "the monitor's process id",
    })?;
    let share = Share {
        memory_mib: request.memory_mib,
        vcpus: request.vcpus,
        holes_bytes: ram.holes().map_err(io_error(&request.dir))?,
    };
    Ok(Held {
        process: Process::Ours(child),
        pid,
        started: process_start(pid).unwrap_or_default(),
        cage: Cage::around(pid, &cage_name(request, pid), share),
        console,
    })
}

/// Finds a monitor that another daemon started, with its guest's memory.
pub(super) fn find(
    request: &VmRequest,
    pid: u32,
    started: u64,
) -> Result<(Held, GuestRam), DriverError> {
    let cage = Cage::find(&cage_name(request, pid));
    let Some(process) = Process::find(pid, started) else {
        cage.remove();
        return Err(DriverError::Gone { pid });
    };
    let memory = format!("/proc/{pid}/fd/0");
    let memory = Path::new(&memory);
    let ram = GuestRam::adopt(memory, request.memory_mib, Overlay { pid, started })
        .map_err(io_error(memory))?;
    let console = Console::resume(&request.console).map_err(io_error(&request.console))?;
    let held = Held {
        process,
        pid,
        started,
        cage,
        console,
    };
    Ok((held, ram))
}

/// Names the groups of one monitor, also for the next daemon.
fn cage_name(request: &VmRequest, pid: u32) -> String {
    format!("{}-{pid}", request.id)
}

/// Watches over a monitor while `open` opens what it offers and lets its guest begin; `open` is
/// handed where the console's stream is to go. A monitor of ours that fails is ended; a foreign
/// one is left as it is.
pub(super) async fn hold<F>(
    held: Held,
    label: &'static str,
    open: impl FnOnce(oneshot::Sender<UnixStream>) -> F,
) -> Result<Vm, DriverError>
where
    F: Future<Output = Result<Box<dyn Monitor>, DriverError>>,
{
    let foreign = held.is_foreign();
    let Held { pid, started, .. } = held;
    let tether = Tether::default();
    let (told, ended) = watch::channel(None);
    let (said, listen) = oneshot::channel();
    tokio::spawn(watch_over(
        held.process,
        held.cage,
        held.console,
        label,
        listen,
        tether.clone(),
        told,
    ));
    // Until there is a `Vm` to drop.
    let guard = match foreign {
        true => &tether.release,
        false => &tether.kill,
    };
    let guard = guard.clone().drop_guard();
    match open(said).await {
        Ok(monitor) => {
            guard.disarm();
            Ok(Vm::new(pid, started, ended, tether, monitor))
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

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DriverError + '_ {
    move |source| DriverError::Io {
        path: path.to_owned(),
        source,
    }
}

pub(super) fn control(command: &'static str) -> impl FnOnce(io::Error) -> DriverError {
    move |source| DriverError::Control { command, source }
}
