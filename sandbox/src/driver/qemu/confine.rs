//! Who a monitor runs as, and what it can reach.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use super::io_error;
use crate::{
    Accel,
    command::{CommandError, find_program},
    driver::{DriverError, VmRequest, cage, host},
};

/// First of the user ids that monitors run as: above what systemd and user namespaces hand out.
const FIRST_UID: u32 = 0x7000_0000;
/// How many there are.
const UIDS: u32 = 0x0fff_0000;

/// Who the monitor runs as.
#[derive(Debug)]
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
            words.push(find("setpriv")?);
        }
        words.extend(["--no-new-privs", "--"].map(OsString::from));
        Ok(words)
    }

    /// Lets the monitor write to a file.
    pub(super) fn own(&self, path: &Path) -> Result<(), DriverError> {
        match self.uid {
            Some(uid) => chown(path, Some(uid), Some(uid)).map_err(io_error(path)),
            None => Ok(()),
        }
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

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sandbox_has_a_user_of_its_own_above_the_hosts() {
        let uid = Confinement::choose(&super::super::command_line::tests::request(Accel::Tcg)).uid;
        if let Some(uid) = uid {
            assert!((FIRST_UID..FIRST_UID + UIDS).contains(&uid));
        }
    }
}
