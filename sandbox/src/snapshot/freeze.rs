//! A guest stopped at one moment, as files.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

use super::SnapshotError;
use crate::driver::{GuestRam, SavedState, Vm, VmRequest};

/// What becomes of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freeze {
    /// It stays paused, and what is taken is what it has: for a guest that will be ended, or was
    /// paused before. It must not run while the [`Frozen`] is used.
    Hold,
    /// It goes on after the pause; what is taken is a copy.
    Copy,
}

/// A guest at one moment.
#[derive(Debug)]
pub struct Frozen {
    /// The state of its devices.
    pub device: PathBuf,
    /// Its memory.
    pub ram: GuestRam,
    /// Its writable disks.
    pub disks: Vec<FrozenDisk>,
    /// How long it stood still; zero if it stays paused.
    pub pause: Duration,
    /// Bytes that were copied during the pause.
    pub copied: u64,
}

/// A disk at one moment.
#[derive(Debug)]
pub struct FrozenDisk {
    /// Number of the disk: its serial is `disk<number>`.
    pub number: u32,
    /// Name of its file in the VM's directory.
    pub name: String,
    /// Its content.
    pub file: File,
    /// Its size in bytes.
    pub size: u64,
}

/// Stops a guest and takes it as it is. `dir` is the caller's: the state of the devices and the
/// copies of the disks go there, under names of ours.
///
/// After an error the guest runs on if it ran before.
///
/// # Errors
/// [`SnapshotError::Driver`] and [`SnapshotError::Io`].
///
/// # Cancel safety
/// A dropped future may leave the guest paused.
pub async fn freeze(
    vm: &Vm,
    request: &VmRequest,
    dir: &Path,
    how: Freeze,
) -> Result<Frozen, SnapshotError> {
    let _ = (vm, request, dir, how);
    todo!()
}

impl Frozen {
    /// Makes what a new guest starts from: its own memory, its own disks in `dir` (the new VM's
    /// directory), and the same device state. Blocks.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn instance(&self, dir: &Path) -> Result<SavedState, SnapshotError> {
        let _ = dir;
        todo!()
    }
}
