//! Secrets that a guest uses and never holds.
//!
//! The guest sees a placeholder. In the one header of requests to the one domain that a secret is
//! for, sent over TLS, the placeholder gives way to the value, outside the guest; anywhere else it
//! stops the request. An answer that holds the value is cut before the guest has all of it.

mod authority;
mod scanner;

use std::{collections::BTreeMap, fmt, sync::Arc};

use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use serde::{Deserialize, Serialize};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use zeroize::Zeroizing;

pub use authority::{Authority, AuthorityError};
pub(super) use scanner::Scanner;

use super::{
    http::Head,
    name::{DomainName, NameError},
    policy::Denied,
};

/// What every placeholder begins with.
const PLACEHOLDER: &str = "rz-secret-";
/// Longest name and format, in bytes.
const MAX_NAME: usize = 64;
const MAX_FORMAT: usize = 256;
/// A shorter value could be found in an answer by chance.
const MIN_VALUE: usize = 8;
const MAX_VALUE: usize = 16 * 1024;
/// Headers that say what a request is, not who sends it.
const NOT_FOR_SECRETS: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept-encoding",
];

/// A secret, where it goes, and how.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SecretParts", into = "SecretParts")]
pub struct Secret {
    name: String,
    domain: DomainName,
    header: String,
    format: String,
    value: Zeroizing<String>,
}

/// The parts of a [`Secret`] as they are given and stored.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretParts {
    /// 1 to 64 of `A-Z a-z 0-9 _`, not beginning with a digit: a part of an environment variable.
    pub name: String,
    /// The one domain it is sent to.
    pub domain: String,
    /// The one header it is sent in.
    #[serde(default = "authorization")]
    pub header: String,
    /// What the header holds, `{}` standing for the value.
    #[serde(default = "bearer")]
    pub format: String,
    /// The value.
    #[serde(serialize_with = "write_value", deserialize_with = "read_value")]
    pub value: Zeroizing<String>,
}

fn write_value<S: serde::Serializer>(value: &Zeroizing<String>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value)
}

fn read_value<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(from).map(Zeroizing::new)
}

fn authorization() -> String {
    "authorization".to_owned()
}

fn bearer() -> String {
    "Bearer {}".to_owned()
}

impl fmt::Debug for SecretParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretParts")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why there is no such secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The name is none.
    #[error("a secret's name is 1 to {MAX_NAME} of A-Z a-z 0-9 _, not beginning with a digit")]
    Name,
    /// The domain is none.
    #[error("`{domain}` is no domain that a secret could be for")]
    Domain {
        /// What was given.
        domain: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// The header is none that a secret can be in.
    #[error("`{header}` is no header that a secret could be in")]
    Header {
        /// What was given.
        header: String,
    },
    /// The format has no place for the value, or more than one, or is no header's value.
    #[error("the format needs one `{{}}` for the value, and plain characters")]
    Format,
    /// The value cannot be in a header, or could be found by chance.
    #[error("a secret's value is {MIN_VALUE} to {MAX_VALUE} plain characters in one line")]
    Value,
}

impl TryFrom<SecretParts> for Secret {
    type Error = SecretError;

    fn try_from(parts: SecretParts) -> Result<Self, SecretError> {
        let SecretParts {
            name,
            domain,
            header,
            format,
            value,
        } = parts;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if name.is_empty()
            || name.len() > MAX_NAME
            || !name.bytes().all(plain)
            || name.as_bytes()[0].is_ascii_digit()
        {
            return Err(SecretError::Name);
        }
        let parsed: Result<DomainName, NameError> = domain.parse();
        let domain = parsed.map_err(|source| SecretError::Domain {
            domain: domain.escape_debug().take(128).collect(),
            source,
        })?;
        let header = header.to_ascii_lowercase();
        let token = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if header.is_empty()
            || header.len() > MAX_NAME
            || !header.bytes().all(token)
            || NOT_FOR_SECRETS.contains(&&*header)
        {
            return Err(SecretError::Header {
                header: header.escape_debug().take(64).collect(),
            });
        }
        let in_header = |text: &str| text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        if format.len() > MAX_FORMAT || format.matches("{}").count() != 1 || !in_header(&format) {
            return Err(SecretError::Format);
        }
        if !(MIN_VALUE..=MAX_VALUE).contains(&value.len())
            || !in_header(&value)
            || value.trim() != &**value
        {
            return Err(SecretError::Value);
        }
        Ok(Self {
            name,
            domain,
            header,
            format,
            value,
        })
    }
}

