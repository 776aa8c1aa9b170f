//! What interrupted work on volumes leaves, and how it goes.
//!
//! Whatever is stored is pinned before it is told of, so a daemon that dies leaves pins that belong
//! to nothing, never a version without its packs. Each step here may be interrupted and done again.

use std::collections::BTreeSet;

use rhizome_memory::now_ms;
use rhizome_sandbox::{
    chunks::{ChunkStore, StoreKey},
    volume::{Version, VersionId},
};

use super::{MAX_RECORDS, Node, blocking, commit::pin_of, stored};
use crate::{
    daemon::{caller::Caller, fail},
    error::ApiError,
};

/// What the pins of work begin with that has to be done by the daemon that began it.
const UNFINISHED: [&str; 2] = ["volume-new-", "volume-repack-"];
/// What the pins of versions begin with.
const VERSION: &str = "volume-";
/// Age of a version of this node's from which on its record is not on its way any more.
const ORPHANED_MS: u64 = 24 * 3_600_000;

impl Node {
    /// Lets go of what a former daemon had begun. Call it before anything is begun here.
    pub(crate) fn end_unfinished_volumes(&self) -> Result<(), ApiError> {
        let Ok(store) = self.volume_store() else {
            return Ok(());
        };
        let unfinished = |pin: &String| UNFINISHED.iter().any(|prefix| pin.starts_with(prefix));
        for pin in store.pins().into_iter().filter(unfinished) {
            store.unpin(&pin).map_err(|error| fail::chunks(&error))?;
        }
        Ok(())
    }

    /// Lets go of versions that were forgotten, and of those that were stored and never told of;
    /// ends what was interrupted of repacking. Returns how many pins went.
    pub(crate) async fn mend_volumes(&self) -> Result<u64, ApiError> {
        let Ok(store) = self.volume_store() else {
            return Ok(0);
        };
        if self.need_mesh().is_err() {
            return Ok(0);
        }
        let mut gone = self.let_go_of_forgotten().await?;
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        let mut keys = Vec::new();
        for space in &spaces {
            if let Ok((key, epoch)) = self.store_key(space) {
                let old = (0..epoch).filter_map(|epoch| self.store_key_of(space, epoch).ok());
                keys.extend(old);
                keys.push(key);
            }
        }
        let all = self.known_volumes(spaces).await?;
        let mut known: BTreeSet<String> = BTreeSet::new();
        for volume in &all {
            if let Err(error) = self.settle_volume(volume, &rhizome_sandbox::silent()).await {
                tracing::debug!(%error, "what was repacked cannot be had yet");
            }
            let versions = volume.versions.keys().chain(volume.forgotten.keys());
            known.extend(versions.map(pin_of));
            if volume.versions.len() + volume.forgotten.len() >= MAX_RECORDS / 2 {
                // There may be more than were looked at.
                return Ok(gone);
            }
        }
        let author = self.name();
        let swept = blocking(move || {
            let mut swept = 0;
            for pin in store.pins().into_iter().filter(|pin| !known.contains(pin)) {
                let id = pin.strip_prefix(VERSION).and_then(|id| id.parse().ok());
                if id.is_some_and(|id| is_orphan(&store, &keys, &id, &author)) {
                    swept += u64::from(store.unpin(&pin)?);
                }
            }
            Ok::<u64, rhizome_sandbox::chunks::ChunkError>(swept)
        });
        gone += swept.await?.map_err(|error| stored(&error))?;
        Ok(gone)
    }
}

/// Whether a version that no record names was made here, too long ago for one to come. What others
/// made, or nobody here can read, may be known to them.
fn is_orphan(store: &ChunkStore, keys: &[StoreKey], id: &VersionId, author: &str) -> bool {
    let opened = keys
        .iter()
        .find_map(|key| Version::load(store, key, id).ok());
    opened.is_some_and(|version| {
        version.author == author && version.at_ms.saturating_add(ORPHANED_MS) < now_ms()
    })
}

#[cfg(test)]
mod tests {
    use rhizome_sandbox::{chunks::PackId, volume::Draft};

    use super::*;

    #[test]
    fn what_others_made_or_is_new_is_no_orphan() {
        let dir = tempfile::tempdir().unwrap();
        let store = ChunkStore::open(dir.path()).unwrap();
        let keys = [1, 2].map(|byte| StoreKey::from_bytes([byte; 32]));
        let mut writer = store.writer(&keys[1]);
        let root = Draft::empty().store(&mut writer).unwrap();
        let packs: Vec<PackId> = writer.finish().unwrap();
        let made = |at_ms: u64| {
            let version = Version {
                volume: [1; 16],
                parents: Vec::new(),
                root: root.clone(),
                packs: packs.clone(),
                author: "laptop".to_owned(),
                at_ms,
                message: String::new(),
            };
            version.store(&store, &keys[1]).unwrap()
        };
        let (old, new) = (made(1), made(now_ms()));
        assert!(is_orphan(&store, &keys, &old, "laptop"));
        assert!(!is_orphan(&store, &keys, &old, "edge"));
        assert!(!is_orphan(&store, &keys[..1], &old, "laptop"));
        assert!(!is_orphan(&store, &keys, &new, "laptop"));
        assert!(!is_orphan(
            &store,
            &keys,
            &PackId::from_bytes([3; 32]),
            "laptop"
        ));
    }
}
