//! The network shell of a node: one iroh endpoint, and the tasks that drive the cores over it.
//!
//! - `endpoint`: the iroh endpoint, whom it lets in, and how it finds peers
//! - `transport`, `gossip`: a libp2p swarm over iroh connections; pushes what is new
//! - `sync`: one session per peer; reconciliation, addresses, acknowledgements
//! - `join`: redeems invites
//! - `relay`: carries packets for members who have no direct path
//! - `book`: where members were last seen, and dialling them again
//! - `blobs`: bodies over 64 KiB, and files that the node offers by hash
//! - `ctl`: byte streams for what nodes ask of each other
//! - `pump`: carries what the replica says to all of these
//!
//! Every task ends with one cancellation token. Whatever a peer sends may be wrong: it costs that
//! peer its session, and is logged at debug level at most.

mod accept;
mod acks;
mod blobs;
mod book;
mod connections;
mod ctl;
mod endpoint;
mod error;
mod frame;
pub(crate) mod fuzz;
mod gossip;
mod ids;
mod join;
mod peers;
mod pump;
mod relay;
mod sync;
mod transport;
mod verdict;

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_identity::{Hash, Invite, NodeId, NodeKey, SpaceId};
use rhizome_memory::{FragmentId, Lane, Replica, now_ms};
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, debug, info_span, warn};

use self::{
    accept::Acceptor,
    blobs::Blobs,
    book::Book,
    connections::Membership,
    ctl::Ctl,
    endpoint::Net,
    gossip::{Gossip, GossipTask},
    join::{Approvals, JoinProtocol},
    peers::Peers,
    relay::RelayServer,
    sync::Sync,
    transport::IrohTransport,
    verdict::ReplicaValidator,
};

pub use self::{
    blobs::{FetchProgress, FileError, ProviderError},
    ctl::CtlStream,
    error::{CtlError, JoinError, Refusal, ReplicaTimeout, StartError},
    gossip::GossipStanding,
    join::{JoinRequest, Joined},
    peers::{NotDirect, PathKind, PeerBytes, PeerInfo, PeerPath, PeerState, SyncState},
    relay::RelayConfig,
};

/// How long a shutdown may take in all.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);
/// How much of it the tasks may use; the rest is for goodbyes to peers.
const TASKS_GRACE: Duration = Duration::from_secs(1);

/// How a node takes part in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// The UDP address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Further addresses at which others reach this node, such as a forwarded port.
    pub advertise: Vec<SocketAddr>,
    /// The relay to serve for members who cannot be reached directly, if any.
    pub relay: Option<RelayConfig>,
    /// Whether to announce this node and look for others on the local network.
    pub mdns: bool,
    /// Where the address book and the store of large bodies live.
    pub data_dir: PathBuf,
    /// The node's name, as others see it.
    pub node_name: String,
}

impl MeshConfig {
    /// Returns the defaults: all interfaces, a free port, mDNS on.
    pub fn new(data_dir: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            advertise: Vec::new(),
            relay: None,
            mdns: true,
            data_dir: data_dir.into(),
            node_name: node_name.into(),
        }
    }
}

