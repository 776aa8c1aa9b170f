//! The node itself: self, status, doctor, down.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mesh::Space;
use super::{Named, schema_number};

/// `GET /v1/self`: who is asking, as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelfInfo {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The agent spoken for; absent while the node belongs to no mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Named>,
    /// The node.
    pub node: Named,
    /// The sandbox asked from; absent on the node's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// That sandbox's image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Runtime fingerprint stamped on what is published from here.
    pub fingerprint: String,
    /// The spaces that can be used.
    pub spaces: Vec<SelfSpace>,
}

/// A space with the role one has in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelfSpace {
    /// Space id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Role.
    pub role: String,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Version of the daemon.
    pub version: String,
    /// This node; the name is the one it was started with while it belongs to no mesh.
    pub node: Named,
    /// The mesh it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Named>,
    /// Its role in the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Whether it holds the mesh's root key.
    pub root: bool,
    /// Data directory.
    pub data_dir: String,
    /// Socket of this API.
    pub socket: String,
    /// Where this API listens over TCP, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Where clients of E2B are answered, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2b: Option<String>,
    /// UDP addresses it can be reached at.
    pub addrs: Vec<String>,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started_ms: u64,
    /// Resident memory of the daemon, in bytes.
    pub resident_bytes: u64,
    /// Bytes free on the data directory's filesystem.
    pub disk_free_bytes: u64,
    /// The spaces it can use.
    pub spaces: Vec<Space>,
    /// Members of the mesh.
    pub members: usize,
    /// Of which connected now, without this node.
    pub connected: usize,
    /// The sandboxes, by state.
    pub sandboxes: SandboxSummary,
    /// What the store's recovery found at the start.
    pub recovery: Recovery,
    /// Agents that signed two histories.
    #[serde(default)]
    pub forks: Vec<Fork>,
    /// How the shares of authors, nodes and spaces stand: the twenty that are used most.
    #[serde(default)]
    pub shares: Vec<ShareUse>,
}

/// An agent that signed two histories: two fragments for one position of its chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fork {
    /// The space.
    pub space: Named,
    /// The agent.
    pub author: Named,
    /// The fragment that was here first, and counts here.
    pub ours: String,
    /// The one that contradicts it; kept as evidence.
    pub theirs: String,
}

/// What an author, a node or a space has written of what it may before others go first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShareUse {
    /// `author`, `node` or `space`.
    pub kind: String,
    /// Which one.
    pub of: Named,
    /// How much of the share is used now, in percent; above 100 it waits behind others.
    pub used_percent: u64,
    /// Bytes taken in since the daemon started.
    pub bytes: u64,
    /// Fragments taken in since the daemon started.
    pub fragments: u64,
    /// Those of them that waited behind others.
    pub over: u64,
    /// Fragments refused, each time they were offered.
    pub refused: u64,
}

/// One setting of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Its name, as `config.json` has it.
    pub name: String,
    /// Its value.
    pub value: serde_json::Value,
    /// Where it came from: `default`, `file`, `environment` or `flag`.
    pub from: String,
}

/// `GET /v1/config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Where `config.json` would be.
    pub file: String,
    /// Every setting.
    pub settings: Vec<Setting>,
}

/// Sandboxes in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxSummary {
    /// Whether this node can run sandboxes.
    pub available: bool,
    /// Why not, if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// `kvm` or `tcg`, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<String>,
    /// Ready ones.
    pub ready: usize,
    /// All that are not killed.
    pub total: usize,
    /// Guests that wait for the next sandbox of their image and size.
    #[serde(default)]
    pub waiting: usize,
    /// Memory that these take, in bytes.
    #[serde(default)]
    pub waiting_bytes: u64,
}

/// What opening the store found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    /// Whether the store was clean.
    pub clean: bool,
    /// How long opening took, in milliseconds.
    pub took_ms: u64,
    /// Stored items read again to bring the index up to date.
    pub replayed: u64,
    /// Bytes of an unfinished write cut off the end.
    pub torn_bytes: u64,
    /// Damaged regions skipped.
    pub damaged: usize,
    /// Fragments of this node's own agents that were in them.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Whether the index was rebuilt.
    pub index_rebuilt: bool,
    /// What was found, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Doctor {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

/// How a check came out.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work.
    Fail,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What was looked at, in a word or two.
    pub name: String,
    /// How it came out.
    pub status: CheckStatus,
    /// What was seen.
    pub seen: String,
    /// The command that mends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}
