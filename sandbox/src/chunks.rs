//! Content-addressed chunks in sealed packs: what snapshots and volumes are stored as.
//!
//! A [`ChunkStore`] is a directory of packs. A [`PackWriter`] takes chunks, stores each once
//! under its key, and gives the packs that hold them; a [`ChunkReader`] gives the chunks back,
//! each verified. A pack is named by the hash of its bytes and sealed with a [`StoreKey`], so
//! that any node can hold and pass on what it cannot read (bytes: `docs/chunks.md`).
//!
//! Everything here blocks; call it off the runtime's threads.

mod disk;
mod error;
mod format;
mod gc;
mod id;
mod key;
mod object;
mod pins;
mod reader;
mod store;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{ChunkError, DamagedWhat};
pub use gc::Freed;
pub use id::{ChunkId, PackId, ParseHashError};
pub use key::StoreKey;
pub use reader::{ChunkReader, ReadChunks};
pub use store::{ChunkStore, StoreStats};
pub use writer::{PackWriter, WriteStats};

/// Most bytes of one chunk.
pub const MAX_CHUNK_BYTES: usize = 1024 * 1024;
/// Most bytes of one pack file.
pub const MAX_PACK_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of one object before it is compressed.
pub const MAX_OBJECT_BYTES: usize = 64 * 1024 * 1024;
/// Most bytes of a file of the store: a pack, or an object that does not compress.
pub const MAX_FILE_BYTES: u64 = MAX_OBJECT_BYTES as u64 + 4096;
