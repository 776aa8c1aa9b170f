//! Volumes in sandboxes that came to run otherwise than by an attachment: copies, and those that
//! were woken, started, or left by a former daemon.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_identity::SpaceId;
use rhizome_sandbox::{SandboxId, SandboxInfo, SandboxState, life::Phase, silent};

use super::{AttachedRecord, LEASE_MS, Node, Record, live::lock, now_ms};
use crate::{
    daemon::{caller::Caller, sandbox::Bound},
    error::ApiError,
};

/// How often it says so.
const RENEW_MS: u64 = 10 * 60 * 1_000;
/// How often the keeper looks.
const LOOK: Duration = Duration::from_secs(2);
/// How often it looks for attachments that nobody serves, while sandboxes run.
const LOOK_FOR_LOST: Duration = Duration::from_secs(10);
/// How long a wake-up waits for the volumes of what it wakes.
const REOPEN: Duration = Duration::from_secs(20);

impl Node {
    /// Serves in copies of a sandbox the volumes that it has. Each copy goes on from the same changes
    /// and makes versions of its own, beside those of the others.
    pub(crate) async fn fork_volumes(&self, from: &SandboxId, copies: &[SandboxInfo]) {
        for live in self.volumes.all() {
            let record = live.state.lock().await.record.clone();
            if record.sandbox != *from {
                continue;
            }
            for copy in copies {
                let record = AttachedRecord {
                    sandbox: copy.id,
                    until_ms: now_ms() + LEASE_MS,
                    ..record.clone()
                };
                if let Err(error) = self.serve_copy(live.space, record).await {
                    tracing::warn!(sandbox = %copy.id, %error, "a copy has its volume unserved");
                }
            }
        }
    }

