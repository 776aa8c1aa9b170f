//! Directories: their entries, and how those are written down.

use std::{collections::BTreeMap, fmt};

use rhizome_guest::xattr::{self, Attributes};

use super::{
    Content, MAX_DEPTH, MAX_ENTRIES, MAX_TREE_BYTES, Malformed, VolumeError,
    codec::{Reader, Writer},
};
use crate::chunks::ReadChunks;

/// First byte of a directory's encoding.
const TREE_VERSION: u8 = 1;
/// Bit of an entry's kind: attributes follow it.
const WITH_ATTRIBUTES: u8 = 0x80;
/// Longest name, in bytes.
const MAX_NAME: usize = 255;
/// Longest target of a symbolic link, in bytes.
const MAX_TARGET: usize = 4095;

/// The name of an entry: 1 to 255 bytes, without slash or zero, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Takes bytes that can be a name.
    ///
    /// # Errors
    /// [`Malformed::Name`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Malformed> {
        let bytes = bytes.into();
        let sound = (1..=MAX_NAME).contains(&bytes.len())
            && bytes != b"."
            && bytes != b".."
            && !bytes.iter().any(|byte| matches!(byte, b'/' | 0));
        if sound {
            Ok(Self(bytes))
        } else {
            Err(Malformed::Name)
        }
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    /// Control characters and bytes that are no text are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.0.utf8_chunks() {
            for letter in piece.valid().chars() {
                if letter.is_control() || letter == '\\' {
                    write!(f, "{}", letter.escape_default())?;
                } else {
                    write!(f, "{letter}")?;
                }
            }
            for byte in piece.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Where something lies in a volume; empty for the volume's root.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Vec<Name>);

impl Path {
    /// Parses names with slashes between them; one at the start or end is fine.
    ///
    /// # Errors
    /// [`VolumeError::BadPath`].
    pub fn parse(bytes: &[u8]) -> Result<Self, VolumeError> {
        let bad = |reason| VolumeError::BadPath {
            path: String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TARGET)])
                .escape_debug()
                .to_string(),
            reason,
        };
        let trimmed = bytes.strip_prefix(b"/").unwrap_or(bytes);
        let trimmed = trimmed.strip_suffix(b"/").unwrap_or(trimmed);
        if trimmed.is_empty() {
            return Ok(Self::default());
        }
        let names = trimmed.split(|byte| *byte == b'/').take(MAX_DEPTH + 1);
        let names =
            names.map(|name| Name::new(name).map_err(|_| bad("a name in it is impossible")));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        if names.len() > MAX_DEPTH {
            return Err(bad("it is too deep"));
        }
        Ok(Self(names))
    }

    /// Returns the path of an entry in this directory.
    #[must_use]
    pub fn join(&self, name: &Name) -> Self {
        let mut names = self.0.clone();
        names.push(name.clone());
        Self(names)
    }

    /// Returns the directory it lies in and its name there; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &Name)> {
        let (name, above) = self.0.split_last()?;
        Some((Self(above.to_vec()), name))
    }

    /// Returns the names in it, from the root down.
    #[must_use]
    pub fn names(&self) -> &[Name] {
        &self.0
    }

    /// Returns the bytes of a relative path.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.0.iter().map(Name::as_bytes).collect();
        names.join(&b'/')
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for (at, name) in self.0.iter().enumerate() {
            let slash = if at == 0 { "" } else { "/" };
            write!(f, "{slash}{name}")?;
        }
        Ok(())
    }
}

/// What an entry has beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Extended attributes, those of users alone, in the order of their names.
    pub attributes: Attributes,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File(Content),
    /// A directory: its encoding.
    Dir(Content),
    /// A symbolic link: where it leads.
    Symlink(Vec<u8>),
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name there.
    pub name: Name,
    /// Mode, owner, time.
    pub meta: Meta,
    /// What it is.
    pub node: Node,
}

/// Returns whether a symbolic link may lead there.
pub(super) fn is_target(target: &[u8]) -> bool {
    (1..=MAX_TARGET).contains(&target.len()) && !target.contains(&0)
}

