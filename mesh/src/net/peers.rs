//! Who is there, who is gone since when, and over which path.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use iroh::{TransportAddr, endpoint::Connection};
use rhizome_identity::{NodeId, Role};
use rhizome_memory::Lane;
use serde::Serialize;
use tokio::sync::watch;

/// Whether a node can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// There is a live session with it.
    Connected,
    /// There was one.
    Gone,
    /// There never was one.
    Never,
}

/// How packets travel to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Straight over UDP.
    Direct,
    /// Through a relay.
    Relayed,
}

/// The path that is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeerPath {
    /// Direct or relayed.
    pub kind: PathKind,
    /// The peer's socket address, or the relay's URL.
    pub addr: String,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The member that serves the relay, if the path leads through one.
    pub relay: Option<NodeId>,
    /// Why the path is not direct.
    pub why: Option<NotDirect>,
}

/// Why no packets travel to a peer directly, as far as this node can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotDirect {
    /// The session is young.
    #[error("direct paths are being tried")]
    Trying,
    /// It tells no address.
    #[error("it tells no address of its own")]
    NoAddress,
    /// All its addresses lie in private networks in which this node has none.
    #[error("all its addresses are of a private network that this node is not in")]
    Private,
    /// Packets to its addresses get no answer.
    #[error("no answer at its addresses: a firewall, or NAT that gives each peer another port")]
    NoAnswer,
}

/// How long a direct path may take to come up once there is a relayed one, in milliseconds.
const TRYING_MS: u64 = 10_000;

impl NotDirect {
    /// Returns the reason for which a node at `own` has no path to `theirs` after `since_ms`.
    pub(crate) fn of(own: &[SocketAddr], theirs: &[SocketAddr], since_ms: u64) -> Self {
        let shares_network = |addr: &SocketAddr| match private_network(addr.ip()) {
            None => true,
            network => own.iter().any(|own| private_network(own.ip()) == network),
        };
        if theirs.is_empty() {
            Self::NoAddress
        } else if !theirs.iter().any(shares_network) {
            Self::Private
        } else if since_ms < TRYING_MS {
            Self::Trying
        } else {
            Self::NoAnswer
        }
    }
}

/// Returns the network that an address belongs to if it is private: the first 24 bits of an IPv4
/// address, the first 64 of an IPv6 address.
fn private_network(ip: IpAddr) -> Option<(bool, u64)> {
    match ip {
        IpAddr::V4(ip) => {
            let private = ip.is_private() || ip.is_loopback() || ip.is_link_local();
            private.then(|| (true, u64::from(ip.to_bits() >> 8)))
        }
        IpAddr::V6(ip) => {
            let private = ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local();
            let bits = u64::try_from(ip.to_bits() >> 64).expect("the upper half fits");
            private.then_some((false, bits))
        }
    }
}

/// How far a lane is in step with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncState {
    /// Not compared since the session began.
    Pending,
    /// Both sides held the same set at this time.
    InSync {
        /// Unix milliseconds.
        at_ms: u64,
    },
}

/// One other member of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its role in the mesh.
    pub role: Role,
    /// Whether it can be reached.
    pub state: PeerState,
    /// Since when it is in this state, in unix milliseconds; `None` for [`PeerState::Never`].
    pub since_ms: Option<u64>,
    /// When it was last connected, in unix milliseconds.
    pub last_seen_ms: Option<u64>,
    /// The path in use, while connected.
    pub path: Option<PeerPath>,
    /// Where it can be dialled, as last heard.
    pub addrs: Vec<SocketAddr>,
    /// The URL of the relay that it serves, as last heard.
    pub relay: Option<String>,
    /// Its version, as last heard.
    pub version: String,
    /// How far each lane is in step with it.
    pub sync: Vec<(Lane, SyncState)>,
    /// UDP bytes sent to and received from it over its open connections.
    pub bytes: PeerBytes,
}

/// Traffic with one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PeerBytes {
    /// UDP bytes sent.
    pub sent: u64,
    /// UDP bytes received.
    pub received: u64,
}

/// What a session's beginnings and ends tell about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) state: PeerState,
    pub(crate) since_ms: u64,
    pub(crate) last_seen_ms: u64,
}

/// The sightings and sync states of all peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    table: Mutex<BTreeMap<NodeId, Record>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Record {
    sighting: Option<Sighting>,
    sync: BTreeMap<Lane, u64>,
}

