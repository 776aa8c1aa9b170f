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

use super::overlay::Overlay;
use crate::sparse;

/// What the kernel calls it, in `/proc/<pid>/maps`.
const NAME: &str = "rhizome-ram";
const MIB: u64 = 1024 * 1024;

/// The memory of a guest: a file without a name that lives as long as somebody has it open, the
/// monitor or a daemon.
///
/// It lies in the page cache and nowhere else, so nothing of it is ever written to a disk, and it
/// takes only what the guest has touched. A daemon that dies leaves it to the monitor; when both
/// are gone, so is it. Its size cannot be changed by whoever has it open.
///
/// A *template* cannot be written to any more, by nobody. Any number of guests start on it, and
/// the kernel gives each a page of its own where it writes (ADR 0020). The memory of such a guest
/// is the template and those pages; [`Self::copy`] makes one file of the two.
#[derive(Debug)]
pub struct GuestRam {
    file: File,
    size: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The guest writes to the file.
    Own,
    /// Nobody writes to the file.
    Template,
    /// The guest reads the file, and what it wrote is with its monitor.
    Over(Overlay),
}

impl GuestRam {
    /// Makes the memory of a new guest: all zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(memory_mib: u32) -> io::Result<Self> {
        let ram = Self::unsealed(u64::from(memory_mib) * MIB)?;
        fcntl_add_seals(&ram.file, SealFlags::SEAL)?;
        Ok(ram)
    }

    /// Makes a file that may still become a template.
    fn unsealed(size: u64) -> io::Result<Self> {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(file);
        file.set_len(size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self {
            file,
            size,
            kind: Kind::Own,
        })
    }

    /// Opens the memory that another process holds open as `path`, below `/proc`.
    ///
    /// That process may have been taken over by its guest: what is there is used only if it is
    /// what we make. `overlay` says where the rest of it is if it is a template.
    pub(super) fn adopt(path: &Path, memory_mib: u32, overlay: Overlay) -> io::Result<Self> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            // Were it a pipe, opening it would wait.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        let size = u64::from(memory_mib) * MIB;
        let meta = file.metadata()?;
        let found = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !meta.is_file() || meta.size() != size || !found.contains(seals()) {
            return Err(io::Error::other("that is not the memory of a guest"));
        }
        let kind = match found.contains(SealFlags::WRITE) {
            true => Kind::Over(overlay),
            false => Kind::Own,
        };
        Ok(Self { file, size, kind })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes that it takes on this host; of a guest on a template, those of the
    /// template.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn resident(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Returns the bytes that a template still lacks; none of any other memory.
    ///
    /// A guest that reads there, or writes there for the first time, has the kernel put a page of
    /// zeros into the template. It is everybody's from then on, and counted for that guest's
    /// monitor, as the page is that it gets for itself.
    pub(super) fn holes(&self) -> io::Result<u64> {
        match self.is_template() {
            true => Ok(self.size.saturating_sub(self.resident()?)),
            false => Ok(0),
        }
    }

    /// Returns the file, to be read. It is all of the memory if [`Self::is_whole`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Tells whether the file is all there is.
    pub fn is_whole(&self) -> bool {
        !matches!(self.kind, Kind::Over(_))
    }

    /// Tells whether any number of guests may start on it.
    pub fn is_template(&self) -> bool {
        self.kind == Kind::Template
    }

    /// Returns a second handle on the same memory.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            size: self.size,
            kind: self.kind,
        })
    }

    /// Copies what is not zero into a template. Blocks.
    ///
    /// # Errors
    /// When memory runs out, or a guest's own pages cannot be read.
    pub fn copy(&self) -> io::Result<Self> {
        let mut copy = Self::unsealed(self.size)?;
        self.copy_to(&copy)?;
        fcntl_add_seals(&copy.file, SealFlags::WRITE | SealFlags::SEAL)?;
        copy.kind = Kind::Template;
        Ok(copy)
    }

    /// Makes a memory of the same size: all zero.
    pub(crate) fn blank(&self) -> io::Result<Self> {
        let blank = Self::unsealed(self.size)?;
        fcntl_add_seals(&blank.file, SealFlags::SEAL)?;
        Ok(blank)
    }

    /// Copies what is not zero to a blank memory and returns the bytes copied. Blocks.
    pub(crate) fn copy_to(&self, to: &Self) -> io::Result<u64> {
        let copied = sparse::copy(&self.file, &to.file, self.size)?;
        match &self.kind {
            Kind::Over(overlay) => Ok(copied + overlay.copy_to(&self.file, &to.file, self.size)?),
            Kind::Own | Kind::Template => Ok(copied),
        }
    }

    /// Makes it the memory of a guest that was started on this template.
    pub(super) fn over(mut self, overlay: Overlay) -> Self {
        if self.kind == Kind::Template {
            self.kind = Kind::Over(overlay);
        }
        self
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn nobody_writes_to_a_template() {
        let ram = GuestRam::create(8).unwrap();
        ram.file().write_all_at(b"before", 5000).unwrap();
        let template = ram.copy().unwrap();
        assert!(template.is_template() && template.is_whole());
        ram.file().write_all_at(b"after!", 5000).unwrap();
        assert!(template.file().write_all_at(b"x", 5000).is_err());
        let punched = rustix::fs::fallocate(
            template.file(),
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            8192,
        );
        assert!(punched.is_err());
        assert!(template.file().set_len(1).is_err());
        let mut said = [0; 6];
        template.file().read_exact_at(&mut said, 5000).unwrap();
        assert_eq!(&said, b"before");
        assert!(!ram.is_template());
        // All but the page that was written to, however large those are here.
        let holes = template.holes().unwrap();
        assert!((template.size() - (1 << 20)..template.size()).contains(&holes));
        assert_eq!(ram.holes().unwrap(), 0);
        // A copy of a template is one, and of no guest.
        assert!(template.copy().unwrap().is_template());
        assert!(!template.blank().unwrap().is_template());
    }
}
