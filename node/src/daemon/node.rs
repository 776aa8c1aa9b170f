//! What every request works on: the parts of a running node, and the small questions about them.
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use axum::http::StatusCode;
use rhizome_identity::{AgentId, Authority, Hash, NodeId, NodeKey, SignedRecord, issue};
use rhizome_memory::{Replica, now_ms};
use rhizome_mesh::net::Mesh;
use rhizome_sandbox::Sandboxes;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{fail, lifecycle::OnDown, member, memory::Again, runtime::Runtimes, volume::Volumes};
use crate::{
    agents::{AgentKeys, LocalAgent},
    api::{idempotency::Keys, token::Tokens},
    config::Config,
    control::{audit::Audit, limits::Limits},
    datadir::DataDir,
    e2b::Door,
    error::ApiError,
    mcp,
    remote::{claims::Claims, facts::FactsCache, packs::Turns},
    vault::Vault,
};

/// Streams on the node's own socket at once: `watch` that follows.
const MAX_STREAMS: usize = 256;

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) data: DataDir,
    pub(crate) key: NodeKey,
    pub(crate) vault: Arc<Vault>,
    pub(crate) replica: Replica,
    pub(crate) mesh: Mesh,
    pub(crate) audit: Audit,
    pub(crate) limits: Arc<Limits>,
    /// Or why this node runs none.
    sandboxes: Result<Sandboxes, ApiError>,
    agents: AgentKeys,
    pub(crate) tokens: Tokens,
    pub(crate) keys: Keys,
    /// Where the API listens over TCP, if it does.
    pub(crate) api_addr: Option<SocketAddr>,
    /// Records are made on the heads of the log, so they are made one after another.
    authority_lock: tokio::sync::Mutex<()>,
    pub(crate) streams: Arc<Semaphore>,
    /// One backup is made at a time.
    pub(crate) backups: Arc<Semaphore>,
    pub(crate) facts: FactsCache,
    pub(crate) claims: Claims,
    pub(crate) turns: Turns,
    pub(crate) volumes: Volumes,
    pub(crate) mcp: mcp::Doors,
    pub(crate) again: Again,
    pub(crate) graphs: mcp::kg::store::Graphs,
    pub(crate) host_fingerprint: Hash,
    pub(crate) runtimes: Arc<Runtimes>,
    on_down: Mutex<OnDown>,
    pub(crate) started_ms: u64,
    pub(crate) opened_in_ms: u64,
    /// Set once the door for clients of E2B listens.
    pub(crate) e2b: OnceLock<Arc<Door>>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// What a [`Node`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) data: DataDir,
    pub(crate) key: NodeKey,
    pub(crate) vault: Arc<Vault>,
    pub(crate) replica: Replica,
    pub(crate) mesh: Mesh,
    pub(crate) audit: Audit,
    pub(crate) limits: Arc<Limits>,
    pub(crate) sandboxes: Result<Sandboxes, ApiError>,
    pub(crate) agents: AgentKeys,
    pub(crate) tokens: Tokens,
    pub(crate) keys: Keys,
    pub(crate) api_addr: Option<SocketAddr>,
    pub(crate) opened_in_ms: u64,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Node {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            config: parts.config,
            data: parts.data,
            key: parts.key,
            vault: parts.vault,
            replica: parts.replica,
            mesh: parts.mesh,
            audit: parts.audit,
            limits: parts.limits,
            sandboxes: parts.sandboxes,
            agents: parts.agents,
            tokens: parts.tokens,
            keys: parts.keys,
            api_addr: parts.api_addr,
            authority_lock: tokio::sync::Mutex::new(()),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            backups: Arc::new(Semaphore::new(1)),
            facts: FactsCache::default(),
            claims: Claims::default(),
            turns: Turns::default(),
            volumes: Volumes::default(),
            mcp: mcp::Doors::default(),
            again: Again::default(),
            graphs: mcp::kg::store::Graphs::default(),
            host_fingerprint: host_fingerprint(),
            runtimes: Arc::default(),
            on_down: Mutex::default(),
            started_ms: now_ms(),
            opened_in_ms: parts.opened_in_ms,
            e2b: OnceLock::new(),
            stop: parts.stop,
            tasks: parts.tasks,
        }
    }

    /// Returns the addresses under which this node can be reached, as text.
    pub(crate) fn addrs(&self) -> Vec<String> {
        let addrs = self.mesh.local_addrs();
        addrs.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    /// Returns the name others know the node by, or would.
    pub(crate) fn name(&self) -> String {
        let authority = self.replica.authority();
        let name = authority
            .member(&self.id())
            .map(|member| member.name.clone());
        name.filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.config.name.clone())
    }

    /// Fails unless the node belongs to a mesh.
    pub(crate) fn need_mesh(&self) -> Result<Arc<Authority>, ApiError> {
        let authority = self.replica.authority();
        if authority.mesh().is_some() && authority.is_member(&self.id()) {
            return Ok(authority);
        }
        if let Some(revocation) = authority.revocations_of(&self.id().into()).last() {
            return Err(member::was_revoked(&authority, revocation));
        }
        Err(ApiError::new(
            StatusCode::CONFLICT,
            "no_mesh",
            "this node belongs to no mesh",
        )
        .hint("found one with `rhizome init`, or join one with `rhizome join <invite>`"))
    }

    /// What becomes of the sandboxes when this daemon stops.
    pub(crate) fn on_down(&self) -> OnDown {
        *self.on_down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_on_down(&self, what: OnDown) {
        *self.on_down.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    pub(crate) fn sandboxes(&self) -> Result<&Sandboxes, ApiError> {
        self.sandboxes.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn agents(&self) -> &AgentKeys {
        &self.agents
    }

    /// Returns an agent whose key is here.
    pub(crate) fn local_agent(&self, id: &AgentId) -> Result<LocalAgent, ApiError> {
        self.agents.by_id(id).ok_or_else(|| {
            let message = format!("the key of agent {} is not on this node", id.fmt_short());
            ApiError::new(StatusCode::NOT_FOUND, "unknown_agent", message)
                .hint("agents speak where their key lies; `rhizome agent create` makes one here")
        })
    }

    /// Returns the agent the node speaks as when none is named, certified if it was not yet.
    pub(crate) async fn default_agent(&self) -> Result<LocalAgent, ApiError> {
        let agent = self.agents.default_agent().clone();
        self.need_mesh()?;
        let is_certified = |authority: &Authority| authority.agent(&agent.id()).is_some();
        if !is_certified(&self.replica.authority()) {
            let (agent, name) = (agent.clone(), self.name());
            self.append(move |key, authority, now| {
                if authority.agent(&agent.id()).is_some() {
                    return Ok((Vec::new(), ()));
                }
                let record =
                    issue::certify_agent(key, authority, &agent.key, &name, None, None, now)
                        .map_err(fail::issue)?;
                Ok((vec![record], ()))
            })
            .await?;
        }
        Ok(agent)
    }

    /// Looks at the disk while no record is made here, and so no key that one certifies.
    pub(crate) async fn between_records<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _one_at_a_time = self.authority_lock.lock().await;
        blocking(look).await
    }

    /// Makes records on the newest state of the authority log and appends them durably.
    pub(crate) async fn append<T: Send + 'static>(
        &self,
        make: impl FnOnce(&NodeKey, &Authority, u64) -> Result<(Vec<SignedRecord>, T), ApiError>
        + Send
        + 'static,
    ) -> Result<T, ApiError> {
        let _one_at_a_time = self.authority_lock.lock().await;
        let (replica, key) = (self.replica.clone(), self.key.clone());
        blocking(move || {
            let (records, made) = make(&key, &replica.authority(), now_ms())?;
            if !records.is_empty() {
                replica.append_records(records).map_err(fail::replica)?;
            }
            Ok(made)
        })
        .await?
    }
}

/// Runs what waits for the disk where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal("the work ended in a panic").caused_by(Some(&error)))
}

/// Returns the fingerprint of what is published from the host itself, outside any sandbox.
fn host_fingerprint() -> Hash {
    let uname = rustix::system::uname();
    let fingerprint = rhizome_sandbox::Fingerprint {
        kernel: uname.release().to_string_lossy().into_owned(),
        arch: uname.machine().to_string_lossy().into_owned(),
        image: "host".to_owned(),
        network: "host".to_owned(),
        ..Default::default()
    };
    Hash::from_bytes(fingerprint.hash())
}
