//! Whole nodes in one process: a replica and a mesh over real sockets on loopback.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its share; what a test prepares has to work"
)]

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use iroh::{Endpoint, EndpointAddr, EndpointId, SecretKey, endpoint::presets};
use rhizome_identity::{
    AgentKey, Hash, Invite, InviteEndpoint, InviteParams, NodeId, NodeKey, Role, RootKey, SpaceId,
    issue,
};
use rhizome_memory::{
    Draft, FragmentId, Kind, PublishRequest, Published, RecallQuery, Replica, ReplicaConfig,
};
use rhizome_mesh::net::{Mesh, MeshConfig, PeerState};
use tempfile::TempDir;

/// How long a condition may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) key: NodeKey,
    pub(crate) agent: AgentKey,
    pub(crate) replica: Replica,
    pub(crate) mesh: Mesh,
    pub(crate) dir: Arc<TempDir>,
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

pub(crate) fn config(dir: &Path, name: &str) -> MeshConfig {
    MeshConfig {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        mdns: false,
        ..MeshConfig::new(dir.join("net"), name)
    }
}

pub(crate) fn replica_dir(dir: &Path) -> PathBuf {
    dir.join("replica")
}

impl Node {
    pub(crate) async fn start(name: &str) -> Self {
        log();
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::start_in(name, dir, NodeKey::generate(), AgentKey::generate()).await
    }

    pub(crate) async fn start_in(
        name: &str,
        dir: Arc<TempDir>,
        key: NodeKey,
        agent: AgentKey,
    ) -> Self {
        let config = config(dir.path(), name);
        Self::start_with(config, dir, key, agent).await
    }

    /// Starts a node of its own that `adjust` has made special.
    pub(crate) async fn start_special(name: &str, adjust: impl FnOnce(&mut MeshConfig)) -> Self {
        log();
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut config = config(dir.path(), name);
        adjust(&mut config);
        Self::start_with(config, dir, NodeKey::generate(), AgentKey::generate()).await
    }

    async fn start_with(
        config: MeshConfig,
        dir: Arc<TempDir>,
        key: NodeKey,
        agent: AgentKey,
    ) -> Self {
        let name = config.node_name.clone();
        let copy = NodeKey::from_seed(*key.secret_bytes());
        let replica =
            Replica::open(&replica_dir(dir.path()), copy, ReplicaConfig::default()).unwrap();
        let mesh = Mesh::start(config, &key, replica.clone()).await.unwrap();
        Self {
            name,
            key,
            agent,
            replica,
            mesh,
            dir,
        }
    }

    /// Stops the node and starts it again on its data, on another port.
    pub(crate) async fn restart(self) -> Self {
        let (name, dir, key, agent) = self.stop().await;
        Self::start_in(&name, dir, key, agent).await
    }

