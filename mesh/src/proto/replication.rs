//! Replication with every connected peer: who lacks what, and getting it there.
//!
//! One [`Replication`] per node. With each peer it reconciles the authority log first, then the
//! spaces both hold; sends what the peer lacks in bounded batches, each acknowledged once it is
//! durable; and does it again when a peer connects, every [`Config::anti_entropy`] with one peer
//! by turns, and soon after an item arrived whose predecessor or author is unknown. Gossip may
//! bring items faster; nothing here relies on it, nor on frames arriving at all, once or in order.
//!
//! The shell hands in frames and what its store did, and carries out the [`Output`]s in order.
//! Back-pressure runs through [`Input::AdmitDone`]: a peer has at most [`Config::window`] batches
//! on their way, and gets leave for the next with the acknowledgement of one. Records have a window
//! of their own, so that a flood of fragments never holds up a revocation.

mod announce;
mod frame;
pub(crate) mod fuzz;
mod greeting;
mod peer;
mod session;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId, SpaceId};
use rhizome_memory::{IdSet, Lane, Verdict};

pub use self::frame::{FrameError, MAX_FRAME_BYTES};
use self::{frame::Frame, peer::Peer};
use crate::proto::{Mono, rng::Rng};

/// What the core may see of the store.
pub trait Holdings {
    /// Returns the lanes this node holds.
    fn lanes(&self) -> Vec<Lane>;

    /// Shows the ids of one lane; `None` when the lane is not held.
    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R>;

    /// Returns items by id, in the order of `ids`, as many as fit into `max_bytes`.
    fn items(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes>;

    /// Sorts `ids` so that what an item builds on comes before it; drops unknown ones.
    ///
    /// The order of arrival will do. Ids in any other order arrive too, but a long chain then
    /// takes many sessions, because a receiver keeps only so many items that wait.
    fn causal_order(&self, lane: Lane, ids: &mut Vec<Hash>) {
        let _ = (lane, ids);
    }

    /// Says whether `peer` is entitled to the items of `lane`.
    fn may_sync(&self, peer: &NodeId, lane: Lane) -> bool {
        let _ = (peer, lane);
        true
    }
}

/// Paces and bounds; the defaults are those of production.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How often one peer, drawn anew each time, is reconciled with.
    pub anti_entropy: Mono,
    /// How long to wait for an answer before asking again.
    pub answer_timeout: Mono,
    /// How long to wait for a batch to be acknowledged before it counts as lost.
    pub ack_timeout: Mono,
    /// How soon a session follows one that found differences, once their transfer is over.
    pub follow_up: Mono,
    /// How long ids are collected before they are announced or acknowledged.
    pub announce_after: Mono,
    /// How long gossip may take for an announced item before it is asked for.
    pub fetch_after: Mono,
    /// Batches on their way to one peer: so many of records, and so many of fragments.
    pub window: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            anti_entropy: Mono::from_secs(30),
            answer_timeout: Mono::from_secs(3),
            ack_timeout: Mono::from_secs(10),
            follow_up: Mono::from_millis(250),
            announce_after: Mono::from_millis(5),
            fetch_after: Mono::from_secs(1),
            window: 4,
        }
    }
}

/// What happens to the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// A session with a peer began; one that is up already starts afresh.
    PeerUp(NodeId),
    /// The session with a peer ended.
    PeerDown(NodeId),
    /// A frame arrived.
    Frame {
        /// Who sent it.
        from: NodeId,
        /// Its bytes.
        frame: Bytes,
    },
    /// An item became durable here, however it came.
    Stored {
        /// Where it belongs.
        lane: Lane,
        /// Its id.
        id: Hash,
        /// Whether it was made on this node.
        own: bool,
    },
    /// The lanes this node holds may have changed. Authority items say so by themselves.
    LanesChanged,
    /// The store is done with a batch; due once for every [`Output::Admit`].
    AdmitDone {
        /// Who sent the batch.
        from: NodeId,
        /// Where it belongs.
        lane: Lane,
        /// The number of the batch.
        batch: u64,
        /// What became of each item, in the order of the batch.
        outcomes: Vec<ItemOutcome>,
    },
}

