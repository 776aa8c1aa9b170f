//! The one iroh endpoint: what it binds, how it finds peers, and whom it lets in.
//!
//! No public infrastructure is configured: no relay, no DNS, no pkarr. Addresses come from
//! invites, the address book, other members and, unless switched off, mDNS on the local network;
//! relays are those that members serve, and the endpoint starts with none.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use iroh::{
    Endpoint, EndpointAddr, NetReportConfig, RelayConfig, RelayMap, RelayMode, RelayUrl, SecretKey,
    address_lookup::memory::MemoryLookup,
    endpoint::{
        AfterHandshakeOutcome, BeforeConnectOutcome, Connection, EndpointHooks,
        QuicTransportConfig, presets,
    },
};
use iroh_mdns_address_lookup::MdnsAddressLookup;
use rhizome_identity::{NodeId, NodeKey};
use tracing::{debug, warn};

use crate::net::{
    StartError,
    connections::{Close, Connections, Membership},
    ids::{endpoint_of_node, node_of_endpoint},
};

/// The libp2p swarm: gossip.
pub(crate) const GOSSIP_ALPN: &[u8] = b"/rhizome/libp2p/1";
/// Reconciliation, address exchange and replica acknowledgements.
pub(crate) const SYNC_ALPN: &[u8] = b"/rhizome/sync/1";
/// Control: what nodes ask of each other.
pub(crate) const CTL_ALPN: &[u8] = b"/rhizome/ctl/1";
/// Redeeming an invite: the only protocol that a stranger may speak.
pub(crate) const JOIN_ALPN: &[u8] = b"/rhizome/join/1";

/// A peer that is silent for this long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Three keep-alives fit into the idle timeout, so that one lost packet closes nothing.
const KEEP_ALIVE: Duration = Duration::from_millis(2_500);
/// How much longer the laziest node waits.
const KEEP_ALIVE_SPREAD: Duration = Duration::from_millis(765);
/// The service name of our mDNS announcements, apart from iroh's own.
const MDNS_SERVICE: &str = "rhizome1";

/// The endpoint with what feeds and guards it.
#[derive(Debug, Clone)]
pub(crate) struct Net {
    pub(crate) endpoint: Endpoint,
    pub(crate) lookup: MemoryLookup,
    pub(crate) connections: Connections,
}

/// Binds the endpoint of `key` to `bind` and guards it with `members`.
pub(crate) async fn bind(
    key: &NodeKey,
    bind: SocketAddr,
    mdns: bool,
    members: Membership,
) -> Result<Net, StartError> {
    let connections = Connections::new(key.id());
    let lookup = MemoryLookup::with_provenance("address-book");
    let idle = IDLE_TIMEOUT.try_into().expect("ten seconds fit a VarInt");
    let keep_alive = keep_alive(&key.id());
    let transport = QuicTransportConfig::builder()
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(keep_alive)
        .default_path_keep_alive_interval(keep_alive)
        .default_path_max_idle_timeout(IDLE_TIMEOUT)
        .build();
    let endpoint = Endpoint::builder(presets::Minimal)
        .secret_key(SecretKey::from_bytes(&key.secret_bytes()))
        .transport_config(transport)
        .address_lookup(lookup.clone())
        .relay_mode(RelayMode::Custom(RelayMap::empty()))
        .net_report_config(net_report())
        .hooks(MembersOnly {
            members,
            connections: connections.clone(),
        })
        .clear_ip_transports()
        .bind_addr(bind)
        .map_err(|e| StartError::bind(bind, e))?
        .bind()
        .await
        .map_err(|e| StartError::bind(bind, e))?;
    if mdns {
        announce(&endpoint);
    }
    Ok(Net {
        endpoint,
        lookup,
        connections,
    })
}

/// Returns how the endpoint looks for the best relay: by asking each how far away it is.
fn net_report() -> NetReportConfig {
    let mut config = NetReportConfig::default();
    // A request to a port that no member has announced.
    config.captive_portal_check = false;
    config
}

/// Returns after how long a silence `node` sends a keep-alive.
///
/// Nodes differ in it: what one sends starts the other's silence anew, so that of two nodes only
/// one keeps their connection alive.
fn keep_alive(node: &NodeId) -> Duration {
    let share = u32::from(node.as_bytes()[0]);
    KEEP_ALIVE + KEEP_ALIVE_SPREAD * share / u32::from(u8::MAX)
}

/// Joins mDNS; a network that forbids it costs LAN discovery and nothing else.
fn announce(endpoint: &Endpoint) {
    let built = MdnsAddressLookup::builder()
        .advertise(true)
        .service_name(MDNS_SERVICE)
        .build(endpoint.id());
    match (built, endpoint.address_lookup()) {
        (Ok(mdns), Ok(lookups)) => lookups.add(mdns),
        (Err(error), _) => {
            warn!(%error, "no mDNS on this network; peers are found by invite and address book");
        }
        (_, Err(error)) => debug!(%error, "the endpoint closed before mDNS started"),
    }
}

