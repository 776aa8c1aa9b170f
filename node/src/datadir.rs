//! The data directory: where everything of one node lies, and the lock that gives it one owner.
//!
//! ```text
//! daemon.pid      locked while a daemon runs; holds its process id
//! daemon.log      what a detached daemon says
//! config.json     settings (crate::config)
//! api.sock        the API; elsewhere if the path is too long, then api.path names it
//! keys.json       how the keys lie, unless they lie plain (crate::vault)
//! node.key        who this node is
//! agent.key       the agent it speaks as when none is named
//! agents/*.key    the other agents of this node
//! root.key        the mesh's root, on the node that founded it
//! next-root.key   its successor, pre-committed in the genesis record
//! store/          the replica's: segments, index, bodies, view
//! net/            the mesh's: address book, blobs
//! tokens.json     what opens the API over TCP, as hashes
//! idempotency.log requests with a key, and what was answered
//! audit/          who did what here
//! e2b/            what clients of E2B said of their sandboxes; the authority of its TLS
//! sandboxes/ images/
//! ```
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

/// The longest path a Unix socket can be bound to, in bytes, without the final zero.
const MAX_SOCKET_PATH: usize = 107;

/// Returns the data directory used when none is given.
///
/// `$XDG_DATA_HOME/rhizome`, else `~/.local/share/rhizome`; root's is `/var/lib/rhizome`.
/// `None` if there is no home to put it in.
pub fn default_data_dir(
    is_root: bool,
    env: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Option<PathBuf> {
    if is_root {
        return Some(PathBuf::from("/var/lib/rhizome"));
    }
    let absolute = |name: &str| {
        env(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|share| share.join("rhizome"))
}

/// Returns [`default_data_dir`] of this very process.
pub fn this_users_data_dir() -> Option<PathBuf> {
    default_data_dir(rustix::process::geteuid().is_root(), |name| {
        std::env::var_os(name)
    })
}

/// Returns where the API of the daemon on `dir` listens, whether or not one runs.
///
/// # Errors
/// [`DataDirError::Io`] if the pointer file is there and cannot be read.
pub fn socket_of(dir: &Path) -> Result<PathBuf, DataDirError> {
    let pointer = dir.join("api.path");
    match fs::read(&pointer) {
        Ok(path) => Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&path))),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(dir.join("api.sock")),
        Err(source) => Err(DataDirError::Io {
            what: "read",
            path: pointer,
            source,
        }),
    }
}

/// A data directory that this process owns until the value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    // Closing it gives the lock up; the kernel does so too when the process dies.
    lock: File,
    socket: PathBuf,
}

impl DataDir {
    /// Makes the directory if needed (0700) and takes its lock.
    ///
    /// # Errors
    /// [`DataDirError::Taken`] if another daemon runs on it.
    pub fn lock(path: &Path) -> Result<Self, DataDirError> {
        let at = |what, path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::Io { what, path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(at("create", path))?;
        let path = &fs::canonicalize(path).map_err(at("resolve", path))?;
        let pid_path = path.join("daemon.pid");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&pid_path)
            .map_err(at("open", &pid_path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The holder may be just about to write it.
                let _ = lock.read_to_string(&mut text);
                return Err(DataDirError::Taken {
                    path: path.clone(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(errno) => return Err(at("lock", &pid_path)(errno.into())),
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            // On a full disk the lock still works; only the holder's number is missing.
            .or_else(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(()),
                _ => Err(error),
            })
            .map_err(at("write", &pid_path))?;
        let socket = place_socket(path)?;
        Ok(Self {
            path: path.clone(),
            lock,
            socket,
        })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Returns where the API listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Binds the API's socket (0600); one that a dead daemon left is taken away.
    ///
    /// # Errors
    /// [`DataDirError::Io`] if the system refuses.
    pub fn bind_socket(&self) -> Result<std::os::unix::net::UnixListener, DataDirError> {
        let at = |what| {
            let path = self.socket.clone();
            move |source| DataDirError::Io { what, path, source }
        };
        // We hold the lock, so nobody listens there.
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at("remove the old socket at")(error));
            }
            _ => {}
        }
        // The directory is 0700, so nobody else can connect before the mode is set.
        let listener =
            std::os::unix::net::UnixListener::bind(&self.socket).map_err(at("listen at"))?;
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))
            .map_err(at("protect"))?;
        listener.set_nonblocking(true).map_err(at("listen at"))?;
        Ok(listener)
    }

    /// Returns the bytes that are free for this user on the directory's filesystem.
    ///
    /// # Errors
    /// [`DataDirError::Io`] if the system refuses.
    pub fn free_bytes(&self) -> Result<u64, DataDirError> {
        let stat = rustix::fs::statvfs(&self.path).map_err(|errno| DataDirError::Io {
            what: "look at",
            path: self.path.clone(),
            source: errno.into(),
        })?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = self.lock.set_len(0);
    }
}

