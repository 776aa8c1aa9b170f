//! What a replica tells: items by id, what arrived, and why.

use std::sync::PoisonError;

use bytes::Bytes;
use rhizome_identity::{Hash, Reach, SpaceId};

use super::{applier::Unopened, error::ReplicaError, request::SpaceStats, state::Inner};
use crate::{
    Applied, Awaited, DocId, Fragment, FragmentId, Header, Kind, Lane, MAX_REASON, MAX_WATCH,
    RedactedBy, RejectReason, Verdict, Verification, VerifiedFragment, WatchEvent, Why, WhyState,
    admission::refusal,
    fragment::DOMAIN,
    redaction::Notice,
    store::{Row, RowKind},
};

/// How many rows are looked at together.
const ROWS: usize = 512;

impl Inner {
    pub(super) fn holds(&self, id: &Hash) -> bool {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.values().any(|set| {
            set.read()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(id)
        })
    }

    pub(super) fn arrival(&self, lane: Lane, id: &Hash) -> Option<u64> {
        if !self.set_contains(lane, id) {
            return None;
        }
        self.index.find(id).map(|row| row.arrival)
    }

    pub(super) fn wires(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        let mut wires = Vec::new();
        let mut total = 0;
        for id in ids {
            if !self.set_contains(lane, id) {
                continue;
            }
            let Some(wire) = self.wire(lane, id) else {
                continue;
            };
            total += wire.len();
            if total > max_bytes && !wires.is_empty() {
                break;
            }
            wires.push(wire);
        }
        wires
    }

    fn wire(&self, lane: Lane, id: &Hash) -> Option<Bytes> {
        if lane == Lane::Authority {
            let id = rhizome_identity::RecordId::from_bytes(*id.as_bytes());
            return self
                .state()
                .records
                .get(&id)
                .map(|r| Bytes::copy_from_slice(r.bytes()));
        }
        self.wire_of(&self.index.find(id)?)
    }

    pub(super) fn lanes(&self) -> Vec<Lane> {
        let authority = std::sync::Arc::clone(&self.rights().authority);
        let mut lanes = vec![Lane::Authority];
        let granted = authority
            .spaces()
            .filter(|space| authority.role_in(&self.node, &space.id).is_some());
        lanes.extend(granted.map(|space| Lane::Space(space.id)));
        lanes.sort_unstable();
        lanes
    }

    /// Reads a stored fragment; `None` if it is not here, or damaged.
    pub(super) fn fragment(&self, id: &FragmentId) -> Option<Fragment> {
        let row = self.index.find(&Hash::from(*id))?;
        self.read_fragment(&row)
            .filter(|fragment| fragment.id == *id)
    }

    pub(super) fn watch(
        &self,
        space: Option<SpaceId>,
        after: u64,
        limit: usize,
    ) -> Vec<WatchEvent> {
        let limit = limit.min(MAX_WATCH);
        self.applier.catch_up(self);
        let applied = self.applier.applied();
        let mut events = Vec::new();
        let mut after = after;
        while events.len() < limit {
            let rows = self.index.after(after, ROWS);
            let Some(last) = rows.last() else { break };
            after = last.arrival;
            for row in rows.iter().take_while(|row| row.arrival <= applied) {
                if events.len() == limit {
                    break;
                }
                events.extend(self.watch_event(space, row));
            }
            if after >= applied {
                break;
            }
        }
        events
    }

    pub(super) fn last_arrival(&self) -> u64 {
        self.applier.catch_up(self);
        self.applier.applied()
    }

    fn watch_event(&self, wanted: Option<SpaceId>, row: &Row) -> Option<WatchEvent> {
        if row.kind == RowKind::Body {
            // Nobody could be told when the fragment came: its memory was not readable then.
            let of_body = self.rows_with_body(&row.id);
            let event = of_body
                .iter()
                .find_map(|row| self.watch_event(wanted, row))?;
            return Some(WatchEvent {
                arrival: row.arrival,
                ..event
            });
        }
        let RowKind::Fragment { space, own, .. } = &row.kind else {
            return None;
        };
        if wanted.is_some_and(|wanted| wanted != *space) {
            return None;
        }
        let fragment = self.read_fragment(row)?;
        if fragment.header.kind == Kind::Context || fragment.header.kind.is_record() {
            return None;
        }
        let doc = &fragment.header.doc;
        let item = self.judged(|judge| self.reader().memory_judged(space, doc, judge));
        let item = item.ok()??;
        Some(WatchEvent {
            arrival: row.arrival,
            id: fragment.id,
            own: *own,
            item,
        })
    }

