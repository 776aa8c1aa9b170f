//! New versions: stored, pinned, written into the memory, and copied to other nodes.

use std::collections::BTreeSet;

use rhizome_identity::{AgentId, NodeId};
use rhizome_sandbox::{
    Progress,
    chunks::{ChunkError, ChunkStore, MAX_FILE_BYTES, PackId, StoreKey},
    volume::{Content, Packed, Version, VersionId},
};

use super::{
    Known, MAX_MESSAGE, MAX_NAME, Node, Record, VersionRecord, VolumeError, blocking, clipped,
    now_ms, volume,
};
use crate::error::ApiError;

/// A version about to be made.
pub(super) struct New {
    pub(super) root: Content,
    /// All packs that it lies in.
    pub(super) packs: Vec<PackId>,
    pub(super) parents: Vec<VersionId>,
    pub(super) message: String,
    /// How many other nodes must hold it; as many as are there, up to one, if not said.
    pub(super) replicas: Option<usize>,
    /// What keeps the packs until the version's own pin does.
    pub(super) pin: Option<String>,
    pub(super) bytes_stored: u64,
    /// The agent in whose sandbox it was made, if in one.
    pub(super) agent: Option<AgentId>,
}

impl Node {
    /// Makes a version: durable here, then known to the space, then held by others.
    ///
    /// # Errors
    /// `replicas_missing` if fewer nodes than were asked for hold it; the version then stands.
    pub(super) async fn commit_version(
        &self,
        known: &Known,
        new: New,
        progress: &Progress,
    ) -> Result<VersionRecord, ApiError> {
        let (key, epoch) = self.store_key(&known.space)?;
        let store = self.volume_store()?;
        let author = clipped(&self.name(), MAX_NAME);
        let mut parents = new.parents;
        parents.sort_unstable();
        parents.dedup();
        // A clock that runs behind must not make the new version look older than what it is from.
        let of_parents = parents
            .iter()
            .filter_map(|parent| known.versions.get(parent));
        let newest = of_parents.map(|parent| parent.at_ms).max().unwrap_or(0);
        let version = Version {
            volume: known.volume.volume.0,
            parents,
            root: new.root,
            packs: new.packs,
            author,
            at_ms: now_ms().max(newest + 1),
            message: clipped(&new.message, MAX_MESSAGE),
        };
        let (made, pin) = (version.clone(), new.pin);
        let id = blocking(move || {
            let id = made.store(&store, &key)?;
            let mut objects = made.packs.clone();
            objects.push(id);
            // Some of the version that it was made from may still be on their way.
            store.pin_ahead(&pin_of(&id), &objects)?;
            if let Some(pin) = pin {
                store.unpin(&pin)?;
            }
            Ok::<_, VolumeError>(id)
        })
        .await?
        .map_err(|error| volume(&error))?;
        let mut record = VersionRecord {
            volume: known.volume.volume,
            version: id,
            parents: version.parents.clone(),
            tree: version.root.digest().to_string(),
            epoch,
            holders: vec![self.id()],
            bytes_stored: new.bytes_stored,
            author: version.author.clone(),
            at_ms: version.at_ms,
            message: version.message.clone(),
            forgotten: false,
            agent: new.agent,
        };
        self.publish_volume(known.space, &Record::Version(record.clone()))
            .await?;
        let copies = self
            .replicate_version(known, &record, &version.packs, new.replicas, progress)
            .await;
        if !copies.holders.is_empty() {
            record.holders.extend(&copies.holders);
            self.publish_volume(known.space, &Record::Version(record.clone()))
                .await?;
        }
        copies.enough()?;
        Ok(record)
    }

    /// Has a version, and all packs that it lies in, here and pinned.
    pub(super) async fn bring_version(
        &self,
        known: &Known,
        record: &VersionRecord,
        progress: &Progress,
    ) -> Result<Version, ApiError> {
        let version = self.open_version(known, record, progress).await?;
        let holders = known.holders_of(record);
        self.bring(&version.packs, &holders, super::MAX_VERSION_BYTES, progress)
            .await?;
        Ok(version)
    }

