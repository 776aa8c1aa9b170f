//! Sandboxes and images.
use std::collections::BTreeMap;

use rhizome_sandbox::egress::Policy;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Named,
    remote::Unanswered,
    schema_number,
    wake::{Copies, WakeOn, WokenBy},
};

/// `POST /v1/sandboxes`; the answer is a stream of [`super::ProgressLine`]`<`[`SandboxCreated`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxBody {
    /// A name, unique among the living; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `minimal` (default), `debian` or an image id or its prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Environment of every command run in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The agent it works for; without one its door stays shut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The spaces it may use, the first being its default; all the agent may use if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spaces: Vec<String>,
    /// What is relied on in its runtime, one requirement each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Until when it lives when nobody asks for more; for ever by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<super::lifecycle::LeaseBody>,
    /// Free labels; names starting with `rhizome.` are the node's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it may reach: nothing, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::network::PolicyShape>")]
    pub network: Option<Policy>,
    /// Names of the node's secrets that it may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

/// A sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// Sandbox id.
    pub id: String,
    /// Name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Hash of the image.
    pub image_id: String,
    /// `creating`, `booting`, `ready`, `paused`, `snapshotting`, `hibernating`, `hibernated`,
    /// `restoring`, `stopping`, `stopped`, `failed`, `lost` or `killed` (`docs/lifecycle.md`);
    /// `elsewhere` if it slept here and went on on another node (`docs/placement.md`).
    pub state: String,
    /// Why it failed, or what was lost, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Driver, such as `qemu-microvm`.
    pub driver: String,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// When it was created.
    pub created_ms: u64,
    /// How long it took to boot, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// What is relied on in its runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Until when it lives when nobody asks for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<super::lifecycle::Lease>,
    /// What it slept in last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The sandbox it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// What of its disks is still on its way, while it runs ahead of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arriving: Option<Arriving>,
    /// The agent it works for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Named>,
    /// The spaces it may use.
    #[serde(default)]
    pub spaces: Vec<Named>,
    /// What it may reach, in one line.
    #[serde(default)]
    pub network: String,
    /// Labels, without the node's own.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What its runtime is made of: `kernel`, `arch`, `cpu`, `accel`, `vmm`, `tools`…
    #[serde(default)]
    pub fingerprint: serde_json::Value,
    /// The hash of that, stamped on what is published from here.
    #[serde(default)]
    pub fingerprint_hash: String,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Named>,
    /// What wakes it, if it sleeps until something happens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake_on: Vec<WakeOn>,
    /// What woke it last, if nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_by: Option<WokenBy>,
    /// Who keeps what it slept in last, if other nodes know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
}

/// The result of creating a sandbox, and of `GET /v1/sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxCreated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
}

/// `GET /v1/sandboxes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sandboxes {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// The nodes that were asked for theirs and did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
}

/// Disks that come behind a sandbox which goes on already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Arriving {
    /// Bytes of the disks.
    pub bytes: u64,
    /// Bytes that are not here yet.
    pub left: u64,
    /// Why it is paused until more is here, if it asked for what no node gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// `POST /v1/sandboxes/{id}/exec`, with `Upgrade: rhizome-exec/1`.
///
/// After `101 Switching Protocols` both sides speak [`crate::api::exec_frame`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecBody {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, on top of the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or number; root by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether input will be sent; otherwise it reads as empty.
    #[serde(default)]
    pub stdin: bool,
    /// Killed after this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The terminal it runs on; none by default. Errors then come with the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// Whether it runs on when the client goes away; otherwise it is killed then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// Its id, 16 hexadecimal digits; drawn by the node by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Start it, keep it, and answer at once, without an upgrade.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pty {
    /// Rows of characters.
    pub rows: u16,
    /// Columns of characters.
    pub columns: u16,
}

/// The answer to a command that was started with `detach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecStarted {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Its id.
    pub id: String,
}

