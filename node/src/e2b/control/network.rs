//! What a sandbox may reach: E2B's words for it, in ours.
//!
//! Theirs: everything is allowed unless denied, and what is allowed beats what is denied. Ours: what
//! is denied beats what is allowed ([`Policy`]). So where a range is allowed within one that is
//! denied, the denied one is cut into what is left of it; and where a name is, only a policy that
//! denies everything else can say it.
use std::{net::Ipv4Addr, sync::Arc};

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_sandbox::egress::{Otherwise, Policy, Rule};
use serde_json::Value;

use super::{Body, create::keep};
use crate::{
    daemon::memory::clip,
    e2b::{
        Door,
        error::{Answer, E2bError},
    },
};

/// Most entries of a list.
const MAX_ENTRIES: usize = 256;

/// Replaces what a sandbox may reach; what is left out is cleared.
pub(super) async fn put(
    State(door): State<Arc<Door>>,
    Path(id): Path<String>,
    Body(asked): Body<Value>,
) -> Answer {
    if !asked.is_object() {
        return Err(E2bError::bad_request("the network is a JSON object"));
    }
    let Some((_, info, _)) = door.known(&id) else {
        return Err(E2bError::no_sandbox(&id));
    };
    let internet = asked["allow_internet_access"]
        .as_bool()
        .or_else(|| asked["allowInternetAccess"].as_bool());
    let policy = policy(internet, Some(&asked))?;
    let failed = |error| crate::daemon::fail::sandbox(&error);
    let sandboxes = door.node.sandboxes()?;
    let set = sandboxes.set_network(&info.id, policy, info.secrets);
    set.await.map_err(failed)?;
    let change = move |door: &Door| {
        door.registry.sandboxes.change(&id, |record| {
            let mut network = asked;
            // Who may come in was said at the beginning, and stays.
            for name in ["allowPublicTraffic", "maskRequestHost"] {
                if let Some(before) = record.network.as_ref().and_then(|n| n.get(name)) {
                    network[name] = before.clone();
                }
            }
            record.internet = internet;
            record.network = Some(network);
        })
    };
    keep(&door, change).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Returns the policy that says what a client asks for.
pub(super) fn policy(internet: Option<bool>, network: Option<&Value>) -> Answer<Policy> {
    let empty = Value::Null;
    let network = network.unwrap_or(&empty);
    for (name, what) in [
        ("egressProxy", "an egress proxy of a client's own"),
        ("dnsServers", "name servers of a client's choice"),
        ("httpsPorts", "HTTPS on other ports of a sandbox"),
    ] {
        let is_asked = match &network[name] {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        if is_asked {
            return Err(E2bError::unsupported(format!("{what} (`network.{name}`)")));
        }
    }
    refuse_headers(&network["rules"])?;
    let allowed = words(network, "allowOut")?;
    let mut denied = Vec::new();
    for word in words(network, "denyOut")? {
        match Range::parse(&word) {
            Some(range) => denied.push(range),
            // No IPv6 is carried out of a sandbox anyway.
            None if word.contains(':') && !word.contains(char::is_alphabetic) => {}
            None => {
                return Err(E2bError::bad_request(format!(
                    "`denyOut` takes addresses and ranges; `{}` is neither",
                    clip(&word)
                )));
            }
        }
    }
    let denies_all = internet == Some(false) || denied.contains(&Range::ALL);
    let mut rules = Vec::new();
    for word in &allowed {
        if Range::parse(word) == Some(Range::ALL) && !denies_all {
            continue;
        }
        let rule: Result<Rule, _> = word.parse();
        rules.push(rule.map_err(|error| {
            E2bError::bad_request(format!("`allowOut`: {error} ({})", error.hint()))
        })?);
    }
    let policy = if denies_all {
        if allowed
            .iter()
            .any(|word| Range::parse(word) == Some(Range::ALL))
        {
            Policy::new(Otherwise::Allow, Vec::new(), Vec::new())
        } else {
            Policy::new(Otherwise::Deny, rules, Vec::new())
        }
    } else {
        let ranges: Vec<_> = allowed
            .iter()
            .filter_map(|word| Range::parse(word))
            .collect();
        if ranges.len() < allowed.len() && !denied.is_empty() {
            return Err(E2bError::unsupported(
                "names in `allowOut` beside ranges in `denyOut` that leave something else open; deny `0.0.0.0/0` to allow those names alone",
            ));
        }
        let mut left = denied;
        for allowed in ranges {
            left = left
                .into_iter()
                .flat_map(|range| range.without(allowed))
                .collect();
        }
        let denied = left.iter().map(|range| {
            let rule: Result<Rule, _> = range.to_string().parse();
            rule.expect("a range is a rule")
        });
        Policy::new(Otherwise::Allow, rules, denied.collect())
    };
    policy.map_err(|error| E2bError::bad_request(error.to_string()))
}

/// Headers are put in by secrets, which the guest asks for and never sees.
fn refuse_headers(rules: &Value) -> Answer<()> {
    let has_headers = |rule: &Value| {
        let rules = match rule {
            Value::Array(list) => &list[..],
            rule => std::slice::from_ref(rule),
        };
        rules.iter().any(|rule| {
            let transform = &rule["transform"];
            let given = |t: &Value| t["headers"].as_object().is_some_and(|map| !map.is_empty());
            match transform {
                Value::Array(list) => list.iter().any(given),
                transform => given(transform),
            }
        })
    };
    match rules.as_object() {
        Some(rules) if rules.values().any(has_headers) => Err(E2bError::unsupported(
            "headers that are put into every request to a domain (`network.rules`); keep the value with `rhizome secret set NAME --domain D --header H` and create the sandbox with the metadata `rhizome.secrets`: the guest sends a placeholder, and the node puts the value in its place",
        )),
        _ => Ok(()),
    }
}

fn words(network: &Value, name: &str) -> Answer<Vec<String>> {
    let list = match &network[name] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) if list.len() <= MAX_ENTRIES => list,
        _ => {
            return Err(E2bError::bad_request(format!(
                "`{name}` is a list of at most {MAX_ENTRIES}"
            )));
        }
    };
    let word = |value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| E2bError::bad_request(format!("`{name}` is a list of texts")))
    };
    list.iter().map(word).collect()
}

