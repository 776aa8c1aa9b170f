//! What sandboxes that sleep wait for, and what woke them.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// Something that wakes a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "on", rename_all = "lowercase")]
pub enum WakeOn {
    /// A time.
    Time {
        /// Unix milliseconds, by the clock of the node that wakes it.
        at_ms: u64,
    },
    /// A memory that is published after it went to sleep.
    Memory {
        /// The words that it has, all of them.
        query: String,
    },
    /// A request to `POST /v1/wake/<token>`, on any node that holds a copy.
    Webhook,
    /// Something that this release does not know.
    Unknown,
}

/// What woke a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "lowercase")]
pub enum WokenBy {
    /// Its time came.
    Time {
        /// When it was to wake.
        at_ms: u64,
    },
    /// A memory came.
    Memory {
        /// What it waited for.
        query: String,
        /// The fragment that has it.
        fragment: String,
        /// The document that the fragment belongs to.
        doc: String,
        /// What it says, in a line.
        title: String,
    },
    /// Somebody sent something to its webhook.
    Webhook {
        /// How many bytes; they lie in `/run/rhizome/wake.body` in the guest.
        bytes: u64,
    },
    /// Something that this release does not know.
    Unknown,
}

/// `POST /v1/wake-on`: what a sandbox that sleeps waits for from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WakeOnBody {
    /// The sandbox by id, prefix or name, or its snapshot by a prefix of its manifest.
    pub what: String,
    /// `time=…`, `memory=…`, `webhook`; none, to let it sleep until somebody wakes it.
    #[serde(default)]
    pub wake_on: Vec<String>,
}

/// What a sandbox waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The sandbox.
    pub sandbox: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it waits for; whichever comes first wakes it.
    pub wake_on: Vec<WakeOn>,
    /// The path of its webhook, told once: `POST` to it on any node that holds a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

/// How a snapshot is kept on other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Copies {
    /// How many nodes, beside the one it was taken on, are to hold it; 0 where nobody said.
    pub wanted: usize,
    /// Those that said they do.
    pub holders: Vec<super::Named>,
    /// How many of them are connected.
    pub connected: usize,
}
