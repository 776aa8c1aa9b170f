//! One author's fragments in one space: a chain of positions, each naming the one before it.
//!
//! An author may sign two histories. Which of them is the chain is decided by who came first here,
//! until the authority log pins a fragment: then it is the one that leads to that fragment. What
//! contradicts a pin leaves the chain at once; the way down from the pin is learned from the
//! headers, each of which names the one before it, so only ancestors of the pin can take its place.

use std::collections::{BTreeMap, BTreeSet};

use rhizome_identity::{Pin, Reach};

use crate::{Fragment, FragmentId};

/// What is known of one chain.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// The ids from position 0 on, without a gap.
    ids: Vec<FragmentId>,
    /// Ids after a gap, with the id before each: what a damaged store still has of the chain.
    beyond: BTreeMap<u64, Link>,
    /// Positions whose id is known but whose bytes are lost; they are taken in again when offered.
    lost: BTreeSet<u64>,
    /// Verified fragments that wait for the one before them, by position.
    held: BTreeMap<u64, Fragment>,
    reach: Reach,
    /// What is known to lead to the pin and is not in the chain: the pin, and down from it.
    pinned: BTreeMap<u64, FragmentId>,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            beyond: BTreeMap::new(),
            lost: BTreeSet::new(),
            held: BTreeMap::new(),
            reach: Reach::Whole,
            pinned: BTreeMap::new(),
        }
    }
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
        if let Some(pinned) = self.pinned.get(&seq).filter(|pinned| **pinned != id) {
            return Position::Fork(*pinned);
        }
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
            if link.prev != self.ids.last().copied() {
                // It is of another history of the author, as is what follows it.
                self.beyond.clear();
                break;
            }
            self.ids.push(link.id);
        }
        let (len, ids) = (self.len(), &self.ids);
        let is_in = |seq: &u64, id: &FragmentId| {
            *seq < len && usize::try_from(*seq).is_ok_and(|at| ids.get(at) == Some(id))
        };
        self.pinned.retain(|seq, id| !is_in(seq, id));
    }

    /// Sets how far the chain counts; returns what leaves it because it contradicts the pin.
    pub(crate) fn set_reach(&mut self, reach: Reach) -> Vec<FragmentId> {
        if self.reach == reach {
            return Vec::new();
        }
        self.reach = reach;
        self.pinned.clear();
        let Reach::UpTo(Pin { seq, hash, prev }) = reach else {
            return Vec::new();
        };
        let mut gone = self.pin(seq, hash.into());
        if let (Some(before), Some(prev)) = (seq.checked_sub(1), prev) {
            gone.extend(self.pin(before, prev.into()));
        }
        gone
    }

    /// Learns from a header which fragment comes before one that leads to the pin; returns what
    /// leaves the chain because it is not that one.
    pub(crate) fn learn(
        &mut self,
        id: FragmentId,
        seq: u64,
        prev: Option<FragmentId>,
    ) -> Vec<FragmentId> {
        let (mut id, mut seq, mut prev) = (id, seq, prev);
        let mut gone = Vec::new();
        while self.pinned.get(&seq) == Some(&id)
            && let (Some(before), Some(of_before)) = (seq.checked_sub(1), prev)
            && !self.pinned.contains_key(&before)
            && self.id_at(before) != Some(of_before)
        {
            gone.extend(self.pin(before, of_before));
            // What waits for its turn has named the next one down already.
            (id, seq) = (of_before, before);
            prev = self.held.get(&seq).and_then(|held| held.header.prev);
        }
        gone
    }

    /// Notes that this fragment leads to the pin.
    fn pin(&mut self, seq: u64, id: FragmentId) -> Vec<FragmentId> {
        if self.id_at(seq) == Some(id) {
            return Vec::new();
        }
        self.pinned.insert(seq, id);
        if self.id_at(seq).is_none() {
            return Vec::new();
        }
        // Whatever follows the wrong one is wrong as well.
        let at = usize::try_from(seq).unwrap_or(usize::MAX);
        let mut gone = self.ids.split_off(at.min(self.ids.len()));
        let beyond = self.beyond.split_off(&seq);
        gone.extend(beyond.into_values().map(|link| link.id));
        self.lost.split_off(&seq);
        gone
    }

    /// Returns whether a fragment waits whose place another one is pinned to.
    pub(crate) fn contradicted(&self) -> Vec<u64> {
        let is_other = |(seq, held): (&u64, &Fragment)| {
            let pinned = self.pinned.get(seq)?;
            (*pinned != held.id).then_some(*seq)
        };
        self.held.iter().filter_map(is_other).collect()
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns whether this fragment is in the chain and within its reach.
    pub(crate) fn counts(&self, id: FragmentId, seq: u64) -> bool {
        self.id_at(seq) == Some(id) && is_within(self.reach, id, seq)
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

    /// Returns the last fragment, whether it counts or not.
    pub(crate) fn head(&self) -> Option<(u64, FragmentId)> {
        self.ids.last().map(|id| (self.len() - 1, *id))
    }

    /// Returns the last fragment that counts.
    pub(crate) fn valid_head(&self) -> Option<(u64, FragmentId)> {
        let (last, id) = self.head()?;
        match self.reach {
            Reach::Whole => Some((last, id)),
            Reach::UpTo(pin) if pin.seq < last => {
                let at = usize::try_from(pin.seq).ok()?;
                Some((pin.seq, *self.ids.get(at)?))
            }
            Reach::UpTo(_) => Some((last, id)),
            Reach::Nothing => None,
        }
    }

    /// Returns the fragments that are here and count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = FragmentId> + '_ {
        let inside = (0..).zip(self.ids.iter().copied());
        let beyond = self.beyond.iter().map(|(seq, link)| (*seq, link.id));
        inside.chain(beyond).filter_map(|(seq, id)| {
            let is_here = is_within(self.reach, id, seq) && !self.lost.contains(&seq);
            is_here.then_some(id)
        })
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

/// Returns whether a fragment of this place and id can be within a reach.
pub(crate) fn is_within(reach: Reach, id: FragmentId, seq: u64) -> bool {
    match reach {
        Reach::Whole => true,
        Reach::UpTo(pin) => seq < pin.seq || (seq == pin.seq && id == pin.hash.into()),
        Reach::Nothing => false,
    }
}

#[cfg(test)]
mod tests {
    use rhizome_identity::Hash;

    use super::*;

    fn up_to(seq: u64, n: u8, prev: Option<u8>) -> Reach {
        let hash = |n| Hash::from_bytes([n; 32]);
        Reach::UpTo(Pin {
            seq,
            hash: hash(n),
            prev: prev.map(hash),
        })
    }

    #[test]
    fn a_pin_above_cuts_and_one_on_another_history_replaces() {
        let mut one = chain(5);
        assert!(one.set_reach(up_to(2, 2, None)).is_empty());
        assert!(one.counts(id(2), 2) && !one.counts(id(3), 3));
        assert_eq!(one.valid_head(), Some((2, id(2))));
        assert_eq!(
            one.head(),
            Some((4, id(4))),
            "what is set aside stays known"
        );
        assert!(one.set_reach(Reach::Whole).is_empty());
        assert!(one.counts(id(4), 4));

        // The other history is 0, 11, 12, 13 and is pinned at 13.
        let mut other = chain(5);
        assert_eq!(other.set_reach(up_to(3, 13, None)), [id(3), id(4)]);
        assert_eq!(
            other.position(id(3), 3, Some(id(2))),
            Position::Fork(id(13))
        );
        assert_eq!(other.learn(id(13), 3, Some(id(12))), [id(2)]);
        assert_eq!(other.learn(id(12), 2, Some(id(11))), [id(1)]);
        assert_eq!(other.learn(id(11), 1, Some(id(0))), []);
        assert_eq!(
            other.position(id(1), 1, Some(id(0))),
            Position::Fork(id(11))
        );
        for (n, prev) in [(11, 0), (12, 11), (13, 12)] {
            let seq = u64::from(n) - 10;
            assert_eq!(other.position(id(n), seq, Some(id(prev))), Position::Next);
            other.push(id(n), seq, Some(id(prev)));
        }
        assert!(other.counts(id(13), 3) && other.pinned.is_empty());
    }

    #[test]
    fn what_does_not_follow_upon_the_chain_does_not_lengthen_it() {
        // A store is read again in the order of arrival: 0 to 4, then 13, 14 and 15 of another
        // history, which parted after 2.
        let mut chain = chain(5);
        for (n, prev) in [(13, 2), (14, 13), (15, 14)] {
            chain.push(id(n), u64::from(n) - 10, Some(id(prev)));
        }
        assert_eq!(chain.head(), Some((4, id(4))));
        assert_eq!(chain.gap(), None);
        // So the pin is found to contradict what is there.
        assert_eq!(chain.set_reach(up_to(5, 15, None)), []);
        assert_eq!(chain.learn(id(15), 5, Some(id(14))), [id(4)]);
        assert_eq!(chain.learn(id(14), 4, Some(id(13))), [id(3)]);
    }

    #[test]
    fn nobody_but_an_ancestor_of_the_pin_teaches_anything() {
        let mut chain = chain(5);
        chain.set_reach(up_to(9, 19, None));
        assert_eq!(chain.learn(id(18), 8, Some(id(17))), []);
        assert_eq!(chain.learn(id(19), 7, Some(id(6))), []);
        assert!(chain.counts(id(4), 4), "it may lead there yet");
        assert_eq!(chain.learn(id(19), 9, Some(id(8))), []);
        assert_eq!(chain.pinned.len(), 2);
    }

    #[test]
    fn a_proof_that_names_the_one_before_takes_that_one_too() {
        let mut chain = chain(3);
        assert_eq!(chain.set_reach(up_to(2, 12, Some(11))), [id(2), id(1)]);
        assert_eq!(chain.set_reach(Reach::Nothing), []);
        assert_eq!(chain.valid_head(), None);
    }

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
