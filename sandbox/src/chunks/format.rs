//! The bytes of packs and objects (`docs/chunks.md`).
//!
//! A pack is a header, sealed chunks one behind the other, an index of them and a footer. Where
//! a chunk lies follows from the lengths before it, so that an index cannot overlap, leave gaps
//! or point outside.

use std::{fs::File, os::unix::fs::FileExt};

use super::{
    ChunkId, DamagedWhat, MAX_CHUNK_BYTES, MAX_OBJECT_BYTES, MAX_PACK_BYTES, StoreKey,
    key::{NONCE_BYTES, TAG_BYTES},
};

/// First bytes of a pack; the seventh is the version.
pub(super) const PACK_MAGIC: [u8; 8] = *b"RZPACK\x01\n";
/// First bytes of an object; the seventh is the version.
pub(super) const OBJECT_MAGIC: [u8; 8] = *b"RZOBJT\x01\n";
/// Bytes before the first chunk: magic and the key's tag.
pub(super) const HEADER_BYTES: usize = 8 + 16;
/// Bytes of the footer: the index's offset, the count, its own magic, a checksum.
pub(super) const FOOTER_BYTES: usize = 4 + 4 + 8 + 32;
/// Bytes of one entry of the index.
pub(super) const ENTRY_BYTES: usize = 32 + 4 + 4 + 1;
/// Most chunks of one pack.
pub(super) const MAX_CHUNKS: usize = 65_536;
/// What sealing adds to a chunk.
pub(super) const SEAL_BYTES: usize = NONCE_BYTES + TAG_BYTES;
/// Bytes of an object before what is sealed: magic, the key's tag, the plain length, the method.
pub(super) const OBJECT_HEADER_BYTES: usize = HEADER_BYTES + 4 + 1;

const FOOTER_MAGIC: [u8; 8] = *b"RZPKEND\n";
const LEVEL: i32 = 1;

/// How the plain bytes were packed before they were sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Method {
    /// As they are: they do not compress.
    Plain = 0,
    /// One zstd frame.
    Zstd = 1,
}

impl Method {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Plain),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Where a chunk lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u32,
    /// Bytes in the pack.
    pub(super) stored: u32,
    /// Bytes of the chunk.
    pub(super) raw: u32,
    pub(super) method: Method,
}

/// A chunk, ready for a pack.
#[derive(Debug)]
pub(super) struct SealedChunk {
    pub(super) id: ChunkId,
    pub(super) raw: u32,
    pub(super) method: Method,
    pub(super) bytes: Vec<u8>,
}

/// Compresses and seals chunks, one after the other.
pub(super) struct Sealer {
    key: StoreKey,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    buffer: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(key: StoreKey) -> Self {
        Self {
            key,
            // Without memory for a compressor, chunks are stored as they are.
            zstd: zstd::bulk::Compressor::new(LEVEL).ok(),
            buffer: Vec::new(),
        }
    }

    pub(super) fn seal_chunk(&mut self, id: ChunkId, plain: &[u8]) -> SealedChunk {
        let raw = u32::try_from(plain.len()).expect("a chunk has at most 1 MiB");
        let (method, packed) = pack(&mut self.zstd, &mut self.buffer, plain);
        let bytes = self.key.seal(&chunk_binding(&id, raw, method), packed);
        SealedChunk {
            id,
            raw,
            method,
            bytes,
        }
    }

    /// Returns the whole file of an object.
    pub(super) fn seal_object(&mut self, kind: &str, plain: &[u8]) -> Vec<u8> {
        let raw = u32::try_from(plain.len()).expect("an object has at most 64 MiB");
        let (method, packed) = pack(&mut self.zstd, &mut self.buffer, plain);
        let sealed = self.key.seal(&object_binding(kind, raw, method), packed);
        let mut file = Vec::with_capacity(OBJECT_HEADER_BYTES + sealed.len());
        file.extend_from_slice(&OBJECT_MAGIC);
        file.extend_from_slice(self.key.tag());
        file.extend_from_slice(&raw.to_le_bytes());
        file.push(method as u8);
        file.extend_from_slice(&sealed);
        file
    }
}

/// Compresses, if that makes it smaller.
fn pack<'a>(
    zstd: &mut Option<zstd::bulk::Compressor<'static>>,
    buffer: &'a mut Vec<u8>,
    plain: &'a [u8],
) -> (Method, &'a [u8]) {
    let Some(zstd) = zstd else {
        return (Method::Plain, plain);
    };
    buffer.clear();
    buffer.reserve(zstd::zstd_safe::compress_bound(plain.len()));
    match zstd.compress_to_buffer(plain, buffer) {
        Ok(len) if len < plain.len() => (Method::Zstd, &buffer[..len]),
        _ => (Method::Plain, plain),
    }
}

