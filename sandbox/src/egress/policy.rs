//! What a guest may reach: a pure function of a policy and a request.
//!
//! Deny rules win over allow rules, and what no rule allows is denied, or allowed if the policy is
//! `open`. Guarded addresses (the node itself, its loopback, link-local, multicast, cloud
//! metadata) are denied unless an allow rule names just them; private ones are not reached through
//! a name unless a rule about addresses allows them too, so that nobody's DNS leads inside.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::{
    address::{guarded, is_private, names_guarded},
    name::DomainName,
    rule::{Rule, RuleError, Target},
};

/// Most rules in each list of a policy.
pub const MAX_RULES: usize = 256;

/// What becomes of what no rule is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// It is denied.
    #[default]
    Deny,
    /// It is allowed, guarded addresses excepted.
    Allow,
}

/// What a sandbox may reach.
///
/// As JSON: `{"default":"deny","allow":["example.org"],"deny":[]}`, all fields optional. As text:
/// `none`, `open`, or rules: `allow example.org, 10.0.0.0/8:5432; deny 10.1.0.0/16`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Policy {
    default: Otherwise,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parts {
    default: Otherwise,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<Rule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny: Vec<Rule>,
}

impl TryFrom<Parts> for Policy {
    type Error = PolicyError;

    fn try_from(parts: Parts) -> Result<Self, PolicyError> {
        Self::new(parts.default, parts.allow, parts.deny)
    }
}

impl From<Policy> for Parts {
    fn from(policy: Policy) -> Self {
        Self {
            default: policy.default,
            allow: policy.allow,
            deny: policy.deny,
        }
    }
}

/// Why there is no such policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A rule cannot be read.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A list is too long.
    #[error("a policy has at most {MAX_RULES} rules of a kind; this one has {found}")]
    TooMany {
        /// How many there are.
        found: usize,
    },
    /// The text is neither `none`, `open` nor rules.
    #[error("`{word}` is no policy: expected `none`, `open`, or `allow` and `deny` with rules")]
    Unknown {
        /// What stands where one of them should.
        word: String,
    },
}

impl PolicyError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Rule(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// A question to a policy.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// May this name be looked up?
    Lookup(&'a DomainName),
    /// May this be an address of that name, after it was looked up?
    Resolved(&'a DomainName, Ipv4Addr),
    /// May a connection to this address begin? `names` are those that led there by a lookup.
    Connect {
        /// Address and port.
        to: SocketAddrV4,
        /// Names that resolved to the address.
        names: &'a [DomainName],
        /// Whether the address is one of the node's own.
        is_own: bool,
    },
    /// May it go on, now that it has said which name it means?
    Named {
        /// Address and port.
        to: SocketAddrV4,
        /// What the guest said: in the TLS greeting, or in `Host`.
        name: &'a DomainName,
        /// Names that resolved to the address.
        names: &'a [DomainName],
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may be.
    Allowed {
        /// The rule that says so.
        rule: String,
        /// How the connection is carried.
        carry: Carry,
    },
    /// It may not be.
    Denied(Denied),
}

impl Decision {
    /// Whether it may be.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

/// How an allowed connection is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// As it is.
    Blindly,
    /// Only once it has said which name it means, and the answer to that is yes.
    ByName,
}

/// Why something may not be, in words for the agent that tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// The rule that says so.
    pub rule: String,
    /// What was asked for.
    pub destination: String,
    /// How to be allowed.
    pub how_to_ask: String,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            destination,
            how_to_ask,
        } = self;
        write!(f, "{destination} is not allowed ({rule}); {how_to_ask}")
    }
}

impl Policy {
    /// Returns the policy that denies everything; it is the default.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the policy that denies only what no rule could allow by accident.
    #[must_use]
    pub fn open() -> Self {
        Self {
            default: Otherwise::Allow,
            ..Self::default()
        }
    }

