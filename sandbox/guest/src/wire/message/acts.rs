//! What is done with a path as a user of the guest names it, and all that is known of one.

use super::{
    FileKind, MAX_NAME, MAX_PATH, Payload,
    files::{kind, kind_number, mode},
};
use crate::{
    wire::{Decoder, Encoder, WireError},
    xattr::{self, Attributes},
};

/// In the place of a mode: that of the file which is there, or 0644.
const NO_MODE: u32 = u32::MAX;

/// Something to do with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAct {
    /// Whose home relative paths begin in, and who owns what is made: `name`, `uid`, `name:group`
    /// or `uid:gid`; empty for root. The act itself is root's.
    pub user: String,
    /// A path: absolute, below the home, or the home itself (empty, `~`, `~/…`).
    pub path: Vec<u8>,
    /// What is done.
    pub act: Act,
}

/// What is done with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Nothing: what it is.
    Look,
    /// Nothing: what is in the directory, and in those in it, down to a depth.
    List {
        /// 1 for the directory alone.
        depth: u32,
    },
    /// It is made a directory, and so are those above it.
    MakeDir,
    /// It is moved to another path, and replaces what is there.
    Move {
        /// Where to; spelled like the other.
        to: Vec<u8>,
    },
    /// It is removed with all that is in it.
    Remove,
    /// A file is written from `FileData`…, `FileEnd`; it appears once it is whole.
    Write {
        /// Its mode; of the file that is there, or 0644, if not given.
        mode: Option<u32>,
        /// Its extended attributes: all that it has then.
        attributes: Attributes,
    },
}

impl Payload for FileAct {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(self.user.as_bytes());
        out.bytes(&self.path);
        match &self.act {
            Act::Look => out.u8(0),
            Act::List { depth } => {
                out.u8(1);
                out.u32(*depth);
            }
            Act::MakeDir => out.u8(2),
            Act::Move { to } => {
                out.u8(3);
                out.bytes(to);
            }
            Act::Remove => out.u8(4),
            Act::Write { mode, attributes } => {
                out.u8(5);
                out.u32(mode.unwrap_or(NO_MODE));
                encode_attributes(attributes, out);
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            user: from.text(MAX_NAME, "user")?,
            path: from.os_bytes(MAX_PATH, "path")?,
            act: match from.u8()? {
                0 => Act::Look,
                1 => Act::List { depth: from.u32()? },
                2 => Act::MakeDir,
                3 => Act::Move {
                    to: from.os_bytes(MAX_PATH, "to")?,
                },
                4 => Act::Remove,
                5 => Act::Write {
                    mode: match from.u32()? {
                        NO_MODE => None,
                        mode @ 0..=0o7777 => Some(mode),
                        _ => return Err(WireError::Invalid { field: "mode" }),
                    },
                    attributes: decode_attributes(from)?,
                },
                _ => return Err(WireError::Invalid { field: "act" }),
            },
        })
    }
}

/// All that is known of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The path, absolute.
    pub path: Vec<u8>,
    /// What it is; of a link, what it leads to, and a link if that is nothing.
    pub kind: FileKind,
    /// Whether it is a link. All below is then of the link itself.
    pub is_link: bool,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Name of the owner, or its number.
    pub owner: String,
    /// Name of the group, or its number.
    pub group: String,
    /// Bytes in it.
    pub size: u64,
    /// Last change of its contents, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a link leads in the end, or what it says if that is nothing; otherwise empty.
    pub target: Vec<u8>,
    /// Extended attributes of users; none where there cannot be any.
    pub attributes: Attributes,
}

impl Payload for Facts {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u8(kind_number(self.kind));
        out.u8(self.is_link.into());
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.bytes(self.owner.as_bytes());
        out.bytes(self.group.as_bytes());
        out.u64(self.size);
        out.u64(self.modified_ns.cast_unsigned());
        out.bytes(&self.target);
        encode_attributes(&self.attributes, out);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: super::files::path(from)?,
            kind: kind(from)?,
            is_link: from.flag("is_link")?,
            mode: mode(from)?,
            uid: from.u32()?,
            gid: from.u32()?,
            owner: from.text(MAX_NAME, "owner")?,
            group: from.text(MAX_NAME, "group")?,
            size: from.u64()?,
            modified_ns: from.u64()?.cast_signed(),
            target: from.os_bytes(MAX_PATH, "target")?,
            attributes: decode_attributes(from)?,
        })
    }
}

impl Facts {
    /// Bytes that one may take up at most.
    pub const MAX_LEN: usize = 2 * MAX_PATH + 2 * MAX_NAME + xattr::MAX_BYTES + 1024;

    /// Reads all that one FILE_FACTS frame tells.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut from = Decoder::new(payload);
        let mut all = Vec::new();
        while !from.is_empty() {
            all.push(Self::decode(&mut from)?);
        }
        Ok(all)
    }
}

fn encode_attributes(attributes: &Attributes, out: &mut Encoder) {
    out.u16(u16::try_from(attributes.len()).unwrap_or(u16::MAX));
    for (name, value) in attributes {
        out.bytes(name);
        out.bytes(value);
    }
}

fn decode_attributes(from: &mut Decoder<'_>) -> Result<Attributes, WireError> {
    let count = from.u16()?;
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let name = from.os_bytes(xattr::MAX_NAME, "attribute")?;
        let value = from.bytes(xattr::MAX_BYTES, "attribute")?.to_vec();
        attributes.push((name, value));
    }
    if xattr::are_valid(&attributes) {
        Ok(attributes)
    } else {
        Err(WireError::Invalid {
            field: "attributes",
        })
    }
}
