//! How far a reader takes an author at its word.
//!
//! The view does not know who may speak: whoever reads it brings a judge. What a hidden voice said
//! is not there; what a doubtful one said is data below everything that is trusted, and neither
//! replaces, retracts nor overwrites what somebody better said.

use rhizome_identity::{AgentId, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

use crate::{FragmentId, Kind, MemoryItem};

/// How far an author is taken at its word; the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It is beyond what counts of its author's chain: nothing of it is shown.
    Hidden,
    /// Its author's certificate has expired, or this node's owner does not trust the author.
    Doubtful,
    /// Its author may speak, or might when it said it.
    Trusted,
}

/// Who said something, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voice {
    /// The space.
    pub space: SpaceId,
    /// Who signed it.
    pub author: AgentId,
    /// On which node.
    pub node: NodeId,
    /// The fragment.
    pub fragment: FragmentId,
    /// What kind of document it is in.
    pub kind: Kind,
}

impl Voice {
    /// Returns whose voice a memory is.
    #[must_use]
    pub fn of(item: &MemoryItem) -> Self {
        Self {
            space: item.space,
            author: item.author,
            node: item.node,
            fragment: item.id,
            kind: item.kind,
        }
    }
}

/// Says how far a voice is taken at its word.
pub(crate) type Judge<'a> = &'a dyn Fn(&Voice) -> Standing;

/// Takes everybody at their word.
pub(crate) fn all_trusted(_: &Voice) -> Standing {
    Standing::Trusted
}
