//! What callers ask for and what they are told about a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Accel, Contract, Fingerprint, SandboxId,
    chunks::PackId,
    egress::Policy,
    life::{Lease, State},
};

/// What a new sandbox should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSpec {
    /// A name, unique among the sandboxes that have not ended; 1 to 64 of `a-z A-Z 0-9 . _ -`.
    pub name: Option<String>,
    /// `minimal`, `debian`, or the id (or a unique prefix of it) of an image in the store.
    pub image: String,
    /// Memory of the guest in MiB; 0 means the image's default.
    pub memory_mib: u32,
    /// Virtual CPUs; 0 means one.
    pub vcpus: u32,
    /// Environment of every command, below what the command itself sets.
    pub env: BTreeMap<String, String>,
    /// Labels of the caller; the sandbox does not look at them.
    pub labels: BTreeMap<String, String>,
    /// What it may reach: nothing, if absent.
    pub network: Policy,
    /// Names of the node's secrets that it may use.
    pub secrets: Vec<String>,
    /// What is relied on in its runtime.
    pub requires: Contract,
    /// Until when it lives without anyone asking for more; for ever if absent.
    pub lease: Option<Lease>,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            name: None,
            image: "minimal".to_owned(),
            memory_mib: 0,
            vcpus: 0,
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            network: Policy::none(),
            secrets: Vec::new(),
            requires: Contract::default(),
            lease: None,
        }
    }
}

/// A snapshot in the chunk store: what it takes to go on from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRef {
    /// The manifest: an object of the chunk store.
    pub manifest: PackId,
    /// The packs that hold its chunks, without the manifest.
    pub packs: Vec<PackId>,
    /// When the guest was stopped for it, in Unix milliseconds.
    pub taken_ms: u64,
    /// Bytes of memory, devices and disks that were read: what is no hole.
    pub bytes_read: u64,
    /// Bytes of it that nothing in the store had before.
    pub bytes_new: u64,
    /// Bytes that these take in the store.
    pub bytes_stored: u64,
    /// How long the guest stood still for it, in milliseconds; for one that was put to sleep, until
    /// it was durable.
    pub pause_ms: u64,
}

impl SnapshotRef {
    /// Returns everything in the store that it consists of.
    pub fn objects(&self) -> Vec<PackId> {
        let mut objects = vec![self.manifest];
        objects.extend(&self.packs);
        objects
    }
}

/// A snapshot that this node keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotRef,
    /// The sandbox it was taken of.
    pub sandbox: SandboxId,
    /// The name that the sandbox had.
    pub name: Option<String>,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Labels of the sandbox.
    pub labels: BTreeMap<String, String>,
    /// Whether it is what the sandbox slept in last: it goes when the sandbox goes.
    pub asleep: bool,
}

/// What is known about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Its id.
    pub id: SandboxId,
    /// Its name, where one was given.
    pub name: Option<String>,
    /// The image's name.
    pub image: String,
    /// The image's id: BLAKE3 over its parts, as hex.
    pub image_id: String,
    /// Where it is in its life.
    pub state: State,
    /// The driver that runs it.
    pub driver: String,
    /// How its instructions run: never `auto`.
    pub accel: Accel,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// When it was asked for, in Unix milliseconds.
    pub created_ms: u64,
    /// From the start of the monitor to the guest's first answer, in milliseconds.
    pub boot_ms: Option<u64>,
    /// Labels of the caller.
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    #[serde(default)]
    pub network: Policy,
    /// Names of the node's secrets that it may use.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// What runs there, in the terms that memories carry.
    pub fingerprint: Fingerprint,
    /// What is relied on in its runtime.
    #[serde(default)]
    pub requires: Contract,
    /// Until when it lives without anyone asking for more.
    #[serde(default)]
    pub lease: Option<Lease>,
    /// What it slept in last.
    #[serde(default)]
    pub snapshot: Option<SnapshotRef>,
    /// The sandbox it is a copy of.
    #[serde(default)]
    pub parent: Option<SandboxId>,
    /// What of its disks is still on its way, while it runs ahead of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arriving: Option<ArrivingDisks>,
}

/// Disks that come behind a sandbox which goes on already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivingDisks {
    /// Bytes of the disks.
    pub bytes: u64,
    /// Bytes that are not here yet.
    pub left: u64,
    /// Why the sandbox is paused until more is here, if it asked for what nobody had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}
