//! What is known of the changes of one document, beside the document itself.
//!
//! automerge remembers actors; the index remembers which signed fragment each change came in. An
//! entry's author is looked up here, so what a change says about itself never counts.

use std::collections::{BTreeMap, BTreeSet};

use automerge::ChangeHash;
use minicbor::{Decode, Encode};
use rhizome_identity::{AgentId, Hash, NodeId};

use super::DocKey;
use crate::{FragmentId, Hlc, Kind, Standing, Voice, standing::Judge};

/// One change and the fragment that carried it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct ChangeMeta {
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) hash: [u8; 32],
    #[n(1)]
    pub(crate) fragment: FragmentId,
    #[n(2)]
    pub(crate) author: AgentId,
    #[n(3)]
    pub(crate) node: NodeId,
    #[n(4)]
    pub(crate) hlc: Hlc,
    #[n(5)]
    pub(crate) kind: Kind,
    #[n(6)]
    pub(crate) fingerprint: Hash,
    #[cbor(n(7), with = "minicbor::bytes")]
    pub(crate) actor: [u8; 16],
    #[n(8)]
    pub(crate) seq: u64,
    #[n(9)]
    pub(crate) start_op: u64,
    #[n(10)]
    pub(crate) max_op: u64,
    /// Bytes of this change and of all earlier ones by the same author.
    #[n(11)]
    pub(crate) author_bytes: u64,
    /// Positions in the index of the changes it builds on; none means the genesis alone.
    #[n(12)]
    pub(crate) deps: Vec<u32>,
    /// Which register each of its register operations wrote, and by which operation.
    #[n(13)]
    pub(crate) registers: Vec<(u8, u64)>,
    /// Which of its operations put a character into a text: the first of each run, and how many.
    #[n(14)]
    pub(crate) inserts: Vec<(u64, u64)>,
    /// Operations of this change and of all earlier ones by the same author.
    #[n(15)]
    pub(crate) author_ops: u64,
}

impl ChangeMeta {
    /// Orders by clock, ties by fragment: the same on every node.
    pub(crate) fn rank(&self) -> (Hlc, FragmentId) {
        (self.hlc, self.fragment)
    }

    /// Returns whether what it said may be shown in the document `key`.
    pub(crate) fn is_shown(&self, key: &DocKey, judge: Judge<'_>) -> bool {
        let voice = Voice {
            space: key.space,
            author: self.author,
            node: self.node,
            fragment: self.fragment,
            kind: self.kind,
        };
        judge(&voice) > Standing::Hidden
    }

    /// Returns whether operation `counter` of this change put a character into a text.
    pub(crate) fn inserts(&self, counter: u64) -> bool {
        let after = self.inserts.partition_point(|(first, _)| *first <= counter);
        after
            .checked_sub(1)
            .map(|at| self.inserts[at])
            .is_some_and(|(first, count)| counter - first < count)
    }
}

/// The changes of one document, every one after those it builds on.
#[derive(Debug, Clone, Default)]
pub(crate) struct DocIndex {
    changes: Vec<ChangeMeta>,
    by_hash: BTreeMap<[u8; 32], u32>,
    by_fragment: BTreeMap<FragmentId, u32>,
    by_actor: BTreeMap<([u8; 16], u64), u32>,
}

impl DocIndex {
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let changes: Vec<ChangeMeta> = minicbor::decode(bytes).ok()?;
        let mut index = Self::default();
        for (position, change) in changes.into_iter().enumerate() {
            if change.deps.iter().any(|dep| *dep as usize >= position) {
                return None;
            }
            index.push(change);
        }
        Some(index)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(&self.changes).expect("writing to a vector does not fail")
    }

    pub(crate) fn push(&mut self, change: ChangeMeta) {
        let position = u32::try_from(self.changes.len())
            .expect("a document has fewer changes than u32 counts");
        self.by_hash.insert(change.hash, position);
        self.by_fragment.insert(change.fragment, position);
        self.by_actor
            .insert((change.actor, change.start_op), position);
        self.changes.push(change);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        for change in self.changes.drain(len..) {
            self.by_hash.remove(&change.hash);
            self.by_fragment.remove(&change.fragment);
            self.by_actor.remove(&(change.actor, change.start_op));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(crate) fn changes(&self) -> &[ChangeMeta] {
        &self.changes
    }

    pub(crate) fn by_hash(&self, hash: &ChangeHash) -> Option<u32> {
        self.by_hash.get(&hash.0).copied()
    }

    pub(crate) fn by_fragment(&self, fragment: &FragmentId) -> Option<u32> {
        self.by_fragment.get(fragment).copied()
    }

    pub(crate) fn at(&self, position: u32) -> &ChangeMeta {
        &self.changes[position as usize]
    }

    /// Returns the change that holds operation `counter` of `actor`.
    pub(crate) fn by_op(&self, actor: &[u8], counter: u64) -> Option<u32> {
        let actor: [u8; 16] = actor.try_into().ok()?;
        let (_, position) = self
            .by_actor
            .range((actor, 0)..=(actor, counter))
            .next_back()?;
        (counter <= self.at(*position).max_op).then_some(*position)
    }

    /// Returns the last change of `actor`, if it made any.
    pub(crate) fn last_of(&self, actor: &[u8; 16]) -> Option<u32> {
        self.by_actor
            .range((*actor, 0)..=(*actor, u64::MAX))
            .next_back()
            .map(|(_, position)| *position)
    }

    /// Returns the positions of `deps` and of everything they build on.
    pub(crate) fn closure(&self, deps: &[u32]) -> BTreeSet<u32> {
        let mut seen: BTreeSet<u32> = deps.iter().copied().collect();
        let mut todo: Vec<u32> = deps.to_vec();
        while let Some(position) = todo.pop() {
            todo.extend(
                self.at(position)
                    .deps
                    .iter()
                    .copied()
                    .filter(|dep| seen.insert(*dep)),
            );
        }
        seen
    }

    /// Returns the changes on which no other builds, in the order of their hashes.
    pub(crate) fn heads(&self) -> Vec<u32> {
        let covered: BTreeSet<u32> = self
            .changes
            .iter()
            .flat_map(|change| change.deps.iter().copied())
            .collect();
        self.by_hash
            .values()
            .copied()
            .filter(|position| !covered.contains(position))
            .collect()
    }
}
