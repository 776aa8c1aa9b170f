//! Who holds a fragment durably: asked for only when someone waits for the answer.
//!
//! A node that must know sends `Ask`; a member answers `Held` at once, or as soon as the
//! fragment is durable there. Without a waiter no acknowledgement crosses the wire.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rhizome_identity::{Hash, NodeId};
use tokio::sync::watch;

/// Ids in one `Ask` or `Held` frame.
pub(crate) const MAX_IDS: usize = 256;

/// Questions of peers that are not answered yet; the oldest is forgotten first.
const MAX_ASKED: usize = 4096;

/// The bookkeeping of both roles.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<Hash, (usize, watch::Sender<BTreeSet<NodeId>>)>,
    asked: BTreeMap<Hash, BTreeSet<NodeId>>,
    order: VecDeque<(Hash, NodeId)>,
}

impl Acks {
    /// Begins to collect the holders of `id`; pair with [`Self::unwatch`].
    pub(crate) fn watch(&self, id: Hash) -> watch::Receiver<BTreeSet<NodeId>> {
        let mut state = self.lock();
        let (waiters, holders) = state
            .waiting
            .entry(id)
            .or_insert_with(|| (0, watch::Sender::new(BTreeSet::new())));
        *waiters += 1;
        holders.subscribe()
    }

    /// Stops collecting the holders of `id` for one waiter.
    pub(crate) fn unwatch(&self, id: &Hash) {
        let mut state = self.lock();
        if let Some((waiters, _)) = state.waiting.get_mut(id) {
            *waiters -= 1;
            if *waiters == 0 {
                state.waiting.remove(id);
            }
        }
    }

    /// Returns the ids that someone here waits for.
    pub(crate) fn wanted(&self) -> Vec<Hash> {
        self.lock().waiting.keys().copied().collect()
    }

    /// `peer` says that it holds `ids`.
    pub(crate) fn held(&self, peer: NodeId, ids: &[Hash]) {
        let state = self.lock();
        for id in ids {
            if let Some((_, holders)) = state.waiting.get(id) {
                holders.send_if_modified(|holders| holders.insert(peer));
            }
        }
    }

    /// `peer` wants to know when `id`, which is not here, has become durable here.
    pub(crate) fn ask(&self, peer: NodeId, id: Hash) {
        let mut state = self.lock();
        if !state.asked.entry(id).or_default().insert(peer) {
            return;
        }
        state.order.push_back((id, peer));
        while state.order.len() > MAX_ASKED {
            let (id, peer) = state.order.pop_front().expect("the queue is not empty");
            forget(&mut state.asked, &id, &peer);
        }
    }

    /// `id` is durable here; returns the peers to tell.
    pub(crate) fn stored(&self, id: &Hash) -> BTreeSet<NodeId> {
        let mut state = self.lock();
        let peers = state.asked.remove(id).unwrap_or_default();
        if !peers.is_empty() {
            state.order.retain(|(other, _)| other != id);
        }
        peers
    }

    /// Forgets that `peer` asked for `id`, since it has been told.
    pub(crate) fn forget(&self, peer: NodeId, id: &Hash) {
        let mut state = self.lock();
        forget(&mut state.asked, id, &peer);
        state.order.retain(|asked| *asked != (*id, peer));
    }

    /// Forgets the questions of a peer that is gone.
    pub(crate) fn gone(&self, peer: &NodeId) {
        let mut state = self.lock();
        let State { asked, order, .. } = &mut *state;
        order.retain(|(id, other)| {
            if other == peer {
                forget(asked, id, peer);
            }
            other != peer
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every section leaves the maps consistent, so a panic elsewhere does not spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget(asked: &mut BTreeMap<Hash, BTreeSet<NodeId>>, id: &Hash, peer: &NodeId) {
    if let Some(peers) = asked.get_mut(id) {
        peers.remove(peer);
        if peers.is_empty() {
            asked.remove(id);
        }
    }
}

/// Spells ids for an `Ask` or `Held` frame.
pub(crate) fn encode(ids: &[Hash]) -> Vec<u8> {
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

/// Reads the ids of an `Ask` or `Held` frame; `None` unless it holds 1 to [`MAX_IDS`] whole ids.
pub(crate) fn decode(payload: &[u8]) -> Option<Vec<Hash>> {
    let (ids, rest) = payload.as_chunks::<32>();
    let fits = rest.is_empty() && !ids.is_empty() && ids.len() <= MAX_IDS;
    fits.then(|| ids.iter().map(|id| Hash::from_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    #[test]
    fn a_question_is_answered_once_and_forgotten_with_its_peer() {
        let acks = Acks::default();
        let (a, b) = (Hash::of(b"a"), Hash::of(b"b"));
        acks.ask(node(1), a);
        acks.ask(node(2), a);
        acks.ask(node(1), b);
        assert_eq!(acks.stored(&a), BTreeSet::from([node(1), node(2)]));
        assert!(acks.stored(&a).is_empty());
        acks.gone(&node(1));
        assert!(acks.stored(&b).is_empty());
    }

    #[test]
    fn questions_are_bounded() {
        let acks = Acks::default();
        for n in 0..=MAX_ASKED {
            acks.ask(node(1), Hash::of(&n.to_be_bytes()));
        }
        assert!(acks.stored(&Hash::of(&0_usize.to_be_bytes())).is_empty());
        assert_eq!(acks.stored(&Hash::of(&1_usize.to_be_bytes())).len(), 1);
    }

    #[test]
    fn holders_reach_every_waiter_and_no_one_else() {
        let acks = Acks::default();
        let id = Hash::of(b"x");
        acks.held(node(1), &[id]);
        let waiter = acks.watch(id);
        assert!(
            waiter.borrow().is_empty(),
            "an old answer counts for nothing"
        );
        acks.held(node(1), &[id]);
        acks.held(node(1), &[id]);
        assert_eq!(*waiter.borrow(), BTreeSet::from([node(1)]));
        acks.unwatch(&id);
        assert!(acks.wanted().is_empty());
    }

    #[test]
    fn id_lists_are_whole_and_bounded() {
        let ids = vec![Hash::of(b"1"), Hash::of(b"2")];
        assert_eq!(decode(&encode(&ids)), Some(ids));
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[0; 33]), None);
        assert_eq!(decode(&[0; 32 * (MAX_IDS + 1)]), None);
    }
}
