//! What agents and spaces use of a node, and how much they may.
pub use crate::control::quota::{Per, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// By what usage is added up.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A row for each agent.
    #[default]
    Agent,
    /// A row for each space; what a sandbox uses counts in each of its spaces.
    Space,
    /// A row for each sandbox.
    Sandbox,
}

/// The query of `GET /v1/usage`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageParams {
    /// By what it is added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    /// From when on, rounded down to a whole hour; since the beginning, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// Until when, rounded likewise; until now, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Only this agent's, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Only this space's, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
}

/// Amounts of everything that is metered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Amounts {
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// Memory times time, in MiB times seconds.
    pub ram_mib_s: u64,
    /// Disk times time, in MiB times seconds.
    pub disk_mib_s: u64,
    /// Bytes of disk that are held now.
    pub disk_bytes: u64,
    /// Bytes that left through the network.
    pub sent_bytes: u64,
    /// Bytes that came back.
    pub received_bytes: u64,
    /// Time for which sandboxes ran, in milliseconds.
    pub sandbox_ms: u64,
    /// Sandboxes that run now.
    pub running: u64,
}

/// What one agent, space or sandbox used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsageRow {
    /// The agent; absent for what works for none, and in rows by space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Named>,
    /// The space or, in rows by sandbox, the spaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spaces: Vec<Named>,
    /// The sandbox, in rows by sandbox; absent for those too old to be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Its name, while it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The volume, in rows by sandbox, of what its versions take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// How much.
    #[serde(flatten)]
    pub used: Amounts,
}

/// `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsageAnswer {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// By what it is added up.
    pub by: By,
    /// From when on; absent for since the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// Until when.
    pub until_ms: u64,
    /// The rows, by processor time, the most first.
    pub usage: Vec<UsageRow>,
}

/// `POST /v1/quotas`: sets quotas of one agent or space, or of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaBody {
    /// An agent, by name or id; this, `space` or `each`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A space, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// `agent` or `space`: each one that has no such quota of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<String>,
    /// Over which time: `day` (default), `month` or `ever`; disk is limited at each moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Per>,
    /// How much of what, in the resource's unit.
    pub limits: std::collections::BTreeMap<Resource, u64>,
}

/// The query of `DELETE /v1/quotas`: those that match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaParams {
    /// An agent, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A space, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// `agent` or `space`: those of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<String>,
    /// Only those of this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// Only those over this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Per>,
}

/// A quota, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quota {
    /// `agent` or `space`.
    pub kind: String,
    /// Whose; absent for one that stands for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Named>,
    /// Whether it is one that stands for each, here for this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
    /// What is limited.
    pub resource: Resource,
    /// Over which time.
    pub per: Per,
    /// How much there may be.
    pub limit: u64,
    /// The unit of both numbers.
    pub unit: String,
    /// How much was used; absent where it stands for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Whether it is used up.
    #[serde(default)]
    pub over: bool,
    /// When it begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<u64>,
}

/// `GET`, `POST` and `DELETE /v1/quotas`: those that are there, were set, were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaList {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The quotas.
    pub quotas: Vec<Quota>,
}

/// `GET /v1/usage` from inside a sandbox: its own, and the quotas that count for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnUsage {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// What this sandbox used since it was made.
    pub usage: UsageRow,
    /// The quotas of its agent and its spaces.
    pub quotas: Vec<Quota>,
}
