//! Who does what only one may do: asked of one node that all of them agree on.
//!
//! A claim is put to nodes one after the other, in an order that everybody sees alike; the first
//! that answers decides. It is kept in memory alone and for a while: what comes of it is written
//! down where everybody looks. Sandboxes are woken under a claim, and volumes attached to be
//! written.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rhizome_identity::{NodeId, Role, SpaceId};
use rhizome_memory::FragmentId;
use rhizome_sandbox::SandboxId;

use super::record::Rest;
use crate::{
    api::types::{
        SCHEMA,
        remote::{ClaimBody, Claimed},
    },
    daemon::{names::Names, node::Node},
    error::ApiError,
};

/// For how long a claim stands before what came of it must be in the record.
const CLAIM: Duration = Duration::from_secs(600);
/// Most claims that are kept; the oldest make room.
const MAX_CLAIMS: usize = 1_024;
/// How long the node that decides may take.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// Who may wake which sandbox, as this node has decided, and which it is waking itself.
#[derive(Debug, Default)]
pub(crate) struct Claims(
    Mutex<BTreeMap<SandboxId, Claim>>,
    Mutex<BTreeSet<SandboxId>>,
);

/// A sandbox that this node is waking, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waking<'a>(&'a Claims, SandboxId);

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.0.waking().remove(&self.1);
    }
}

#[derive(Debug, Clone, Copy)]
struct Claim {
    by: NodeId,
    record: FragmentId,
    since: Instant,
}

impl Claims {
    pub(crate) fn waking(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wake a sandbox; `None` if that is under way: one of two that a node itself asks
    /// for would give back what the other relies on.
    pub(crate) fn begin(&self, sandbox: SandboxId) -> Option<Waking<'_>> {
        self.waking().insert(sandbox).then(|| Waking(self, sandbox))
    }

    /// Grants the claim unless another node has it; returns who has it then.
    ///
    /// A node that `is_there` no more loses what it claimed.
    fn take(
        &self,
        sandbox: SandboxId,
        by: NodeId,
        record: FragmentId,
        is_there: impl Fn(&NodeId) -> bool,
    ) -> Result<(), NodeId> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|_, claim| claim.since.elapsed() < CLAIM);
        if let Some(claim) = claims.get(&sandbox)
            && claim.by != by
            && claim.record == record
            && is_there(&claim.by)
        {
            return Err(claim.by);
        }
        if claims.len() >= MAX_CLAIMS
            && let Some(oldest) = claims.iter().min_by_key(|(_, claim)| claim.since)
        {
            let oldest = *oldest.0;
            claims.remove(&oldest);
        }
        let since = Instant::now();
        claims.insert(sandbox, Claim { by, record, since });
        Ok(())
    }

    pub(crate) fn give_back(&self, sandbox: &SandboxId, by: &NodeId) {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.get(sandbox).is_some_and(|claim| claim.by == *by) {
            claims.remove(sandbox);
        }
    }
}

/// Somebody else has what was claimed.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The node that decided.
    pub(crate) by: NodeId,
    /// Who has it, for people.
    pub(crate) why: String,
}

impl Node {
    /// Puts a claim to the first of `arbiters` that answers, and returns which that was; `None` if
    /// none does: then nobody who can be reached claims it.
    pub(crate) async fn ask_claim(
        &self,
        arbiters: Vec<NodeId>,
        claim: &ClaimBody,
    ) -> Result<Option<NodeId>, Taken> {
        for arbiter in arbiters {
            let answer = if arbiter == self.id() {
                self.decide(&self.id(), claim).await
            } else {
                self.tell(arbiter, "/v1/remote/claim", claim, CLAIM_TIMEOUT)
                    .await
            };
            match answer {
                Ok(Claimed { granted: true, .. }) => return Ok(Some(arbiter)),
                Ok(Claimed { why, .. }) => {
                    let why = why.unwrap_or_else(|| "another node".to_owned());
                    return Err(Taken { by: arbiter, why });
                }
                // It does not answer: the next one decides for whoever sees the same.
                Err(error) => {
                    tracing::debug!(node = %arbiter.fmt_short(), %error, "no answer to a claim");
                }
            }
        }
        Ok(None)
    }

    /// Gives a claim back to whoever granted it. One that is not given back runs out by itself.
    pub(crate) async fn return_claim(&self, claim: &ClaimBody, arbiter: Option<NodeId>) {
        let Some(arbiter) = arbiter else { return };
        if arbiter == self.id() {
            if let Ok((_, what, _)) = parse(claim) {
                self.claims.give_back(&what, &self.id());
            }
            return;
        }
        let claim = ClaimBody {
            release: true,
            ..claim.clone()
        };
        let _: Result<Claimed, ApiError> = self
            .tell(arbiter, "/v1/remote/claim", &claim, CLAIM_TIMEOUT)
            .await;
    }

