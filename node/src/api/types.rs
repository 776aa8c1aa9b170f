//! What travels over the daemon's socket and through the guest door, as serde types.
//!
//! The daemon and the command line compile against the same structs. Ids are lowercase hex
//! strings, times are Unix milliseconds, and every object the command line may print with
//! `--json` carries a `schema` number. Fields are added freely; a renamed or removed field
//! needs a new number (`docs/api.md`).
//!
//! One module per noun: [`memory`], [`context`], [`mesh`], [`sandbox`], [`node`], [`remote`], [`volume`]; what they share is
//! here.
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod audit;
pub mod backup;
pub mod context;
pub mod e2b;
pub mod file;
pub mod image;
pub mod import;
pub mod keys;
pub mod lifecycle;
pub mod member;
pub mod memory;
pub mod mesh;
pub mod network;
pub mod node;
pub mod pool;
pub mod remote;
pub mod runtime;
pub mod sandbox;
pub mod token;
pub mod usage;
pub mod volume;
pub mod wake;

/// The schema number of this release's objects.
pub const SCHEMA: u32 = 1;

/// Returns [`SCHEMA`]; a missing number in foreign JSON reads as the first schema.
pub(crate) fn schema_number() -> u32 {
    SCHEMA
}

/// Somebody with an id and a name: an agent, a node, a space.
///
/// The name is what that somebody's certificate or grant says; empty when it is not known here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Named {
    /// The id as 64 hex digits.
    pub id: String,
    /// The name, empty if unknown.
    pub name: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            f.write_str(self.id.get(..10).unwrap_or(&self.id))
        } else {
            f.write_str(&self.name)
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorInfo,
}

/// An error in three parts: what failed, the causes, what to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorInfo {
    /// A stable word for programs, such as `unknown_space` (list: `docs/api.md`).
    pub code: String,
    /// What failed, for people; starts lower-case, no full stop.
    pub message: String,
    /// Why, outermost first; none repeats the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What the reader can do about it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One line of an answer that reports its progress (`application/x-ndjson`).
///
/// The last line is always [`ProgressLine::Done`] or [`ProgressLine::Failed`]; a stream that ends
/// without either was cut off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressLine<T> {
    /// A step began or moved on.
    Progress(Progress),
    /// The work is done; this is the result.
    Done(T),
    /// The work failed.
    #[serde(rename = "error")]
    Failed(ErrorInfo),
}

/// How far a long piece of work has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// The step's short name, such as `boot`.
    pub step: String,
    /// What it is doing, for people.
    #[serde(default)]
    pub detail: String,
    /// How much is done, in the step's own unit.
    #[serde(default)]
    pub done: u64,
    /// How much there is; 0 when not known.
    #[serde(default)]
    pub total: u64,
}

/// An answer with nothing more to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Schema number.
    pub schema: u32,
    /// Always true.
    pub ok: bool,
}

impl Default for Done {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            ok: true,
        }
    }
}
