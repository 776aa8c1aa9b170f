//! Files of a store: taken in from others, looked into, compared with their names.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Instant,
};

use super::{Inner, Origin, State};
use crate::chunks::{
    ChunkError, ChunkId, DamagedWhat, MAX_FILE_BYTES, PackId, StoreKey,
    format::{Contents, Index, ReadError, read_contents},
};

/// Bytes read at once while a file is hashed.
const READ_BYTES: usize = 256 * 1024;

impl Inner {
    pub(super) fn import(&self, id: &PackId, from: &Path) -> Result<(), ChunkError> {
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

    pub(in crate::chunks) fn verify(&self, id: &PackId) -> Result<(), ChunkError> {
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

    /// Returns the chunks that a pack says it holds, and how many bytes of it each takes.
    pub(super) fn chunks_of(&self, id: &PackId) -> Result<Vec<(ChunkId, u32)>, ChunkError> {
        let path = self.path(id).ok_or_else(|| self.absent(id))?;
        let file = File::open(&path).map_err(ChunkError::io(&path))?;
        match read_contents(&file) {
            Ok(Contents::Pack(index)) => {
                let chunks = index.chunks.into_iter();
                Ok(chunks.map(|(id, place)| (id, place.stored)).collect())
            }
            Ok(Contents::Object) => Ok(Vec::new()),
            Err(ReadError::Damaged(what)) => {
                self.mark_damaged(id);
                Err(ChunkError::Damaged { pack: *id, what })
            }
            Err(ReadError::Io(source)) => Err(ChunkError::Io { path, source }),
        }
    }

    /// Opens a pack's file and reads its index; `None` for an object.
    pub(in crate::chunks) fn open_pack(
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
}

/// Lists the files of one directory. Whatever is not named as a pack is left alone.
pub(super) fn load(dir: &Path, origin: Origin, state: &mut State) -> Result<(), ChunkError> {
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
    use io::Read;
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
