//! The daemon: the parts of a node, started in order, served, and stopped in reverse.
//!
//! Start: lock the data directory, load the keys, open the replica, start the network, open the
//! sandboxes, listen. A machine that can run no sandboxes still remembers: that half then answers
//! with the reason. Stop, on SIGTERM, SIGINT or `POST /v1/down`: no new connections, finish what is
//! being answered, leave the sandboxes to the next daemon (or end them, as asked), say goodbye to the peers, close the replica.

mod archive;
pub(crate) mod arrivals;
mod backup;
pub(crate) mod caller;
pub(crate) mod context;
mod detach;
mod doctor;
mod epoch;
mod exec;
pub(crate) mod fail;
pub(crate) mod files;
mod image;
mod invite;
mod keys;
pub(crate) mod lifecycle;
mod member;
pub(crate) mod memory;
mod mesh;
pub(crate) mod names;
pub(crate) mod network;
pub(crate) mod node;
mod pool;
mod root;
pub(crate) mod runtime;
pub(crate) mod sandbox;
mod status;
pub(crate) mod volume;

use std::{
    error::Error,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use rhizome_identity::{KeyFileError, NodeKey, keyfile::KeyKind};
use rhizome_memory::{OpenError, Replica, ReplicaConfig, ShareLimits, now_ms};
use rhizome_mesh::net::{Mesh, MeshConfig};
use rhizome_sandbox::{DoorConnection, Gate, SandboxConfig, Sandboxes};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

pub use self::detach::detach;
use self::node::{Node, Parts, blocking};
pub(crate) use self::{
    exec::{file_change, watch_failed},
    fail::exec as exec_failed,
    status::resident_bytes,
};
use crate::{
    agents::{AgentKeys, AgentKeysError},
    api::{
        idempotency::{IdempotencyError, Keys},
        listen::{MAX_CONNECTIONS, listen},
        routes, tcp,
        token::{TokenError, Tokens},
    },
    config::{Config, ConfigError, UpFlags},
    control::{
        audit::{Audit, AuditError, Note},
        enforce,
        limits::{Limits, LimitsError},
    },
    datadir::{DataDir, DataDirError},
    door,
    error::ApiError,
    remote,
    vault::{Vault, VaultError},
};

/// How long requests and streams may take to end once the daemon stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// What is logged unless `RHIZOME_LOG` says otherwise: what an operator wants to know. The transport
/// warns about what peers do, which alone is no reason to disturb anyone.
const DEFAULT_LOG: &str =
    "warn,rhizome=info,iroh=error,iroh_relay=error,libp2p=error,noq=error,swarm_discovery=error";

/// Runs the daemon on `data_dir` until it is told to stop.
///
/// Once it answers it says so: to the process that detached it, if one did, and in the log.
///
/// # Errors
/// [`StartError`] if a part cannot be started; a part that fails later is logged.
pub async fn run(data_dir: &Path, flags: UpFlags) -> Result<(), StartError> {
    init_log();
    let daemon = Daemon::start(data_dir, flags).await?;
    detach::signal_ready();
    let signalled = stop_signal()?;
    tokio::select! {
        name = signalled => info!(signal = name, "stopping"),
        () = daemon.stopped() => info!("stopping on request"),
    }
    daemon.shutdown().await;
    Ok(())
}

/// A running daemon, in this process.
#[derive(Debug)]
pub struct Daemon {
    node: Arc<Node>,
}

impl Daemon {
    /// Starts every part; returns once the API listens.
    ///
    /// # Errors
    /// The first part that cannot be started. What was started before is stopped again.
    pub async fn start(data_dir: &Path, flags: UpFlags) -> Result<Self, StartError> {
        let data = DataDir::lock(data_dir)?;
        let config = Config::load(data.path(), flags)?;
        // It may ask for a passphrase, and stretch it.
        let dir = data.path().to_owned();
        let vault = blocking(move || Vault::open(&dir)).await;
        let vault = Arc::new(vault.map_err(StartError::Panicked)??);
        let key: NodeKey = vault
            .load_or_make(&data.join("node.key"), KeyKind::Node)
            .map_err(StartError::Key)?
            .into();
        let agents = AgentKeys::open(data.path(), &config.name, Arc::clone(&vault))?;
        let tokens = Tokens::open(data.join("tokens.json")).map_err(StartError::Tokens)?;
        let keys = Keys::open(data.join("idempotency.log"), now_ms()).map_err(StartError::Keys)?;
        let audit = Audit::open(&data.join("audit")).map_err(StartError::Audit)?;
        let (replica, opened_in) = open_replica(&data, &key, config.memory.shares).await?;
        let mesh_config = MeshConfig {
            bind: config.bind,
            advertise: config.advertise.clone(),
            relay: config.relay.as_ref().map(|relay| relay.config(config.bind)),
            mdns: config.mdns,
            data_dir: data.join("net"),
            node_name: config.name.clone(),
        };
        let mesh = Mesh::start(mesh_config, &key, replica.clone())
            .await
            .map_err(StartError::Mesh)?;
        let limits = Limits::open(data.path(), replica.clone()).map_err(StartError::Limits)?;
        let limits = Arc::new(limits);
        let gate = Arc::clone(&limits) as Arc<dyn Gate>;
        let (sandboxes, doors) = open_sandboxes(&config, gate).await;
        // Last, because whoever can connect expects everything behind it to work.
        let listener = UnixListener::from_std(data.bind_socket()?).map_err(StartError::Listen)?;
        let over_tcp = match config.api {
            Some(addr) => Some(
                TcpListener::bind(addr)
                    .await
                    .map_err(|source| StartError::ListenTcp { addr, source })?,
            ),
            None => None,
        };
        let api_addr = over_tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        let node = Arc::new(Node::new(Parts {
            config,
            data,
            key,
            vault,
            replica,
            mesh,
            audit,
            limits,
            sandboxes,
            agents,
            tokens,
            keys,
            api_addr,
            opened_in_ms: u64::try_from(opened_in.as_millis()).unwrap_or(u64::MAX),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }));
        let _ = node.volumes.node.set(Arc::downgrade(&node));
        if let Err(error) = node.end_unfinished_volumes() {
            tracing::warn!(%error, "what was begun on volumes cannot be let go of");
        }
        let version = env!("CARGO_PKG_VERSION");
        let started = Note::of_daemon("daemon.start", None, "ok").detail(version);
        node.audit.note(started).await;
        if node.config.e2b.listen.is_some() {
            crate::e2b::open(&node).await.map_err(StartError::E2b)?;
        }
        let router = routes::owner(Arc::clone(&node));
        node.tasks
            .spawn(listen(Arc::clone(&node), listener, router, MAX_CONNECTIONS));
        if let Some(listener) = over_tcp {
            let router = tcp::router(Arc::clone(&node));
            node.tasks
                .spawn(listen(Arc::clone(&node), listener, router, MAX_CONNECTIONS));
        }
        if let Some(streams) = node.mesh.ctl_streams() {
            node.tasks
                .spawn(remote::serve::serve_peers(Arc::clone(&node), streams));
        }
        node.tasks.spawn(lifecycle::end_leases(Arc::clone(&node)));
        node.tasks.spawn(enforce::keep(Arc::clone(&node)));
        let events = node.sandboxes().ok().and_then(Sandboxes::egress_events);
        if let Some(events) = events {
            node.tasks
                .spawn(network::note_denials(Arc::clone(&node), events));
        }
        node.tasks.spawn(memory::keep_counts(Arc::clone(&node)));
        node.tasks.spawn(remote::sweep::sweep(Arc::clone(&node)));
        node.tasks.spawn(epoch::keep_keys(Arc::clone(&node)));
        node.tasks.spawn(volume::keep_volumes(Arc::clone(&node)));
        node.tasks
            .spawn(remote::streaming::go_on(Arc::clone(&node)));
        node.tasks.spawn(remote::alarm::watch(Arc::clone(&node)));
        node.tasks.spawn(remote::repair::keep_up(Arc::clone(&node)));
        node.tasks.spawn(volume::spread_volumes(Arc::clone(&node)));
        if let Some(doors) = doors {
            node.tasks
                .spawn(door::serve_doors(Arc::clone(&node), doors));
        }
        info!(node = %node.id().fmt_short(), socket = %node.data.socket().display(), "ready");
        Ok(Self { node })
    }

    /// Returns where the API listens.
    pub fn socket(&self) -> &Path {
        self.node.data.socket()
    }

    /// Waits until somebody asked it to stop.
    pub async fn stopped(&self) {
        self.node.stop.cancelled().await;
    }

    /// Stops every part, in reverse; takes a few seconds at most.
    pub async fn shutdown(&self) {
        let node = &self.node;
        node.stop.cancel();
        node.tasks.close();
        // Sandboxes first: the end of their sessions is what running commands wait for. They run
        // on themselves unless something else was asked for.
        if let Ok(sandboxes) = node.sandboxes() {
            sandboxes.shutdown(node.on_down().on_shutdown()).await;
            if let Err(error) = node.measure().await {
                warn!(%error, "what sandboxes used last was not written down");
            }
        }
        if tokio::time::timeout(SHUTDOWN_GRACE, node.tasks.wait())
            .await
            .is_err()
        {
            warn!(
                left = node.tasks.len(),
                "tasks outlived the shutdown grace period"
            );
        }
        node.mesh.shutdown().await;
        let replica = node.replica.clone();
        match blocking(move || replica.close()).await {
            Ok(Ok(())) => info!("stopped"),
            Ok(Err(error)) => warn!(%error, "the replica did not close cleanly"),
            Err(error) => warn!(%error, "the replica did not close cleanly"),
        }
    }

    #[cfg(test)]
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }
}

