//! Why a fragment counts, or what it waits for.

use rhizome_identity::{AgentId, Hash, NodeId, RecordId, SpaceId};
use serde::Serialize;

use crate::{DocId, FragmentId, Hlc, Kind};

/// Everything this node can say about one fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Why {
    /// The fragment.
    pub id: FragmentId,
    /// Its place in the order of arrival on this node.
    pub arrival: u64,
    /// The space it belongs to.
    pub space: SpaceId,
    /// The document it changes.
    pub doc: DocId,
    /// What the document is about.
    pub kind: Kind,
    /// Who signed it.
    pub author: AgentId,
    /// The author's name in the authority log, if it has one.
    pub author_name: Option<String>,
    /// The node it was written on.
    pub node: NodeId,
    /// The node's name, if it is a member.
    pub node_name: Option<String>,
    /// The node's role in the space, as this node sees it now.
    pub role: Option<String>,
    /// Its position in the author's chain.
    pub seq: u64,
    /// The fragment before it.
    pub prev: Option<FragmentId>,
    /// When its author says it was written.
    pub hlc: Hlc,
    /// The authority records its author's node knew.
    pub auth_heads: Vec<RecordId>,
    /// The fragments it builds on.
    pub deps: Vec<FragmentId>,
    /// The hash of its body.
    pub body_hash: Hash,
    /// The length of its body, in bytes of ciphertext.
    pub body_len: u32,
    /// The records that allow the author to write, grant last; empty if it may not any more.
    pub proof: Vec<RecordId>,
    /// Why the author may not write by what this node knows now.
    pub denied: Option<String>,
    /// What has become of it.
    pub state: WhyState,
}

/// What has become of a fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
#[non_exhaustive]
pub enum WhyState {
    /// It is part of its document.
    Applied,
    /// It waits for something that has not arrived.
    WaitingFor {
        /// What is missing.
        what: Awaited,
        /// The fragment that names what is missing.
        named_by: FragmentId,
        /// The author of that fragment.
        named_by_author: AgentId,
    },
    /// It is stored and served, but its change is kept out of the document.
    Quarantined {
        /// What is wrong with it.
        reason: String,
    },
    /// This node holds no key of that epoch: it stores and serves what it cannot read.
    Unreadable {
        /// The key epoch of the body.
        epoch: u32,
    },
    /// It is durable and about to be applied.
    Pending,
    /// Its body was taken for good; the header stays.
    Redacted(RedactedBy),
    /// It is beyond what counts of its author's chain, and shown nowhere.
    SetAside {
        /// The place in the chain up to which it counts; none if nothing of it does.
        up_to: Option<u64>,
        /// The records that say so: revocations, or the proof that its author signed two histories.
        by: Vec<RecordId>,
        /// Whether it is kept because something that counts builds on it.
        carried: bool,
    },
}

/// Who took a body for good, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RedactedBy {
    /// The fragment that says so.
    pub redaction: FragmentId,
    /// Who signed it.
    pub author: AgentId,
    /// The node it was signed on.
    pub node: NodeId,
    /// When its author says it was signed.
    pub hlc: Hlc,
    /// The author's reason, if it gave one that can be read here.
    pub reason: Option<String>,
}

/// Something a fragment waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Awaited {
    /// Another fragment.
    Fragment(FragmentId),
    /// Its own body, a blob.
    Body(Hash),
    /// Authority records.
    Authority,
}

/// The result of re-reading and re-checking every fragment of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Every fragment of the document, in the order of arrival.
    pub fragments: Vec<VerifiedFragment>,
}

impl Verification {
    /// Returns how many fragments passed every check.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.fragments.iter().filter(|fragment| fragment.ok).count()
    }

    /// Returns whether there are fragments and all of them passed.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.fragments.is_empty() && self.passed() == self.fragments.len()
    }
}

/// One fragment, read from disk and checked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedFragment {
    /// The fragment.
    pub id: FragmentId,
    /// Who signed it.
    pub author: AgentId,
    /// The node it was written on.
    pub node: NodeId,
    /// Its position in the author's chain.
    pub seq: u64,
    /// When its author says it was written.
    pub hlc: Hlc,
    /// Whether hash, signature, chain and authority hold.
    pub ok: bool,
    /// What does not hold.
    pub problem: Option<String>,
}
