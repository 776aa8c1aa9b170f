//! Members: who they are, ending what they may do, giving back what was set aside of their work.
use std::collections::BTreeSet;

use axum::http::StatusCode;
use rhizome_identity::{
    AgentId, Authority, NodeId, PublicKey, Revocation, Role, SecretKey, SpaceId, issue, keyfile,
    record::Cut,
};
use rhizome_memory::Replica;

use super::{
    fail,
    memory::clip,
    names::Names,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        Done, Named, SCHEMA,
        member::{
            Member, MemberChain, MemberRestored, MemberRevocation, MemberRevoked, MemberRole,
            MemberShown, Members, RestoreMemberBody, RevokeMemberParams,
        },
    },
    error::ApiError,
};

/// Fewest characters of an id that stand for it.
const MIN_PREFIX: usize = 4;

/// What stays of what somebody said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All that counts here.
    Seen,
    Nothing,
    /// What is dated before this, in Unix milliseconds.
    Before(u64),
}

impl Keep {
    pub(crate) fn parse(text: Option<&str>, default: Self) -> Result<Self, ApiError> {
        let bad = || {
            ApiError::bad_request("what is kept is `seen`, `none` or `before:` and a time")
                .hint("give the time in Unix milliseconds, such as before:1790000000000")
        };
        match text {
            None => Ok(default),
            Some("seen") => Ok(Self::Seen),
            Some("none") => Ok(Self::Nothing),
            Some(text) => {
                let at = text.strip_prefix("before:").ok_or_else(bad)?;
                at.parse().map(Self::Before).map_err(|_| bad())
            }
        }
    }

    /// Returns the cuts that keep as much of the chains of `authors`.
    pub(crate) fn cuts(self, replica: &Replica, authors: &[AgentId]) -> Vec<Cut> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Seen => replica.cuts_of(authors, false),
            Self::Before(at_ms) => {
                let seen = replica.cuts_of(authors, false).into_iter();
                seen.filter_map(|cut| replica.cut_before(&cut.author, &cut.space, at_ms))
                    .collect()
            }
        }
    }
}

impl Node {
    /// Lists the members by name, then those who were revoked.
    pub(crate) fn members(&self) -> Result<Members, ApiError> {
        let authority = self.need_mesh()?;
        let mut members: Vec<Member> = authority
            .members()
            .map(|member| member_of(&authority, member.node))
            .collect();
        members.sort_by(|a, b| (&a.node.name, &a.node.id).cmp(&(&b.node.name, &b.node.id)));
        let gone: BTreeSet<NodeId> = revoked_nodes(&authority).collect();
        members.extend(gone.into_iter().map(|node| member_of(&authority, node)));
        let halted = authority.halted().iter().map(ToString::to_string);
        Ok(Members {
            schema: SCHEMA,
            halted: halted.collect(),
            members,
        })
    }

    /// Shows a member, or one who was.
    pub(crate) fn show_member(&self, wanted: &str) -> Result<MemberShown, ApiError> {
        let authority = self.need_mesh()?;
        let node = find_member(&authority, wanted)?;
        let key = PublicKey::from(node);
        let revocations = authority.revocations_of(&key);
        Ok(MemberShown {
            schema: SCHEMA,
            member: member_of(&authority, node),
            chains: self.chains_of(&authority, &authority.authors_through(&key)),
            revocations: revocations
                .map(|revocation| revocation_of(&authority, revocation))
                .collect(),
        })
    }

    /// Ends a node's membership and gives the spaces it could read new keys.
    pub(crate) async fn revoke_member(
        &self,
        wanted: &str,
        params: RevokeMemberParams,
    ) -> Result<MemberRevoked, ApiError> {
        let authority = self.need_mesh()?;
        let node = find_member(&authority, wanted)?;
        let keep = Keep::parse(params.keep.as_deref(), Keep::Seen)?;
        let Some(member) = authority.member(&node) else {
            let message = format!("`{}` was revoked already", clip(wanted));
            return Err(ApiError::new(StatusCode::CONFLICT, "revoked", message)
                .hint("`rhizome member show` says by whom"));
        };
        let name = Names(&authority).node(&node);
        let could_read = member.spaces.iter().filter(|(_, role)| role.can_read());
        let spaces: Vec<SpaceId> = could_read.map(|(space, _)| *space).collect();
        let root = self.root_if(params.as_root).await?;
        let reason = params.reason.unwrap_or_default();
        let replica = self.replica.clone();
        let kept = self
            .append(move |key, authority, now| {
                let authors = authority.authors_through(&node.into());
                let cuts = keep.cuts(&replica, &authors);
                let kept = cuts.len();
                let signer = root.as_ref().unwrap_or(key.secret());
                let records = issue::revoke(signer, authority, node.into(), cuts, &reason, now)
                    .map_err(fail::issue)?;
                Ok((records, kept))
            })
            .await?;
        let rekeyed = self.rekey(spaces).await?;
        Ok(MemberRevoked {
            schema: SCHEMA,
            member: name,
            kept,
            rekeyed: Names(&authority).spaces(&rekeyed),
        })
    }

