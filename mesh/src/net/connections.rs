//! Every live connection of this node, so that one peer has one per protocol and none outlives
//! its membership.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use iroh::endpoint::{Connection, Side, VarInt, WeakConnectionHandle};

use rhizome_identity::NodeId;

use crate::net::ids::node_of_endpoint;

/// How long two connections between the same nodes may pass for one simultaneous dial.
///
/// The dial timeout: whoever dials later than this has lost the older connection.
const SIMULTANEOUS_DIAL: Duration = Duration::from_secs(10);

/// Says whether a node is a member of our mesh right now.
pub(crate) type Membership = Arc<dyn Fn(&NodeId) -> bool + Send + Sync>;

/// Why a connection was closed, as an application error code of QUIC (`docs/wire.md`, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The work is done, or the node shuts down.
    Done = 0,
    /// The other side is not a member of the mesh, or no longer one.
    NotAMember = 1,
    /// Another connection between the same two nodes does the work of this one.
    Duplicate = 2,
    /// The other side broke the protocol.
    Misbehaved = 3,
    /// The other side did not read or answer in time.
    TooSlow = 4,
    /// Too many requests at once.
    Busy = 5,
}

impl Close {
    /// Closes `connection` with this code and its name.
    pub(crate) fn apply(self, connection: &Connection) {
        connection.close(self.code(), self.reason());
    }

    /// Returns the QUIC application error code.
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    /// Returns the words that travel with the code.
    pub(crate) fn reason(self) -> &'static [u8] {
        match self {
            Self::Done => b"done",
            Self::NotAMember => b"not a member",
            Self::Duplicate => b"duplicate connection",
            Self::Misbehaved => b"protocol violation",
            Self::TooSlow => b"too slow",
            Self::Busy => b"busy",
        }
    }
}

/// Protocols that keep one connection per peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    /// The libp2p swarm.
    Gossip,
    /// Reconciliation and what rides beside it.
    Sync,
}

#[derive(Debug)]
struct Claim {
    connection: WeakConnectionHandle,
    stable_id: usize,
    dialled_by_us: bool,
    since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    claims: BTreeMap<(NodeId, Protocol), Claim>,
    all: BTreeMap<NodeId, Vec<WeakConnectionHandle>>,
}

/// The table of live connections; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    me: NodeId,
    table: Arc<Mutex<Table>>,
}

impl Connections {
    /// Makes the empty table of node `me`.
    pub(crate) fn new(me: NodeId) -> Self {
        Self {
            me,
            table: Arc::default(),
        }
    }

    /// Notes a connection whose handshake has completed, whatever its protocol.
    pub(crate) fn note(&self, connection: &Connection) {
        let peer = node_of_endpoint(&connection.remote_id());
        let mut table = self.lock();
        let known = table.all.entry(peer).or_default();
        known.retain(is_open);
        known.push(connection.weak_handle());
    }

    /// Claims `connection` as the one that serves `protocol` with its peer.
    ///
    /// Of two connections that the nodes dialled at the same time, the one dialled by the node
    /// with the lower id stays, so both sides choose alike. A later one replaces an earlier one:
    /// its dialler has lost the other. Returns `false`, and closes `connection`, when it loses.
    pub(crate) fn claim(&self, protocol: Protocol, connection: &Connection) -> bool {
        let peer = node_of_endpoint(&connection.remote_id());
        let dialled_by_us = connection.side() == Side::Client;
        let now = Instant::now();
        let mut table = self.lock();
        if let Some(old) = table.claims.get(&(peer, protocol))
            && old.stable_id != connection.stable_id()
            && let Some(open) = old
                .connection
                .upgrade()
                .filter(|c| c.close_reason().is_none())
        {
            let rival = Rival {
                old_dialled_by_us: old.dialled_by_us,
                new_dialled_by_us: dialled_by_us,
                old_age: now.saturating_duration_since(old.since),
                ours_preferred: self.me < peer,
            };
            let loser = if rival.new_wins() { &open } else { connection };
            Close::Duplicate.apply(loser);
            if !rival.new_wins() {
                return false;
            }
        }
        table.claims.insert(
            (peer, protocol),
            Claim {
                connection: connection.weak_handle(),
                stable_id: connection.stable_id(),
                dialled_by_us,
                since: now,
            },
        );
        true
    }

    /// Returns the open connections with `peer`.
    pub(crate) fn of(&self, peer: &NodeId) -> Vec<Connection> {
        self.lock()
            .all
            .get(peer)
            .into_iter()
            .flatten()
            .filter_map(WeakConnectionHandle::upgrade)
            .filter(|connection| connection.close_reason().is_none())
            .collect()
    }

    /// Closes every connection with a node for which `keep` is false, joins in progress excepted.
    pub(crate) fn retain(&self, keep: impl Fn(&NodeId) -> bool) {
        let mut table = self.lock();
        table.all.retain(|peer, connections| {
            connections.retain(is_open);
            if !keep(peer) {
                for connection in connections.iter().filter_map(WeakConnectionHandle::upgrade) {
                    if connection.alpn() != crate::net::endpoint::JOIN_ALPN {
                        Close::NotAMember.apply(&connection);
                    }
                }
            }
            !connections.is_empty()
        });
        table.claims.retain(|_, claim| is_open(&claim.connection));
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No section below the lock can leave the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_open(handle: &WeakConnectionHandle) -> bool {
    handle
        .upgrade()
        .is_some_and(|connection| connection.close_reason().is_none())
}

/// Two open connections of one protocol with one peer.
struct Rival {
    old_dialled_by_us: bool,
    new_dialled_by_us: bool,
    old_age: Duration,
    ours_preferred: bool,
}

impl Rival {
    fn new_wins(&self) -> bool {
        self.old_dialled_by_us == self.new_dialled_by_us
            || self.old_age > SIMULTANEOUS_DIAL
            || self.new_dialled_by_us == self.ours_preferred
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rival(old_ours: bool, new_ours: bool, age_s: u64, ours_preferred: bool) -> Rival {
        Rival {
            old_dialled_by_us: old_ours,
            new_dialled_by_us: new_ours,
            old_age: Duration::from_secs(age_s),
            ours_preferred,
        }
    }

    #[test]
    fn both_sides_of_a_simultaneous_dial_keep_the_same_connection() {
        // The low node saw its own dial first, the high node saw its own first: each then meets
        // the other connection. `x` is dialled by low, `y` by high.
        let low_keeps_new_y = rival(true, false, 0, true).new_wins();
        let high_keeps_new_x = rival(true, false, 0, false).new_wins();
        assert!(!low_keeps_new_y && high_keeps_new_x, "x survives on both");
        let low_keeps_new_x = rival(false, true, 0, true).new_wins();
        let high_keeps_new_y = rival(false, true, 0, false).new_wins();
        assert!(low_keeps_new_x && !high_keeps_new_y, "x survives on both");
    }

    #[test]
    fn a_restarted_peer_replaces_its_old_connection() {
        assert!(rival(false, false, 0, true).new_wins());
        assert!(rival(true, false, 11, true).new_wins());
    }
}
