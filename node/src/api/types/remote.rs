//! What nodes tell each other and their owners about nodes.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Named, mesh::PeerState, schema};

/// `GET /v1/remote/facts`: what a node is, has and has room for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Schema number.
    #[serde(default = "schema")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Such as `qemu-microvm`.
    pub name: String,
    /// `kvm` or `tcg`; absent until the first sandbox has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<String>,
}

/// A node, as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// The nodes of the mesh, this one first.
    pub nodes: Vec<NodeFacts>,
}

/// A node that was asked and did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// The node.
    pub node: Named,
    /// Why there is no answer.
    pub problem: String,
}
