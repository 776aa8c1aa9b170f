//! Taking in what peers offer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use rhizome_identity::{AgentId, Denied, NodeId, SpaceId};

use super::{
    journal::{Entry, Item, Ticket},
    request::AdmitOutcome,
    state::{Chain, Inner},
};
use crate::{
    Fragment, FragmentId, Header, Missing, RejectReason, Share, Sharer, Verdict, check_signatures,
    now_ms,
};

/// A fragment on its way in.
struct Candidate {
    /// Its place among the outcomes; none for one that was held before.
    place: Option<usize>,
    fragment: Fragment,
    wire: Bytes,
}

/// What to store, with what to say of each fragment once it is, and to which place.
#[derive(Default)]
struct Admitted {
    entries: Vec<Entry>,
    told: Vec<(Option<usize>, Verdict)>,
}

impl Inner {
    pub(super) fn admit(&self, _from: NodeId, wires: &[Bytes]) -> Vec<AdmitOutcome> {
        let mut outcomes = Vec::with_capacity(wires.len());
        let mut candidates = Vec::new();
        for (place, wire) in wires.iter().enumerate() {
            match Fragment::decode(wire) {
                Ok(fragment) => {
                    let (id, wire) = (Some(fragment.id), wire.clone());
                    outcomes.push(AdmitOutcome {
                        id,
                        verdict: Verdict::Duplicate,
                    });
                    candidates.push(Candidate {
                        place: Some(place),
                        fragment,
                        wire,
                    });
                }
                Err(error) => {
                    let verdict = Verdict::Reject(RejectReason::Malformed(error));
                    outcomes.push(AdmitOutcome { id: None, verdict });
                }
            }
        }
        {
            let _one = self
                .admitting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut freed = self.admit_batch(candidates, false, &mut |place, verdict| {
                outcomes[place].verdict = verdict;
            });
            while !freed.is_empty() {
                freed = self.admit_batch(freed, true, &mut |_, _| {});
            }
        }
        self.show_forks();
        outcomes
    }

    /// Admits the held fragments for which authority records have arrived.
    pub(super) fn admit_rechecked(&self) {
        let _one = self
            .admitting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut freed = held(std::mem::take(&mut self.state().recheck));
        while !freed.is_empty() {
            freed = self.admit_batch(freed, true, &mut |_, _| {});
        }
    }