    /// Answers another node's claim.
    pub(crate) async fn answer_claim(
        &self,
        peer: &NodeId,
        body: ClaimBody,
    ) -> Result<Claimed, ApiError> {
        let (space, sandbox, _) = parse(&body)?;
        self.peer_may(
            peer,
            &[space],
            Role::Writer,
            "waking a sandbox of that space",
        )?;
        if body.release {
            self.claims.give_back(&sandbox, peer);
            return Ok(claimed(None));
        }
        self.decide(peer, &body).await
    }

    /// Decides a claim, of this node's own or of another.
    pub(crate) async fn decide(&self, by: &NodeId, body: &ClaimBody) -> Result<Claimed, ApiError> {
        let (space, sandbox, record) = parse(body)?;
        let me = self.name();
        let here = || self.runs(&sandbox) || self.claims.waking().contains(&sandbox);
        if *by != self.id() && here() {
            return Ok(claimed(Some(me)));
        }
        if let Some(found) = self.record_of(&space, &sandbox).await?
            && found.fragment != record
            && self.replica.holds(&record)
            && found.record.rest == Rest::Awake
            && found.record.runner != *by
        {
            // What the asker knows is superseded by what we know.
            let authority = self.replica.authority();
            let runner = Names(&authority).node(&found.record.runner);
            return Ok(claimed(Some(runner.to_string())));
        }
        let connected = self.connected();
        let is_there = |node: &NodeId| *node == self.id() || connected.contains(node);
        match self.claims.take(sandbox, *by, record, is_there) {
            Ok(()) => Ok(claimed(None)),
            Err(holder) => {
                let authority = self.replica.authority();
                let holder = Names(&authority).node(&holder);
                Ok(claimed(Some(holder.to_string())))
            }
        }
    }
}

fn parse(body: &ClaimBody) -> Result<(SpaceId, SandboxId, FragmentId), ApiError> {
    let malformed = |what: &str| ApiError::bad_request(format!("`{what}` is malformed"));
    Ok((
        body.space.parse().map_err(|_| malformed("space"))?,
        body.sandbox.parse().map_err(|_| malformed("sandbox"))?,
        body.record.parse().map_err(|_| malformed("record"))?,
    ))
}

fn claimed(why: Option<String>) -> Claimed {
    Claimed {
        schema: SCHEMA,
        granted: why.is_none(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    #[test]
    fn one_of_several_that_claim_gets_it() {
        let claims = Claims::default();
        let sandbox = SandboxId::from_bytes([1; 16]);
        let record = FragmentId::from_bytes([1; 32]);
        let take = |by, record| claims.take(sandbox, by, record, |_| true);
        assert_eq!(take(node(1), record), Ok(()));
        assert_eq!(take(node(2), record), Err(node(1)));
        assert_eq!(take(node(1), record), Ok(()), "it may ask again");
        claims.give_back(&sandbox, &node(2));
        assert_eq!(take(node(2), record), Err(node(1)), "not its to give");
        claims.give_back(&sandbox, &node(1));
        assert_eq!(take(node(2), record), Ok(()));
        // Who died with a claim loses it.
        assert_eq!(claims.take(sandbox, node(3), record, |_| false), Ok(()));
        assert_eq!(take(node(2), record), Err(node(3)));
        // The next sleep is another matter.
        let next = FragmentId::from_bytes([2; 32]);
        assert_eq!(take(node(1), next), Ok(()));
    }

    #[test]
    fn a_node_wakes_a_sandbox_once_at_a_time() {
        let claims = Claims::default();
        let sandbox = SandboxId::from_bytes([1; 16]);
        let begun = claims.begin(sandbox).expect("nobody is at it");
        assert!(claims.begin(sandbox).is_none());
        assert!(claims.begin(SandboxId::from_bytes([2; 16])).is_some());
        drop(begun);
        assert!(claims.begin(sandbox).is_some());
    }

    #[test]
    fn claims_are_bounded() {
        let claims = Claims::default();
        for n in 0..2_000_u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            let record = FragmentId::from_bytes([0; 32]);
            claims
                .take(SandboxId::from_bytes(id), node(1), record, |_| true)
                .unwrap();
        }
        assert_eq!(claims.0.lock().unwrap().len(), MAX_CLAIMS);
    }
}
