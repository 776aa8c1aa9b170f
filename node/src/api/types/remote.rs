//! What nodes tell each other and their owners about nodes.
use std::collections::BTreeMap;

use rhizome_sandbox::chunks::PackId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, mesh::PeerState, sandbox::Sandbox, schema_number};

/// `GET /v1/remote/facts`: what a node is, has and has room for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The node's version.
    pub version: String,
    /// How it can run sandboxes; empty if it runs none.
    #[serde(default)]
    pub drivers: Vec<Driver>,
    /// Processors.
    pub cores: u32,
    /// Memory of the machine, in MiB.
    pub memory_mib: u64,
    /// Memory that a new sandbox could have, in MiB.
    pub memory_free_mib: u64,
    /// Room where the node keeps its data, in MiB.
    pub disk_free_mib: u64,
    /// Whether the machine runs on battery.
    #[serde(default)]
    pub on_battery: bool,
    /// Whether it makes sandboxes for other nodes.
    #[serde(default)]
    pub open: bool,
    /// Labels from its configuration.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Images it holds.
    #[serde(default)]
    pub images: Vec<Named>,
    /// Manifests of the snapshots it holds.
    #[serde(default)]
    pub snapshots: Vec<String>,
    /// Sandboxes that live there.
    #[serde(default)]
    pub sandboxes: usize,
    /// When it said so, by its clock.
    pub at_ms: u64,
}

/// A way to run sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Driver {
    /// Such as `qemu-microvm`.
    pub name: String,
    /// `kvm` or `tcg`; absent until the first sandbox has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<String>,
}

/// A node, as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFacts {
    /// The node.
    pub node: Named,
    /// Whether it is there.
    pub state: PeerState,
    /// What it says of itself, if it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nodes {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The nodes of the mesh, this one first.
    pub nodes: Vec<NodeFacts>,
}

/// `POST /v1/remote/offer`: which of these does the node hold?
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfferBody {
    /// Packs and objects.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub packs: Vec<PackId>,
    /// An image, by its whole id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// What a node holds and serves by hash from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offered {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Those of the packs.
    #[schemars(with = "Vec<String>")]
    pub packs: Vec<PackId>,
    /// The description of the image, which names its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// `POST /v1/remote/hold`: fetch a snapshot from the asking node and keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldBody {
    /// The space it belongs to.
    pub space: String,
    /// The sandbox.
    pub sandbox: String,
    /// The manifest.
    #[schemars(with = "String")]
    pub manifest: PackId,
    /// The packs of its chunks.
    #[schemars(with = "Vec<String>")]
    pub packs: Vec<PackId>,
    /// The image it starts from.
    pub image_id: String,
    /// How many bytes the packs and the manifest take.
    pub bytes: u64,
}

/// `POST /v1/remote/image`: fetch an image from the asking node and keep it; the answer is a stream
/// of [`super::ProgressLine`]`<`[`Held`]`>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeBody {
    /// Its id, whole.
    pub id: String,
    /// How many bytes its files take.
    pub bytes: u64,
}

/// It is kept, durably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Held {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// How many bytes came for it; the rest was here.
    pub bytes: u64,
}

/// `POST /v1/remote/claim`: may the asking node wake the sandbox?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The space of the record.
    pub space: String,
    /// The sandbox.
    pub sandbox: String,
    /// The fragment that the asking node takes for the newest record.
    pub record: String,
    /// True to give the claim back.
    #[serde(default)]
    pub release: bool,
}

/// The answer of the node that decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Whether the asking node may go on.
    pub granted: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `POST /v1/resume`: wake a sandbox, here or elsewhere, wherever it went to sleep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    /// The sandbox by id, prefix or name, or its snapshot by a prefix of its manifest.
    pub what: String,
    /// Where: a node, `any` or `label=…`; here if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Wake it though it may run elsewhere, or what it did since may be lost.
    #[serde(default)]
    pub force: bool,
}

/// A sandbox that woke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resumed {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// When its snapshot was taken: what it did later is not in it.
    pub taken_ms: u64,
    /// Bytes that were fetched for it.
    pub fetched_bytes: u64,
    /// What the reader should know: an agent that is another one here, a fork.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Where a snapshot is kept, beside the node it was taken on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replicated {
    /// How many other nodes should keep it.
    pub wanted: usize,
    /// The other nodes that hold it durably.
    #[serde(default)]
    pub holders: Vec<Named>,
    /// The nodes that were asked and do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Unanswered>,
    /// The fragment of the record by which other nodes find it; absent for a sandbox of no space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Why there is no record, if there should be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A node that was asked and did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unanswered {
    /// The node.
    pub node: Named,
    /// Why there is no answer.
    pub problem: String,
}
