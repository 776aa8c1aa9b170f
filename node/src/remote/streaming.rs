//! Sandboxes that go on before all of what they slept in is here.
//!
//! Devices and memory are fetched first, and read while they come; the disk comes behind the
//! sandbox that uses it already. What is still to come when the daemon ends is fetched by the next
//! one; only what is here whole counts as a copy.
use std::{sync::Arc, time::Duration};

use rhizome_identity::NodeId;
use rhizome_sandbox::{
    SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    chunks::{ChunkError, ChunkId, ReadChunks, StoreKey},
};
use tokio_util::sync::DropGuard;

use super::{
    arriving::{Arriving, Wanted},
    notes::CopyState,
    record::Found,
};
use crate::{
    daemon::{
        fail,
        node::{Node, blocking},
        sandbox::Bound,
    },
    error::ApiError,
};

/// How long until what a former daemon began and this one cannot go on with is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A snapshot that arrives for as long as somebody has this.
#[derive(Debug)]
pub(crate) struct Streamed {
    arriving: Arc<Arriving>,
    _fetching: DropGuard,
}

impl Streamed {
    /// Returns how many bytes of it came until now.
    pub(crate) fn came_bytes(&self) -> u64 {
        self.arriving.came_bytes()
    }
}

impl ReadChunks for Streamed {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        self.arriving.read(id)
    }
}

impl Node {
    /// Begins to fetch what a sandbox slept in, whose manifest is here; `None` if all of it is.
    pub(crate) async fn stream(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotRef,
        key: &StoreKey,
        holders: Vec<NodeId>,
    ) -> Result<Option<Arc<Streamed>>, ApiError> {
        if self.has_all(snapshot) {
            return Ok(None);
        }
        let first = self.sandboxes()?.needed_first(snapshot, key).await;
        let wanted = Wanted {
            packs: snapshot.packs.clone(),
            holders,
            first: first.map_err(|error| fail::sandbox(&error))?,
            snapshot: Some((*sandbox, snapshot.manifest)),
        };
        let (arriving, fetching) = Arriving::open(&self.shared()?, key.clone(), wanted).await?;
        Ok(Some(Arc::new(Streamed {
            arriving,
            _fetching: fetching,
        })))
    }

    /// Whether everything that a snapshot consists of is here.
    pub(crate) fn has_all(&self, snapshot: &SnapshotRef) -> bool {
        let store = self.sandboxes().map(|sandboxes| sandboxes.chunks());
        store.is_ok_and(|store| store.missing(&snapshot.objects()).is_empty())
    }

    /// Fetches on until all is here, also what the sandbox has no use for any more: then this node
    /// holds a copy, and says so.
    pub(crate) fn keep_streaming(
        &self,
        found: Found,
        streamed: Arc<Streamed>,
    ) -> Result<(), ApiError> {
        let node = self.shared()?;
        streamed.arriving.go_on_behind();
        self.tasks.spawn(async move {
            let (sandbox, snapshot) = (found.record.sandbox, found.record.snapshot.manifest);
            let over = async {
                while node.sleeps_in(&sandbox, &snapshot) {
                    tokio::time::sleep(AGAIN).await;
                }
            };
            tokio::select! {
                biased;
                () = node.stop.cancelled() => {}
                () = streamed.arriving.whole() => {
                    node.say_copy(&found, node.id(), CopyState::Held).await;
                }
                () = over => {}
            }
        });
        Ok(())
    }

    /// Whether a sandbox here still has this as what it slept in last.
    fn sleeps_in(&self, sandbox: &SandboxId, manifest: &rhizome_sandbox::chunks::PackId) -> bool {
        let info = self.sandboxes().ok();
        let info = info.and_then(|sandboxes| sandboxes.get(&sandbox.to_string()).ok());
        let snapshot = info.and_then(|info| info.snapshot);
        snapshot.is_some_and(|snapshot| snapshot.manifest == *manifest)
    }

    /// Goes on with what a former daemon began.
    async fn stream_on(&self, info: &SandboxInfo) -> Result<(), ApiError> {
        let sandboxes = self.sandboxes()?;
        let bound = Bound::of(info);
        let Some(snapshot) = &info.snapshot else {
            return Ok(());
        };
        let found = match bound.spaces.first() {
            Some(space) => self.record_of(space, &info.id).await?,
            None => None,
        };
        let holders = self.holders_now(&info.id, &snapshot.manifest).await;
        for key in self.snapshot_keys(&bound) {
            let (reading, with) = (sandboxes.chunks().clone(), key.clone());
            let packs = snapshot.packs.clone();
            let holders = holders.clone().unwrap_or_default();
            let streamed = match self.stream(&info.id, snapshot, &key, holders).await {
                Ok(streamed) => streamed,
                Err(error) => {
                    tracing::debug!(sandbox = %info.id, %error, "it is of another key, or not here");
                    continue;
                }
            };
            let chunks: Arc<dyn ReadChunks> = match &streamed {
                Some(streamed) => Arc::<Streamed>::clone(streamed),
                None => {
                    let reader = blocking(move || reading.reader(&with, &packs)).await?;
                    Arc::new(reader.map_err(|error| fail::chunks(&error))?)
                }
            };
            match sandboxes.go_on_arriving(&info.id, &key, chunks).await {
                Err(SandboxError::Chunks(error)) if error.is_of_another_key() => continue,
                went_on => went_on.map_err(|error| fail::sandbox(&error))?,
            }
            match (found, streamed) {
                (Some(found), Some(streamed)) => self.keep_streaming(found, streamed)?,
                (None, Some(streamed)) => streamed.arriving.go_on_behind(),
                _ => {}
            }
            return Ok(());
        }
        Err(ApiError::internal(
            "no key of this node opens what it slept in",
        ))
    }
}

/// Goes on with the sandboxes whose disks were on their way when the last daemon ended.
pub(crate) async fn go_on(node: Arc<Node>) {
    let Ok(sandboxes) = node.sandboxes() else {
        return;
    };
    let mut left = sandboxes.arriving();
    while !left.is_empty() {
        let mut again = Vec::new();
        for info in left {
            if let Err(error) = node.stream_on(&info).await {
                tracing::warn!(sandbox = %info.id, %error, "its disk cannot be fetched on yet");
                again.push(info);
            }
        }
        left = again;
        if left.is_empty() {
            return;
        }
        tokio::select! {
            biased;
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}