impl From<Secret> for SecretParts {
    fn from(secret: Secret) -> Self {
        Self {
            name: secret.name,
            domain: secret.domain.to_string(),
            header: secret.header,
            format: secret.format,
            value: secret.value,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .field("domain", &self.domain)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl Secret {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the one domain it is sent to.
    #[must_use]
    pub fn domain(&self) -> &DomainName {
        &self.domain
    }

    /// Returns the one header it is sent in.
    #[must_use]
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Returns what that header holds, `{}` standing for the value.
    #[must_use]
    pub fn format(&self) -> &str {
        &self.format
    }

    /// Returns what a guest sees instead. It depends on the name alone, so that a program that has
    /// it goes on with it wherever it is resumed or forked; who may use it is decided elsewhere.
    #[must_use]
    pub fn placeholder(&self) -> String {
        let digest = blake3::derive_key("rhizome secret placeholder 1", self.name.as_bytes());
        let tail: String = digest[..10]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{PLACEHOLDER}{}-{tail}", self.name.to_ascii_lowercase())
    }

    /// Returns the environment variable that holds the placeholder.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("RHIZOME_SECRET_{}", self.name.to_ascii_uppercase())
    }

    fn header_value(&self) -> Vec<u8> {
        self.format.replace("{}", &self.value).into_bytes()
    }
}

/// The secrets of one sandbox, and what is needed to put them in.
pub(super) struct Secrets {
    all: Vec<(Secret, String)>,
    acceptors: BTreeMap<DomainName, TlsAcceptor>,
    /// None without secrets.
    connector: Option<TlsConnector>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.all.iter().map(|(secret, _)| secret.name()).collect();
        f.debug_tuple("Secrets").field(&names).finish()
    }
}

impl Secrets {
    /// Makes the set of a sandbox whose authority is `authority`.
    pub(super) fn new(
        secrets: Vec<Secret>,
        authority: &Authority,
        connector: TlsConnector,
    ) -> Result<Self, AuthorityError> {
        let mut acceptors = BTreeMap::new();
        for secret in &secrets {
            if !acceptors.contains_key(&secret.domain) {
                let config = server_config(authority, &secret.domain)?;
                acceptors.insert(secret.domain.clone(), TlsAcceptor::from(Arc::new(config)));
            }
        }
        let all = secrets.into_iter().map(|secret| {
            let placeholder = secret.placeholder();
            (secret, placeholder)
        });
        Ok(Self {
            all: all.collect(),
            acceptors,
            connector: Some(connector),
        })
    }

    /// The set without secrets.
    pub(super) fn none() -> Self {
        Self {
            all: Vec::new(),
            acceptors: BTreeMap::new(),
            connector: None,
        }
    }

    /// Whether a secret is for this domain.
    pub(super) fn are_for(&self, name: &DomainName) -> bool {
        self.acceptors.contains_key(name)
    }

    /// Returns what ends TLS for a domain, towards the guest and towards its servers.
    pub(super) fn ends_of(&self, name: &DomainName) -> Option<(&TlsAcceptor, &TlsConnector)> {
        Some((self.acceptors.get(name)?, self.connector.as_ref()?))
    }

    /// Puts the values in the places of their placeholders. `sealed_for` is the domain that the
    /// request goes to over TLS of ours; without it nothing is put in.
    pub(super) fn put_in(
        &self,
        head: &mut Head,
        sealed_for: Option<&DomainName>,
    ) -> Result<(), Denied> {
        for (secret, placeholder) in &self.all {
            let fits = sealed_for == Some(&secret.domain);
            let except = if fits { secret.header.as_str() } else { "" };
            if head
                .texts(except)
                .any(|text| contains(text, placeholder.as_bytes()))
            {
                return Err(Denied {
                    rule: format!(
                        "secret {}, which goes to https://{} in the header `{}` alone",
                        secret.name, secret.domain, secret.header
                    ),
                    destination: format!("{} {}", head.method(), head.host),
                    how_to_ask: "use it there, or ask the sandbox's owner for another secret"
                        .to_owned(),
                });
            }
        }
        for (secret, placeholder) in &self.all {
            let is_used = sealed_for == Some(&secret.domain)
                && head
                    .values(&secret.header)
                    .any(|value| contains(value, placeholder.as_bytes()));
            if is_used {
                head.set(&secret.header, secret.header_value());
                // What comes back must be readable, to see that the value is not in it.
                head.set("accept-encoding", b"identity".to_vec());
            }
        }
        Ok(())
    }

    /// Returns what looks for placeholders in the body of a request.
    pub(super) fn placeholders(&self) -> Scanner {
        Scanner::new(self.all.iter().map(|(secret, placeholder)| {
            (
                secret.name.clone(),
                Zeroizing::new(placeholder.clone().into_bytes()),
            )
        }))
    }

