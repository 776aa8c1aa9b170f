//! Where chains end: the cuts of revocations, the places of forks, and what raises either.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Cert, Walk,
    standing::{Right, Standing},
};
use crate::{
    authority::{Frozen, Pin, Revocation, VoidReason},
    id::{AgentId, Hash, NodeId, PublicKey, SpaceId},
    record::{Amend, Cut, RecordBody, Revoke, SignedRecord},
};

/// A chain.
type Key = (AgentId, SpaceId);
/// A place in one, and the fragment there.
type Place = (u64, Hash);

impl<'a> Walk<'a> {
    /// Takes a proof that an author signed two histories; anybody who belongs to the mesh may show
    /// one, as it speaks for itself.
    pub(super) fn fork(&mut self, at: usize, signed: &SignedRecord) -> Result<(), VoidReason> {
        let signer = signed.signer();
        let node = NodeId::from_bytes(*signer.as_bytes());
        if !self.is_root(&signer, at) && !self.is_member(&node, Some(at)) {
            return Err(self.refusal(&signer, at));
        }
        let forked = signed.forked().filter(|forked| forked.mesh == self.mesh);
        let forked = forked.ok_or(VoidReason::NotProven)?;
        let chain = (forked.author, forked.space);
        self.forks.entry(chain).or_default().push((at, forked));
        Ok(())
    }

    pub(super) fn amend(
        &mut self,
        at: usize,
        signer: &PublicKey,
        amend: &'a Amend,
    ) -> Result<(), VoidReason> {
        let target = self
            .past
            .place(&amend.revoke)
            .filter(|target| self.past.has(at, *target) && !self.void.contains_key(&amend.revoke));
        let target = target.ok_or(VoidReason::NothingToAmend)?;
        let signed = &self.records[&amend.revoke];
        let by_admin = self.is_admin(signer, Some(at));
        let may = match &signed.record().body {
            RecordBody::Revoke(_) => {
                let node = NodeId::from_bytes(*signer.as_bytes());
                let is_theirs = signed.signer() == *signer && self.is_member(&node, Some(at));
                // What an admin revoked as one, it amends as one.
                let was_as_admin = self.is_admin(signer, Some(target));
                self.is_root(signer, at) || is_theirs && (by_admin || !was_as_admin)
            }
            RecordBody::ForkProof(_) => {
                let chain = signed
                    .forked()
                    .map(|forked| (forked.author, forked.space))
                    .ok_or(VoidReason::NothingToAmend)?;
                by_admin
                    && amend
                        .cuts
                        .iter()
                        .all(|cut| (cut.author, cut.space) == chain)
            }
            _ => return Err(VoidReason::NothingToAmend),
        };
        if !may {
            return Err(self.refusal(signer, at));
        }
        self.amends.entry(target).or_default().push((at, amend));
        Ok(())
    }

