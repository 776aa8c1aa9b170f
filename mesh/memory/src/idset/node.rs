//! Nodes of the B+-tree.

use std::sync::Arc;

use rhizome_identity::Hash;

use super::Fingerprint;

/// Most ids in a leaf, and most children of an inner node.
const MAX_WIDTH: usize = 32;
/// A node narrower than this is merged with a neighbour.
const MIN_WIDTH: usize = 10;

const LOWEST: Hash = Hash::from_bytes([0; 32]);

#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Vec<Hash>),
    Inner(Vec<Child>),
}

/// A child with what its ids add up to.
#[derive(Clone, Debug)]
pub(super) struct Child {
    /// No id below this child is smaller; meaningless for the first child of a node.
    low: Hash,
    sum: Fingerprint,
    node: Arc<Node>,
}

impl Child {
    pub(super) fn of(node: Arc<Node>, sum: Fingerprint) -> Self {
        Self {
            low: node.low(),
            sum,
            node,
        }
    }

    pub(super) fn sum(&self) -> Fingerprint {
        self.sum
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }
}

impl Node {
    pub(super) fn empty() -> Self {
        Self::Leaf(Vec::new())
    }

    fn low(&self) -> Hash {
        match self {
            Self::Leaf(ids) => ids.first().copied().unwrap_or(LOWEST),
            Self::Inner(children) => children.first().map_or(LOWEST, |child| child.low),
        }
    }

    fn width(&self) -> usize {
        match self {
            Self::Leaf(ids) => ids.len(),
            Self::Inner(children) => children.len(),
        }
    }

    fn sum(&self) -> Fingerprint {
        match self {
            Self::Leaf(ids) => ids.iter().map(Fingerprint::of).sum(),
            Self::Inner(children) => children.iter().map(|child| child.sum).sum(),
        }
    }

    /// Splits off the upper half.
    fn split(&mut self) -> Self {
        match self {
            Self::Leaf(ids) => Self::Leaf(ids.split_off(ids.len() / 2)),
            Self::Inner(children) => Self::Inner(children.split_off(children.len() / 2)),
        }
    }

    /// Returns the only child of an inner node that has just one.
    pub(super) fn only_child(&self) -> Option<Arc<Self>> {
        match self {
            Self::Inner(children) if children.len() == 1 => Some(Arc::clone(&children[0].node)),
            _ => None,
        }
    }

    pub(super) fn contains(&self, id: &Hash) -> bool {
        match self {
            Self::Leaf(ids) => ids.binary_search(id).is_ok(),
            Self::Inner(children) => children[child_for(children, id)].node.contains(id),
        }
    }

    pub(super) fn rank(&self, id: &Hash) -> usize {
        match self {
            Self::Leaf(ids) => ids.partition_point(|held| held < id),
            Self::Inner(children) => {
                let index = child_for(children, id);
                let before: usize = children[..index]
                    .iter()
                    .map(|child| child.sum.count_usize())
                    .sum();
                before + children[index].node.rank(id)
            }
        }
    }

    /// Returns the id at `index`, which is below the number of ids.
    pub(super) fn nth(&self, index: usize) -> Hash {
        match self {
            Self::Leaf(ids) => ids[index],
            Self::Inner(children) => {
                let (child, rest) = child_at(children, index);
                children[child].node.nth(rest)
            }
        }
    }

    /// Returns what the first `rank` ids add up to; `rank` is below the number of ids.
    pub(super) fn prefix(&self, rank: usize) -> Fingerprint {
        match self {
            Self::Leaf(ids) => ids[..rank].iter().map(Fingerprint::of).sum(),
            Self::Inner(children) => {
                let (index, rest) = child_at(children, rank);
                let before: Fingerprint = children[..index].iter().map(|child| child.sum).sum();
                if rest == 0 {
                    return before;
                }
                before + children[index].prefix(rest)
            }
        }
    }
}

impl Child {
    fn prefix(&self, rank: usize) -> Fingerprint {
        match &*self.node {
            // Hash whichever part of the leaf is shorter.
            Node::Leaf(ids) if rank > ids.len() / 2 => {
                self.sum - ids[rank..].iter().map(Fingerprint::of).sum()
            }
            node => node.prefix(rank),
        }
    }
}

/// Returns the child that holds the id of rank `rank`, and the rank within it.
pub(super) fn child_at(children: &[Child], mut rank: usize) -> (usize, usize) {
    for (index, child) in children.iter().enumerate() {
        let count = child.sum.count_usize();
        if rank < count {
            return (index, rank);
        }
        rank -= count;
    }
    unreachable!("the caller keeps the rank below the number of ids")
}

/// Returns the child below which `id` is or would be.
fn child_for(children: &[Child], id: &Hash) -> usize {
    children[1..].partition_point(|child| child.low <= *id)
}

/// Adds `id`, which is not there; returns the new right neighbour when the node had to split.
pub(super) fn insert(node: &mut Arc<Node>, id: Hash, one: &Fingerprint) -> Option<Child> {
    let inside = Arc::make_mut(node);
    match inside {
        Node::Leaf(ids) => {
            let at = ids.partition_point(|held| *held < id);
            ids.insert(at, id);
        }
        Node::Inner(children) => {
            let at = child_for(children, &id);
            let child = &mut children[at];
            child.sum = child.sum + *one;
            if let Some(right) = insert(&mut child.node, id, one) {
                child.sum = child.sum - right.sum;
                children.insert(at + 1, right);
            }
        }
    }
    if inside.width() <= MAX_WIDTH {
        return None;
    }
    let right = inside.split();
    let sum = right.sum();
    Some(Child::of(Arc::new(right), sum))
}

/// Removes `id`, which is there.
pub(super) fn remove(node: &mut Arc<Node>, id: &Hash, one: &Fingerprint) {
    match Arc::make_mut(node) {
        Node::Leaf(ids) => {
            if let Ok(at) = ids.binary_search(id) {
                ids.remove(at);
            }
        }
        Node::Inner(children) => {
            let at = child_for(children, id);
            let child = &mut children[at];
            child.sum = child.sum - *one;
            remove(&mut child.node, id, one);
            if child.node.width() < MIN_WIDTH && children.len() > 1 {
                rebalance(children, at.min(children.len() - 2));
            }
        }
    }
}

/// Makes one node or two even ones of the children at `left` and `left + 1`.
fn rebalance(children: &mut Vec<Child>, left: usize) {
    let right = children.remove(left + 1);
    let child = &mut children[left];
    let both = child.sum + right.sum;
    let merged = Arc::make_mut(&mut child.node);
    match (&mut *merged, &*right.node) {
        (Node::Leaf(ids), Node::Leaf(more)) => ids.extend_from_slice(more),
        (Node::Inner(inner), Node::Inner(more)) => {
            // The first child's lower bound was meaningless until now: it gets its parent's.
            let from = inner.len();
            inner.extend_from_slice(more);
            inner[from].low = right.low;
        }
        _ => unreachable!("all leaves have the same depth"),
    }
    child.sum = both;
    if merged.width() > MAX_WIDTH {
        let upper = merged.split();
        let sum = upper.sum();
        let upper = Child::of(Arc::new(upper), sum);
        child.sum = both - sum;
        children.insert(left + 1, upper);
    }
}
