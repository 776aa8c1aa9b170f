//! The life of sandboxes after their first boot, and the snapshots it leaves.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, remote::Replicated, sandbox::Sandbox, schema_number, wake::WakeOn};

/// How long a sandbox lives when nobody asks for more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// For whom it is kept: `client`, `agent` or `context`.
    pub owner: String,
    /// That one's name or id.
    pub id: String,
    /// The end.
    pub until_ms: u64,
    /// What becomes of the sandbox then: `hibernate` or `kill`.
    pub then: String,
}

/// A lease that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseBody {
    /// For how long from now, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// `hibernate` (default) or `kill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// `client` (default), `agent` or `context`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The owner's name or id; the user of the socket by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Only make the present lease longer; never shorter, and nothing if there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew: bool,
    /// Live on without a lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub none: bool,
}

/// `POST /v1/sandboxes/{id}/snapshot`, `…/hibernate`; the answer is a stream of
/// [`super::ProgressLine`]`<`[`SnapshotTaken`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotBody {
    /// A program that the guest runs first, and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hook: Vec<String>,
    /// Time that it may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Other nodes that are to hold the snapshot before this is done; one, if one is connected, by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// Which: `any` (default) or `label=<name>[=<value>]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// What wakes it, of one that is put to sleep: `time=…`, `memory=…`, `webhook`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake_on: Vec<String>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Its id: the hash of its sealed manifest.
    pub id: String,
    /// The sandbox it was taken of.
    pub sandbox: String,
    /// The name that the sandbox had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// When the guest was stopped for it.
    pub taken_ms: u64,
    /// How long it stood still, in milliseconds.
    pub pause_ms: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes of them that the store did not have.
    pub bytes_new: u64,
    /// Bytes that these take in the store.
    pub bytes_stored: u64,
    /// Files of the store that it consists of, without its manifest.
    pub packs: Vec<String>,
    /// Whether it is what its sandbox slept in last: it goes when the sandbox goes.
    pub asleep: bool,
    /// The spaces of the sandbox; the first one's key seals it.
    #[serde(default)]
    pub spaces: Vec<Named>,
}

/// The result of taking a snapshot, and of `GET /v1/snapshots/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotTaken {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Where else it is kept; absent when it was not just taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Replicated>,
    /// What wakes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake_on: Vec<WakeOn>,
    /// The path of its webhook, told once: `POST` to it on any node that holds a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

/// `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshots {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The snapshots, newest first.
    pub snapshots: Vec<Snapshot>,
}

/// `POST /v1/sandboxes/{id}/resume`; the answer is a stream of
/// [`super::ProgressLine`]`<`[`super::sandbox::SandboxCreated`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SandboxResumeBody")]
pub struct ResumeBody {
    /// Go on although something that the sandbox relies on is not here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/snapshots/{id}/restore`; the answer is a stream of
/// [`super::ProgressLine`]`<`[`super::sandbox::SandboxCreated`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreBody {
    /// Make another sandbox instead of the same one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_new: bool,
    /// The other one's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseBody>,
    /// Go on although something that the sandbox relies on is not here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/snapshots/{id}/export`, answered by [`super::ProgressLine`]`<`[`SnapshotExported`]`>`,
/// and `POST /v1/snapshots/import`, by [`super::ProgressLine`]`<`[`SnapshotTaken`]`>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveBody {
    /// The file, on the daemon's machine; an absolute path.
    pub path: String,
}

/// The result of `POST /v1/snapshots/{id}/export`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotExported {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The snapshot's id.
    pub id: String,
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What there is to know about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// `POST /v1/sandboxes/{id}/fork`; the answer is a stream of [`super::ProgressLine`]`<`[`Forked`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkBody {
    /// How many; one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Their name, with a number if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A program that the guest runs first, and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hook: Vec<String>,
    /// Time that it may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Their lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseBody>,
}

/// The copies that were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The copies, in order.
    pub sandboxes: Vec<Sandbox>,
}

/// `GET /v1/sandboxes/{id}/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Whether the guest answered.
    pub answers: bool,
    /// How long that took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping_us: Option<u64>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `POST /v1/down`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DownBody {
    /// What becomes of the sandboxes: `keep` (default), `hibernate` or `kill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<String>,
}

/// The answer to `POST /v1/doctor/fix`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mended {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// What was done, by kind: `actions`, `monitors`, `directories`, `pins`, `bytes`.
    pub done: BTreeMap<String, u64>,
    /// What could not be mended.
    pub left: Vec<String>,
}
