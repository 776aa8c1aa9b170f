//! How long a sandbox lives when nobody asks for more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::SandboxId;

/// Longest lease: a year, in milliseconds.
pub const MAX_LEASE_MS: u64 = 365 * 24 * 3600 * 1000;
/// Time after which an end that did not come about is tried again.
const RETRY_MS: u64 = 60 * 1000;
/// Longest name of an owner, in bytes.
const MAX_OWNER_BYTES: usize = 256;

/// What becomes of a sandbox when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseEnd {
    /// It is written down and ended; it can be resumed.
    Hibernate,
    /// It is ended with all that is in it.
    Kill,
}

impl LeaseEnd {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hibernate => "hibernate",
            Self::Kill => "kill",
        }
    }
}

impl std::fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for LeaseEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "hibernate" => Ok(Self::Hibernate),
            "kill" => Ok(Self::Kill),
            other => Err(format!("`{other}` is neither `hibernate` nor `kill`")),
        }
    }
}

/// For whom a sandbox is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "is", content = "id")]
pub enum LeaseOwner {
    /// Whoever uses the node's socket.
    Client(String),
    /// An agent.
    Agent(String),
    /// A context.
    Context(String),
}

/// Until when a sandbox lives without anyone asking for more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// For whom it is kept.
    pub owner: LeaseOwner,
    /// The end, in Unix milliseconds.
    pub until_ms: u64,
    /// What becomes of it then.
    pub then: LeaseEnd,
}

/// Why a lease cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// It is over before it begins.
    #[error("the lease would have ended already")]
    Past,
    /// It is longer than a year.
    #[error("a lease lasts a year at most")]
    TooLong,
    /// The owner has no name, or too long a one.
    #[error("the owner of a lease has 1 to {MAX_OWNER_BYTES} bytes")]
    Owner,
}

impl Lease {
    /// Checks a lease that somebody asks for.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn checked(self, now_ms: u64) -> Result<Self, LeaseError> {
        let (LeaseOwner::Client(owner) | LeaseOwner::Agent(owner) | LeaseOwner::Context(owner)) =
            &self.owner;
        if owner.is_empty() || owner.len() > MAX_OWNER_BYTES {
            Err(LeaseError::Owner)
        } else if self.until_ms <= now_ms {
            Err(LeaseError::Past)
        } else if self.until_ms - now_ms > MAX_LEASE_MS {
            Err(LeaseError::TooLong)
        } else {
            Ok(self)
        }
    }

    /// Returns the lease after its sandbox was used or asked for until `until_ms`: never a shorter
    /// one, whoever asks.
    #[must_use]
    pub fn renewed(mut self, until_ms: u64) -> Self {
        self.until_ms = self.until_ms.max(until_ms);
        self
    }
}

/// The leases of all sandboxes, with one deadline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leases {
    held: BTreeMap<SandboxId, Held>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    lease: Lease,
    /// When its end is due, or due again.
    due_ms: u64,
}

impl Leases {
    /// Sets or replaces a lease.
    pub fn set(&mut self, id: SandboxId, lease: Lease) {
        let due_ms = lease.until_ms;
        self.held.insert(id, Held { lease, due_ms });
    }

    /// Ends what is known of a sandbox's lease.
    pub fn remove(&mut self, id: &SandboxId) {
        self.held.remove(id);
    }

    /// Returns a sandbox's lease.
    pub fn get(&self, id: &SandboxId) -> Option<&Lease> {
        self.held.get(id).map(|held| &held.lease)
    }

    /// Returns when [`Self::handle_timeout`] is next due, in Unix milliseconds, if at all.
    pub fn next_deadline(&self) -> Option<u64> {
        self.held.values().map(|held| held.due_ms).min()
    }

    /// Returns what ends as of `now_ms`. An end that does not come about comes again after a
    /// minute, until [`Self::remove`] says that it did.
    pub fn handle_timeout(&mut self, now_ms: u64) -> Vec<(SandboxId, LeaseEnd)> {
        std::iter::from_fn(|| self.take_due(now_ms)).collect()
    }

    /// Returns the first of them.
    pub fn take_due(&mut self, now_ms: u64) -> Option<(SandboxId, LeaseEnd)> {
        let due = |(_, held): &(&SandboxId, &mut Held)| held.due_ms <= now_ms;
        let (id, held) = self.held.iter_mut().find(due)?;
        held.due_ms = now_ms.saturating_add(RETRY_MS);
        Some((*id, held.lease.then))
    }
}
