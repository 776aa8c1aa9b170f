//! Which fragments a node takes in: pure, so that a simulator runs it by the thousand.

use rhizome_identity::{AgentId, Authority, Denied, SpaceId};

use crate::{Fragment, FragmentError, FragmentId};

/// What becomes of a fragment that a peer offers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is next in its chain: verify its signature, store it, then [`Admission::commit`] it.
    Admit,
    /// It is here already.
    Duplicate,
    /// It may be right, but something before it is missing.
    Wait(Missing),
    /// It is wrong, and stays wrong.
    Reject(RejectReason),
    /// Its author signed two histories; `other` is the one accepted here first.
    Fork {
        /// The accepted fragment that this one contradicts.
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
    /// Its author had no right to write it.
    #[error("its author may not write here")]
    Denied(#[source] Denied),
    /// The signature does not fit.
    #[error("broken signature")]
    Signature,
    /// It lies beyond the point at which its author was revoked.
    #[error("its author was revoked before it")]
    BeyondCut,
    /// This node could not store it; it may be offered again.
    #[error("this node could not store it")]
    Storage,
}

/// The chains of every author in every space, and the fragments that wait to join one.
#[derive(Debug, Default)]
pub struct Admission {}

impl Admission {
    /// Returns an admission that knows no fragment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks everything but the signature, the cheap things first.
    #[must_use]
    pub fn check(&self, authority: &Authority, fragment: &Fragment) -> Verdict {
        let _ = (authority, fragment);
        todo!()
    }

    /// Keeps a fragment whose verdict was [`Verdict::Wait`] until what it waits for arrives;
    /// returns false if it has no room for it. Call it only once the signature was verified.
    pub fn hold(&mut self, fragment: Fragment, missing: Missing) -> bool {
        let _ = (fragment, missing);
        todo!()
    }

    /// Takes an admitted fragment into its chain, once it is durable; returns the held fragments
    /// that may come next: check them again.
    pub fn commit(&mut self, fragment: &Fragment) -> Vec<Fragment> {
        let _ = fragment;
        todo!()
    }

    /// Returns the held fragments that waited for authority records: check them again.
    pub fn authority_changed(&mut self) -> Vec<Fragment> {
        todo!()
    }

    /// Returns whether the fragment is in its chain.
    #[must_use]
    pub fn contains(&self, fragment: &Fragment) -> bool {
        let _ = fragment;
        todo!()
    }

    /// Returns position and id of the last fragment of a chain.
    #[must_use]
    pub fn head(&self, author: &AgentId, space: &SpaceId) -> Option<(u64, FragmentId)> {
        let _ = (author, space);
        todo!()
    }
}

/// Verifies the signatures of many fragments at once; the answers are in the order of `fragments`.
#[must_use]
pub fn check_signatures(fragments: &[Fragment]) -> Vec<bool> {
    let _ = fragments;
    todo!()
}
