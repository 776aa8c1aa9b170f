//! What sandboxes may reach, and the secrets that they use.
use rhizome_sandbox::egress::{Denial, EgressUsage, Policy, Secret};
use serde::{Deserialize, Serialize};

use super::{SCHEMA, schema};

/// `POST /v1/sandboxes/{id}/policy`: takes effect at once, for open connections too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkBody {
    /// What to begin with; the policy that there is, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Rules that are added to what is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Rules that are added to what is denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Rules that are taken away, from either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forget: Vec<String>,
    /// Names of the secrets that it may use from now on; as before, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// `GET /v1/sandboxes/{id}/policy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// The sandbox.
    pub sandbox: String,
    /// What it may reach.
    pub policy: Policy,
    /// The same in one line.
    pub shown: String,
    /// Names of the secrets that it may use.
    pub secrets: Vec<String>,
    /// What went through since the daemon started.
    pub usage: EgressUsage,
}

/// `GET /v1/sandboxes/{id}/egress/denials`, and `GET /v1/net/denials` from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denials {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// What the sandbox may reach, in one line.
    pub policy: String,
    /// What was denied, the oldest first.
    pub denials: Vec<Denial>,
}

/// A secret as it is shown: without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretShown {
    /// Its name.
    pub name: String,
    /// The one domain it is sent to.
    pub domain: String,
    /// The one header it is sent in.
    pub header: String,
    /// What that header holds, `{}` standing for the value.
    pub format: String,
    /// The environment variable that holds its placeholder in a sandbox.
    pub variable: String,
}

impl From<&Secret> for SecretShown {
    fn from(secret: &Secret) -> Self {
        Self {
            name: secret.name().to_owned(),
            domain: secret.domain().to_string(),
            header: secret.header().to_owned(),
            format: secret.format().to_owned(),
            variable: secret.variable(),
        }
    }
}

/// `GET /v1/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// The secrets of this node, by name.
    pub secrets: Vec<SecretShown>,
}

/// The answer to `POST /v1/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretSet {
    /// Schema number.
    #[serde(default = "schema")]
    pub schema: u32,
    /// The secret.
    #[serde(flatten)]
    pub secret: SecretShown,
}

impl From<&Secret> for SecretSet {
    fn from(secret: &Secret) -> Self {
        Self {
            schema: SCHEMA,
            secret: secret.into(),
        }
    }
}
