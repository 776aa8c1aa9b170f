//! Newcomers that a person has to let in, when their invite says so.
//!
//! They are kept in memory: a node that restarts has forgotten them, and a newcomer asks again.
//! Only who holds the invite gets this far, and there is room for few.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rhizome_identity::{InviteId, NodeId};

/// Newcomers remembered; the one that asked longest ago goes first.
const MAX_REQUESTS: usize = 64;

/// A newcomer that asked to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The invite that it holds.
    pub invite: InviteId,
    /// The node.
    pub node: NodeId,
    /// What it calls itself.
    pub name: String,
    /// When it asked last, in unix milliseconds.
    pub asked_ms: u64,
    /// Whether it may come in when it asks again.
    pub approved: bool,
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Approvals {
    requests: Arc<Mutex<BTreeMap<(InviteId, NodeId), JoinRequest>>>,
}

impl Approvals {
    /// Notes that `node` asks, and says whether it was approved before.
    pub(super) fn ask(&self, invite: InviteId, node: NodeId, name: &str, now_ms: u64) -> bool {
        let mut requests = self.lock();
        let request = requests.entry((invite, node)).or_insert(JoinRequest {
            invite,
            node,
            name: String::new(),
            asked_ms: now_ms,
            approved: false,
        });
        // The name that a person approved is the one that is granted.
        if request.approved && request.name == name {
            return true;
        }
        request.approved = false;
        name.clone_into(&mut request.name);
        request.asked_ms = now_ms;
        if requests.len() > MAX_REQUESTS {
            let oldest = requests
                .iter()
                .min_by_key(|(_, request)| (request.approved, request.asked_ms))
                .map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                requests.remove(&oldest);
            }
        }
        false
    }

    /// Forgets a node that is in.
    pub(super) fn done(&self, node: &NodeId) {
        self.lock().retain(|(_, asked), _| asked != node);
    }

    /// Lets a node in when it asks again; `false` if it never asked.
    pub(crate) fn approve(&self, node: &NodeId) -> bool {
        let mut found = false;
        for request in self.lock().values_mut() {
            if request.node == *node {
                request.approved = true;
                found = true;
            }
        }
        found
    }

    /// Returns who asked.
    pub(crate) fn list(&self) -> Vec<JoinRequest> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(InviteId, NodeId), JoinRequest>> {
        // Nothing under the lock can leave it half done.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    #[test]
    fn who_was_approved_comes_in_under_the_name_that_was_approved() {
        let approvals = Approvals::default();
        let invite = InviteId::from_bytes([9; 32]);
        assert!(!approvals.approve(&node(1)));
        assert!(!approvals.ask(invite, node(1), "one", 1));
        assert!(approvals.approve(&node(1)));
        assert!(!approvals.ask(invite, node(2), "two", 2));
        assert!(
            !approvals.ask(invite, node(1), "another", 3),
            "another name"
        );
        assert!(approvals.approve(&node(1)));
        assert!(approvals.ask(invite, node(1), "another", 4));
        approvals.done(&node(1));
        assert_eq!(approvals.list().len(), 1);
    }

    #[test]
    fn few_are_remembered() {
        let approvals = Approvals::default();
        let invite = InviteId::from_bytes([9; 32]);
        for n in 0..200 {
            approvals.ask(invite, node(n), "x", n.into());
        }
        assert_eq!(approvals.list().len(), MAX_REQUESTS);
        assert!(approvals.approve(&node(199)) && !approvals.approve(&node(0)));
    }
}
