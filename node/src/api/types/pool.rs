//! Guests that wait for the next sandbox of their image and size.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `POST /v1/pool`; the answer is a stream of [`super::ProgressLine`]`<`[`Pool`]`>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmBody {
    /// `minimal` (default), `debian` or an image id or its prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory of the sandboxes that are made from it, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Their virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
}

/// `GET /v1/pool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// The schema of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The guests, the most used last.
    pub guests: Vec<PoolGuest>,
}

/// A guest that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolGuest {
    /// Name of its image.
    pub image: String,
    /// Id of its image.
    pub image_id: String,
    /// Memory of the sandboxes that are made from it, in MiB.
    pub memory_mib: u32,
    /// Their virtual CPUs.
    pub vcpus: u32,
    /// Memory that it takes of the host, in bytes; sandboxes that are made from it share it.
    pub resident_bytes: u64,
    /// When it was made.
    pub made_ms: u64,
    /// How many sandboxes were made from it.
    pub taken: u64,
}

/// `DELETE /v1/pool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drained {
    /// The schema of this object.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Guests that waited and do not any more.
    pub drained: usize,
}
