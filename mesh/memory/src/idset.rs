//! An ordered set of ids with range fingerprints.

use rhizome_identity::Hash;

/// An ordered set of 32-byte ids.
#[derive(Debug, Default, Clone)]
pub struct IdSet {
    ids: std::collections::BTreeSet<Hash>,
}

impl IdSet {
    /// Adds an id; returns whether it was new.
    pub fn insert(&mut self, id: Hash) -> bool {
        self.ids.insert(id)
    }

    /// Takes an id out; returns whether it was there.
    pub fn remove(&mut self, id: &Hash) -> bool {
        self.ids.remove(id)
    }

    /// Returns whether the id is in the set.
    #[must_use]
    pub fn contains(&self, id: &Hash) -> bool {
        self.ids.contains(id)
    }

    /// Returns how many ids there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }
}