    /// Makes a policy; rules that repeat are kept once, and their order does not matter.
    ///
    /// # Errors
    /// [`PolicyError::TooMany`].
    pub fn new(default: Otherwise, allow: Vec<Rule>, deny: Vec<Rule>) -> Result<Self, PolicyError> {
        let tidy = |mut rules: Vec<Rule>| {
            rules.sort_unstable();
            rules.dedup();
            match rules.len() {
                found if found > MAX_RULES => Err(PolicyError::TooMany { found }),
                _ => Ok(rules),
            }
        };
        Ok(Self {
            default,
            allow: tidy(allow)?,
            deny: tidy(deny)?,
        })
    }

    /// Reads the rules as a command line gives them.
    ///
    /// # Errors
    /// Any [`PolicyError`].
    pub fn from_words<A, D>(base: Self, allow: A, deny: D) -> Result<Self, PolicyError>
    where
        A: IntoIterator<Item: AsRef<str>>,
        D: IntoIterator<Item: AsRef<str>>,
    {
        let Self {
            default,
            allow: mut allowed,
            deny: mut denied,
        } = base;
        for word in allow {
            allowed.push(word.as_ref().parse()?);
        }
        for word in deny {
            denied.push(word.as_ref().parse()?);
        }
        Self::new(default, allowed, denied)
    }

    /// Returns what becomes of what no rule is about.
    #[must_use]
    pub fn default_is(&self) -> Otherwise {
        self.default
    }

    /// Returns the rules that allow.
    #[must_use]
    pub fn allowed(&self) -> &[Rule] {
        &self.allow
    }

    /// Returns the rules that deny.
    #[must_use]
    pub fn denied(&self) -> &[Rule] {
        &self.deny
    }

