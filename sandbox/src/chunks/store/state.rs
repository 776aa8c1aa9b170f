//! What a store knows of its packs: which there are, and where a chunk lies.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use super::Origin;
use crate::chunks::{ChunkId, PackId, pins::Pins};

#[derive(Debug, Default)]
pub(in crate::chunks) struct State {
    pub(in crate::chunks) packs: BTreeMap<PackId, Pack>,
    /// Pack numbers, to keep an entry of `chunks` small.
    slots: Vec<Option<PackId>>,
    free: Vec<u32>,
    /// Where a chunk is stored, by the first half of its name. Two chunks with the same half
    /// cost space, not truth: the first is stored again.
    pub(super) chunks: HashMap<[u8; 16], u32>,
    pub(in crate::chunks) pins: Pins,
}

#[derive(Debug)]
pub(in crate::chunks) struct Pack {
    slot: u32,
    pub(in crate::chunks) origin: Origin,
    pub(in crate::chunks) bytes: u64,
    /// Writers and readers that need it now.
    pub(in crate::chunks) uses: u32,
    /// When a writer last said that its chunks are in it.
    pub(in crate::chunks) handed_out: Option<Instant>,
    pub(in crate::chunks) damaged: bool,
}

/// Where a chunk is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chunks) struct Found {
    pub(in crate::chunks) pack: PackId,
    pub(in crate::chunks) origin: Origin,
}

impl State {
    pub(super) fn new(pins: Pins) -> Self {
        Self {
            pins,
            ..Self::default()
        }
    }

    pub(super) fn missing(&self, ids: &[PackId]) -> Vec<PackId> {
        let mut seen = BTreeSet::new();
        let absent = |id: &&PackId| self.packs.get(id).is_none_or(|pack| pack.damaged);
        let absent = ids.iter().filter(absent).copied();
        absent.filter(|id| seen.insert(*id)).collect()
    }

    pub(super) fn add(&mut self, id: PackId, bytes: u64, chunks: &[ChunkId], origin: Origin) {
        let damaged = false;
        self.forget(&id, &[]);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 packs fit on a disk")
        });
        self.slots[slot as usize] = Some(id);
        for chunk in chunks {
            match origin {
                Origin::Own => {
                    self.chunks.insert(half(chunk), slot);
                }
                // What was written here is not displaced by what somebody sent.
                Origin::Held => {
                    self.chunks.entry(half(chunk)).or_insert(slot);
                }
            }
        }
        let pack = Pack {
            slot,
            origin,
            bytes,
            uses: 0,
            handed_out: None,
            damaged,
        };
        self.packs.insert(id, pack);
    }

    /// Drops a pack and what is known to be in it.
    pub(in crate::chunks) fn forget(&mut self, id: &PackId, chunks: &[ChunkId]) {
        let Some(pack) = self.packs.remove(id) else {
            return;
        };
        for chunk in chunks {
            if self.chunks.get(&half(chunk)) == Some(&pack.slot) {
                self.chunks.remove(&half(chunk));
            }
        }
        self.slots[pack.slot as usize] = None;
        self.free.push(pack.slot);
    }

    pub(super) fn find(&self, chunk: &ChunkId) -> Option<Found> {
        let slot = *self.chunks.get(&half(chunk))?;
        let id = self.slots[slot as usize]?;
        let pack = self.packs.get(&id).filter(|pack| !pack.damaged)?;
        Some(Found {
            pack: id,
            origin: pack.origin,
        })
    }

    pub(in crate::chunks) fn release(&mut self, id: &PackId) {
        if let Some(pack) = self.packs.get_mut(id) {
            pack.uses = pack.uses.saturating_sub(1);
        }
    }
}

fn half(chunk: &ChunkId) -> [u8; 16] {
    *chunk.as_bytes().first_chunk().expect("16 of 32 bytes")
}
