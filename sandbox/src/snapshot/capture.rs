//! From a guest at rest to chunks.

use super::{About, Frozen, Manifest, SnapshotError};
use crate::{Progress, chunks::PackWriter};

/// A snapshot whose chunks were put into a writer; it is whole once the writer has finished.
#[derive(Debug)]
pub struct Captured {
    /// What it is made of.
    pub manifest: Manifest,
    /// Bytes that were read: what is no hole.
    pub bytes_read: u64,
    /// Bytes of it that no snapshot before had.
    pub bytes_new: u64,
    /// Bytes that these take in the store, compressed and sealed.
    pub bytes_stored: u64,
}

/// Puts a guest at rest into the chunk store. Blocks.
///
/// The caller then finishes the writer, and stores the manifest beside the packs.
///
/// # Errors
/// [`SnapshotError::Chunks`] and [`SnapshotError::Io`].
pub fn capture(
    frozen: &Frozen,
    about: About,
    writer: &mut PackWriter,
    progress: &Progress,
) -> Result<Captured, SnapshotError> {
    let _ = (frozen, about, writer, progress);
    todo!()
}
