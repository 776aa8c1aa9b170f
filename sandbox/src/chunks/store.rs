//! The directory of packs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use super::{
    ChunkError, ChunkId, ChunkReader, DamagedWhat, Freed, MAX_FILE_BYTES, PackId, PackWriter,
    StoreKey,
    disk::Disk,
    format::{Contents, Index, ReadError, read_contents},
    gc, object,
    pins::{self, Pins},
};
use crate::staging::make_private_dir;

/// Bytes read at once while a file is hashed.
const READ_BYTES: usize = 256 * 1024;

/// A directory of packs and objects. Clones share it.
#[derive(Debug, Clone)]
pub struct ChunkStore {
    pub(super) inner: Arc<Inner>,
}

/// What a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Packs and objects.
    pub packs: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Different chunks.
    pub chunks: u64,
    /// Packs and objects found to be damaged.
    pub damaged: u64,
}

impl ChunkStore {
    /// Opens the store in `dir`, making it if need be; leftovers of a crash are removed.
    ///
    /// # Errors
    /// [`ChunkError::InUse`], [`ChunkError::Io`].
    pub fn open(dir: &Path) -> Result<Self, ChunkError> {
        Ok(Self {
            inner: Arc::new(Inner::open(dir)?),
        })
    }

    /// Starts writing chunks under `key`.
    #[must_use]
    pub fn writer(&self, key: &StoreKey) -> PackWriter {
        PackWriter::new(Arc::clone(&self.inner), key.clone())
    }

    /// Opens packs to read; while the reader lives, none of them is removed. An object among
    /// them has no chunks and is fine.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`] naming all that are not here, [`ChunkError::Damaged`],
    /// [`ChunkError::OtherKey`].
    pub fn reader(&self, key: &StoreKey, packs: &[PackId]) -> Result<ChunkReader, ChunkError> {
        ChunkReader::open(Arc::clone(&self.inner), key.clone(), packs)
    }

    /// Stores a blob of its own, sealed, durable on return. `kind` is bound to it: it opens as
    /// nothing else. The same bytes under the same key and kind are the same object.
    ///
    /// # Errors
    /// [`ChunkError::ObjectTooLarge`], [`ChunkError::Io`].
    pub fn put_object(
        &self,
        key: &StoreKey,
        kind: &str,
        bytes: &[u8],
    ) -> Result<PackId, ChunkError> {
        object::put(&self.inner, key, kind, bytes)
    }

    /// Returns the bytes of an object, verified.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::Damaged`], [`ChunkError::OtherKey`].
    pub fn get_object(
        &self,
        key: &StoreKey,
        kind: &str,
        id: &PackId,
    ) -> Result<Vec<u8>, ChunkError> {
        object::get(&self.inner, key, kind, id)
    }

    /// Returns the file of a pack or object, to be served to others as it is.
    #[must_use]
    pub fn path(&self, id: &PackId) -> Option<PathBuf> {
        self.inner.path(id)
    }

    /// Whether a pack or object is here and not known to be damaged.
    #[must_use]
    pub fn has(&self, id: &PackId) -> bool {
        self.inner.path(id).is_some()
    }

    /// Returns the size of a pack's or object's file.
    #[must_use]
    pub fn size_of(&self, id: &PackId) -> Option<u64> {
        self.inner.state().packs.get(id).map(|pack| pack.bytes)
    }

    /// Returns those that are not here, in the order given, each once.
    #[must_use]
    pub fn missing(&self, ids: &[PackId]) -> Vec<PackId> {
        self.inner.state().missing(ids)
    }

