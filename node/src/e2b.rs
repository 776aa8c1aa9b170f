//! The door for clients of E2B: what an unmodified SDK of theirs asks, answered by this node.
//!
//! - [`listen`]: a TCP address, and TLS by an authority of the node's own (`authority`)
//! - [`route`]: whose request it is: by path, by headers, by host, by token, by signature
//! - [`control`]: the control plane: sandboxes, snapshots, templates, volumes
//! - [`envd`], [`interpreter`]: the data plane of one sandbox, which [`route`] has found
//! - `connect`: the protocol that most of that is spoken in
//! - [`forward`]: every other port of a sandbox
//! - [`registry`]: what E2B knows of a sandbox and the node does not, kept on disk
//! - [`error`]: errors as their clients read them
//!
//! `docs/e2b.md` says what works with which client.

mod authority;
pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod envd;
pub(crate) mod error;
mod forward;
pub(crate) mod interpreter;
mod lent;
mod listen;
pub(crate) mod registry;
mod route;
mod signature;

use std::{net::SocketAddr, sync::Arc};

use axum::http::StatusCode;
use rhizome_sandbox::{SandboxInfo, life::Phase};

pub(crate) use self::listen::open;
use self::{
    control::state::Working,
    registry::{Record, Registry},
};
use crate::{
    api::types::{SCHEMA, e2b::E2bDoor},
    daemon::node::Node,
    error::ApiError,
};

/// The version of `envd` that clients are told: all that they look at versions for is there.
pub(crate) const ENVD_VERSION: &str = "0.6.4";
/// The port of `envd`.
pub(crate) const ENVD_PORT: u16 = 49983;
/// The port of the code interpreter.
pub(crate) const INTERPRETER_PORT: u16 = 49999;

/// What every request of this door works on.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) node: Arc<Node>,
    pub(crate) registry: Registry,
    pub(crate) at: At,
    pub(crate) working: Working,
    /// What runs for clients of `envd`.
    pub(crate) envd: envd::Live,
    /// What runs for clients of the code interpreter.
    pub(crate) interpreter: interpreter::Contexts,
}

/// Where the door is.
#[derive(Debug, Clone)]
pub(crate) struct At {
    pub(crate) addr: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) domain: Option<String>,
}

impl At {
    /// Returns the address of the control plane.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        match &self.domain {
            Some(domain) if self.addr.port() == 443 => format!("{scheme}://api.{domain}"),
            Some(domain) => format!("{scheme}://api.{domain}:{}", self.addr.port()),
            None => format!("{scheme}://{}", self.addr),
        }
    }

    /// Returns what clients put behind `<port>-<sandbox>.`.
    pub(crate) fn sandbox_domain(&self) -> String {
        let domain = self.domain.as_deref().unwrap_or("localhost");
        match (self.tls, self.addr.port()) {
            (true, 443) | (false, 80) => domain.to_owned(),
            (_, port) => format!("{domain}:{port}"),
        }
    }
}

/// Whose request of the data plane it is; [`route`] puts it into the request's extensions.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The sandbox's id, as [`Node`] takes it; E2B's is the same.
    pub(crate) sandbox: String,
    /// What E2B knows of it.
    pub(crate) record: Arc<Record>,
    /// How it was shown that the caller may.
    pub(crate) access: Access,
}

/// How it was shown that the caller may use a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// By the sandbox's token.
    Token,
    /// By a signature over this one file, this user and what is done.
    Signature,
    /// Not at all: `GET /health` alone comes so.
    Nothing,
}

/// What clients of E2B may do with a sandbox now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It answers, or will at once.
    Running,
    /// It sleeps; `connect` wakes it.
    Paused,
    /// It is over.
    Gone,
}

impl Standing {
    pub(crate) fn of(info: &SandboxInfo) -> Self {
        match info.state.phase() {
            Phase::Creating
            | Phase::Booting
            | Phase::Ready
            | Phase::Snapshotting
            | Phase::Restoring => Self::Running,
            Phase::Paused
            | Phase::Hibernating
            | Phase::Hibernated
            | Phase::Stopping
            | Phase::Stopped => Self::Paused,
            Phase::Failed | Phase::Lost | Phase::Killed => Self::Gone,
        }
    }
}

impl Door {
    /// Returns a sandbox that clients of E2B know and that is not over.
    pub(crate) fn known(&self, id: &str) -> Option<(Arc<Record>, SandboxInfo, Standing)> {
        let record = self.registry.get(id)?;
        let info = self.node.find_sandbox(&record.id).ok()?;
        match Standing::of(&info) {
            Standing::Gone => None,
            standing => Some((record, info, standing)),
        }
    }
}

impl Node {
    /// Says where clients of E2B are answered.
    pub(crate) fn e2b_door(&self) -> Result<E2bDoor, ApiError> {
        let Some(door) = self.e2b.get() else {
            let message = "this node does not answer clients of E2B";
            return Err(ApiError::new(StatusCode::CONFLICT, "no_e2b", message)
                .hint("start it with `--e2b 127.0.0.1:4585`, or set `e2b.listen`"));
        };
        let ca = authority::certificate_path(&self.data.join("e2b"));
        Ok(E2bDoor {
            schema: SCHEMA,
            url: door.at.url(),
            domain: door.at.sandbox_domain(),
            domain_mode: door.at.domain.is_some(),
            tls: door.at.tls,
            ca: door.at.tls.then(|| ca.display().to_string()),
            key: self.config.e2b.key.as_ref().map(|key| key.0.clone()),
        })
    }
}

/// Why the door cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDoorError {
    /// The address cannot be listened on.
    #[error("cannot listen on `{addr}`")]
    Listen {
        /// Which one.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// What is kept of sandboxes cannot be read.
    #[error("cannot read what clients of E2B left")]
    Registry(#[source] registry::RegistryError),
    /// There is no certificate for TLS.
    #[error("cannot make a certificate")]
    Authority(#[source] authority::AuthorityError),
}