    /// Has a version here, which says in which packs it lies: those of a repacking if there was
    /// one and somebody has them. They are pinned, here or not.
    pub(super) async fn open_version(
        &self,
        known: &Known,
        record: &VersionRecord,
        progress: &Progress,
    ) -> Result<Version, ApiError> {
        let store = self.volume_store()?;
        let key = self.store_key_of(&known.space, record.epoch)?;
        let holders = known.holders_of(record);
        let (id, pin) = (record.version, pin_of(&record.version));
        self.fetch_object(&id, &pin, &holders, progress).await?;
        let mut version = load(&store, &key, record).await?;
        let mut objects = vec![id];
        if let Some(object) = known.packed.get(&id) {
            let fetched = self.fetch_object(object, &pin, &holders, progress).await;
            let packed = match fetched {
                Ok(()) => load_packed(&store, &key, &id, object).await,
                Err(error) => Err(error),
            };
            match packed {
                Ok(packs) => {
                    if self.is_better(&packs, &version.packs, &holders).await {
                        version.packs = packs;
                        objects.push(*object);
                    }
                }
                Err(error) => {
                    tracing::debug!(version = %id, %error, "where it was repacked to is not known");
                }
            }
        }
        objects.extend(&version.packs);
        let kept = blocking(move || keep(&store, &pin, objects)).await?;
        kept.map_err(|error| super::stored(&error))?;
        Ok(version)
    }

    /// Says whether what is packed anew is to be read, rather than what was there before.
    async fn is_better(&self, packed: &[PackId], before: &[PackId], holders: &[NodeId]) -> bool {
        let Ok(store) = self.volume_store() else {
            return false;
        };
        let missing = store.missing(packed);
        if missing.is_empty() {
            return true;
        }
        let before = store.missing(before);
        // Who was away has it as it was.
        let all_are_there = async |packs: &[PackId]| {
            let there = self.who_has_what(packs, holders).await;
            packs
                .iter()
                .all(|pack| there.values().any(|one| one == pack))
        };
        !before.is_empty() && (all_are_there(&missing).await || !all_are_there(&before).await)
    }

    /// Brings an object of a version here, pinned with it.
    pub(super) async fn fetch_object(
        &self,
        object: &PackId,
        pin: &str,
        holders: &[NodeId],
        progress: &Progress,
    ) -> Result<(), ApiError> {
        let store = self.volume_store()?;
        if store.has(object) {
            return Ok(());
        }
        let (object, pin) = (*object, pin.to_owned());
        let kept = blocking(move || keep(&store, &pin, vec![object])).await?;
        kept.map_err(|error| super::stored(&error))?;
        self.bring(&[object], holders, MAX_FILE_BYTES, progress)
            .await
            .map(drop)
    }
}

/// Pins packs and objects, here or not, beside what the pin keeps already.
pub(super) fn keep(store: &ChunkStore, pin: &str, objects: Vec<PackId>) -> Result<(), ChunkError> {
    let before: BTreeSet<PackId> = store.pinned(pin).unwrap_or_default().into_iter().collect();
    if objects.iter().all(|object| before.contains(object)) {
        return Ok(());
    }
    let all: Vec<PackId> = before.into_iter().chain(objects).collect();
    store.pin_ahead(pin, &all)
}

/// Returns the packs that a version lies in since it was repacked.
pub(super) async fn load_packed(
    store: &ChunkStore,
    key: &StoreKey,
    version: &VersionId,
    object: &PackId,
) -> Result<Vec<PackId>, ApiError> {
    let (store, key, object) = (store.clone(), key.clone(), *object);
    let packed = blocking(move || Packed::load(&store, &key, &object)).await?;
    let packed = packed.map_err(|error| volume(&error))?;
    if packed.version != *version {
        return Err(ApiError::bad_request(
            "what is known of a version's packs is of another version",
        ));
    }
    Ok(packed.packs)
}

pub(super) async fn load(
    store: &ChunkStore,
    key: &StoreKey,
    record: &VersionRecord,
) -> Result<Version, ApiError> {
    let (store, key, id) = (store.clone(), key.clone(), record.version);
    let version = blocking(move || Version::load(&store, &key, &id)).await?;
    let version = version.map_err(|error| volume(&error))?;
    // The record is somebody's word; the version is what was sealed with the space's key.
    if version.volume != record.volume.0 || version.parents != record.parents {
        return Err(ApiError::bad_request(
            "what is known of the version is not what it says of itself",
        ));
    }
    Ok(version)
}

/// What keeps a version and its packs.
pub(super) fn pin_of(version: &VersionId) -> String {
    format!("volume-{version}")
}
