//! What one sandbox's boundary knows, whoever carries its packets at the moment.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::Instant,
};

use super::{
    denial::{Attempt, Denial, DenialLog},
    dns,
    name::DomainName,
    outside::{LookupError, MAX_ADDRESSES, Outside},
    policy::{Decision, Denied, Policy, Request},
    resolved::Resolved,
    secrets::Secrets,
};
use crate::{SandboxId, manager::now_ms};

/// Questions of one guest that are worked on at once; more fail at once.
const MAX_QUESTIONS: usize = 16;

/// A denial of some sandbox, for the node's records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEvent {
    /// Whose.
    pub sandbox: SandboxId,
    /// What was denied.
    #[serde(flatten)]
    pub denial: Denial,
}

/// What a sandbox sent and received, in bytes of what its connections carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressUsage {
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Bytes that came back.
    pub received_bytes: u64,
    /// Connections that were made outside.
    pub connections: u64,
    /// Attempts that were denied, repeated ones included.
    pub denied: u64,
}

impl EgressUsage {
    pub(super) fn add(&mut self, other: &Self) {
        self.sent_bytes = self.sent_bytes.saturating_add(other.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.connections = self.connections.saturating_add(other.connections);
        self.denied = self.denied.saturating_add(other.denied);
    }
}

/// The boundary of one sandbox. It outlives the gateways that carry its packets.
#[derive(Debug)]
pub(super) struct Boundary {
    sandbox: SandboxId,
    policy: watch::Sender<Arc<Policy>>,
    secrets: watch::Sender<Arc<Secrets>>,
    resolved: Mutex<Resolved>,
    denials: Mutex<DenialLog>,
    events: mpsc::Sender<EgressEvent>,
    pub(super) outside: Arc<dyn Outside>,
    questions: Semaphore,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    connections: AtomicU64,
    denied: AtomicU64,
}

impl Boundary {
    pub(super) fn new(
        sandbox: SandboxId,
        policy: Policy,
        secrets: Secrets,
        outside: Arc<dyn Outside>,
        events: mpsc::Sender<EgressEvent>,
    ) -> Self {
        Self {
            sandbox,
            policy: watch::Sender::new(Arc::new(policy)),
            secrets: watch::Sender::new(Arc::new(secrets)),
            resolved: Mutex::default(),
            denials: Mutex::default(),
            events,
            outside,
            questions: Semaphore::new(MAX_QUESTIONS),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        }
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    pub(super) fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    pub(super) fn policy_changes(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    pub(super) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets.borrow())
    }

    pub(super) fn set_secrets(&self, secrets: Secrets) {
        self.secrets.send_replace(Arc::new(secrets));
    }

    pub(super) fn secrets_changes(&self) -> watch::Receiver<Arc<Secrets>> {
        self.secrets.subscribe()
    }

    pub(super) fn denials(&self) -> Vec<Denial> {
        lock(&self.denials).list()
    }

    pub(super) fn usage(&self) -> EgressUsage {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EgressUsage {
            sent_bytes: read(&self.sent),
            received_bytes: read(&self.received),
            connections: read(&self.connections),
            denied: read(&self.denied),
        }
    }

    pub(super) fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that something was denied, and tells the node.
    pub(super) fn deny(&self, attempt: Attempt, denied: Denied) {
        self.denied.fetch_add(1, Ordering::Relaxed);
        let noted = lock(&self.denials).note(now_ms(), attempt, denied);
        let Some(denial) = noted else { return };
        tracing::debug!(
            sandbox = %self.sandbox, %attempt, destination = %denial.denied.destination,
            rule = %denial.denied.rule, "denied"
        );
        // A node that does not listen loses events, not its memory; the sandbox's own list stays.
        let _ = self.events.try_send(EgressEvent {
            sandbox: self.sandbox,
            denial,
        });
    }

    /// Decides about a connection that begins.
    pub(super) fn connect(&self, to: SocketAddrV4) -> Decision {
        let names = self.names(*to.ip());
        self.policy().decide(&Request::Connect {
            to,
            names: &names,
            is_own: self.outside.is_own(*to.ip()),
        })
    }

    /// Decides about a connection that has said which name it means.
    pub(super) fn named(&self, to: SocketAddrV4, name: &DomainName) -> Decision {
        let names = self.names(*to.ip());
        let named = self.policy().decide(&Request::Named {
            to,
            name,
            names: &names,
        });
        // The policy may have changed since it began.
        match named {
            Decision::Allowed { .. } => match self.connect(to) {
                Decision::Allowed { .. } => named,
                denied => denied,
            },
            denied => denied,
        }
    }

    /// Remembers for longer that `name` led to `address`, if it did.
    pub(super) fn keep_known(&self, name: &DomainName, address: Ipv4Addr) {
        lock(&self.resolved).keep(Instant::now(), name, address);
    }

    fn names(&self, address: Ipv4Addr) -> Vec<DomainName> {
        lock(&self.resolved).names(Instant::now(), address)
    }

    /// Answers a question of the guest's resolver.
    pub(super) async fn answer(&self, asked: &dns::Asked) -> Vec<u8> {
        let Ok(_turn) = self.questions.try_acquire() else {
            return asked.answer(&dns::Answer::Failed);
        };
        if asked.about == dns::About::Reverse {
            return asked.answer(&dns::Answer::Unknown);
        }
        let Some(name) = &asked.name else {
            return self.deny_lookup(
                asked,
                Denied {
                    rule: "the form of host names".to_owned(),
                    destination: asked.shown(),
                    how_to_ask: "ask for a host name".to_owned(),
                },
            );
        };
        if let Decision::Denied(denied) = self.policy().decide(&Request::Lookup(name)) {
            return self.deny_lookup(asked, denied);
        }
        if asked.about == dns::About::Other {
            return asked.answer(&dns::Answer::Addresses(&[]));
        }
        let found = match self.outside.lookup(name).await {
            Ok(found) => found,
            Err(LookupError::Unknown) => return asked.answer(&dns::Answer::Unknown),
            Err(LookupError::Failed) => return asked.answer(&dns::Answer::Failed),
        };
        let (mut allowed, mut first_denied) = (Vec::new(), None);
        let policy = self.policy();
        for address in found.into_iter().take(MAX_ADDRESSES) {
            match policy.decide(&Request::Resolved(name, address)) {
                Decision::Allowed { .. } => allowed.push(address),
                Decision::Denied(denied) => first_denied = first_denied.or(Some(denied)),
            }
        }
        if let (true, Some(denied)) = (allowed.is_empty(), first_denied) {
            return self.deny_lookup(asked, denied);
        }
        let now = Instant::now();
        let mut resolved = lock(&self.resolved);
        for address in &allowed {
            resolved.add(now, name, *address);
        }
        drop(resolved);
        asked.answer(&dns::Answer::Addresses(&allowed))
    }

    fn deny_lookup(&self, asked: &dns::Asked, denied: Denied) -> Vec<u8> {
        let answer = asked.answer(&dns::Answer::Denied(&denied.to_string()));
        self.deny(Attempt::Dns, denied);
        answer
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each section leaves the state whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
