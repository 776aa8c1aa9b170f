//! How far the chains of authors count.

use std::collections::BTreeSet;

use super::Authority;
use crate::id::{AgentId, Hash, PublicKey, RecordId, SpaceId};

/// A fragment by its place in its author's chain; its hash stands for all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// The place.
    pub seq: u64,
    /// The fragment's id.
    pub hash: Hash,
    /// The id of the one before it, where the record that pins it says so.
    pub prev: Option<Hash>,
}

/// How far a chain counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All of it.
    Whole,
    /// This fragment and those it descends from.
    UpTo(Pin),
    /// Nothing of it.
    Nothing,
}

/// A chain whose author signed two histories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frozen {
    /// Where it ends.
    pub pin: Pin,
    /// The record that shows the two histories.
    pub proof: RecordId,
    /// Whether an admin has said which of them is meant; before that, the lower hash counts.
    pub decided: bool,
}

/// A revocation that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The record.
    pub record: RecordId,
    /// The node or agent that it ends.
    pub subject: PublicKey,
    /// Who signed it.
    pub by: PublicKey,
    /// Whether that was the root.
    pub by_root: bool,
    /// Why, in the signer's words.
    pub reason: String,
    /// When the signer says it was made; for display.
    pub at_ms: u64,
}

impl Authority {
    /// Returns how far the chain of `agent` in `space` counts.
    ///
    /// What an admin left of a revoked author's chain counts for good, whatever else is shown of
    /// it: a key in wrong hands cannot take back what was said before.
    pub fn reach(&self, agent: &AgentId, space: &SpaceId) -> Reach {
        let is_revoked = self.is_revoked(&PublicKey::from(*agent));
        if is_revoked || !self.agents.contains_key(agent) {
            let pin = |(seq, hash)| Pin {
                seq,
                hash,
                prev: None,
            };
            match self.cut(agent, space) {
                Some(cut) => return Reach::UpTo(pin(cut)),
                None if is_revoked => return Reach::Nothing,
                None => {}
            }
        }
        let frozen = self.frozen(agent, space);
        frozen.map_or(Reach::Whole, |frozen| Reach::UpTo(frozen.pin))
    }

    /// Returns the last fragment of `agent` in `space` that a revocation left valid, if there is one.
    ///
    /// `None` where [`Self::may_write`] says [`super::Denied::Revoked`] means that nothing is left.
    pub fn cut(&self, agent: &AgentId, space: &SpaceId) -> Option<(u64, Hash)> {
        self.cuts.get(&(*agent, *space)).copied()
    }

    /// Returns where `agent` is frozen in `space` because it signed two histories.
    pub fn frozen(&self, agent: &AgentId, space: &SpaceId) -> Option<&Frozen> {
        self.frozen.get(&(*agent, *space))
    }

    /// Returns the chains whose authors signed two histories, by author and space.
    pub fn all_frozen(&self) -> impl Iterator<Item = (&AgentId, &SpaceId, &Frozen)> {
        self.frozen
            .iter()
            .map(|((agent, space), frozen)| (agent, space, frozen))
    }

    /// Returns the chains of which a record pins a fragment, by author and space; some twice.
    pub fn pinned(&self) -> impl Iterator<Item = (&AgentId, &SpaceId)> {
        let all = self.cuts.keys().chain(self.frozen.keys());
        all.map(|(agent, space)| (agent, space))
    }

    /// Returns the agents that were ever certified by `key`, a node or an agent, at any distance, and
    /// that agent itself: those whose chains fall with it.
    pub fn authors_through(&self, key: &PublicKey) -> Vec<AgentId> {
        let is_through = |(agent, (_, line)): &(&AgentId, &(String, BTreeSet<PublicKey>))| {
            PublicKey::from(**agent) == *key || line.contains(key)
        };
        let found = self.authors.iter().filter(is_through);
        found.map(|(agent, _)| *agent).collect()
    }

    /// Returns everyone who was ever certified, by id.
    pub fn all_authors(&self) -> impl Iterator<Item = &AgentId> {
        self.authors.keys()
    }

    /// Returns what an agent is called, or was before its certificates ended.
    pub fn author_name(&self, agent: &AgentId) -> Option<&str> {
        self.authors.get(agent).map(|(name, _)| name.as_str())
    }

    /// Returns the revocations that stand, by subject.
    pub fn revocations(&self) -> impl Iterator<Item = &Revocation> {
        self.revocations.iter()
    }

    /// Returns the revocations of `subject` that stand, those that it has overcome as well.
    pub fn revocations_of(&self, subject: &PublicKey) -> impl Iterator<Item = &Revocation> {
        self.revocations
            .iter()
            .filter(move |revocation| revocation.subject == *subject)
    }
}