    pub(crate) async fn stop(self) -> (String, Arc<TempDir>, NodeKey, AgentKey) {
        self.mesh.shutdown().await;
        self.replica.close().unwrap();
        let Self {
            name,
            dir,
            key,
            agent,
            replica,
            mesh,
        } = self;
        drop((replica, mesh));
        (name, dir, key, agent)
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    /// Founds a mesh with one space and certifies the node's agent.
    pub(crate) fn found(&self) -> SpaceId {
        let root = RootKey::generate();
        let next = RootKey::generate();
        let records = issue::found(
            &root,
            &next.public(),
            &self.id(),
            &self.name,
            "test mesh",
            now_ms(),
        )
        .unwrap();
        self.replica.append_records(records).unwrap();
        let space = self.create_space("lab");
        self.certify();
        space
    }

    pub(crate) fn create_space(&self, name: &str) -> SpaceId {
        let authority = self.replica.authority();
        let (record, _) = issue::create_space(&self.key, &authority, name, now_ms()).unwrap();
        let space = SpaceId::from_bytes(*record.id().as_bytes());
        self.replica.append_records(vec![record]).unwrap();
        space
    }

    /// Certifies the node's agent; the node must be a member.
    pub(crate) fn certify(&self) {
        let authority = self.replica.authority();
        let cert = issue::certify_agent(
            &self.key,
            &authority,
            &self.agent,
            "agent",
            None,
            None,
            now_ms(),
        )
        .unwrap();
        self.replica.append_records(vec![cert]).unwrap();
    }

    pub(crate) fn invite(&self, spaces: &[SpaceId], uses: u16, ttl_ms: u64) -> String {
        self.open(self.invite_params(spaces, uses, ttl_ms))
    }

    pub(crate) fn invite_params(&self, spaces: &[SpaceId], uses: u16, ttl_ms: u64) -> InviteParams {
        InviteParams {
            role: Role::Writer,
            spaces: spaces.to_vec(),
            uses,
            not_after_ms: now_ms() + ttl_ms,
            approve: false,
            endpoints: vec![InviteEndpoint {
                node: self.id(),
                addrs: self.mesh.local_addrs(),
                relays: self.mesh.local_relays(),
            }],
        }
    }

    pub(crate) fn open(&self, params: InviteParams) -> String {
        let authority = self.replica.authority();
        let (record, invite) = issue::open_invite(&self.key, &authority, params, now_ms()).unwrap();
        self.replica.append_records(vec![record]).unwrap();
        invite.to_string()
    }

    /// Joins by nothing but the string, then certifies the node's agent.
    pub(crate) async fn join(&self, invite: &str) {
        let invite: Invite = invite.parse().unwrap();
        self.mesh.join(&invite, &self.name).await.unwrap();
        self.certify();
    }

    pub(crate) async fn publish(&self, space: SpaceId, title: &str, text: &str) -> Published {
        self.publish_draft(space, Draft::new(Kind::Fact, title, text))
            .await
    }

    pub(crate) async fn publish_draft(&self, space: SpaceId, draft: Draft) -> Published {
        let replica = self.replica.clone();
        let agent = AgentKey::from_seed(*self.agent.secret_bytes());
        let request = PublishRequest {
            space,
            draft,
            fingerprint: Hash::of(b"test runtime"),
        };
        tokio::task::spawn_blocking(move || replica.publish(&agent, request))
            .await
            .unwrap()
            .unwrap()
    }

    pub(crate) fn recalls(&self, space: SpaceId, words: &str) -> bool {
        let query = RecallQuery {
            text: words.to_owned(),
            spaces: vec![space],
            kinds: Vec::new(),
            task: None,
            limit: 1,
        };
        self.replica
            .recall(&query)
            .is_ok_and(|hits| !hits.is_empty())
    }

    /// Waits until `id` is durable here.
    pub(crate) async fn receives(&self, id: FragmentId) {
        self.replica_says(|| self.replica.holds(&id)).await;
    }

    /// Waits until a search for `words` finds something here.
    pub(crate) async fn learns(&self, space: SpaceId, words: &str) {
        self.replica_says(|| self.recalls(space, words)).await;
    }

    /// Waits for `condition`, looked at after every event of the replica.
    pub(crate) async fn replica_says(&self, condition: impl Fn() -> bool) {
        let mut events = self.replica.events();
        let wait = async {
            while !condition() {
                // A lagging listener looks again all the same. The timeout is for bodies, whose
                // arrival makes no event.
                let _ = tokio::time::timeout(Duration::from_millis(250), events.recv()).await;
            }
        };
        within(&format!("{}: the replica never said so", self.name), wait).await;
    }

    /// Waits until `other` is in `state` here.
    pub(crate) async fn sees(&self, other: NodeId, state: PeerState) {
        self.mesh_says(|| {
            self.mesh
                .peers()
                .iter()
                .any(|peer| peer.node == other && peer.state == state)
        })
        .await;
    }

    /// Waits for `condition`, looked at whenever a peer's state changes.
    pub(crate) async fn mesh_says(&self, condition: impl Fn() -> bool) {
        let mut changes = self.mesh.peers_changed();
        let wait = async {
            while !condition() {
                changes.changed().await.unwrap();
            }
        };
        within(&format!("{}: the mesh never said so", self.name), wait).await;
    }
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} within {} s", PATIENCE.as_secs()),
    }
}

/// Stops nodes side by side, as each takes its leave of the others.
pub(crate) async fn stop_all(nodes: impl IntoIterator<Item = Node>) {
    futures::future::join_all(nodes.into_iter().map(Node::stop)).await;
}

/// A founder and a joiner with one space, both connected.
pub(crate) async fn pair() -> (Node, Node, SpaceId) {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    b.join(&a.invite(&[space], 1, 60_000)).await;
    a.sees(b.id(), PeerState::Connected).await;
    b.sees(a.id(), PeerState::Connected).await;
    (a, b, space)
}

/// Prints the log of a test when `RUST_LOG` asks for it.
pub(crate) fn log() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
}

/// Returns an endpoint that speaks no protocol of ours by itself.
pub(crate) async fn raw_endpoint(key: &NodeKey) -> Endpoint {
    Endpoint::builder(presets::Minimal)
        .secret_key(SecretKey::from_bytes(&key.secret_bytes()))
        .clear_ip_transports()
        .bind_addr("127.0.0.1:0")
        .unwrap()
        .bind()
        .await
        .unwrap()
}

/// Returns where a node is dialled.
pub(crate) fn addr_of(node: &Node) -> EndpointAddr {
    let id = EndpointId::from_bytes(node.id().as_bytes()).unwrap();
    let addrs = node.mesh.local_addrs();
    addrs
        .into_iter()
        .fold(EndpointAddr::new(id), |addr, ip| addr.with_ip_addr(ip))
}

/// Returns the application code with which a connection was closed.
pub(crate) async fn close_code(connection: &iroh::endpoint::Connection) -> u64 {
    let closed = within("the connection was not closed", connection.closed()).await;
    match closed {
        iroh::endpoint::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("closed otherwise: {other:?}"),
    }
}