    /// Judges, stores and commits; returns what was held and is free now.
    fn admit_batch(
        &self,
        mut candidates: Vec<Candidate>,
        are_verified: bool,
        report: &mut dyn FnMut(usize, Verdict),
    ) -> Vec<Candidate> {
        let mut report = |place: Option<usize>, verdict: Verdict| {
            if let Some(place) = place {
                report(place, verdict);
            }
        };
        // In the order of the chains, so that one pass admits a run of them.
        candidates.sort_by_key(|candidate| {
            let header = &candidate.fragment.header;
            (
                header.space,
                header.author,
                header.seq,
                candidate.fragment.id,
            )
        });
        let mut fresh: Vec<Candidate> = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            if fresh
                .last()
                .is_some_and(|last| last.fragment.id == candidate.fragment.id)
            {
                report(candidate.place, Verdict::Duplicate);
            } else {
                fresh.push(candidate);
            }
        }
        self.learn(&fresh);
        let own_chains = self.lock_own_chains(&fresh);
        let mut own_tips: Vec<_> = own_chains
            .iter()
            .map(|chain| chain.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if !own_tips.is_empty() {
            self.journal.drain(self);
        }

        let judged = self.judge(fresh, &mut report);
        let mut judged = if are_verified {
            judged
        } else {
            verified(judged, &mut report)
        };
        self.vet_bodies(&mut judged);
        // What is over a share is stored after everything else.
        let mut in_turn = Admitted::default();
        let mut late = Admitted::default();
        let mut put_off: BTreeMap<(SpaceId, AgentId), Sharer> = BTreeMap::new();
        let mut in_batch: BTreeMap<(SpaceId, AgentId, u64), FragmentId> = BTreeMap::new();
        for (candidate, verdict) in judged {
            let header = &candidate.fragment.header;
            let position = (header.space, header.author, header.seq);
            let verdict = match (in_batch.get(&position), verdict) {
                (Some(other), _) => Verdict::Fork { other: *other },
                (None, Verdict::Wait(Missing::Prev(prev, seq)))
                    if in_batch.get(&(header.space, header.author, seq)) == Some(&prev) =>
                {
                    Verdict::Admit
                }
                (None, verdict) => verdict,
            };
            match verdict {
                Verdict::Admit => {
                    let own = header.node == self.node;
                    let chain = (header.space, header.author);
                    let share = match put_off.get(&chain) {
                        _ if own => Share::Within,
                        // What follows cannot be stored before it.
                        Some(whose) => self.share(header).at_least(*whose),
                        None => self.share(header),
                    };
                    let (verdict, admitted) = match share {
                        Share::Within => (Verdict::Admit, &mut in_turn),
                        Share::Over(whose) => {
                            put_off.insert(chain, whose);
                            (Verdict::Late(whose), &mut late)
                        }
                        Share::Spent(spent) => {
                            let reason = RejectReason::OverShare(spent);
                            report(candidate.place, Verdict::Reject(reason));
                            continue;
                        }
                    };
                    in_batch.insert(position, candidate.fragment.id);
                    let item = Item::Fragment {
                        fragment: Arc::new(candidate.fragment),
                        own,
                        change: None,
                        file: None,
                    };
                    admitted.entries.push(Entry::new(item, candidate.wire));
                    admitted.told.push((candidate.place, verdict));
                }
                Verdict::Wait(missing) => {
                    self.state()
                        .admission
                        .hold(candidate.fragment.detached(), missing);
                    report(candidate.place, Verdict::Wait(missing));
                }
                Verdict::Fork { other } => {
                    report(candidate.place, Verdict::Fork { other });
                    let chain = (header.space, header.author);
                    let mut state = self.state();
                    self.watch_fork(&mut state, &candidate.fragment, other);
                    if !state.forks.contains_key(&chain) {
                        drop(state);
                        let evidence = Entry::evidence(candidate.fragment, other);
                        in_turn.entries.push(evidence);
                        in_turn.told.push((None, Verdict::Fork { other }));
                    }
                }
                verdict => report(candidate.place, verdict),
            }
        }
        let mut freed = self.store(in_turn, &mut report);
        freed.extend(self.store(late, &mut report));
        for tip in &mut own_tips {
            // Read anew from what is durable by the next publish.
            **tip = None;
        }
        freed
    }

    /// Learns from what is offered which of two histories of an author leads to what is pinned.
    fn learn(&self, candidates: &[Candidate]) {
        let mut state = self.state();
        if !state.is_curtailed {
            return;
        }
        let mut spaces = BTreeSet::new();
        // The latest first: each names the one before it.
        for candidate in candidates.iter().rev() {
            if state.admission.learn(&candidate.fragment) {
                spaces.insert(candidate.fragment.header.space);
            }
        }
        if !spaces.is_empty() {
            self.applier.recut(spaces);
        }
    }

    /// Returns whether a fragment that does not count is to be carried: something here builds on it.
    fn is_carried(&self, fragment: &Fragment, reason: &RejectReason) -> bool {
        let is_beyond = matches!(
            reason,
            RejectReason::BeyondCut | RejectReason::Denied(Denied::Revoked | Denied::Frozen)
        );
        is_beyond && self.view.is_awaited(&fragment.id)
    }