/// A command of a sandbox, running or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exec {
    /// Its id.
    pub id: String,
    /// Program and arguments, as a shell takes them; cut where they are long.
    pub command: String,
    /// Who it runs as.
    pub user: String,
    /// Process number in the sandbox.
    pub pid: u32,
    /// When it was started, by the sandbox's clock.
    pub started_ms: u64,
    /// For how long it has run, or ran; sleep does not count.
    pub ran_ms: u64,
    /// How it ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ExecEnd>,
    /// Whether it runs on without a client.
    pub keep: bool,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// Whether a client reads it.
    pub attached: bool,
    /// Bytes of output that are no longer there.
    pub dropped: u64,
    /// Bytes of output in all.
    pub position: u64,
}

/// `GET /v1/sandboxes/{id}/execs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Execs {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The commands, newest first.
    pub execs: Vec<Exec>,
}

/// `POST /v1/sandboxes/{id}/execs/{exec}/attach`, with `Upgrade: rhizome-exec/1`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachBody {
    /// Bytes of output, of both kinds together, that the client has; all that is kept by default.
    #[serde(default)]
    pub from: u64,
    /// Only what comes from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_only: bool,
}

/// The first frame of an attached command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecAttached {
    /// Its id.
    pub id: String,
    /// Bytes of output before the first that follows.
    pub position: u64,
    /// How many of them were asked for and are lost.
    pub gap: u64,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// Whether it takes input.
    pub stdin: bool,
}

/// `POST /v1/sandboxes/{id}/execs/{exec}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    /// Its number, 1 to 31; 9 ends all that the command started.
    pub signal: i32,
}

/// The query of `POST /v1/sandboxes/{id}/forward`, with `Upgrade: rhizome-forward/1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardParams {
    /// A TCP port in the sandbox.
    pub port: u16,
}

/// The query of `GET /v1/sandboxes/{id}/watch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchParams {
    /// Absolute path of a directory in the sandbox.
    pub path: String,
    /// Whether the directories in it are watched too.
    #[serde(default)]
    pub recursive: bool,
}

/// A line of the answer to `GET /v1/sandboxes/{id}/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileChange {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// `created`, `changed`, `touched`, `removed`, or `overflow`: some are not told, look again.
    pub change: String,
    /// Whether to a directory.
    pub dir: bool,
    /// To what, below the directory that is watched; empty for that itself.
    pub path: String,
}

/// How a command ended: the payload of the last exec frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// It ended by itself with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It ran out of time.
    TimedOut,
    /// It could not be run, or its sandbox is gone.
    Error(super::ErrorInfo),
}

/// The query of the file routes of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathParams {
    /// Absolute path in the sandbox.
    pub path: String,
    /// Permission bits of a file or directory to be made, in octal such as `755`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// What a path in a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

/// A file in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Last part of its path, as the guest says it; may hold anything, so check before use.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
}

/// `GET /v1/sandboxes/{id}/stat?path=`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileStat {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The file.
    #[serde(flatten)]
    pub file: FileEntry,
}

/// `GET /v1/sandboxes/{id}/dir?path=`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirListing {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// What is in it, by name.
    pub entries: Vec<FileEntry>,
}

/// The answer to `PUT /v1/sandboxes/{id}/file?path=`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileWritten {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Bytes written.
    pub bytes: u64,
}

/// `POST /v1/images`; the answer is a stream of [`super::ProgressLine`]`<`[`ImageBuilt`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageBody {
    /// `minimal` or `debian`.
    pub name: String,
    /// Debian packages on top of the usual ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
}

/// An image sandboxes can start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// Image id: a hash, in hex.
    pub id: String,
    /// `minimal` or `debian`.
    pub name: String,
    /// Size on disk, in bytes.
    pub bytes: u64,
    /// When it was built.
    pub created_ms: u64,
    /// Kernel release it boots.
    #[serde(default)]
    pub kernel: String,
    /// What it was built from, in words.
    #[serde(default)]
    pub lineage: Vec<String>,
}

/// The result of an image build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageBuilt {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The image.
    #[serde(flatten)]
    pub image: Image,
}

/// `GET /v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Images {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The images.
    pub images: Vec<Image>,
}
