//! Blobs that are a file of their own: manifests, versions.

use std::{fs, io, sync::Arc};

use super::{
    ChunkError, DamagedWhat, MAX_OBJECT_BYTES, PackId, StoreKey,
    format::{ObjectHeader, Opener, Sealer},
    store::Inner,
};

pub(super) fn put(
    inner: &Arc<Inner>,
    key: &StoreKey,
    kind: &str,
    bytes: &[u8],
) -> Result<PackId, ChunkError> {
    if bytes.len() > MAX_OBJECT_BYTES {
        return Err(ChunkError::ObjectTooLarge { bytes: bytes.len() });
    }
    let file = Sealer::new(key.clone()).seal_object(kind, bytes);
    let id = PackId::from_bytes(*blake3::hash(&file).as_bytes());
    // Held from here on, so that a collection cannot come between this and the answer.
    if !inner.hand_out(&id) {
        inner.commit(&id, &file, &[], false)?;
    }
    inner.sync_own()?;
    Ok(id)
}

pub(super) fn get(
    inner: &Arc<Inner>,
    key: &StoreKey,
    kind: &str,
    id: &PackId,
) -> Result<Vec<u8>, ChunkError> {
    let path = inner.path(id).ok_or_else(|| inner.absent(id))?;
    // Its size was checked when it came into the store; what grew since is not read whole.
    let read = || {
        let size = fs::metadata(&path)?.len();
        if size > super::MAX_FILE_BYTES {
            return Ok(Vec::new());
        }
        fs::read(&path)
    };
    let bytes = match read() {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(inner.absent(id)),
        Err(source) => return Err(ChunkError::Io { path, source }),
    };
    let damaged = |what| ChunkError::Damaged { pack: *id, what };
    if blake3::hash(&bytes).as_bytes() != id.as_bytes() {
        inner.mark_damaged(id);
        return Err(damaged(DamagedWhat::Hash));
    }
    let header = ObjectHeader::parse(&bytes).map_err(damaged)?;
    if header.key_tag != *key.tag() {
        return Err(ChunkError::OtherKey { pack: *id });
    }
    let opened = Opener::new().open_object(key, kind, &bytes);
    opened.ok_or_else(|| damaged(DamagedWhat::Object))
}
