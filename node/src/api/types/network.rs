//! What sandboxes may reach, and the secrets that they use.
use rhizome_sandbox::egress::{Denial, EgressUsage, Policy, Secret, SecretParts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SCHEMA, schema_number};

/// `POST /v1/sandboxes/{id}/policy`: takes effect at once, for open connections too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkBody {
    /// What to begin with; the policy that there is, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PolicyShape>")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Network {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The sandbox.
    pub sandbox: String,
    /// What it may reach.
    #[schemars(with = "PolicyShape")]
    pub policy: Policy,
    /// The same in one line.
    pub shown: String,
    /// Names of the secrets that it may use.
    pub secrets: Vec<String>,
    /// What went through since the daemon started.
    #[schemars(with = "EgressUsageShape")]
    pub usage: EgressUsage,
}

/// `GET /v1/sandboxes/{id}/egress/denials`, and `GET /v1/net/denials` from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denials {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// What the sandbox may reach, in one line.
    pub policy: String,
    /// What was denied, the oldest first.
    #[schemars(with = "Vec<DenialShape>")]
    pub denials: Vec<Denial>,
}

/// A secret as it is shown: without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secrets {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The secrets of this node, by name.
    pub secrets: Vec<SecretShown>,
}

/// The answer to `POST /v1/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretSet {
    /// Schema number.
    #[serde(default = "schema_number")]
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

/// `POST /v1/secrets`: a secret with its value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretBody(#[schemars(with = "SecretShape")] pub SecretParts);

/// What a sandbox may reach.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Policy")]
pub struct PolicyShape {
    /// `deny` (default) or `allow`: what becomes of that which no rule is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<Otherwise>,
    /// Rules: names, networks, ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// Rules that beat those of `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Otherwise {
    Deny,
    Allow,
}

/// What a sandbox sent and received.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EgressUsage")]
pub struct EgressUsageShape {
    /// Bytes that left.
    sent_bytes: u64,
    /// Bytes that came back.
    received_bytes: u64,
    /// Connections that were made outside.
    connections: u64,
    /// Attempts that were denied, repeated ones included.
    denied: u64,
}

/// Something that was denied.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Denial")]
pub struct DenialShape {
    /// Its number in the sandbox, from 1.
    number: u64,
    /// When it was denied first.
    first_ms: u64,
    /// When it was denied last.
    last_ms: u64,
    /// How often.
    count: u64,
    /// What was tried: `dns`, `tcp`, `tls`, `http`, `udp`, `secret` or `other`.
    attempt: String,
    /// The rule that says so.
    rule: String,
    /// What was asked for.
    destination: String,
    /// How to be allowed.
    how_to_ask: String,
}

/// A secret with its value.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Secret")]
pub struct SecretShape {
    /// 1 to 64 letters, digits and `_`, not beginning with a digit.
    name: String,
    /// The one domain it is sent to.
    domain: String,
    /// The one header it is sent in; `authorization` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    header: Option<String>,
    /// What that header holds, `{}` standing for the value; `Bearer {}` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    /// The value.
    value: String,
}
