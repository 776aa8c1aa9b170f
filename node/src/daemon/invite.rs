//! Invites: open, list, close, approve.
use std::net::SocketAddr;

use axum::http::StatusCode;
use rhizome_identity::{
    Authority, Invite, InviteEndpoint, InviteId, InviteParams, InviteState, Role, issue,
};
use rhizome_memory::now_ms;

use super::{fail, memory::clip, names::Names, node::Node};
use crate::{
    api::types::{
        Named, SCHEMA,
        mesh::{
            ApproveBody, InviteBody, InviteClosed, InviteCreated, InviteInfo, Invites, JoinRequest,
            JoinRequests,
        },
    },
    error::ApiError,
};

/// How long an invite holds if nothing is said, in seconds.
const INVITE_SECS: u64 = 24 * 60 * 60;
/// The longest an invite may hold, in seconds.
const MAX_INVITE_SECS: u64 = 366 * 24 * 60 * 60;
/// Addresses of one node in an invite: more make it long without making it better.
const MAX_INVITE_ADDRS: usize = 4;
/// Fewest characters of an id that stand for it.
const MIN_PREFIX: usize = 4;

impl Node {
    /// Opens an invite.
    pub(crate) async fn create_invite(&self, body: InviteBody) -> Result<InviteCreated, ApiError> {
        let authority = self.need_mesh()?;
        let role: Role = match body.role.as_deref() {
            None => Role::Writer,
            Some(role) => role
                .parse()
                .map_err(|error| ApiError::bad_request("no such role").caused_by(Some(&error)))?,
        };
        let spaces = self.resolve_spaces(&authority, &body.spaces)?;
        let secs = body.expires_secs.unwrap_or(INVITE_SECS);
        if secs == 0 || secs > MAX_INVITE_SECS {
            return Err(ApiError::bad_request(
                "an invite holds from a second to a year",
            ));
        }
        let uses = body.uses.unwrap_or(1);
        if uses == 0 {
            return Err(ApiError::bad_request("an invite has at least one use"));
        }
        let addrs = self.invite_addrs(&body.addrs)?;
        let endpoint = InviteEndpoint {
            node: self.id(),
            addrs: addrs.clone(),
            relays: self.mesh.local_relays(),
        };
        let invite = self
            .append(move |key, authority, now| {
                let params = InviteParams {
                    role,
                    spaces,
                    uses,
                    not_after_ms: now.saturating_add(secs * 1_000),
                    approve: body.approve,
                    endpoints: vec![endpoint],
                };
                let (record, invite) =
                    issue::open_invite(key, authority, params, now).map_err(fail::issue)?;
                Ok((vec![record], invite))
            })
            .await?;
        let authority = self.replica.authority();
        let state = authority
            .invite(&invite.id())
            .ok_or_else(|| ApiError::internal("the new invite is not in the log"))?;
        Ok(InviteCreated {
            schema: SCHEMA,
            info: invite_info(&authority, state),
            invite: invite.to_string(),
            addrs: addrs.iter().map(ToString::to_string).collect(),
        })
    }

    /// Lists the invites of the mesh.
    pub(crate) fn invites(&self) -> Result<Invites, ApiError> {
        let authority = self.need_mesh()?;
        let invites = authority
            .invites()
            .map(|state| invite_info(&authority, state))
            .collect();
        Ok(Invites {
            schema: SCHEMA,
            invites,
        })
    }

    /// Closes an invite: an id, a prefix of one, or the string itself.
    pub(crate) async fn close_invite(&self, wanted: &str) -> Result<InviteClosed, ApiError> {
        let authority = self.need_mesh()?;
        let invite = find_invite(&authority, wanted)?;
        self.append(move |key, authority, now| {
            let record = issue::close_invite(key, authority, invite, now).map_err(fail::issue)?;
            Ok((vec![record], ()))
        })
        .await?;
        let authority = self.replica.authority();
        let state = authority
            .invite(&invite)
            .ok_or_else(|| ApiError::internal("the invite is not in the log any more"))?;
        Ok(InviteClosed {
            schema: SCHEMA,
            info: invite_info(&authority, state),
        })
    }

    /// Lists the nodes that ask to be let in.
    pub(crate) fn join_requests(&self) -> JoinRequests {
        let mut requests: Vec<JoinRequest> = self
            .mesh
            .join_requests()
            .into_iter()
            .map(|request| JoinRequest {
                node: Named {
                    id: request.node.to_string(),
                    name: request.name,
                },
                invite: request.invite.to_string(),
                asked_ms: request.asked_ms,
                approved: request.approved,
            })
            .collect();
        requests.sort_by_key(|request| request.asked_ms);
        JoinRequests {
            schema: SCHEMA,
            requests,
        }
    }

