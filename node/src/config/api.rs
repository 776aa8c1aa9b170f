//! Where the API is served beside the node's own socket.
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The part `api` of `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiFile {
    /// See [`Config::api`].
    pub listen: Option<SocketAddr>,
}

impl ApiFile {
    /// Whether the file says where.
    pub(super) fn is_said(file: Option<&Self>) -> bool {
        file.is_some_and(|api| api.listen.is_some())
    }
}

/// Checks where the API is to be served: tokens cross it in the clear.
pub(super) fn check(addr: Option<SocketAddr>) -> Result<(), ConfigError> {
    match addr.filter(|addr| !addr.ip().is_loopback()) {
        Some(addr) => Err(ConfigError::Api { addr }),
        None => Ok(()),
    }
}
