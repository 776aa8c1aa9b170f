//! The directory of packs.

mod files;
mod pinning;
mod state;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    ChunkError, ChunkId, ChunkReader, DamagedWhat, Freed, PackId, PackWriter, StoreKey, disk::Disk,
    gc, object, pins,
};
use crate::staging::{lock_soon, make_private_dir};
use state::{Found, State};

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
        let chunks = self.inner.chunks_of(id)?.into_iter();
        Ok(chunks.map(|(chunk, _)| chunk).collect())
    }

    /// Like [`Self::chunks_of`], with the bytes that each takes in the pack.
    ///
    /// # Errors
    /// Those of [`Self::chunks_of`].
    pub fn lengths_of(&self, id: &PackId) -> Result<Vec<(ChunkId, u32)>, ChunkError> {
        self.inner.chunks_of(id)
    }

    /// Whether a pack was written here, so that what it says it holds is true.
    #[must_use]
    pub fn is_own(&self, id: &PackId) -> bool {
        let state = self.inner.state();
        state
            .packs
            .get(id)
            .is_some_and(|pack| pack.origin == Origin::Own && !pack.damaged)
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

    /// Returns what is pinned under other names than these.
    #[must_use]
    pub fn pinned_besides(&self, names: &BTreeSet<String>) -> BTreeSet<PackId> {
        self.inner.pinned_besides(names)
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

    /// Lets `steps` more steps of the disk succeed and none after them.
    #[cfg(test)]
    pub(crate) fn crash_after(&self, steps: usize) {
        self.inner.disk.faults.crash_after(steps);
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
        let mut state = State::new(pins::load(&inner.pins)?);
        files::load(&inner.held, Origin::Held, &mut state)?;
        files::load(&inner.own, Origin::Own, &mut state)?;
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
}

/// Takes the directory for this process alone.
fn lock(dir: &Path) -> Result<File, ChunkError> {
    let taken = lock_soon(dir).map_err(ChunkError::io(dir))?;
    taken.ok_or_else(|| ChunkError::InUse {
        path: dir.to_owned(),
    })
}
