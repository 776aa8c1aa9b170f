//! Carries what the replica says to gossip, sync, blobs and the address book.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::Hash;
use rhizome_memory::{Event, Fragment, Lane, Replica};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::net::{
    acks, blobs::Blobs, book::Book, endpoint::Net, gossip::Gossip, sync::Sync, sync::kind,
    verdict::Recent,
};

/// Events that one turn takes.
const TURN: usize = 64;
/// The most bytes that one turn reads for gossip; fragments beyond it go by reconciliation.
const MAX_PUSH_BYTES: usize = 8 * 1024 * 1024;

/// The task that listens to the replica.
pub(crate) struct Pump {
    pub(crate) replica: Replica,
    pub(crate) net: Net,
    pub(crate) book: Book,
    pub(crate) sync: Sync,
    pub(crate) gossip: Gossip,
    pub(crate) blobs: Blobs,
    pub(crate) recent: Recent,
}

impl Pump {
    /// Runs until `stop`.
    pub(crate) async fn run(self, mut events: Receiver<Event>, stop: CancellationToken) {
        self.membership_changed().await;
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = events.recv() => event,
            };
            let mut turn = Vec::with_capacity(TURN);
            match first {
                Ok(event) => turn.push(event),
                // What was missed is in the replica's sets, so reconciliation still carries it.
                Err(RecvError::Lagged(missed)) => {
                    debug!(missed, "the pump fell behind the replica");
                    turn.push(Event::AuthorityChanged);
                    self.blobs.sweep();
                }
                Err(RecvError::Closed) => break,
            }
            while turn.len() < TURN {
                let Ok(event) = events.try_recv() else { break };
                turn.push(event);
            }
            self.turn(turn).await;
        }
    }

    async fn turn(&self, turn: Vec<Event>) {
        // First, so that what is published into a new space finds its topic.
        if turn.contains(&Event::AuthorityChanged) {
            self.membership_changed().await;
        }
        self.push_own(&turn).await;
        let mut answers: BTreeMap<_, Vec<Hash>> = BTreeMap::new();
        for event in turn {
            match event {
                Event::Stored { lane, id, own, .. } => {
                    if !own {
                        self.recent.note(id);
                    }
                    for peer in self.sync.acks().stored(&id) {
                        answers.entry(peer).or_default().push(id);
                    }
                    self.sync.stored(lane, id, own).await;
                }
                Event::BodyWanted(hash) => self.blobs.want(hash),
                _ => {}
            }
        }
        for (peer, ids) in answers {
            self.sync.send(&peer, kind::HELD, acks::encode(&ids).into());
        }
    }

    /// Gossips what was made here, in the order of its making.
    async fn push_own(&self, turn: &[Event]) {
        let own: Vec<(Lane, Hash)> = turn
            .iter()
            .filter_map(|event| match event {
                Event::Stored {
                    lane,
                    id,
                    own: true,
                    ..
                } => Some((*lane, *id)),
                _ => None,
            })
            .collect();
        if own.is_empty() {
            return;
        }
        let replica = self.replica.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut left = MAX_PUSH_BYTES;
            let mut wires: Vec<(Lane, Bytes)> = Vec::with_capacity(own.len());
            for (lane, id) in own {
                for wire in replica.wires(lane, &[id], left) {
                    left = left.saturating_sub(wire.len());
                    wires.push((lane, wire));
                }
            }
            wires
        });
        for (lane, wire) in read.await.unwrap_or_default() {
            if lane != Lane::Authority {
                self.offer_body(&wire).await;
            }
            self.gossip.publish(lane, wire).await;
        }
    }

    /// Makes the body of an own fragment fetchable before anyone hears of the fragment.
    async fn offer_body(&self, wire: &Bytes) {
        let Ok(fragment) = Fragment::decode(wire) else {
            return;
        };
        if !fragment.header.body_is_blob() {
            return;
        }
        let hash = fragment.header.body_hash;
        match self.replica.body_path(hash) {
            Some(path) => {
                if let Err(error) = self.blobs.offer(hash, &path).await {
                    debug!(%hash, %error, "own body not offered");
                }
            }
            None => debug!(%hash, "own body is not here"),
        }
    }

    /// Brings topics, connections and the address book in line with the authority log.
    async fn membership_changed(&self) {
        let authority = self.replica.authority();
        let me = self.replica.node();
        let member = authority.is_member(&me);
        let mesh = authority.mesh().filter(|_| member);
        let spaces: BTreeSet<_> = authority
            .spaces()
            .map(|space| space.id)
            .filter(|space| authority.role_in(&me, space).is_some())
            .collect();
        self.gossip.subscribe(mesh, spaces).await;
        self.net
            .connections
            .retain(|node| member && authority.is_member(node));
        let others = authority
            .members()
            .map(|other| other.node)
            .filter(|node| member && *node != me)
            .collect();
        self.book.members(others).await;
    }
}
