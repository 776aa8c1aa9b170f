//! Versions of a volume.

use super::{
    Content, Malformed, VolumeError,
    codec::{Reader, Writer},
};
use crate::chunks::{ChunkStore, PackId, StoreKey};

/// What a version is stored as in a chunk store.
pub const VERSION_KIND: &str = "volume version";
/// What the packs of a version are stored as once it was repacked.
pub const PACKED_KIND: &str = "volume packs";
const VERSION_FORMAT: u8 = 1;
const PACKED_FORMAT: u8 = 1;
/// Most versions that one is made from.
const MAX_PARENTS: usize = 16;
/// Most packs of a version: 16 TiB.
const MAX_PACKS: usize = 1 << 20;
/// Longest author and message, in bytes.
const MAX_TEXT: usize = 4096;

/// The name of a version: that of the object it is stored as.
pub type VersionId = PackId;

/// One version of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Which volume.
    pub volume: [u8; 16],
    /// What it was made from: nothing, one, or several that it merges; sorted.
    pub parents: Vec<VersionId>,
    /// Its tree.
    pub root: Content,
    /// All packs that its chunks lie in, sorted.
    pub packs: Vec<PackId>,
    /// Who made it.
    pub author: String,
    /// When, in milliseconds since 1970, by the author's clock.
    pub at_ms: u64,
    /// Why.
    pub message: String,
}

impl Version {
    /// Returns the bytes that it is stored as.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(VERSION_FORMAT);
        out.raw(&self.volume);
        for ids in [&self.parents, &self.packs] {
            put_ids(&mut out, ids);
        }
        self.root.encode(&mut out);
        out.u64(self.at_ms);
        for text in [&self.author, &self.message] {
            let text = &text[..text.floor_char_boundary(MAX_TEXT)];
            out.u16(u16::try_from(text.len()).expect("it was just cut"));
            out.raw(text.as_bytes());
        }
        out.0
    }

    /// Reads a version.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        if from.u8() != Some(VERSION_FORMAT) {
            return Err(Malformed::Encoding);
        }
        let volume = from.array().ok_or(Malformed::Encoding)?;
        let parents = ids(&mut from, MAX_PARENTS)?;
        let packs = ids(&mut from, MAX_PACKS)?;
        let root = Content::decode(&mut from)?;
        let at_ms = from.u64().ok_or(Malformed::Encoding)?;
        let (author, message) = (text(&mut from)?, text(&mut from)?);
        if !from.is_empty() {
            return Err(Malformed::Encoding);
        }
        Ok(Self {
            volume,
            parents,
            root,
            packs,
            author,
            at_ms,
            message,
        })
    }

    /// Stores it, durable on return.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`].
    pub fn store(&self, store: &ChunkStore, key: &StoreKey) -> Result<VersionId, VolumeError> {
        Ok(store.put_object(key, VERSION_KIND, &self.to_bytes())?)
    }

    /// Reads a stored one.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`], [`VolumeError::Malformed`].
    pub fn load(store: &ChunkStore, key: &StoreKey, id: &VersionId) -> Result<Self, VolumeError> {
        let bytes = store.get_object(key, VERSION_KIND, id)?;
        Ok(Self::parse(&bytes)?)
    }
}

/// Where a version lies since it was repacked. It is beside the version, which never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Which version.
    pub version: VersionId,
    /// All packs that its chunks lie in, sorted.
    pub packs: Vec<PackId>,
}

impl Packed {
    /// Returns the bytes that it is stored as.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(PACKED_FORMAT);
        out.raw(self.version.as_bytes());
        put_ids(&mut out, &self.packs);
        out.0
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        if from.u8() != Some(PACKED_FORMAT) {
            return Err(Malformed::Encoding);
        }
        let version = from.array().ok_or(Malformed::Encoding)?;
        let packs = ids(&mut from, MAX_PACKS)?;
        if !from.is_empty() {
            return Err(Malformed::Encoding);
        }
        Ok(Self {
            version: VersionId::from_bytes(version),
            packs,
        })
    }

    /// Stores it, durable on return.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`].
    pub fn store(&self, store: &ChunkStore, key: &StoreKey) -> Result<PackId, VolumeError> {
        Ok(store.put_object(key, PACKED_KIND, &self.to_bytes())?)
    }

    /// Reads a stored one.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`], [`VolumeError::Malformed`].
    pub fn load(store: &ChunkStore, key: &StoreKey, id: &PackId) -> Result<Self, VolumeError> {
        let bytes = store.get_object(key, PACKED_KIND, id)?;
        Ok(Self::parse(&bytes)?)
    }
}

fn put_ids(out: &mut Writer, ids: &[PackId]) {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    out.u32(u32::try_from(ids.len()).expect("a version names few packs"));
    for id in &ids {
        out.raw(id.as_bytes());
    }
}

fn ids(from: &mut Reader<'_>, most: usize) -> Result<Vec<PackId>, Malformed> {
    let count = from.u32().ok_or(Malformed::Encoding)? as usize;
    if count > most {
        return Err(Malformed::Encoding);
    }
    let bytes = from.raw(count * 32).ok_or(Malformed::Encoding)?;
    let (ids, _) = bytes.as_chunks::<32>();
    if !ids.is_sorted_by(|a, b| a < b) {
        return Err(Malformed::Order);
    }
    Ok(ids.iter().copied().map(PackId::from_bytes).collect())
}

fn text(from: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = from.u16().ok_or(Malformed::Encoding)?;
    let bytes = from.raw(len.into()).ok_or(Malformed::Encoding)?;
    if bytes.len() > MAX_TEXT {
        return Err(Malformed::Encoding);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed::Encoding)
}
