//! Directories that appear whole or not at all, also when two daemons make the same one.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

/// How long the lock of a process that was killed may be held by a program that it was starting.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a lock held by another daemon is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// Prefix of unfinished directories; whoever holds the lock removes them.
const UNFINISHED: &str = ".new-";

/// Makes `dir` if need be and takes it for this process alone, until the file is dropped; `None` if
/// another has it.
pub(crate) fn try_lock(dir: &Path) -> io::Result<Option<File>> {
    make_private_dir(dir)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(".lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// As [`try_lock`], but waits a moment for it.
///
/// Whoever is killed, or lets go, while it starts a program leaves a child that holds the lock until
/// it has become that program.
pub(crate) fn lock_soon(dir: &Path) -> io::Result<Option<File>> {
    const PAUSE: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        match try_lock(dir)? {
            None if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            taken => return Ok(taken),
        }
    }
}

/// The right to make entries of one directory; released on drop and on death.
#[derive(Debug)]
pub(crate) struct DirLock {
    dir: PathBuf,
    _file: File,
}

impl DirLock {
    /// Makes `dir` if need be and waits for its lock; `waiting` is called once if another holds it.
    pub(crate) async fn acquire(dir: &Path, waiting: impl FnOnce()) -> io::Result<Self> {
        let mut waiting = Some(waiting);
        let file = loop {
            if let Some(file) = try_lock(dir)? {
                break file;
            }
            if let Some(waiting) = waiting.take() {
                waiting();
            }
            tokio::time::sleep(RETRY).await;
        };
        let lock = Self {
            dir: dir.to_owned(),
            _file: file,
        };
        lock.sweep()?;
        Ok(lock)
    }

    /// Removes what a daemon that died left unfinished.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Starts a new entry.
    pub(crate) fn stage(&self) -> io::Result<Staging> {
        let path = self.dir.join(format!("{UNFINISHED}{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        make_private_dir(&path)?;
        Ok(Staging {
            parent: self.dir.clone(),
            path,
        })
    }
}

/// An entry being made; removed on drop unless committed.
#[derive(Debug)]
pub(crate) struct Staging {
    parent: PathBuf,
    path: PathBuf,
}

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the entry its name. One that has the name already stays: it was made from the same
    /// content.
    pub(crate) fn commit(self, name: &str) -> io::Result<PathBuf> {
        let target = self.parent.join(name);
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                File::open(entry.path())?.sync_all()?;
            }
        }
        match fs::rename(&self.path, &target) {
            Ok(()) => File::open(&self.parent)?.sync_all()?,
            Err(_) if target.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(target)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes a directory that only its owner may enter, and those above it.
pub(crate) fn make_private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// Writes a file whole: a reader sees the old content or the new.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&draft, path)
}

/// Hard-links a file, or copies it where the two directories are on different file systems.
pub(crate) fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => fs::copy(from, to).map(|_| ()),
    }
}

/// Returns BLAKE3 of a file, as hex.
pub(crate) fn hash_file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_entry_appears_whole_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        fs::create_dir_all(root.join(".new-1/deep")).unwrap();
        let lock = DirLock::acquire(&root, || {}).await.unwrap();
        assert!(!root.join(".new-1").exists());
        let staging = lock.stage().unwrap();
        fs::write(staging.path().join("part"), "x").unwrap();
        let made = staging.commit("entry").unwrap();
        assert_eq!(fs::read_to_string(made.join("part")).unwrap(), "x");
        // A second maker of the same entry finds it and leaves nothing behind.
        let staging = lock.stage().unwrap();
        fs::write(staging.path().join("part"), "y").unwrap();
        staging.commit("entry").unwrap();
        assert_eq!(fs::read_to_string(root.join("entry/part")).unwrap(), "x");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn a_second_maker_waits() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path(), || {}).await.unwrap();
        let (told, heard) = tokio::sync::oneshot::channel();
        let path = dir.path().to_owned();
        let second = tokio::spawn(async move {
            DirLock::acquire(&path, || told.send(()).unwrap())
                .await
                .unwrap();
        });
        heard.await.unwrap();
        drop(first);
        second.await.unwrap();
    }
}