    /// Checks everything but signatures; what stays is worth verifying.
    fn judge(
        &self,
        candidates: Vec<Candidate>,
        report: &mut dyn FnMut(Option<usize>, Verdict),
    ) -> Vec<(Candidate, Verdict)> {
        let mut judged = Vec::with_capacity(candidates.len());
        let mut refused = Vec::new();
        {
            let state = self.state();
            for candidate in candidates {
                let authority = &state.rights.authority;
                match state.admission.check(authority, &candidate.fragment) {
                    Verdict::Duplicate => report(candidate.place, Verdict::Duplicate),
                    Verdict::Reject(reason) => refused.push((candidate, reason)),
                    verdict => judged.push((candidate, verdict)),
                }
            }
        }
        for (candidate, reason) in refused {
            if self.is_carried(&candidate.fragment, &reason) {
                judged.push((candidate, Verdict::Admit));
            } else {
                report(candidate.place, Verdict::Reject(reason));
            }
        }
        judged
    }

    /// Looks at what comes without a body, and takes the body from what is redacted already.
    fn vet_bodies(&self, judged: &mut [(Candidate, Verdict)]) {
        for (candidate, verdict) in judged {
            match self.vet_body(&mut candidate.fragment) {
                Ok(false) => {}
                Ok(true) => candidate.wire = candidate.fragment.encode(),
                Err(refused) => *verdict = refused,
            }
        }
    }

    /// Takes the room of a fragment in the shares of whoever wrote it.
    fn share(&self, header: &Header) -> Share {
        self.shares().take(header, now_ms())
    }

    fn store(
        &self,
        admitted: Admitted,
        report: &mut dyn FnMut(Option<usize>, Verdict),
    ) -> Vec<Candidate> {
        let Admitted { entries, told } = admitted;
        if entries.is_empty() {
            return Vec::new();
        }
        let tickets = self.journal.submit(entries);
        let mut freed = Vec::new();
        for (ticket, (place, verdict)) in tickets.iter().zip(told) {
            let outcome = self.journal.wait(self, ticket as &Arc<Ticket>);
            let verdict = match outcome {
                Ok(_) => verdict,
                Err(_) => Verdict::Reject(RejectReason::Storage),
            };
            report(place, verdict);
            freed.extend(held(ticket.take_freed()));
        }
        freed
    }

    /// Returns the chains of this node's own agents that a batch may move, in order: a store put
    /// back from a backup learns its own later fragments from its peers.
    fn lock_own_chains(&self, candidates: &[Candidate]) -> Vec<Chain> {
        let own: BTreeSet<(SpaceId, AgentId)> = {
            let state = self.state();
            let is_news = |candidate: &&Candidate| {
                candidate.fragment.header.node == self.node
                    && !state.admission.contains(&candidate.fragment)
            };
            let chain = |candidate: &Candidate| {
                (
                    candidate.fragment.header.space,
                    candidate.fragment.header.author,
                )
            };
            candidates.iter().filter(is_news).map(chain).collect()
        };
        own.into_iter()
            .map(|(space, author)| self.chain(space, author))
            .collect()
    }
}

fn held(fragments: Vec<Fragment>) -> Vec<Candidate> {
    let candidate = |fragment: Fragment| {
        let wire = fragment.encode();
        Candidate {
            place: None,
            fragment,
            wire,
        }
    };
    fragments.into_iter().map(candidate).collect()
}

/// Drops what is not signed by whom it names.
fn verified(
    judged: Vec<(Candidate, Verdict)>,
    report: &mut dyn FnMut(Option<usize>, Verdict),
) -> Vec<(Candidate, Verdict)> {
    let valid = check_signatures(judged.iter().map(|(candidate, _)| &candidate.fragment));
    let mut kept = Vec::with_capacity(judged.len());
    for ((candidate, verdict), is_valid) in judged.into_iter().zip(valid) {
        if is_valid {
            kept.push((candidate, verdict));
        } else {
            report(candidate.place, Verdict::Reject(RejectReason::Signature));
        }
    }
    kept
}
