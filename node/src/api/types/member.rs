//! Members of the mesh, what ended them, and the root.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// A role in one space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberRole {
    /// The space.
    pub space: Named,
    /// The role.
    pub role: String,
}

/// A node that belongs to the mesh, or did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// The node.
    pub node: Named,
    /// `member` or `revoked`.
    pub state: String,
    /// Its role in the mesh; absent once it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its roles in spaces.
    pub spaces: Vec<MemberRole>,
    /// When it was let in, by the clock of who did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// How many agents it has, or had.
    pub agents: usize,
}

/// `GET /v1/members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Members {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The records by which the root signed two histories of the mesh: while there are any, nothing
    /// is administered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub halted: Vec<String>,
    /// The members, then those who were revoked.
    pub members: Vec<Member>,
}

/// What counts of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberChain {
    /// Who wrote it.
    pub agent: Named,
    /// The space.
    pub space: Named,
    /// How many fragments of it count on this node.
    pub counts: u64,
    /// How many are here and do not count: beyond a cut, or beyond the place where their author
    /// signed two histories.
    pub set_aside: u64,
    /// Whether its author signed two histories there.
    pub frozen: bool,
}

/// A revocation that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberRevocation {
    /// The record.
    pub record: String,
    /// Who signed it.
    pub by: Named,
    /// Whether that was the root.
    pub by_root: bool,
    /// Why, in their words.
    pub reason: String,
    /// When, by their clock.
    pub at_ms: u64,
}

/// `GET /v1/members/{member}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberShown {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The member.
    #[serde(flatten)]
    pub member: Member,
    /// The chains of its agents.
    pub chains: Vec<MemberChain>,
    /// What stands against it, what it has overcome since as well.
    pub revocations: Vec<MemberRevocation>,
}

/// The query of `DELETE /v1/members/{member}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeMemberParams {
    /// Why, for people; written into the authority log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What stays of what its agents said: `seen`, all that this node holds, by default; `none`;
    /// or `before:` and a time in Unix milliseconds, by the clocks of the authors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
    /// Sign with the root key, which has to be on this node: an admin is the root's to revoke.
    #[serde(default)]
    pub as_root: bool,
}

/// The answer to `DELETE /v1/members/{member}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberRevoked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Who it was.
    pub member: Named,
    /// The chains that stay, each up to a place.
    pub kept: usize,
    /// The spaces that have a new key since. What was read before cannot be unread.
    pub rekeyed: Vec<Named>,
}

/// `POST /v1/members/{member}/restore`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreMemberBody {
    /// Sign with the root key, which has to be on this node.
    #[serde(default)]
    pub as_root: bool,
}

/// The answer to [`RestoreMemberBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberRestored {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Whose work it is.
    pub member: Named,
    /// The records whose cuts were raised.
    pub amended: Vec<String>,
    /// The chains, as they count now.
    pub chains: Vec<MemberChain>,
}

/// `POST /v1/root/rotate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RootRotated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The root's public key since.
    pub root: String,
    /// Where its secret key lies.
    pub root_key: String,
    /// Where the key that may replace it lies.
    pub next_root_key: String,
}