    /// Gives these spaces new keys, as far as this node may; returns those.
    async fn rekey(&self, spaces: Vec<SpaceId>) -> Result<Vec<SpaceId>, ApiError> {
        let mut rekeyed = Vec::new();
        for space in spaces {
            match self.rotate_if(space, false).await {
                Ok(()) => rekeyed.push(space),
                Err(error) => tracing::warn!(space = %space.fmt_short(), %error,
                    "the space keeps its key, which one who was revoked knows"),
            }
        }
        Ok(rekeyed)
    }

    /// Gives back what was set aside of a node's agents, or of one agent, as far as it is here.
    pub(crate) async fn restore_member(
        &self,
        wanted: &str,
        body: RestoreMemberBody,
    ) -> Result<MemberRestored, ApiError> {
        let authority = self.need_mesh()?;
        let (name, key) = find_author(&authority, wanted)?;
        let root = self.root_if(body.as_root).await?;
        let replica = self.replica.clone();
        let amended = self
            .append(move |node, authority, now| {
                let signer = root.as_ref().unwrap_or(node.secret());
                let authors = authority.authors_through(&key);
                let mut records = Vec::new();
                let mut amended = Vec::new();
                for (target, cuts) in what_to_amend(authority, &replica, &key, &authors) {
                    let made = issue::amend(signer, authority, target, &cuts, now);
                    records.extend(made.map_err(fail::issue)?);
                    amended.push(target.to_string());
                }
                if records.is_empty() {
                    let message = "nothing of its work is set aside on this node";
                    return Err(
                        ApiError::new(StatusCode::CONFLICT, "nothing_set_aside", message)
                            .hint("`rhizome member show` lists its chains; restore where they are"),
                    );
                }
                Ok((records, amended))
            })
            .await?;
        let authority = self.replica.authority();
        Ok(MemberRestored {
            schema: SCHEMA,
            member: name,
            amended,
            chains: self.chains_of(&authority, &authority.authors_through(&key)),
        })
    }

    /// Takes a store that was put back from a copy for the whole.
    pub(crate) async fn accept_copy(&self) -> Result<Done, ApiError> {
        let replica = self.replica.clone();
        blocking(move || replica.accept_copy()).await?;
        Ok(Done::default())
    }

    async fn root_if(&self, as_root: bool) -> Result<Option<SecretKey>, ApiError> {
        if !as_root {
            return Ok(None);
        }
        let key = self.load_key("root.key", keyfile::KeyKind::Root).await?;
        key.map(Some).map_err(|error| {
            fail::key_file(error).hint("`rhizome root import` brings the root key to this node")
        })
    }

    fn chains_of(&self, authority: &Authority, authors: &[AgentId]) -> Vec<MemberChain> {
        let names = Names(authority);
        let mut chains = Vec::new();
        for tip in self.replica.cuts_of(authors, true) {
            let set_aside = self.replica.set_aside(&tip.author, &tip.space);
            chains.push(MemberChain {
                agent: names.author(&tip.author),
                space: names.space(&tip.space),
                counts: (tip.seq + 1).saturating_sub(set_aside),
                set_aside,
                frozen: authority.frozen(&tip.author, &tip.space).is_some(),
            });
        }
        chains
    }
}

/// Returns each record that sets something aside of `authors`, with the cuts that give it back.
fn what_to_amend(
    authority: &Authority,
    replica: &Replica,
    key: &PublicKey,
    authors: &[AgentId],
) -> Vec<(rhizome_identity::RecordId, Vec<Cut>)> {
    let aside = |cut: &Cut| replica.set_aside(&cut.author, &cut.space) > 0;
    let all = replica.cuts_of(authors, true);
    let mut amends = Vec::new();
    let revocations = authority.revocations_of(key);
    if all.iter().any(aside) {
        amends.extend(revocations.map(|revocation| (revocation.record, all.clone())));
    }
    for cut in all.into_iter().filter(aside) {
        let is_revoked = authority.is_revoked(&cut.author.into());
        if let Some(frozen) = authority
            .frozen(&cut.author, &cut.space)
            .filter(|_| !is_revoked)
        {
            amends.push((frozen.proof, vec![cut]));
        }
    }
    amends
}