/// A running network shell; cheap to clone.
///
/// It works before the node is a member of any mesh (then it can join one, and nothing else), and
/// takes up its work as soon as the replica's authority log makes it a member.
#[derive(Debug, Clone)]
pub struct Mesh {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    net: Net,
    replica: Replica,
    book: Book,
    peers: Arc<Peers>,
    approvals: Approvals,
    sync: Sync,
    gossip: Gossip,
    blobs: Blobs,
    ctl: Ctl,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Mesh {
    /// Binds the endpoint and starts all tasks.
    ///
    /// # Errors
    /// [`StartError`] when the address can't be bound or the data directory can't be used. A
    /// network without mDNS is a warning in the log.
    pub async fn start(
        config: MeshConfig,
        key: &NodeKey,
        replica: Replica,
    ) -> Result<Self, StartError> {
        let span = info_span!("mesh", node = %key.id().fmt_short());
        Self::start_all(config, key, replica).instrument(span).await
    }

    async fn start_all(
        config: MeshConfig,
        key: &NodeKey,
        replica: Replica,
    ) -> Result<Self, StartError> {
        create_dir(&config.data_dir)?;
        let members: Membership = {
            let replica = replica.clone();
            Arc::new(move |node: &NodeId| replica.authority().is_member(node))
        };
        let net = endpoint::bind(key, config.bind, config.mdns, Arc::clone(&members)).await?;
        let relay = match &config.relay {
            Some(relay) => Some(bind_relay(relay, &replica, &members).await?),
            None => None,
        };
        let served = relay.as_ref().map(|(_, _, served)| served.clone());
        let ctl = Ctl::new(net.clone(), members);
        let (blobs, wants) = Blobs::open(&config.data_dir.join("blobs")).await?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let peers = Arc::new(Peers::default());
        let (book, book_task) = Book::open(&config, key, net.clone(), &peers, served)?;
        let (sync, sync_task) = Sync::new(
            net.clone(),
            replica.clone(),
            book.clone(),
            Arc::clone(&peers),
            tasks.clone(),
            stop.clone(),
        );
        let (transport, gossip_protocol) = IrohTransport::new(net.clone());
        let (gossip, gossip_task) = GossipTask::new(key, transport);
        let approvals = Approvals::default();
        let join = JoinProtocol::new(
            NodeKey::from_seed(*key.secret_bytes()),
            replica.clone(),
            book.clone(),
            approvals.clone(),
        );
        let validator = Arc::new(ReplicaValidator::new(replica.clone()));
        let recent = validator.recent();
        // Subscribed before anything can arrive, so that no event is missed.
        let (events, more_events) = (replica.events(), replica.events());

        let seed = now_ms() ^ u64::from_be_bytes(first_eight(key.id().as_bytes()));
        let span = tracing::Span::current();
        tasks.spawn(
            gossip_task
                .run(validator, stop.clone())
                .instrument(span.clone()),
        );
        tasks.spawn(sync.clone().run(sync_task, seed).instrument(span.clone()));
        tasks.spawn(
            book_task
                .run(
                    sync.clone(),
                    gossip.clone(),
                    blobs.clone(),
                    seed,
                    stop.clone(),
                )
                .instrument(span.clone()),
        );
        tasks.spawn(
            blobs
                .clone()
                .run(
                    wants,
                    net.clone(),
                    sync.clone(),
                    replica.clone(),
                    stop.clone(),
                )
                .instrument(span.clone()),
        );
        let pump = pump::Pump {
            replica: replica.clone(),
            net: net.clone(),
            book: book.clone(),
            sync: sync.clone(),
            gossip: gossip.clone(),
            blobs: blobs.clone(),
            recent,
            relay: relay.as_ref().map(|(server, ..)| server.clone()),
        };
        tasks.spawn(
            pump.clone()
                .push(events, stop.clone())
                .instrument(span.clone()),
        );
        tasks.spawn(
            pump.notify(more_events, stop.clone())
                .instrument(span.clone()),
        );

        if let Some((server, listener, _)) = relay {
            let serving = server.run(listener, tasks.clone(), stop.clone());
            tasks.spawn(serving.instrument(span.clone()));
        }
        let acceptor = Acceptor {
            gossip: gossip_protocol,
            sync: sync.clone(),
            join,
            blobs: blobs.protocol(),
            ctl: ctl.clone(),
        };
        tasks.spawn(ctl.clone().run(stop.clone()).instrument(span.clone()));
        tasks.spawn(
            acceptor
                .run(net.endpoint.clone(), tasks.clone(), stop.clone())
                .instrument(span),
        );
        debug!(addrs = ?net.local_addrs(), "listening");
        Ok(Self {
            inner: Arc::new(Inner {
                net,
                replica,
                book,
                peers,
                approvals,
                sync,
                gossip,
                blobs,
                ctl,
                tasks,
                stop,
            }),
        })
    }

    /// Returns the addresses at which others can dial this node; an invite names them.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.inner.book.own_addrs()
    }

    /// Returns the URLs of relays through which others reach this node; an invite names them.
    pub fn local_relays(&self) -> Vec<String> {
        self.inner.book.own_relays()
    }

    /// Returns the URL of the relay that this node serves.
    pub fn relay(&self) -> Option<String> {
        self.inner.book.own_relay()
    }

    /// Whether others can reach this node through the relay at `url` now.
    pub fn at_home(&self, url: &str) -> bool {
        self.inner.book.home_relay().is_some_and(|home| home == url)
    }

    /// Redeems `invite`, stores the mesh's records and begins to connect to its members.
    ///
    /// Answers within 12 seconds, also when no inviter is up.
    ///
    /// # Errors
    /// [`JoinError`]; the invite is spent only when the inviter has recorded the grant, and then
    /// the same node may repeat the join.
    pub async fn join(&self, invite: &Invite, node_name: &str) -> Result<Joined, JoinError> {
        let inner = &self.inner;
        join::join(&inner.net, &inner.replica, &inner.book, invite, node_name).await
    }

