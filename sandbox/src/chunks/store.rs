//! The directory of packs.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{ChunkError, ChunkReader, Freed, PackId, PackWriter, StoreKey};

/// A directory of packs and objects. Clones share it.
#[derive(Debug, Clone)]
pub struct ChunkStore {}

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
    /// Packs whose index could not be read when the store was opened.
    pub damaged: u64,
}

impl ChunkStore {
    /// Opens the store in `dir`, making it if need be; leftovers of a crash are removed.
    ///
    /// # Errors
    /// [`ChunkError::InUse`], [`ChunkError::Io`].
    pub fn open(_dir: &Path) -> Result<Self, ChunkError> {
        todo!()
    }

    /// Starts writing chunks under `key`.
    #[must_use]
    pub fn writer(&self, _key: &StoreKey) -> PackWriter {
        todo!()
    }

    /// Opens packs to read; while the reader lives, none of them is removed.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`] naming all that are not here, [`ChunkError::Damaged`],
    /// [`ChunkError::OtherKey`].
    pub fn reader(&self, _key: &StoreKey, _packs: &[PackId]) -> Result<ChunkReader, ChunkError> {
        todo!()
    }

    /// Stores a blob of its own, sealed, durable on return. `kind` is bound to it: it opens as
    /// nothing else.
    ///
    /// # Errors
    /// [`ChunkError::ObjectTooLarge`], [`ChunkError::Io`].
    pub fn put_object(
        &self,
        _key: &StoreKey,
        _kind: &str,
        _bytes: &[u8],
    ) -> Result<PackId, ChunkError> {
        todo!()
    }

    /// Returns the bytes of an object, verified.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::Damaged`], [`ChunkError::OtherKey`].
    pub fn get_object(
        &self,
        _key: &StoreKey,
        _kind: &str,
        _id: &PackId,
    ) -> Result<Vec<u8>, ChunkError> {
        todo!()
    }

    /// Returns the file of a pack or object, to be served to others as it is.
    #[must_use]
    pub fn path(&self, _id: &PackId) -> Option<PathBuf> {
        todo!()
    }

    /// Whether a pack or object is here.
    #[must_use]
    pub fn has(&self, _id: &PackId) -> bool {
        todo!()
    }

    /// Returns those that are not here, in the order given, each once.
    #[must_use]
    pub fn missing(&self, _ids: &[PackId]) -> Vec<PackId> {
        todo!()
    }

    /// Takes in a copy of a file that another node sent: its hash must be `id` and it must be a
    /// well-formed pack or object. Durable on return; one that is here already is fine.
    ///
    /// # Errors
    /// [`ChunkError::NotThatPack`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn import(&self, _id: &PackId, _from: &Path) -> Result<(), ChunkError> {
        todo!()
    }

    /// Reads a whole pack or object and compares it with its name.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::Damaged`], [`ChunkError::Io`].
    pub fn verify(&self, _id: &PackId) -> Result<(), ChunkError> {
        todo!()
    }

    /// Keeps packs and objects from being removed until `unpin(name)`; durable on return. A pin
    /// of this name is replaced.
    ///
    /// # Errors
    /// [`ChunkError::MissingPacks`], [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn pin(&self, _name: &str, _packs: &[PackId]) -> Result<(), ChunkError> {
        todo!()
    }

    /// Like [`Self::pin`], also for what is not here yet: pin first, then import.
    ///
    /// # Errors
    /// [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn pin_ahead(&self, _name: &str, _packs: &[PackId]) -> Result<(), ChunkError> {
        todo!()
    }

    /// Removes a pin; returns whether there was one.
    ///
    /// # Errors
    /// [`ChunkError::PinName`], [`ChunkError::Io`].
    pub fn unpin(&self, _name: &str) -> Result<bool, ChunkError> {
        todo!()
    }

    /// Returns what a pin holds.
    #[must_use]
    pub fn pinned(&self, _name: &str) -> Option<Vec<PackId>> {
        todo!()
    }

    /// Returns the names of all pins, sorted.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        todo!()
    }

    /// Removes what is neither pinned, nor in use by a writer or reader, nor newer (or handed
    /// out by a writer more lately) than `grace`.
    ///
    /// # Errors
    /// [`ChunkError::DamagedPin`]: what it kept is unknown, so nothing is removed.
    /// [`ChunkError::Io`].
    pub fn gc(&self, _grace: Duration) -> Result<Freed, ChunkError> {
        todo!()
    }

    /// Returns what the store holds.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        todo!()
    }
}
