//! Files and directories of the guest.

use super::{MAX_NAME, MAX_PATH, Payload};
use crate::wire::{Decoder, Encoder, WireError};

/// A path and nothing else: stat, list, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathOnly {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
}

impl Payload for PathOnly {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self { path: path(from)? })
    }
}

/// A file to read, from some byte on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Bytes to leave out at its beginning.
    pub from: u64,
}

impl Payload for FileRead {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u64(self.from);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            from: from.u64()?,
        })
    }
}

/// A file to write. It appears under its name once it is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Whether missing directories above it are made.
    pub parents: bool,
}

impl Payload for FileWrite {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u32(self.mode);
        out.u8(self.parents.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            mode: mode(from)?,
            parents: from.flag("parents")?,
        })
    }
}

/// A directory to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeDir {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Whether missing directories above it are made, and an existing one is fine.
    pub parents: bool,
}

impl Payload for MakeDir {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u32(self.mode);
        out.u8(self.parents.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            mode: mode(from)?,
            parents: from.flag("parents")?,
        })
    }
}

/// A file or directory to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remove {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Whether all that is in a directory goes with it.
    pub recursive: bool,
}

impl Payload for Remove {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u8(self.recursive.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            recursive: from.flag("recursive")?,
        })
    }
}

/// What kind of thing a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// What a path names. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// What kind of thing it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes in it.
    pub size: u64,
    /// Last change of its contents, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Where a symbolic link leads; otherwise empty.
    pub target: Vec<u8>,
}

impl Payload for Stat {
    fn encode(&self, out: &mut Encoder) {
        out.u8(kind_number(self.kind));
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u64(self.size);
        out.u64(self.modified_ms);
        out.bytes(&self.target);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            kind: kind(from)?,
            mode: mode(from)?,
            uid: from.u32()?,
            gid: from.u32()?,
            size: from.u64()?,
            modified_ms: from.u64()?,
            target: from.os_bytes(MAX_PATH, "target")?,
        })
    }
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name: never empty, `.`, `..` or with a slash.
    pub name: Vec<u8>,
    /// What it is.
    pub stat: Stat,
}

impl Payload for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.name);
        self.stat.encode(out);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let name = from.os_bytes(MAX_NAME, "name")?;
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(WireError::Invalid { field: "name" });
        }
        Ok(Self {
            name,
            stat: Stat::decode(from)?,
        })
    }
}

impl Entry {
    /// Reads all entries of one FILE_ENTRIES frame.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut from = Decoder::new(payload);
        let mut entries = Vec::new();
        while !from.is_empty() {
            entries.push(Self::decode(&mut from)?);
        }
        Ok(entries)
    }
}

/// The end of a transferred file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEnd {
    /// Bytes that were sent.
    pub size: u64,
    /// BLAKE3 of them.
    pub checksum: [u8; 32],
}

impl Payload for FileEnd {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.size);
        out.array(&self.checksum);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            size: from.u64()?,
            checksum: from.array()?,
        })
    }
}

pub(super) fn path(from: &mut Decoder<'_>) -> Result<Vec<u8>, WireError> {
    let path = from.os_bytes(MAX_PATH, "path")?;
    if path.first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(WireError::Invalid { field: "path" })
    }
}

pub(super) fn kind_number(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 0,
        FileKind::Directory => 1,
        FileKind::Symlink => 2,
        FileKind::Other => 3,
    }
}

pub(super) fn kind(from: &mut Decoder<'_>) -> Result<FileKind, WireError> {
    match from.u8()? {
        0 => Ok(FileKind::File),
        1 => Ok(FileKind::Directory),
        2 => Ok(FileKind::Symlink),
        3 => Ok(FileKind::Other),
        _ => Err(WireError::Invalid { field: "kind" }),
    }
}

pub(super) fn mode(from: &mut Decoder<'_>) -> Result<u32, WireError> {
    let mode = from.u32()?;
    if mode <= 0o7777 {
        Ok(mode)
    } else {
        Err(WireError::Invalid { field: "mode" })
    }
}