    /// Returns the nodes that wait for approval, and those approved that have not come back yet.
    pub fn join_requests(&self) -> Vec<JoinRequest> {
        self.inner.approvals.list()
    }

    /// Approves a node that asked to join by an invite that needs approval; it is let in when it
    /// asks again. `false` if it never asked, or this node was started anew since.
    pub fn approve_join(&self, node: &NodeId) -> bool {
        self.inner.approvals.approve(node)
    }

    /// Returns every other member, whether connected, gone or never seen.
    pub fn peers(&self) -> Vec<PeerInfo> {
        let inner = &self.inner;
        let authority = inner.replica.authority();
        let me = inner.replica.node();
        let mine = inner.replica.lanes();
        let own = inner.net.local_addrs();
        authority
            .members()
            .filter(|member| member.node != me)
            .map(|member| {
                let shared: Vec<Lane> = mine
                    .iter()
                    .filter(|lane| match lane {
                        Lane::Authority => true,
                        Lane::Space(space) => authority.role_in(&member.node, space).is_some(),
                    })
                    .copied()
                    .collect();
                let (sighting, sync) = inner.peers.of(&member.node, &shared);
                let (mut path, bytes) = peers::measure(&inner.net.connections.of(&member.node));
                let info = inner.book.info(&member.node);
                if let Some(path) = path.as_mut().filter(|p| p.kind == PathKind::Relayed) {
                    path.relay = inner.book.server_of(&path.addr);
                    let theirs = info.as_ref().map(|info| &info.addrs[..]);
                    let known_ms = now_ms().saturating_sub(sighting.map_or(0, |s| s.since_ms));
                    path.why = Some(NotDirect::of(&own, theirs.unwrap_or_default(), known_ms));
                }
                let connected = inner.sync.is_connected(&member.node);
                let state = match sighting {
                    _ if connected => PeerState::Connected,
                    Some(_) => PeerState::Gone,
                    None => PeerState::Never,
                };
                PeerInfo {
                    node: member.node,
                    name: member.name.clone(),
                    role: member.role,
                    state,
                    since_ms: sighting.map(|s| s.since_ms),
                    last_seen_ms: if connected {
                        Some(now_ms())
                    } else {
                        sighting.map(|s| s.last_seen_ms)
                    },
                    path: path.filter(|_| connected),
                    addrs: info.as_ref().map(|i| i.addrs.clone()).unwrap_or_default(),
                    relay: info.as_ref().and_then(|info| info.relay.clone()),
                    version: info.map(|i| i.version).unwrap_or_default(),
                    sync,
                    bytes,
                }
            })
            .collect()
    }

    /// Returns a counter that moves whenever [`Self::peers`] has something new to say about who
    /// is connected or in step.
    pub fn peers_changed(&self) -> watch::Receiver<u64> {
        self.inner.peers.changed()
    }

    /// Returns how gossip stands with `node`: connection, subscriptions and score.
    pub async fn gossip_standing(&self, node: NodeId) -> GossipStanding {
        self.inner.gossip.standing(node).await
    }

    /// Waits until `n` other members of `space` say that they hold `id` durably.
    ///
    /// # Errors
    /// [`ReplicaTimeout`] with the nodes that said so within `timeout`; the fragment stays
    /// durable here and goes on replicating.
    pub async fn wait_replicas(
        &self,
        space: SpaceId,
        id: FragmentId,
        n: usize,
        timeout: Duration,
    ) -> Result<Vec<NodeId>, ReplicaTimeout> {
        let inner = &self.inner;
        let started = Instant::now();
        let hash = Hash::from(id);
        let watch = Watch {
            sync: inner.sync.clone(),
            hash,
        };
        let mut holders = inner.sync.acks().watch(hash);
        inner.sync.ask(&[hash]);
        let entitled = |holders: &BTreeSet<NodeId>| -> Vec<NodeId> {
            let authority = inner.replica.authority();
            holders
                .iter()
                .filter(|node| authority.role_in(node, &space).is_some())
                .copied()
                .collect()
        };
        let reached = {
            let enough = holders.wait_for(|holders| entitled(holders).len() >= n);
            let waited = tokio::time::timeout(timeout, enough).await;
            matches!(waited, Ok(Ok(_)))
        };
        let held_by = entitled(&holders.borrow());
        drop(watch);
        if reached {
            Ok(held_by)
        } else {
            Err(ReplicaTimeout {
                id,
                wanted: n,
                held_by,
                waited: started.elapsed(),
            })
        }
    }