/// Decides where the socket goes and leaves a pointer file if that is outside the directory.
fn place_socket(dir: &Path) -> Result<PathBuf, DataDirError> {
    let at = |what, path: &Path| {
        let path = path.to_owned();
        move |source| DataDirError::Io { what, path, source }
    };
    let pointer = dir.join("api.path");
    let near = dir.join("api.sock");
    if near.as_os_str().len() <= MAX_SOCKET_PATH {
        match fs::remove_file(&pointer) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at("remove", &pointer)(error));
            }
            _ => return Ok(near),
        }
    }
    let uid = rustix::process::geteuid();
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.as_os_str().len() < 64)
        .or_else(|| uid.is_root().then(|| PathBuf::from("/run")))
        .filter(|path| path.is_dir())
        .unwrap_or_else(|| PathBuf::from("/tmp"));
    let tag = rhizome_identity::Hash::of(dir.as_os_str().as_bytes()).to_string();
    let runtime = base.join(format!("rhizome-{}-{}", uid.as_raw(), &tag[..16]));
    match fs::DirBuilder::new().mode(0o700).create(&runtime) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // In a directory that others can write to, the name may be somebody else's trap.
            let meta = fs::symlink_metadata(&runtime).map_err(at("look at", &runtime))?;
            if !meta.is_dir() || meta.uid() != uid.as_raw() || meta.mode() & 0o077 != 0 {
                return Err(DataDirError::ForeignRuntimeDir { path: runtime });
            }
        }
        Err(source) => return Err(at("create", &runtime)(source)),
    }
    let far = runtime.join("api.sock");
    fs::write(&pointer, far.as_os_str().as_bytes()).map_err(at("write", &pointer))?;
    Ok(far)
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// Another daemon runs on it.
    #[error(
        "the data directory `{}` belongs to a running daemon{}",
        path.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// The daemon's process id, if it could be read.
        pid: Option<u32>,
    },
    /// The directory for the socket exists and is not ours alone.
    #[error("`{}` exists and belongs to somebody else, or others can enter it", path.display())]
    ForeignRuntimeDir {
        /// Which one.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DataDirError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Taken { .. } => Some(
                "stop that daemon with `rhizome down`, or give this one its own `--data-dir`"
                    .to_owned(),
            ),
            Self::ForeignRuntimeDir { .. } => {
                Some("remove it, or use a data directory with a shorter path".to_owned())
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("choose another directory with `--data-dir` or RHIZOME_DATA".to_owned())
            }
            Self::Io { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_learns_who_the_first_is() {
        let temp = tempfile::tempdir().unwrap();
        let first = DataDir::lock(temp.path()).unwrap();
        let error = DataDir::lock(temp.path()).unwrap_err();
        assert!(
            matches!(error, DataDirError::Taken { pid: Some(pid), .. } if pid == std::process::id()),
            "{error}"
        );
        assert!(error.hint().is_some());
        drop(first);
        DataDir::lock(temp.path()).unwrap();
    }

    #[test]
    fn the_socket_is_private_and_a_stale_one_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::lock(temp.path()).unwrap();
        fs::write(dir.socket(), "left behind").unwrap();
        let _listener = dir.bind_socket().unwrap();
        let mode = fs::metadata(dir.socket()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            socket_of(temp.path()).unwrap(),
            temp.path().canonicalize().unwrap().join("api.sock")
        );
    }

    #[test]
    fn a_long_path_gets_a_socket_elsewhere() {
        let temp = tempfile::tempdir().unwrap();
        let long = temp.path().join("x".repeat(120));
        let dir = DataDir::lock(&long).unwrap();
        assert!(dir.socket().as_os_str().len() <= MAX_SOCKET_PATH);
        let _listener = dir.bind_socket().unwrap();
        assert_eq!(socket_of(&long).unwrap(), dir.socket());
        let runtime = dir.socket().parent().unwrap().to_owned();
        drop(dir);
        fs::remove_dir_all(runtime).unwrap();
    }

    #[test]
    fn the_default_follows_the_environment() {
        let env = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            _ => None,
        };
        let expected = Some(PathBuf::from("/home/ada/.local/share/rhizome"));
        assert_eq!(default_data_dir(false, env), expected);
        assert_eq!(default_data_dir(true, env), Some("/var/lib/rhizome".into()));
        let xdg = |name: &str| (name == "XDG_DATA_HOME").then(|| "/data".into());
        assert_eq!(default_data_dir(false, xdg), Some("/data/rhizome".into()));
        assert_eq!(default_data_dir(false, |_| None), None);
    }
}
