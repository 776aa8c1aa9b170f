//! The door for clients of E2B.
use std::{collections::BTreeMap, ffi::OsString, fmt, net::SocketAddr};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The door for clients of E2B, as in `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2bConfig {
    /// The TCP address to listen on; there is no such door if absent.
    pub listen: Option<SocketAddr>,
    /// What clients must send as their key; any that is not empty if absent.
    pub key: Option<ApiKey>,
    /// Whether to speak TLS, with a certificate of the node's own authority.
    pub tls: bool,
    /// The domain whose names `api.…` and `<port>-<sandbox>.…` lead here.
    pub domain: Option<String>,
    /// Images by the names of templates, beside the built-in ones.
    pub templates: BTreeMap<String, String>,
}

/// A key that clients send; it shows itself to nobody.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApiKey(pub String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

/// The flags of `rhizome up` for it, with the environment below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct E2bFlags {
    /// Answer clients of E2B on this loopback address; port 0 takes any [default: do not]
    #[arg(long = "e2b", value_name = "IP:PORT", env = "RHIZOME_E2B")]
    pub listen: Option<SocketAddr>,
    /// Speak TLS with clients of E2B, by a certificate of the node's own authority
    #[arg(long = "e2b-tls")]
    pub tls: bool,
    /// Domain whose names `api.DOMAIN` and `PORT-SANDBOX.DOMAIN` lead to clients of E2B here
    #[arg(long = "e2b-domain", value_name = "DOMAIN", env = "RHIZOME_E2B_DOMAIN")]
    pub domain: Option<String>,
}

impl E2bFlags {
    /// Adds the flags as one would type them.
    pub(super) fn push_args(&self, args: &mut Vec<OsString>) {
        if let Some(listen) = self.listen {
            args.extend(["--e2b".into(), listen.to_string().into()]);
        }
        if let Some(domain) = &self.domain {
            args.extend(["--e2b-domain".into(), domain.into()]);
        }
        if self.tls {
            args.push("--e2b-tls".into());
        }
    }
}

impl E2bConfig {
    pub(super) fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "listen": self.listen.map(|addr| addr.to_string()),
            "key": self.key.as_ref().map(|_| "set"),
            "tls": self.tls,
            "domain": self.domain,
            "templates": self.templates,
        })
    }

    /// Takes what the flags say instead.
    pub(super) fn with_flags(self, flags: E2bFlags) -> Self {
        Self {
            listen: flags.listen.or(self.listen),
            tls: self.tls || flags.tls,
            domain: flags.domain.or(self.domain),
            ..self
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |what: &'static str| Err(ConfigError::E2b { what });
        let is_far = self.listen.is_some_and(|addr| !addr.ip().is_loopback());
        if is_far && !(self.tls && self.key.is_some()) {
            return wrong("an address beyond loopback takes both `tls` and a `key`");
        }
        if self.key.as_ref().is_some_and(|key| key.0.is_empty()) {
            return wrong("the key is empty");
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-".contains(&b);
        let is_domain = |domain: &str| {
            (1..=200).contains(&domain.len())
                && domain.bytes().all(plain)
                && domain.split('.').all(|label| {
                    (1..=63).contains(&label.len())
                        && !label.starts_with('-')
                        && !label.ends_with('-')
                })
        };
        match &self.domain {
            Some(domain) if !is_domain(domain) => {
                wrong("the domain is none; write it as `sandboxes.example.org`")
            }
            _ => Ok(()),
        }
    }
}
