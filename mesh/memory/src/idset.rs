//! An ordered set of 32-byte ids that can say in `O(log n)` what any range of it adds up to.
//!
//! Set reconciliation (`docs/sync.md`) compares ranges of two sets by fingerprint. [`IdSet`] is a
//! B+-tree whose inner nodes carry, for every child, the number of ids below it and the sum of
//! their hashes, so a fingerprint of a range is the difference of two prefix sums.
//!
//! The tree is persistent: nodes are shared behind [`Arc`], a clone is one reference count, and a
//! write copies only what a clone still shares. A reader can so keep a frozen set while the writer
//! goes on.
//!
//! An id costs about 55 bytes when inserted in random order, at most about 80 in ascending order.

mod fingerprint;
mod node;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Bound, sync::Arc};

use rhizome_identity::Hash;

pub use self::fingerprint::Fingerprint;
use self::node::Node;

/// An ordered set of ids with aggregated fingerprints.
#[derive(Clone)]
pub struct IdSet {
    root: Arc<Node>,
    total: Fingerprint,
}

impl IdSet {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self {
            root: Arc::new(Node::empty()),
            total: Fingerprint::EMPTY,
        }
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.total.count_usize()
    }

    /// Says whether the set holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the fingerprint of the whole set, in constant time.
    pub fn fingerprint(&self) -> Fingerprint {
        self.total
    }

    /// Says whether `id` is in the set.
    pub fn contains(&self, id: &Hash) -> bool {
        self.root.contains(id)
    }

    /// Adds `id`; returns `false` when it was there already.
    pub fn insert(&mut self, id: Hash) -> bool {
        // Looking first keeps a repeated insert from copying nodes that a clone shares.
        if self.contains(&id) {
            return false;
        }
        let one = Fingerprint::of(&id);
        if let Some(right) = node::insert(&mut self.root, id, &one) {
            let left = node::Child::of(Arc::clone(&self.root), self.total + one - right.sum());
            self.root = Arc::new(Node::Inner(vec![left, right]));
        }
        self.total = self.total + one;
        true
    }

    /// Removes `id`; returns `false` when it was not there.
    pub fn remove(&mut self, id: &Hash) -> bool {
        if !self.contains(id) {
            return false;
        }
        let one = Fingerprint::of(id);
        node::remove(&mut self.root, id, &one);
        if let Some(only) = self.root.only_child() {
            self.root = only;
        }
        self.total = self.total - one;
        true
    }

    /// Returns how many ids are smaller than `id`.
    pub fn rank(&self, id: &Hash) -> usize {
        self.root.rank(id)
    }

    /// Returns the `index`-th smallest id, counted from 0.
    pub fn nth(&self, index: usize) -> Option<Hash> {
        (index < self.len()).then(|| self.root.nth(index))
    }

    /// Returns the fingerprint of the `rank` smallest ids; `rank` beyond the end means all.
    pub fn prefix_fingerprint(&self, rank: usize) -> Fingerprint {
        if rank >= self.len() {
            self.total
        } else {
            self.root.prefix(rank)
        }
    }

    /// Returns the fingerprint of the ids from `lo` up to, not including, `hi`.
    ///
    /// `None` stands for the end of the id space. An inverted range is empty.
    pub fn range_fingerprint(&self, lo: &Hash, hi: Option<&Hash>) -> Fingerprint {
        let from = self.rank(lo);
        let to = hi.map_or(self.len(), |hi| self.rank(hi));
        if from >= to {
            return Fingerprint::EMPTY;
        }
        self.prefix_fingerprint(to) - self.prefix_fingerprint(from)
    }

    /// Walks the ids from `lo` up to, not including, `hi`, in ascending order.
    pub fn iter_range<'a>(&'a self, lo: &Hash, hi: Option<&Hash>) -> Ids<'a> {
        let from = self.rank(lo);
        let to = hi.map_or(self.len(), |hi| self.rank(hi));
        self.iter_ranks(from, to)
    }

    /// Walks the ids with ranks `from..to`, in ascending order.
    pub fn iter_ranks(&self, from: usize, to: usize) -> Ids<'_> {
        let to = to.min(self.len());
        let left = to.saturating_sub(from);
        let mut iter = Ids {
            inner: Vec::new(),
            leaf: &[],
            left,
        };
        if left > 0 {
            iter.descend(&self.root, from);
        }
        iter
    }

    /// Walks all ids in ascending order.
    pub fn iter(&self) -> Ids<'_> {
        self.iter_ranks(0, self.len())
    }

    /// Returns the first id after `bound`, if any.
    pub fn next_after(&self, bound: Bound<&Hash>) -> Option<Hash> {
        let rank = match bound {
            Bound::Unbounded => 0,
            Bound::Included(id) => self.rank(id),
            Bound::Excluded(id) => self.rank(id) + usize::from(self.contains(id)),
        };
        self.nth(rank)
    }
}

impl Default for IdSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdSet")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl PartialEq for IdSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for IdSet {}

impl FromIterator<Hash> for IdSet {
    fn from_iter<T: IntoIterator<Item = Hash>>(ids: T) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl Extend<Hash> for IdSet {
    fn extend<T: IntoIterator<Item = Hash>>(&mut self, ids: T) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<'a> IntoIterator for &'a IdSet {
    type Item = &'a Hash;
    type IntoIter = Ids<'a>;

    fn into_iter(self) -> Ids<'a> {
        self.iter()
    }
}

/// Ids of an [`IdSet`] in ascending order.
#[derive(Debug)]
pub struct Ids<'a> {
    /// What is left of every inner node on the way down to `leaf`.
    inner: Vec<std::slice::Iter<'a, node::Child>>,
    leaf: &'a [Hash],
    left: usize,
}

impl<'a> Ids<'a> {
    fn descend(&mut self, mut node: &'a Node, mut rank: usize) {
        loop {
            match node {
                Node::Leaf(ids) => {
                    self.leaf = &ids[rank..];
                    return;
                }
                Node::Inner(children) => {
                    let (index, rest) = node::child_at(children, rank);
                    self.inner.push(children[index + 1..].iter());
                    node = children[index].node();
                    rank = rest;
                }
            }
        }
    }
}

impl<'a> Iterator for Ids<'a> {
    type Item = &'a Hash;

    fn next(&mut self) -> Option<&'a Hash> {
        if self.left == 0 {
            return None;
        }
        while self.leaf.is_empty() {
            let next = loop {
                if let Some(child) = self.inner.last_mut()?.next() {
                    break child;
                }
                self.inner.pop();
            };
            self.descend(next.node(), 0);
        }
        let (first, rest) = self.leaf.split_first()?;
        self.leaf = rest;
        self.left -= 1;
        Some(first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Ids<'_> {}
