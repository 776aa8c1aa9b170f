//! A store for the replication core, in memory.
#![allow(dead_code, reason = "each test file uses its share")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{IdSet, Lane};
use rhizome_mesh::proto::replication::Holdings;

pub(crate) fn node(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

/// Items are any bytes, their id is their hash.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) sets: BTreeMap<Lane, IdSet>,
    pub(crate) items: BTreeMap<Hash, Bytes>,
    /// Peers that may not have the space.
    pub(crate) barred: BTreeSet<NodeId>,
}

impl Shelf {
    pub(crate) fn new(lanes: &[Lane]) -> Self {
        Self {
            sets: lanes.iter().map(|lane| (*lane, IdSet::new())).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn put(&mut self, lane: Lane, item: Bytes) -> bool {
        let id = Hash::of(&item);
        self.items.insert(id, item);
        self.sets.get_mut(&lane).is_some_and(|set| set.insert(id))
    }
}

impl Holdings for Shelf {
    fn lanes(&self) -> Vec<Lane> {
        self.sets.keys().copied().collect()
    }

    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R> {
        self.sets.get(&lane).map(f)
    }

    fn items(&self, _: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        let items = ids.iter().filter_map(|id| self.items.get(id).cloned());
        items.filter(|item| item.len() <= max_bytes).collect()
    }

    fn may_sync(&self, peer: &NodeId, lane: Lane) -> bool {
        lane == Lane::Authority || !self.barred.contains(peer)
    }
}
