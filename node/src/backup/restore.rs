//! Making a data directory of a backup, whole or not at all.
//!
//! The files are written beside the directory, under a name that says so, synced, checked, and the
//! whole takes the directory's place by one rename. What an interrupted run left is taken away by
//! the next.
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rhizome_memory::PLACE;
use rustix::fs::FlockOperation;

use super::{
    BackupError, Checked, Contents, Opener,
    unpack::{Place, unpack},
};

/// What is kept free beside what is written, in bytes: the index is made anew.
const SPARE: u64 = 64 * 1024 * 1024;

/// Makes `dir`, which is empty or not there, the data directory of the node in a backup.
///
/// The node's store will know that it was put back, and publish nothing in a space before it was
/// compared with a peer.
///
/// # Errors
/// [`BackupError`]; then `dir` is as it was.
pub(crate) fn restore(
    input: impl Read,
    opener: &Opener,
    dir: &Path,
) -> Result<Checked, BackupError> {
    let dir = std::path::absolute(dir).map_err(BackupError::io("resolve", dir))?;
    is_free(&dir)?;
    let name = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let (Some(parent), Some(name)) = (dir.parent(), name) else {
        return Err(BackupError::NotEmpty(dir));
    };
    let mut draft = Draft {
        dir: parent.join(format!(".{name}.restoring")),
        lock: None,
        open: None,
    };
    let restored = unpack(input, opener, &mut draft).and_then(|checked| {
        draft.mark(&checked)?;
        draft.sync()?;
        is_free(&dir)?;
        fs::rename(&draft.dir, &dir).map_err(BackupError::io("put in place", &dir))?;
        sync_dir(parent)?;
        Ok(checked)
    });
    // Unless it is ours, another process may be filling it.
    if restored.is_err() && draft.lock.is_some() {
        let _ = fs::remove_dir_all(&draft.dir);
    }
    restored
}

/// Fails unless nothing is there.
fn is_free(dir: &Path) -> Result<(), BackupError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(BackupError::NotEmpty(dir.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(BackupError::NotEmpty(dir.to_owned()))
        }
        Err(error) => Err(BackupError::io("look at", dir)(error)),
    }
}

/// Makes the draft directory, empty, and keeps others from it while what is returned lives.
fn take(draft: &Path) -> Result<File, BackupError> {
    let lock = |file: &File| match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
    {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BackupError::Busy(draft.to_owned())),
        Err(errno) => Err(BackupError::io("lock", draft)(errno.into())),
    };
    make_dir(draft)?;
    // The directory itself is locked, so that nothing of ours is left in what it becomes.
    let held = File::open(draft).map_err(BackupError::io("open", draft))?;
    lock(&held)?;
    for entry in fs::read_dir(draft).map_err(BackupError::io("list", draft))? {
        let path = entry.map_err(BackupError::io("list", draft))?.path();
        let removed = match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(BackupError::io("remove", &path))?;
    }
    Ok(held)
}

/// A directory that is being filled; it is not there before something is known to come.
struct Draft {
    dir: PathBuf,
    /// Held open: it keeps others from it.
    lock: Option<File>,
    open: Option<(File, PathBuf)>,
}

impl Place for Draft {
    fn begin(&mut self, contents: &Contents) -> Result<(), BackupError> {
        self.lock = Some(take(&self.dir)?);
        let needed = contents.bytes()?.saturating_add(SPARE);
        let stat = rustix::fs::statvfs(&self.dir)
            .map_err(|errno| BackupError::io("look at", &self.dir)(errno.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        match needed > free {
            true => Err(BackupError::NoRoom {
                path: self.dir.clone(),
                needed,
                free,
            }),
            false => Ok(()),
        }
    }

    fn file(&mut self, path: &str) -> Result<Box<dyn Write + '_>, BackupError> {
        let at = self.dir.join(path);
        if let Some(parent) = at.parent() {
            make_dir(parent)?;
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&at);
        let file = file.map_err(BackupError::io("create", &at))?;
        let (file, _) = self.open.insert((file, at));
        Ok(Box::new(file))
    }

    fn whole(&mut self) -> Result<(), BackupError> {
        match self.open.take() {
            Some((file, path)) => file.sync_all().map_err(BackupError::io("sync", &path)),
            None => Ok(()),
        }
    }
}

impl Draft {
    /// Has the store know that it is a copy.
    fn mark(&mut self, checked: &Checked) -> Result<(), BackupError> {
        let at = format!("store/{PLACE}");
        let line = format!("backup {}", checked.contents.made_ms);
        let written = self.file(&at)?.write_all(line.as_bytes());
        written.map_err(BackupError::io("write", Path::new(&at)))?;
        self.whole()
    }

    /// Makes every name durable, the innermost first.
    fn sync(&self) -> Result<(), BackupError> {
        let mut dirs = vec![self.dir.clone()];
        let mut at = 0;
        while let Some(dir) = dirs.get(at).cloned() {
            for entry in fs::read_dir(&dir).map_err(BackupError::io("list", &dir))? {
                let path = entry.map_err(BackupError::io("list", &dir))?.path();
                if path.is_dir() {
                    dirs.push(path);
                }
            }
            at += 1;
        }
        dirs.iter().rev().try_for_each(|dir| sync_dir(dir))
    }
}

fn make_dir(dir: &Path) -> Result<(), BackupError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(BackupError::io("create", dir))
}

fn sync_dir(dir: &Path) -> Result<(), BackupError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(BackupError::io("sync", dir))
}
