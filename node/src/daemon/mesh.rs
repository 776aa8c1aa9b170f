//! The mesh: init, join, spaces, agents, peers.
use std::sync::Arc;

use axum::http::StatusCode;
use rhizome_identity::{
    AgentInfo, Authority, Invite, NodeId, RecordId, Role, RootKey, SpaceId, SpaceInfo, Verbs,
    issue, keyfile,
};
use rhizome_memory::{Lane, now_ms};
use rhizome_mesh::net::{PathKind, PeerInfo, PeerState as MeshPeerState, SyncState};

use super::{fail, member::Keep, names::Names, node::Node};
use crate::{
    agents::{LocalAgent, check_agent_name},
    api::types::{
        Named, SCHEMA,
        memory::WhyRecord,
        mesh::{
            Agent, AgentBody, AgentCreated, AgentRevoked, Agents, Founded, InitBody, JoinBody,
            Joined, Peer, PeerPath, PeerState, PeerSync, Peers, RevokeParams, Space, SpaceBody,
            SpaceCreated, Spaces,
        },
    },
    config::check_name,
    error::ApiError,
};

impl Node {
    /// Founds a mesh on this node.
    pub(crate) async fn init(&self, body: InitBody) -> Result<Founded, ApiError> {
        let mesh_name = body.name.unwrap_or_else(|| "mesh".to_owned());
        let node_name = body.node_name.unwrap_or_else(|| self.config.name.clone());
        for name in [&mesh_name, &node_name].into_iter().chain(&body.space) {
            check_name(name).map_err(fail::name)?;
        }
        let (root_path, next_path) = (self.data.join("root.key"), self.data.join("next-root.key"));
        let paths = (root_path.clone(), next_path.clone());
        let vault = Arc::clone(&self.vault);
        self.append(move |key, authority, now| {
            if let Some(mesh) = authority.mesh() {
                return Err(already_member(&mesh.fmt_short(), authority.name()));
            }
            // A root key that lies there is one whose mesh a crash kept from being founded.
            let load = |path| -> Result<RootKey, ApiError> {
                let key = vault.load_or_make(path, keyfile::KeyKind::Root);
                key.map(Into::into).map_err(fail::key_file)
            };
            let (root, next) = (load(&paths.0)?, load(&paths.1)?);
            let records = issue::found(
                &root,
                &next.public(),
                &key.id(),
                &node_name,
                &mesh_name,
                now,
            )
            .map_err(fail::issue)?;
            Ok((records, ()))
        })
        .await?;
        let space = match body.space {
            Some(name) => {
                let space = self.create_space(SpaceBody { name }).await?.space;
                Some(Named {
                    id: space.id,
                    name: space.name,
                })
            }
            None => None,
        };
        self.certify_default_agent().await;
        Ok(Founded {
            schema: SCHEMA,
            mesh: self
                .mesh_named()
                .ok_or_else(|| ApiError::internal("the new mesh is not there"))?,
            node: self.named(),
            root_key: root_path.display().to_string(),
            next_root_key: next_path.display().to_string(),
            space,
        })
    }

    /// Certifies the agent the node speaks as, so that others know its name before it speaks.
    async fn certify_default_agent(&self) {
        // The node is in the mesh by now, which is what was asked; a publish will try again.
        if let Err(error) = self.default_agent().await {
            tracing::warn!(%error, "the node's own agent is not certified yet");
        }
    }

    /// Joins a mesh by invite.
    pub(crate) async fn join(&self, body: JoinBody) -> Result<Joined, ApiError> {
        let node_name = body.node_name.unwrap_or_else(|| self.config.name.clone());
        check_name(&node_name).map_err(fail::name)?;
        let invite: Invite = body
            .invite
            .trim()
            .parse()
            .map_err(|error| fail::invite(&error))?;
        let joined = self
            .mesh
            .join(&invite, &node_name)
            .await
            .map_err(|error| fail::join(&error))?;
        self.certify_default_agent().await;
        let authority = self.replica.authority();
        let names = Names(&authority);
        let member = authority.member(&self.id());
        Ok(Joined {
            schema: SCHEMA,
            mesh: Named {
                id: joined.mesh.to_string(),
                name: authority.name().to_owned(),
            },
            node: self.named(),
            by: names.node(&joined.by),
            role: member
                .map(|member| member.role.to_string())
                .unwrap_or_default(),
            spaces: names.spaces(&joined.spaces),
        })
    }