impl Entry {
    fn encode(&self, out: &mut Writer) {
        let len = u8::try_from(self.name.0.len()).expect("a name has at most 255 bytes");
        out.u8(len);
        out.raw(&self.name.0);
        let kind = match &self.node {
            Node::File(_) => 0,
            Node::Dir(_) => 1,
            Node::Symlink(_) => 2,
        };
        let attributes = &self.meta.attributes;
        out.u8(if attributes.is_empty() {
            kind
        } else {
            kind | WITH_ATTRIBUTES
        });
        out.u16(u16::try_from(self.meta.mode & 0o7777).expect("twelve bits"));
        out.u32(self.meta.uid);
        out.u32(self.meta.gid);
        out.i64(self.meta.mtime_ns);
        match &self.node {
            Node::File(content) | Node::Dir(content) => content.encode(out),
            Node::Symlink(target) => {
                out.u16(u16::try_from(target.len()).expect("a target has at most 4095 bytes"));
                out.raw(target);
            }
        }
        if !attributes.is_empty() {
            out.u8(u8::try_from(attributes.len()).expect("64 attributes at most"));
        }
        for (name, value) in attributes {
            out.u8(u8::try_from(name.len()).expect("a name has at most 255 bytes"));
            out.raw(name);
            out.u16(u16::try_from(value.len()).expect("attributes have at most 16 KiB"));
            out.raw(value);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = from.u8().ok_or(Malformed::Encoding)?;
        let name = Name::new(from.raw(len.into()).ok_or(Malformed::Encoding)?)?;
        let kind = from.u8().ok_or(Malformed::Encoding)?;
        let (Some(mode), Some(uid), Some(gid), Some(mtime_ns)) =
            (from.u16(), from.u32(), from.u32(), from.i64())
        else {
            return Err(Malformed::Encoding);
        };
        let node = match kind & !WITH_ATTRIBUTES {
            0 => Node::File(Content::decode(from)?),
            1 => Node::Dir(Content::decode(from)?),
            2 => {
                let len = from.u16().ok_or(Malformed::Encoding)?;
                let target = from.raw(len.into()).ok_or(Malformed::Encoding)?;
                if !is_target(target) {
                    return Err(Malformed::Entry);
                }
                Node::Symlink(target.to_vec())
            }
            _ => return Err(Malformed::Entry),
        };
        if mode > 0o7777 {
            return Err(Malformed::Entry);
        }
        let attributes = match kind & WITH_ATTRIBUTES {
            0 => Attributes::new(),
            _ => decode_attributes(from)?,
        };
        let meta = Meta {
            mode: mode.into(),
            uid,
            gid,
            mtime_ns,
            attributes,
        };
        Ok(Self { name, meta, node })
    }
}

fn decode_attributes(from: &mut Reader<'_>) -> Result<Attributes, Malformed> {
    let count = from.u8().ok_or(Malformed::Encoding)?;
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let len = from.u8().ok_or(Malformed::Encoding)?;
        let name = from.raw(len.into()).ok_or(Malformed::Encoding)?;
        let len = from.u16().ok_or(Malformed::Encoding)?;
        let value = from.raw(len.into()).ok_or(Malformed::Encoding)?;
        attributes.push((name.to_vec(), value.to_vec()));
    }
    // Without any, the kind says so: there is one encoding for each entry.
    if attributes.is_empty() || !xattr::are_valid(&attributes) {
        return Err(Malformed::Entry);
    }
    Ok(attributes)
}

/// Writes a directory down. `entries` are in the order of their names.
pub(super) fn encode_tree<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(TREE_VERSION);
    for entry in entries {
        entry.encode(&mut out);
    }
    out.0
}

