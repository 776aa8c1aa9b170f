//! What callers ask for and what they are told about a sandbox.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Accel, Fingerprint, SandboxId};

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
        }
    }
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum SandboxState {
    /// Its image and directory are being made ready.
    Creating,
    /// Its microVM runs and has not answered yet.
    Booting,
    /// It answers.
    Ready,
    /// It ended without being asked to.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// It was ended on request.
    Killed,
}

impl SandboxState {
    /// Tells whether the sandbox is over.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Killed)
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creating => f.write_str("creating"),
            Self::Booting => f.write_str("booting"),
            Self::Ready => f.write_str("ready"),
            Self::Failed { reason } => write!(f, "failed: {reason}"),
            Self::Killed => f.write_str("killed"),
        }
    }
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
    pub state: SandboxState,
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
    /// What runs there, in the terms that memories carry.
    pub fingerprint: Fingerprint,
}
