//! Where a file of the user's is written: there it is whole, or not at all.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::backup::BackupError;

/// Standard output, or a file that gets its name once it is whole.
#[derive(Debug)]
pub(crate) struct Out {
    file: Option<(File, PathBuf, PathBuf)>,
    bytes: u64,
}

impl Out {
    /// Begins to write to `path`; `-` is standard output.
    ///
    /// # Errors
    /// [`BackupError::Io`], also if anything is there.
    pub(crate) fn open(path: &Path) -> Result<Self, BackupError> {
        if path == Path::new("-") {
            return Ok(Self {
                file: None,
                bytes: 0,
            });
        }
        if path.symlink_metadata().is_ok() {
            let error = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(BackupError::io("write", path)(error));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(".part");
        let draft = PathBuf::from(draft);
        // What an interrupted run left; a link that somebody put there is not followed.
        let _ = fs::remove_file(&draft);
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft);
        let file = file.map_err(BackupError::io("write", &draft))?;
        Ok(Self {
            file: Some((file, draft, path.to_owned())),
            bytes: 0,
        })
    }

    /// Gives the file its name, durably; returns its length in bytes.
    pub(crate) fn finish(mut self) -> Result<u64, BackupError> {
        let Some((file, draft, path)) = self.file.take() else {
            io::stdout()
                .flush()
                .map_err(BackupError::io("write", Path::new("-")))?;
            return Ok(self.bytes);
        };
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let named = file
            .sync_all()
            .and_then(|()| fs::rename(&draft, &path))
            .and_then(|()| File::open(parent)?.sync_all());
        if named.is_err() {
            let _ = fs::remove_file(&draft);
        }
        named.map_err(BackupError::io("write", &path))?;
        Ok(self.bytes)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.file {
            Some((file, _, _)) => file.write(bytes)?,
            None => io::stdout().write(bytes)?,
        };
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some((file, _, _)) => file.flush(),
            None => io::stdout().flush(),
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some((_, draft, _)) = self.file.take() {
            let _ = fs::remove_file(draft);
        }
    }
}
