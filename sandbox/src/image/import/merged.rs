//! One archive of the whole tree, written by us: what the packer is given to unpack.
//!
//! Every path in it is there once, directories come first and symbolic links last, so whoever
//! unpacks it never writes through a link.

use std::io::{self, Read, Write};

use tar::{EntryType, Header};

use super::layer::Meta;

/// Longest name and link that fit a header.
const SHORT: usize = 100;

/// Writes the archive.
#[derive(Debug)]
pub(super) struct Merged<W> {
    out: W,
}

impl<W: Write> Merged<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    pub(super) fn dir(&mut self, path: &[u8], meta: &Meta) -> io::Result<()> {
        let path = if path.is_empty() {
            b"./".to_vec()
        } else {
            [path, b"/"].concat()
        };
        self.entry(EntryType::Directory, &path, &[], meta, 0)
    }

    /// Writes a file of `size` bytes.
    pub(super) fn file(
        &mut self,
        path: &[u8],
        meta: &Meta,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        self.entry(EntryType::Regular, path, &[], meta, size)?;
        let copied = io::copy(&mut content.take(size), &mut self.out)?;
        if copied != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pad(size)
    }

    pub(super) fn hardlink(&mut self, path: &[u8], to: &[u8], meta: &Meta) -> io::Result<()> {
        self.entry(EntryType::Link, path, to, meta, 0)
    }

    pub(super) fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()> {
        self.entry(EntryType::Symlink, path, target, meta, 0)
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 1024])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        meta: &Meta,
        size: u64,
    ) -> io::Result<()> {
        if let Some(capability) = &meta.capability {
            self.extended(capability)?;
        }
        if link.len() > SHORT {
            self.long(EntryType::GNULongLink, link)?;
        }
        if path.len() > SHORT {
            self.long(EntryType::GNULongName, path)?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(meta.mode);
        header.set_uid(meta.uid.into());
        header.set_gid(meta.gid.into());
        header.set_mtime(meta.mtime);
        header.set_size(size);
        let fields = header.as_gnu_mut().expect("it was made so");
        copy(path, &mut fields.name);
        copy(link, &mut fields.linkname);
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    fn long(&mut self, kind: EntryType, name: &[u8]) -> io::Result<()> {
        self.meta_entry(kind, b"././@LongLink", &[name, &[0]].concat())
    }

    fn extended(&mut self, capability: &[u8]) -> io::Result<()> {
        let rest = [
            &b" SCHILY.xattr.security.capability="[..],
            capability,
            b"\n",
        ]
        .concat();
        // The length counts its own digits.
        let mut length = rest.len() + 1;
        while length != rest.len() + length.to_string().len() {
            length = rest.len() + length.to_string().len();
        }
        let record = [length.to_string().as_bytes(), &rest].concat();
        self.meta_entry(EntryType::XHeader, b"././@PaxHeader", &record)
    }

    fn meta_entry(&mut self, kind: EntryType, name: &[u8], content: &[u8]) -> io::Result<()> {
        let size = content.len() as u64;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        copy(name, &mut header.as_gnu_mut().expect("it was made so").name);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(content)?;
        self.pad(size)
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let over = usize::try_from(size % 512).expect("below 512");
        if over > 0 {
            self.out.write_all(&[0; 512][over..])?;
        }
        Ok(())
    }
}

fn copy(bytes: &[u8], into: &mut [u8; SHORT]) {
    let length = bytes.len().min(SHORT);
    into[..length].copy_from_slice(&bytes[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::import::layer::{self, Budget, What};

    #[test]
    fn what_is_written_reads_back() {
        let meta = Meta {
            mode: 0o4755,
            uid: 1000,
            gid: 3_000_000,
            mtime: 1_700_000_000,
            capability: Some(vec![
                1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ]),
        };
        let plain = Meta {
            mode: 0o755,
            ..Meta::default()
        };
        let long = [b"d/".repeat(80), b"x".to_vec()].concat();
        let mut archive = Merged::new(Vec::new());
        archive.dir(b"", &plain).unwrap();
        archive.dir(b"d", &plain).unwrap();
        archive.file(&long, &meta, 3, &mut &b"abc"[..]).unwrap();
        archive.hardlink(b"hard", &long, &meta).unwrap();
        archive.symlink(b"soft", &long, &plain).unwrap();
        let short = archive.file(b"short", &plain, 5, &mut &b"abc"[..]);
        assert!(short.is_err());
        let mut archive = Merged::new(Vec::new());
        archive.dir(b"", &plain).unwrap();
        archive.file(&long, &meta, 3, &mut &b"abc"[..]).unwrap();
        archive.hardlink(b"hard", &long, &meta).unwrap();
        archive.symlink(b"soft", &long, &plain).unwrap();
        let bytes = archive.finish().unwrap();
        let mut items = Vec::new();
        layer::read(&bytes[..], &mut Budget::default(), |item, content| {
            let mut data = Vec::new();
            content.read_to_end(&mut data).unwrap();
            items.push((item, data));
            Ok(())
        })
        .unwrap();
        assert_eq!(items.len(), 4);
        assert_eq!(items[0].0.what, What::Dir);
        assert_eq!((&items[1].0.path, &items[1].0.meta), (&long, &meta));
        assert_eq!(items[1].1, b"abc");
        assert_eq!(
            items[2].0.what,
            What::Hardlink {
                target: long.clone()
            }
        );
        assert_eq!(items[3].0.what, What::Symlink { target: long });
    }
}