fn revoked_nodes(authority: &Authority) -> impl Iterator<Item = NodeId> {
    let agents: BTreeSet<PublicKey> = authority
        .all_authors()
        .map(|agent| PublicKey::from(*agent))
        .collect();
    let gone = authority
        .revocations()
        .map(|revocation| revocation.subject)
        .filter(|key| authority.is_revoked(key) && !agents.contains(key));
    gone.map(|key| NodeId::from_bytes(*key.as_bytes()))
        .collect::<Vec<_>>()
        .into_iter()
}

fn member_of(authority: &Authority, node: NodeId) -> Member {
    let names = Names(authority);
    let member = authority.member(&node);
    let roles = member.into_iter().flat_map(|member| &member.spaces);
    Member {
        node: names.node(&node),
        state: if member.is_some() {
            "member"
        } else {
            "revoked"
        }
        .to_owned(),
        role: member.map(|member| member.role.to_string()),
        spaces: roles
            .map(|(space, role): (&SpaceId, &Role)| MemberRole {
                space: names.space(space),
                role: role.to_string(),
            })
            .collect(),
        since_ms: member.map(|member| member.since_ms),
        agents: authority.authors_through(&node.into()).len(),
    }
}

fn revocation_of(authority: &Authority, revocation: &Revocation) -> MemberRevocation {
    MemberRevocation {
        record: revocation.record.to_string(),
        by: Names(authority).node(&NodeId::from_bytes(*revocation.by.as_bytes())),
        by_root: revocation.by_root,
        reason: revocation.reason.clone(),
        at_ms: revocation.at_ms,
    }
}

/// Tells a node that it is a member no longer, and by whom.
pub(super) fn was_revoked(authority: &Authority, revocation: &Revocation) -> ApiError {
    let revocation = revocation_of(authority, revocation);
    let by = match (revocation.by_root, revocation.by.name.as_str()) {
        (true, _) => "the mesh's root key",
        (false, "") => "an admin who has left",
        (false, name) => name,
    };
    let why = match revocation.reason.as_str() {
        "" => String::new(),
        reason => format!(": {}", clip(reason)),
    };
    let message = format!("this node was revoked by {}{why}", clip(by));
    ApiError::new(StatusCode::CONFLICT, "revoked", message)
        .hint("what it holds stays here; to come back, join with a new invite of an admin's")
}

/// Returns the one node that `wanted` names, by name, id or the beginning of it.
fn find_member(authority: &Authority, wanted: &str) -> Result<NodeId, ApiError> {
    let all = authority
        .members()
        .map(|member| (member.node, member.name.as_str()))
        .chain(revoked_nodes(authority).map(|node| (node, "")));
    let is_meant = |(node, name): &(NodeId, &str)| {
        let is_prefix = wanted.len() >= MIN_PREFIX && node.to_string().starts_with(wanted);
        is_prefix || (!name.is_empty() && *name == wanted)
    };
    let meant: BTreeSet<NodeId> = all.filter(is_meant).map(|(node, _)| node).collect();
    let mut meant = meant.into_iter();
    match (meant.next(), meant.next()) {
        (Some(node), None) => Ok(node),
        (Some(_), Some(_)) => {
            let message = format!("`{}` could be several members", clip(wanted));
            Err(ApiError::bad_request(message).hint("give its id"))
        }
        _ => {
            let message = format!("no member is called `{}`", clip(wanted));
            Err(ApiError::not_found(message).hint("`rhizome member list` shows them"))
        }
    }
}

/// Returns whose work is meant: a node's agents' all, or that of one agent.
fn find_author(authority: &Authority, wanted: &str) -> Result<(Named, PublicKey), ApiError> {
    let names = Names(authority);
    let unknown = match find_member(authority, wanted) {
        Ok(node) => return Ok((names.node(&node), node.into())),
        Err(error) => error,
    };
    let is_meant = |agent: &&AgentId| {
        let is_prefix = wanted.len() >= MIN_PREFIX && agent.to_string().starts_with(wanted);
        is_prefix || authority.author_name(agent) == Some(wanted)
    };
    let mut meant = authority.all_authors().filter(is_meant);
    match (meant.next(), meant.next()) {
        (Some(agent), None) => Ok((names.author(agent), (*agent).into())),
        _ => Err(unknown),
    }
}
