//! Storing chunks.
//!
//! The caller's thread names each chunk and looks whether a pack has it. New chunks go to
//! compressing threads, from there, in the order they were put, into the pack being built, and
//! whole packs to a thread that writes and syncs them: the same chunks in the same order always
//! make the same packs.

mod line;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

use super::{
    ChunkError, ChunkId, MAX_CHUNK_BYTES, PackId, StoreKey,
    reader::ChunkReader,
    store::{Inner, Origin},
};
use line::Line;

/// Stores chunks under one key. Several may work at once; a chunk that two of them are given at
/// the same moment may be stored by both.
pub struct PackWriter {
    inner: Arc<Inner>,
    key: StoreKey,
    /// Packs that chunks were found in, each held until the writer's end.
    found: BTreeSet<PackId>,
    /// Packs of other nodes that chunks were looked up in; `None` if it cannot be read.
    foreign: BTreeMap<PackId, Option<ChunkReader>>,
    /// Packs in which chunks do not count as stored.
    avoided: BTreeSet<PackId>,
    /// Chunks that this writer was given first.
    new: HashSet<ChunkId>,
    line: Option<Line>,
    failed: bool,
    stats: WriteStats,
}

/// What a writer was given and what it had to store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStats {
    /// Chunks given.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks that no pack held yet.
    pub new_chunks: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Bytes of the packs written so far, compressed and sealed.
    pub stored_bytes: u64,
}

impl fmt::Debug for PackWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackWriter")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl PackWriter {
    pub(super) fn new(inner: Arc<Inner>, key: StoreKey) -> Self {
        Self {
            inner,
            key,
            found: BTreeSet::new(),
            foreign: BTreeMap::new(),
            avoided: BTreeSet::new(),
            new: HashSet::new(),
            line: None,
            failed: false,
            stats: WriteStats::default(),
        }
    }

    /// Stores chunks anew that lie in these packs: they are to be given up.
    #[must_use]
    pub fn avoiding(mut self, packs: &[PackId]) -> Self {
        self.avoided.extend(packs);
        self
    }

    /// Stores a chunk unless a pack has it already; returns its name. Compression and sealing
    /// go on in other threads: only [`Self::finish`] says that it is stored.
    ///
    /// # Errors
    /// [`ChunkError::ChunkTooLarge`]; whatever a chunk before ran into, and then
    /// [`ChunkError::WriterFailed`] for every one after it.
    pub fn put(&mut self, bytes: &[u8]) -> Result<ChunkId, ChunkError> {
        if bytes.len() > MAX_CHUNK_BYTES {
            return Err(ChunkError::ChunkTooLarge { bytes: bytes.len() });
        }
        if self.failed {
            return Err(ChunkError::WriterFailed);
        }
        let id = self.key.chunk_id(bytes);
        self.stats.chunks += 1;
        self.stats.bytes += bytes.len() as u64;
        if self.new.contains(&id) || self.is_stored(&id) {
            return Ok(id);
        }
        self.new.insert(id);
        self.stats.new_chunks += 1;
        self.stats.new_bytes += bytes.len() as u64;
        let line = match &mut self.line {
            Some(line) => line,
            None => self.line.insert(Line::start(&self.inner, &self.key)?),
        };
        if line.push(id, bytes.to_vec()) {
            return Ok(id);
        }
        self.failed = true;
        Err(self.end_line().unwrap_or(ChunkError::WriterFailed))
    }

    /// Waits until all is durable; returns every pack that a chunk put lies in, older packs
    /// too, sorted.
    ///
    /// The packs are safe from [`super::ChunkStore::gc`] for its grace time: pin them before it
    /// ends, or use [`Self::finish_pinned`].
    ///
    /// # Errors
    /// Whatever storing ran into.
    pub fn finish(mut self) -> Result<Vec<PackId>, ChunkError> {
        self.settle().map(|(packs, _)| packs)
    }

    /// Like [`Self::finish`], and says what was stored in all.
    ///
    /// # Errors
    /// Whatever storing ran into.
    pub fn finish_with_stats(mut self) -> Result<(Vec<PackId>, WriteStats), ChunkError> {
        self.settle()
    }

    /// Like [`Self::finish`], and pins the packs as `name` before anybody can remove them.
    ///
    /// # Errors
    /// Those of [`Self::finish`] and of [`super::ChunkStore::pin`].
    pub fn finish_pinned(mut self, name: &str) -> Result<Vec<PackId>, ChunkError> {
        let (packs, _) = self.settle()?;
        self.inner.pin(name, &packs, true)?;
        Ok(packs)
    }

    /// Returns what was given and stored so far.
    #[must_use]
    pub fn stats(&self) -> WriteStats {
        WriteStats {
            stored_bytes: self.stats.stored_bytes
                + self.line.as_ref().map_or(0, Line::stored_bytes),
            ..self.stats
        }
    }

    fn settle(&mut self) -> Result<(Vec<PackId>, WriteStats), ChunkError> {
        if self.failed {
            return Err(ChunkError::WriterFailed);
        }
        if let Some(error) = self.end_line() {
            self.failed = true;
            return Err(error);
        }
        if !self.found.is_empty() {
            // Also for packs that another writer has named and not synced yet.
            self.inner.sync_own()?;
        }
        for pack in &self.found {
            self.inner.hand_out(pack);
        }
        Ok((self.found.iter().copied().collect(), self.stats))
    }

    /// Waits for what is on its way; takes over the packs it made.
    fn end_line(&mut self) -> Option<ChunkError> {
        let ended = self.line.take()?.end();
        self.stats.stored_bytes += ended.stored_bytes;
        // The line held each of them for us; one hold is enough.
        for pack in ended.written {
            if !self.found.insert(pack) {
                self.inner.state().release(&pack);
            }
        }
        ended.error
    }

    /// Whether a pack has the chunk; that pack is then held until the writer's end.
    fn is_stored(&mut self, id: &ChunkId) -> bool {
        let Some(at) = self.inner.find(id) else {
            return false;
        };
        if self.avoided.contains(&at.pack) {
            return false;
        }
        if at.origin == Origin::Held && !self.is_true(&at.pack, id) {
            return false;
        }
        // Between finding and holding it may have been removed.
        self.found.contains(&at.pack) || (self.inner.hold(&at.pack) && self.found.insert(at.pack))
    }

    /// Reads the chunk from a pack that somebody else made.
    fn is_true(&mut self, pack: &PackId, id: &ChunkId) -> bool {
        let (inner, key) = (&self.inner, &self.key);
        let open = || ChunkReader::open(Arc::clone(inner), key.clone(), &[*pack]).ok();
        let reader = self.foreign.entry(*pack).or_insert_with(open);
        reader
            .as_ref()
            .is_some_and(|reader| reader.read(id).is_ok())
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.abandon();
        }
        self.end_line();
        let mut state = self.inner.state();
        for pack in &self.found {
            state.release(pack);
        }
    }
}
