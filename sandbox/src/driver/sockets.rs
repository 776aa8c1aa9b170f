//! Sockets in a directory that may lie deeper than the 107 bytes that a socket's path may have:
//! every path goes through the directory's descriptor.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::Path,
};

use tokio::net::UnixStream;

use super::{DriverError, launch::io_error};

/// Opens a socket that listens.
pub(super) fn listen(dir: &Path, name: &str) -> Result<OwnedFd, DriverError> {
    let path = dir.join(name);
    // A second try finds the first one's.
    let _ = fs::remove_file(&path);
    let bound = open_dir(dir).and_then(|dir| UnixListener::bind(through(&dir, name)));
    Ok(bound.map_err(io_error(&path))?.into())
}

/// Connects to a socket; with `monitor`, only if it is that process that listens there: it owns
/// the directory, and could have put a way to another's socket in its place.
pub(super) async fn connect(
    dir: &Path,
    name: &str,
    monitor: Option<u32>,
) -> Result<UnixStream, DriverError> {
    let path = dir.join(name);
    let connected = async {
        let dir = open_dir(dir)?;
        let stream = UnixStream::connect(through(&dir, name)).await?;
        if let Some(pid) = monitor {
            let listens = stream.peer_cred()?.pid();
            if listens.and_then(|listens| u32::try_from(listens).ok()) != Some(pid) {
                return Err(io::Error::other("another process listens there"));
            }
        }
        Ok(stream)
    };
    connected.await.map_err(io_error(&path))
}

fn open_dir(dir: &Path) -> io::Result<File> {
    File::open(dir)
}

fn through(dir: &File, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deep_directory_and_the_right_process() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("d".repeat(200));
        fs::create_dir(&deep).unwrap();
        let _listener = listen(&deep, "x.sock").unwrap();
        let us = std::process::id();
        assert!(connect(&deep, "x.sock", Some(us)).await.is_ok());
        assert!(connect(&deep, "x.sock", None).await.is_ok());
        assert!(connect(&deep, "x.sock", Some(1)).await.is_err());
        assert!(connect(&deep, "y.sock", None).await.is_err());
    }
}
