//! Volumes in a guest: served to it as it reads, and taken back as it changed them.
//!
//! The guest is hostile. It is given entries and bytes of the one tree that was attached, and
//! what it says it changed is bounded, and parsed into paths that stay in the volume, before it
//! becomes a tree.

mod checkpoint;
mod serve;

use std::sync::Arc;

use rhizome_guest::wire::VolumeOpen;
use tokio::{io::AsyncReadExt, sync::Mutex};

use super::{Content, VersionId, VolumeError};
use crate::{
    channel::{FileError, GuestChannel},
    chunks::ReadChunks,
};

use checkpoint::Seen;
pub use checkpoint::{Taken, Target};
use serve::Server;

/// How a volume is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which volume.
    pub volume: [u8; 16],
    /// Absolute path in the guest.
    pub path: String,
    /// Whether it may be changed.
    pub writable: bool,
}

/// A volume in a guest.
///
/// Dropping it ends the service, not the attachment: attach it again in the same way, over the
/// same channel or another, and the guest goes on.
#[derive(Debug)]
pub struct Attachment {
    mount: Mount,
    base: Content,
    chunks: Arc<dyn ReadChunks>,
    server: Server,
    /// What the last checkpoint found; one is taken at a time.
    seen: Mutex<Seen>,
}

/// Longest mark that is believed to be one.
const MAX_MARK: u64 = 32;

/// Why a volume could not be attached, detached or taken back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The guest refused, failed or is gone.
    #[error("the volume cannot be used in the sandbox")]
    Guest(#[from] FileError),
    /// The guest could not mount it.
    #[error("the sandbox cannot mount the volume: {message}")]
    Mount {
        /// Why, in the guest's words.
        message: String,
    },
    /// The guest ended the stream before it had mounted the volume.
    #[error("the sandbox stopped mounting the volume")]
    Gone,
    /// What the guest says it changed cannot be, or cannot be stored.
    #[error("the changes cannot be stored")]
    Volume(#[from] VolumeError),
    /// It is read-only.
    #[error("the volume is attached read-only")]
    ReadOnly,
    /// The work was cancelled.
    #[error("the node is stopping")]
    Stopping,
}

impl AttachError {
    /// Returns what the reader can do about it, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Guest(error) => error.hint(),
            Self::Volume(error) => error.hint(),
            Self::ReadOnly => Some("attach it without `--read-only`".to_owned()),
            _ => None,
        }
    }
}

impl Attachment {
    /// Attaches the tree `base` in a guest; returns once it is mounted. `chunks` reads the packs
    /// that it lies in, or brings them when something in them is read. A volume that is attached in the same way already is served again.
    ///
    /// # Errors
    /// [`AttachError::Guest`], [`AttachError::Mount`], [`AttachError::Gone`].
    pub async fn open(
        channel: &GuestChannel,
        mount: Mount,
        base: Content,
        chunks: Arc<dyn ReadChunks>,
    ) -> Result<Self, AttachError> {
        let open = VolumeOpen {
            volume: mount.volume,
            base: *base.digest().as_bytes(),
            path: mount.path.clone().into_bytes(),
            writable: mount.writable,
        };
        let stream = channel.open_volume(&open).await?;
        let server = Server::start(stream, base.clone(), Arc::clone(&chunks)).await?;
        Ok(Self {
            mount,
            base,
            chunks,
            server,
            seen: Mutex::default(),
        })
    }

    /// Returns how it is attached.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns the tree that was attached.
    #[must_use]
    pub fn base(&self) -> &Content {
        &self.base
    }

    /// Waits until the guest, or the channel, has ended the service.
    pub async fn ended(&self) {
        self.server.ended().await;
    }

    /// Stores what the volume is now: the tree that was attached, with what was changed since.
    ///
    /// # Errors
    /// Any [`AttachError`] but those of attaching.
    ///
    /// # Cancel safety
    /// A dropped future stores nothing that stays; the next call begins anew.
    pub async fn checkpoint(
        &self,
        channel: &GuestChannel,
        target: Target,
    ) -> Result<Taken, AttachError> {
        if !self.mount.writable {
            return Err(AttachError::ReadOnly);
        }
        let mut seen = self.seen.lock().await;
        checkpoint::take(self, channel, target, &mut seen).await
    }

    /// Has the next checkpoint read every changed file again, and lets go of the packs that the
    /// last ones put them into.
    pub async fn begin_anew(&self) {
        *self.seen.lock().await = Seen::default();
    }

    /// Writes into the guest which version its changes have become. It lies beside the changes and
    /// so goes with them through every sleep: one who wakes an older sleep finds an older mark.
    ///
    /// # Errors
    /// [`AttachError::Guest`], [`AttachError::ReadOnly`].
    pub async fn set_mark(
        &self,
        channel: &GuestChannel,
        version: &VersionId,
    ) -> Result<(), AttachError> {
        let path = self.mark()?;
        let written = channel.write_file(&path, 0o600, false, &version.as_bytes()[..]);
        written.await?;
        Ok(())
    }

    /// Returns the mark, if there is one. It is the guest's word: believe it no further than that
    /// it names a version of this volume.
    ///
    /// # Errors
    /// [`AttachError::Guest`], [`AttachError::ReadOnly`].
    pub async fn find_mark(
        &self,
        channel: &GuestChannel,
    ) -> Result<Option<VersionId>, AttachError> {
        let path = self.mark()?;
        let file = match channel.read_file(&path).await {
            Ok(file) => file,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_MARK + 1).read_to_end(&mut bytes).await;
        read.map_err(|source| FileError::Source { path, source })?;
        let mark = <[u8; 32]>::try_from(bytes.as_slice()).ok();
        Ok(mark.map(VersionId::from_bytes))
    }

    /// Whether nothing was changed since it was attached.
    ///
    /// # Errors
    /// [`AttachError::Guest`].
    pub async fn is_unchanged(&self, channel: &GuestChannel) -> Result<bool, AttachError> {
        let changes = channel
            .scan_volume(self.mount.volume, &self.mount.path)
            .await?;
        Ok(changes.is_empty())
    }

    fn mark(&self) -> Result<String, AttachError> {
        if !self.mount.writable {
            return Err(AttachError::ReadOnly);
        }
        let volume = self.mount.volume.iter().map(|byte| format!("{byte:02x}"));
        let volume: String = volume.collect();
        Ok(format!("/run/rhizome/volumes/{volume}/changes/mark"))
    }

    /// Detaches it; with `force` also while programs use it. What was changed since the last
    /// checkpoint is gone.
    ///
    /// # Errors
    /// [`AttachError::Guest`]; the volume then stays attached.
    pub async fn close(&self, channel: &GuestChannel, force: bool) -> Result<(), AttachError> {
        let closed = channel.close_volume(self.mount.volume, force, &self.mount.path);
        closed.await?;
        self.server.stop();
        Ok(())
    }
}