    /// Serves in a copy that was made from a snapshot the volumes that its sandbox has, wherever
    /// that is: as with a fork, each goes on from the changes that it woke with.
    pub(crate) async fn copy_volumes(&self, from: &SandboxId, copy: &SandboxInfo) {
        let all = match self.known_volumes(Bound::of(copy).spaces).await {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(sandbox = %copy.id, %error, "a copy has its volumes unserved");
                return;
            }
        };
        for known in &all {
            let of_it = |record: &&AttachedRecord| record.attached && record.sandbox == *from;
            for record in known.attached.iter().filter(of_it) {
                let record = AttachedRecord {
                    sandbox: copy.id,
                    node: self.id(),
                    until_ms: now_ms() + LEASE_MS,
                    ..record.clone()
                };
                if let Err(error) = self.serve_copy(known.space, record).await {
                    tracing::warn!(sandbox = %copy.id, %error, "a copy has its volume unserved");
                }
            }
        }
    }

    async fn serve_copy(&self, space: SpaceId, record: AttachedRecord) -> Result<(), ApiError> {
        let _one_at_a_time = self.volumes.changing.lock().await;
        let known = self.known_volumes(vec![space]).await?;
        let known = known
            .into_iter()
            .find(|known| known.volume.volume == record.volume);
        let known = known.ok_or_else(|| ApiError::not_found("the volume is not known here"))?;
        let record = self.serve_volume(&known, record, &silent()).await?;
        self.publish_volume(space, &Record::Attached(record)).await
    }

    /// Serves the volumes of a sandbox that has just been woken or started, without which what it
    /// reads of them would wait for the keeper. Returns what is to be said of those that cannot be
    /// served yet; the keeper tries again.
    pub(crate) async fn reopen_volumes(&self, sandbox: &SandboxId) -> Vec<String> {
        let reopening = self.find_lost_volumes(Some(sandbox));
        match tokio::time::timeout(REOPEN, reopening).await {
            Ok(Ok(problems)) => problems,
            Ok(Err(error)) => vec![format!("its volumes are not served yet: {error}")],
            Err(_) => vec!["its volumes are not served yet".to_owned()],
        }
    }

    /// Serves again what is written down as attached to a sandbox that runs here, or to all;
    /// returns what stands in the way of others.
    async fn find_lost_volumes(&self, only: Option<&SandboxId>) -> Result<Vec<String>, ApiError> {
        self.volumes.drop_ended();
        let mut problems = Vec::new();
        let running = self.sandboxes()?.list();
        let here = |sandbox: &SandboxId| {
            let mut ready = running
                .iter()
                .filter(|info| info.state == SandboxState::Ready);
            ready.find(|info| info.id == *sandbox && only.is_none_or(|only| only == sandbox))
        };
        let killed = |sandbox: &SandboxId| {
            let is =
                |info: &&SandboxInfo| info.id == *sandbox && info.state.phase() == Phase::Killed;
            running.iter().find(is).is_some()
        };
        if running.is_empty() {
            return Ok(problems);
        }
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        for known in self.known_volumes(spaces).await? {
            for record in known.attached.iter().filter(|record| record.attached) {
                let _one_at_a_time = self.volumes.changing.lock().await;
                if record.node == self.id() && killed(&record.sandbox) {
                    // What was changed in it is gone; nobody has to wait for its lease.
                    let mut record = record.clone();
                    record.attached = false;
                    let ended = Record::Attached(record);
                    self.publish_volume(known.space, &ended).await?;
                    continue;
                }
                let Some(info) = here(&record.sandbox) else {
                    continue;
                };
                if self.volumes.serves(&record.sandbox, &record.volume) {
                    continue;
                }
                // Somebody else's word is not enough to hand a guest a volume.
                if self.belongs(&known, info).is_err() {
                    continue;
                }
                let mut record = record.clone();
                let before = record.clone();
                record.node = self.id();
                let served = self.serve_volume(&known, record.clone(), &silent()).await;
                match served {
                    Ok(served) => record = served,
                    Err(error) => {
                        tracing::warn!(sandbox = %record.sandbox, volume = %record.volume, %error,
                            "a volume cannot be served");
                        let name = &known.volume.name;
                        problems.push(format!("the volume `{name}` is not served yet: {error}"));
                        continue;
                    }
                }
                if (record.node, record.base, record.last)
                    != (before.node, before.base, before.last)
                {
                    record.until_ms = now_ms() + LEASE_MS;
                    let record = Record::Attached(record);
                    self.publish_volume(known.space, &record).await?;
                }
            }
        }
        Ok(problems)
    }

    /// Takes the checkpoints that are due, renews leases, lets go of what has ended.
    async fn tend_volumes(&self) {
        // The keeper opens them anew over the next channel.
        self.volumes.drop_ended();
        for live in self.volumes.all() {
            let Ok(mut state) = live.state.try_lock() else {
                continue;
            };
            let record = state.record.clone();
            if record.writable && record.until_ms < now_ms() + LEASE_MS - RENEW_MS {
                state.record.until_ms = now_ms() + LEASE_MS;
                let renewed = Record::Attached(state.record.clone());
                if let Err(error) = self.publish_volume(live.space, &renewed).await {
                    tracing::warn!(volume = %record.volume, %error, "a lease is not renewed");
                }
            }
            drop(state);
            let due = *lock(&live.due);
            if record.every_secs > 0 && record.writable && Instant::now() >= due {
                let quiet = silent();
                let taken = self.take_checkpoint(&live, "at an interval", None, &quiet);
                if let Err(error) = taken.await {
                    tracing::warn!(volume = %record.volume, %error, "a checkpoint failed");
                }
            }
        }
    }
}

/// Keeps volumes served and checkpointed until the node stops.
pub(crate) async fn keep_volumes(node: Arc<Node>) {
    let mut looked = None::<Instant>;
    loop {
        tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        node.tend_volumes().await;
        if looked.is_none_or(|at| at.elapsed() >= LOOK_FOR_LOST) {
            looked = Some(Instant::now());
            if let Err(error) = node.find_lost_volumes(None).await {
                tracing::debug!(%error, "cannot look for volumes to serve");
            }
        }
    }
}
