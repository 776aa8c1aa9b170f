//! Volumes: directory trees that outlive every sandbox, in versions.
//!
//! A version names a tree, the versions it came from and the packs that all of it lies in.
//! Trees and files are chunks of a [`crate::chunks::ChunkStore`]: what two versions share is
//! stored and sent once, and equal trees have equal digests. What is pure is here (editing,
//! [`diff`], [`merge`], [`history`]); attaching a volume to a guest is in [`attach`]
//! (bytes of the store below: `docs/chunks.md`).

pub mod attach;
pub mod history;
pub mod repack;

mod codec;
mod content;
mod copy;
mod diff;
mod draft;
mod error;
mod folder;
pub(crate) mod fuzz;
mod merge;
mod tree;
mod version;

#[cfg(test)]
mod tests;

pub use content::{Chunker, Content, Digest};
pub use copy::copy;
pub use diff::{Change, ChangeKind, diff};
pub use draft::Draft;
pub use error::{Malformed, VolumeError};
pub use folder::{Imported, export, import};
pub use merge::{Conflict, ConflictKind, Merged, Side, merge};
pub use tree::{Entry, Meta, Name, Node, Path, Trees};
pub use version::{PACKED_KIND, Packed, VERSION_KIND, Version, VersionId};

/// Deepest directory of a volume.
pub const MAX_DEPTH: usize = 256;
/// Most entries of a volume, also of one that names the same directory many times.
pub const MAX_ENTRIES: u64 = 4_000_000;
/// Most bytes of one directory's encoding: about a million entries.
pub const MAX_TREE_BYTES: u64 = 128 * 1024 * 1024;
