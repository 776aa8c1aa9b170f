//! A guest's console, kept within bounds.
//!
//! The monitor writes it to a socket and this side to a file, so that neither a flood from the
//! guest nor a monitor taken over can fill the disk or point the log somewhere else. What is said
//! while no daemon listens is lost.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Size at which the log is put aside and a new one begun, in bytes; two are kept.
const ROTATE_BYTES: u64 = 1024 * 1024;

/// The log of one console.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Console {
    /// Begins a new log.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = open_new(path)?;
        let _ = fs::remove_file(older(path));
        Ok(Self {
            path: path.to_owned(),
            file,
            size: 0,
        })
    }

    /// Goes on with a log that a former daemon began.
    ///
    /// # Errors
    /// When the file cannot be opened or made.
    pub fn resume(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            size: file.metadata()?.len(),
            path: path.to_owned(),
            file,
        })
    }

    /// Adds what the console said; a full disk loses it, and nothing else.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.size + bytes.len() as u64 > ROTATE_BYTES {
            let moved = fs::rename(&self.path, older(&self.path));
            match moved.and_then(|()| open_new(&self.path)) {
                Ok(file) => (self.file, self.size) = (file, 0),
                Err(_) => return,
            }
        }
        if self.file.write_all(bytes).is_ok() {
            self.size += bytes.len() as u64;
        }
    }
}

/// Returns the last mebibyte of a console; nothing if there is no log.
///
/// # Errors
/// When the log is there and cannot be read.
pub fn read_console(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    for part in [older(path), path.to_owned()] {
        let mut file = match File::open(part) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(ROTATE_BYTES)))?;
        file.take(ROTATE_BYTES).read_to_end(&mut bytes)?;
    }
    let limit = usize::try_from(ROTATE_BYTES).expect("a mebibyte fits");
    let start = bytes.len().saturating_sub(limit);
    Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
}

fn open_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_the_last_mebibyte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        let mut console = Console::create(&path).unwrap();
        for _ in 0..400 {
            console.push(&[b'x'; 16 * 1024]);
        }
        console.push(b"the end\n");
        let total: u64 = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(total <= 2 * ROTATE_BYTES, "{total}");
        let text = read_console(&path).unwrap();
        assert!(text.len() as u64 <= ROTATE_BYTES);
        assert!(text.ends_with("the end\n"));
    }

    #[test]
    fn the_next_daemon_goes_on_where_the_last_one_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        Console::create(&path).unwrap().push(b"one\n");
        Console::resume(&path).unwrap().push(b"two\n");
        assert_eq!(read_console(&path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn no_log_reads_as_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_console(&dir.path().join("console.log")).unwrap(), "");
    }
}
