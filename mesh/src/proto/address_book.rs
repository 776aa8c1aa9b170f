//! Whom to dial, and when to try again.
//!
//! Every member whose address is known stays in the book until it is forgotten: after a partition
//! of any length its nodes find each other again without a human act. A peer is dialled at most
//! once at a time; a failed dial doubles the wait up to a cap, and every wait is jittered, so that
//! a healed partition does not bring everyone back in the same instant.

use std::collections::BTreeMap;

use rhizome_identity::NodeId;
use serde::{Deserialize, Serialize};

use crate::proto::{Mono, rng::Rng};

/// The wait after the first failed dial.
const FIRST_RETRY: Mono = Mono::from_millis(500);
/// The longest wait between two dials of one peer, before jitter.
const LAST_RETRY: Mono = Mono::from_secs(60);
/// The wait after a session that ended: the other side may be restarting, or dialling us.
const AFTER_DOWN: Mono = Mono::from_millis(250);
/// A shorter session does not reset the wait: a peer that hangs up at once would otherwise be
/// dialled for ever at the pace of [`AFTER_DOWN`].
const LASTING: Mono = Mono::from_secs(10);
/// How long a dial may go unanswered by the shell before it counts as failed.
const DIAL_LOST: Mono = Mono::from_secs(60);
/// Most peers dialled at once; the others wait their turn.
const MAX_DIALLING: usize = 16;

/// What the book is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// This peer's address is known.
    Known(NodeId),
    /// This peer is no longer a member.
    Forget(NodeId),
    /// This peer's address changed, or it was seen on the local network: worth trying at once.
    Moved(NodeId),
    /// A session with this peer began, whoever dialled.
    Up(NodeId),
    /// The session with this peer ended.
    Down(NodeId),
    /// A dial failed.
    DialFailed(NodeId),
}

/// What the book asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Dial this peer; answer with [`Input::Up`] or [`Input::DialFailed`].
    Dial(NodeId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting { until: Mono },
    Dialling { since: Mono },
    Connected { since: Mono },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Dials that failed since the last lasting session.
    failures: u32,
}

/// What is worth keeping of one peer over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPeer {
    /// The peer.
    pub node: NodeId,
    /// Dials that failed since the last lasting session.
    pub failures: u32,
}

/// When to dial each known peer.
#[derive(Debug)]
pub struct AddressBook {
    me: NodeId,
    rng: Rng,
    peers: BTreeMap<NodeId, Entry>,
}

impl AddressBook {
    /// Returns an empty book of the node `me`.
    pub fn new(me: NodeId, seed: u64) -> Self {
        let rng = Rng::new("rhizome 2026-11 address book", &me, seed);
        Self {
            me,
            rng,
            peers: BTreeMap::new(),
        }
    }

    /// Returns what [`Self::restore`] takes after a restart.
    pub fn save(&self) -> Vec<SavedPeer> {
        let entries = self.peers.iter();
        entries
            .map(|(node, entry)| SavedPeer {
                node: *node,
                failures: entry.failures,
            })
            .collect()
    }

    /// Takes up the peers of an earlier run: each is dialled soon, those that failed often later.
    pub fn restore(&mut self, now: Mono, saved: Vec<SavedPeer>) -> Vec<Output> {
        for SavedPeer { node, failures } in saved {
            if node != self.me && !self.peers.contains_key(&node) {
                // A restart is news: even a peer that was long away gets one early dial.
                let failures = failures.min(3);
                let wait = if failures == 0 {
                    Mono::ZERO
                } else {
                    self.wait(failures)
                };
                let state = State::Waiting { until: now + wait };
                self.peers.insert(node, Entry { state, failures });
            }
        }
        self.handle_timeout(now)
    }