    /// Makes a space.
    pub(crate) async fn create_space(&self, body: SpaceBody) -> Result<SpaceCreated, ApiError> {
        check_name(&body.name).map_err(fail::name)?;
        self.need_mesh()?;
        let name = body.name;
        let id = self
            .append(move |key, authority, now| {
                if authority.space_named(&name).is_ok() {
                    let message = format!("a space called `{name}` exists already");
                    return Err(ApiError::new(StatusCode::CONFLICT, "space_exists", message)
                        .hint("choose another name; `rhizome space list` shows the spaces"));
                }
                let (record, _key) =
                    issue::create_space(key, authority, &name, now).map_err(fail::issue)?;
                let id = SpaceId::from_bytes(*record.id().as_bytes());
                Ok((vec![record], id))
            })
            .await?;
        let authority = self.replica.authority();
        let info = authority
            .space(&id)
            .ok_or_else(|| ApiError::internal("the new space is not in the log"))?;
        let space = self.space_of(&authority, info);
        Ok(SpaceCreated {
            schema: SCHEMA,
            space,
        })
    }

    /// Lists the spaces of the mesh.
    pub(crate) async fn spaces(&self) -> Result<Spaces, ApiError> {
        self.need_mesh()?;
        Ok(Spaces {
            schema: SCHEMA,
            spaces: self.space_list(|_| true),
        })
    }

    pub(crate) fn space_list(&self, wanted: impl Fn(&Space) -> bool) -> Vec<Space> {
        let authority = self.replica.authority();
        let mut spaces: Vec<_> = authority
            .spaces()
            .map(|info| self.space_of(&authority, info))
            .filter(wanted)
            .collect();
        spaces.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        spaces
    }

    /// Makes an agent: its key first, then the record that certifies it.
    pub(crate) async fn create_agent(&self, body: AgentBody) -> Result<AgentCreated, ApiError> {
        check_agent_name(&body.name).map_err(|error| fail::agent_keys(&error))?;
        let authority = self.need_mesh()?;
        let taken = || {
            let message = format!("this node has an agent called `{}` already", body.name);
            ApiError::new(StatusCode::CONFLICT, "agent_exists", message)
                .hint("choose another name; `rhizome agent list` shows the agents")
        };
        if self.agents().default_agent().name == body.name {
            return Err(taken());
        }
        let spaces = match &body.spaces {
            None => None,
            Some(wanted) => Some(self.resolve_spaces(&authority, wanted)?),
        };
        let not_after = body
            .expires_secs
            .map(|secs| now_ms().saturating_add(secs.saturating_mul(1_000)));
        let (name, me) = (body.name.clone(), self.id());
        let is_taken = move |authority: &Authority| {
            authority
                .agents()
                .any(|agent| agent.node == me && agent.name == name)
        };
        if is_taken(&authority) {
            return Err(taken());
        }
        let by = match &body.by {
            None => None,
            Some(by) => Some(
                self.local_agent(&Names(&authority).find_agent(&me, by)?)?
                    .key,
            ),
        };
        let agent = self
            .agents()
            .make(&body.name)
            .map_err(|error| fail::agent_keys(&error))?;
        let (id, conflict) = (agent.id(), taken());
        self.append(move |key, authority, now| {
            if is_taken(authority) {
                return Err(conflict);
            }
            let LocalAgent { name, key: agent } = agent;
            let record = match by {
                None => issue::certify_agent(key, authority, &agent, &name, spaces, not_after, now),
                Some(by) => {
                    let verbs = authority.agent(&by.id()).map(|info| info.verbs);
                    let scope = issue::AgentScope {
                        spaces,
                        verbs: verbs.unwrap_or(Verbs::ALL),
                        not_after_ms: not_after,
                    };
                    issue::certify_sub_agent(&by, authority, &agent, &name, scope, now)
                }
            };
            Ok((vec![record.map_err(fail::issue)?], ()))
        })
        .await?;
        let authority = self.replica.authority();
        let info = authority
            .agent(&id)
            .ok_or_else(|| ApiError::internal("the new agent is not in the log"))?;
        Ok(AgentCreated {
            schema: SCHEMA,
            agent: self.agent_of(&authority, info),
        })
    }