    /// Takes in a file that another node sent: its hash must be `id` and it must be a
    /// well-formed pack or object. Durable on return; one that is here already is fine.
    ///
    /// The file is moved; from another file system it is copied and then removed. It is gone
    /// also when it was not what was asked for.
    ///
    /// # Errors
    /// [`ChunkError::NotThatPack`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn import(&self, id: &PackId, from: &Path) -> Result<(), ChunkError> {
        self.inner.import(id, from)
    }

    /// Returns the names of the chunks that a pack says it holds; none for an object. It takes no
    /// key: the names alone say nothing.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn chunks_of(&self, id: &PackId) -> Result<Vec<ChunkId>, ChunkError> {
        self.inner.chunks_of(id)
    }

    /// Reads a whole pack or object and compares it with its name.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn verify(&self, id: &PackId) -> Result<(), ChunkError> {
        self.inner.verify(id)
    }

    /// Keeps packs and objects from being removed until `unpin(name)`; durable on return. A pin
    /// of this name is replaced.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn pin(&self, name: &str, packs: &[PackId]) -> Result<(), ChunkError> {
        self.inner.pin(name, packs, true)
    }

    /// Like [`Self::pin`], also for what is not here yet: pin first, then import.
    ///
    /// # Errors
    /// [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn pin_ahead(&self, name: &str, packs: &[PackId]) -> Result<(), ChunkError> {
        self.inner.pin(name, packs, false)
    }

    /// Removes a pin; returns whether there was one.
    ///
    /// # Errors
    /// [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn unpin(&self, name: &str) -> Result<bool, ChunkError> {
        self.inner.unpin(name)
    }

    /// Returns what a pin holds.
    #[must_use]
    pub fn pinned(&self, name: &str) -> Option<Vec<PackId>> {
        self.inner.state().pins.held.get(name).cloned()
    }

    /// Returns the names of all pins, sorted.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        self.inner.state().pins.held.keys().cloned().collect()
    }

    /// Removes what is neither pinned, nor in use by a writer or reader, nor newer (or handed
    /// out by a writer more lately) than `grace`.
    ///
    /// # Errors
    /// [`ChunkError::DamagedPin`]: what it kept is unknown, so nothing is removed.
    /// [`ChunkError::Io`].
    pub fn gc(&self, grace: Duration) -> Result<Freed, ChunkError> {
        gc::collect(&self.inner, grace)
    }

    /// Returns what the store holds.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let state = self.inner.state();
        StoreStats {
            packs: state.packs.len() as u64,
            bytes: state.packs.values().map(|pack| pack.bytes).sum(),
            chunks: state.chunks.len() as u64,
            damaged: state.packs.values().filter(|pack| pack.damaged).count() as u64,
        }
    }
}

/// Where a pack came from, which is the directory it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Written here: its index is true.
    Own,
    /// Sent by another node, which may claim what it likes: a chunk counts as stored in it only
    /// after it was read from it.
    Held,
}

#[derive(Debug)]
pub(super) struct Inner {
    own: PathBuf,
    held: PathBuf,
    drafts: PathBuf,
    pins: PathBuf,
    pub(super) disk: Disk,
    state: Mutex<State>,
    /// Held while a pin file is written.
    pinning: Mutex<()>,
    last_draft: AtomicU64,
    _lock: File,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) packs: BTreeMap<PackId, Pack>,
    /// Pack numbers, to keep an entry of `chunks` small.
    slots: Vec<Option<PackId>>,
    free: Vec<u32>,
    /// Where a chunk is stored, by the first half of its name. Two chunks with the same half
    /// cost space, not truth: the first is stored again.
    chunks: HashMap<[u8; 16], u32>,
    pub(super) pins: Pins,
}

#[derive(Debug)]
pub(super) struct Pack {
    slot: u32,
    pub(super) origin: Origin,
    pub(super) bytes: u64,
    /// Writers and readers that need it now.
    pub(super) uses: u32,
    /// When a writer last said that its chunks are in it.
    pub(super) handed_out: Option<Instant>,
    pub(super) damaged: bool,
}

/// Where a chunk is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pack: PackId,
    pub(super) origin: Origin,
}

impl State {
    fn missing(&self, ids: &[PackId]) -> Vec<PackId> {
        let mut seen = BTreeSet::new();
        let absent = |id: &&PackId| self.packs.get(id).is_none_or(|pack| pack.damaged);
        let absent = ids.iter().filter(absent).copied();
        absent.filter(|id| seen.insert(*id)).collect()
    }

