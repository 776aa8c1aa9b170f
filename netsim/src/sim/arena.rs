//! Every item of a run, once, and work that many nodes would do alike, done once.
//!
//! A thousand nodes hold the same item: each keeps its number, the arena keeps its bytes. What
//! passed a check once is known by the hash of its bytes, so a thousand nodes verify it once. What
//! fails is checked anew by every node, so the path that rejects always runs for real.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use rhizome_identity::{Authority, Hash, RecordLog, SignedRecord};
use rhizome_memory::{Fragment, Lane, check_signatures};

use super::store::Store;

/// The number of an item; what an item builds on has a smaller one.
pub(super) type ItemIndex = u32;

/// What an item is.
#[derive(Debug)]
pub(super) enum Content {
    Record(SignedRecord),
    Fragment(Box<Fragment>),
}

/// An item whose form and signature were checked.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) lane: Lane,
    pub(super) id: Hash,
    pub(super) bytes: Bytes,
    pub(super) content: Content,
}

impl Item {
    pub(super) fn fragment(&self) -> Option<&Fragment> {
        match &self.content {
            Content::Fragment(fragment) => Some(fragment.as_ref()),
            Content::Record(_) => None,
        }
    }
}

/// The items of a run. The maps are looked up, never walked: their order is nobody's.
#[derive(Debug, Default)]
pub(super) struct Arena {
    items: Vec<Item>,
    by_wire: HashMap<Hash, ItemIndex>,
    by_id: HashMap<Hash, ItemIndex>,
    authorities: BTreeMap<[u8; 40], Weak<Authority>>,
    rejected: u64,
}

impl Arena {
    pub(super) fn item(&self, index: ItemIndex) -> &Item {
        &self.items[index as usize]
    }

    /// Returns the item with an id.
    pub(super) fn find(&self, id: &Hash) -> Option<ItemIndex> {
        self.by_id.get(id).copied()
    }

    pub(super) fn len(&self) -> ItemIndex {
        ItemIndex::try_from(self.items.len()).expect("fewer items than that")
    }

    /// Returns how often the real check said no.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Checks what came on `lane`; returns its number if it passed, now or before.
    pub(super) fn take_in(&mut self, lane: Lane, wire: &Bytes) -> Option<ItemIndex> {
        let hash = Hash::of(wire);
        if let Some(known) = self.by_wire.get(&hash) {
            return (self.item(*known).lane == lane).then_some(*known);
        }
        let checked = match lane {
            Lane::Authority => SignedRecord::parse(wire).ok().map(|record| {
                let id = Hash::from_bytes(*record.id().as_bytes());
                (id, Content::Record(record))
            }),
            Lane::Space(space) => {
                let fragment = Fragment::decode(wire).ok();
                let fragment = fragment.filter(|fragment| fragment.header.space == space);
                let fragment = fragment.filter(|fragment| check_signatures([fragment])[0]);
                // A copy: what came in a frame would keep all of the frame.
                let fragment = fragment.map(|fragment| Box::new(fragment.detached()));
                fragment.map(|fragment| (hash_of(&fragment), Content::Fragment(fragment)))
            }
        };
        let Some((id, content)) = checked else {
            self.rejected += 1;
            return None;
        };
        let index = self.len();
        let bytes = Bytes::copy_from_slice(wire);
        self.items.push(Item {
            lane,
            id,
            bytes,
            content,
        });
        self.by_wire.insert(hash, index);
        self.by_id.entry(id).or_insert(index);
        Some(index)
    }

    /// Returns what the records of a store resolve to.
    ///
    /// The same set gives the same answer, which is what makes one answer do for all nodes that
    /// hold it. Nobody keeps an answer that no node needs any more.
    pub(super) fn authority(&mut self, store: &Store) -> Arc<Authority> {
        let set = store.ids(Lane::Authority).fingerprint().to_bytes();
        if let Some(known) = self.authorities.get(&set).and_then(Weak::upgrade) {
            return known;
        }
        let mut log = RecordLog::default();
        for item in store.disk().map(|index| self.item(index)) {
            if let Content::Record(record) = &item.content {
                // Whatever does not belong into a log counts for nothing.
                let _ = log.insert(record.clone());
            }
        }
        let resolved = Arc::new(log.resolve());
        self.authorities.retain(|_, known| known.strong_count() > 0);
        self.authorities.insert(set, Arc::downgrade(&resolved));
        resolved
    }
}

fn hash_of(fragment: &Fragment) -> Hash {
    Hash::from_bytes(*fragment.id.as_bytes())
}
