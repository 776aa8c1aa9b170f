//! One author's fragments in one space: a chain of positions, each naming the one before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Fragment, FragmentId};

/// What is known of one chain.
#[derive(Debug, Default, Clone)]
pub(crate) struct Chain {
    /// The ids from position 0 on, without a gap.
    ids: Vec<FragmentId>,
    /// Ids after a gap, with the id before each: what a damaged store still has of the chain.
    beyond: BTreeMap<u64, Link>,
    /// Positions whose id is known but whose bytes are lost; they are taken in again when offered.
    lost: BTreeSet<u64>,
    /// Verified fragments that wait for the one before them, by position.
    held: BTreeMap<u64, Fragment>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    id: FragmentId,
    prev: Option<FragmentId>,
}

/// Where a fragment stands in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// It is the next one, or fills a place whose bytes were lost.
    Next,
    /// It is there already.
    Taken,
    /// The one before it is missing.
    Gap,
    /// It contradicts this one.
    Fork(FragmentId),
}

impl Chain {
    pub(crate) fn position(&self, id: FragmentId, seq: u64, prev: Option<FragmentId>) -> Position {
        if let Some(known) = self.id_at(seq) {
            return match (known == id, self.lost.contains(&seq)) {
                (false, _) => Position::Fork(known),
                (true, false) => Position::Taken,
                (true, true) => Position::Next,
            };
        }
        // What follows a gap has named what belongs into it.
        if let Some(after) = self.beyond.get(&(seq + 1))
            && after.prev != Some(id)
        {
            return Position::Fork(after.id);
        }
        match self.ids.last() {
            None if seq == 0 => Position::Next,
            Some(head) if seq == self.len() && prev == Some(*head) => Position::Next,
            Some(head) if seq == self.len() => Position::Fork(*head),
            _ => Position::Gap,
        }
    }

    /// Takes in a fragment that is durable, and what lies beyond a gap that it closes.
    ///
    /// Out of order it is kept beyond the gap: that happens when a damaged store is read again.
    pub(crate) fn push(&mut self, id: FragmentId, seq: u64, prev: Option<FragmentId>) {
        self.lost.remove(&seq);
        if seq < self.len() {
            return;
        }
        self.beyond.insert(seq, Link { id, prev });
        while let Some(link) = self.beyond.remove(&self.len()) {
            self.ids.push(link.id);
        }
    }

    /// Notes that a fragment was here whose bytes are not.
    pub(crate) fn push_lost(&mut self, id: FragmentId, seq: u64, prev: Option<FragmentId>) {
        if self.id_at(seq).is_none() {
            self.push(id, seq, prev);
            self.lost.insert(seq);
        }
    }

    /// Notes that the bytes at a position are lost.
    pub(crate) fn lose(&mut self, seq: u64) {
        if self.id_at(seq).is_some() {
            self.lost.insert(seq);
        }
    }

    pub(crate) fn head(&self) -> Option<(u64, FragmentId)> {
        self.ids.last().map(|id| (self.len() - 1, *id))
    }

    /// Returns the first position that is missing although later ones are here.
    pub(crate) fn gap(&self) -> Option<u64> {
        (!self.beyond.is_empty()).then_some(self.len())
    }

    pub(crate) fn contains(&self, id: FragmentId, seq: u64) -> bool {
        self.id_at(seq) == Some(id) && !self.lost.contains(&seq)
    }

    pub(crate) fn held(&self) -> &BTreeMap<u64, Fragment> {
        &self.held
    }

    pub(crate) fn held_mut(&mut self) -> &mut BTreeMap<u64, Fragment> {
        &mut self.held
    }

    /// Returns how many positions follow each other without a gap from 0.
    pub(crate) fn len(&self) -> u64 {
        self.ids.len() as u64
    }

    pub(crate) fn id_at(&self, seq: u64) -> Option<FragmentId> {
        let inside = usize::try_from(seq)
            .ok()
            .and_then(|at| self.ids.get(at))
            .copied();
        inside.or_else(|| self.beyond.get(&seq).map(|link| link.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> FragmentId {
        FragmentId::from_bytes([n; 32])
    }

    fn chain(len: u8) -> Chain {
        let mut chain = Chain::default();
        for n in 0..len {
            chain.push(id(n), n.into(), n.checked_sub(1).map(id));
        }
        chain
    }

    #[test]
    fn a_fragment_is_next_taken_early_or_a_fork() {
        let chain = chain(3);
        assert_eq!(chain.position(id(3), 3, Some(id(2))), Position::Next);
        assert_eq!(chain.position(id(1), 1, Some(id(0))), Position::Taken);
        assert_eq!(chain.position(id(5), 5, Some(id(4))), Position::Gap);
        assert_eq!(chain.position(id(9), 1, Some(id(0))), Position::Fork(id(1)));
        // The next position, on top of another history: that contradicts our head too.
        assert_eq!(chain.position(id(3), 3, Some(id(9))), Position::Fork(id(2)));
        assert_eq!(
            chain.position(id(8), u64::MAX - 1, Some(id(9))),
            Position::Gap
        );
    }

    #[test]
    fn a_gap_left_by_damage_takes_only_what_was_there() {
        let mut chain = chain(2);
        chain.push(id(3), 3, Some(id(2)));
        assert_eq!(chain.head(), Some((1, id(1))));
        assert_eq!(chain.gap(), Some(2));
        assert!(chain.contains(id(3), 3));
        assert_eq!(chain.position(id(9), 2, Some(id(1))), Position::Fork(id(3)));
        assert_eq!(chain.position(id(2), 2, Some(id(1))), Position::Next);
        chain.push(id(2), 2, Some(id(1)));
        assert_eq!((chain.head(), chain.gap()), (Some((3, id(3))), None));
    }

    #[test]
    fn a_lost_position_keeps_its_id_and_takes_the_same_fragment_again() {
        let mut chain = chain(2);
        chain.push_lost(id(2), 2, Some(id(1)));
        assert_eq!(chain.head(), Some((2, id(2))));
        assert!(!chain.contains(id(2), 2));
        assert_eq!(chain.position(id(9), 2, Some(id(1))), Position::Fork(id(2)));
        assert_eq!(chain.position(id(2), 2, Some(id(1))), Position::Next);
        chain.push(id(2), 2, Some(id(1)));
        assert_eq!(chain.position(id(2), 2, Some(id(1))), Position::Taken);
    }
}
