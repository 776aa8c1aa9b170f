//! The door for clients of E2B.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema_number;

/// `GET /v1/e2b`: where clients of E2B are answered, and what they have to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct E2bDoor {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Address of the control plane.
    pub url: String,
    /// What stands behind `<port>-<sandbox>.` and `api.`, with the port.
    pub domain: String,
    /// Whether that domain was asked for, rather than being `localhost`.
    pub domain_mode: bool,
    /// Whether TLS is spoken.
    pub tls: bool,
    /// File of the certificate to trust, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The key to send; any will do if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