/// What became of a received item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// It is durable now.
    Stored,
    /// It was here already.
    Known,
    /// It waits for something that is not here.
    Waiting,
    /// Whoever sent it could have seen that it is wrong.
    Refused,
    /// It is not taken, and that is not the sender's fault: its author had no right to it, signed
    /// two histories or used up a share, or it could not be stored.
    Declined,
}

impl From<&Verdict> for ItemOutcome {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Admit | Verdict::Late(_) => Self::Stored,
            Verdict::Duplicate => Self::Known,
            Verdict::Wait(_) => Self::Waiting,
            Verdict::Reject(reason) if reason.is_senders_fault() => Self::Refused,
            _ => Self::Declined,
        }
    }
}

/// What the shell is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Send a frame of at most [`MAX_FRAME_BYTES`].
    Send {
        /// To whom.
        to: NodeId,
        /// The frame.
        frame: Bytes,
    },
    /// Check and store the items, then answer with [`Input::AdmitDone`].
    Admit {
        /// Who sent them.
        from: NodeId,
        /// Where they belong.
        lane: Lane,
        /// The number to answer with.
        batch: u64,
        /// The items.
        items: Vec<Bytes>,
    },
    /// A peer says that it holds an item durably.
    Replica {
        /// The peer.
        peer: NodeId,
        /// Where the item belongs.
        lane: Lane,
        /// The item.
        id: Hash,
    },
    /// Both sides held the same when this session compared them.
    InSync {
        /// The peer.
        peer: NodeId,
        /// What was compared.
        lane: Lane,
        /// When.
        at: Mono,
    },
    /// A peer broke the protocol: end its session.
    Misbehaved {
        /// The peer.
        peer: NodeId,
        /// How, for the log.
        what: &'static str,
    },
    /// A peer speaks no version that this node understands.
    Incompatible {
        /// The peer.
        peer: NodeId,
        /// The newest version it speaks.
        version: u8,
    },
}

/// What is known of replication with one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerState {
    /// Whether the peer has said hello.
    pub greeted: bool,
    /// The lanes both sides hold.
    pub lanes: Vec<(Lane, LaneSync)>,
}

/// What is known of one lane with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneSync {
    /// When both sides last held the same.
    pub in_sync_at: Option<Mono>,
    /// Whether a session or a transfer is under way.
    pub exchanging: bool,
    /// Items still to be sent.
    pub queued: usize,
}

/// The replication core of one node.
#[derive(Debug)]
pub struct Replication {
    node: Node,
    peers: BTreeMap<NodeId, Peer>,
    next_round: Option<Mono>,
}

/// What is the same for every peer.
#[derive(Debug)]
struct Node {
    me: NodeId,
    config: Config,
    rng: Rng,
    instance: u64,
    /// The spaces held now.
    spaces: BTreeSet<SpaceId>,
    /// Every space ever named in a hello: a peer may still speak of one that is gone.
    named: BTreeSet<SpaceId>,
}

/// What a peer's part of the core works with during one call.
struct Context<'a> {
    now: Mono,
    peer: NodeId,
    node: &'a mut Node,
    out: &'a mut Vec<Output>,
}

impl Context<'_> {
    fn send(&mut self, frame: &Frame) {
        let frame = frame.encode();
        debug_assert!(frame.len() <= MAX_FRAME_BYTES, "frames are bounded");
        self.out.push(Output::Send {
            to: self.peer,
            frame,
        });
    }
}

impl Replication {
    /// Returns the core of the node `me`. `seed` must not be known to peers and differ at every
    /// start; the simulator uses its own.
    pub fn new(me: NodeId, seed: u64, config: Config) -> Self {
        let mut rng = Rng::new("rhizome 2026-11 replication", &me, seed);
        let instance = rng.next_u64();
        let (spaces, named) = (BTreeSet::new(), BTreeSet::new());
        let node = Node {
            me,
            config,
            rng,
            instance,
            spaces,
            named,
        };
        Self {
            node,
            peers: BTreeMap::new(),
            next_round: None,
        }
    }

