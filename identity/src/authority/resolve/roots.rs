//! Which key was the root when.
//!
//! The genesis commits to the next root key, and every rotation to the one after it, so nobody can
//! put a key in place that was not chosen in advance. A rotation ends the key before it like a
//! revocation does: what that key signed counts if the rotation was made in knowledge of it.
//!
//! A committed key that signs two different rotations has made two histories of the mesh. Nobody
//! stands above the root to say which one is meant, so from there on nothing that takes an admin
//! has effect; what was decided before both stays, and both are shown.

use std::collections::BTreeSet;

use super::{Records, past::Past};
use crate::{
    id::{Hash, PublicKey},
    issue::next_root_hash,
    record::{Genesis, RecordBody, RotateRoot},
};

/// One root key after the other.
#[derive(Debug)]
pub(super) struct Roots {
    /// The genesis' key first; the current one last.
    steps: Vec<Step>,
    next: Hash,
    /// The places of the rotations that contradict each other.
    fork: Vec<usize>,
    /// The rotations that count.
    rotations: BTreeSet<usize>,
}

#[derive(Debug)]
struct Step {
    key: PublicKey,
    /// The rotations that made it the root; none for the first. They all say the same.
    at: Vec<usize>,
}

impl Roots {
    /// Follows the rotations from the genesis on.
    pub(super) fn of(records: &Records, past: &Past, genesis: &Genesis) -> Roots {
        let mut roots = Roots {
            steps: vec![Step {
                key: genesis.root,
                at: Vec::new(),
            }],
            next: genesis.next_root_hash,
            fork: Vec::new(),
            rotations: BTreeSet::new(),
        };
        let rotations: Vec<(usize, &RotateRoot)> = past
            .order
            .iter()
            .enumerate()
            .filter_map(|(at, id)| {
                let signed = &records[id];
                match &signed.record().body {
                    RecordBody::RotateRoot(rotate)
                        if rotate.root == signed.signer() && signed.is_understood() =>
                    {
                        Some((at, rotate))
                    }
                    _ => None,
                }
            })
            .collect();
        loop {
            let last = roots.steps.last().expect("the genesis has a root");
            let follows = |(at, rotate): &&(usize, &RotateRoot)| {
                next_root_hash(&rotate.root) == roots.next
                    && last.at.iter().all(|before| past.has(*at, *before))
                    && roots.steps.iter().all(|step| step.key != rotate.root)
            };
            let found: Vec<_> = rotations.iter().filter(follows).collect();
            let Some((_, first)) = found.first() else {
                return roots;
            };
            let at: Vec<usize> = found.iter().map(|(at, _)| *at).collect();
            if found.iter().any(|(_, other)| other != first) {
                roots.fork = at;
                return roots;
            }
            let (key, next) = (first.root, first.next_root_hash);
            roots.next = next;
            roots.rotations.extend(&at);
            roots.steps.push(Step { key, at });
        }
    }

    /// Returns the root today.
    pub(super) fn current(&self) -> PublicKey {
        self.steps.last().expect("the genesis has a root").key
    }

    /// Returns what the next root key has to hash to.
    pub(super) fn next(&self) -> Hash {
        self.next
    }

    /// Whether the record at `at` is a rotation that counts.
    pub(super) fn is_rotation(&self, at: usize) -> bool {
        self.rotations.contains(&at)
    }

    /// Returns the rotations that contradict each other, if any do.
    pub(super) fn fork(&self) -> &[usize] {
        &self.fork
    }

    /// Whether `key` is, or was, a root.
    pub(super) fn has_been(&self, key: &PublicKey) -> bool {
        self.steps.iter().any(|step| step.key == *key)
    }

    /// Whether `key` was the root for what it signed at `act`, or is the root today.
    pub(super) fn is_root(&self, past: &Past, key: &PublicKey, act: Option<usize>) -> bool {
        let Some(act) = act else {
            return *key == self.current();
        };
        let Some(step) = self.steps.iter().position(|step| step.key == *key) else {
            return false;
        };
        let at = &self.steps[step].at;
        let has_begun = at.is_empty() || at.iter().any(|at| past.has(act, *at));
        let is_over = self
            .steps
            .get(step + 1)
            .is_some_and(|next| !next.at.iter().all(|at| past.has(*at, act)));
        has_begun && !is_over
    }

    /// Whether a fork of the root keeps the record at `act` from deciding anything.
    pub(super) fn halts(&self, past: &Past, act: usize) -> bool {
        !self.fork.iter().all(|at| past.has(*at, act))
    }
}
