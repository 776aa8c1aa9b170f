//! Bringing in the memory of another system.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `POST /v1/memory/import`: some lines of the file that the reference MCP memory server keeps.
///
/// What is there already is left alone, so that an import can be repeated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImportBody {
    /// Name or id of the agent that says it; the node's own agent by default. Refused from a guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name or id of the space; may be left out where there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Entities, each with its line; one may come several times, with other observations.
    pub entities: Vec<ImportEntity>,
    /// Relations, each with its line.
    pub relations: Vec<ImportRelation>,
}

/// An entity of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportEntity {
    /// Its line in the file, from 1.
    pub line: u64,
    /// Its name.
    pub name: String,
    /// Its type.
    pub entity_type: String,
    /// What is known of it.
    #[serde(default)]
    pub observations: Vec<String>,
}

/// A relation of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportRelation {
    /// Its line in the file, from 1.
    pub line: u64,
    /// Where it starts.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// What it is.
    pub relation_type: String,
}

/// The answer to [`ImportBody`]; all of it durable on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Entities that are new.
    pub entities: u64,
    /// Observations that are new.
    pub observations: u64,
    /// Relations that are new.
    pub relations: u64,
    /// What was there already.
    pub known: u64,
    /// What was not taken, and why.
    #[serde(default)]
    pub refused: Vec<RefusedLine>,
}

/// A line, or a part of one, that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedLine {
    /// Its number in the file, from 1.
    pub line: u64,
    /// Why.
    pub reason: String,
}

/// What `rhizome memory import` did, as `--json` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportReport {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Lines that were read.
    pub lines: u64,
    /// Entities that are new.
    pub entities: u64,
    /// Observations that are new.
    pub observations: u64,
    /// Relations that are new.
    pub relations: u64,
    /// What was there already.
    pub known: u64,
    /// The lines that could not be used, in their order; all others are kept.
    pub damaged: Vec<RefusedLine>,
}