/// Reads a directory: there is one encoding for each.
pub(super) fn parse_tree(bytes: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let mut from = Reader(bytes);
    if from.u8() != Some(TREE_VERSION) {
        return Err(Malformed::Encoding);
    }
    let mut entries: Vec<Entry> = Vec::new();
    while !from.is_empty() {
        let entry = Entry::decode(&mut from)?;
        if entries.last().is_some_and(|last| last.name >= entry.name) {
            return Err(Malformed::Order);
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Reads the trees of a volume.
#[derive(Debug, Clone, Copy)]
pub struct Trees<'a> {
    chunks: &'a dyn ReadChunks,
}

impl<'a> Trees<'a> {
    /// Reads from `chunks`.
    #[must_use]
    pub fn new(chunks: &'a dyn ReadChunks) -> Self {
        Self { chunks }
    }

    /// Returns where it reads from.
    #[must_use]
    pub fn chunks(&self) -> &'a dyn ReadChunks {
        self.chunks
    }

    /// Returns the entries of a directory, in the order of their names.
    ///
    /// # Errors
    /// Any [`VolumeError`] but those of paths.
    pub fn list(&self, tree: &Content) -> Result<Vec<Entry>, VolumeError> {
        if tree.size() > MAX_TREE_BYTES {
            return Err(VolumeError::TooLarge);
        }
        let len = usize::try_from(tree.size()).map_err(|_| VolumeError::TooLarge)?;
        Ok(parse_tree(&tree.read(self.chunks, 0, len)?)?)
    }

    /// Returns what a path names; `None` for the root itself and for what is not there.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    pub fn find(&self, root: &Content, path: &Path) -> Result<Option<Entry>, VolumeError> {
        let mut tree = root.clone();
        let mut found: Option<Entry> = None;
        for name in path.names() {
            if let Some(above) = found.take() {
                let Node::Dir(content) = above.node else {
                    return Ok(None);
                };
                tree = content;
            }
            let mut entries = self.list(&tree)?;
            let Ok(at) = entries.binary_search_by(|entry| entry.name.cmp(name)) else {
                return Ok(None);
            };
            found = Some(entries.swap_remove(at));
        }
        Ok(found)
    }

    /// Visits every entry below `root`, each directory before what is in it.
    ///
    /// # Errors
    /// Any [`VolumeError`] but those of paths; whatever `visit` returns.
    pub fn walk(
        &self,
        root: &Content,
        visit: &mut dyn FnMut(&Path, &Entry) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut left = vec![(Path::default(), root.clone())];
        let mut budget = Budget::default();
        while let Some((path, tree)) = left.pop() {
            for entry in self.list(&tree)? {
                let below = path.join(&entry.name);
                budget.spend(&below)?;
                visit(&below, &entry)?;
                if let Node::Dir(content) = entry.node {
                    left.push((below, content));
                }
            }
        }
        Ok(())
    }

    /// Names every chunk below `root`, once or more often.
    ///
    /// # Errors
    /// Any [`VolumeError`] but those of paths.
    pub fn for_each_chunk(
        &self,
        root: &Content,
        see: &mut dyn FnMut(&crate::chunks::ChunkId),
    ) -> Result<(), VolumeError> {
        root.for_each_chunk(self.chunks, see)?;
        // The same directory need not be looked at twice.
        let mut seen: BTreeMap<super::Digest, ()> = BTreeMap::new();
        let mut left = vec![root.clone()];
        let mut budget = Budget::default();
        while let Some(tree) = left.pop() {
            for entry in self.list(&tree)? {
                budget.spend(&Path::default())?;
                match entry.node {
                    Node::File(content) => content.for_each_chunk(self.chunks, see)?,
                    Node::Dir(content) => {
                        if seen.insert(content.digest(), ()).is_none() {
                            content.for_each_chunk(self.chunks, see)?;
                            left.push(content);
                        }
                    }
                    Node::Symlink(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// How much of a hostile tree is looked at: directories may be named again and again, and so be
/// more than fit anywhere.
#[derive(Debug, Default)]
pub(super) struct Budget {
    entries: u64,
}

impl Budget {
    pub(super) fn spend(&mut self, path: &Path) -> Result<(), VolumeError> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES || path.names().len() > MAX_DEPTH {
            return Err(VolumeError::TooLarge);
        }
        Ok(())
    }
}
