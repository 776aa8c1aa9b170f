//! Files and directories of a guest.

use std::pin::Pin;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use super::Sandboxes;
use crate::{SandboxError, SandboxId, channel::FileError};

/// A file on its way out of a guest.
pub struct FileDownload {
    /// Its size in bytes when it was opened.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its content; an end that comes without an error is the file's own.
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
}

impl std::fmt::Debug for FileDownload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDownload")
            .field("size", &self.size)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// What a path in a guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// What is known about a path in a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change, in Unix milliseconds.
    pub modified_ms: u64,
    /// The target of a symbolic link.
    pub link: Option<String>,
}

/// One name in a directory of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its name: never empty, `.`, `..` or with a slash.
    pub name: String,
    /// What it is.
    pub stat: FileStat,
}

impl Sandboxes {
    /// Opens a file of the guest for reading.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn read_file(
        &self,
        id: &SandboxId,
        path: &str,
    ) -> Result<FileDownload, SandboxError> {
        let file = self
            .channel(id)
            .await?
            .read_file(path)
            .await
            .map_err(refused(id))?;
        Ok(FileDownload {
            size: file.stat().size,
            mode: file.stat().mode,
            reader: Box::pin(file),
        })
    }

    /// Writes a file of the guest, whole or not at all; returns its size. Missing directories
    /// above it are made.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        mode: u32,
        reader: impl AsyncRead + Send + Unpin,
    ) -> Result<u64, SandboxError> {
        let channel = self.channel(id).await?;
        let written = channel.write_file(path, mode, true, reader).await;
        written.map_err(refused(id))
    }

    /// Tells what a path of the guest is; symbolic links are not followed.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn stat(&self, id: &SandboxId, path: &str) -> Result<FileStat, SandboxError> {
        self.channel(id)
            .await?
            .stat(path)
            .await
            .map_err(refused(id))
    }

    /// Lists a directory of the guest, sorted by name.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn list_dir(
        &self,
        id: &SandboxId,
        path: &str,
    ) -> Result<Vec<DirEntry>, SandboxError> {
        self.channel(id)
            .await?
            .list(path)
            .await
            .map_err(refused(id))
    }

    /// Makes a directory of the guest and those above it; one that exists is fine.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn make_dir(
        &self,
        id: &SandboxId,
        path: &str,
        mode: u32,
    ) -> Result<(), SandboxError> {
        let made = self.channel(id).await?.make_dir(path, mode, true).await;
        made.map_err(refused(id))
    }

    /// Removes a file, a link, or a directory: an empty one, or with `recursive` all in it.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] or [`SandboxError::File`].
    pub async fn remove(
        &self,
        id: &SandboxId,
        path: &str,
        recursive: bool,
    ) -> Result<(), SandboxError> {
        let removed = self.channel(id).await?.remove(path, recursive).await;
        removed.map_err(refused(id))
    }
}

fn refused(id: &SandboxId) -> impl FnOnce(FileError) -> SandboxError + use<> {
    let id = *id;
    move |source| SandboxError::File { id, source }
}