async fn open_replica(
    data: &DataDir,
    key: &NodeKey,
    shares: ShareLimits,
) -> Result<(Replica, Duration), StartError> {
    let (path, key) = (data.join("store"), key.clone());
    let mut config = ReplicaConfig::default();
    config.shares = shares;
    let begun = Instant::now();
    let opened = blocking(move || Replica::open(&path, key, config)).await;
    let replica = opened
        .map_err(StartError::Panicked)?
        .map_err(StartError::Replica)?;
    let report = replica.recovery();
    if !report.is_clean() {
        warn!(notes = ?status::recovery_notes(report), "the store was opened after repair");
    }
    Ok((replica, begun.elapsed()))
}

type Doors = mpsc::Receiver<DoorConnection>;

/// Opens the sandbox half, or says why there is none.
async fn open_sandboxes(
    config: &Config,
    gate: Arc<dyn Gate>,
) -> (Result<Sandboxes, ApiError>, Option<Doors>) {
    let unavailable = |message: &str| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_sandboxes", message)
            .hint("`rhizome doctor` says what is missing")
    };
    if !config.sandboxes {
        let error = unavailable("this node was started without sandboxes")
            .hint("start it again without `--no-sandboxes`");
        return (Err(error), None);
    }
    let mut settings = sandbox_config(config);
    settings.gate = Some(gate);
    match Sandboxes::open(settings).await {
        Ok((sandboxes, doors)) => (Ok(sandboxes), Some(doors)),
        Err(error) => {
            warn!(%error, "this node runs no sandboxes");
            let cause: &(dyn Error + 'static) = &error;
            let failed = unavailable("this node cannot run sandboxes").caused_by(Some(cause));
            (Err(failed.maybe_hint(error.hint())), None)
        }
    }
}

