//! The store of a simulated node: writes become durable later, or are lost.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use rhizome_identity::{AgentId, Authority, Hash, NodeId};
use rhizome_memory::{Fragment, IdSet, Lane};
use rhizome_mesh::proto::replication::Holdings;

use super::{
    arena::{Arena, Item, ItemIndex},
    hostile,
};

/// What all nodes that joined before the run began have on their disks: the first items of the
/// arena, all of them records.
#[derive(Debug, Default)]
pub(super) struct Ground {
    len: ItemIndex,
    ids: IdSet,
}

impl Ground {
    /// Takes everything that is in the arena now.
    pub(super) fn of(arena: &Arena) -> Self {
        let ids = (0..arena.len()).map(|index| arena.item(index).id).collect();
        Self {
            len: arena.len(),
            ids,
        }
    }
}

/// Which items peers do not get although they are here: for hostile nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Serving {
    #[default]
    Honest,
    /// Fragments go out with a broken signature.
    Broken,
    /// Peers are shown the ids of others' fragments, and get none of them.
    Hollow,
    /// Others' fragments are taken in and never spoken of.
    Silent,
}

/// A write that is not durable yet.
#[derive(Clone, Copy, Debug)]
struct Write {
    mark: u64,
    item: ItemIndex,
    own: bool,
}

/// What a node holds. The disk survives a crash; what is not synced does not, or not all of it.
#[derive(Debug)]
pub(super) struct Store {
    ground: Arc<Ground>,
    space: Lane,
    /// Durable items beyond the ground, in the order of arrival.
    disk: Vec<ItemIndex>,
    /// One bit for every item beyond the ground.
    bits: Vec<u64>,
    own: BTreeSet<ItemIndex>,
    unsynced: VecDeque<Write>,
    writing: BTreeSet<ItemIndex>,
    written: u64,
    authority_ids: IdSet,
    space_ids: IdSet,
    serving: Serving,
}

impl Store {
    pub(super) fn new(space: Lane, ground: Arc<Ground>) -> Self {
        Self {
            space,
            disk: Vec::new(),
            bits: Vec::new(),
            own: BTreeSet::new(),
            unsynced: VecDeque::new(),
            writing: BTreeSet::new(),
            written: 0,
            authority_ids: ground.ids.clone(),
            space_ids: IdSet::new(),
            serving: Serving::Honest,
            ground,
        }
    }

    /// Hands an item to the disk; returns the mark at which it is durable.
    pub(super) fn write(&mut self, item: ItemIndex, own: bool) -> u64 {
        self.written += 1;
        let mark = self.written;
        self.unsynced.push_back(Write { mark, item, own });
        self.writing.insert(item);
        mark
    }

    /// Says whether an item is on its way to the disk.
    pub(super) fn is_writing(&self, item: ItemIndex) -> bool {
        self.writing.contains(&item)
    }

    pub(super) fn holds(&self, item: ItemIndex) -> bool {
        let Some(beyond) = item.checked_sub(self.ground.len) else {
            return true;
        };
        let word = self.bits.get(beyond as usize / 64);
        word.is_some_and(|word| word >> (beyond % 64) & 1 == 1)
    }

    /// Says whether an item was made here.
    pub(super) fn is_own(&self, item: ItemIndex) -> bool {
        self.own.contains(&item)
    }

    /// Makes everything up to `mark` durable; returns what is new, in order.
    pub(super) fn sync(&mut self, mark: u64, arena: &Arena) -> Vec<ItemIndex> {
        let mut durable = Vec::new();
        while let Some(write) = self.unsynced.pop_front_if(|write| write.mark <= mark) {
            self.writing.remove(&write.item);
            if self.keep(write, arena) {
                durable.push(write.item);
            }
        }
        durable
    }

    /// Loses what was not synced, but for the first `torn` writes, which reached the disk before
    /// anyone was told; returns those.
    pub(super) fn crash(&mut self, torn: usize, arena: &Arena) -> Vec<ItemIndex> {
        let unsynced = std::mem::take(&mut self.unsynced);
        self.writing.clear();
        let survived = unsynced.into_iter().take(torn);
        let survived = survived.filter(|write| self.keep(*write, arena));
        survived.map(|write| write.item).collect()
    }

    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Returns everything durable, what an item builds on before it.
    pub(super) fn disk(&self) -> impl Iterator<Item = ItemIndex> {
        (0..self.ground.len).chain(self.disk.iter().copied())
    }

