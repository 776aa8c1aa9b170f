//! What one client may touch.
use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::Deserialize;

use super::profile::{DEFAULT, Profiles};
use crate::{
    daemon::{
        caller::{Caller, Scope},
        node::Node,
    },
    error::ApiError,
};

/// Profiles that one client may ask for at once.
const MAX_PROFILES: usize = 8;

/// What one client of MCP may touch, fixed by its credential before the first message.
#[derive(Clone)]
pub(crate) struct Session {
    /// The node.
    pub(crate) node: Arc<Node>,
    /// Whose credential it is.
    pub(crate) caller: Caller,
    /// The agent that speaks: one of those that the credential allows, or its own.
    pub(crate) agent: Option<String>,
    /// The one space of this client; all that the credential allows, if none.
    pub(crate) space: Option<String>,
    /// The task of whoever names none.
    pub(crate) task: Option<String>,
}

/// The query of `/mcp` and of `POST /v1/mcp/pipe`: it narrows what the credential allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    /// Profiles, with commas between.
    profile: Option<String>,
    /// 1 to call a tool that two of them have by its profile too, such as `kg_delete_entities`.
    prefix: Option<u8>,
    agent: Option<String>,
    space: Option<String>,
    task: Option<String>,
}

impl Session {
    /// Returns the session of a client with the credential of `caller`, and its profiles.
    ///
    /// # Errors
    /// If the query names what the credential does not allow, or what is not here.
    pub(crate) async fn open(
        node: Arc<Node>,
        caller: Caller,
        query: Query,
    ) -> Result<(Self, Profiles), ApiError> {
        let names: Vec<_> = query
            .profile
            .as_deref()
            .unwrap_or(DEFAULT)
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        if names.len() > MAX_PROFILES {
            let message = format!("a client may ask for {MAX_PROFILES} profiles at most");
            return Err(ApiError::bad_request(message));
        }
        let prefix = match query.prefix {
            None | Some(0) => false,
            Some(1) => true,
            Some(_) => return Err(ApiError::bad_request("`prefix` is 0 or 1")),
        };
        let profiles = Profiles::of(&names, prefix)
            .map_err(|error| ApiError::bad_request(&error).hint(error.hint()))?;
        // Asked for now, so that a wrong name is told where it was written.
        if query.agent.is_some() {
            caller.agent(&node, query.agent.as_deref()).await?;
        }
        if query.space.is_some() {
            caller.readable(&node, query.space.as_deref())?;
        }
        let session = Self {
            node,
            caller,
            agent: query.agent,
            space: query.space,
            task: query.task,
        };
        Ok((session, profiles))
    }

    /// Returns the spaces that this client may read now.
    pub(crate) fn scope(&self) -> Result<Scope, ApiError> {
        self.caller.readable(&self.node, self.space.as_deref())
    }

    /// Returns whether this client has the credential of the node's owner.
    pub(crate) fn is_owner(&self) -> bool {
        matches!(self.caller, Caller::Owner)
    }

    /// Waits until the credential is taken back.
    pub(crate) async fn revoked(&self) {
        match &self.caller {
            Caller::Token(holder) => holder.revoked.cancelled().await,
            _ => std::future::pending().await,
        }
    }

    /// Returns whether this client may make sandboxes and work in them.
    pub(crate) fn may_sandbox(&self) -> bool {
        self.caller.may_sandbox()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("caller", &self.caller)
            .field("agent", &self.agent)
            .field("space", &self.space)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}
