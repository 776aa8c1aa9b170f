//! Which record descends from which.

use std::collections::BTreeMap;

use crate::{id::RecordId, record::SignedRecord};

/// The records that can be judged, in the order (depth, id), each with its ancestors.
///
/// One bit for each pair: 2 MiB for 4,096 records, 32 MiB for the 16,384 of a full log.
pub(super) struct Past {
    /// The records, ancestors before descendants.
    pub(super) order: Vec<RecordId>,
    /// How far each is from the genesis.
    pub(super) depths: Vec<u32>,
    index: BTreeMap<RecordId, usize>,
    /// One row for each record.
    bits: Vec<u64>,
    words: usize,
}

impl Past {
    /// Orders what descends from `genesis` and has all its parents in `records`.
    pub(super) fn of(records: &BTreeMap<RecordId, SignedRecord>, genesis: RecordId) -> Past {
        let sequence = sequence(records, genesis);
        let (depths, order): (Vec<u32>, Vec<RecordId>) = sequence.into_iter().unzip();
        let index: BTreeMap<RecordId, usize> = order.iter().copied().zip(0..).collect();
        let words = order.len().div_ceil(64);
        let mut bits = vec![0; words * order.len()];
        for (at, id) in order.iter().enumerate() {
            let (before, rest) = bits.split_at_mut(at * words);
            let row = &mut rest[..words];
            for parent in &records[id].record().parents {
                let parent = index[parent];
                let inherited = &before[parent * words..(parent + 1) * words];
                for (word, more) in row.iter_mut().zip(inherited) {
                    *word |= more;
                }
                row[parent / 64] |= 1 << (parent % 64);
            }
        }
        Past {
            order,
            depths,
            index,
            bits,
            words,
        }
    }

    /// Returns the place of a record.
    pub(super) fn place(&self, id: &RecordId) -> Option<usize> {
        self.index.get(id).copied()
    }

    /// Whether `ancestor` is among the ancestors of `of`.
    pub(super) fn has(&self, of: usize, ancestor: usize) -> bool {
        self.bits[of * self.words + ancestor / 64] >> (ancestor % 64) & 1 == 1
    }
}

fn sequence(records: &BTreeMap<RecordId, SignedRecord>, genesis: RecordId) -> Vec<(u32, RecordId)> {
    let mut children: BTreeMap<RecordId, Vec<RecordId>> = BTreeMap::new();
    let mut missing: BTreeMap<RecordId, usize> = BTreeMap::new();
    for (id, record) in records {
        let parents = &record.record().parents;
        missing.insert(*id, parents.len());
        for parent in parents {
            children.entry(*parent).or_default().push(*id);
        }
    }
    let mut depths: BTreeMap<RecordId, u32> = BTreeMap::from([(genesis, 0)]);
    let mut ready = vec![genesis];
    let mut sequence = Vec::with_capacity(records.len());
    while let Some(id) = ready.pop() {
        let depth = depths[&id];
        sequence.push((depth, id));
        for child in children.get(&id).into_iter().flatten() {
            let deepest = depths.entry(*child).or_default();
            *deepest = (*deepest).max(depth + 1);
            let left = missing.get_mut(child).expect("every record was counted");
            *left -= 1;
            if *left == 0 {
                ready.push(*child);
            }
        }
    }
    sequence.sort_unstable();
    sequence
}
