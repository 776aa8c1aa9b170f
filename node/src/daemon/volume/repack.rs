//! Packs of a volume that are mostly dead, or small, put together again.
//!
//! What is needed of them is stored anew; a document says where each version lies since, and every
//! node that holds the version fetches that and lets go of the rest. Nobody lets go of anything
//! before it has the other, and until the document is durable nothing is given up at all: whoever
//! is interrupted has a version where it was, or where it will be, or both.

use std::{collections::BTreeSet, sync::Arc};

use rhizome_identity::Hash;
use rhizome_sandbox::{
    Progress, ProgressEvent,
    chunks::{PackId, StoreKey},
    silent,
    volume::{
        Packed, VersionId,
        repack::{self, Kept, Plan, Repacked},
    },
};

use super::{
    Known, Node, PackedRecord, Record, VersionRecord, blocking,
    commit::{keep, load, load_packed, pin_of},
    stored, volume,
};
use crate::{
    api::types::{
        SCHEMA,
        volume::{VolumeRepackBody, VolumeRepacked},
    },
    daemon::caller::Caller,
    error::ApiError,
    remote::placement::rendezvous,
};

impl Node {
    /// Repacks a volume here, until nothing is left to do; with `dry_run` says what it would do.
    pub(crate) async fn repack_volume(
        self: Arc<Self>,
        wanted: String,
        body: VolumeRepackBody,
        progress: Progress,
    ) -> Result<VolumeRepacked, ApiError> {
        self.let_go_of_forgotten().await?;
        let mut all = VolumeRepacked {
            schema: SCHEMA,
            ..VolumeRepacked::default()
        };
        loop {
            let known = self.find_volume(&Caller::Owner, &wanted).await?;
            let round = self.repack_known(&known, body.dry_run, &progress).await?;
            all.packs += round.packs;
            all.bytes += round.bytes;
            all.live_bytes += round.live_bytes;
            all.versions += round.versions;
            all.of_bytes = round.of_bytes;
            all.more = round.more;
            // A round that gives nothing up would come again for ever.
            if body.dry_run || !round.more || round.packs == 0 {
                return Ok(all);
            }
        }
    }

    /// Repacks what has changed since it was looked at, of the volumes whose turn it is to be
    /// repacked here, and fetches what others have repacked. Each a bounded part.
    pub(crate) async fn repack_volumes(&self) -> Result<(), ApiError> {
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        for known in self.known_volumes(spaces).await? {
            let volume = known.volume.volume;
            if let Err(error) = self.settle_volume(&known, &silent()).await {
                tracing::debug!(%volume, %error, "what was repacked cannot be had yet");
            }
            let looked = looked(&known);
            if !self.is_its_turn(&known) || self.volumes.looked_at(&volume) == Some(looked) {
                continue;
            }
            match self.repack_known(&known, false, &silent()).await {
                Ok(round) if round.packs == 0 => self.volumes.look_at(volume, looked),
                Ok(round) => tracing::info!(%volume, packs = round.packs, "a volume was repacked"),
                Err(error) => tracing::warn!(%volume, %error, "a volume cannot be repacked"),
            }
        }
        Ok(())
    }

    /// Of those who hold the newest version and are there, one repacks it, and all know which.
    fn is_its_turn(&self, known: &Known) -> bool {
        let connected = self.connected();
        let is_there =
            |node: &rhizome_identity::NodeId| *node == self.id() || connected.contains(node);
        let seed = Hash::keyed("rhizome volume rendezvous 1", &known.volume.volume.0);
        let heads = known.heads();
        let newest = heads.first().and_then(|head| known.versions.get(head));
        let holders = newest.iter().flat_map(|head| &head.holders);
        let first = holders
            .filter(|node| is_there(node))
            .max_by_key(|node| rendezvous(&seed, node));
        first == Some(&self.id())
    }

