//! What becomes of a fragment that is offered.

use rhizome_identity::Denied;

use crate::{FragmentError, FragmentId, Sharer, Spent};

/// What becomes of a fragment that a peer offers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is next in its chain: verify its signature, store it, then commit it.
    Admit,
    /// It is admitted, but after others: somebody has used up a share with it. Only a replica, which
    /// knows the shares, says so.
    Late(Sharer),
    /// It is here already.
    Duplicate,
    /// It may be right, but something before it is missing.
    Wait(Missing),
    /// It is wrong, and stays wrong.
    Reject(RejectReason),
    /// Its author signed two histories; `other` is of the one that came here first.
    Fork {
        /// The fragment here that this one contradicts.
        other: FragmentId,
    },
}

/// What a fragment waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The fragment before it in its chain, with that one's position.
    Prev(FragmentId, u64),
    /// Authority records that its author's node knew.
    Authority,
    /// The record that creates its space.
    Space,
}

/// Why a fragment is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The bytes are not a fragment.
    #[error("not a fragment")]
    Malformed(#[source] FragmentError),
    /// It was written in another mesh.
    #[error("written in another mesh")]
    WrongMesh,
    /// No record creates its space, although every record its author's node knew is here.
    #[error("its space does not exist")]
    UnknownSpace,
    /// Its author had no right to write it.
    #[error("its author may not write here")]
    Denied(#[source] Denied),
    /// The signature does not fit.
    #[error("broken signature")]
    Signature,
    /// It lies beyond the point up to which its revoked author's chain is valid.
    #[error("beyond the point up to which its revoked author's chain is valid")]
    BeyondCut,
    /// Its author, node or space has written several times its share; it may be offered again.
    #[error("{} has used up its share several times over", .0.whose)]
    OverShare(Spent),
    /// It came without its body, and no redaction that counts has taken it; with the body it may be
    /// offered again.
    #[error("it came without its body, which no redaction that counts has taken")]
    Withheld,
    /// This node could not store it; it may be offered again.
    #[error("this node could not store it")]
    Storage,
}

impl RejectReason {
    /// Returns whether the fragment itself is at fault, and not this node.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        !matches!(self, Self::Storage | Self::OverShare(_) | Self::Withheld)
    }

    /// Returns whether the peer that passed the fragment on could have seen what is wrong with it.
    ///
    /// Rights depend on records that it may not have yet, so only what the bytes show counts.
    #[must_use]
    pub const fn is_senders_fault(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::Signature | Self::WrongMesh)
    }
}
