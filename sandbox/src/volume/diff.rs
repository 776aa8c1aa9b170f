//! What differs between two trees.

use std::cmp::Ordering;

use super::{Content, Entry, Node, Path, Trees, VolumeError, tree::Budget};

/// How an entry differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is in the second tree alone.
    Added,
    /// It is in the first tree alone.
    Removed,
    /// Its bytes, its target or its kind differ.
    Modified,
    /// Mode, owner or time differ, and nothing else.
    Meta,
}

/// One entry that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub path: Path,
    /// How.
    pub kind: ChangeKind,
    /// What it was.
    pub old: Option<Entry>,
    /// What it is.
    pub new: Option<Entry>,
}

/// Compares two trees; hands out what differs, in the order of paths, each directory before what
/// is in it. Only directories that differ are read; a directory in which something changed is
/// itself named only if its own mode, owner or time did.
///
/// # Errors
/// Any [`VolumeError`] but those of paths; whatever `see` returns.
pub fn diff(
    trees: Trees<'_>,
    old: &Content,
    new: &Content,
    see: &mut dyn FnMut(Change) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let mut walk = Walk {
        trees,
        budget: Budget::default(),
        see,
    };
    walk.dirs(&Path::default(), Some(old), Some(new))
}

struct Walk<'a> {
    trees: Trees<'a>,
    budget: Budget,
    see: &'a mut dyn FnMut(Change) -> Result<(), VolumeError>,
}

impl Walk<'_> {
    /// Recursion ends with the budget's depth.
    fn dirs(
        &mut self,
        path: &Path,
        old: Option<&Content>,
        new: Option<&Content>,
    ) -> Result<(), VolumeError> {
        if old == new {
            return Ok(());
        }
        let list =
            |tree: Option<&Content>| tree.map_or(Ok(Vec::new()), |tree| self.trees.list(tree));
        let (old, new) = (list(old)?, list(new)?);
        for (old, new) in pairs(old, new) {
            let name = old.as_ref().or(new.as_ref()).map(|entry| &entry.name);
            let path = path.join(name.expect("one of a pair is there"));
            self.budget.spend(&path)?;
            self.entries(path, old, new)?;
        }
        Ok(())
    }

    fn entries(
        &mut self,
        path: Path,
        old: Option<Entry>,
        new: Option<Entry>,
    ) -> Result<(), VolumeError> {
        let kind = match (&old, &new) {
            (None, _) => Some(ChangeKind::Added),
            (_, None) => Some(ChangeKind::Removed),
            (Some(old), Some(new)) => {
                let both_dirs = matches!((&old.node, &new.node), (Node::Dir(_), Node::Dir(_)));
                if old.node != new.node && !both_dirs {
                    Some(ChangeKind::Modified)
                } else {
                    (old.meta != new.meta).then_some(ChangeKind::Meta)
                }
            }
        };
        let (was, is) = (tree_of(old.as_ref()), tree_of(new.as_ref()));
        if let Some(kind) = kind {
            let change = Change {
                path: path.clone(),
                kind,
                old,
                new,
            };
            (self.see)(change)?;
        }
        self.dirs(&path, was.as_ref(), is.as_ref())
    }
}

fn tree_of(entry: Option<&Entry>) -> Option<Content> {
    match entry.map(|entry| &entry.node) {
        Some(Node::Dir(content)) => Some(content.clone()),
        _ => None,
    }
}

/// Brings the entries of two directories together by name.
pub(super) fn pairs(old: Vec<Entry>, new: Vec<Entry>) -> Vec<(Option<Entry>, Option<Entry>)> {
    let mut pairs = Vec::with_capacity(old.len().max(new.len()));
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
        };
        let was = order.is_le().then(|| old.next()).flatten();
        let is = order.is_ge().then(|| new.next()).flatten();
        pairs.push((was, is));
    }
}
