//! One line of a policy.
//!
//! ```text
//! rule  = [ "tcp:" ] name [ ":" ports ]        a name: TLS by its greeting, HTTP by its Host
//!       | cidr [ ":" ports ]                   addresses: whatever is spoken there
//! name  = domain | "*." domain
//! cidr  = IPv4 address [ "/" prefix ]
//! ports = port [ "-" port ] *( "," port [ "-" port ] )
//! ```

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    address::Cidr,
    name::{NameError, NamePattern},
};

/// Ports of a rule about a name that gives none.
const WEB_PORTS: [u16; 2] = [80, 443];
/// Most ranges of ports in a rule.
const MAX_RANGES: usize = 16;
/// Longest rule, in bytes.
const MAX_RULE: usize = 1024;

/// One line of a policy: what it is about. Whether it allows or denies is up to the list it is in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    pub(super) target: Target,
    pub(super) ports: Ports,
}

/// What a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// Names, and the addresses that they have.
    Name {
        pattern: NamePattern,
        /// Any protocol, not only those that say which name they mean.
        any_protocol: bool,
    },
    /// Addresses.
    Range(Cidr),
}

/// Ports of a rule; none given means its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ports(Vec<(u16, u16)>);

impl Ports {
    pub(super) fn are_given(&self) -> bool {
        !self.0.is_empty()
    }

    fn contain(&self, port: u16) -> bool {
        self.0
            .iter()
            .any(|&(low, high)| (low..=high).contains(&port))
    }
}

impl Rule {
    /// Whether, in the list of what is allowed, the rule is about this port.
    pub(super) fn allows_port(&self, port: u16) -> bool {
        match &self.target {
            _ if self.ports.are_given() => self.ports.contain(port),
            Target::Name {
                any_protocol: false,
                ..
            } => WEB_PORTS.contains(&port),
            Target::Name { .. } | Target::Range(_) => true,
        }
    }

    /// Whether, in the list of what is denied, the rule is about this port.
    pub(super) fn denies_port(&self, port: u16) -> bool {
        !self.ports.are_given() || self.ports.contain(port)
    }
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{rule}` is no network rule: {what}")]
pub struct RuleError {
    rule: String,
    what: String,
}

impl RuleError {
    pub(super) fn new(rule: &str, what: impl fmt::Display) -> Self {
        Self {
            rule: rule.escape_debug().take(128).collect(),
            what: what.to_string(),
        }
    }

    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        "write `example.org`, `*.example.org`, `example.org:8443`, `10.0.0.0/8:5432` or \
         `tcp:db.example.org:5432`"
            .to_owned()
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let fail = |what: String| RuleError::new(text, what);
        if text.len() > MAX_RULE {
            return Err(fail("it is too long".to_owned()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(fail(format!(
                "leave `{scheme}://` and the path out; rules are about names and ports"
            )));
        }
        let (any_protocol, rest) = match text.strip_prefix("tcp:") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.starts_with('[') || rest.matches(':').count() > 1 {
            return Err(fail("IPv6 is not carried out of a sandbox".to_owned()));
        }
        let (target, ports) = match rest.split_once(':') {
            Some((target, ports)) => (target, Some(ports)),
            None => (rest, None),
        };
        let ports = match ports {
            None => Ports::default(),
            Some(ports) => ports.parse().map_err(&fail)?,
        };
        let is_range = target.contains('/')
            || (!target.is_empty() && target.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
        let target = if is_range {
            if any_protocol {
                return Err(fail(
                    "a rule about addresses is about any protocol; leave `tcp:` out".to_owned(),
                ));
            }
            Target::Range(target.parse().map_err(&fail)?)
        } else {
            let pattern = target.parse().map_err(|error: NameError| {
                fail(match target {
                    "*" => "`*` alone is the policy `open`".to_owned(),
                    _ => error.to_string(),
                })
            })?;
            if any_protocol && !ports.are_given() {
                return Err(fail(
                    "`tcp:` needs a port, as in `tcp:db.example.org:5432`".to_owned(),
                ));
            }
            Target::Name {
                pattern,
                any_protocol,
            }
        };
        Ok(Self { target, ports })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Name {
                pattern,
                any_protocol,
            } => {
                f.write_str(if *any_protocol { "tcp:" } else { "" })?;
                pattern.fmt(f)?;
            }
            Target::Range(range) => range.fmt(f)?,
        }
        if self.ports.are_given() {
            write!(f, ":{}", self.ports)?;
        }
        Ok(())
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let port = text.parse().ok().filter(|&port: &u16| digits && port != 0);
            port.ok_or_else(|| format!("`{text}` is no port: 1 to 65535"))
        };
        let mut ranges = text
            .split(',')
            .map(|range| {
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                let (low, high) = (port(low)?, port(high)?);
                if low > high {
                    return Err(format!("`{range}` goes from high to low"));
                }
                Ok((low, high))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if ranges.len() > MAX_RANGES {
            return Err(format!("it has more than {MAX_RANGES} ranges of ports"));
        }
        ranges.sort_unstable();
        ranges.dedup();
        Ok(Self(ranges))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (low, high)) in self.0.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "," })?;
            if low == high {
                low.fmt(f)?;
            } else {
                write!(f, "{low}-{high}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_as_they_are_read() {
        for (text, shown) in [
            ("example.org", "example.org"),
            ("Example.ORG.", "example.org"),
            ("*.example.org:443", "*.example.org:443"),
            ("example.org:8000-8100,443", "example.org:443,8000-8100"),
            ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
            ("192.168.0.1", "192.168.0.1"),
            ("tcp:db.example.org:5432", "tcp:db.example.org:5432"),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse::<Rule>().unwrap(), rule);
        }
    }

    #[test]
    fn what_is_no_rule_says_why() {
        for (text, why) in [
            ("", "empty"),
            ("*", "open"),
            ("https://example.org/a", "leave `https://`"),
            ("example.org:", "no port"),
            ("example.org:0", "no port"),
            ("example.org:+80", "no port"),
            ("example.org:70000", "no port"),
            ("example.org:90-80", "high to low"),
            ("example.org/a", "no IPv4 address"),
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("10.0.0", "no IPv4 address"),
            ("::1", "IPv6"),
            ("[::1]:80", "IPv6"),
            ("tcp:example.org", "needs a port"),
            ("tcp:10.0.0.0/8:22", "leave `tcp:` out"),
            ("exa mple.org", "character"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!("a".repeat(2000).parse::<Rule>().is_err());
    }

    #[test]
    fn ports_have_defaults_by_what_a_rule_is_about() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        assert!(rule("a.example").allows_port(443) && rule("a.example").allows_port(80));
        assert!(!rule("a.example").allows_port(22));
        assert!(rule("10.0.0.0/8").allows_port(22));
        assert!(rule("a.example").denies_port(22));
        assert!(!rule("a.example:80").denies_port(22));
    }
}