impl Peers {
    /// Returns a counter of changes.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A session with `peer` began.
    pub(crate) fn up(&self, peer: NodeId, now_ms: u64) {
        self.change(|table| {
            let record = table.entry(peer).or_default();
            record.sync.clear();
            record.sighting = Some(Sighting {
                state: PeerState::Connected,
                since_ms: now_ms,
                last_seen_ms: now_ms,
            });
        });
    }

    /// The last session with `peer` ended.
    pub(crate) fn down(&self, peer: NodeId, now_ms: u64) {
        self.change(|table| {
            let record = table.entry(peer).or_default();
            record.sighting = Some(Sighting {
                state: PeerState::Gone,
                since_ms: now_ms,
                last_seen_ms: now_ms,
            });
        });
    }

    /// `peer` was last seen by an earlier run of this node.
    pub(crate) fn remember(&self, peer: NodeId, last_seen_ms: u64) {
        self.with(|table| {
            let record = table.entry(peer).or_default();
            record.sighting.get_or_insert(Sighting {
                state: PeerState::Gone,
                since_ms: last_seen_ms,
                last_seen_ms,
            });
        });
    }

    /// `lane` was compared with `peer` and is equal on both sides.
    pub(crate) fn in_sync(&self, peer: NodeId, lane: Lane, now_ms: u64) {
        self.change(|table| {
            table.entry(peer).or_default().sync.insert(lane, now_ms);
        });
    }

    /// Returns what is known of `peer`, and the state of each of `lanes`.
    pub(crate) fn of(
        &self,
        peer: &NodeId,
        lanes: &[Lane],
    ) -> (Option<Sighting>, Vec<(Lane, SyncState)>) {
        self.with(|table| {
            let record = table.get(peer);
            let sync = lanes
                .iter()
                .map(|lane| {
                    let at = record.and_then(|record| record.sync.get(lane));
                    let state = at.map_or(SyncState::Pending, |at_ms| SyncState::InSync {
                        at_ms: *at_ms,
                    });
                    (*lane, state)
                })
                .collect();
            (record.and_then(|record| record.sighting), sync)
        })
    }

    fn change(&self, f: impl FnOnce(&mut BTreeMap<NodeId, Record>)) {
        self.with(f);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<NodeId, Record>) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the selected path and the traffic of a peer's open connections.
pub(crate) fn measure(connections: &[Connection]) -> (Option<PeerPath>, PeerBytes) {
    let mut bytes = PeerBytes::default();
    let mut selected: Option<PeerPath> = None;
    for connection in connections {
        for path in connection.paths().iter() {
            let stats = path.stats();
            bytes.sent += stats.udp_tx.bytes;
            bytes.received += stats.udp_rx.bytes;
            if !path.is_selected() {
                continue;
            }
            let (kind, addr) = match path.remote_addr() {
                TransportAddr::Ip(addr) => (PathKind::Direct, addr.to_string()),
                TransportAddr::Relay(url) => (PathKind::Relayed, url.to_string()),
                _ => continue,
            };
            let rtt = path.rtt();
            if selected.as_ref().is_none_or(|best| rtt < best.rtt) {
                selected = Some(PeerPath {
                    kind,
                    addr,
                    rtt,
                    relay: None,
                    why: None,
                });
            }
        }
    }
    (selected, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_what_can_be_seen_from_here() {
        let addrs = |list: &[&str]| -> Vec<SocketAddr> {
            list.iter().map(|addr| addr.parse().unwrap()).collect()
        };
        let own = addrs(&["192.168.7.2:1", "[fd00:1::2]:1"]);
        let why = |theirs: &[&str], since_ms| NotDirect::of(&own, &addrs(theirs), since_ms);
        assert_eq!(why(&[], 60_000), NotDirect::NoAddress);
        assert_eq!(
            why(&["192.168.8.2:1", "[fe80::1]:1"], 0),
            NotDirect::Private
        );
        assert_eq!(why(&["192.168.7.9:1"], 60_000), NotDirect::NoAnswer);
        assert_eq!(why(&["[fd00:1::9]:1"], 60_000), NotDirect::NoAnswer);
        assert_eq!(why(&["10.0.0.1:1", "203.0.113.7:1"], 0), NotDirect::Trying);
        assert_eq!(why(&["203.0.113.7:1"], 60_000), NotDirect::NoAnswer);
    }
}
