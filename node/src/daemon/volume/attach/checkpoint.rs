//! Checkpoints: what a volume is in a sandbox becomes a version.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_sandbox::{Progress, SandboxId, volume::attach::Target};

use super::super::{Trees, blocking, commit::New, copy, stored};
use super::{
    AttachedRecord, LEASE_MS, Node, Record, VolumeId, attach,
    live::{Live, lock},
    now_ms,
};
use crate::{
    api::types::volume::{VolumeCheckpointBody, VolumeCommitted},
    daemon::caller::Caller,
    error::ApiError,
};

/// How long a checkpoint waits for what is still on its way of the version that was attached.
const WHOLE: Duration = Duration::from_secs(60);
/// Most bytes of changed files in one checkpoint.
const MAX_BYTES: u64 = 256 << 30;

impl Node {
    /// Stores what a volume is in a sandbox, if that is not what it was.
    pub(crate) async fn checkpoint_volume(
        self: Arc<Self>,
        wanted: String,
        body: VolumeCheckpointBody,
        progress: Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        let live = self.live_of(&known, body.sandbox.as_deref())?;
        let sandbox = live.state.lock().await.record.sandbox;
        self.may_store(&known.space, self.agent_in(&sandbox))
            .await?;
        let message = match body.message.as_str() {
            "" => "checkpoint",
            message => message,
        };
        self.take_checkpoint(&live, message, body.replicas, &progress)
            .await
    }

    /// Stores what every volume of a sandbox is, before the sandbox sleeps.
    ///
    /// # Errors
    /// The first volume that could not be stored; the others were.
    pub(crate) async fn checkpoint_volumes(
        &self,
        sandbox: &SandboxId,
        message: &str,
        progress: &Progress,
    ) -> Result<(), ApiError> {
        self.checkpoint_those(|of| of.sandbox == *sandbox, message, progress)
            .await
    }

    /// Stores what a volume is in the sandboxes of this node that may write in it.
    ///
    /// # Errors
    /// The first sandbox of which it could not be stored.
    pub(crate) async fn checkpoint_volume_everywhere(
        &self,
        volume: &VolumeId,
        message: &str,
        progress: &Progress,
    ) -> Result<(), ApiError> {
        self.volumes.drop_ended();
        self.checkpoint_those(|of| of.volume == *volume, message, progress)
            .await
    }

    async fn checkpoint_those(
        &self,
        are: impl Fn(&AttachedRecord) -> bool,
        message: &str,
        progress: &Progress,
    ) -> Result<(), ApiError> {
        let mut first = Ok(());
        for live in self.volumes.all() {
            let is_one = are(&live.state.lock().await.record);
            if is_one && live.attachment.mount().writable {
                let taken = self.take_checkpoint(&live, message, None, progress).await;
                first = first.and(taken.map(drop));
            }
        }
        first
    }

    pub(super) async fn take_checkpoint(
        &self,
        live: &Live,
        message: &str,
        replicas: Option<usize>,
        progress: &Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let mut state = live.state.lock().await;
        let every = Duration::from_secs(state.record.every_secs);
        *lock(&live.due) = Instant::now() + every;
        let volume = state.record.volume;
        let known = self.known_volumes(vec![live.space]).await?;
        let known = known
            .into_iter()
            .find(|known| known.volume.volume == volume);
        let known = known.ok_or_else(|| ApiError::not_found("the volume is not known here"))?;
        let channel = self.guest_of(&state.record.sandbox).await?;
        let store = self.volume_store()?;
        let pin = format!("volume-new-{volume}-{}", state.record.sandbox);
        let target = Target {
            store: store.clone(),
            key: self.store_key_of(&live.space, live.epoch)?,
            base_packs: lock(&live.base_packs).clone(),
            max_bytes: MAX_BYTES,
            pin: pin.clone(),
        };
        // A version is whole on the node that made it, unless that takes too long, or nobody has the
        // rest any more: what was changed is kept then all the same.
        match tokio::time::timeout(WHOLE, live.arriving.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%volume, %error, "a version is made that is not whole here");
            }
            Err(_) => tracing::debug!(%volume, "a version is made while its base is arriving"),
        }
        let taken = live.attachment.checkpoint(&channel, target).await;
        let taken = taken.map_err(|error| attach(&error))?;
        let mut newest = state.record.last.unwrap_or(state.record.base);
        // A daemon that died between a version and its mark has made this one already.
        let digest = taken.root.digest().to_string();
        let made = known.versions.values().find(|version| {
            version.parents == [newest] && version.tree == digest && taken.root != state.root
        });
        if let Some(made) = made {
            let marked = live.attachment.set_mark(&channel, &made.version).await;
            marked.map_err(|error| attach(&error))?;
            newest = made.version;
            state.record.last = Some(newest);
            state.root = taken.root.clone();
        }
        let (version, changed) = if taken.root == state.root {
            let version = known.versions.get(&newest).cloned();
            let unpinned = blocking(move || store.unpin(&pin)).await?;
            unpinned.map_err(|error| stored(&error))?;
            let version = version.ok_or_else(|| ApiError::not_found("the version is not known"))?;
            (version, false)
        } else {
            let mut new = New {
                root: taken.root.clone(),
                packs: taken.packs,
                parents: vec![newest],
                message: message.to_owned(),
                replicas,
                pin: Some(pin),
                bytes_stored: taken.stats.stored_bytes,
                agent: self.agent_in(&state.record.sandbox),
            };
            if self.store_key(&live.space)?.1 != live.epoch {
                // The space has a new key since: all of it goes under that one.
                let old = self.store_key_of(&live.space, live.epoch)?;
                let root = new.root.clone();
                let chunks = store.reader(&old, &new.packs);
                let chunks = chunks.map_err(|error| stored(&error))?;
                let (root, packs, pin) = self
                    .store_tree(&known, move |_, writer| {
                        copy(Trees::new(&chunks), &root, writer)
                    })
                    .await?;
                (new.root, new.packs, new.pin) = (root, packs, pin);
            }
            let committed = self.commit_version(&known, new, progress).await?;
            state.root = taken.root;
            state.record.last = Some(committed.version);
            state.record.until_ms = now_ms() + LEASE_MS;
            let marked = live.attachment.set_mark(&channel, &committed.version).await;
            marked.map_err(|error| attach(&error))?;
            let record = Record::Attached(state.record.clone());
            self.publish_volume(live.space, &record).await?;
            (committed, true)
        };
        let mut committed = self.committed(&known, &version, changed);
        committed.files_read = taken.files_read;
        committed.skipped = taken.skipped;
        committed.unsettled = taken.unsettled;
        Ok(committed)
    }
}
