//! The bytes of a file or a directory, as chunks.
//!
//! Chunks are cut where the content says (FastCDC), so that an insertion changes the chunks
//! around it alone. A few chunks are named directly; many are named by lists, which are chunks
//! too and are cut by the names in them, for the same reason.

use std::fmt;

use fastcdc::v2020::FastCDC;

use super::{
    Malformed, VolumeError,
    codec::{Reader, Writer},
};
use crate::chunks::{ChunkId, PackWriter, ReadChunks};

/// Smallest chunk, but for the last of a content.
const MIN_CHUNK: usize = 16 * 1024;
/// What chunks are long on average.
const AVERAGE_CHUNK: usize = 64 * 1024;
/// Largest chunk.
const MAX_CHUNK: usize = 256 * 1024;
/// Most chunks that are named directly.
const MAX_DIRECT: usize = 32;
/// Fewest names in a list, but for the last of a content.
const MIN_LIST: usize = 64;
/// Most names in a list.
const MAX_LIST: usize = 1024;
/// Levels of lists: enough for more bytes than fit into a `u64`.
const MAX_LEVELS: u8 = 8;
/// Most chunks that one walk over a content visits, also of one that names the same list again
/// and again: 4 TiB of average chunks.
const MAX_VISITS: u64 = 1 << 26;
/// Bytes of one name in a list.
const PART_BYTES: usize = 32 + 8;

/// A digest of a tree or a file: the same for the same bytes under the same key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The bytes of a file or a directory. Equal ones have equal bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    /// Lists between this and the chunks.
    levels: u8,
    parts: Vec<Part>,
}

/// A chunk of a content, or a list of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) id: ChunkId,
    /// Bytes of the content in it.
    size: u64,
}

impl Content {
    /// Stores `bytes`.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`].
    pub fn store(writer: &mut PackWriter, bytes: &[u8]) -> Result<Self, VolumeError> {
        let mut chunker = Chunker::default();
        chunker.push(writer, bytes)?;
        chunker.finish(writer)
    }

    /// Returns how many bytes it has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns a digest that equal contents share.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut out = Writer::default();
        self.encode(&mut out);
        Digest(blake3::derive_key(
            "rhizome 2026-11-30 volume: digest",
            &out.0,
        ))
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
        out.u8(self.levels);
        out.u8(u8::try_from(self.parts.len()).expect("a content names few parts"));
        for part in &self.parts {
            part.encode(out);
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let size = from.u64().ok_or(Malformed::Encoding)?;
        let levels = from.u8().ok_or(Malformed::Encoding)?;
        let count = usize::from(from.u8().ok_or(Malformed::Encoding)?);
        if levels > MAX_LEVELS || count > MAX_DIRECT {
            return Err(Malformed::Sizes);
        }
        let bytes = from.raw(count * PART_BYTES).ok_or(Malformed::Encoding)?;
        let parts = decode_parts(bytes, size, levels)?;
        Ok(Self {
            size,
            levels,
            parts,
        })
    }

    /// Returns up to `len` bytes from `offset` on; fewer only at the end.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`], [`VolumeError::Malformed`].
    pub fn read(
        &self,
        chunks: &dyn ReadChunks,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, VolumeError> {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut out = Vec::new();
        self.visit(chunks, offset..end, &mut |at, part, _| {
            let bytes = part.read(chunks)?;
            let from = usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX);
            let to = usize::try_from(end - at).unwrap_or(usize::MAX);
            let from = from.min(bytes.len());
            out.extend_from_slice(&bytes[from..to.min(bytes.len())]);
            Ok(())
        })?;
        Ok(out)
    }

    /// Hands out all bytes, piece by piece.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`], [`VolumeError::Malformed`], whatever `take` returns.
    pub fn for_each_piece(
        &self,
        chunks: &dyn ReadChunks,
        take: &mut dyn FnMut(&[u8]) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        self.visit(chunks, 0..self.size, &mut |_, part, _| {
            take(&part.read(chunks)?)
        })
    }

    /// Names every chunk that it takes to read this, lists too.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`], [`VolumeError::Malformed`].
    pub fn for_each_chunk(
        &self,
        chunks: &dyn ReadChunks,
        see: &mut dyn FnMut(&ChunkId),
    ) -> Result<(), VolumeError> {
        // A list is seen before what is in it.
        let mut lists = Vec::new();
        self.visit(chunks, 0..self.size, &mut |_, part, above| {
            for id in above {
                if !lists.contains(id) {
                    see(id);
                    lists.push(*id);
                }
            }
            lists.retain(|id| above.contains(id));
            see(&part.id);
            Ok(())
        })
    }

    /// Visits the chunks that hold any byte of `range`, with the offset of each and the lists
    /// above it.
    fn visit(
        &self,
        chunks: &dyn ReadChunks,
        range: std::ops::Range<u64>,
        visit: &mut Visit<'_>,
    ) -> Result<(), VolumeError> {
        let mut above = Vec::new();
        let mut walk = Walk {
            chunks,
            range,
            visits: 0,
            visit,
        };
        walk.parts(&self.parts, self.levels, 0, &mut above)
    }
}

/// What is told of each chunk: its offset, the chunk, and the lists above it.
type Visit<'v> = dyn FnMut(u64, &Part, &[ChunkId]) -> Result<(), VolumeError> + 'v;

