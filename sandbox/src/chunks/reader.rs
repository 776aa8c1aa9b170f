//! Reading chunks back, each verified.

use super::{ChunkError, ChunkId, PackId};

/// Reads the chunks of some packs. Shared by reference between threads.
#[derive(Debug)]
pub struct ChunkReader {}

impl ChunkReader {
    /// Returns a chunk's bytes, verified against its id.
    ///
    /// # Errors
    /// [`ChunkError::MissingChunk`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn read(&self, _id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        todo!()
    }

    /// Whether one of the packs holds this chunk.
    #[must_use]
    pub fn contains(&self, _id: &ChunkId) -> bool {
        todo!()
    }

    /// Returns how long a chunk is, if one of the packs holds it.
    #[must_use]
    pub fn len_of(&self, _id: &ChunkId) -> Option<usize> {
        todo!()
    }

    /// Returns which pack a chunk is read from.
    #[must_use]
    pub fn pack_of(&self, _id: &ChunkId) -> Option<PackId> {
        todo!()
    }
}
