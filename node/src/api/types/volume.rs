//! Volumes and their versions.

use std::collections::BTreeMap;

use rhizome_sandbox::chunks::PackId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Its id, 32 hex digits.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The space it belongs to.
    pub space: Named,
    /// When it was made.
    pub created_ms: u64,
    /// Versions that no other was made from, the newest first; several if writers were apart.
    pub heads: Vec<VolumeVersion>,
    /// How many versions are known.
    pub versions: u64,
    /// The sandboxes it is attached to.
    pub attached: Vec<VolumeAttached>,
}

/// A version of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeVersion {
    /// Its id, 64 hex digits.
    pub id: String,
    /// What it was made from.
    pub parents: Vec<String>,
    /// Digest of its tree: equal trees of a space and epoch have equal digests.
    pub tree: String,
    /// Who made it.
    pub author: String,
    /// When, by the author's clock.
    pub at_ms: u64,
    /// Why.
    pub message: String,
    /// Bytes that it added to what was stored.
    pub bytes_stored: u64,
    /// The nodes that hold it.
    pub holders: Vec<Named>,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeAttached {
    /// The sandbox's id.
    pub sandbox: String,
    /// The node it runs on, or ran on last.
    pub node: Named,
    /// Where it is in the sandbox.
    pub path: String,
    /// Whether it may be changed there.
    pub writable: bool,
    /// The version that was attached.
    pub base: String,
    /// The version that the last checkpoint made, if one did.
    pub last: Option<String>,
    /// Seconds between checkpoints; 0 for none of themselves.
    pub every_secs: u64,
    /// Until when nobody else may attach it to write.
    pub until_ms: u64,
    /// Whether this node serves it now.
    pub served: bool,
    /// How much of it is here, if this node serves it; what is read is fetched first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<VolumeArrived>,
}

/// How much of a version is on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeArrived {
    /// Packs that are here.
    pub packs: u64,
    /// All packs of it.
    pub of: u64,
}

/// The answer of `GET /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volumes {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
}

/// The answer of whatever is about one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeShown {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The volume.
    pub volume: Volume,
}

/// The body of `POST /v1/volumes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeBody {
    /// Its name.
    pub name: String,
    /// The space it belongs to, if there are several.
    #[serde(default)]
    pub space: Option<String>,
    /// A directory of this machine that it starts as.
    #[serde(default)]
    pub from: Option<String>,
}

/// The body of `POST /v1/volumes/{volume}/attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAttachBody {
    /// The sandbox.
    pub sandbox: String,
    /// Absolute path in it.
    pub path: String,
    /// Only to read.
    #[serde(default)]
    pub read_only: bool,
    /// The version, if not the newest.
    #[serde(default)]
    pub version: Option<String>,
    /// Take the newest also where there are several that do not know of each other.
    #[serde(default)]
    pub newest: bool,
    /// Also while another sandbox may write: two versions will come of it.
    #[serde(default)]
    pub force: bool,
    /// Seconds between checkpoints; 0 for none of themselves.
    #[serde(default)]
    pub every_secs: u64,
}

/// The body of `POST /v1/volumes/{volume}/detach`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDetachBody {
    /// The sandbox; may be left out if there is one.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Drop what was changed since the last checkpoint.
    #[serde(default)]
    pub discard: bool,
    /// Also while programs use it.
    #[serde(default)]
    pub force: bool,
}

/// The body of `POST /v1/volumes/{volume}/checkpoint`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCheckpointBody {
    /// The sandbox; may be left out if there is one.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Why.
    #[serde(default)]
    pub message: String,
    /// How many other nodes must hold it; as many as are there, up to one, if left out.
    #[serde(default)]
    pub replicas: Option<usize>,
}

/// The body of `POST /v1/volumes/{volume}/{restore,merge,export,import}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeVersionBody {
    /// The version, if not the newest.
    #[serde(default)]
    pub version: Option<String>,
    /// A directory of this machine, to export to or to import from.
    #[serde(default)]
    pub path: Option<String>,
    /// Why.
    #[serde(default)]
    pub message: String,
}

/// The body of `POST /v1/volumes/{volume}/forget`: one of both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeForgetBody {
    /// Versions, or prefixes of their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// How many of the newest are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
}

/// The answer to `POST /v1/volumes/{volume}/forget`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeForgotten {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The versions that are forgotten now.
    pub forgotten: Vec<String>,
    /// How many there are still.
    pub kept: usize,
}

/// The body of `POST /v1/volumes/{volume}/repack`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRepackBody {
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer to `POST /v1/volumes/{volume}/repack`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeRepacked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Packs that are given up.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that are still needed, and were stored anew.
    pub live_bytes: u64,
    /// Bytes of all packs that the volume's versions lay in here.
    pub of_bytes: u64,
    /// Versions that lie elsewhere now.
    pub versions: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// What became a version, or was one already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeCommitted {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The volume's id.
    pub volume: String,
    /// The version.
    pub version: VolumeVersion,
    /// Whether it is new: what was unchanged makes no version.
    pub changed: bool,
    /// Files read for it.
    pub files_read: u64,
    /// Devices, pipes and sockets, which volumes don't hold.
    pub skipped: u64,
    /// Files that changed while they were read.
    pub unsettled: Vec<String>,
    /// What two sides had both changed.
    pub conflicts: Vec<VolumeConflict>,
}

/// Something that two versions had both changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeConflict {
    /// Where.
    pub path: String,
    /// `both_changed`, `removed_and_changed`, `changed_and_removed` or `meta_changed`.
    pub kind: String,
    /// Where the other side's is, if it is somewhere else.
    pub kept_as: Option<String>,
}

/// The answer of `GET /v1/volumes/{volume}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeLog {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Each before what it was made from.
    pub versions: Vec<VolumeVersion>,
}

/// The answer of `GET /v1/volumes/{volume}/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeDiff {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The version that was compared.
    pub from: String,
    /// The one it was compared with.
    pub to: String,
    /// What differs, in the order of paths.
    pub changes: Vec<VolumeChange>,
    /// Whether there is more.
    pub more: bool,
}

/// One entry that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeChange {
    /// Where.
    pub path: String,
    /// `added`, `removed`, `modified` or `meta`.
    pub kind: String,
    /// Bytes it had, of a file.
    pub old_bytes: Option<u64>,
    /// Bytes it has, of a file.
    pub new_bytes: Option<u64>,
}

/// What a node asks another to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeHoldBody {
    /// The space's id.
    pub space: String,
    /// The volume's id.
    pub volume: String,
    /// The version, an object of the chunk store.
    pub version: String,
    /// The packs it lies in.
    pub packs: Vec<String>,
    /// Other nodes that have some of them.
    #[serde(default)]
    pub holders: Vec<String>,
    /// Bytes of them all.
    pub bytes: u64,
}

/// Asks which chunks are in packs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackChunksBody {
    /// The packs, at most 64.
    #[schemars(with = "Vec<String>")]
    pub packs: Vec<PackId>,
}

/// Which chunks are in packs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackChunks {
    /// Version of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// For each pack that is here, the first 16 hex digits of every chunk's name, one behind the
    /// other.
    #[schemars(with = "BTreeMap<String, String>")]
    pub packs: BTreeMap<PackId, String>,
    /// How many of those asked about were looked at; ask again about the others.
    pub looked_at: usize,
}
