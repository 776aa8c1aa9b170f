//! What a replica is asked, and what it answers.

use std::time::Duration;

use rhizome_identity::{AgentId, Hash, RecordError, SpaceId};

use crate::{
    ContextPatch, DocId, Draft, FORK_TURN, FileEdit, FilePath, FileText, FragmentId, Hlc,
    ShareLimits, Verdict, store::SEGMENT_BYTES,
};

/// How a replica works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplicaConfig {
    /// A segment file that has reached this length, in bytes, is followed by a new one.
    pub segment_bytes: u64,
    /// What authors, nodes and spaces may write before others go first.
    pub shares: ShareLimits,
    /// How long a turn to show a fork lasts; with zero a fork is shown as it is found.
    pub fork_turn: Duration,
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            shares: ShareLimits::default(),
            fork_turn: FORK_TURN,
        }
    }
}

impl ReplicaConfig {
    /// Has a turn to show a fork last so long.
    #[must_use]
    pub fn with_fork_turn(mut self, fork_turn: Duration) -> Self {
        self.fork_turn = fork_turn;
        self
    }
}

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

/// An edit of a file.
#[derive(Debug, Clone)]
pub struct FileRequest {
    /// The space the file lives in.
    pub space: SpaceId,
    /// The file.
    pub path: FilePath,
    /// What to do to it.
    pub edit: FileEdit,
    /// The runtime it is done in.
    pub fingerprint: Hash,
}

/// A document to redact.
#[derive(Debug, Clone)]
pub struct RedactRequest {
    /// The space it lives in.
    pub space: SpaceId,
    /// The document.
    pub doc: DocId,
    /// Why, in words that every reader of the space will see; at most [`crate::MAX_REASON`] bytes.
    pub reason: String,
    /// Whether only what the agent itself wrote is meant, whatever else it may take.
    pub own_only: bool,
    /// The runtime it is done in.
    pub fingerprint: Hash,
}

/// A redaction that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redacted {
    /// The fragments that redact, at least one.
    pub published: Vec<Published>,
    /// How many fragments lost their body.
    pub taken: usize,
    /// How many of the document the agent may not take; their bodies stay.
    pub left: usize,
}

/// An edit of a file that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// The fragment.
    pub published: Published,
    /// What it came upon and what it left.
    pub text: FileText,
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
    /// The verdict; [`Verdict::Admit`] and [`Verdict::Late`] mean that it is durable.
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

/// Proof that an author signed two histories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fork {
    /// The space.
    pub space: SpaceId,
    /// The author.
    pub author: AgentId,
    /// The fragment that was here first, and counts here.
    pub ours: FragmentId,
    /// The first one that contradicted it; kept as evidence.
    pub theirs: FragmentId,
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
