//! Reading chunks back, each verified.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    fs::File,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    ChunkError, ChunkId, DamagedWhat, PackId, StoreKey,
    format::{Opener, Place},
    store::Inner,
};

/// Files that a reader keeps open.
const MAX_OPEN_FILES: usize = 64;
/// Decompressors that a reader keeps.
const MAX_OPENERS: usize = 16;

/// Where chunks come from: packs that are here, or that are still on their way.
pub trait ReadChunks: fmt::Debug + Send + Sync {
    /// Returns a chunk's bytes, verified against its id. May block for as long as it takes to
    /// have it.
    ///
    /// # Errors
    /// [`ChunkError::MissingChunk`], [`ChunkError::MissingPacks`], [`ChunkError::Damaged`],
    /// [`ChunkError::Io`].
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError>;
}

impl ReadChunks for ChunkReader {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        Self::read(self, id)
    }
}

/// Reads the chunks of some packs. Shared by reference between threads.
pub struct ChunkReader {
    inner: Arc<Inner>,
    key: StoreKey,
    packs: Vec<PackId>,
    index: HashMap<ChunkId, (u32, Place)>,
    /// Further places of chunks that several packs hold.
    others: HashMap<ChunkId, Vec<(u32, Place)>>,
    files: Mutex<VecDeque<(u32, Arc<File>)>>,
    openers: Mutex<Vec<Opener>>,
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkReader")
            .field("packs", &self.packs.len())
            .field("chunks", &self.index.len())
            .finish_non_exhaustive()
    }
}

impl Drop for ChunkReader {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        for pack in &self.packs {
            state.release(pack);
        }
    }
}

impl ChunkReader {
    pub(super) fn open(
        inner: Arc<Inner>,
        key: StoreKey,
        packs: &[PackId],
    ) -> Result<Self, ChunkError> {
        let wanted: BTreeSet<PackId> = packs.iter().copied().collect();
        inner.hold_all(&wanted)?;
        // From here on its drop releases the packs, also on an error.
        let mut reader = Self {
            inner,
            key,
            packs: wanted.into_iter().collect(),
            index: HashMap::new(),
            others: HashMap::new(),
            files: Mutex::default(),
            openers: Mutex::default(),
        };
        for at in 0..reader.packs.len() {
            let pack = reader.packs[at];
            let Some((_, index)) = reader.inner.open_pack(&reader.key, &pack)? else {
                continue;
            };
            let number = u32::try_from(at).expect("fewer than 2^32 packs");
            reader.index.reserve(index.chunks.len());
            for (id, place) in index.chunks {
                match reader.index.entry(id) {
                    std::collections::hash_map::Entry::Vacant(entry) => {
                        entry.insert((number, place));
                    }
                    std::collections::hash_map::Entry::Occupied(_) => {
                        reader.others.entry(id).or_default().push((number, place));
                    }
                }
            }
        }
        Ok(reader)
    }

    /// Returns a chunk's bytes, verified against its id. A chunk that several packs hold is read
    /// from the first that has it undamaged.
    ///
    /// # Errors
    /// [`ChunkError::MissingChunk`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        let first = self.index.get(id);
        let (pack, place) = first.ok_or(ChunkError::MissingChunk { chunk: *id })?;
        let error = match self.read_at(id, *pack, place) {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error,
        };
        let mut others = self.others.get(id).into_iter().flatten();
        others
            .find_map(|(pack, place)| self.read_at(id, *pack, place).ok())
            .ok_or(error)
    }

    /// Whether one of the packs says that it holds this chunk.
    #[must_use]
    pub fn contains(&self, id: &ChunkId) -> bool {
        self.index.contains_key(id)
    }

    /// Returns how long a chunk is, if one of the packs holds it.
    #[must_use]
    pub fn len_of(&self, id: &ChunkId) -> Option<usize> {
        self.index.get(id).map(|(_, place)| place.raw as usize)
    }

    /// Returns which pack a chunk is read from.
    #[must_use]
    pub fn pack_of(&self, id: &ChunkId) -> Option<PackId> {
        let (pack, _) = self.index.get(id)?;
        Some(self.packs[*pack as usize])
    }

    /// Returns the packs that are read, sorted.
    #[must_use]
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    fn read_at(&self, id: &ChunkId, pack: u32, place: &Place) -> Result<Vec<u8>, ChunkError> {
        let name = self.packs[pack as usize];
        let file = self.file(pack)?;
        let mut sealed = vec![0; place.stored as usize];
        let read = file.read_exact_at(&mut sealed, place.offset.into());
        let mut opener = lock(&self.openers).pop().unwrap_or_else(Opener::new);
        let opened = match &read {
            Ok(()) => opener.open_chunk(&self.key, id, place, &sealed),
            Err(_) => None,
        };
        let mut openers = lock(&self.openers);
        if openers.len() < MAX_OPENERS {
            openers.push(opener);
        }
        drop(openers);
        if let Some(bytes) = opened {
            return Ok(bytes);
        }
        // Did the file change, or was it made like this? Only the first can be mended.
        self.inner.verify(&name)?;
        Err(ChunkError::Damaged {
            pack: name,
            what: DamagedWhat::Chunk(*id),
        })
    }

    fn file(&self, pack: u32) -> Result<Arc<File>, ChunkError> {
        {
            let mut files = lock(&self.files);
            if let Some(at) = files.iter().position(|(number, _)| *number == pack) {
                let found = files.remove(at).expect("the position was just found");
                let file = Arc::clone(&found.1);
                files.push_front(found);
                return Ok(file);
            }
        }
        let name = self.packs[pack as usize];
        let path = self.inner.path(&name);
        let path = path.ok_or_else(|| self.inner.absent(&name))?;
        let file = Arc::new(File::open(&path).map_err(ChunkError::io(&path))?);
        let mut files = lock(&self.files);
        files.push_front((pack, Arc::clone(&file)));
        files.truncate(MAX_OPEN_FILES);
        Ok(file)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every section leaves its state whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
