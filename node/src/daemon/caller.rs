//! Who asks, and what that one may touch.
//!
//! On the node's own socket the owner of the machine asks: any agent of the node, any space of it.
//! Through the door of a sandbox a guest asks, and a guest is hostile: it has one agent and a list of
//! spaces, both fixed when the sandbox was made, whatever it writes into a request. Over TCP the holder
//! of a token asks, bound in the same way. On a control stream
//! another node asks: what its grants allow, and never as an agent of this node.
use std::sync::Arc;

use axum::http::StatusCode;
use rhizome_identity::{AgentId, Authority, Hash, NodeId, SpaceId};
use tokio::sync::OwnedSemaphorePermit;

use super::{names::Names, node::Node};
use crate::{agents::LocalAgent, api::token::Holder, door::limit::Limits, error::ApiError};

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Whoever can open the node's socket.
    Owner,
    /// What runs in a sandbox.
    Guest(Arc<Guest>),
    /// Whoever holds a token, over TCP.
    Token(Arc<Holder>),
    /// Another node, its key proved by its connection.
    Peer(NodeId),
}

/// A sandbox as the door sees it; made by the node, not by the guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) sandbox: String,
    pub(crate) image: String,
    /// The agent it works for; without one it may ask nothing but who it is.
    pub(crate) agent: Option<AgentId>,
    /// The spaces it may use, its default first.
    pub(crate) spaces: Vec<SpaceId>,
    pub(crate) fingerprint: Hash,
    pub(crate) limits: Arc<Limits>,
}

/// The spaces of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope(pub(crate) Vec<SpaceId>);

impl Scope {
    pub(crate) fn allows(&self, space: &SpaceId) -> bool {
        self.0.contains(space)
    }

    /// Returns the space if there is just one.
    pub(crate) fn single(&self) -> Option<SpaceId> {
        match self.0[..] {
            [space] => Some(space),
            _ => None,
        }
    }
}

impl Caller {
    /// Returns the agent that speaks, `wanted` being what the request says.
    pub(crate) async fn agent(
        &self,
        node: &Node,
        wanted: Option<&str>,
    ) -> Result<LocalAgent, ApiError> {
        match (self, wanted) {
            (Self::Owner, None) => node.default_agent().await,
            (Self::Owner, Some(wanted)) => {
                let id = Names(&node.replica.authority()).find_agent(&node.id(), wanted)?;
                node.local_agent(&id)
            }
            (Self::Peer(_), _) => Err(ApiError::denied(
                "another node cannot speak as an agent of this one",
            )),
            (Self::Guest(guest), wanted) => {
                let own = node.local_agent(&guest.agent()?)?;
                only(&own, wanted, "a sandbox can speak as its own agent alone")?;
                Ok(own)
            }
            (Self::Token(holder), wanted) => {
                let own = node.local_agent(&holder.agent)?;
                only(&own, wanted, "a token can speak as its own agent alone")?;
                Ok(own)
            }
        }
    }

    /// Returns the spaces that the caller may read, in which `wanted` may name one.
    pub(crate) fn readable(&self, node: &Node, wanted: Option<&str>) -> Result<Scope, ApiError> {
        let authority = node.replica.authority();
        let mine = self.spaces(node, &authority)?;
        match wanted {
            None => Ok(Scope(mine)),
            Some(wanted) => self
                .one_of(&authority, &mine, wanted)
                .map(|space| Scope(vec![space])),
        }
    }

    /// Returns the one space of a request that needs one.
    pub(crate) fn space(&self, node: &Node, wanted: Option<&str>) -> Result<SpaceId, ApiError> {
        let authority = node.replica.authority();
        let mine = self.spaces(node, &authority)?;
        match (wanted, self, &mine[..]) {
            (Some(wanted), _, _) => self.one_of(&authority, &mine, wanted),
            (None, _, []) => Err(ApiError::new(
                StatusCode::CONFLICT,
                "no_space",
                "there is no space to use here",
            )
            .hint("make one with `rhizome space create <name>`, or join a mesh that has one")),
            // A guest's first space is its default; the owner is asked rather than surprised.
            (None, Self::Guest(_) | Self::Token(_), [first, ..]) | (None, _, [first]) => Ok(*first),
            (None, _, several) => {
                let names: Vec<_> = several
                    .iter()
                    .map(|id| Names(&authority).space(id).to_string())
                    .collect();
                Err(ApiError::new(
                    StatusCode::BAD_REQUEST,
                    "space_needed",
                    "this node has several spaces and the request names none",
                )
                .hint(format!("add `--space`, one of: {}", names.join(", "))))
            }
        }
    }