    pub(super) fn verify_context(
        &self,
        space: &SpaceId,
        task: &str,
    ) -> Result<Verification, ReplicaError> {
        let context = self.caught_up().context(space, task)?;
        let ids = context.map(|context| context.fragments).unwrap_or_default();
        let mut found: Vec<(u64, VerifiedFragment)> = Vec::with_capacity(ids.len());
        for id in ids {
            let row = self.index.find(&Hash::from(id));
            let arrival = row.as_ref().map_or(u64::MAX, |row| row.arrival);
            found.push((arrival, self.verify(id, row.as_ref())));
        }
        found.sort_by_key(|(arrival, _)| *arrival);
        Ok(Verification {
            fragments: found.into_iter().map(|(_, fragment)| fragment).collect(),
        })
    }

    fn verify(&self, id: FragmentId, row: Option<&Row>) -> VerifiedFragment {
        let fragment = row.and_then(|row| self.read_fragment(row));
        let Some(fragment) = fragment else {
            let nobody = [0; 32];
            return VerifiedFragment {
                id,
                author: rhizome_identity::AgentId::from_bytes(nobody),
                node: rhizome_identity::NodeId::from_bytes(nobody),
                seq: 0,
                hlc: crate::Hlc::default(),
                ok: false,
                problem: Some("it cannot be read back: its record is damaged or missing".into()),
            };
        };
        let problem = self.problem(id, &fragment);
        let header = fragment.header;
        VerifiedFragment {
            id,
            author: header.author,
            node: header.node,
            seq: header.seq,
            hlc: header.hlc,
            ok: problem.is_none(),
            problem,
        }
    }

    /// Returns what does not hold about a fragment that was just read from disk.
    fn problem(&self, id: FragmentId, fragment: &Fragment) -> Option<String> {
        let header = &fragment.header;
        if fragment.id != id {
            return Some(format!("the record holds fragment `{}`", fragment.id));
        }
        match fragment.sealed().map(|sealed| sealed.verify(DOMAIN)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return Some(error.to_string()),
        }
        if fragment.body.is_none() && self.read_body(&header.body_hash).is_none() {
            return Some("its body is missing or damaged".into());
        }
        if let Some(prev) = &header.prev {
            let before = self.fragment(prev);
            let follows = before.is_some_and(|before| {
                let before = before.header;
                (before.author, before.space, before.seq + 1)
                    == (header.author, header.space, header.seq)
            });
            if !follows {
                return Some(format!(
                    "the fragment before it, `{prev}`, is not in its place"
                ));
            }
        }
        let state = self.state();
        if !state.admission.contains(fragment) {
            return Some("it is not in its author's chain".into());
        }
        match refusal(&state.rights.authority, fragment)? {
            Verdict::Reject(RejectReason::Denied(denied)) => Some(denied.to_string()),
            Verdict::Reject(reason) => Some(reason.to_string()),
            _ => Some("its author's right to write is not known yet".into()),
        }
    }

    pub(super) fn why(&self, id: FragmentId) -> Result<Option<Why>, ReplicaError> {
        let hash = Hash::from(id);
        let Some(row) = self.index.find(&hash) else {
            return Ok(self.why_held(&id));
        };
        let fragment = self.read_fragment(&row);
        let fragment = fragment.ok_or(ReplicaError::Damaged(hash))?;
        let state = self.why_state(&fragment, row.arrival);
        Ok(Some(self.explain(&fragment, row.arrival, state)))
    }

    /// Explains a fragment that is held until something before it arrives.
    fn why_held(&self, id: &FragmentId) -> Option<Why> {
        let (fragment, missing) = self.state().admission.held_fragment(id)?;
        let what = match missing {
            crate::Missing::Prev(prev, _) => Awaited::Fragment(prev),
            crate::Missing::Authority | crate::Missing::Space => Awaited::Authority,
        };
        let state = WhyState::WaitingFor {
            what,
            named_by: fragment.id,
            named_by_author: fragment.header.author,
        };
        Some(self.explain(&fragment, 0, state))
    }

    fn why_state(&self, fragment: &Fragment, arrival: u64) -> WhyState {
        let waits_for = |what| WhyState::WaitingFor {
            what,
            named_by: fragment.id,
            named_by_author: fragment.header.author,
        };
        if let Some((reach, by)) = self.outside_by(fragment) {
            return WhyState::SetAside {
                up_to: match reach {
                    Reach::UpTo(pin) => Some(pin.seq),
                    Reach::Whole | Reach::Nothing => None,
                },
                by,
                carried: self.is_kept(&fragment.id),
            };
        }
        if let Some(state) = self.why_redacted(fragment) {
            return state;
        }
        match self.view.state(&fragment.id) {
            Some(Applied::Applied) => return WhyState::Applied,
            Some(Applied::Waiting(deps)) => {
                if let Some(first) = deps.first() {
                    return waits_for(Awaited::Fragment(*first));
                }
            }
            Some(Applied::Quarantined(reason)) => {
                return WhyState::Quarantined {
                    reason: reason.to_string(),
                };
            }
            _ => {}
        }
        match self.open(fragment) {
            Err(Unopened::NoKey) => WhyState::Unreadable {
                epoch: fragment.header.epoch,
            },
            Err(Unopened::NoBody) => waits_for(Awaited::Body(fragment.header.body_hash)),
            Err(Unopened::Wrong(reason)) if arrival <= self.applier.applied() => {
                WhyState::Quarantined {
                    reason: reason.into(),
                }
            }
            _ => WhyState::Pending,
        }
    }

