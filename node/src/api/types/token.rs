//! Tokens: what opens the API over TCP, for whom, and how far.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// `POST /v1/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    /// Its name, unique on this node: letters, digits, `-`, `_`, `.`; 64 at most.
    pub name: String,
    /// Name or id of the agent that its holder speaks as; the node's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Names or ids of the spaces it opens; all that the agent may use by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spaces: Vec<String>,
    /// Whether it opens sandboxes of those spaces too.
    #[serde(default)]
    pub sandboxes: bool,
    /// For how long, in seconds; without end by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_secs: Option<u64>,
}

/// A token, without what is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// The agent that its holder speaks as.
    pub agent: Named,
    /// The spaces it opens, its default first.
    pub spaces: Vec<Named>,
    /// Whether it opens sandboxes of those spaces too.
    pub sandboxes: bool,
    /// When it was made.
    pub created_ms: u64,
    /// Until when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after_ms: Option<u64>,
}

/// The answer of `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCreated {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The new token.
    #[serde(flatten)]
    pub token: Token,
    /// What is sent in `Authorization: Bearer …`; told once and kept nowhere.
    pub secret: String,
}

/// The answer of `DELETE /v1/tokens/{name}`: the token, which opens nothing from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenRevoked {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The token.
    #[serde(flatten)]
    pub token: Token,
}

/// The answer of `GET /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The tokens, by name.
    pub tokens: Vec<Token>,
}