/// Opens and unpacks chunks, one after the other.
pub(super) struct Opener {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Opener {
    pub(super) fn new() -> Self {
        Self {
            zstd: zstd::bulk::Decompressor::new().ok(),
        }
    }

    /// Returns the chunk's bytes, or `None` if they are not that chunk's.
    pub(super) fn open_chunk(
        &mut self,
        key: &StoreKey,
        id: &ChunkId,
        place: &Place,
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        let packed = key.open(&chunk_binding(id, place.raw, place.method), sealed)?;
        let plain = self.unpack(place.method, packed, place.raw)?;
        (key.chunk_id(&plain) == *id).then_some(plain)
    }

    /// Returns an object's bytes out of its file.
    pub(super) fn open_object(
        &mut self,
        key: &StoreKey,
        kind: &str,
        file: &[u8],
    ) -> Option<Vec<u8>> {
        let ObjectHeader { raw, method, .. } = ObjectHeader::parse(file).ok()?;
        let packed = key.open(
            &object_binding(kind, raw, method),
            &file[OBJECT_HEADER_BYTES..],
        )?;
        self.unpack(method, packed, raw)
    }

    /// The claimed length bounds what is unpacked: it was checked against the largest allowed.
    fn unpack(&mut self, method: Method, packed: Vec<u8>, raw: u32) -> Option<Vec<u8>> {
        let plain = match method {
            Method::Plain => packed,
            Method::Zstd => self.zstd.as_mut()?.decompress(&packed, raw as usize).ok()?,
        };
        (plain.len() == raw as usize).then_some(plain)
    }
}

fn chunk_binding(id: &ChunkId, raw: u32, method: Method) -> [u8; 5 + 32 + 4 + 1] {
    let mut bound = [0; 5 + 32 + 4 + 1];
    bound[..5].copy_from_slice(b"chunk");
    bound[5..37].copy_from_slice(id.as_bytes());
    bound[37..41].copy_from_slice(&raw.to_le_bytes());
    bound[41] = method as u8;
    bound
}

fn object_binding(kind: &str, raw: u32, method: Method) -> Vec<u8> {
    let mut bound = b"object".to_vec();
    bound.extend_from_slice(&raw.to_le_bytes());
    bound.push(method as u8);
    bound.extend_from_slice(kind.as_bytes());
    bound
}

/// A pack being put together in memory.
#[derive(Debug)]
pub(super) struct PackBuilder {
    bytes: Vec<u8>,
    index: Vec<u8>,
    ids: Vec<ChunkId>,
}

impl PackBuilder {
    pub(super) fn new(key: &StoreKey) -> Self {
        let mut bytes = PACK_MAGIC.to_vec();
        bytes.extend_from_slice(key.tag());
        Self {
            bytes,
            index: Vec::new(),
            ids: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether the chunk still fits.
    pub(super) fn fits(&self, chunk: &SealedChunk) -> bool {
        let size = self.bytes.len() + chunk.bytes.len() + self.index.len() + ENTRY_BYTES;
        size + FOOTER_BYTES <= MAX_PACK_BYTES && self.ids.len() < MAX_CHUNKS
    }

    pub(super) fn push(&mut self, chunk: &SealedChunk) {
        let stored = u32::try_from(chunk.bytes.len()).expect("a chunk has at most 1 MiB");
        self.bytes.extend_from_slice(&chunk.bytes);
        self.index.extend_from_slice(chunk.id.as_bytes());
        self.index.extend_from_slice(&stored.to_le_bytes());
        self.index.extend_from_slice(&chunk.raw.to_le_bytes());
        self.index.push(chunk.method as u8);
        self.ids.push(chunk.id);
    }

    /// Returns the file's bytes and the chunks in it.
    pub(super) fn finish(mut self) -> (Vec<u8>, Vec<ChunkId>) {
        let small = |len: usize| u32::try_from(len).expect("a pack has at most 16 MiB");
        let mut footer = small(self.bytes.len()).to_le_bytes().to_vec();
        footer.extend_from_slice(&small(self.ids.len()).to_le_bytes());
        footer.extend_from_slice(&FOOTER_MAGIC);
        let sum = checksum(&self.bytes[..HEADER_BYTES], &self.index, &footer);
        self.bytes.extend_from_slice(&self.index);
        self.bytes.extend_from_slice(&footer);
        self.bytes.extend_from_slice(&sum);
        (self.bytes, self.ids)
    }
}

fn checksum(header: &[u8], index: &[u8], footer: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in [header, index, footer] {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// What a pack says is in it.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) key_tag: [u8; 16],
    pub(super) chunks: Vec<(ChunkId, Place)>,
}

/// What a file of the store is.
#[derive(Debug)]
pub(super) enum Contents {
    Pack(Index),
    Object,
}

/// What an object says before what is sealed.
#[derive(Debug)]
pub(super) struct ObjectHeader {
    pub(super) key_tag: [u8; 16],
    pub(super) raw: u32,
    pub(super) method: Method,
}

impl ObjectHeader {
    pub(super) fn parse(file: &[u8]) -> Result<Self, DamagedWhat> {
        let header: &[u8; OBJECT_HEADER_BYTES] = file.first_chunk().ok_or(DamagedWhat::Size)?;
        if header[..8] != OBJECT_MAGIC {
            return Err(DamagedWhat::Header);
        }
        let raw = u32_at(header, HEADER_BYTES);
        if raw as usize > MAX_OBJECT_BYTES {
            return Err(DamagedWhat::Size);
        }
        Ok(Self {
            key_tag: header[8..HEADER_BYTES].try_into().expect("16 bytes"),
            raw,
            method: Method::from_byte(header[HEADER_BYTES + 4]).ok_or(DamagedWhat::Header)?,
        })
    }
}

/// Why a file's index cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(std::io::Error),
    Damaged(DamagedWhat),
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // It became shorter while it was read.
            std::io::ErrorKind::UnexpectedEof => Self::Damaged(DamagedWhat::Size),
            _ => Self::Io(error),
        }
    }
}

impl From<DamagedWhat> for ReadError {
    fn from(what: DamagedWhat) -> Self {
        Self::Damaged(what)
    }
}

/// Reads what a file is, and a pack's index; not what is sealed in it.
pub(super) fn read_contents(file: &File) -> Result<Contents, ReadError> {
    let size = file.metadata()?.len();
    if size < HEADER_BYTES as u64 || size > super::MAX_FILE_BYTES {
        return Err(DamagedWhat::Size.into());
    }
    let size = usize::try_from(size).map_err(|_| DamagedWhat::Size)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let key_tag: [u8; 16] = header[8..].try_into().expect("16 bytes");
    if header[..8] == OBJECT_MAGIC {
        let mut header = [0; OBJECT_HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        ObjectHeader::parse(&header)?;
        if size < OBJECT_HEADER_BYTES + SEAL_BYTES {
            return Err(DamagedWhat::Size.into());
        }
        return Ok(Contents::Object);
    }
    if header[..8] != PACK_MAGIC {
        return Err(DamagedWhat::Header.into());
    }
    if !(HEADER_BYTES + FOOTER_BYTES..=MAX_PACK_BYTES).contains(&size) {
        return Err(DamagedWhat::Size.into());
    }
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, (size - FOOTER_BYTES) as u64)?;
    let (start, count) = (u32_at(&footer, 0) as usize, u32_at(&footer, 4) as usize);
    // Both are below 2^32, and a usize has 64 bits: no overflow.
    let fits = start + count * ENTRY_BYTES + FOOTER_BYTES == size;
    if footer[8..16] != FOOTER_MAGIC || !fits || count == 0 || count > MAX_CHUNKS {
        return Err(DamagedWhat::Index.into());
    }
    let mut index = vec![0; count * ENTRY_BYTES];
    file.read_exact_at(&mut index, start as u64)?;
    if checksum(&header, &index, &footer[..16]) != footer[16..] {
        return Err(DamagedWhat::Index.into());
    }
    let chunks = parse_index(&index, start)?;
    Ok(Contents::Pack(Index { key_tag, chunks }))
}

fn parse_index(index: &[u8], end: usize) -> Result<Vec<(ChunkId, Place)>, DamagedWhat> {
    let mut offset = HEADER_BYTES;
    let mut chunks = Vec::with_capacity(index.len() / ENTRY_BYTES);
    for entry in index.chunks_exact(ENTRY_BYTES) {
        let id = ChunkId::from_bytes(entry[..32].try_into().expect("32 bytes"));
        let (stored, raw) = (u32_at(entry, 32), u32_at(entry, 36));
        let method = Method::from_byte(entry[40]).ok_or(DamagedWhat::Index)?;
        let packed = (stored as usize)
            .checked_sub(SEAL_BYTES)
            .ok_or(DamagedWhat::Index)?;
        let sound = match method {
            Method::Plain => packed == raw as usize,
            Method::Zstd => packed < raw as usize,
        };
        if !sound || raw as usize > MAX_CHUNK_BYTES {
            return Err(DamagedWhat::Index);
        }
        let place = Place {
            offset: u32::try_from(offset).map_err(|_| DamagedWhat::Index)?,
            stored,
            raw,
            method,
        };
        offset += stored as usize;
        if offset > end {
            return Err(DamagedWhat::Index);
        }
        chunks.push((id, place));
    }
    if offset == end {
        Ok(chunks)
    } else {
        Err(DamagedWhat::Index)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
