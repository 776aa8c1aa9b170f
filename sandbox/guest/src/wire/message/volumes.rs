//! Volumes: directory trees that the node serves and the guest mounts.

use super::{MAX_PATH, MAX_TEXT, Payload, clip};
use crate::{
    wire::{Decoder, Encoder, WireError},
    xattr::{self, Attributes},
};

/// Longest question or answer of a volume's stream, in bytes.
pub const MAX_VOLUME_MESSAGE: usize = 2 * 1024 * 1024;
/// Most bytes that a guest may ask for at once.
pub const MAX_VOLUME_READ: u32 = 1024 * 1024;

/// In the place of the number of attributes: there cannot be any.
const NO_ATTRIBUTES: u16 = u16::MAX;

/// Attaches a volume, or serves one that is attached already and lost its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOpen {
    /// Which volume.
    pub volume: [u8; 16],
    /// What its tree is, as the node names it: another one is no continuation.
    pub base: [u8; 32],
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Whether it may be changed; changes stay in the guest until the node asks for them.
    pub writable: bool,
}

impl Payload for VolumeOpen {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.volume);
        out.array(&self.base);
        out.bytes(&self.path);
        out.u8(self.writable.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let (volume, base) = (from.array()?, from.array()?);
        let path = from.os_bytes(MAX_PATH, "path")?;
        // It becomes a mount point, and is compared with others.
        let mut parts = path.split(|byte| *byte == b'/');
        let absolute = parts.next() == Some(b"");
        if !absolute || parts.any(|part| matches!(part, b"" | b"." | b"..")) {
            return Err(WireError::Invalid { field: "path" });
        }
        Ok(Self {
            volume,
            base,
            path,
            writable: from.flag("writable")?,
        })
    }
}

/// Asks for everything that was changed since a volume was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeScan {
    /// Which volume.
    pub volume: [u8; 16],
}

impl Payload for VolumeScan {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.volume);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            volume: from.array()?,
        })
    }
}

/// Detaches a volume; what was changed and not asked for is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeClose {
    /// Which volume.
    pub volume: [u8; 16],
    /// Also while programs use it.
    pub force: bool,
}

impl Payload for VolumeClose {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.volume);
        out.u8(self.force.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            volume: from.array()?,
            force: from.flag("force")?,
        })
    }
}

/// What an entry of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum VolumeKind {
    /// A regular file.
    File = 0,
    /// A directory; of changes: one whose contents are what they were, but for what is named.
    Directory = 1,
    /// A symbolic link.
    Symlink = 2,
    /// Of changes: a directory that holds nothing but what is named.
    FreshDirectory = 3,
    /// Of changes: it was removed.
    Gone = 4,
    /// Of changes: something that volumes don't hold.
    Other = 5,
}

/// One entry of a directory, or one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its name; of a change, its path in the volume, without a slash in front.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: VolumeKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes in it.
    pub size: u64,
    /// Last change of its contents, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Of a change: what tells whether it was changed again.
    pub stamp: [u64; 2],
    /// Where a symbolic link leads; otherwise empty.
    pub target: Vec<u8>,
    /// Extended attributes, those of users alone; of a change, `None` where the changes lie on a
    /// file system that has none: then they are what they were.
    pub attributes: Option<Attributes>,
}

impl Payload for VolumeEntry {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u8(self.kind as u8);
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u64(self.size);
        out.u64(self.mtime_ns.cast_unsigned());
        out.u64(self.stamp[0]);
        out.u64(self.stamp[1]);
        out.bytes(&self.target);
        let Some(attributes) = &self.attributes else {
            return out.u16(NO_ATTRIBUTES);
        };
        out.u16(u16::try_from(attributes.len()).unwrap_or(u16::MAX));
        for (name, value) in attributes {
            out.bytes(name);
            out.bytes(value);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let path = from.os_bytes(MAX_PATH, "path")?;
        let kind = match from.u8()? {
            0 => VolumeKind::File,
            1 => VolumeKind::Directory,
            2 => VolumeKind::Symlink,
            3 => VolumeKind::FreshDirectory,
            4 => VolumeKind::Gone,
            5 => VolumeKind::Other,
            _ => return Err(WireError::Invalid { field: "kind" }),
        };
        let mode = from.u32()?;
        if mode > 0o7777 {
            return Err(WireError::Invalid { field: "mode" });
        }
        let mut entry = Self {
            path,
            kind,
            mode,
            uid: from.u32()?,
            gid: from.u32()?,
            size: from.u64()?,
            mtime_ns: from.u64()?.cast_signed(),
            stamp: [from.u64()?, from.u64()?],
            target: from.os_bytes(MAX_PATH, "target")?,
            attributes: None,
        };
        let count = from.u16()?;
        if count == NO_ATTRIBUTES {
            return Ok(entry);
        }
        let mut attributes = Attributes::new();
        for _ in 0..count {
            let name = from.os_bytes(xattr::MAX_NAME, "attribute")?;
            let value = from.bytes(xattr::MAX_BYTES, "attribute")?.to_vec();
            attributes.push((name, value));
        }
        if !xattr::are_valid(&attributes) {
            return Err(WireError::Invalid {
                field: "attributes",
            });
        }
        entry.attributes = Some(attributes);
        Ok(entry)
    }
}