    fn add(&mut self, id: PackId, bytes: u64, chunks: &[ChunkId], origin: Origin) {
        let damaged = false;
        self.forget(&id, &[]);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 packs fit on a disk")
        });
        self.slots[slot as usize] = Some(id);
        for chunk in chunks {
            match origin {
                Origin::Own => {
                    self.chunks.insert(half(chunk), slot);
                }
                // What was written here is not displaced by what somebody sent.
                Origin::Held => {
                    self.chunks.entry(half(chunk)).or_insert(slot);
                }
            }
        }
        let pack = Pack {
            slot,
            origin,
            bytes,
            uses: 0,
            handed_out: None,
            damaged,
        };
        self.packs.insert(id, pack);
    }

    /// Drops a pack and what is known to be in it.
    pub(super) fn forget(&mut self, id: &PackId, chunks: &[ChunkId]) {
        let Some(pack) = self.packs.remove(id) else {
            return;
        };
        for chunk in chunks {
            if self.chunks.get(&half(chunk)) == Some(&pack.slot) {
                self.chunks.remove(&half(chunk));
            }
        }
        self.slots[pack.slot as usize] = None;
        self.free.push(pack.slot);
    }

    fn find(&self, chunk: &ChunkId) -> Option<Found> {
        let slot = *self.chunks.get(&half(chunk))?;
        let id = self.slots[slot as usize]?;
        let pack = self.packs.get(&id).filter(|pack| !pack.damaged)?;
        Some(Found {
            pack: id,
            origin: pack.origin,
        })
    }

    pub(super) fn release(&mut self, id: &PackId) {
        if let Some(pack) = self.packs.get_mut(id) {
            pack.uses = pack.uses.saturating_sub(1);
        }
    }
}

fn half(chunk: &ChunkId) -> [u8; 16] {
    *chunk.as_bytes().first_chunk().expect("16 of 32 bytes")
}