    /// Opens a byte stream to another member, dialling it at its last known addresses if need be.
    ///
    /// The other side learns of the stream with the first byte written. Several streams to one
    /// peer share a connection, which is closed when none was open for half a minute.
    ///
    /// # Errors
    /// [`CtlError`] within 8 seconds.
    ///
    /// # Cancel safety
    /// A dropped future opens nothing.
    pub async fn open_ctl(&self, node: NodeId) -> Result<CtlStream, CtlError> {
        self.inner.ctl.open(node).await
    }

    /// Returns the streams that other members open to this node, and `None` to all but the first
    /// who asks.
    ///
    /// At most 32 streams of one peer and 256 in all are open at once; the next ones wait.
    pub fn ctl_streams(&self) -> Option<mpsc::Receiver<CtlStream>> {
        self.inner.ctl.take_streams()
    }

    /// Offers the file at `path`, whose BLAKE3 hash is `hash`, to other members.
    ///
    /// The file is read once to check it and then referenced, not copied: it must not change. The
    /// offer outlives a restart. A file that is gone is no longer served.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be read or has another hash.
    pub async fn serve_file(&self, hash: Hash, path: &std::path::Path) -> Result<(), FileError> {
        self.inner.blobs.serve_file(hash, path).await
    }

    /// Withdraws the offer of [`Self::serve_file`]; the file itself stays where it is.
    pub async fn unserve_file(&self, hash: Hash) {
        self.inner.blobs.unserve_file(hash).await;
    }

    /// Fetches the file whose BLAKE3 hash is `hash` from `providers`, asked one after the other,
    /// and puts it at `to`.
    ///
    /// Every chunk is verified as it arrives. What has arrived is kept when a provider fails, so
    /// the next one, or a later call within the hour, sends the rest alone. The file at `to` then
    /// belongs to the caller, who may move it, and must not change it.
    ///
    /// # Errors
    /// [`FileError`] when no provider could give all of it; `limit` is the most bytes taken.
    ///
    /// # Cancel safety
    /// A dropped future leaves no file at `to`, and what has arrived for a later call.
    pub async fn fetch_file(
        &self,
        hash: Hash,
        providers: &[NodeId],
        to: &std::path::Path,
        limit: u64,
        progress: FetchProgress<'_>,
    ) -> Result<u64, FileError> {
        let inner = &self.inner;
        inner
            .blobs
            .fetch_file(&inner.net, hash, providers, to, limit, progress)
            .await
    }

    /// Stops all tasks, says goodbye to the peers and closes the socket; takes 3 seconds at most.
    ///
    /// The replica stays open: it belongs to the caller.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        let deadline = tokio::time::Instant::now() + SHUTDOWN_GRACE;
        inner.stop.cancel();
        inner.tasks.close();
        if tokio::time::timeout(TASKS_GRACE, inner.tasks.wait())
            .await
            .is_err()
        {
            warn!(
                left = inner.tasks.len(),
                "tasks outlived the shutdown grace period"
            );
        }
        let (net, blobs) = (inner.net.clone(), inner.blobs.clone());
        // On a task of its own: a goodbye to a peer that no longer answers goes on for a while,
        // and we need not wait for it.
        let closing = tokio::spawn(async move {
            tokio::join!(net.endpoint.close(), blobs.close());
        });
        if tokio::time::timeout_at(deadline, closing).await.is_err() {
            debug!("a peer has not acknowledged the goodbye");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A mesh that is dropped without a shutdown stops too, if less politely.
        self.stop.cancel();
    }
}

/// Stops collecting holders however [`Mesh::wait_replicas`] ends.
struct Watch {
    sync: Sync,
    hash: Hash,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.sync.acks().unwatch(&self.hash);
    }
}

async fn bind_relay(
    config: &RelayConfig,
    replica: &Replica,
    members: &Membership,
) -> Result<(RelayServer, tokio::net::TcpListener, relay::Served), StartError> {
    let replica = replica.clone();
    let invited = move |guest: &NodeId, token: &str| {
        relay::guest::is_invited(&replica.authority(), guest, token, now_ms())
    };
    RelayServer::bind(config, Arc::clone(members), Arc::new(invited)).await
}

fn create_dir(dir: &std::path::Path) -> Result<(), StartError> {
    std::fs::create_dir_all(dir).map_err(|source| StartError::Data {
        path: dir.to_owned(),
        source,
    })
}

fn first_eight(bytes: &[u8; 32]) -> [u8; 8] {
    *bytes.first_chunk().expect("32 bytes hold 8")
}
