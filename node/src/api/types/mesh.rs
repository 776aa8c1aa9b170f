//! The mesh: init, join, invites, spaces, agents, peers.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// `POST /v1/mesh/init`: found a mesh on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitBody {
    /// Name of the mesh; `mesh` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// This node's name in it; the name it was started with by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// A first space, made along the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
}

/// The answer to [`InitBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Founded {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The mesh.
    pub mesh: Named,
    /// This node.
    pub node: Named,
    /// Where the mesh's root key lies; keep a copy off this machine.
    pub root_key: String,
    /// Where the next root key lies, to rotate to should the first be stolen.
    pub next_root_key: String,
    /// The first space, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Named>,
}

/// `POST /v1/mesh/join`: join by invite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinBody {
    /// The invite, one string.
    pub invite: String,
    /// This node's name in the mesh; the name it was started with by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// The answer to [`JoinBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The mesh.
    pub mesh: Named,
    /// This node.
    pub node: Named,
    /// Who let it in.
    pub by: Named,
    /// The role it was given.
    pub role: String,
    /// The spaces it may use.
    pub spaces: Vec<Named>,
}

/// `POST /v1/invites`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteBody {
    /// `relay`, `reader`, `writer` (default) or `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Names or ids of the spaces it opens; all of this node's by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spaces: Vec<String>,
    /// How many nodes may use it; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u16>,
    /// For how long, in seconds; a day by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_secs: Option<u64>,
    /// Addresses to put into it (`ip:port`) instead of the node's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addrs: Vec<String>,
    /// Whether somebody at this node has to approve each newcomer.
    #[serde(default)]
    pub approve: bool,
}

/// The answer to [`InviteBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InviteCreated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The string to hand over; whoever has it can join.
    pub invite: String,
    /// The addresses it names.
    pub addrs: Vec<String>,
    /// What the mesh knows of it.
    #[serde(flatten)]
    pub info: InviteInfo,
}

/// An invite as the authority log knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InviteInfo {
    /// Its public key.
    pub id: String,
    /// The role it gives.
    pub role: String,
    /// The spaces it opens.
    pub spaces: Vec<Named>,
    /// How many nodes may use it.
    pub uses: u16,
    /// How many have.
    pub used: u16,
    /// Until when.
    pub not_after_ms: u64,
    /// Who made it.
    pub issuer: Named,
    /// `open`, `spent`, `expired` or `closed`.
    pub state: String,
    /// Whether newcomers have to be approved.
    #[serde(default)]
    pub approve: bool,
}

/// `DELETE /v1/invites/{invite}`: the invite as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InviteClosed {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The invite.
    #[serde(flatten)]
    pub info: InviteInfo,
}

/// A node that asked to be let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinRequest {
    /// The node, by the name it gave itself.
    pub node: Named,
    /// The invite that it holds.
    pub invite: String,
    /// When it asked last.
    pub asked_ms: u64,
    /// Whether it may come in when it asks again.
    pub approved: bool,
}

/// `GET /v1/invites/requests`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinRequests {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Who asked.
    pub requests: Vec<JoinRequest>,
}

/// `POST /v1/invites/approve`; the answer is the [`JoinRequests`] of that node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveBody {
    /// The node: its id, a unique prefix of it, or the name it gave itself.
    pub node: String,
}

/// `GET /v1/invites`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Invites {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The invites.
    pub invites: Vec<InviteInfo>,
}

/// `POST /v1/spaces`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceBody {
    /// Its name.
    pub name: String,
}

/// A space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Space {
    /// Space id.
    pub id: String,
    /// Name.
    pub name: String,
    /// This node's role in it; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Key epoch.
    pub epoch: u32,
    /// When the key of that epoch was made, in Unix milliseconds, by the clock of who made it;
    /// it becomes 30 days old.
    #[serde(default)]
    pub epoch_at_ms: u64,
    /// Whether a new one is due before that: who reads there has changed, or two were made at once.
    #[serde(default)]
    pub epoch_stale: bool,
    /// The node that made it.
    pub created_by: Named,
    /// When.
    pub at_ms: u64,
    /// Nodes with a role in it.
    pub members: usize,
    /// Fragments held here.
    pub fragments: u64,
    /// Fragments that wait for something.
    pub waiting: u64,
    /// Fragments set aside as bad.
    pub quarantined: u64,
    /// Hash of the newest fragment of every author: equal on two nodes that hold the same.
    pub heads: String,
}

