//! Why chunks could not be stored or read.

use std::{io, path::PathBuf};

use super::{ChunkId, MAX_CHUNK_BYTES, MAX_OBJECT_BYTES, PackId};

/// Why a chunk, a pack or an object could not be stored or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// A file of the store could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has the store.
    #[error("the chunk store `{}` is in use by another process", path.display())]
    InUse {
        /// The store's directory.
        path: PathBuf,
    },
    /// Packs are not here.
    #[error("{} packs are not here, the first is {}", packs.len(), packs[0])]
    MissingPacks {
        /// Which, at least one.
        packs: Vec<PackId>,
    },
    /// No pack that was named holds this chunk.
    #[error("chunk {chunk} is in none of the packs")]
    MissingChunk {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A pack or object is not what was written.
    #[error("pack {pack} is damaged: {what}")]
    Damaged {
        /// Which one.
        pack: PackId,
        /// What was found.
        what: DamagedWhat,
    },
    /// A file that was to be imported has other bytes than its name says.
    #[error("`{}` is not pack {pack}: its hash differs", path.display())]
    NotThatPack {
        /// What was asked for.
        pack: PackId,
        /// The file.
        path: PathBuf,
    },
    /// A pack or object was sealed with another key.
    #[error("pack {pack} was sealed with another key")]
    OtherKey {
        /// Which one.
        pack: PackId,
    },
    /// A chunk is larger than any chunk may be.
    #[error("a chunk of {bytes} bytes; the most is {MAX_CHUNK_BYTES}")]
    ChunkTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// An object is larger than any object may be.
    #[error("an object of {bytes} bytes; the most is {MAX_OBJECT_BYTES}")]
    ObjectTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A pin file is unreadable: what it held is unknown, so nothing may be removed.
    #[error("the pin `{}` is damaged", path.display())]
    DamagedPin {
        /// The file.
        path: PathBuf,
    },
    /// A pin's name is empty or too long.
    #[error("a pin's name has 1 to {} bytes", super::pins::MAX_NAME)]
    PinName,
    /// The writer failed before; what it was given since is not stored.
    #[error("the writer of these chunks has failed")]
    WriterFailed,
}

/// What is wrong with a damaged pack or object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamagedWhat {
    /// The file is too short or too long for what it should be.
    #[error("its size is impossible")]
    Size,
    /// The first bytes are not those of a pack, or of this version.
    #[error("it does not begin as a pack")]
    Header,
    /// The index at the end is not consistent.
    #[error("its index makes no sense")]
    Index,
    /// The whole file's hash is not its name.
    #[error("its hash is not its name")]
    Hash,
    /// A chunk does not open, or is not the chunk its index says.
    #[error("chunk {0} is not what its index says")]
    Chunk(ChunkId),
    /// An object does not open as the kind that was asked for.
    #[error("it does not open as what was asked for")]
    Object,
}

impl ChunkError {
    /// Returns what the reader can do about it, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::MissingPacks { .. } => {
                Some("fetch the packs from a node that holds them".to_owned())
            }
            Self::Damaged { pack, .. } => Some(format!(
                "fetch pack {pack} again from another node that holds it"
            )),
            Self::DamagedPin { path } => Some(format!(
                "remove `{}` if what it kept is not needed any more",
                path.display()
            )),
            Self::OtherKey { .. } => {
                Some("it belongs to another space, or to another epoch of its key".to_owned())
            }
            _ => None,
        }
    }

    /// Whether something is not here that another node may have.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::MissingPacks { .. } | Self::MissingChunk { .. })
    }

    /// Whether something is here and sealed with another key than the one it was opened with.
    ///
    /// An object does not say more than that it does not open.
    #[must_use]
    pub fn is_of_another_key(&self) -> bool {
        let object = DamagedWhat::Object;
        matches!(self, Self::OtherKey { .. })
            || matches!(self, Self::Damaged { what, .. } if *what == object)
    }

    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