struct Walk<'a, 'v> {
    chunks: &'a dyn ReadChunks,
    range: std::ops::Range<u64>,
    visits: u64,
    visit: &'a mut Visit<'v>,
}

impl Walk<'_, '_> {
    /// `levels` falls with each call, and was bounded when the content was decoded.
    fn parts(
        &mut self,
        parts: &[Part],
        levels: u8,
        mut at: u64,
        above: &mut Vec<ChunkId>,
    ) -> Result<(), VolumeError> {
        for part in parts {
            let next = at + part.size;
            if next > self.range.start && at < self.range.end {
                self.visits += 1;
                if self.visits > MAX_VISITS {
                    return Err(VolumeError::TooLarge);
                }
                if levels == 0 {
                    (self.visit)(at, part, above)?;
                } else {
                    let list = self.chunks.read(&part.id)?;
                    if list.is_empty() || list.len() > MAX_LIST * PART_BYTES {
                        return Err(Malformed::Sizes.into());
                    }
                    let below = decode_parts(&list, part.size, levels - 1)?;
                    above.push(part.id);
                    self.parts(&below, levels - 1, at, above)?;
                    above.pop();
                }
            }
            at = next;
        }
        Ok(())
    }
}

impl Part {
    fn encode(&self, out: &mut Writer) {
        out.raw(self.id.as_bytes());
        out.u64(self.size);
    }

    fn read(&self, chunks: &dyn ReadChunks) -> Result<Vec<u8>, VolumeError> {
        let bytes = chunks.read(&self.id)?;
        if bytes.len() as u64 == self.size {
            Ok(bytes)
        } else {
            Err(Malformed::Sizes.into())
        }
    }
}

/// Reads parts that must make up `size` bytes.
fn decode_parts(bytes: &[u8], size: u64, levels: u8) -> Result<Vec<Part>, Malformed> {
    let (parts, []) = bytes.as_chunks::<PART_BYTES>() else {
        return Err(Malformed::Encoding);
    };
    let mut left = size;
    let mut decoded = Vec::with_capacity(parts.len());
    for part in parts {
        let mut from = Reader(part);
        let id = from.array().map(ChunkId::from_bytes);
        let (id, size) = id.zip(from.u64()).ok_or(Malformed::Encoding)?;
        if size == 0 || (levels == 0 && size > MAX_CHUNK as u64) {
            return Err(Malformed::Sizes);
        }
        left = left.checked_sub(size).ok_or(Malformed::Sizes)?;
        decoded.push(Part { id, size });
    }
    if left == 0 {
        Ok(decoded)
    } else {
        Err(Malformed::Sizes)
    }
}

/// Cuts bytes that come in pieces into chunks. The same bytes give the same content, however
/// they come.
#[derive(Debug, Default)]
pub struct Chunker {
    buffer: Vec<u8>,
    parts: Vec<Part>,
}

impl Chunker {
    /// Takes more bytes.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`].
    pub fn push(&mut self, writer: &mut PackWriter, bytes: &[u8]) -> Result<(), VolumeError> {
        self.buffer.extend_from_slice(bytes);
        // Where a chunk ends is certain once the longest one possible is there.
        self.cut(writer, MAX_CHUNK)
    }

    /// Stores what is left and returns the whole.
    ///
    /// # Errors
    /// [`VolumeError::Chunks`].
    pub fn finish(mut self, writer: &mut PackWriter) -> Result<Content, VolumeError> {
        self.cut(writer, 1)?;
        let size = self.parts.iter().map(|part| part.size).sum();
        let (mut parts, mut levels) = (self.parts, 0);
        while parts.len() > MAX_DIRECT {
            parts = store_lists(writer, &parts)?;
            levels += 1;
        }
        Ok(Content {
            size,
            levels,
            parts,
        })
    }

    fn cut(&mut self, writer: &mut PackWriter, enough: usize) -> Result<(), VolumeError> {
        let mut start = 0;
        if self.buffer.len() >= enough {
            let cutter = FastCDC::new(&self.buffer, MIN_CHUNK, AVERAGE_CHUNK, MAX_CHUNK);
            while self.buffer.len() - start >= enough {
                let (_, end) = cutter.cut(start, self.buffer.len() - start);
                let chunk = &self.buffer[start..end];
                let id = writer.put(chunk)?;
                let size = chunk.len() as u64;
                self.parts.push(Part { id, size });
                start = end;
            }
        }
        self.buffer.drain(..start);
        Ok(())
    }
}

fn store_lists(writer: &mut PackWriter, parts: &[Part]) -> Result<Vec<Part>, VolumeError> {
    let mut lists = Vec::new();
    let (mut list, mut size, mut count) = (Writer::default(), 0, 0);
    for (at, part) in parts.iter().enumerate() {
        part.encode(&mut list);
        size += part.size;
        count += 1;
        // One name in 256 ends a list.
        let ends = count >= MIN_LIST && part.id.as_bytes()[0] == 0;
        if ends || count == MAX_LIST || at + 1 == parts.len() {
            let id = writer.put(&list.0)?;
            lists.push(Part { id, size });
            (list, size, count) = (Writer::default(), 0, 0);
        }
    }
    Ok(lists)
}
