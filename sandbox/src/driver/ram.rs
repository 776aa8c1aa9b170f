//! A guest's memory.

use std::{
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

use crate::sparse;

/// What the kernel calls it, in `/proc/<pid>/maps`.
const NAME: &str = "rhizome-ram";
const MIB: u64 = 1024 * 1024;

/// The memory of one guest: a file without a name that lives as long as somebody has it open, the
/// monitor or a daemon.
///
/// It lies in the page cache and nowhere else, so nothing of it is ever written to a disk, and it
/// takes only what the guest has touched. A daemon that dies leaves it to the monitor; when both
/// are gone, so is it. Its size cannot be changed by whoever has it open.
#[derive(Debug)]
pub struct GuestRam {
    file: File,
    size: u64,
}

impl GuestRam {
    /// Makes the memory of a new guest: all zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(memory_mib: u32) -> io::Result<Self> {
        Self::with_size(u64::from(memory_mib) * MIB)
    }

    fn with_size(size: u64) -> io::Result<Self> {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(file);
        file.set_len(size)?;
        fcntl_add_seals(&file, seals())?;
        Ok(Self { file, size })
    }

    /// Opens the memory that another process holds open as `path`, below `/proc`.
    ///
    /// That process may have been taken over by its guest: what is there is used only if it is
    /// what [`Self::create`] makes.
    pub(super) fn adopt(path: &Path, memory_mib: u32) -> io::Result<Self> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            // Were it a pipe, opening it would wait.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        let size = u64::from(memory_mib) * MIB;
        let meta = file.metadata()?;
        let sealed = fcntl_get_seals(&file).is_ok_and(|found| found.contains(seals()));
        if !meta.is_file() || meta.size() != size || !sealed {
            return Err(io::Error::other("that is not the memory of a guest"));
        }
        Ok(Self { file, size })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes that it takes on this host.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn resident(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Returns the file, to be read.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns a second handle on the same memory.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            size: self.size,
        })
    }

    /// Copies what is not zero into a memory of its own. Blocks.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn copy(&self) -> io::Result<Self> {
        let copy = self.blank()?;
        self.copy_to(&copy)?;
        Ok(copy)
    }

    /// Makes a memory of the same size: all zero.
    pub(crate) fn blank(&self) -> io::Result<Self> {
        Self::with_size(self.size)
    }

    /// Copies what is not zero to a blank memory and returns the bytes copied. Blocks.
    pub(crate) fn copy_to(&self, to: &Self) -> io::Result<u64> {
        sparse::copy(&self.file, &to.file, self.size)
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}