pub(crate) fn sandbox_config(config: &Config) -> SandboxConfig {
    let mut sandbox = SandboxConfig::new(config.data_dir.join("sandboxes"));
    sandbox.chunks_dir = config.data_dir.join("chunks");
    sandbox.secrets_dir = config.data_dir.join("secrets");
    sandbox.images_dir.clone_from(&config.images_dir);
    sandbox.secrets_dir = config.data_dir.join("secrets");
    sandbox.kernel.clone_from(&config.kernel);
    sandbox.qemu.clone_from(&config.qemu);
    sandbox
        .cloud_hypervisor
        .clone_from(&config.cloud_hypervisor);
    sandbox.driver = config.driver;
    sandbox.accel = config.accel;
    sandbox.limits.max_waiting = config.pool;
    sandbox
}

fn stop_signal() -> Result<impl Future<Output = &'static str>, StartError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signal)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

fn init_log() {
    use tracing_subscriber::EnvFilter;
    let filter =
        EnvFilter::try_from_env("RHIZOME_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    // A process that has a subscriber already, such as a test, keeps it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What protects the keys cannot be had.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// The node's key cannot be used.
    #[error("cannot use the key of this node")]
    Key(#[source] KeyFileError),
    /// The key of an agent cannot be used.
    #[error("cannot use the keys of this node's agents")]
    Agents(#[from] AgentKeysError),
    /// The replica cannot be opened.
    #[error("cannot open what this node remembers")]
    Replica(#[source] OpenError),
    /// A part panicked while it opened.
    #[error("opening what this node keeps ended in a panic")]
    Panicked(#[source] ApiError),
    /// The network could not be started.
    #[error("cannot start the network")]
    Mesh(#[source] rhizome_mesh::net::StartError),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log")]
    Audit(#[source] AuditError),
    /// What was used, or how much may be, cannot be read.
    #[error("cannot keep count of what is used here")]
    Limits(#[source] LimitsError),
    /// The API cannot listen.
    #[error("cannot listen on the API's socket")]
    Listen(#[source] std::io::Error),
    /// The API cannot listen over TCP.
    #[error("cannot listen on {addr} for the API")]
    ListenTcp {
        /// Where.
        addr: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokens cannot be read.
    #[error("cannot use the tokens of this node")]
    Tokens(#[source] TokenError),
    /// The door for clients of E2B cannot be opened.
    #[error("cannot answer clients of E2B")]
    E2b(#[source] crate::e2b::OpenDoorError),
    /// The idempotency keys cannot be kept.
    #[error("cannot keep the idempotency keys of this node")]
    Keys(#[source] IdempotencyError),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signal(#[source] std::io::Error),
    /// The background process could not be started.
    #[error("cannot start the daemon in the background")]
    Spawn(#[source] std::io::Error),
    /// The background process ended before it was ready; these are its last words.
    #[error("the daemon did not start: {last_words}")]
    Died {
        /// What it said last.
        last_words: String,
    },
}

impl StartError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::DataDir(error) => error.hint(),
            Self::Vault(error) => error.hint(),
            Self::Key(error) => error.hint(),
            Self::Agents(error) => error.hint(),
            Self::Replica(error) => error.hint(),
            Self::Mesh(error) => error.hint(),
            Self::Limits(error) => error.hint(),
            Self::Tokens(error) => error.hint().map(str::to_owned),
            _ => None,
        }
    }
}
