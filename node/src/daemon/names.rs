//! From what people write to ids, and back.
use rhizome_identity::{AgentId, Authority, NodeId, SpaceId};

use crate::{
    api::types::{Named, memory::Trust},
    error::ApiError,
};

/// Names as one state of the authority log gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a>(pub(crate) &'a Authority);

impl Names<'_> {
    pub(crate) fn agent(self, id: &AgentId) -> Named {
        let name = self.0.agent(id).map(|agent| agent.name.clone());
        Named {
            id: id.to_string(),
            name: name.unwrap_or_default(),
        }
    }

    /// Names an agent also when its certificates have ended.
    pub(crate) fn author(self, id: &AgentId) -> Named {
        Named {
            id: id.to_string(),
            name: self.0.author_name(id).unwrap_or_default().to_owned(),
        }
    }

    pub(crate) fn node(self, id: &NodeId) -> Named {
        let name = self.0.member(id).map(|member| member.name.clone());
        Named {
            id: id.to_string(),
            name: name.unwrap_or_default(),
        }
    }

    pub(crate) fn space(self, id: &SpaceId) -> Named {
        let name = self.0.space(id).map(|space| space.name.clone());
        Named {
            id: id.to_string(),
            name: name.unwrap_or_default(),
        }
    }

    pub(crate) fn spaces<'s>(self, ids: impl IntoIterator<Item = &'s SpaceId>) -> Vec<Named> {
        ids.into_iter().map(|id| self.space(id)).collect()
    }

    /// Returns whose word something of `author` on `node` is, seen from `me`.
    pub(crate) fn trust(self, me: &NodeId, author: &AgentId, node: &NodeId) -> Trust {
        match self.0.agent(author) {
            Some(agent) if agent.node == *node && node == me => Trust::Own,
            Some(agent) if agent.node == *node && self.0.is_member(node) => Trust::Member,
            _ => Trust::Unknown,
        }
    }

    /// Returns the space that `wanted` names, by name or id.
    pub(crate) fn find_space(self, wanted: &str) -> Result<SpaceId, ApiError> {
        if let Ok(id) = wanted.parse::<SpaceId>()
            && self.0.space(&id).is_some()
        {
            return Ok(id);
        }
        match self.0.space_named(wanted) {
            Ok(space) => Ok(space.id),
            Err(error) => Err(ApiError::of(
                axum::http::StatusCode::NOT_FOUND,
                "unknown_space",
                &error,
            )
            .hint("`rhizome space list` shows the spaces; one of several with the same name is named by its id")),
        }
    }

    /// Returns the one agent that `wanted` names, by name or id, of those of `node`.
    pub(crate) fn find_agent(self, node: &NodeId, wanted: &str) -> Result<AgentId, ApiError> {
        let unknown = || {
            ApiError::new(
                axum::http::StatusCode::NOT_FOUND,
                "unknown_agent",
                format!("no agent of this node is called `{wanted}`"),
            )
            .hint("`rhizome agent list` shows the agents; `rhizome agent create` makes one")
        };
        let id = wanted.parse::<AgentId>().ok();
        let mut found = self
            .0
            .agents()
            .filter(|agent| agent.node == *node)
            .filter(|agent| id.map_or(agent.name == wanted, |id| agent.id == id));
        let first = found.next().ok_or_else(unknown)?;
        match found.next() {
            None => Ok(first.id),
            Some(_) => Err(
                ApiError::bad_request(format!("several agents are called `{wanted}`"))
                    .hint("name the agent by its id"),
            ),
        }
    }
}
