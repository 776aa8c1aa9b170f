//! Why something could not be written.

use std::{io, sync::Arc};

/// Why nothing of a batch was stored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The write failed; earlier data is intact and later writes may succeed.
    #[error("cannot write to the store")]
    Write(#[source] Arc<io::Error>),
    /// The disk did not confirm the write; the store takes no more until it is opened again.
    #[error("the disk did not confirm a write")]
    Sync(#[source] Arc<io::Error>),
    /// An earlier write was not confirmed, so the store takes no more until it is opened again.
    #[error("the store takes no writes since the disk failed")]
    ReadOnly,
    /// An earlier write failed while this one was being prepared upon it.
    #[error("an earlier write failed, and this one was built upon it")]
    Interrupted,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl LogError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Write(source) if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some space on the disk of the data directory, then try again".into())
            }
            Self::Write(_) => Some("check the disk of the data directory, then try again".into()),
            Self::Sync(_) | Self::ReadOnly => Some(
                "check the disk, then restart the node: what was acknowledged is safe, and what \
                 was not is looked at anew"
                    .into(),
            ),
            Self::Interrupted => Some("try again".into()),
            Self::Closed => None,
        }
    }
}
