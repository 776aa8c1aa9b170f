//! How versions follow from each other. Pure: versions are handed in.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use super::VersionId;

/// What history needs of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it was made from.
    pub parents: Vec<VersionId>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Known versions. Parents may be unknown: a node need not hold all that ever was.
pub type Versions = BTreeMap<VersionId, Line>;

/// Returns the versions that no other was made from, the newest first.
#[must_use]
pub fn heads(versions: &Versions) -> Vec<VersionId> {
    let parents: BTreeSet<&VersionId> = versions.values().flat_map(|line| &line.parents).collect();
    let mut heads: Vec<_> = versions
        .iter()
        .filter(|(id, _)| !parents.contains(id))
        .map(|(id, line)| (Reverse(line.at_ms), *id))
        .collect();
    heads.sort_unstable();
    heads.into_iter().map(|(_, id)| id).collect()
}

/// Returns `from` and all that it came from, as far as is known, each before its parents, newer
/// ones first.
#[must_use]
pub fn log(versions: &Versions, from: &[VersionId]) -> Vec<VersionId> {
    let reached = ancestors(versions, from);
    // How many children each still waits for.
    let mut children: BTreeMap<VersionId, usize> = BTreeMap::new();
    for id in &reached {
        for parent in parents(versions, id) {
            *children.entry(*parent).or_default() += 1;
        }
    }
    let at = |id: &VersionId| versions.get(id).map_or(0, |line| line.at_ms);
    let mut ready: BinaryHeap<(u64, Reverse<VersionId>)> = reached
        .iter()
        .filter(|id| !children.contains_key(id))
        .map(|id| (at(id), Reverse(*id)))
        .collect();
    let mut log = Vec::new();
    while let Some((_, Reverse(id))) = ready.pop() {
        log.push(id);
        for parent in parents(versions, &id) {
            if let Some(left) = children.get_mut(parent) {
                *left -= 1;
                if *left == 0 && reached.contains(parent) {
                    ready.push((at(parent), Reverse(*parent)));
                }
            }
        }
    }
    log
}

/// Returns the version that two came from last, if any is known: of those that no other common
/// one came from, the newest.
#[must_use]
pub fn common(versions: &Versions, a: &VersionId, b: &VersionId) -> Option<VersionId> {
    let of_a = ancestors(versions, &[*a]);
    let both: BTreeSet<VersionId> = ancestors(versions, &[*b])
        .intersection(&of_a)
        .copied()
        .collect();
    let lines = both
        .iter()
        .filter_map(|id| Some((*id, versions.get(id)?.clone())));
    heads(&lines.collect()).first().copied()
}

/// Returns whether `old` is `new` or something it came from.
#[must_use]
pub fn includes(versions: &Versions, new: &VersionId, old: &VersionId) -> bool {
    ancestors(versions, &[*new]).contains(old)
}

fn ancestors(versions: &Versions, from: &[VersionId]) -> BTreeSet<VersionId> {
    let mut reached = BTreeSet::new();
    let mut left = from.to_vec();
    while let Some(id) = left.pop() {
        // Names are hashes of what names them: there are no circles, and if a false list claims
        // one, each is still visited once.
        if versions.contains_key(&id) && reached.insert(id) {
            left.extend(parents(versions, &id));
        }
    }
    reached
}

fn parents<'a>(versions: &'a Versions, id: &VersionId) -> &'a [VersionId] {
    versions.get(id).map_or(&[], |line| &line.parents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> VersionId {
        VersionId::from_bytes([number; 32])
    }

    /// 1 ── 2 ── 4 ── 6
    ///   ╲─ 3 ── 5 ─╱
    fn versions() -> Versions {
        let line = |parents: &[u8], at_ms| Line {
            parents: parents.iter().map(|number| id(*number)).collect(),
            at_ms,
        };
        BTreeMap::from([
            (id(1), line(&[], 10)),
            (id(2), line(&[1], 20)),
            (id(3), line(&[1], 25)),
            (id(4), line(&[2], 40)),
            (id(5), line(&[3], 30)),
            (id(6), line(&[4, 5], 50)),
        ])
    }

    #[test]
    fn heads_are_what_nothing_came_from() {
        let mut versions = versions();
        assert_eq!(heads(&versions), [id(6)]);
        versions.remove(&id(6));
        assert_eq!(heads(&versions), [id(4), id(5)]);
        assert_eq!(heads(&Versions::new()), []);
    }

    #[test]
    fn the_log_has_each_before_what_it_came_from() {
        let versions = versions();
        assert_eq!(log(&versions, &[id(6)]), [6, 4, 5, 3, 2, 1].map(id));
        assert_eq!(log(&versions, &[id(4)]), [4, 2, 1].map(id));
        // A parent that is unknown ends the log.
        let mut cut = versions;
        cut.remove(&id(2));
        assert_eq!(log(&cut, &[id(4)]), [id(4)]);
        assert_eq!(log(&cut, &[id(9)]), []);
    }

    #[test]
    fn the_common_version_is_the_last_one() {
        let versions = versions();
        assert_eq!(common(&versions, &id(4), &id(5)), Some(id(1)));
        assert_eq!(common(&versions, &id(4), &id(2)), Some(id(2)));
        assert_eq!(common(&versions, &id(6), &id(5)), Some(id(5)));
        assert_eq!(common(&versions, &id(4), &id(9)), None);
        assert!(includes(&versions, &id(6), &id(3)));
        assert!(!includes(&versions, &id(4), &id(3)));
    }

    #[test]
    fn a_false_circle_ends() {
        let line = |parent: u8| Line {
            parents: vec![id(parent)],
            at_ms: 0,
        };
        let versions = BTreeMap::from([(id(1), line(2)), (id(2), line(1))]);
        assert_eq!(heads(&versions), []);
        assert_eq!(log(&versions, &[id(1)]), []);
        assert!(common(&versions, &id(1), &id(2)).is_none());
    }
}