    /// Explains a fragment that was redacted, or that redacts others.
    fn why_redacted(&self, fragment: &Fragment) -> Option<WhyState> {
        let redaction = self.redacted_by(&fragment.id, &fragment.header);
        if let Some(by) = redaction {
            return Some(WhyState::Redacted(by));
        }
        if fragment.header.kind != Kind::Redaction {
            return None;
        }
        let targets = &fragment.header.deps;
        let here = targets.iter().filter_map(|target| self.fragment(target));
        let (taken, left): (Vec<_>, Vec<_>) = here.partition(|target| {
            let redaction = self.redacted_by(&target.id, &target.header);
            redaction.is_some()
        });
        if taken.is_empty() && !left.is_empty() {
            let reason = "it redacts what others wrote, and its author is no admin of the space";
            return Some(WhyState::Quarantined {
                reason: reason.into(),
            });
        }
        Some(WhyState::Applied)
    }

    /// Returns by whom the body of a fragment was redacted, and why, as far as that can be read.
    fn redacted_by(&self, id: &FragmentId, header: &Header) -> Option<RedactedBy> {
        let notice = self.state().redaction_of(id, header).cloned()?;
        Some(self.redactor(&notice))
    }

    /// Returns who redacted a document, and why, as far as that can be read; none if nobody did.
    pub(super) fn redacted_doc(&self, space: &SpaceId, doc: &DocId) -> Option<RedactedBy> {
        let notice = self
            .state()
            .redactions
            .of_doc(*space, *doc)
            .next()
            .cloned()?;
        Some(self.redactor(&notice))
    }

    fn redactor(&self, notice: &Notice) -> RedactedBy {
        let read = self
            .fragment(&notice.id)
            .and_then(|redaction| self.open(&redaction).ok());
        let reason = read.and_then(|opened| String::from_utf8(opened.change.to_vec()).ok());
        RedactedBy {
            redaction: notice.id,
            author: notice.header.author,
            node: notice.header.node,
            hlc: notice.header.hlc,
            reason: reason.filter(|reason| !reason.is_empty() && reason.len() <= MAX_REASON),
        }
    }

    fn explain(&self, fragment: &Fragment, arrival: u64, state: WhyState) -> Why {
        let header = fragment.header.clone();
        let authority = std::sync::Arc::clone(&self.rights().authority);
        let at_ms = header.hlc.unix_ms();
        let right = authority.may_write(&header.author, &header.node, &header.space, at_ms);
        let (proof, denied) = match right {
            Ok(proof) => (proof.chain, None),
            Err(denied) => (Vec::new(), Some(denied.to_string())),
        };
        let role = authority.role_in(&header.node, &header.space);
        Why {
            id: fragment.id,
            arrival,
            space: header.space,
            doc: header.doc,
            kind: header.kind,
            author: header.author,
            author_name: authority
                .agent(&header.author)
                .map(|agent| agent.name.clone()),
            node: header.node,
            node_name: authority
                .member(&header.node)
                .map(|member| member.name.clone()),
            role: role.map(|role| role.to_string()),
            seq: header.seq,
            prev: header.prev,
            hlc: header.hlc,
            auth_heads: header.auth_heads,
            deps: header.deps,
            body_hash: header.body_hash,
            body_len: header.body_len,
            proof,
            denied,
            state,
        }
    }

    pub(super) fn sync_state(&self, space: &SpaceId) -> SpaceStats {
        let set = self.id_set(Lane::Space(*space));
        let fragments = set.read().unwrap_or_else(PoisonError::into_inner).len() as u64;
        let (waiting, quarantined) = self.view.counts(space);
        let heads = self.state().admission.heads_hash(space);
        SpaceStats {
            fragments,
            waiting: waiting as u64,
            quarantined: quarantined as u64,
            heads,
        }
    }

    pub(super) fn flush(&self) -> Result<(), ReplicaError> {
        self.applier.catch_up(self);
        self.flush_index();
        self.purge_view();
        Ok(self.view.flush()?)
    }

    pub(super) fn close(&self) -> Result<(), ReplicaError> {
        // First the log, so that nothing becomes durable that the index then lacks.
        let closed = self.log.close().map_err(ReplicaError::Storage);
        self.flush()?;
        closed
    }
}