    /// Ends an agent: its key counts no more, and what it said is hidden.
    pub(crate) async fn revoke_agent(
        &self,
        wanted: &str,
        params: RevokeParams,
    ) -> Result<AgentRevoked, ApiError> {
        let authority = self.need_mesh()?;
        let names = Names(&authority);
        let is_meant = |agent: &&AgentInfo| agent.id.to_string() == wanted || agent.name == wanted;
        // One's own come first: names are unique on a node alone.
        let id = match names.find_agent(&self.id(), wanted) {
            Ok(own) => own,
            Err(unknown) => {
                let mut meant = authority.agents().filter(is_meant);
                match (meant.next(), meant.next()) {
                    (Some(agent), None) => agent.id,
                    (Some(_), Some(_)) => {
                        let message = format!("several agents are called `{wanted}`");
                        return Err(ApiError::bad_request(message).hint("name the agent by its id"));
                    }
                    _ => return Err(unknown),
                }
            }
        };
        let agent = names.agent(&id);
        let reason = params.reason.unwrap_or_default();
        let keep = Keep::parse(params.keep.as_deref(), Keep::Nothing)?;
        let replica = self.replica.clone();
        self.append(move |key, authority, now| {
            let cuts = keep.cuts(&replica, &authority.authors_through(&id.into()));
            let records = issue::revoke(key.secret(), authority, id.into(), cuts, &reason, now);
            Ok((records.map_err(fail::issue)?, ()))
        })
        .await?;
        Ok(AgentRevoked {
            schema: SCHEMA,
            agent,
        })
    }

    /// Lists the agents of the mesh, those of this node first.
    pub(crate) fn agents_list(&self) -> Result<Agents, ApiError> {
        let authority = self.need_mesh()?;
        let mut agents: Vec<_> = authority
            .agents()
            .map(|info| self.agent_of(&authority, info))
            .collect();
        agents.sort_by(|a, b| {
            (!a.here, &a.node.name, &a.name, &a.id).cmp(&(!b.here, &b.node.name, &b.name, &b.id))
        });
        Ok(Agents {
            schema: SCHEMA,
            agents,
        })
    }