impl VolumeEntry {
    /// Reads entries until the end.
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

/// What a guest says on a volume's stream. Questions may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeAsk {
    /// Which entries a directory has, after the name given.
    List {
        /// Comes back with the answer.
        tag: u64,
        /// The directory's path in the volume; empty for its root.
        path: Vec<u8>,
        /// The last name that is known; empty for none.
        after: Vec<u8>,
    },
    /// Some bytes of a file.
    Read {
        /// Comes back with the answer.
        tag: u64,
        /// The file's path in the volume.
        path: Vec<u8>,
        /// Where they start.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// It is mounted.
    Mounted,
    /// It cannot be mounted.
    Failed {
        /// What a person can read.
        message: String,
    },
}

impl Payload for VolumeAsk {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::List { tag, path, after } => {
                out.u8(1);
                out.u64(*tag);
                out.bytes(path);
                out.bytes(after);
            }
            Self::Read {
                tag,
                path,
                offset,
                len,
            } => {
                out.u8(2);
                out.u64(*tag);
                out.bytes(path);
                out.u64(*offset);
                out.u32(*len);
            }
            Self::Mounted => out.u8(3),
            Self::Failed { message } => {
                out.u8(4);
                out.bytes(clip(message).as_bytes());
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        match from.u8()? {
            1 => Ok(Self::List {
                tag: from.u64()?,
                path: from.os_bytes(MAX_PATH, "path")?,
                after: from.os_bytes(super::MAX_NAME, "after")?,
            }),
            2 => Ok(Self::Read {
                tag: from.u64()?,
                path: from.os_bytes(MAX_PATH, "path")?,
                offset: from.u64()?,
                len: from.u32()?.min(MAX_VOLUME_READ),
            }),
            3 => Ok(Self::Mounted),
            4 => Ok(Self::Failed {
                message: from.text(MAX_TEXT, "message")?,
            }),
            _ => Err(WireError::Invalid { field: "ask" }),
        }
    }
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAnswer {
    /// Of the question.
    pub tag: u64,
    /// What was asked for.
    pub answer: VolumeReply,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeReply {
    /// Bytes; fewer than asked for only at the end.
    Data(Vec<u8>),
    /// Entries, in the order of their names, and whether there are more.
    Entries(Vec<VolumeEntry>, bool),
    /// There is no such thing in the volume.
    NotFound,
    /// It cannot be read.
    Failed,
}

impl Payload for VolumeAnswer {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.tag);
        match &self.answer {
            VolumeReply::Data(bytes) => {
                out.u8(0);
                out.array(bytes);
            }
            VolumeReply::Entries(entries, more) => {
                out.u8(1);
                out.u8((*more).into());
                for entry in entries {
                    entry.encode(out);
                }
            }
            VolumeReply::NotFound => out.u8(2),
            VolumeReply::Failed => out.u8(3),
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let tag = from.u64()?;
        let answer = match from.u8()? {
            0 => VolumeReply::Data(from.rest().to_vec()),
            1 => {
                let more = from.flag("more")?;
                let mut entries = Vec::new();
                while !from.is_empty() {
                    entries.push(VolumeEntry::decode(from)?);
                }
                VolumeReply::Entries(entries, more)
            }
            2 => VolumeReply::NotFound,
            3 => VolumeReply::Failed,
            _ => return Err(WireError::Invalid { field: "answer" }),
        };
        Ok(Self { tag, answer })
    }
}

/// Finds messages in the bytes of a volume's stream: each is its length, four bytes, and itself.
#[derive(Debug, Default)]
pub struct VolumeFramer {
    buffer: Vec<u8>,
}

impl VolumeFramer {
    /// Returns the bytes that `message` is sent as.
    #[must_use]
    pub fn frame<P: Payload>(message: &P) -> Vec<u8> {
        let payload = message.to_payload();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&payload);
        bytes
    }

    /// Takes bytes that came.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, once it is whole.
    ///
    /// # Errors
    /// [`WireError::FrameTooLong`]; those of the message.
    pub fn message<P: Payload>(&mut self) -> Result<Option<P>, WireError> {
        let Some(len) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len);
        if len as usize > MAX_VOLUME_MESSAGE {
            return Err(WireError::FrameTooLong { len });
        }
        let end = 4 + len as usize;
        let Some(payload) = self.buffer.get(4..end) else {
            return Ok(None);
        };
        let message = P::from_payload(payload);
        self.buffer.drain(..end);
        message.map(Some)
    }
}
