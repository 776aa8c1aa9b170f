//! The audit log: who did what on this node.
pub use crate::control::audit::{Entry as AuditEntry, Who};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// The query of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditParams {
    /// Only entries from this number on; the newest ones by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most this many; 100 by default, 1,000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Entries of the audit log, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// The first entry that does not follow from the one before it, if one does not: a line was
    /// changed or taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at: Option<u64>,
    /// How many entries there are in all, those that were rotated away included.
    pub next: u64,
}
