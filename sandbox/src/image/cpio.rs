//! The `newc` archive that Linux unpacks as its first file system.
//!
//! The layout is in the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.
//! Nothing in it depends on when or where it was written: equal content gives equal bytes.

use std::{
    io::{self, Write},
    path::Path,
};

const TYPE_DIR: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_LINK: u32 = 0o120_000;
const TYPE_CHAR: u32 = 0o020_000;
/// Magic of the format without checksums.
const MAGIC: &str = "070701";

/// Writes one archive.
#[derive(Debug)]
pub(super) struct CpioWriter<W> {
    out: W,
    written: u64,
    inode: u32,
}

impl<W: Write> CpioWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            inode: 0,
        }
    }

    pub(super) fn dir(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.entry(path, TYPE_DIR | mode, 2, (0, 0), b"")
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, TYPE_FILE | mode, 1, (0, 0), content)
    }

    pub(super) fn copy(&mut self, path: &str, mode: u32, from: &Path) -> io::Result<()> {
        self.file(path, mode, &std::fs::read(from)?)
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, TYPE_LINK | 0o777, 1, (0, 0), target.as_bytes())
    }

    pub(super) fn char_device(&mut self, path: &str, mode: u32, id: (u32, u32)) -> io::Result<()> {
        self.entry(path, TYPE_CHAR | mode, 1, id, b"")
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, 1, (0, 0), b"")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        links: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        self.inode += 1;
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        let mut header = MAGIC.to_owned();
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.put(header.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(b"\0")?;
        self.pad()?;
        self.put(content)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        while !self.written.is_multiple_of(4) {
            self.put(b"\0")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reader_understands_the_archive() {
        let mut cpio = CpioWriter::new(Vec::new());
        cpio.dir("etc", 0o755).unwrap();
        cpio.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")
            .unwrap();
        cpio.link("bin", "usr/bin").unwrap();
        let bytes = cpio.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000041ed"));
        // Every header begins on a multiple of four, as the kernel demands.
        let headers = bytes
            .windows(6)
            .enumerate()
            .filter(|(_, window)| *window == b"070701")
            .map(|(at, _)| at)
            .collect::<Vec<_>>();
        assert_eq!(headers.len(), 4);
        assert!(headers.iter().all(|at| at % 4 == 0));
    }

    #[test]
    fn equal_content_gives_equal_bytes() {
        let make = || {
            let mut cpio = CpioWriter::new(Vec::new());
            cpio.file("init", 0o755, b"x").unwrap();
            cpio.char_device("console", 0o600, (5, 1)).unwrap();
            cpio.finish().unwrap()
        };
        assert_eq!(make(), make());
    }
}
