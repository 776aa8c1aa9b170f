//! The entries of one layer: a tar archive from somebody else.
//!
//! Everything in it is bounded before it is believed: how many entries, how long their names, how
//! many bytes come out of a compressed stream. Nothing here touches a file system.

use std::io::{self, Read};

use tar::{Archive, EntryType};

use super::ImportError;

/// Most entries of all layers of one image.
pub(super) const MAX_ENTRIES: u64 = 500_000;
/// Most bytes of all layers of one image, unpacked.
pub(super) const MAX_BYTES: u64 = 32 * 1024 * 1024 * 1024;
/// Longest path, and longest target of a link, in bytes.
pub(super) const MAX_PATH: usize = 4096;
/// Most bytes of an extended header.
const MAX_EXTENDED: u64 = 256 * 1024;
/// Longest file capability; version 3 takes 24 bytes.
const MAX_CAPABILITY: usize = 64;

/// What is left of the bounds on one image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            entries: MAX_ENTRIES,
            bytes: MAX_BYTES,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// As it is spelled in the archive.
    pub(super) path: Vec<u8>,
    pub(super) what: What,
    pub(super) meta: Meta,
}

/// What an entry makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    File {
        size: u64,
    },
    Dir,
    Symlink {
        target: Vec<u8>,
    },
    /// Another name of a file that is there already.
    Hardlink {
        target: Vec<u8>,
    },
    /// A device, a pipe: the guest makes its own.
    Special,
}

/// What an entry says of what it makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Permission bits, with set-id and sticky.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds since 1970.
    pub(super) mtime: u64,
    /// The extended attribute `security.capability`.
    pub(super) capability: Option<Vec<u8>>,
}

/// Reads a tar stream and hands every entry with its content to `visit`.
pub(super) fn read<R: Read>(
    stream: R,
    budget: &mut Budget,
    mut visit: impl FnMut(Item, &mut dyn Read) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut left = budget.bytes;
    let metered = Metered {
        stream,
        left: &mut left,
    };
    let mut archive = Archive::new(metered);
    let mut pending = Extended::default();
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        budget.entries = budget
            .entries
            .checked_sub(1)
            .ok_or(ImportError::TooMany { limit: MAX_ENTRIES })?;
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        match kind {
            EntryType::GNULongName => pending.path = Some(long(&mut entry, size)?),
            EntryType::GNULongLink => pending.link = Some(long(&mut entry, size)?),
            EntryType::XHeader => pending.read(&bounded(&mut entry, size, MAX_EXTENDED)?)?,
            EntryType::XGlobalHeader => {}
            kind => {
                let extended = std::mem::take(&mut pending);
                let item = extended.item(entry.header(), kind, size)?;
                visit(item, &mut entry)?;
            }
        }
    }
    let mut metered = archive.into_inner();
    // What follows the end of the archive is part of the layer's digest all the same.
    io::copy(&mut metered, &mut io::sink()).map_err(broken)?;
    budget.bytes = left;
    Ok(())
}

/// Counts what comes out of a stream, and ends it where the image becomes too large.
struct Metered<'a, R> {
    stream: R,
    left: &'a mut u64,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(into)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => *self.left = left,
            None => return Err(io::Error::other(TooLarge)),
        }
        Ok(read)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("more than {} GiB come out of it", MAX_BYTES >> 30)]
struct TooLarge;

/// What extended headers say of the entry behind them.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<u64>,
    capability: Option<Vec<u8>>,
}

impl Extended {
    fn read(&mut self, records: &[u8]) -> Result<(), ImportError> {
        for record in tar::PaxExtensions::new(records) {
            let record = record.map_err(broken)?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.path = Some(short(value)?),
                b"linkpath" => self.link = Some(short(value)?),
                b"size" => self.size = Some(number(value)?),
                b"uid" => self.uid = Some(number(value)?),
                b"gid" => self.gid = Some(number(value)?),
                // Before 1970 counts as 1970, fractions are cut.
                b"mtime" => self.mtime = Some(number(value).unwrap_or(0)),
                b"SCHILY.xattr.security.capability" if value.len() <= MAX_CAPABILITY => {
                    self.capability = Some(value.to_vec());
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(ImportError::Unsupported {
                        what: "a sparse file",
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn item(self, header: &tar::Header, kind: EntryType, size: u64) -> Result<Item, ImportError> {
        if self.size.is_some_and(|said| said != size) {
            return Err(ImportError::Unsupported {
                what: "a file whose size stands in an extended header alone",
            });
        }
        let path = match self.path {
            Some(path) => path,
            None => short(&header.path_bytes())?,
        };
        let link = || -> Result<Vec<u8>, ImportError> {
            match self.link {
                Some(link) => Ok(link),
                None => short(&header.link_name_bytes().unwrap_or_default()),
            }
        };
        let what = match kind {
            // Old archives mark a directory by the slash behind its name.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => What::Dir,
            EntryType::Regular | EntryType::Continuous => What::File { size },
            EntryType::Directory => What::Dir,
            EntryType::Symlink => What::Symlink { target: link()? },
            EntryType::Link => What::Hardlink { target: link()? },
            EntryType::Char | EntryType::Block | EntryType::Fifo => What::Special,
            EntryType::GNUSparse => {
                return Err(ImportError::Unsupported {
                    what: "a sparse file",
                });
            }
            _ => {
                return Err(ImportError::Unsupported {
                    what: "an unknown kind of entry",
                });
            }
        };
        let id = |said: Option<u64>, header: io::Result<u64>| -> Result<u32, ImportError> {
            let id = said.map_or(header, Ok).map_err(broken)?;
            u32::try_from(id).map_err(|_| ImportError::Unsupported {
                what: "a user or group number over 32 bits",
            })
        };
        Ok(Item {
            what,
            meta: Meta {
                mode: header.mode().map_err(broken)? & 0o7777,
                uid: id(self.uid, header.uid())?,
                gid: id(self.gid, header.gid())?,
                mtime: self.mtime.unwrap_or_else(|| header.mtime().unwrap_or(0)),
                capability: self.capability,
            },
            path,
        })
    }
}

/// Reads a name that stands in an entry of its own, ended by a zero byte.
fn long(entry: &mut impl Read, size: u64) -> Result<Vec<u8>, ImportError> {
    let mut name = bounded(entry, size, MAX_PATH as u64 + 1)?;
    while name.last() == Some(&0) {
        name.pop();
    }
    short(&name)
}

fn short(name: &[u8]) -> Result<Vec<u8>, ImportError> {
    if name.len() > MAX_PATH {
        return Err(ImportError::Unsupported {
            what: "a path over 4,096 bytes",
        });
    }
    if name.contains(&0) {
        return Err(ImportError::hostile(name, "holds a zero byte"));
    }
    Ok(name.to_vec())
}

fn bounded(entry: &mut impl Read, size: u64, limit: u64) -> Result<Vec<u8>, ImportError> {
    if size > limit {
        return Err(ImportError::Unsupported {
            what: "an extended header of this size",
        });
    }
    let mut bytes = Vec::new();
    entry.take(limit).read_to_end(&mut bytes).map_err(broken)?;
    Ok(bytes)
}

fn number(value: &[u8]) -> Result<u64, ImportError> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let whole = text.split('.').next().unwrap_or_default();
    whole
        .parse()
        .map_err(|_| broken(io::Error::other("a number that is none")))
}

pub(super) fn broken(source: io::Error) -> ImportError {
    ImportError::Archive { source }
}