    /// Returns what became durable in the run.
    pub(super) fn beyond_ground(&self) -> &[ItemIndex] {
        &self.disk
    }

    pub(super) fn ids(&self, lane: Lane) -> &IdSet {
        match lane {
            Lane::Authority => &self.authority_ids,
            Lane::Space(_) => &self.space_ids,
        }
    }

    /// Forgets an id in the set that peers see, though the item is there.
    pub(super) fn hide(&mut self, id: &Hash) {
        self.space_ids.remove(id);
    }

    /// Shows peers of an author's chain what counts, and nothing else of it.
    pub(super) fn recut(
        &mut self,
        author: AgentId,
        arena: &Arena,
        counts: impl Fn(&Fragment) -> bool,
    ) {
        for item in self.disk.iter().map(|item| arena.item(*item)) {
            let Some(fragment) = item.fragment().filter(|f| f.header.author == author) else {
                continue;
            };
            if counts(fragment) {
                self.space_ids.insert(item.id);
            } else {
                self.space_ids.remove(&item.id);
            }
        }
    }

    /// Serves peers in another way from now on: for hostile nodes.
    pub(super) fn serve(&mut self, serving: Serving) {
        self.serving = serving;
    }

    /// Returns what peers get when they ask for an item.
    pub(super) fn handed_out(&self, index: ItemIndex, item: &Item) -> Option<Bytes> {
        if item.lane == Lane::Authority || self.serving == Serving::Honest {
            return Some(item.bytes.clone());
        }
        match self.serving {
            Serving::Honest => Some(item.bytes.clone()),
            Serving::Broken => Some(hostile::broken(&item.bytes)),
            Serving::Hollow | Serving::Silent => self.is_own(index).then(|| item.bytes.clone()),
        }
    }

    fn keep(&mut self, write: Write, arena: &Arena) -> bool {
        let Write { item, own, .. } = write;
        if self.holds(item) {
            return false;
        }
        let beyond = (item - self.ground.len) as usize;
        if self.bits.len() <= beyond / 64 {
            self.bits.resize(beyond / 64 + 1, 0);
        }
        self.bits[beyond / 64] |= 1 << (beyond % 64);
        self.disk.push(item);
        if own {
            self.own.insert(item);
        }
        let Item { lane, id, .. } = arena.item(item);
        let is_shown = own || self.serving != Serving::Silent;
        match lane {
            Lane::Authority => self.authority_ids.insert(*id),
            Lane::Space(_) => is_shown && self.space_ids.insert(*id),
        };
        true
    }
}

/// What the replication core of a node sees.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) store: &'a Store,
    pub(super) arena: &'a Arena,
    pub(super) authority: &'a Authority,
}

impl Holdings for Held<'_> {
    fn lanes(&self) -> Vec<Lane> {
        vec![Lane::Authority, self.store.space]
    }

    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R> {
        (lane == Lane::Authority || lane == self.store.space).then(|| f(self.store.ids(lane)))
    }

    fn items(&self, _: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        let mut left = max_bytes;
        let found = ids.iter().filter_map(|id| self.arena.find(id));
        let held = found.filter(|index| self.store.holds(*index));
        let items = held.filter_map(|index| self.store.handed_out(index, self.arena.item(index)));
        items
            .take_while(|item| {
                let fits = item.len() <= left;
                left = left.saturating_sub(item.len());
                fits
            })
            .collect()
    }

    fn causal_order(&self, _: Lane, ids: &mut Vec<Hash>) {
        let mut found: Vec<(ItemIndex, Hash)> = ids
            .iter()
            .filter_map(|id| Some((self.arena.find(id)?, *id)))
            .filter(|(index, _)| self.store.holds(*index))
            .collect();
        found.sort_unstable();
        ids.clear();
        ids.extend(found.into_iter().map(|(_, id)| id));
    }

    fn may_sync(&self, peer: &NodeId, lane: Lane) -> bool {
        match lane {
            Lane::Authority => true,
            Lane::Space(space) => self.authority.role_in(peer, &space).is_some(),
        }
    }
}
