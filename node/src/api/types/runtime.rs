//! Runtimes: what sandboxes are made of.
use rhizome_sandbox::Difference;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `GET /v1/runtimes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Runtimes {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The runtimes, newest first.
    pub runtimes: Vec<RuntimeLine>,
}

/// A runtime in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeLine {
    /// BLAKE3 of its fingerprint; what memories name it by.
    pub hash: String,
    /// Image, driver, kernel and memory, for people.
    pub about: String,
    /// When it was first told of, by the teller's clock.
    pub at_ms: u64,
}

/// `GET /v1/runtimes/{hash or sandbox}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runtime {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Its hash.
    pub hash: String,
    /// All that is known of it.
    pub fingerprint: serde_json::Value,
}

/// `GET /v1/runtimes/{a}/differences/{b}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeDifferences {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Hash of the first.
    pub was: String,
    /// Hash of the second.
    pub is: String,
    /// In what they differ; none if they are the same.
    #[schemars(with = "Vec<DifferenceShape>")]
    pub differences: Vec<Difference>,
}

/// One thing that is not the same in two runtimes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Difference")]
pub struct DifferenceShape {
    /// What: `kernel`, `tool python3`, `mount /work`, …
    what: String,
    /// How it was in the first; null where it was not there.
    was: Option<String>,
    /// How it is in the second.
    is: Option<String>,
}
