//! Runtimes: what sandboxes are made of.
use rhizome_sandbox::Difference;
use serde::{Deserialize, Serialize};

use super::schema;

/// `GET /v1/runtimes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtimes {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// The runtimes, newest first.
    pub runtimes: Vec<RuntimeLine>,
}

/// A runtime in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeLine {
    /// BLAKE3 of its fingerprint; what memories name it by.
    pub hash: String,
    /// Image, driver, kernel and memory, for people.
    pub about: String,
    /// When it was first told of, by the teller's clock.
    pub at_ms: u64,
}

/// `GET /v1/runtimes/{hash or sandbox}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Runtime {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// Its hash.
    pub hash: String,
    /// All that is known of it.
    pub fingerprint: serde_json::Value,
}

/// `GET /v1/runtimes/{a}/differences/{b}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeDifferences {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// Hash of the first.
    pub was: String,
    /// Hash of the second.
    pub is: String,
    /// In what they differ; none if they are the same.
    pub differences: Vec<Difference>,
}
