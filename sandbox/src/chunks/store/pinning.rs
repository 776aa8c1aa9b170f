//! Pins of a store: what stays, whatever becomes of those who asked for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::PoisonError,
};

use super::Inner;
use crate::chunks::{ChunkError, PackId, pins};

impl Inner {
    pub(in crate::chunks) fn pin(
        &self,
        name: &str,
        packs: &[PackId],
        all_here: bool,
    ) -> Result<(), ChunkError> {
        pins::check_name(name)?;
        let _one_at_a_time = self.pinning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = packs.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let old = {
            let mut state = self.state();
            if all_here {
                let packs = state.missing(&wanted);
                if !packs.is_empty() {
                    return Err(ChunkError::MissingPacks { packs });
                }
            }
            let old = state.pins.held.get(name).cloned();
            // Both stay until it is certain which of them the file holds.
            let mut both = wanted.clone();
            both.extend(old.iter().flatten());
            state.pins.held.insert(name.to_owned(), both);
            old
        };
        let saved = pins::save(&self.disk, &self.pins, name, &wanted);
        let mut state = self.state();
        match (&saved, old) {
            (Ok(()), _) => state.pins.held.insert(name.to_owned(), wanted),
            // The file may hold either; in memory both stay.
            (Err(_), Some(_)) => None,
            (Err(_), None) => state.pins.held.remove(name),
        };
        saved
    }

    pub(super) fn unpin(&self, name: &str) -> Result<bool, ChunkError> {
        pins::check_name(name)?;
        let _one_at_a_time = self.pinning.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.state().pins.held.contains_key(name) {
            return Ok(false);
        }
        pins::remove(&self.disk, &self.pins, name)?;
        self.state().pins.held.remove(name);
        Ok(true)
    }

    /// Returns what is pinned under other names than these.
    pub(super) fn pinned_besides(&self, names: &BTreeSet<String>) -> BTreeSet<PackId> {
        let state = self.state();
        let held: &BTreeMap<String, Vec<PackId>> = &state.pins.held;
        let others = held.iter().filter(|(name, _)| !names.contains(*name));
        others.flat_map(|(_, packs)| packs).copied().collect()
    }
}