impl Inner {
    fn open(dir: &Path) -> Result<Self, ChunkError> {
        let at = |name: &str| dir.join(name);
        let inner = Self {
            own: at("own"),
            held: at("held"),
            drafts: at("drafts"),
            pins: at("pins"),
            disk: Disk::default(),
            state: Mutex::default(),
            pinning: Mutex::default(),
            last_draft: AtomicU64::new(0),
            _lock: lock(dir)?,
        };
        for dir in [&inner.own, &inner.held, &inner.drafts, &inner.pins] {
            make_private_dir(dir).map_err(ChunkError::io(dir))?;
        }
        for draft in fs::read_dir(&inner.drafts).map_err(ChunkError::io(&inner.drafts))? {
            let path = draft.map_err(ChunkError::io(&inner.drafts))?.path();
            fs::remove_file(&path).map_err(ChunkError::io(&path))?;
        }
        let mut state = State {
            pins: pins::load(&inner.pins)?,
            ..State::default()
        };
        load(&inner.held, Origin::Held, &mut state)?;
        load(&inner.own, Origin::Own, &mut state)?;
        *inner.state() = state;
        // Names that were given before a crash of the host may have been lost with it, but what
        // is listed now stays.
        for dir in [&inner.own, &inner.held, &inner.pins] {
            inner.disk.sync_dir(dir).map_err(ChunkError::io(dir))?;
        }
        Ok(inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir_of(&self, origin: Origin) -> &Path {
        match origin {
            Origin::Own => &self.own,
            Origin::Held => &self.held,
        }
    }

    pub(super) fn file_of(&self, id: &PackId, origin: Origin) -> PathBuf {
        self.dir_of(origin).join(id.to_string())
    }

    pub(super) fn path(&self, id: &PackId) -> Option<PathBuf> {
        let state = self.state();
        let pack = state.packs.get(id).filter(|pack| !pack.damaged)?;
        Some(self.file_of(id, pack.origin))
    }

    /// Why `id` cannot be read.
    pub(super) fn absent(&self, id: &PackId) -> ChunkError {
        match self.state().packs.get(id) {
            Some(pack) if pack.damaged => ChunkError::Damaged {
                pack: *id,
                what: DamagedWhat::Hash,
            },
            _ => ChunkError::MissingPacks { packs: vec![*id] },
        }
    }

    pub(super) fn mark_damaged(&self, id: &PackId) {
        if let Some(pack) = self.state().packs.get_mut(id) {
            pack.damaged = true;
        }
    }

    /// Says in which pack a chunk is.
    pub(super) fn find(&self, chunk: &ChunkId) -> Option<Found> {
        self.state().find(chunk)
    }

    /// Keeps a pack from being removed, if it is here; [`State::release`] ends that.
    pub(super) fn hold(&self, id: &PackId) -> bool {
        let mut state = self.state();
        let pack = state.packs.get_mut(id).filter(|pack| !pack.damaged);
        pack.map(|pack| pack.uses += 1).is_some()
    }

    /// Keeps all of `ids` from being removed, or none of them.
    pub(super) fn hold_all(&self, ids: &BTreeSet<PackId>) -> Result<(), ChunkError> {
        let mut state = self.state();
        let wanted: Vec<PackId> = ids.iter().copied().collect();
        let packs = state.missing(&wanted);
        if let Some(id) = packs.iter().find(|id| state.packs.contains_key(id)) {
            let what = DamagedWhat::Hash;
            return Err(ChunkError::Damaged { pack: *id, what });
        }
        if !packs.is_empty() {
            return Err(ChunkError::MissingPacks { packs });
        }
        for id in ids {
            if let Some(pack) = state.packs.get_mut(id) {
                pack.uses += 1;
            }
        }
        Ok(())
    }

    /// Starts the grace time of a pack anew, if it is here.
    pub(super) fn hand_out(&self, id: &PackId) -> bool {
        let mut state = self.state();
        let pack = state.packs.get_mut(id).filter(|pack| !pack.damaged);
        pack.map(|pack| pack.handed_out = Some(Instant::now()))
            .is_some()
    }

    /// Writes a file whole and takes it into the store, held for the caller if `hold`. Its
    /// directory is not synced yet.
    pub(super) fn commit(
        &self,
        id: &PackId,
        bytes: &[u8],
        chunks: &[ChunkId],
        hold: bool,
    ) -> Result<(), ChunkError> {
        let draft = self.draft();
        let target = self.file_of(id, Origin::Own);
        let written = || {
            let mut file = self.disk.create(&draft)?;
            self.disk.write(&mut file, &draft, bytes)?;
            self.disk.sync(&file, &draft)
        };
        if let Err(source) = written() {
            let _ = self.disk.remove(&draft);
            return Err(ChunkError::Io {
                path: draft,
                source,
            });
        }
        // Under the lock, so that no collection takes the file before it is listed.
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(id).filter(|pack| !pack.damaged) {
            // Another writer was faster, or a peer sent it; it is the same to the bit.
            pack.handed_out = Some(Instant::now());
            pack.uses += u32::from(hold);
            drop(state);
            return self.disk.remove(&draft).map_err(ChunkError::io(&draft));
        }
        if let Err(source) = self.disk.rename(&draft, &target) {
            let _ = self.disk.remove(&draft);
            return Err(ChunkError::Io {
                path: target,
                source,
            });
        }
        self.replace(&mut state, id, bytes.len() as u64, chunks, Origin::Own);
        if let Some(pack) = state.packs.get_mut(id) {
            pack.uses += u32::from(hold);
        }
        Ok(())
    }

    /// Lists a file that has just got its name, in place of a damaged one if there was one.
    fn replace(
        &self,
        state: &mut State,
        id: &PackId,
        bytes: u64,
        chunks: &[ChunkId],
        origin: Origin,
    ) {
        let before = state.packs.get(id).map(|pack| (pack.origin, pack.uses));
        state.add(*id, bytes, chunks, origin);
        if let Some(pack) = state.packs.get_mut(id) {
            pack.handed_out = Some(Instant::now());
            pack.uses = before.map_or(0, |(_, uses)| uses);
        }
        if let Some((old, _)) = before.filter(|(old, _)| *old != origin) {
            let _ = self.disk.remove(&self.file_of(id, old));
        }
    }

    /// Turns the failure to start a thread into an error of this store.
    pub(super) fn cannot_work(&self) -> impl FnOnce(io::Error) -> ChunkError + use<> {
        ChunkError::io(self.own.clone())
    }

    pub(super) fn sync_own(&self) -> Result<(), ChunkError> {
        let synced = self.disk.sync_dir(&self.own);
        synced.map_err(ChunkError::io(&self.own))
    }

    fn draft(&self) -> PathBuf {
        let number = self.last_draft.fetch_add(1, Ordering::Relaxed);
        self.drafts.join(number.to_string())
    }

    fn import(&self, id: &PackId, from: &Path) -> Result<(), ChunkError> {
        if self.hand_out(id) {
            let _ = fs::remove_file(from);
            return Ok(());
        }
        let draft = self.draft();
        let imported = self.import_draft(id, from, &draft);
        if imported.is_err() {
            let _ = self.disk.remove(&draft);
        }
        imported
    }

    fn import_draft(&self, id: &PackId, from: &Path, draft: &Path) -> Result<(), ChunkError> {
        let meta = fs::symlink_metadata(from).map_err(ChunkError::io(from))?;
        let damaged = |what| ChunkError::Damaged { pack: *id, what };
        if !meta.is_file() || meta.len() > MAX_FILE_BYTES {
            return Err(damaged(DamagedWhat::Size));
        }
        if fs::rename(from, draft).is_err() {
            let copied = fs::copy(from, draft).and_then(|_| fs::remove_file(from));
            copied.map_err(ChunkError::io(from))?;
        }
        let file = File::open(draft).map_err(ChunkError::io(draft))?;
        if hash(&file).map_err(ChunkError::io(draft))? != *id {
            return Err(ChunkError::NotThatPack {
                pack: *id,
                path: from.to_owned(),
            });
        }
        let chunks = match read_contents(&file) {
            Ok(Contents::Pack(index)) => index.chunks.into_iter().map(|(id, _)| id).collect(),
            Ok(Contents::Object) => Vec::new(),
            Err(ReadError::Damaged(what)) => return Err(damaged(what)),
            Err(ReadError::Io(source)) => return Err(ChunkError::io(draft)(source)),
        };
        self.disk
            .sync(&file, draft)
            .map_err(ChunkError::io(draft))?;
        let target = self.file_of(id, Origin::Held);
        let mut state = self.state();
        if let Some(pack) = state.packs.get_mut(id).filter(|pack| !pack.damaged) {
            pack.handed_out = Some(Instant::now());
            drop(state);
            return self.disk.remove(draft).map_err(ChunkError::io(draft));
        }
        self.disk
            .rename(draft, &target)
            .map_err(ChunkError::io(&target))?;
        self.replace(&mut state, id, meta.len(), &chunks, Origin::Held);
        drop(state);
        let synced = self.disk.sync_dir(&self.held);
        synced.map_err(ChunkError::io(&self.held))
    }

    pub(super) fn verify(&self, id: &PackId) -> Result<(), ChunkError> {
        let path = self.path(id).ok_or_else(|| self.absent(id))?;
        let hashed = File::open(&path).and_then(|file| hash(&file));
        if hashed.map_err(ChunkError::io(&path))? == *id {
            return Ok(());
        }
        self.mark_damaged(id);
        Err(ChunkError::Damaged {
            pack: *id,
            what: DamagedWhat::Hash,
        })
    }

    fn chunks_of(&self, id: &PackId) -> Result<Vec<ChunkId>, ChunkError> {
        let path = self.path(id).ok_or_else(|| self.absent(id))?;
        let file = File::open(&path).map_err(ChunkError::io(&path))?;
        match read_contents(&file) {
            Ok(Contents::Pack(index)) => Ok(index.chunks.into_iter().map(|(id, _)| id).collect()),
            Ok(Contents::Object) => Ok(Vec::new()),
            Err(ReadError::Damaged(what)) => {
                self.mark_damaged(id);
                Err(ChunkError::Damaged { pack: *id, what })
            }
            Err(ReadError::Io(source)) => Err(ChunkError::Io { path, source }),
        }
    }

    /// Opens a pack's file and reads its index; `None` for an object.
    pub(super) fn open_pack(
        &self,
        key: &StoreKey,
        id: &PackId,
    ) -> Result<Option<(File, Index)>, ChunkError> {
        let path = self.path(id).ok_or_else(|| self.absent(id))?;
        let file = File::open(&path).map_err(ChunkError::io(&path))?;
        let index = match read_contents(&file) {
            Ok(Contents::Pack(index)) => index,
            Ok(Contents::Object) => return Ok(None),
            Err(ReadError::Damaged(what)) => {
                self.mark_damaged(id);
                return Err(ChunkError::Damaged { pack: *id, what });
            }
            Err(ReadError::Io(source)) => return Err(ChunkError::Io { path, source }),
        };
        if index.key_tag == *key.tag() {
            Ok(Some((file, index)))
        } else {
            Err(ChunkError::OtherKey { pack: *id })
        }
    }

    pub(super) fn pin(
        &self,
        name: &str,
        packs: &[PackId],
        all_here: bool,
    ) -> Result<(), ChunkError> {
        pins::check_name(name)?;
        let _one_at_a_time = self.pinning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = packs.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let old = {
            let mut state = self.state();
            if all_here {
                let packs = state.missing(&wanted);
                if !packs.is_empty() {
                    return Err(ChunkError::MissingPacks { packs });
                }
            }
            let old = state.pins.held.get(name).cloned();
            // Both stay until it is certain which of them the file holds.
            let mut both = wanted.clone();
            both.extend(old.iter().flatten());
            state.pins.held.insert(name.to_owned(), both);
            old
        };
        let saved = pins::save(&self.disk, &self.pins, name, &wanted);
        let mut state = self.state();
        match (&saved, old) {
            (Ok(()), _) => state.pins.held.insert(name.to_owned(), wanted),
            // The file may hold either; in memory both stay.
            (Err(_), Some(_)) => None,
            (Err(_), None) => state.pins.held.remove(name),
        };
        saved
    }

    fn unpin(&self, name: &str) -> Result<bool, ChunkError> {
        pins::check_name(name)?;
        let _one_at_a_time = self.pinning.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.state().pins.held.contains_key(name) {
            return Ok(false);
        }
        pins::remove(&self.disk, &self.pins, name)?;
        self.state().pins.held.remove(name);
        Ok(true)
    }
}

/// Lists the files of one directory. Whatever is not named as a pack is left alone.
fn load(dir: &Path, origin: Origin, state: &mut State) -> Result<(), ChunkError> {
    for entry in fs::read_dir(dir).map_err(ChunkError::io(dir))? {
        let entry = entry.map_err(ChunkError::io(dir))?;
        let path = entry.path();
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            tracing::warn!(path = %path.display(), "a file in the chunk store is no pack");
            continue;
        };
        let file = File::open(&path).map_err(ChunkError::io(&path))?;
        let bytes = file.metadata().map_err(ChunkError::io(&path))?.len();
        let chunks = match read_contents(&file) {
            Ok(Contents::Pack(index)) => Some(index.chunks.into_iter().map(|(id, _)| id).collect()),
            Ok(Contents::Object) => Some(Vec::new()),
            Err(ReadError::Damaged(_)) => None,
            Err(ReadError::Io(source)) => return Err(ChunkError::Io { path, source }),
        };
        let whole = state.packs.get(&id).is_some_and(|pack| !pack.damaged);
        if whole && chunks.is_none() {
            // A crash came after it was fetched again and before the damaged one was removed.
            let _ = fs::remove_file(&path);
            continue;
        }
        let damaged = chunks.is_none();
        state.add(id, bytes, &chunks.unwrap_or_default(), origin);
        if let Some(pack) = state.packs.get_mut(&id) {
            pack.damaged = damaged;
        }
    }
    Ok(())
}

/// Returns BLAKE3 of a file.
fn hash(file: &File) -> io::Result<PackId> {
    use std::io::Read;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut left = file.take(MAX_FILE_BYTES + 1);
    loop {
        match left.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => hasher.update(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
    }
    Ok(PackId::from_bytes(*hasher.finalize().as_bytes()))
}

/// Takes the directory for this process alone.
fn lock(dir: &Path) -> Result<File, ChunkError> {
    make_private_dir(dir).map_err(ChunkError::io(dir))?;
    let path = dir.join(".lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(ChunkError::io(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ChunkError::InUse {
            path: dir.to_owned(),
        }),
        Err(error) => Err(ChunkError::io(&path)(error.into())),
    }
}