    fn revoke_at(&self, at: usize) -> Option<&'a Revoke> {
        match &self.records[&self.past.order[at]].record().body {
            RecordBody::Revoke(revoke) => Some(revoke),
            _ => None,
        }
    }

    /// Returns where the chains of revoked authors end.
    ///
    /// Every revocation of the agent, of those it was certified through and of its node must leave
    /// a chain something, and the lowest cut counts; of equal ones the lower hash.
    pub(super) fn cuts(&self, revoked: &BTreeSet<PublicKey>) -> BTreeMap<Key, Place> {
        let mut named: BTreeMap<Key, BTreeMap<usize, Place>> = BTreeMap::new();
        for (_, revokes) in self.standing.subjects() {
            for (at, _) in revokes {
                for (chain, place) in self.left_by(*at) {
                    named.entry(chain).or_default().insert(*at, place);
                }
            }
        }
        let mut cuts = BTreeMap::new();
        for ((author, space), by_revoke) in named {
            let certs = self.certs.get(&author);
            let ends: Vec<usize> = match certs {
                Some(certs) => self.endings(&author, certs),
                // Of an author that no certificate names, all that is known is who named it.
                None => by_revoke.keys().copied().collect(),
            };
            let is_out = |at: &usize| {
                let subject = self.revoke_at(*at).map(|revoke| revoke.subject);
                subject.is_some_and(|subject| revoked.contains(&subject))
            };
            let is_ended = revoked.contains(&author.into()) || ends.iter().any(is_out);
            if !is_ended || !ends.iter().all(|at| by_revoke.contains_key(at)) {
                continue;
            }
            // Those that were overcome since say nothing any more.
            let lowest = ends.iter().filter_map(|at| by_revoke.get(at)).min();
            if let Some(lowest) = lowest {
                cuts.insert((author, space), *lowest);
            }
        }
        cuts
    }

    /// Returns the revocations that ended an author: of itself, of those it was certified through,
    /// of its nodes, unless it was certified again in knowledge of them.
    fn endings(&self, author: &AgentId, certs: &[Cert]) -> Vec<usize> {
        let mut ends = BTreeSet::new();
        let mut add = |key: PublicKey, given: usize, standing: Standing| {
            for (revoke, right) in self.standing.of(&key) {
                let was_certified_again = certs.iter().any(|cert| self.past.has(cert.at, *revoke));
                if !was_certified_again && right.ends(standing) && !self.past.has(given, *revoke) {
                    ends.insert(*revoke);
                }
            }
        };
        for cert in certs {
            let node = PublicKey::from(cert.info.node);
            let makes_admin = self.is_admin(&node, None);
            let first = cert.line.first().map_or(cert.at, |(at, _)| *at);
            add(node, first, Standing::Grant { makes_admin });
            for (at, agent) in &cert.line {
                add((*agent).into(), *at, Standing::Cert);
            }
            add((*author).into(), cert.at, Standing::Cert);
        }
        ends.into_iter().collect()
    }

    /// Returns what the revocation at `at` leaves of each chain, by what has been said of it since.
    fn left_by(&self, at: usize) -> BTreeMap<Key, Place> {
        let mut left = lowest(self.revoke_at(at).map_or(&[], |revoke| &revoke.cuts));
        for (chain, place) in self.amended([at]) {
            // An Amend gives back; what shall take more is another Revoke.
            let before = left.get(&chain).copied();
            if before.is_none_or(|(seq, _)| place.0 >= seq) {
                left.insert(chain, place);
            }
        }
        left
    }

    /// Returns what the Amends of these records say of each chain: the latest counts, of several
    /// made without knowing of each other the lowest.
    fn amended(&self, targets: impl IntoIterator<Item = usize>) -> BTreeMap<Key, Place> {
        let amends = targets
            .into_iter()
            .filter_map(|target| self.amends.get(&target))
            .flatten();
        let mut said: BTreeMap<Key, Vec<(usize, Place)>> = BTreeMap::new();
        for (at, amend) in amends {
            for (chain, place) in lowest(&amend.cuts) {
                said.entry(chain).or_default().push((*at, place));
            }
        }
        let latest = |(chain, said): (Key, Vec<(usize, Place)>)| {
            let is_last = |(at, _): &&(usize, Place)| {
                !said.iter().any(|(other, _)| self.past.has(*other, *at))
            };
            let place = said.iter().filter(is_last).map(|(_, place)| *place).min()?;
            Some((chain, place))
        };
        said.into_iter().filter_map(latest).collect()
    }

    /// Returns the chains that are frozen because their authors signed two histories.
    ///
    /// The lowest fork counts, and there the fragment with the lower hash, until an admin has said
    /// which history is meant: from then on that, whatever else is shown.
    pub(super) fn frozen(&self) -> BTreeMap<Key, Frozen> {
        let mut frozen = BTreeMap::new();
        for (chain, forks) in &self.forks {
            let decided = self.amended(forks.iter().map(|(at, _)| *at)).remove(chain);
            let shown = forks
                .iter()
                .map(|(at, forked)| ((forked.seq, forked.ids[0]), *at, forked.prev))
                .min_by_key(|(place, at, _)| (*place, *at));
            let Some((place, proof, prev)) = shown else {
                continue;
            };
            let (place, prev) = decided.map_or((place, prev), |decided| (decided, None));
            let (seq, hash) = place;
            let state = Frozen {
                pin: Pin { seq, hash, prev },
                proof: self.past.order[proof],
                decided: decided.is_some(),
            };
            frozen.insert(*chain, state);
        }
        frozen
    }

    /// Returns everyone who was ever certified, with the keys through which it was.
    pub(super) fn authors(&self) -> BTreeMap<AgentId, (String, BTreeSet<PublicKey>)> {
        let mut authors = BTreeMap::new();
        for (agent, certs) in &self.certs {
            let mut line = BTreeSet::new();
            for cert in certs {
                line.insert(PublicKey::from(cert.info.node));
                line.extend(
                    cert.line
                        .iter()
                        .map(|(_, through)| PublicKey::from(*through)),
                );
            }
            let name = certs.last().map(|cert| cert.info.name.clone());
            authors.insert(*agent, (name.unwrap_or_default(), line));
        }
        authors
    }

    /// Lists the revocations that stand, by subject, then in order.
    pub(super) fn revocations(&self) -> Vec<Revocation> {
        let mut all = Vec::new();
        for (subject, revokes) in self.standing.subjects() {
            for (at, right) in revokes {
                let signed = &self.records[&self.past.order[*at]];
                all.push(Revocation {
                    record: signed.id(),
                    subject: *subject,
                    by: signed.signer(),
                    by_root: *right == Right::Root,
                    reason: self
                        .revoke_at(*at)
                        .map(|revoke| revoke.reason.clone())
                        .unwrap_or_default(),
                    at_ms: signed.record().at_ms,
                });
            }
        }
        all
    }
}

/// Returns the lowest of the cuts of each chain.
fn lowest(cuts: &[Cut]) -> BTreeMap<Key, Place> {
    let mut lowest: BTreeMap<Key, Place> = BTreeMap::new();
    for cut in cuts {
        let place = (cut.seq, cut.hash);
        let known = lowest.entry((cut.author, cut.space)).or_insert(place);
        *known = place.min(*known);
    }
    lowest
}