/// A range of IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    bits: u32,
}

impl Range {
    const ALL: Self = Self { first: 0, bits: 0 };

    fn parse(word: &str) -> Option<Self> {
        let (address, bits) = match word.split_once('/') {
            Some((address, bits)) => (address, bits.parse().ok()?),
            None => (word, 32),
        };
        let address: Ipv4Addr = address.parse().ok()?;
        (bits <= 32).then(|| Self {
            first: u32::from(address) & mask(bits),
            bits,
        })
    }

    fn contains(self, other: Self) -> bool {
        self.bits <= other.bits && other.first & mask(self.bits) == self.first
    }

    /// Returns what is left when `hole` is taken out: nothing, itself, or the other halves on the
    /// way down to the hole.
    fn without(self, hole: Self) -> Vec<Self> {
        if hole.contains(self) {
            return Vec::new();
        }
        if !self.contains(hole) {
            return vec![self];
        }
        let halves = (self.bits + 1..=hole.bits).map(|bits| Self {
            first: (hole.first & mask(bits)) ^ (1 << (32 - bits)),
            bits,
        });
        halves.collect()
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.bits)
    }
}

fn mask(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(internet: Option<bool>, network: Value) -> String {
        match policy(internet, Some(&network)) {
            Ok(policy) => policy.to_string(),
            Err(error) => format!("refused: {}", error.message()),
        }
    }

    #[test]
    fn their_words_mean_what_they_mean_there() {
        assert_eq!(said(None, json!({})), "open");
        assert_eq!(said(Some(false), json!({})), "none");
        let only =
            json!({"allowOut": ["api.example.org", "*.example.net"], "denyOut": ["0.0.0.0/0"]});
        assert_eq!(said(None, only), "allow api.example.org, *.example.net");
        let both = json!({"allowOut": ["10.0.0.1"], "denyOut": ["10.0.0.0/30"]});
        let shown = said(None, both);
        for part in ["10.0.0.0/32", "10.0.0.2/31"] {
            let bare = part.trim_end_matches("/32");
            assert!(shown.contains(bare), "{shown}");
        }
        assert!(said(None, json!({"denyOut": ["::/0"]})).starts_with("open"));
        for refused in [
            json!({"denyOut": ["example.org"]}),
            json!({"allowOut": ["a.org"], "denyOut": ["10.0.0.0/8"]}),
            json!({"allowOut": "a.org"}),
            json!({"dnsServers": ["1.1.1.1"]}),
            json!({"rules": {"a.org": [{"transform": {"headers": {"x": "y"}}}]}}),
        ] {
            assert!(
                said(None, refused.clone()).starts_with("refused"),
                "{refused}"
            );
        }
        assert_eq!(
            said(None, json!({"rules": {}, "egressProxy": null})),
            "open"
        );
    }

    #[test]
    fn a_hole_leaves_the_rest() {
        let range = |word: &str| Range::parse(word).unwrap();
        let left = range("10.0.0.0/8").without(range("10.1.0.0/16"));
        assert_eq!(left.len(), 8);
        let covers = |address: &str| left.iter().any(|part| part.contains(range(address)));
        assert!(covers("10.0.255.255") && covers("10.2.0.0") && covers("10.255.0.1"));
        assert!(!covers("10.1.2.3") && !covers("11.0.0.0"));
        assert_eq!(range("10.0.0.0/8").without(range("11.0.0.0/8")).len(), 1);
        assert!(range("10.1.0.0/16").without(Range::ALL).is_empty());
        assert_eq!(
            Range::ALL.without(range("0.0.0.0/1")),
            [range("128.0.0.0/1")]
        );
    }
}