/// The answer to [`SpaceBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpaceCreated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The space.
    #[serde(flatten)]
    pub space: Space,
}

/// `POST /v1/spaces/{space}/rotate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpaceRotated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The space.
    pub space: Named,
    /// The epoch of its new key.
    pub epoch: u32,
}

/// `GET /v1/spaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spaces {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The spaces.
    pub spaces: Vec<Space>,
}

/// `POST /v1/agents`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentBody {
    /// Its name, unique on this node: letters, digits, `-`, `_`, `.`; 64 at most.
    pub name: String,
    /// Names or ids of the spaces it may use; all of the node's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spaces: Option<Vec<String>>,
    /// For how long, in seconds; without end by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_secs: Option<u64>,
    /// The agent of this node that certifies it, by name or id: the new one may do at most what that
    /// one may, and falls with it. The node itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The query of `DELETE /v1/agents/{agent}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeParams {
    /// Why, for people; written into the authority log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What stays of what it said: `none` by default; `seen`, all that this node holds; or
    /// `before:` and a time in Unix milliseconds, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

/// The answer to `DELETE /v1/agents/{agent}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentRevoked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Whose key counts no more: nothing it said is shown on any node that has heard of this.
    pub agent: Named,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Agent {
    /// Agent id.
    pub id: String,
    /// Name.
    pub name: String,
    /// The node that vouches for it.
    pub node: Named,
    /// The spaces it may use; absent if all of its node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spaces: Option<Vec<Named>>,
    /// Until when, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after_ms: Option<u64>,
    /// Whether its key lies on this node.
    pub here: bool,
    /// Whether it is the agent this node speaks as when none is named.
    pub default: bool,
    /// Whether it signed two histories, as far as this node knows.
    #[serde(default)]
    pub forked: bool,
}

/// The answer to [`AgentBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentCreated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The agent.
    #[serde(flatten)]
    pub agent: Agent,
}

/// `GET /v1/agents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Agents {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The agents of the mesh, those of this node first.
    pub agents: Vec<Agent>,
}

/// Whether a peer is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// This node itself.
    #[serde(rename = "self")]
    This,
    /// Connected now.
    Connected,
    /// Was connected, is not.
    Gone,
    /// Never seen by this node.
    Never,
}

/// A member of the mesh, as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Node id.
    pub node: String,
    /// Name.
    pub name: String,
    /// Role.
    pub role: String,
    /// Whether it is there.
    pub state: PeerState,
    /// Since when it is in that state; absent if never seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// When it was last heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_ms: Option<u64>,
    /// How it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PeerPath>,
    /// Where it says it can be dialled.
    #[serde(default)]
    pub addrs: Vec<String>,
    /// URL of the relay that it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// Its version, as last heard.
    #[serde(default)]
    pub version: String,
    /// How far both hold the same, lane by lane.
    #[serde(default)]
    pub sync: Vec<PeerSync>,
    /// Bytes sent to it over the connections that are open.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes received from it over the connections that are open.
    #[serde(default)]
    pub received_bytes: u64,
}

/// The path to a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerPath {
    /// `direct` or `relayed`.
    pub kind: String,
    /// Remote address, or the URL of the relay.
    pub addr: String,
    /// Round-trip time in microseconds, once measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Member that serves the relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Named>,
    /// Why the path is not direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How far a peer and this node hold the same of one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerSync {
    /// `authority` or the space's name.
    pub lane: String,
    /// `in sync` or `pending`.
    pub state: String,
    /// When both were last known to hold the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// `GET /v1/peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peers {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The members, this node first.
    pub peers: Vec<Peer>,
}