    /// Applies `input` as of `now` and returns what to do, in order.
    pub fn handle(&mut self, now: Mono, input: Input, held: &impl Holdings) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::PeerUp(peer) if peer == self.node.me => {}
            Input::PeerUp(peer) => {
                self.lanes_changed(now, held, &mut out);
                self.peers.insert(peer, Peer::new(now, &mut self.node.rng));
                if self.next_round.is_none() {
                    self.next_round = Some(now + self.next_wait());
                }
                self.with_peer(now, peer, &mut out, |peer, cx| {
                    peer.share(cx, held);
                    peer.drive(cx, held);
                });
            }
            Input::PeerDown(peer) => {
                self.peers.remove(&peer);
                if self.peers.is_empty() {
                    self.next_round = None;
                }
            }
            Input::Frame { from, frame } => {
                self.with_peer(now, from, &mut out, |peer, cx| {
                    peer.frame(cx, &frame, held);
                    peer.drive(cx, held);
                });
            }
            Input::Stored { lane, id, own } => {
                if lane == Lane::Authority {
                    self.lanes_changed(now, held, &mut out);
                }
                self.with_all(now, &mut out, |peer, cx| {
                    peer.stored(cx, lane, id, own);
                    if own && lane == Lane::Authority {
                        peer.push_record(cx, id, held);
                    }
                });
            }
            Input::LanesChanged => self.lanes_changed(now, held, &mut out),
            Input::AdmitDone {
                from,
                lane,
                batch,
                outcomes,
            } => {
                self.with_peer(now, from, &mut out, |peer, cx| {
                    peer.admitted(cx, lane, batch, &outcomes);
                    peer.drive(cx, held);
                });
            }
        }
        out
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Mono, held: &impl Holdings) -> Vec<Output> {
        let mut out = Vec::new();
        if self.next_round.is_some_and(|at| at <= now) {
            self.lanes_changed(now, held, &mut out);
            self.next_round = Some(now + self.next_wait());
            let greeted: Vec<NodeId> = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.is_greeted())
                .map(|(id, _)| *id)
                .collect();
            if !greeted.is_empty() {
                let drawn = greeted[self.node.rng.below(greeted.len())];
                self.with_peer(now, drawn, &mut out, |peer, cx| peer.reconcile_all(cx));
            }
        }
        let due = |peer: &Peer| peer.deadline(&self.node.config).is_some_and(|at| at <= now);
        let due: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, peer)| due(peer))
            .map(|(id, _)| *id)
            .collect();
        for peer in due {
            self.with_peer(now, peer, &mut out, |peer, cx| peer.drive(cx, held));
        }
        out
    }

    /// Returns when [`Self::handle_timeout`] is next due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let peers = self
            .peers
            .values()
            .filter_map(|peer| peer.deadline(&self.node.config));
        peers.chain(self.next_round).min()
    }

    /// Returns what is known of replication with `peer`; `None` unless it is connected.
    pub fn peer_state(&self, peer: &NodeId) -> Option<PeerState> {
        self.peers.get(peer).map(Peer::state)
    }

    /// Returns the connected peers.
    pub fn peers(&self) -> impl Iterator<Item = &NodeId> {
        self.peers.keys()
    }

    fn next_wait(&mut self) -> Mono {
        self.node.rng.jitter(self.node.config.anti_entropy)
    }

    fn lanes_changed(&mut self, now: Mono, held: &impl Holdings, out: &mut Vec<Output>) {
        let space = |lane| match lane {
            Lane::Space(space) => Some(space),
            Lane::Authority => None,
        };
        let spaces: BTreeSet<SpaceId> = held
            .lanes()
            .into_iter()
            .filter_map(space)
            .take(frame::MAX_SPACES)
            .collect();
        if spaces != self.node.spaces {
            self.node.named.extend(&spaces);
            self.node.spaces = spaces;
        }
        // Even with the same spaces, a grant may have entitled a peer to one of them.
        self.with_all(now, out, |peer, cx| {
            peer.share(cx, held);
            peer.drive(cx, held);
        });
    }

    fn with_peer(
        &mut self,
        now: Mono,
        id: NodeId,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Peer, &mut Context<'_>),
    ) {
        if let Some(peer) = self.peers.get_mut(&id) {
            f(
                peer,
                &mut Context {
                    now,
                    peer: id,
                    node: &mut self.node,
                    out,
                },
            );
        }
    }

    fn with_all(
        &mut self,
        now: Mono,
        out: &mut Vec<Output>,
        mut f: impl FnMut(&mut Peer, &mut Context<'_>),
    ) {
        for (id, peer) in &mut self.peers {
            f(
                peer,
                &mut Context {
                    now,
                    peer: *id,
                    node: &mut self.node,
                    out,
                },
            );
        }
    }
}