    /// Lists the members, this node first.
    pub(crate) fn peers(&self) -> Result<Peers, ApiError> {
        let authority = self.need_mesh()?;
        let me = authority.member(&self.id());
        let this = Peer {
            node: self.id().to_string(),
            name: self.name(),
            role: me.map(|member| member.role.to_string()).unwrap_or_default(),
            state: PeerState::This,
            since_ms: Some(self.started_ms),
            last_seen_ms: None,
            path: None,
            addrs: self.addrs(),
            relay: self.mesh.relay(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sync: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
        };
        let mut others: Vec<_> = self
            .mesh
            .peers()
            .into_iter()
            .map(|peer| peer_of(&authority, peer))
            .collect();
        others.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        let peers = std::iter::once(this).chain(others).collect();
        Ok(Peers {
            schema: SCHEMA,
            peers,
        })
    }

    /// Returns the mesh, if the node belongs to one.
    pub(crate) fn mesh_named(&self) -> Option<Named> {
        let authority = self.replica.authority();
        let mesh = authority.mesh()?;
        Some(Named {
            id: mesh.to_string(),
            name: authority.name().to_owned(),
        })
    }

    pub(crate) fn named(&self) -> Named {
        Named {
            id: self.id().to_string(),
            name: self.name(),
        }
    }

    /// Says what a record of the authority log decides, in a line.
    pub(crate) fn describe_record(&self, authority: &Authority, id: &RecordId) -> WhyRecord {
        let names = Names(authority);
        let record = |kind: &str, says: String| WhyRecord {
            id: id.to_string(),
            kind: kind.to_owned(),
            says,
        };
        if authority
            .mesh()
            .is_some_and(|mesh| mesh.as_bytes() == id.as_bytes())
        {
            return record("genesis", format!("founds the mesh `{}`", authority.name()));
        }
        if let Some(member) = authority.members().find(|member| member.grant == *id) {
            return record(
                "grant",
                format!("lets the node `{}` in as {}", member.name, member.role),
            );
        }
        if let Some(agent) = authority
            .agents()
            .find(|agent| agent.chain.last() == Some(id))
        {
            let node = names.node(&agent.node);
            return record(
                "agent_cert",
                format!("the node `{node}` vouches for `{}`", agent.name),
            );
        }
        let revocation = authority
            .revocations()
            .find(|revocation| revocation.record == *id);
        if let Some(revocation) = revocation {
            let by = names.node(&NodeId::from_bytes(*revocation.by.as_bytes()));
            let who = if revocation.by_root {
                "the root".to_owned()
            } else {
                format!("the node `{by}`")
            };
            let reason = &revocation.reason;
            return record("revoke", format!("{who} ended what it may do: {reason}"));
        }
        if let Some((agent, ..)) = authority
            .all_frozen()
            .find(|(.., frozen)| frozen.proof == *id)
        {
            let agent = names.author(agent);
            return record("fork_proof", format!("shows two histories of `{agent}`"));
        }
        if let Some(space) = authority.space(&SpaceId::from_bytes(*id.as_bytes())) {
            return record("space_create", format!("makes the space `{}`", space.name));
        }
        record("record", String::new())
    }

    /// Returns the spaces that `wanted` names, or all the node can read if it names none.
    pub(crate) fn resolve_spaces(
        &self,
        authority: &Authority,
        wanted: &[String],
    ) -> Result<Vec<SpaceId>, ApiError> {
        if wanted.is_empty() {
            let me = self.id();
            let mine = authority.spaces().map(|space| space.id);
            let readable = mine.filter(|id| authority.role_in(&me, id).is_some_and(Role::can_read));
            return Ok(readable.collect());
        }
        let mut spaces = Vec::with_capacity(wanted.len());
        for name in wanted {
            let space = Names(authority).find_space(name)?;
            if !spaces.contains(&space) {
                spaces.push(space);
            }
        }
        Ok(spaces)
    }

    fn space_of(&self, authority: &Authority, info: &SpaceInfo) -> Space {
        let stats = self.replica.sync_state(&info.id);
        let members = authority
            .members()
            .filter(|member| authority.role_in(&member.node, &info.id).is_some());
        Space {
            id: info.id.to_string(),
            name: info.name.clone(),
            role: authority
                .role_in(&self.id(), &info.id)
                .map(|role| role.to_string()),
            epoch: info.epoch,
            epoch_at_ms: info.epoch_at_ms,
            epoch_stale: info.stale_since_ms.is_some(),
            created_by: Names(authority).node(&info.created_by),
            at_ms: info.at_ms,
            members: members.count(),
            fragments: stats.fragments,
            waiting: stats.waiting,
            quarantined: stats.quarantined,
            heads: stats.heads.to_string(),
        }
    }

    fn agent_of(&self, authority: &Authority, info: &AgentInfo) -> Agent {
        let names = Names(authority);
        Agent {
            id: info.id.to_string(),
            name: info.name.clone(),
            node: names.node(&info.node),
            spaces: info.spaces.as_ref().map(|spaces| names.spaces(spaces)),
            not_after_ms: info.not_after_ms,
            here: self.agents().by_id(&info.id).is_some(),
            default: self.agents().default_agent().id() == info.id,
            forked: self
                .replica
                .forks()
                .iter()
                .any(|fork| fork.author == info.id),
        }
    }
}

fn already_member(mesh: &str, name: &str) -> ApiError {
    let message = format!("this node belongs to the mesh `{name}` ({mesh}) already");
    ApiError::new(StatusCode::CONFLICT, "already_in_mesh", message)
        .hint("use a data directory of its own for each mesh")
}

fn peer_of(authority: &Authority, peer: PeerInfo) -> Peer {
    let lane = |lane: Lane| match lane {
        Lane::Authority => "authority".to_owned(),
        Lane::Space(space) => Names(authority).space(&space).to_string(),
    };
    let sync = peer.sync.into_iter().map(|(which, state)| match state {
        SyncState::InSync { at_ms } => PeerSync {
            lane: lane(which),
            state: "in sync".to_owned(),
            at_ms: Some(at_ms),
        },
        SyncState::Pending => PeerSync {
            lane: lane(which),
            state: "pending".to_owned(),
            at_ms: None,
        },
    });
    Peer {
        node: peer.node.to_string(),
        name: peer.name,
        role: peer.role.to_string(),
        state: match peer.state {
            MeshPeerState::Connected => PeerState::Connected,
            MeshPeerState::Gone => PeerState::Gone,
            MeshPeerState::Never => PeerState::Never,
        },
        since_ms: peer.since_ms,
        last_seen_ms: peer.last_seen_ms,
        path: peer.path.map(|path| PeerPath {
            kind: match path.kind {
                PathKind::Direct => "direct".to_owned(),
                PathKind::Relayed => "relayed".to_owned(),
            },
            addr: path.addr,
            rtt_us: u64::try_from(path.rtt.as_micros())
                .ok()
                .filter(|rtt| *rtt > 0),
            relay: path.relay.map(|node| Names(authority).node(&node)),
            why: path.why.map(|why| why.to_string()),
        }),
        addrs: peer.addrs.iter().map(ToString::to_string).collect(),
        relay: peer.relay,
        version: peer.version,
        sync: sync.collect(),
        sent_bytes: peer.bytes.sent,
        received_bytes: peer.bytes.received,
    }
}
