//! Who shows the mesh that an author signed two histories.
//!
//! One proof is enough, and thousands of nodes find the same fork within a second. Each waits for a
//! turn of its own, drawn from its id and the chain, and keeps silent if a proof reaches it before:
//! one node or two have the first turn, twice as many the next, and so on to the last, which is
//! everybody's. So the number of proofs does not grow with the mesh, the wait grows with the
//! logarithm of it, and a fork that a single node saw is shown all the same.

use std::{collections::BTreeMap, time::Duration};

use rhizome_identity::{AgentId, NodeId, SpaceId};

/// How long a turn lasts: within it a proof reaches those whose turn is later.
pub const FORK_TURN: Duration = Duration::from_secs(2);
/// Of how many chains forks wait to be shown. What has no room is offered again by peers.
pub const MAX_FORKS_WAITING: usize = 256;

const CONTEXT: &str = "rhizome 2026-12 whose turn it is to show a fork";

/// The chain of an author in a space.
pub type ForkedChain = (SpaceId, AgentId);

/// Forks that this node found and nobody has shown yet; `P` is what it needs to show one.
///
/// Nothing here reads a clock: `now` counts from any moment that stays the same.
#[derive(Debug)]
pub struct ForkWatch<P> {
    node: NodeId,
    turn: Duration,
    waiting: BTreeMap<ForkedChain, Waiting<P>>,
}

#[derive(Debug)]
struct Waiting<P> {
    due: Duration,
    seq: u64,
    pair: P,
}

/// What became of forks that waited.
#[derive(Debug)]
pub struct ForksDue<P> {
    /// It is this node's turn to show these.
    pub to_show: Vec<P>,
    /// These were shown by others.
    pub shown: Vec<P>,
}

impl<P> ForkWatch<P> {
    /// Makes the watch of a node; with a `turn` of zero it never waits.
    #[must_use]
    pub fn new(node: NodeId, turn: Duration) -> Self {
        Self {
            node,
            turn,
            waiting: BTreeMap::new(),
        }
    }

    /// Takes a fork at place `seq` of a chain, found in a mesh of `members`. Of several forks of a
    /// chain the lowest is kept, and the turn is that of the first.
    pub fn note(&mut self, chain: ForkedChain, seq: u64, members: usize, now: Duration, pair: P) {
        if let Some(known) = self.waiting.get_mut(&chain) {
            if seq < known.seq {
                (known.seq, known.pair) = (seq, pair);
            }
        } else if self.waiting.len() < MAX_FORKS_WAITING {
            let due = now.saturating_add(fork_wait(&self.node, &chain, members, self.turn));
            self.waiting.insert(chain, Waiting { due, seq, pair });
        }
    }

    /// Takes out what is shown already, and what is due.
    pub fn take_due(
        &mut self,
        now: Duration,
        is_shown: impl Fn(&ForkedChain) -> bool,
    ) -> ForksDue<P> {
        let (mut to_show, mut shown) = (Vec::new(), Vec::new());
        for (chain, waiting) in std::mem::take(&mut self.waiting) {
            if is_shown(&chain) {
                shown.push(waiting.pair);
            } else if waiting.due <= now {
                to_show.push(waiting.pair);
            } else {
                self.waiting.insert(chain, waiting);
            }
        }
        ForksDue { to_show, shown }
    }

    /// Returns when the next turn comes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.waiting.values().map(|waiting| waiting.due).min()
    }
}

/// Returns how long a node waits before it shows a fork of a chain: at most a `turn` for each
/// doubling of the members, and one more.
#[must_use]
pub fn fork_wait(node: &NodeId, chain: &ForkedChain, members: usize, turn: Duration) -> Duration {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(node.as_bytes());
    hasher.update(chain.0.as_bytes());
    hasher.update(chain.1.as_bytes());
    let mut drawn = [0; 16];
    hasher.finalize_xof().fill(&mut drawn);
    let [rank, place] = [&drawn[..8], &drawn[8..]]
        .map(|half| u64::from_le_bytes(half.try_into().expect("half of sixteen bytes")));
    // Half of all draws have no leading zero, a quarter has one: those with many are few.
    let turns = members.max(1).next_power_of_two().trailing_zeros();
    let before = turns.saturating_sub(rank.leading_zeros());
    // Within the turn anywhere, in thousandths.
    let within = u32::try_from(place % 1000).expect("less than a thousand");
    turn * before + turn / 1000 * within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u32) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        NodeId::from_bytes(bytes)
    }

    fn chain(n: u8) -> ForkedChain {
        (
            SpaceId::from_bytes([n; 32]),
            AgentId::from_bytes([n ^ 0x55; 32]),
        )
    }

    #[test]
    fn few_have_the_first_turn_and_everybody_has_one() {
        for members in [1_u32, 2, 3, 100, 1000, 10_000] {
            let turns = members.next_power_of_two().trailing_zeros();
            let mut early = 0;
            for fork in 0..20 {
                let waits = (0..members)
                    .map(|n| fork_wait(&node(n), &chain(fork), members as usize, FORK_TURN));
                let waits: Vec<Duration> = waits.collect();
                let first = *waits.iter().min().unwrap();
                assert!(waits.iter().all(|wait| *wait < FORK_TURN * (turns + 1)));
                // Those who sign although the first proof takes half a turn to reach them.
                let late = first + FORK_TURN / 2;
                early += waits.iter().filter(|wait| **wait < late).count();
            }
            // Twenty forks, about two proofs each, whatever the mesh.
            assert!((20..=80).contains(&early), "{members}: {early}");
        }
    }

    #[test]
    fn the_turn_is_of_the_chain_and_the_lowest_fork_is_kept() {
        let mut watch = ForkWatch::new(node(7), FORK_TURN);
        let at = Duration::from_secs(100);
        watch.note(chain(1), 9, 64, at, "nine");
        let due = watch.next_deadline().unwrap();
        assert_eq!(due, at + fork_wait(&node(7), &chain(1), 64, FORK_TURN));
        watch.note(chain(1), 4, 64, due, "four");
        watch.note(chain(1), 6, 64, due, "six");
        assert_eq!(watch.next_deadline(), Some(due));
        let early = watch.take_due(due - Duration::from_nanos(1), |_| false);
        assert!(early.to_show.is_empty() && early.shown.is_empty());
        assert_eq!(watch.take_due(due, |_| false).to_show, ["four"]);
        assert_eq!(watch.next_deadline(), None);
    }

    #[test]
    fn what_others_show_is_not_shown_again() {
        let mut watch = ForkWatch::new(node(7), FORK_TURN);
        watch.note(chain(1), 0, 64, Duration::ZERO, 1);
        watch.note(chain(2), 0, 64, Duration::ZERO, 2);
        let due = watch.take_due(Duration::from_secs(3600), |of| *of == chain(1));
        assert_eq!((due.to_show, due.shown), (vec![2], vec![1]));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut watch = ForkWatch::new(node(7), FORK_TURN);
        for n in 0..2 * MAX_FORKS_WAITING {
            let mut author = [0; 32];
            author[..8].copy_from_slice(&n.to_be_bytes());
            let chain = (SpaceId::from_bytes([1; 32]), AgentId::from_bytes(author));
            watch.note(chain, 0, 64, Duration::ZERO, ());
        }
        let due = watch.take_due(Duration::from_secs(3600), |_| false);
        assert_eq!(due.to_show.len(), MAX_FORKS_WAITING);
    }
}
