//! Carries what the replica says to gossip, sync, blobs and the address book.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{Event, Fragment, Lane, Replica};
use tokio::sync::broadcast::{
    Receiver,
    error::{RecvError, TryRecvError},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::net::{
    acks, blobs::Blobs, book::Book, endpoint::Net, gossip::Gossip, relay::RelayServer, sync::Sync,
    sync::kind, verdict::Recent,
};

/// Events that one turn takes.
const TURN: usize = 64;
/// The most bytes that one turn reads for gossip; fragments beyond it go by reconciliation.
const MAX_PUSH_BYTES: usize = 8 * 1024 * 1024;

/// What listens to the replica: two tasks, so that nothing holds up a push of our own.
#[derive(Debug, Clone)]
pub(crate) struct Pump {
    pub(crate) replica: Replica,
    pub(crate) net: Net,
    pub(crate) book: Book,
    pub(crate) sync: Sync,
    pub(crate) gossip: Gossip,
    pub(crate) blobs: Blobs,
    pub(crate) recent: Recent,
    pub(crate) relay: Option<RelayServer>,
}

impl Pump {
    /// Follows the membership and pushes what is made here, until `stop`.
    pub(crate) async fn push(self, mut events: Receiver<Event>, stop: CancellationToken) {
        self.membership_changed().await;
        while let Some(turn) = next_turn(&mut events, &stop).await {
            // First, so that what is published into a new space finds its topic. Events that
            // were missed may have been changes of the log; the rest reconciliation carries.
            if turn.missed || turn.events.contains(&Event::AuthorityChanged) {
                self.membership_changed().await;
            }
            self.push_own(&turn.events).await;
        }
    }

    /// Tells sync what became durable, answers who asked for it, and fetches bodies, until `stop`.
    pub(crate) async fn notify(self, mut events: Receiver<Event>, stop: CancellationToken) {
        // What was redacted while nobody listened.
        self.withdraw_redacted().await;
        while let Some(turn) = next_turn(&mut events, &stop).await {
            if turn.missed {
                self.blobs.sweep();
                self.withdraw_redacted().await;
            }
            let mut answers: BTreeMap<_, Vec<Hash>> = BTreeMap::new();
            for event in turn.events {
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
                    Event::BodyGone(hash) => self.blobs.withdraw(hash).await,
                    _ => {}
                }
            }
            for (peer, ids) in answers {
                self.sync.send(&peer, kind::HELD, acks::encode(&ids).into());
            }
        }
    }

    async fn withdraw_redacted(&self) {
        let replica = self.replica.clone();
        let bodies = tokio::task::spawn_blocking(move || replica.redacted_bodies());
        for body in bodies.await.unwrap_or_default() {
            self.blobs.withdraw(body).await;
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
        let fresh = own
            .iter()
            .map(|(lane, id)| Some((*lane, self.replica.take_fresh_wire(id)?)));
        let wires = match fresh.collect() {
            Some(wires) => wires,
            None => self.read(own).await,
        };
        for (lane, wire) in wires {
            if lane != Lane::Authority {
                self.offer_body(&wire).await;
            }
            self.gossip.publish(lane, wire).await;
        }
    }

    async fn read(&self, items: Vec<(Lane, Hash)>) -> Vec<(Lane, Bytes)> {
        let replica = self.replica.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut left = MAX_PUSH_BYTES;
            let mut wires: Vec<(Lane, Bytes)> = Vec::with_capacity(items.len());
            for (lane, id) in items {
                for wire in replica.wires(lane, &[id], left) {
                    left = left.saturating_sub(wire.len());
                    wires.push((lane, wire));
                }
            }
            wires
        });
        read.await.unwrap_or_default()
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
        if let Some(relay) = &self.relay {
            relay.membership_changed();
        }
        self.book.members(other_members(&self.replica)).await;
    }
}

/// Returns the other members of our mesh; none while we are no member ourselves.
pub(crate) fn other_members(replica: &Replica) -> BTreeSet<NodeId> {
    let authority = replica.authority();
    let me = replica.node();
    let member = authority.is_member(&me);
    authority
        .members()
        .map(|other| other.node)
        .filter(|node| member && *node != me)
        .collect()
}

struct Turn {
    events: Vec<Event>,
    missed: bool,
}

/// Waits for events and takes those that are there; `None` at the end.
async fn next_turn(events: &mut Receiver<Event>, stop: &CancellationToken) -> Option<Turn> {
    let first = stop.run_until_cancelled(events.recv()).await?;
    let mut turn = Turn {
        events: Vec::with_capacity(TURN),
        missed: false,
    };
    match first {
        Ok(event) => turn.events.push(event),
        Err(RecvError::Lagged(missed)) => {
            debug!(missed, "the pump fell behind the replica");
            turn.missed = true;
        }
        Err(RecvError::Closed) => return None,
    }
    while turn.events.len() < TURN {
        match events.try_recv() {
            Ok(event) => turn.events.push(event),
            Err(TryRecvError::Lagged(_)) => turn.missed = true,
            Err(_) => break,
        }
    }
    Some(turn)
}