    async fn repack_known(
        &self,
        known: &Known,
        dry_run: bool,
        progress: &Progress,
    ) -> Result<VolumeRepacked, ApiError> {
        let _one_at_a_time = self.volumes.repacking.lock().await;
        if !dry_run {
            self.settle_volume(known, progress).await?;
        }
        let mut all = VolumeRepacked {
            schema: SCHEMA,
            ..VolumeRepacked::default()
        };
        let epochs: BTreeSet<u32> = known.versions.values().map(|one| one.epoch).collect();
        for epoch in epochs {
            let kept = self.kept_here(known, epoch).await?;
            if kept.is_empty() {
                continue;
            }
            let key = self.store_key_of(&known.space, epoch)?;
            let round = self
                .repack_epoch(known, kept, key, dry_run, progress)
                .await?;
            all.packs += round.packs;
            all.bytes += round.bytes;
            all.live_bytes += round.live_bytes;
            all.of_bytes += round.of_bytes;
            all.versions += round.versions;
            all.more |= round.more;
        }
        Ok(all)
    }

    async fn repack_epoch(
        &self,
        known: &Known,
        kept: Vec<Kept>,
        key: StoreKey,
        dry_run: bool,
        progress: &Progress,
    ) -> Result<VolumeRepacked, ApiError> {
        let store = self.volume_store()?;
        let pin = format!("volume-repack-{}", known.volume.volume);
        let mut mine: BTreeSet<String> = kept.iter().map(|one| pin_of(&one.version)).collect();
        mine.insert(pin.clone());
        let (planning, planned_key, name) = (store.clone(), key.clone(), pin.clone());
        let told = Arc::clone(progress);
        let planned = blocking(move || {
            let besides = planning.pinned_besides(&mine);
            let plan = repack::plan(&planning, &planned_key, &kept, &besides)?;
            let done = if dry_run || plan.packs.is_empty() {
                None
            } else {
                let mut tell = |done: usize, of: usize| tell_repack(&told, done, of);
                Some(repack::rewrite(
                    &planning,
                    &planned_key,
                    &kept,
                    &plan,
                    &name,
                    &mut tell,
                )?)
            };
            Ok::<(Plan, Option<Repacked>), rhizome_sandbox::volume::VolumeError>((plan, done))
        });
        let (plan, done) = planned.await?.map_err(|error| volume(&error))?;
        let versions = done.map(|done| done.versions).unwrap_or_default();
        let shown = VolumeRepacked {
            schema: SCHEMA,
            packs: plan.packs.len() as u64,
            bytes: plan.bytes,
            live_bytes: plan.live_bytes,
            of_bytes: plan.all_bytes,
            versions: versions.len() as u64,
            more: plan.more,
        };
        for (version, packs) in versions {
            self.move_version(known, &key, version, packs).await?;
        }
        if !dry_run {
            let unpinned = blocking(move || store.unpin(&pin)).await?;
            unpinned.map_err(|error| stored(&error))?;
        }
        Ok(shown)
    }

    /// Says where a version lies, and lets go of where it lay.
    async fn move_version(
        &self,
        known: &Known,
        key: &StoreKey,
        version: VersionId,
        packs: Vec<PackId>,
    ) -> Result<(), ApiError> {
        let (store, key, pin) = (self.volume_store()?, key.clone(), pin_of(&version));
        let packed = Packed { version, packs };
        let objects = blocking(move || {
            let object = packed.store(&store, &key)?;
            let mut all = store.pinned(&pin).unwrap_or_default();
            all.push(object);
            all.extend(&packed.packs);
            // Both, until it is said which.
            store.pin(&pin, &all)?;
            Ok::<_, rhizome_sandbox::volume::VolumeError>((object, packed.packs))
        });
        let (object, packs) = objects.await?.map_err(|error| volume(&error))?;
        let record = PackedRecord {
            volume: known.volume.volume,
            version,
            packs: object,
        };
        self.publish_volume(known.space, &Record::Packed(record))
            .await?;
        if let Some(record) = known.versions.get(&version)
            && !record.holders.contains(&self.id())
        {
            // Whoever follows has to know where it can be had.
            let mut record = record.clone();
            record.holders.push(self.id());
            self.publish_volume(known.space, &Record::Version(record))
                .await?;
        }
        self.settle(version, object, packs).await
    }

