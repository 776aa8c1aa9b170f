//! Every sandbox of one node.

use std::{pin::Pin, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::{io::AsyncRead, sync::mpsc};

use crate::{
    Progress, SandboxConfig, SandboxError, SandboxId, SandboxInfo, SandboxSpec,
    channel::{DoorStream, ExecHandle, ExecRequest},
    image::ImageStore,
    probe::AccelDecision,
};

/// A connection that a guest opened to its node.
#[derive(Debug)]
pub struct DoorConnection {
    /// Whose guest.
    pub sandbox: SandboxId,
    /// The bytes of the connection, both ways.
    pub stream: DoorStream,
}

/// A file on its way out of a guest.
pub struct FileDownload {
    /// Its size in bytes when it was opened; the reader ends there or fails.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
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

/// Every sandbox of one node; cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    images: ImageStore,
}

impl Sandboxes {
    /// Opens the sandbox directory; leftovers of a daemon that died are ended and listed as failed.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub async fn open(
        config: SandboxConfig,
    ) -> Result<(Self, mpsc::Receiver<DoorConnection>), SandboxError> {
        let _ = config;
        todo!()
    }

    /// Makes a sandbox and returns once its guest answers.
    ///
    /// # Errors
    /// Whatever step failed; everything done before it is undone.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own; a dropped future leaves a sandbox to be killed.
    pub async fn create(
        &self,
        spec: SandboxSpec,
        progress: Progress,
    ) -> Result<SandboxInfo, SandboxError> {
        let _ = (spec, progress);
        todo!()
    }

    /// Returns every sandbox, the newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        todo!()
    }

    /// Returns the sandbox with this id, name or unique prefix of an id.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`] or [`SandboxError::Ambiguous`].
    pub fn get(&self, wanted: &str) -> Result<SandboxInfo, SandboxError> {
        let _ = wanted;
        todo!()
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn exec(
        &self,
        id: &SandboxId,
        request: ExecRequest,
    ) -> Result<ExecHandle, SandboxError> {
        let _ = (id, request);
        todo!()
    }

    /// Opens a file of the guest for reading.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn read_file(
        &self,
        id: &SandboxId,
        path: &str,
    ) -> Result<FileDownload, SandboxError> {
        let _ = (id, path);
        todo!()
    }

    /// Writes a file of the guest, whole or not at all; returns its size.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        mode: u32,
        reader: impl AsyncRead + Send + Unpin,
    ) -> Result<u64, SandboxError> {
        let _ = (id, path, mode, reader);
        todo!()
    }

    /// Tells what a path of the guest is; symbolic links are not followed.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn stat(&self, id: &SandboxId, path: &str) -> Result<FileStat, SandboxError> {
        let _ = (id, path);
        todo!()
    }

    /// Lists a directory of the guest, sorted by name.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn list_dir(
        &self,
        id: &SandboxId,
        path: &str,
    ) -> Result<Vec<DirEntry>, SandboxError> {
        let _ = (id, path);
        todo!()
    }

    /// Makes a directory of the guest and those above it; one that exists is fine.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`], or the guest's refusal.
    pub async fn make_dir(
        &self,
        id: &SandboxId,
        path: &str,
        mode: u32,
    ) -> Result<(), SandboxError> {
        let _ = (id, path, mode);
        todo!()
    }

    /// Returns the last mebibyte of the guest's console.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn logs(&self, id: &SandboxId) -> Result<String, SandboxError> {
        let _ = id;
        todo!()
    }

    /// Ends a sandbox; one that has ended already is fine.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`].
    pub async fn kill(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let _ = id;
        todo!()
    }

    /// Ends every sandbox and waits for their monitors to be gone.
    pub async fn shutdown(&self) {
        todo!()
    }

    /// Returns the image store.
    pub fn images(&self) -> &ImageStore {
        &self.inner.images
    }

    /// Decides (once per host boot) how guests run here.
    ///
    /// # Errors
    /// When KVM is demanded and does not work, or nothing can run at all.
    pub async fn accel(&self) -> Result<AccelDecision, SandboxError> {
        todo!()
    }
}
