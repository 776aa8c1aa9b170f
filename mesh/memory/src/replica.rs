//! A node's copy of everything it may hold.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use bytes::Bytes;
use rhizome_identity::{
    AgentKey, Authority, Hash, NodeId, NodeKey, RecordError, SignedRecord, SpaceId, SpaceKey,
};
use tokio::sync::broadcast;

use crate::{
    ContextPatch, ContextState, ContextSummary, DocId, Draft, Event, FragmentId, Hit, Hlc, IdSet,
    Lane, ListQuery, MemoryItem, RecallError, RecallQuery, Verdict, Verification, WatchEvent, Why,
};

/// How a replica works.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReplicaConfig {}

/// What recovery found when the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {}

/// A memory to publish.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// The space to publish in.
    pub space: SpaceId,
    /// What to say.
    pub draft: Draft,
    /// The runtime it was found in.
    pub fingerprint: Hash,
}

/// A change to the working context of a task.
#[derive(Debug, Clone)]
pub struct CheckpointRequest {
    /// The space the context lives in.
    pub space: SpaceId,
    /// The task.
    pub task: String,
    /// What changed.
    pub patch: ContextPatch,
    /// The runtime it was found in.
    pub fingerprint: Hash,
}

/// A fragment of ours that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The fragment.
    pub id: FragmentId,
    /// The document it changes.
    pub doc: DocId,
    /// Its position in the author's chain.
    pub seq: u64,
    /// When it was written.
    pub hlc: Hlc,
    /// Its place in the order of arrival on this node.
    pub arrival: u64,
}

/// What became of one fragment a peer offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmitOutcome {
    /// The fragment, if the bytes were one.
    pub id: Option<FragmentId>,
    /// The verdict; [`Verdict::Admit`] means it is durable.
    pub verdict: Verdict,
}

/// What became of one authority record a peer offered.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordOutcome {
    /// It is durable and counts.
    Stored,
    /// It is here already.
    Duplicate,
    /// It is held until its parents arrive.
    Waiting,
    /// It is wrong, and stays wrong.
    Rejected(RecordError),
    /// There is no room to hold it, or it could not be stored; it may be offered again.
    Refused,
}

/// What a space amounts to on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Fragments stored.
    pub fragments: u64,
    /// Fragments whose change waits for another.
    pub waiting: u64,
    /// Fragments whose change is kept out of its document.
    pub quarantined: u64,
    /// Hash over the heads of all chains: equal on two nodes that hold the same fragments.
    pub heads: Hash,
}

/// Why a replica could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("`{}` is in use by another process", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// Why a publish failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {}

/// Why the replica could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {}

/// A node's durable copy of the authority log and of its spaces, with the view on them.
///
/// Cheap to clone. Methods block on the disk where they say so: call them from a blocking task.
#[derive(Debug, Clone)]
pub struct Replica {}

#[allow(unused_variables)]
impl Replica {
    /// Opens or creates the replica in `dir`.
    pub fn open(dir: &Path, node: NodeKey, config: ReplicaConfig) -> Result<Self, OpenError> {
        todo!()
    }
    /// Returns what recovery found.
    pub fn recovery(&self) -> &RecoveryReport {
        todo!()
    }
    /// Returns this node's id.
    pub fn node(&self) -> NodeId {
        todo!()
    }
    /// Returns who may do what.
    pub fn authority(&self) -> Arc<Authority> {
        todo!()
    }
    /// Appends records made here; durable on return.
    pub fn append_records(&self, records: Vec<SignedRecord>) -> Result<(), ReplicaError> {
        todo!()
    }
    /// Takes in records that a peer offers.
    pub fn admit_records(&self, from: Option<NodeId>, records: Vec<Bytes>) -> Vec<RecordOutcome> {
        todo!()
    }
    /// Returns a space's key, if this node was given it.
    pub fn space_key(&self, space: &SpaceId, epoch: u32) -> Option<SpaceKey> {
        todo!()
    }
    /// Publishes a memory; durable on return.
    pub fn publish(
        &self,
        agent: &AgentKey,
        request: PublishRequest,
    ) -> Result<Published, PublishError> {
        todo!()
    }
    /// Changes the working context of a task; durable on return.
    pub fn checkpoint(
        &self,
        agent: &AgentKey,
        request: CheckpointRequest,
    ) -> Result<Published, PublishError> {
        todo!()
    }
    /// Takes in fragments that a peer offers; those admitted are durable on return.
    pub fn admit(&self, from: NodeId, wires: Vec<Bytes>) -> Vec<AdmitOutcome> {
        todo!()
    }
    /// Returns whether a fragment is stored here.
    pub fn holds(&self, id: &FragmentId) -> bool {
        todo!()
    }
    /// Returns the wire form of those items that are here, up to `max_bytes` in all.
    pub fn wires(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        todo!()
    }
    /// Returns the ids of a lane, for reconciliation.
    pub fn id_set(&self, lane: Lane) -> Arc<RwLock<IdSet>> {
        todo!()
    }
    /// Returns the lanes this node takes part in.
    pub fn lanes(&self) -> Vec<Lane> {
        todo!()
    }
    /// Returns the bodies that fragments here name and that are not here.
    pub fn missing_bodies(&self) -> Vec<Hash> {
        todo!()
    }
    /// Stores a body that a fragment here names.
    pub fn put_body(&self, hash: Hash, body: Bytes) -> Result<(), ReplicaError> {
        todo!()
    }
    /// Returns the file of a body that is here.
    pub fn body_path(&self, hash: Hash) -> Option<PathBuf> {
        todo!()
    }
    /// Returns a listener for what becomes durable from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        todo!()
    }
    /// Returns what arrived after `after`, oldest first.
    pub fn watch(&self, space: Option<SpaceId>, after: u64, limit: usize) -> Vec<WatchEvent> {
        todo!()
    }
    /// Searches memories.
    pub fn recall(&self, query: &RecallQuery) -> Result<Vec<Hit>, RecallError> {
        todo!()
    }
    /// Returns a memory.
    pub fn memory(&self, space: &SpaceId, doc: &DocId) -> Result<Option<MemoryItem>, ReplicaError> {
        todo!()
    }
    /// Lists memories.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ReplicaError> {
        todo!()
    }
    /// Returns the working context of a task.
    pub fn context(
        &self,
        space: &SpaceId,
        task: &str,
    ) -> Result<Option<ContextState>, ReplicaError> {
        todo!()
    }
    /// Lists working contexts.
    pub fn contexts(&self, space: Option<SpaceId>) -> Result<Vec<ContextSummary>, ReplicaError> {
        todo!()
    }
    /// Re-reads every fragment of a context from disk and checks it again.
    pub fn verify_context(
        &self,
        space: &SpaceId,
        task: &str,
    ) -> Result<Verification, ReplicaError> {
        todo!()
    }
    /// Explains a fragment.
    pub fn why(&self, id: &FragmentId) -> Result<Option<Why>, ReplicaError> {
        todo!()
    }
    /// Returns what a space amounts to here.
    pub fn sync_state(&self, space: &SpaceId) -> SpaceStats {
        todo!()
    }
    /// Writes the index behind everything that is durable already.
    pub fn flush(&self) -> Result<(), ReplicaError> {
        todo!()
    }
    /// Flushes and refuses all further writes.
    pub fn close(&self) -> Result<(), ReplicaError> {
        todo!()
    }
}
