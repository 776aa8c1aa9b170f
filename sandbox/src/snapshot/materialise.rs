//! From chunks to a guest at rest.

use std::path::{Path, PathBuf};

use super::{Manifest, SnapshotError};
use crate::{Progress, chunks::ChunkReader, driver::SavedState};

/// A guest at rest, ready for [`crate::driver::VmmDriver::restore`].
#[derive(Debug)]
pub struct Materialised {
    /// Memory and devices.
    pub saved: SavedState,
    /// The writable disks, by number, as they lie in the VM's directory.
    pub disks: Vec<(u32, PathBuf)>,
    /// Bytes that were read from the store, as they are in the guest.
    pub bytes_read: u64,
}

/// Makes a guest's memory, devices and disks from a snapshot; the files go into `dir`, the new
/// VM's directory, and have holes where they are zero. Blocks.
///
/// # Errors
/// [`SnapshotError::Chunks`], also for a chunk of another size than its place;
/// [`SnapshotError::Io`].
pub fn materialise(
    manifest: &Manifest,
    reader: &ChunkReader,
    dir: &Path,
    progress: &Progress,
) -> Result<Materialised, SnapshotError> {
    let _ = (manifest, reader, dir, progress);
    todo!()
}