    /// Whether nothing at all can be reached.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.default == Otherwise::Deny && self.allow.is_empty()
    }

    /// Answers a question.
    #[must_use]
    pub fn decide(&self, request: &Request<'_>) -> Decision {
        let answer = match *request {
            Request::Lookup(name) => self.lookup(name),
            Request::Resolved(name, address) => self.resolved(name, address),
            Request::Connect { to, names, is_own } => self.connect(to, names, is_own),
            Request::Named { to, name, names } => self.named(to, name, names),
        };
        match answer {
            Ok((rule, carry)) => Decision::Allowed { rule, carry },
            Err(denied) => Decision::Denied(denied),
        }
    }

    fn lookup(&self, name: &DomainName) -> Answer {
        let is_about = |rule: &&Rule| rule.is_about_name(name);
        if let Some(rule) = self
            .deny
            .iter()
            .filter(is_about)
            .find(|rule| !rule.ports.are_given())
        {
            return Err(denied_by(rule, name));
        }
        match self.allow.iter().find(is_about) {
            Some(rule) => Ok((format!("allow {rule}"), Carry::ByName)),
            None => self.otherwise(name, &name),
        }
    }

    fn resolved(&self, name: &DomainName, address: Ipv4Addr) -> Answer {
        let shown = format!("{name} at {address}");
        let is_about = |rule: &&Rule| rule.is_about_address(address);
        if let Some(rule) = self
            .deny
            .iter()
            .filter(is_about)
            .find(|rule| !rule.ports.are_given())
        {
            return Err(denied_by(rule, shown));
        }
        if let Some(rule) = self.allow.iter().find(is_about) {
            return Ok((format!("allow {rule}"), Carry::Blindly));
        }
        if let Some(what) = guarded(address) {
            return Err(Denied {
                rule: format!("the guard of {what}"),
                destination: shown,
                how_to_ask: ask_for(&address),
            });
        }
        if is_private(address) && self.default == Otherwise::Deny {
            return Err(Denied {
                rule: "the guard of private networks: no name leads there".to_owned(),
                destination: shown,
                how_to_ask: ask_for(&address),
            });
        }
        Ok(("its name".to_owned(), Carry::ByName))
    }

    fn connect(&self, to: SocketAddrV4, names: &[DomainName], is_own: bool) -> Answer {
        let (address, port) = (*to.ip(), to.port());
        let denies = |rule: &&Rule| rule.is_about_address(address) && rule.denies_port(port);
        if let Some(rule) = self.deny.iter().find(denies) {
            return Err(denied_by(rule, shown(to, names)));
        }
        let allows = |rule: &&Rule| {
            rule.is_about_address(address)
                && rule.allows_port(port)
                && (!is_own || rule.is_about_one_address())
        };
        if let Some(rule) = self.allow.iter().find(allows) {
            return Ok((format!("allow {rule}"), Carry::Blindly));
        }
        let guard = match guarded(address) {
            None if is_own => Some("the node itself"),
            found => found,
        };
        if let Some(what) = guard {
            return Err(Denied {
                rule: format!("the guard of {what}"),
                destination: shown(to, names),
                how_to_ask: ask_for(&to),
            });
        }
        self.connect_by_name(to, names)
    }

    fn connect_by_name(&self, to: SocketAddrV4, names: &[DomainName]) -> Answer {
        let port = to.port();
        let may_be = |name: &&DomainName| self.denying(name, port).is_none();
        let mut by_name = None;
        for name in names.iter().filter(may_be) {
            // The policy may have changed since the name was looked up.
            if self.resolved(name, *to.ip()).is_err() {
                continue;
            }
            match self.allowing(name, port) {
                Some(rule) if rule.is_any_protocol() => {
                    return Ok((format!("allow {rule}"), Carry::Blindly));
                }
                Some(rule) => by_name = Some(rule),
                None => {}
            }
        }
        if let Some(rule) = by_name {
            return Ok((format!("allow {rule}"), Carry::ByName));
        }
        if self.default == Otherwise::Allow {
            // Names that are denied can hide behind an address only where none has to be said.
            let says_names = self.deny.iter().any(|rule| {
                matches!(rule.target, Target::Name { .. })
                    && (rule.ports.are_given() || matches!(port, 80 | 443))
                    && rule.denies_port(port)
            });
            if let (Some(name), true) = (
                names.iter().find(|name| !may_be(name)),
                names.iter().all(|name| !may_be(&name)),
            ) {
                let rule = self.denying(name, port).expect("it is denied");
                return Err(denied_by(rule, shown(to, names)));
            }
            let carry = if says_names {
                Carry::ByName
            } else {
                Carry::Blindly
            };
            return Ok(("open".to_owned(), carry));
        }
        if let Some(rule) = names.iter().find_map(|name| self.denying(name, port)) {
            return Err(denied_by(rule, shown(to, names)));
        }
        Err(self.nothing_allows(to, names))
    }

    fn named(&self, to: SocketAddrV4, name: &DomainName, names: &[DomainName]) -> Answer {
        let destination = format!("{name}:{}", to.port());
        if let Some(rule) = self.denying(name, to.port()) {
            return Err(denied_by(rule, destination));
        }
        if self.default == Otherwise::Allow {
            return Ok(("open".to_owned(), Carry::Blindly));
        }
        let Some(rule) = self.allowing(name, to.port()) else {
            return self.otherwise(destination, &format_args!("{name}:{}", to.port()));
        };
        if !names.contains(name) {
            return Err(Denied {
                rule: format!("allow {rule}, which is about the addresses of that name"),
                destination: format!("{destination} at {}", to.ip()),
                how_to_ask:
                    "look the name up with the sandbox's resolver and connect to what it says"
                        .to_owned(),
            });
        }
        Ok((format!("allow {rule}"), Carry::ByName))
    }

    fn denying(&self, name: &DomainName, port: u16) -> Option<&Rule> {
        let denies = |rule: &&Rule| rule.is_about_name(name) && rule.denies_port(port);
        self.deny.iter().find(denies)
    }

    fn allowing(&self, name: &DomainName, port: u16) -> Option<&Rule> {
        let allows = |rule: &&Rule| rule.is_about_name(name) && rule.allows_port(port);
        // One that asks for less goes first.
        self.allow
            .iter()
            .filter(allows)
            .max_by_key(|rule| rule.is_any_protocol())
    }

    fn otherwise(&self, destination: impl ToString, ask: &dyn fmt::Display) -> Answer {
        if self.default == Otherwise::Allow {
            return Ok(("open".to_owned(), Carry::Blindly));
        }
        Err(Denied {
            rule: self.nothing(),
            destination: destination.to_string(),
            how_to_ask: ask_for(ask),
        })
    }

    fn nothing_allows(&self, to: SocketAddrV4, names: &[DomainName]) -> Denied {
        match names.first() {
            Some(name) => Denied {
                rule: self.nothing(),
                destination: shown(to, names),
                how_to_ask: ask_for(&format_args!("{name}:{}", to.port())),
            },
            None => Denied {
                rule: if self.is_none() {
                    self.nothing()
                } else {
                    "no rule about this address, and no allowed name led to it".to_owned()
                },
                destination: shown(to, names),
                how_to_ask: format!("connect to a name, or {}", ask_for(&to)),
            },
        }
    }

    fn nothing(&self) -> String {
        if self.is_none() {
            "the policy `none`".to_owned()
        } else {
            "no rule that allows it".to_owned()
        }
    }
}

