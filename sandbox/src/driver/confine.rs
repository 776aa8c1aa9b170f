//! Who a monitor runs as, and what it can reach.
//!
//! Where the daemon is root, a monitor has a user of its own, no capability and no way to gain
//! one, and namespaces of its own for network, IPC, host name and mounts. In the last there is
//! nothing but the system: every other directory of the root is empty, the one with the daemon's
//! data among them, so that no path leads there. The monitor works in its own directory all the
//! same: it was entered before, and what is below it is found without a path from the root.
//!
//! Where the daemon is an ordinary user, a monitor is that user, without capabilities or new rights,
//! and in namespaces for network, IPC and host name where the host lets users have such.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Component, Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
    thread,
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::chdir,
    thread::UnshareFlags,
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
};

use super::{DriverError, VmRequest, cage, host, launch::io_error};
use crate::{
    Accel,
    command::{CommandError, find_program},
};

/// First of the user ids that monitors run as: above what systemd and user namespaces hand out.
const FIRST_UID: u32 = 0x7000_0000;
/// How many there are.
const UIDS: u32 = 0x0fff_0000;

/// What of the root a monitor sees: the system that its program is a part of.
const SYSTEM: &[&str] = &[
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "proc", "sbin", "sys", "usr",
];
/// What of these it does not: memory that others share.
const SHARED_MEMORY: &str = "/dev/shm";

/// What an ordinary user's monitor is started with, as a user of its own namespaces.
const APART: [&str; 5] = ["--user", "--map-current-user", "--net", "--ipc", "--uts"];
/// Whether ordinary users may have namespaces here.
static MAY_PART: OnceLock<bool> = OnceLock::new();

/// Who the monitor runs as.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confinement {
    /// User and group, where the daemon may choose.
    uid: Option<u32>,
    /// A group it needs besides.
    group: Option<u32>,
}

impl Confinement {
    pub(super) fn choose(request: &VmRequest) -> Self {
        let bytes = request.id.as_bytes();
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Self {
            uid: rustix::process::geteuid()
                .is_root()
                .then_some(FIRST_UID + number % UIDS),
            group: (request.accel == Accel::Kvm)
                .then(host::kvm_group)
                .flatten(),
        }
    }

    /// Returns the words before the monitor's own command line. Each program becomes the next, so
    /// the process that is started is the monitor in the end.
    pub(super) fn wrap(&self, largest_disk: u64) -> Result<Vec<OsString>, DriverError> {
        let find = |name: &str| {
            find_program(name)
                .map(PathBuf::into_os_string)
                .ok_or_else(|| {
                    DriverError::Command(CommandError::NotFound {
                        program: name.to_owned(),
                    })
                })
        };
        let mut words = vec![find("setsid")?, find("prlimit")?];
        words.extend(cage::rlimits(largest_disk).map(OsString::from));
        if let Some(uid) = self.uid {
            words.push(find("unshare")?);
            words.extend(["--net", "--ipc", "--uts", "--"].map(OsString::from));
            words.push(find("setpriv")?);
            words.push(format!("--reuid={uid}").into());
            words.push(format!("--regid={uid}").into());
            words.push(match self.group {
                Some(group) => format!("--groups={group}").into(),
                None => "--clear-groups".into(),
            });
            words.extend(["--bounding-set=-all", "--inh-caps=-all"].map(OsString::from));
        } else {
            let unshare = find("unshare")?;
            if *MAY_PART.get_or_init(|| may_part(&unshare)) {
                // What it may do in namespaces of its own ends with the next program.
                words.push(unshare);
                words.extend(APART.map(OsString::from));
                words.push("--".into());
            }
            words.push(find("setpriv")?);
        }
        words.extend(["--no-new-privs", "--"].map(OsString::from));
        Ok(words)
    }

    /// Starts the monitor in its directory, apart from what it has no business with.
    pub(super) fn spawn(
        &self,
        mut command: Command,
        dir: &Path,
        program: &Path,
    ) -> io::Result<Child> {
        if self.uid.is_none() {
            return command.current_dir(dir).spawn();
        }
        let runtime = Handle::current();
        // What a thread sees of the file systems is its own to change, and what it starts sees
        // the same; the thread ends with that.
        let spawned = thread::scope(|scope| {
            let spawn = || {
                let _in_runtime = runtime.enter();
                part()?;
                chdir(dir)?;
                hide(program)?;
                command.spawn()
            };
            scope.spawn(spawn).join()
        });
        spawned.unwrap_or_else(|_| Err(io::Error::other("the thread that starts monitors ended")))
    }

    /// Lets the monitor write to a file.
    pub(super) fn own(&self, path: &Path) -> Result<(), DriverError> {
        match self.uid {
            Some(uid) => chown(path, Some(uid), Some(uid)).map_err(io_error(path)),
            None => Ok(()),
        }
    }

    /// Lets the monitor read a file, and not write to it.
    pub(super) fn show(&self, path: &Path) -> Result<(), DriverError> {
        let Some(uid) = self.uid else { return Ok(()) };
        chown(path, None, Some(uid)).map_err(io_error(path))?;
        set_mode(path, 0o640).map_err(io_error(path))
    }

    /// Lets the monitor find files by name in a directory, and neither list nor change it.
    pub(super) fn enter(&self, dir: &Path) -> Result<(), DriverError> {
        let Some(uid) = self.uid else { return Ok(()) };
        chown(dir, None, Some(uid)).map_err(io_error(dir))?;
        set_mode(dir, 0o710).map_err(io_error(dir))
    }

    /// Makes a directory of the monitor's own.
    pub(super) fn give(&self, dir: &Path) -> Result<(), DriverError> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error(dir)(error));
            }
            _ => {}
        }
        set_mode(dir, 0o700).map_err(io_error(dir))?;
        self.own(dir)
    }
}

/// Tries whether this user may have namespaces: kernels, security modules and containers each may
/// forbid it.
fn may_part(unshare: &OsStr) -> bool {
    let tried = std::process::Command::new(unshare)
        .args(APART)
        .args(["--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// Gives this thread file systems and a working directory of its own.
fn part() -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe, for open files that are no longer shared; these stay shared"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?;
    // Nothing that is mounted or hidden here is so elsewhere.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Hides everything of the root that is not of the system, nor where the program lies.
fn hide(program: &Path) -> io::Result<()> {
    let home = program.canonicalize()?;
    let mut hidden = vec![PathBuf::from(SHARED_MEMORY)];
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !is_seen(&entry.file_name().to_string_lossy(), &home) {
            hidden.push(entry.path());
        }
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for dir in hidden.iter().filter(|dir| dir.is_dir()) {
        mount("none", dir, "tmpfs", flags, c"size=4k,mode=0555")?;
    }
    Ok(())
}

fn is_seen(name: &str, program: &Path) -> bool {
    let first = program.components().find_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    SYSTEM.contains(&name) || first.is_some_and(|first| first == name)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sandbox_has_a_user_of_its_own_above_the_hosts() {
        let uid = Confinement::choose(&super::super::qemu::test_request(Accel::Tcg)).uid;
        if let Some(uid) = uid {
            assert!((FIRST_UID..FIRST_UID + UIDS).contains(&uid));
        }
    }

    #[test]
    fn only_the_system_and_the_program_are_seen() {
        let program = Path::new("/opt/qemu/bin/qemu");
        for name in ["usr", "lib64", "opt"] {
            assert!(is_seen(name, program), "{name}");
        }
        for name in ["home", "root", "var", "tmp", "run", "data", "qemu"] {
            assert!(!is_seen(name, program), "{name}");
        }
    }
}