impl Net {
    /// Returns this node.
    pub(crate) fn me(&self) -> NodeId {
        node_of_endpoint(&self.endpoint.id())
    }

    /// Returns the addresses at which this node can be dialled, bound ones first.
    pub(crate) fn local_addrs(&self) -> Vec<SocketAddr> {
        let mut addrs: Vec<SocketAddr> = self
            .endpoint
            .bound_sockets()
            .into_iter()
            .filter(|addr| !addr.ip().is_unspecified())
            .collect();
        for addr in self.endpoint.addr().ip_addrs() {
            if !addrs.contains(addr) {
                addrs.push(*addr);
            }
        }
        addrs
    }

    /// Tells iroh where `node` was last known to be, and through which relays it may be reached;
    /// replaces what it knew before.
    pub(crate) fn set_addrs<'a>(
        &self,
        node: &NodeId,
        addrs: &[SocketAddr],
        relays: impl IntoIterator<Item = &'a str>,
    ) {
        if let Some(addr) = endpoint_addr(node, addrs, relays) {
            self.lookup.set_endpoint_info(addr);
        }
    }

    /// Takes the relay at `url` into use, with a token if it is to be shown one.
    pub(crate) async fn use_relay(&self, url: &str, token: Option<String>) {
        let Ok(url) = url.parse::<RelayUrl>() else {
            debug!(url, "a member announces a relay at what is no URL");
            return;
        };
        // No address discovery of its own: it would need a certificate for the relay's name.
        let mut config = RelayConfig::new(url.clone(), None);
        if let Some(token) = token {
            config = config.with_auth_token(token);
        }
        self.endpoint.insert_relay(url, Arc::new(config)).await;
    }

    /// Uses the relay at `url` no more.
    pub(crate) async fn leave_relay(&self, url: &str) {
        if let Ok(url) = url.parse::<RelayUrl>() {
            self.endpoint.remove_relay(&url).await;
        }
    }

    /// Dials `node` at its known addresses.
    pub(crate) async fn connect(
        &self,
        node: &NodeId,
        alpn: &[u8],
        within: Duration,
    ) -> Result<Connection, DialError> {
        let id = endpoint_of_node(node).ok_or(DialError::NotAKey)?;
        let dial = self.endpoint.connect(EndpointAddr::new(id), alpn);
        match tokio::time::timeout(within, dial).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(DialError::Failed(io::Error::other(error))),
            Err(_) => Err(DialError::TimedOut(within)),
        }
    }
}

/// Returns how iroh dials `node`; `None` when its bytes are not a point of the curve.
pub(crate) fn endpoint_addr<'a>(
    node: &NodeId,
    addrs: &[SocketAddr],
    relays: impl IntoIterator<Item = &'a str>,
) -> Option<EndpointAddr> {
    let mut addr = EndpointAddr::new(endpoint_of_node(node)?);
    for ip in addrs {
        addr = addr.with_ip_addr(*ip);
    }
    for url in relays.into_iter().filter_map(|url| url.parse().ok()) {
        addr = addr.with_relay_url(url);
    }
    Some(addr)
}

/// Why a dial came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DialError {
    /// The node id is not a point of the curve, so nobody can hold its key.
    #[error("the node id is not an ed25519 key")]
    NotAKey,
    /// No address answered, or the handshake failed.
    #[error("cannot connect")]
    Failed(#[source] io::Error),
    /// Nothing answered in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// Lets members in on every protocol and strangers on the join protocol alone.
struct MembersOnly {
    members: Membership,
    connections: Connections,
}

impl std::fmt::Debug for MembersOnly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MembersOnly").finish_non_exhaustive()
    }
}

impl EndpointHooks for MembersOnly {
    async fn before_connect(&self, remote: &EndpointAddr, alpn: &[u8]) -> BeforeConnectOutcome {
        if alpn == JOIN_ALPN || (self.members)(&node_of_endpoint(&remote.id)) {
            BeforeConnectOutcome::Accept
        } else {
            BeforeConnectOutcome::Reject
        }
    }

    async fn after_handshake(&self, connection: &Connection) -> AfterHandshakeOutcome {
        let peer = node_of_endpoint(&connection.remote_id());
        if connection.alpn() != JOIN_ALPN && !(self.members)(&peer) {
            debug!(peer = %peer.fmt_short(), "refused a connection of a non-member");
            return AfterHandshakeOutcome::Reject {
                error_code: Close::NotAMember.code(),
                reason: Close::NotAMember.reason().to_vec(),
            };
        }
        self.connections.note(connection);
        AfterHandshakeOutcome::accept()
    }
}