type Answer = Result<(String, Carry), Denied>;

impl Rule {
    fn is_about_name(&self, name: &DomainName) -> bool {
        matches!(&self.target, Target::Name { pattern, .. } if pattern.covers(name))
    }

    fn is_about_address(&self, address: Ipv4Addr) -> bool {
        matches!(&self.target, Target::Range(range) if range.contains(address) && names_guarded(range, address))
    }

    fn is_about_one_address(&self) -> bool {
        matches!(&self.target, Target::Range(range) if range.prefix() == 32)
    }

    fn is_any_protocol(&self) -> bool {
        matches!(
            self.target,
            Target::Name {
                any_protocol: true,
                ..
            }
        )
    }
}

fn denied_by(rule: &Rule, destination: impl ToString) -> Denied {
    Denied {
        rule: format!("deny {rule}"),
        destination: destination.to_string(),
        how_to_ask: "ask the sandbox's owner to take that rule away".to_owned(),
    }
}

fn ask_for(what: &dyn fmt::Display) -> String {
    format!("ask the sandbox's owner for `rhizome sandbox policy allow <sandbox> {what}`")
}

fn shown(to: SocketAddrV4, names: &[DomainName]) -> String {
    match names.first() {
        Some(name) => format!("{to} ({name})"),
        None => to.to_string(),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if self.default == Otherwise::Allow {
            f.write_str("open")?;
            separator = "; ";
        } else if self.allow.is_empty() {
            f.write_str("none")?;
            separator = "; ";
        }
        for (verb, rules) in [("allow", &self.allow), ("deny", &self.deny)] {
            for (number, rule) in rules.iter().enumerate() {
                match number {
                    0 => write!(f, "{separator}{verb} {rule}")?,
                    _ => write!(f, ", {rule}")?,
                }
            }
            if !rules.is_empty() {
                separator = "; ";
            }
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    /// Reads what [`fmt::Display`] writes.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (mut default, mut allow, mut deny) = (Otherwise::Deny, Vec::new(), Vec::new());
        for (number, clause) in text.split(';').map(str::trim).enumerate() {
            let (verb, rules) = clause.split_once(' ').unwrap_or((clause, ""));
            let list = match (verb, rules) {
                ("none", "") if number == 0 => continue,
                ("open", "") if number == 0 => {
                    default = Otherwise::Allow;
                    continue;
                }
                ("allow", _) => &mut allow,
                ("deny", _) => &mut deny,
                _ => {
                    return Err(PolicyError::Unknown {
                        word: clause.escape_debug().take(64).collect(),
                    });
                }
            };
            // A comma may go on with ports, so what follows must be followed by a blank.
            for rule in rules.split(", ") {
                list.push(rule.trim().parse()?);
            }
        }
        Self::new(default, allow, deny)
    }
}

#[cfg(test)]
mod tests;