    /// Returns what looks for the values of a domain's secrets in its answers.
    pub(super) fn values(&self, domain: &DomainName) -> Scanner {
        let those = self
            .all
            .iter()
            .filter(|(secret, _)| secret.domain == *domain);
        Scanner::new(those.map(|(secret, _)| {
            (
                secret.name.clone(),
                Zeroizing::new(secret.value.as_bytes().to_vec()),
            )
        }))
    }
}

/// Returns what connects to servers outside, trusting `roots`.
pub(super) fn connector(roots: RootCertStore) -> TlsConnector {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

fn server_config(
    authority: &Authority,
    domain: &DomainName,
) -> Result<ServerConfig, AuthorityError> {
    let (chain, key) = authority.certify(domain)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(AuthorityError::Tls)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(value: &str) -> SecretParts {
        SecretParts {
            name: "API_KEY".into(),
            domain: "api.example.org".into(),
            header: "Authorization".into(),
            format: "Bearer {}".into(),
            value: Zeroizing::new(value.into()),
        }
    }

    fn secrets() -> Secrets {
        let secret = Secret::try_from(parts("hunter2hunter2")).unwrap();
        let other = SecretParts {
            name: "OTHER".into(),
            domain: "other.example".into(),
            ..parts("swordfish-swordfish")
        };
        let all = vec![secret, other.try_into().unwrap()];
        let authority = Authority::generate("test").unwrap();
        Secrets::new(all, &authority, connector(RootCertStore::empty())).unwrap()
    }

    fn head(text: &str) -> Head {
        let text = format!("GET /x HTTP/1.1\r\nHost: api.example.org\r\n{text}\r\n\r\n");
        Head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn parts_are_checked_and_the_value_is_not_shown() {
        let bad = |change: fn(&mut SecretParts)| {
            let mut parts = parts("hunter2hunter2");
            change(&mut parts);
            Secret::try_from(parts).unwrap_err()
        };
        assert_eq!(bad(|p| p.name = "1A".into()), SecretError::Name);
        assert_eq!(bad(|p| p.name = "A-B".into()), SecretError::Name);
        assert!(matches!(
            bad(|p| p.domain = "*.example.org".into()),
            SecretError::Domain { .. }
        ));
        assert!(matches!(
            bad(|p| p.header = "Host".into()),
            SecretError::Header { .. }
        ));
        assert!(matches!(
            bad(|p| p.header = "a b".into()),
            SecretError::Header { .. }
        ));
        assert_eq!(bad(|p| p.format = "Bearer".into()), SecretError::Format);
        assert_eq!(
            bad(|p| p.format = "{}\r\nx: {}".into()),
            SecretError::Format
        );
        assert_eq!(
            bad(|p| p.value = Zeroizing::new("short".into())),
            SecretError::Value
        );
        assert_eq!(
            bad(|p| p.value = Zeroizing::new("long enough\r\nx: y".into())),
            SecretError::Value
        );
        let secret = Secret::try_from(parts("hunter2hunter2")).unwrap();
        let shown = format!(
            "{secret:?} {:?} {:?}",
            SecretParts::from(secret.clone()),
            secrets()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.variable(), "RHIZOME_SECRET_API_KEY");
        assert!(secret.placeholder().starts_with("rz-secret-api_key-"));
    }

    #[test]
    fn the_value_goes_into_its_header_to_its_domain_alone() {
        let secrets = secrets();
        let (domain, other): (DomainName, DomainName) = (
            "api.example.org".parse().unwrap(),
            "other.example".parse().unwrap(),
        );
        let placeholder = secrets.all[0].1.clone();
        let used = format!("Authorization: {placeholder}\r\nAccept-Encoding: gzip");

        let mut good = head(&used);
        secrets.put_in(&mut good, Some(&domain)).unwrap();
        let written = String::from_utf8(good.write()).unwrap();
        assert!(
            written.contains("authorization: Bearer hunter2hunter2\r\n"),
            "{written}"
        );
        assert!(written.contains("accept-encoding: identity\r\n") && !written.contains("gzip"));
        assert!(!written.contains(PLACEHOLDER));

        // Without TLS of ours, to another domain, in another header, in the target: nothing.
        assert!(secrets.put_in(&mut head(&used), None).is_err());
        assert!(secrets.put_in(&mut head(&used), Some(&other)).is_err());
        let elsewhere = format!("X-Note: {placeholder}");
        assert!(
            secrets
                .put_in(&mut head(&elsewhere), Some(&domain))
                .is_err()
        );
        let both = format!("{used}\r\nX-Note: {placeholder}");
        assert!(secrets.put_in(&mut head(&both), Some(&domain)).is_err());
        let foreign = format!("Authorization: {}", secrets.all[1].1);
        assert!(secrets.put_in(&mut head(&foreign), Some(&domain)).is_err());
        let text = format!("GET /{placeholder} HTTP/1.1\r\nHost: api.example.org\r\n\r\n");
        let mut target = Head::parse(text.as_bytes()).unwrap().unwrap().0;
        assert!(secrets.put_in(&mut target, Some(&domain)).is_err());

        let mut plain = head("Authorization: Basic eA==");
        secrets.put_in(&mut plain, Some(&domain)).unwrap();
        assert!(
            String::from_utf8(plain.write())
                .unwrap()
                .contains("authorization: Basic eA==")
        );
    }
}
