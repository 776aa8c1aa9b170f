//! Files, as the store sees them: the few operations whose durability matters.
//!
//! [`RealDisk`] is the file system. Tests use a disk in memory that loses power, tears what was
//! not synced, runs full and flips bits.

mod real;
#[cfg(test)]
pub(crate) mod sim;

use std::{fmt, io, sync::Arc};

pub(crate) use self::real::RealDisk;

/// A directory tree; names are relative paths with `/`.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Returns the file names in a directory, sorted; none if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Creates a directory unless it is there, durably.
    fn create_dir(&self, dir: &str) -> io::Result<()>;
    /// Opens a file for reading and writing, creating it if need be.
    ///
    /// A new file survives a power loss only once its directory was synced.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Returns the whole content of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Returns whether a file is there.
    fn exists(&self, name: &str) -> bool;
    /// Renames a file, replacing what was there; durable once the directory was synced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
}

/// An open file.
pub(crate) trait DiskFile: fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Writes all of `bytes` at `offset`; a failure may have written some of them.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `bytes` from `offset`.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Sets the length.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Returns once content and length are durable.
    fn sync(&self) -> io::Result<()>;
}