    /// Returns every space the caller may use.
    pub(crate) fn spaces(
        &self,
        node: &Node,
        authority: &Authority,
    ) -> Result<Vec<SpaceId>, ApiError> {
        let me = node.id();
        let readable = |space: &SpaceId| {
            authority
                .role_in(&me, space)
                .is_some_and(rhizome_identity::Role::can_read)
        };
        match self {
            Self::Owner => {
                node.need_mesh()?;
                Ok(authority
                    .spaces()
                    .map(|space| space.id)
                    .filter(readable)
                    .collect())
            }
            Self::Peer(peer) => Ok(authority
                .spaces()
                .map(|space| space.id)
                .filter(|space| {
                    let role = authority.role_in(peer, space);
                    readable(space) && role.is_some_and(rhizome_identity::Role::can_write)
                })
                .collect()),
            Self::Guest(guest) => {
                let spaces = certified(authority, &guest.agent()?, &guest.spaces);
                Ok(spaces.filter(readable).collect())
            }
            Self::Token(holder) => {
                let spaces = certified(authority, &holder.agent, &holder.spaces);
                Ok(spaces.filter(readable).collect())
            }
        }
    }

    fn one_of(
        &self,
        authority: &Authority,
        mine: &[SpaceId],
        wanted: &str,
    ) -> Result<SpaceId, ApiError> {
        let names = Names(authority);
        // Looked up among one's own first: a guest learns nothing about the names of other spaces.
        let named: Vec<_> = mine
            .iter()
            .filter(|id| names.space(id).name == wanted || id.to_string() == wanted)
            .copied()
            .collect();
        match (self, &named[..]) {
            (_, [one]) => Ok(*one),
            (Self::Guest(_) | Self::Token(_), []) => {
                let of = match self {
                    Self::Guest(_) => "this sandbox",
                    _ => "this token",
                };
                Err(ApiError::denied(format!(
                    "the space `{}` is not among those of {of}",
                    wanted.chars().take(80).collect::<String>()
                ))
                .hint(format!("`GET /v1/self` lists the spaces of {of}")))
            }
            (_, []) => {
                names.find_space(wanted)?;
                Err(
                    ApiError::denied(format!("this node may not read the space `{wanted}`"))
                        .hint("ask an admin of the mesh for a role in it"),
                )
            }
            (_, _) => Err(
                ApiError::bad_request(format!("several spaces are called `{wanted}`"))
                    .hint("name the space by its id; `rhizome space list` shows it"),
            ),
        }
    }

    /// Returns the runtime fingerprint to stamp.
    pub(crate) fn fingerprint(&self, node: &Node) -> Hash {
        match self {
            Self::Owner | Self::Token(_) | Self::Peer(_) => node.host_fingerprint,
            Self::Guest(guest) => guest.fingerprint,
        }
    }

    pub(crate) fn guest(&self) -> Option<&Guest> {
        match self {
            Self::Owner | Self::Token(_) | Self::Peer(_) => None,
            Self::Guest(guest) => Some(guest),
        }
    }

    /// Whether what lies outside the caller's spaces is to look as if it were not there.
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self, Self::Guest(_) | Self::Token(_))
    }

    /// Whether the caller may make and use sandboxes, of its spaces if it is bound to some.
    pub(crate) fn may_sandbox(&self) -> bool {
        match self {
            Self::Owner => true,
            Self::Token(holder) => holder.may_sandbox,
            Self::Guest(_) | Self::Peer(_) => false,
        }
    }

    /// Takes the right to one long stream.
    pub(crate) fn stream_permit(&self, node: &Node) -> Result<OwnedSemaphorePermit, ApiError> {
        let streams = match self {
            Self::Owner | Self::Peer(_) => &node.streams,
            Self::Guest(guest) => &guest.limits.streams,
            Self::Token(holder) => &holder.limits.streams,
        };
        Arc::clone(streams).try_acquire_owned().map_err(|_| {
            ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_streams",
                "too many streams are open already",
            )
            .hint("end one of the others first")
        })
    }
}

/// Fails if `wanted` names another agent than `own`.
pub(super) fn only(own: &LocalAgent, wanted: Option<&str>, message: &str) -> Result<(), ApiError> {
    if wanted.is_some_and(|wanted| wanted != own.name && wanted != own.id().to_string()) {
        return Err(
            ApiError::denied(message).hint("leave `agent` out: the node knows for whom this is")
        );
    }
    Ok(())
}

/// Returns those of `spaces` that the certificate of `agent` names: it may have shrunk since.
fn certified<'a>(
    authority: &'a Authority,
    agent: &AgentId,
    spaces: &'a [SpaceId],
) -> impl Iterator<Item = SpaceId> + 'a {
    let certified = authority.agent(agent);
    spaces.iter().copied().filter(move |space| {
        certified.is_some_and(|agent| {
            let allowed = agent.spaces.as_ref();
            allowed.is_none_or(|allowed| allowed.contains(space))
        })
    })
}

impl Guest {
    fn agent(&self) -> Result<AgentId, ApiError> {
        self.agent.ok_or_else(|| {
            ApiError::new(
                StatusCode::FORBIDDEN,
                "no_agent",
                "this sandbox works for no agent",
            )
            .hint("create the sandbox with `--agent`")
        })
    }
}