    /// Applies `input` as of `now` and returns whom to dial.
    pub fn handle(&mut self, now: Mono, input: Input) -> Vec<Output> {
        match input {
            Input::Known(peer) => self.known(now, peer, false),
            Input::Moved(peer) => self.known(now, peer, true),
            Input::Forget(peer) => {
                self.peers.remove(&peer);
            }
            Input::Up(peer) => {
                if let Some(entry) = self.peers.get_mut(&peer) {
                    entry.state = State::Connected { since: now };
                }
            }
            Input::Down(peer) => self.down(now, &peer),
            Input::DialFailed(peer) => self.failed(now, &peer),
        }
        self.handle_timeout(now)
    }

    /// Returns whom to dial now that `now` is reached.
    pub fn handle_timeout(&mut self, now: Mono) -> Vec<Output> {
        let overdue = |entry: &Entry| entry.dial_lost().is_some_and(|at| at <= now);
        let lost: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, entry)| overdue(entry))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in lost {
            self.failed(now, &peer);
        }
        let mut due: Vec<(Mono, NodeId)> = self
            .peers
            .iter()
            .filter_map(|(peer, entry)| match entry.state {
                State::Waiting { until } if until <= now => Some((until, *peer)),
                _ => None,
            })
            .collect();
        // Those due longest go first, so that nobody starves behind the cap.
        due.sort_unstable();
        due.truncate(MAX_DIALLING.saturating_sub(self.dialling()));
        for (_, peer) in &due {
            let entry = self.peers.get_mut(peer).expect("taken from the book above");
            entry.state = State::Dialling { since: now };
        }
        due.into_iter()
            .map(|(_, peer)| Output::Dial(peer))
            .collect()
    }

    /// Returns when [`Self::handle_timeout`] is next due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let full = self.dialling() >= MAX_DIALLING;
        self.peers
            .values()
            .filter_map(|entry| match entry.state {
                // With all slots taken only the end of a dial lets the next one start.
                State::Waiting { until } => (!full).then_some(until),
                State::Dialling { .. } => entry.dial_lost(),
                State::Connected { .. } => None,
            })
            .min()
    }

    /// Returns the known peers.
    pub fn peers(&self) -> impl Iterator<Item = &NodeId> {
        self.peers.keys()
    }

    fn dialling(&self) -> usize {
        self.peers
            .values()
            .filter(|entry| entry.dial_lost().is_some())
            .count()
    }

    fn known(&mut self, now: Mono, peer: NodeId, at_once: bool) {
        if peer == self.me {
            return;
        }
        let fresh = Entry {
            state: State::Waiting { until: now },
            failures: 0,
        };
        let entry = self.peers.entry(peer).or_insert(fresh);
        if at_once && matches!(entry.state, State::Waiting { .. }) {
            *entry = fresh;
        }
    }

    fn down(&mut self, now: Mono, peer: &NodeId) {
        let Some(entry) = self.peers.get(peer) else {
            return;
        };
        let State::Connected { since } = entry.state else {
            return;
        };
        let lasted = now.saturating_sub(since) >= LASTING;
        let failures = if lasted {
            0
        } else {
            entry.failures.saturating_add(1)
        };
        let wait = if lasted {
            self.rng.jitter(AFTER_DOWN)
        } else {
            self.wait(failures)
        };
        let state = State::Waiting { until: now + wait };
        self.peers.insert(*peer, Entry { state, failures });
    }

    fn failed(&mut self, now: Mono, peer: &NodeId) {
        let Some(entry) = self.peers.get(peer) else {
            return;
        };
        if !matches!(entry.state, State::Dialling { .. }) {
            return;
        }
        let failures = entry.failures.saturating_add(1);
        let state = State::Waiting {
            until: now + self.wait(failures),
        };
        self.peers.insert(*peer, Entry { state, failures });
    }

    fn wait(&mut self, failures: u32) -> Mono {
        let doubled = FIRST_RETRY * 2_u32.pow(failures.saturating_sub(1).min(10));
        self.rng.jitter(doubled.min(LAST_RETRY))
    }
}

impl Entry {
    fn dial_lost(&self) -> Option<Mono> {
        match self.state {
            State::Dialling { since } => Some(since + DIAL_LOST),
            _ => None,
        }
    }
}
