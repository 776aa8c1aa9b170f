//! Taking in what peers offer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use rhizome_identity::{AgentId, NodeId, SpaceId};

use super::{
    journal::{Entry, Item, Ticket},
    request::AdmitOutcome,
    state::{Chain, Inner},
};
use crate::{Fragment, FragmentId, Missing, RejectReason, Verdict, check_signatures};

/// A fragment on its way in.
struct Candidate {
    /// Its place among the outcomes; none for one that was held before.
    place: Option<usize>,
    fragment: Fragment,
    wire: Bytes,
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
        let own_chains = self.lock_own_chains(&fresh);
        let mut own_tips: Vec<_> = own_chains
            .iter()
            .map(|chain| chain.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if !own_tips.is_empty() {
            self.journal.drain(self);
        }

        let judged = self.judge(fresh, &mut report);
        let judged = if are_verified {
            judged
        } else {
            verified(judged, &mut report)
        };
        let mut stored: Vec<Option<usize>> = Vec::new();
        let mut entries: Vec<Entry> = Vec::new();
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
                    in_batch.insert(position, candidate.fragment.id);
                    let own = header.node == self.node;
                    let item = Item::Fragment {
                        fragment: Arc::new(candidate.fragment),
                        own,
                        change: None,
                        file: None,
                    };
                    entries.push(Entry::new(item, candidate.wire));
                    stored.push(candidate.place);
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
                    if !self.state().forks.contains_key(&chain) {
                        entries.push(Entry::evidence(candidate.fragment, other));
                    }
                }
                verdict => report(candidate.place, verdict),
            }
        }
        let freed = self.store(entries, &stored, &mut report);
        for tip in &mut own_tips {
            // Read anew from what is durable by the next publish.
            **tip = None;
        }
        freed
    }

    /// Checks everything but signatures; what stays is worth verifying.
    fn judge(
        &self,
        candidates: Vec<Candidate>,
        report: &mut dyn FnMut(Option<usize>, Verdict),
    ) -> Vec<(Candidate, Verdict)> {
        let state = self.state();
        let mut judged = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let authority = &state.rights.authority;
            match state.admission.check(authority, &candidate.fragment) {
                verdict @ (Verdict::Duplicate | Verdict::Reject(_)) => {
                    report(candidate.place, verdict)
                }
                verdict => judged.push((candidate, verdict)),
            }
        }
        judged
    }

    fn store(
        &self,
        entries: Vec<Entry>,
        stored: &[Option<usize>],
        report: &mut dyn FnMut(Option<usize>, Verdict),
    ) -> Vec<Candidate> {
        if entries.is_empty() {
            return Vec::new();
        }
        let is_fragment: Vec<bool> = entries
            .iter()
            .map(|entry| matches!(entry.item, Item::Fragment { .. }))
            .collect();
        let tickets = self.journal.submit(entries);
        let mut freed = Vec::new();
        let mut stored = stored.iter();
        for (ticket, is_fragment) in tickets.iter().zip(is_fragment) {
            let outcome = self.journal.wait(self, ticket as &Arc<Ticket>);
            if is_fragment && let Some(place) = stored.next() {
                let verdict = match outcome {
                    Ok(_) => Verdict::Admit,
                    Err(_) => Verdict::Reject(RejectReason::Storage),
                };
                report(*place, verdict);
            }
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
