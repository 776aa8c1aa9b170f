//! The store of a simulated node: writes become durable later, or are lost.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{IdSet, Lane};
use rhizome_mesh::proto::replication::Holdings;

use super::hostile;

/// An item on its way to the disk, or on it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) lane: Lane,
    pub(super) id: Hash,
    pub(super) bytes: Bytes,
    pub(super) own: bool,
}

/// What a node holds.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Durable items in the order of arrival; survives a crash.
    disk: Vec<Item>,
    /// Written, not yet synced; the mark of each counts all writes of the node.
    unsynced: VecDeque<(u64, Item)>,
    written: u64,
    sets: BTreeMap<Lane, IdSet>,
    arrivals: BTreeMap<Hash, u32>,
    /// Whether fragments are handed out broken: for hostile nodes.
    breaks: bool,
}

impl Store {
    pub(super) fn new(lanes: &[Lane]) -> Self {
        let sets = lanes.iter().map(|lane| (*lane, IdSet::new())).collect();
        Self {
            sets,
            ..Self::default()
        }
    }

    /// Hands an item to the disk; returns the mark at which it is durable.
    pub(super) fn write(&mut self, item: Item) -> u64 {
        self.written += 1;
        self.unsynced.push_back((self.written, item));
        self.written
    }

    /// Says whether an item is on its way to the disk.
    pub(super) fn is_writing(&self, id: &Hash) -> bool {
        self.unsynced.iter().any(|(_, item)| item.id == *id)
    }

    pub(super) fn holds(&self, id: &Hash) -> bool {
        self.arrivals.contains_key(id)
    }

    /// Makes everything up to `mark` durable; returns it in order.
    pub(super) fn sync(&mut self, mark: u64) -> Vec<Item> {
        let mut durable = Vec::new();
        while let Some((_, item)) = self.unsynced.pop_front_if(|(at, _)| *at <= mark) {
            self.keep(item.clone());
            durable.push(item);
        }
        durable
    }

    /// Loses what was not synced, but for the first `torn` writes, which reached the disk before
    /// anyone was told.
    pub(super) fn crash(&mut self, torn: usize) {
        let survived: Vec<Item> = self
            .unsynced
            .drain(..)
            .take(torn)
            .map(|(_, item)| item)
            .collect();
        for item in survived {
            self.keep(item);
        }
    }

    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Returns everything durable in the order of arrival.
    pub(super) fn disk(&self) -> &[Item] {
        &self.disk
    }

    pub(super) fn set(&self, lane: Lane) -> Option<&IdSet> {
        self.sets.get(&lane)
    }

    /// Forgets an id in the set that peers see, though the item is there: for hostile nodes.
    pub(super) fn hide(&mut self, lane: Lane, id: &Hash) {
        if let Some(set) = self.sets.get_mut(&lane) {
            set.remove(id);
        }
    }

    /// Hands out broken fragments from now on: for hostile nodes.
    pub(super) fn break_items(&mut self) {
        self.breaks = true;
    }

    pub(super) fn breaks(&self, lane: Lane) -> bool {
        self.breaks && lane != Lane::Authority
    }

    fn keep(&mut self, item: Item) {
        let place = u32::try_from(self.disk.len()).expect("fewer items than that");
        if self.arrivals.insert(item.id, place).is_none() {
            if let Some(set) = self.sets.get_mut(&item.lane) {
                set.insert(item.id);
            }
            self.disk.push(item);
        }
    }
}

impl Holdings for Store {
    fn lanes(&self) -> Vec<Lane> {
        self.sets.keys().copied().collect()
    }

    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R> {
        self.sets.get(&lane).map(f)
    }

    fn items(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        let mut left = max_bytes;
        let places = ids.iter().filter_map(|id| self.arrivals.get(id));
        let items = places.map(|place| {
            let bytes = &self.disk[*place as usize].bytes;
            if self.breaks(lane) {
                hostile::broken(bytes)
            } else {
                bytes.clone()
            }
        });
        items
            .take_while(|item| {
                let fits = item.len() <= left;
                left = left.saturating_sub(item.len());
                fits
            })
            .collect()
    }

    fn causal_order(&self, _: Lane, ids: &mut Vec<Hash>) {
        ids.retain(|id| self.arrivals.contains_key(id));
        ids.sort_by_key(|id| self.arrivals[id]);
    }

    fn may_sync(&self, _: &NodeId, _: Lane) -> bool {
        true
    }
}