    /// Pins what a version lies in now and nothing else.
    async fn settle(
        &self,
        version: VersionId,
        object: PackId,
        packs: Vec<PackId>,
    ) -> Result<(), ApiError> {
        let (store, pin) = (self.volume_store()?, pin_of(&version));
        let mut all = packs.clone();
        all.extend([version, object]);
        let pinned = blocking(move || store.pin(&pin, &all)).await?;
        pinned.map_err(|error| stored(&error))?;
        self.volumes.moved(&version, &packs).await;
        Ok(())
    }

    /// Fetches what others have repacked of the versions that lie here, and ends what was
    /// interrupted here. What cannot be had yet stays where it is.
    pub(super) async fn settle_volume(
        &self,
        known: &Known,
        progress: &Progress,
    ) -> Result<(), ApiError> {
        let store = self.volume_store()?;
        for (version, object) in &known.packed {
            let record = known.versions.get(version);
            let Some(record) = record.filter(|_| store.has(version)) else {
                continue; // It does not lie here.
            };
            if let Err(error) = self.follow(known, record, object, progress).await {
                tracing::debug!(%version, %error, "what was repacked cannot be had yet");
            }
        }
        Ok(())
    }

    /// Has a version lie here where it is said to lie.
    async fn follow(
        &self,
        known: &Known,
        record: &VersionRecord,
        object: &PackId,
        progress: &Progress,
    ) -> Result<(), ApiError> {
        let (store, version) = (self.volume_store()?, record.version);
        let pin = pin_of(&version);
        let Some(pinned) = store.pinned(&pin) else {
            return Ok(()); // Nobody said that it has to stay.
        };
        let holders = known.holders_of(record);
        self.fetch_object(object, &pin, &holders, progress).await?;
        let key = self.store_key_of(&known.space, record.epoch)?;
        let packs = load_packed(&store, &key, &version, object).await?;
        let pinned: BTreeSet<PackId> = pinned.into_iter().collect();
        let wanted = packs.iter().chain([&version, object]).copied();
        if pinned == wanted.collect() && store.missing(&packs).is_empty() {
            return Ok(());
        }
        let coming = packs.clone();
        let kept = blocking(move || keep(&store, &pin, coming)).await?;
        kept.map_err(|error| stored(&error))?;
        self.bring(&packs, &holders, super::MAX_VERSION_BYTES, progress)
            .await?;
        self.settle(version, *object, packs).await
    }

    /// Returns the versions of an epoch that are whole here, with the packs they lie in.
    async fn kept_here(&self, known: &Known, epoch: u32) -> Result<Vec<Kept>, ApiError> {
        let mut kept = Vec::new();
        for record in known.versions.values().filter(|one| one.epoch == epoch) {
            if let Some(one) = self.whole_here(known, record).await? {
                kept.push(one);
            }
        }
        Ok(kept)
    }

    async fn whole_here(
        &self,
        known: &Known,
        record: &VersionRecord,
    ) -> Result<Option<Kept>, ApiError> {
        let store = self.volume_store()?;
        let id = record.version;
        if !store.has(&id) || store.pinned(&pin_of(&id)).is_none() {
            return Ok(None);
        }
        let key = self.store_key_of(&known.space, record.epoch)?;
        let version = load(&store, &key, record).await?;
        let packed = known.packed.get(&id).filter(|object| store.has(object));
        let packs = match packed {
            Some(object) => load_packed(&store, &key, &id, object).await?,
            None => version.packs,
        };
        let whole = store.missing(&packs).is_empty();
        Ok(whole.then_some(Kept {
            version: id,
            root: version.root,
            packs,
        }))
    }
}

fn tell_repack(progress: &Progress, done: usize, of: usize) {
    // One of many chunks says little.
    if done.is_multiple_of(64) || done == of {
        progress(ProgressEvent {
            step: "repack",
            detail: "chunks stored anew",
            done: done as u64,
            total: of as u64,
        });
    }
}

/// What a volume was when it was looked at: which versions, and where they lie.
fn looked(known: &Known) -> Hash {
    let versions = known.versions.keys().map(|id| *id.as_bytes());
    let packed = known.packed.values().map(|id| *id.as_bytes());
    let all: Vec<u8> = versions.chain([[0; 32]]).chain(packed).flatten().collect();
    Hash::keyed("rhizome volume repack 1", &all)
}
