//! What was denied, for the agent that tried and for the node's records.

use std::{collections::VecDeque, fmt};

use rhizome_guest::wire::clip;
use serde::{Deserialize, Serialize};

use super::policy::Denied;

/// Denials that are remembered for each sandbox; the oldest go first.
const KEPT: usize = 256;
/// A denial that repeats one so recent, in milliseconds, is counted with it.
const SAME_WITHIN_MS: u64 = 10_000;
/// Longest text of a denial, in bytes: a guest chooses part of it.
const MAX_TEXT: usize = 512;

/// What a guest tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Attempt {
    /// To look a name up.
    Dns,
    /// To connect.
    Tcp,
    /// To speak TLS to a server.
    Tls,
    /// To send an HTTP request.
    Http,
    /// To send a datagram.
    Udp,
    /// To use a secret.
    Secret,
    /// To send a packet of some other protocol.
    Other,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Udp => "udp",
            Self::Secret => "secret",
            Self::Other => "other",
        })
    }
}

/// Something that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Its number in the sandbox, from 1.
    pub number: u64,
    /// When it was denied first, in Unix milliseconds.
    pub first_ms: u64,
    /// When it was denied last, in Unix milliseconds.
    pub last_ms: u64,
    /// How often.
    pub count: u64,
    /// What was tried.
    pub attempt: Attempt,
    /// What is denied, by which rule, and how to ask for it.
    #[serde(flatten)]
    pub denied: Denied,
}

/// The denials of one sandbox.
#[derive(Debug, Default)]
pub(super) struct DenialLog {
    kept: VecDeque<Denial>,
    total: u64,
}

impl DenialLog {
    /// Notes a denial. Returns it unless it repeats a recent one.
    pub(super) fn note(
        &mut self,
        now_ms: u64,
        attempt: Attempt,
        mut denied: Denied,
    ) -> Option<Denial> {
        for text in [
            &mut denied.rule,
            &mut denied.destination,
            &mut denied.how_to_ask,
        ] {
            let kept = clip(text, MAX_TEXT).len();
            text.truncate(kept);
        }
        let repeated = self
            .kept
            .iter_mut()
            .rev()
            .find(|kept| kept.attempt == attempt && kept.denied == denied)
            .filter(|kept| now_ms.saturating_sub(kept.last_ms) < SAME_WITHIN_MS);
        if let Some(repeated) = repeated {
            repeated.last_ms = now_ms;
            repeated.count += 1;
            return None;
        }
        self.total += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        let denial = Denial {
            number: self.total,
            first_ms: now_ms,
            last_ms: now_ms,
            count: 1,
            attempt,
            denied,
        };
        self.kept.push_back(denial.clone());
        Some(denial)
    }

    /// Returns what is remembered, the oldest first.
    pub(super) fn list(&self) -> Vec<Denial> {
        self.kept.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(destination: &str) -> Denied {
        Denied {
            rule: "the policy `none`".into(),
            destination: destination.into(),
            how_to_ask: "ask".into(),
        }
    }

    #[test]
    fn what_repeats_is_counted() {
        let mut log = DenialLog::default();
        assert!(log.note(1_000, Attempt::Dns, denied("a.example")).is_some());
        assert!(log.note(1_500, Attempt::Tcp, denied("a.example")).is_some());
        assert!(log.note(2_000, Attempt::Dns, denied("a.example")).is_none());
        assert!(
            log.note(20_000, Attempt::Dns, denied("a.example"))
                .is_some()
        );
        let list = log.list();
        assert_eq!(
            list.iter().map(|d| (d.number, d.count)).collect::<Vec<_>>(),
            [(1, 2), (2, 1), (3, 1)]
        );
        assert_eq!(list[0].last_ms, 2_000);
    }

    #[test]
    fn memory_has_a_bound() {
        let mut log = DenialLog::default();
        for number in 0..1000 {
            log.note(
                number,
                Attempt::Udp,
                denied(&format!("{number}{}", "é".repeat(1000))),
            );
        }
        let list = log.list();
        assert_eq!((list.len(), list[0].number), (KEPT, 745));
        assert!(
            list.iter()
                .all(|denial| denial.denied.destination.len() <= MAX_TEXT)
        );
    }

    #[test]
    fn a_denial_is_one_flat_object() {
        let mut log = DenialLog::default();
        let denial = log.note(5, Attempt::Tls, denied("a.example:443")).unwrap();
        assert_eq!(
            serde_json::to_value(denial).unwrap(),
            serde_json::json!({
                "number": 1, "first_ms": 5, "last_ms": 5, "count": 1, "attempt": "tls",
                "rule": "the policy `none`", "destination": "a.example:443", "how_to_ask": "ask",
            })
        );
    }
}