    /// Approves a node that asks to be let in.
    pub(crate) fn approve_join(&self, body: &ApproveBody) -> Result<JoinRequests, ApiError> {
        let wanted = &body.node[..];
        let is_meant = |request: &&JoinRequest| {
            let id = &request.node.id;
            let is_prefix = wanted.len() >= MIN_PREFIX && id.starts_with(wanted);
            is_prefix || request.node.name == wanted
        };
        let all = self.join_requests().requests;
        let meant: Vec<&JoinRequest> = all.iter().filter(is_meant).collect();
        let Some(first) = meant.first() else {
            let message = format!("no node `{}` asks to be let in", clip(wanted));
            return Err(ApiError::not_found(message)
                .hint("`rhizome invite requests` shows who does; a node asks by `rhizome join`"));
        };
        // A name is what the newcomer says of itself: two may say the same.
        if meant.iter().any(|other| other.node.id != first.node.id) {
            let message = format!("`{}` could be several nodes", clip(wanted));
            return Err(ApiError::bad_request(message).hint("give its id"));
        }
        let node = first
            .node
            .id
            .parse()
            .map_err(|_| ApiError::internal("a node's id is one"))?;
        if !self.mesh.approve_join(&node) {
            return Err(ApiError::not_found(
                "the node has just been let in, or forgotten",
            ));
        }
        let mut approved = self.join_requests();
        approved
            .requests
            .retain(|request| request.node.id == first.node.id);
        Ok(approved)
    }

    fn invite_addrs(&self, wanted: &[String]) -> Result<Vec<SocketAddr>, ApiError> {
        let parse = |text: &String| {
            text.parse::<SocketAddr>().map_err(|error| {
                let message = format!("`{}` is no address", super::memory::clip(text));
                ApiError::bad_request(message)
                    .caused_by(Some(&error))
                    .hint("write it as ip:port")
            })
        };
        let mut addrs = if wanted.is_empty() {
            let own = &self.config.advertise;
            if own.is_empty() {
                self.mesh.local_addrs()
            } else {
                own.clone()
            }
        } else {
            wanted.iter().map(parse).collect::<Result<_, _>>()?
        };
        addrs.retain(|addr| !addr.ip().is_unspecified() && addr.port() != 0);
        // Loopback is of use to a node on the same machine alone, so it comes last.
        addrs.sort_by_key(|addr| addr.ip().is_loopback());
        addrs.truncate(MAX_INVITE_ADDRS);
        if addrs.is_empty() {
            let message = "this node knows no address at which others could reach it";
            return Err(ApiError::new(StatusCode::CONFLICT, "no_address", message)
                .hint("start it with `--bind ip:port` or `--advertise ip:port`"));
        }
        Ok(addrs)
    }
}

fn find_invite(authority: &Authority, wanted: &str) -> Result<InviteId, ApiError> {
    let wanted = wanted.trim();
    if let Ok(invite) = wanted.parse::<Invite>() {
        return Ok(invite.id());
    }
    let starts = |state: &&InviteState| state.id.to_string().starts_with(wanted);
    let mut meant = authority.invites().filter(starts);
    match (meant.next(), meant.next()) {
        (Some(state), None) if wanted.len() >= MIN_PREFIX => Ok(state.id),
        (Some(_), Some(_)) if wanted.len() >= MIN_PREFIX => {
            let message = format!("`{}` could be several invites", clip(wanted));
            Err(ApiError::bad_request(message).hint("give more characters of the id"))
        }
        _ => Err(
            ApiError::not_found(format!("no invite is called `{}`", clip(wanted)))
                .hint("`rhizome invite list` shows them"),
        ),
    }
}

fn invite_info(authority: &Authority, state: &InviteState) -> InviteInfo {
    let names = Names(authority);
    let word = if state.closed {
        "closed"
    } else if state.used >= state.uses {
        "spent"
    } else if now_ms() > state.not_after_ms {
        "expired"
    } else {
        "open"
    };
    InviteInfo {
        id: state.id.to_string(),
        role: state.role.to_string(),
        spaces: names.spaces(&state.spaces),
        uses: state.uses,
        used: state.used,
        not_after_ms: state.not_after_ms,
        issuer: names.node(&state.issuer),
        state: word.to_owned(),
        approve: state.approve,
    }
}
