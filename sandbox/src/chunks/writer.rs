//! Storing chunks.

use super::{ChunkError, ChunkId, PackId};

/// Stores chunks under one key. Several may work at once.
#[derive(Debug)]
pub struct PackWriter {}

/// What a writer was given and what it had to store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStats {
    /// Chunks given.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks that no pack held yet.
    pub new_chunks: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Bytes of the packs written, compressed and sealed.
    pub stored_bytes: u64,
}

impl PackWriter {
    /// Stores a chunk unless a pack has it already; returns its name. Compression and sealing
    /// go on in other threads: only [`Self::finish`] says that it is stored.
    ///
    /// # Errors
    /// [`ChunkError::ChunkTooLarge`]; whatever a chunk before ran into.
    pub fn put(&mut self, _bytes: &[u8]) -> Result<ChunkId, ChunkError> {
        todo!()
    }

    /// Waits until all is durable; returns every pack that a chunk put lies in, older packs
    /// too, sorted.
    ///
    /// The packs are safe from [`super::ChunkStore::gc`] for its grace time: pin them before it ends.
    ///
    /// # Errors
    /// Whatever storing ran into.
    pub fn finish(self) -> Result<Vec<PackId>, ChunkError> {
        todo!()
    }

    /// Like [`Self::finish`], and pins the packs as `name` before anybody can remove them.
    ///
    /// # Errors
    /// Those of [`Self::finish`] and of [`super::ChunkStore::pin`].
    pub fn finish_pinned(self, _name: &str) -> Result<Vec<PackId>, ChunkError> {
        todo!()
    }

    /// Returns what was given and stored so far.
    #[must_use]
    pub fn stats(&self) -> WriteStats {
        todo!()
    }
}
