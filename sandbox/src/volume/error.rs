//! Why a volume could not be read or written.

use std::{io, path::PathBuf};

use super::{MAX_DEPTH, MAX_ENTRIES, MAX_TREE_BYTES};
use crate::chunks::ChunkError;

/// Why a volume could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Chunks could not be read or stored.
    #[error("cannot use the chunk store")]
    Chunks(#[from] ChunkError),
    /// What is stored is no tree, content or version.
    #[error("what is stored is malformed")]
    Malformed(#[from] Malformed),
    /// Nothing is there.
    #[error("there is no `{path}`")]
    NotFound {
        /// Path in the volume.
        path: String,
    },
    /// A directory was needed.
    #[error("`{path}` is no directory")]
    NotADirectory {
        /// Path in the volume.
        path: String,
    },
    /// A path is no path of a volume.
    #[error("`{path}` is no path in a volume: {reason}")]
    BadPath {
        /// What was given.
        path: String,
        /// Why not.
        reason: &'static str,
    },
    /// A tree is larger than any may be.
    #[error(
        "the tree is too large: a volume has at most {MAX_ENTRIES} entries, {MAX_DEPTH} levels, \
         and {MAX_TREE_BYTES} bytes for one directory"
    )]
    TooLarge,
    /// A directory of this host could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Folder {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl VolumeError {
    /// Returns what the reader can do about it, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Chunks(error) => error.hint(),
            Self::TooLarge => Some("split it into several volumes".to_owned()),
            _ => None,
        }
    }

    pub(super) fn folder(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Folder { path, source }
    }
}

/// Which rule stored bytes break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Too few bytes, too many, or of another version.
    #[error("the encoding does not parse")]
    Encoding,
    /// A name is empty, too long, `.`, `..`, or has a slash or a zero byte.
    #[error("an entry has an impossible name")]
    Name,
    /// Entries are not in order, or one comes twice.
    #[error("the entries of a directory are not in order")]
    Order,
    /// A mode, a kind or a link's target is impossible.
    #[error("an entry is impossible")]
    Entry,
    /// The sizes of a content's parts do not add up.
    #[error("the sizes of a content do not add up")]
    Sizes,
}
