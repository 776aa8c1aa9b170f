//! New versions: stored, pinned, written into the memory, and copied to other nodes.

use rhizome_sandbox::{
    Progress,
    chunks::{MAX_FILE_BYTES, PackId},
    volume::{Content, Version, VersionId},
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

    /// Has a version here, which says in which packs it lies; they are pinned, here or not.
    pub(super) async fn open_version(
        &self,
        known: &Known,
        record: &VersionRecord,
        progress: &Progress,
    ) -> Result<Version, ApiError> {
        let store = self.volume_store()?;
        let key = self.store_key_of(&known.space, record.epoch)?;
        let (id, pin) = (record.version, pin_of(&record.version));
        if store.missing(&[id]).is_empty() {
            let version = load(&store, &key, record).await?;
            if store.missing(&version.packs).is_empty() {
                return Ok(version);
            }
        }
        let pinning = store.clone();
        let name = pin.clone();
        let pinned = blocking(move || pinning.pin_ahead(&name, &[id])).await?;
        pinned.map_err(|error| super::stored(&error))?;
        let holders = known.holders_of(record);
        self.bring(&[id], &holders, MAX_FILE_BYTES, progress)
            .await?;
        let version = load(&store, &key, record).await?;
        let mut objects = version.packs.clone();
        objects.push(id);
        let pinned = blocking(move || store.pin_ahead(&pin, &objects)).await?;
        pinned.map_err(|error| super::stored(&error))?;
        Ok(version)
    }
}

async fn load(
    store: &rhizome_sandbox::chunks::ChunkStore,
    key: &rhizome_sandbox::chunks::StoreKey,
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
