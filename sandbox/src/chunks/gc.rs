//! Removing what nobody needs.

use std::{collections::BTreeSet, fs, sync::Arc, time::Duration};

use super::{
    ChunkError, PackId,
    format::{Contents, read_contents},
    store::{Inner, Origin},
};

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// Packs and objects removed.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}

pub(super) fn collect(inner: &Arc<Inner>, grace: Duration) -> Result<Freed, ChunkError> {
    let mut freed = Freed::default();
    for (id, origin) in candidates(inner)? {
        let path = inner.file_of(&id, origin);
        // A file that cannot be looked at, or is from the future, counts as new.
        let age = fs::metadata(&path)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age < grace) || (age.is_none() && path.exists()) {
            continue;
        }
        let chunks = match fs::File::open(&path).map(|file| read_contents(&file)) {
            Ok(Ok(Contents::Pack(index))) => index.chunks.into_iter().map(|(id, _)| id).collect(),
            _ => Vec::new(),
        };
        // One lock for the decision and the deed: whoever asks for the pack comes before, and
        // then it stays, or after, and then it is not here.
        let mut state = inner.state();
        if let Some(path) = &state.pins.damaged {
            return Err(ChunkError::DamagedPin { path: path.clone() });
        }
        let pinned = state.pins.held.values().flatten().any(|pin| *pin == id);
        let Some(pack) = state.packs.get(&id) else {
            continue;
        };
        let fresh = pack.handed_out.is_some_and(|at| at.elapsed() < grace);
        if pinned || fresh || pack.uses > 0 || pack.origin != origin {
            continue;
        }
        freed.packs += 1;
        freed.bytes += pack.bytes;
        inner.disk.remove(&path).map_err(ChunkError::io(&path))?;
        state.forget(&id, &chunks);
    }
    inner.sync_own()?;
    Ok(freed)
}

/// What is not pinned now; each is looked at again before it goes.
fn candidates(inner: &Inner) -> Result<Vec<(PackId, Origin)>, ChunkError> {
    let state = inner.state();
    if let Some(path) = &state.pins.damaged {
        return Err(ChunkError::DamagedPin { path: path.clone() });
    }
    let pinned: BTreeSet<&PackId> = state.pins.held.values().flatten().collect();
    let unpinned = state
        .packs
        .iter()
        .filter(|(id, pack)| pack.uses == 0 && !pinned.contains(id));
    Ok(unpinned.map(|(id, pack)| (*id, pack.origin)).collect())
}
