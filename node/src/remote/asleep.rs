//! Sandboxes as their records have them: what a list of this node's own knows nothing of.
use std::collections::BTreeMap;

use rhizome_identity::NodeId;

use super::{
    alarm::condition::{Cause, Condition},
    notes::Ledger,
    record::{Found, Rest},
};
use crate::{
    api::types::{
        Named,
        sandbox::Sandbox,
        wake::{Copies, WakeOn, WokenBy},
    },
    daemon::{caller::Caller, names::Names, node::Node},
    error::ApiError,
};

/// The state of a sandbox that slept here and went on elsewhere.
pub(crate) const ELSEWHERE: &str = "elsewhere";
/// States of an entry that says no more than that a sandbox slept here once.
const AT_REST: [&str; 2] = ["hibernated", "lost"];

impl Node {
    /// Reads what the memory says of sandboxes; nothing, where the node belongs to no mesh.
    pub(crate) async fn ledger_if_any(&self) -> Result<Ledger, ApiError> {
        match self.need_mesh() {
            Ok(_) => self.ledger(&Caller::Owner).await,
            Err(_) => Ok(Ledger::default()),
        }
    }

    /// Says of sandboxes of this node what their records say: where they went on meanwhile, what
    /// they wait for, what woke them, who holds copies.
    pub(crate) fn dress(&self, ledger: &Ledger, sandboxes: &mut [Sandbox]) {
        let records: BTreeMap<String, &Found> = ledger
            .found
            .iter()
            .map(|found| (found.record.sandbox.to_string(), found))
            .collect();
        for sandbox in sandboxes {
            let Some(found) = records.get(&sandbox.id) else {
                continue;
            };
            let record = &found.record;
            if AT_REST.contains(&sandbox.state.as_str()) && record.runner != self.id() {
                let authority = self.replica.authority();
                let node = Names(&authority).node(&record.runner);
                sandbox.state = ELSEWHERE.to_owned();
                sandbox.reason = Some(match record.rest {
                    Rest::Awake => format!("it woke on {node}"),
                    Rest::Asleep => format!("it went on, and sleeps since on {node}"),
                    Rest::Ended => format!("it went on, and was ended on {node}"),
                });
            }
            self.dress_one(found, sandbox);
        }
    }

    fn dress_one(&self, found: &Found, sandbox: &mut Sandbox) {
        let record = &found.record;
        if record.rest == Rest::Asleep {
            sandbox.wake_on = record.wake_on.iter().map(shown).collect();
        }
        sandbox.woken_by = record.woken_by.as_ref().and_then(cause_shown);
        sandbox.copies = Some(self.copies_of(found));
    }

    fn copies_of(&self, found: &Found) -> Copies {
        let authority = self.replica.authority();
        let (connected, me) = (self.connected(), self.id());
        let others = found.holders.iter();
        let others: Vec<&NodeId> = others
            .filter(|node| **node != found.record.runner)
            .collect();
        let is_there = |node: &&&NodeId| ***node == me || connected.contains(node);
        Copies {
            wanted: found.record.replicas.into(),
            connected: others.iter().filter(is_there).count(),
            holders: others
                .into_iter()
                .map(|node| Names(&authority).node(node))
                .collect(),
        }
    }

    /// Returns the sandboxes that sleep and that nobody lists, because their node is gone: `listed`
    /// are the ids of the others.
    pub(crate) fn unlisted(&self, ledger: &Ledger, listed: &[String]) -> Vec<Sandbox> {
        let asleep = ledger.found.iter().filter(|found| {
            found.record.rest == Rest::Asleep && !listed.contains(&found.record.sandbox.to_string())
        });
        asleep.map(|found| self.sleeper(found)).collect()
    }

    /// Returns a sandbox that sleeps somewhere as its record has it.
    pub(crate) fn sleeper(&self, found: &Found) -> Sandbox {
        let authority = self.replica.authority();
        let names = Names(&authority);
        let record = &found.record;
        let mut sandbox = Sandbox {
            id: record.sandbox.to_string(),
            name: record.name.clone(),
            image: record.image.clone(),
            image_id: record.image_id.clone(),
            state: match record.rest {
                Rest::Asleep => "hibernated",
                Rest::Awake | Rest::Ended => ELSEWHERE,
            }
            .to_owned(),
            driver: record.driver.clone(),
            accel: record.accel.clone(),
            memory_mib: record.memory_mib,
            created_ms: record.snapshot.taken_ms,
            snapshot: Some(record.snapshot.manifest.to_string()),
            agent: record.agent.as_ref().map(|(id, name)| Named {
                id: id.to_string(),
                name: name.clone(),
            }),
            spaces: names.spaces(&record.spaces),
            labels: record.labels.clone(),
            fingerprint_hash: record.fingerprint.to_string(),
            node: Some(names.node(&record.runner)),
            ..Sandbox::default()
        };
        self.dress_one(found, &mut sandbox);
        sandbox
    }
}

/// Returns a condition as the API shows it, without what would let anybody wake it.
pub(crate) fn shown(condition: &Condition) -> WakeOn {
    match condition {
        Condition::Time { at_ms } => WakeOn::Time { at_ms: *at_ms },
        Condition::Memory { query } => WakeOn::Memory {
            query: query.clone(),
        },
        Condition::Webhook { .. } => WakeOn::Webhook,
        Condition::Unknown => WakeOn::Unknown,
    }
}

/// Returns a cause as the API shows it; nothing for a sandbox that somebody woke.
pub(crate) fn cause_shown(cause: &Cause) -> Option<WokenBy> {
    Some(match cause {
        Cause::Asked => return None,
        Cause::Time { at_ms } => WokenBy::Time { at_ms: *at_ms },
        Cause::Memory {
            query,
            fragment,
            doc,
            title,
        } => WokenBy::Memory {
            query: query.clone(),
            fragment: fragment.to_string(),
            doc: doc.to_string(),
            title: title.clone(),
        },
        Cause::Webhook { bytes } => WokenBy::Webhook { bytes: *bytes },
        Cause::Unknown => WokenBy::Unknown,
    })
}
