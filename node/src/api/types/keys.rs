//! How the keys of this node lie at rest.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `POST /v1/keys`.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtectBody {
    /// `plain`, `passphrase` or `keyring`.
    pub with: String,
    /// The passphrase, for `passphrase`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passphrase: Option<String>,
}

impl std::fmt::Debug for ProtectBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProtectBody")
            .field("with", &self.with)
            .finish_non_exhaustive()
    }
}

/// `GET /v1/keys`, and the answer to [`ProtectBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeysAtRest {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// How they lie: `plain`, `passphrase` or `keyring`.
    pub with: String,
}
