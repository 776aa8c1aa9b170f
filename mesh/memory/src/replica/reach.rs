//! What counts, when the authority log says something new about it.
//!
//! A fragment counts if it is in its author's chain and the chain counts that far. What does not
//! count is in no set that is reconciled, in no document and in no answer. One exception keeps the
//! work of others whole: what a fragment that counts builds on is carried, that is stored, offered
//! and applied, but shown by nobody. Which fragments those are depends on what is here and on
//! nothing else, so nodes that hold the same come to the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use rhizome_identity::{AgentId, ForkProof, Hash, PublicKey, Reach, SpaceId, issue, record::Cut};
use tracing::{info, warn};

use super::state::{Inner, State};
use crate::{
    Fragment, FragmentId, Lane,
    admission::Link,
    now_ms,
    store::{Row, RowKind},
    view::doc_key_of,
};

/// How many rows are looked at together.
const ROWS: usize = 512;
/// Says which cuts the sets and the view are up to.
const SETTLED: &str = "view.cuts";

impl State {
    /// Returns whether a stored fragment counts, or is carried for one that does.
    pub(super) fn is_kept(&self, row: &Row) -> bool {
        self.counts(row) || self.carried.contains(&FragmentId::from(row.id))
    }

    /// Returns whether a stored fragment counts.
    pub(super) fn counts(&self, row: &Row) -> bool {
        match &row.kind {
            RowKind::Fragment {
                space, author, seq, ..
            } => self.admission.counts(author, space, *seq, row.id.into()),
            _ => true,
        }
    }
}

/// What is stored of a space, apart by whether it counts.
#[derive(Default)]
struct Sorted {
    counting: Vec<Row>,
    outside: BTreeMap<FragmentId, Row>,
}

impl Inner {
    /// Returns whether a fragment that is here counts.
    pub(super) fn counts(&self, id: &FragmentId) -> bool {
        let row = self.index.find(&Hash::from(*id));
        row.is_some_and(|row| self.state().counts(&row))
    }

    /// Keeps of these rows what the view may hear of.
    pub(super) fn retain_kept(&self, rows: &mut Vec<Row>) {
        let state = self.state();
        rows.retain(|row| state.is_kept(row));
    }

    /// Returns whether one of these, on which a fragment that counts builds, is stored and does
    /// not count.
    pub(super) fn builds_on_outside(&self, state: &State, deps: &[FragmentId]) -> bool {
        state.is_curtailed
            && deps.iter().any(|dep| {
                let row = self.index.find(&Hash::from(*dep));
                row.is_some_and(|row| !state.is_kept(&row))
            })
    }

    /// Works out anew what counts of these spaces, and what has to be carried; has the view forget
    /// what does not. Returns the spaces of which the view has to hear of something again.
    pub(super) fn recut(&self, spaces: &BTreeSet<SpaceId>) -> BTreeSet<SpaceId> {
        let mut renewed = BTreeSet::new();
        for space in spaces {
            self.relink(*space);
            let Sorted { counting, outside } = self.sorted(*space);
            let carried = self.carried(&counting, &outside);
            let mut gone = BTreeMap::new();
            for (id, row) in &outside {
                if !carried.contains(id)
                    && let Some(fragment) = self.read_fragment(row)
                {
                    gone.insert(*id, doc_key_of(&fragment.header));
                }
            }
            let mut is_new = false;
            {
                let mut state = self.state();
                state.carried.retain(|id| !outside.contains_key(id));
                state.carried.extend(&carried);
                let set = self.id_set(Lane::Space(*space));
                let mut set = set
                    .write()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                let kept = counting.iter().map(|row| row.id);
                for id in kept.chain(carried.iter().map(|id| (*id).into())) {
                    is_new |= set.insert(id);
                }
                for id in gone.keys() {
                    set.remove(&(*id).into());
                }
            }
            let evicted = self.view.evict(&gone).unwrap_or_else(|error| {
                warn!(%error, "the view could not forget what does not count any more");
                false
            });
            if evicted || is_new {
                renewed.insert(*space);
            }
            if !outside.is_empty() {
                info!(space = %space.fmt_short(), aside = gone.len(), carried = carried.len(),
                    "fragments are set aside: they are beyond the reach of their authors' chains");
            }
        }
        // A chain that was put together anew may have lost a redaction, or found one.
        let redacted = self.state().reassess();
        self.applier.redact(redacted);
        renewed
    }

    /// Notes which cuts the sets and the view are up to, and what is carried, so that the next start
    /// need not read the spaces for it.
    pub(super) fn note_settled_cuts(&self) {
        let text = {
            let state = self.state();
            let spaces: BTreeSet<SpaceId> = state
                .admission
                .curtailed()
                .map(|(space, _)| space)
                .collect();
            let spaces = spaces
                .iter()
                .map(|space| format!("{space} {}\n", state.admission.curtailment(space)));
            let carried = state.carried.iter().map(|id| format!("{id}\n"));
            spaces.chain(carried).collect::<String>()
        };
        // Lost or torn, it costs a look at the spaces and nothing else.
        let noted = self.view.flush().is_ok() && fs::write(self.dir.join(SETTLED), text).is_ok();
        if !noted {
            warn!("cannot note which cuts are settled");
        }
    }

    /// Takes up what [`Self::note_settled_cuts`] noted; returns the spaces it does not settle.
    pub(super) fn restore_cuts(&self) -> BTreeSet<SpaceId> {
        let text = fs::read_to_string(self.dir.join(SETTLED)).unwrap_or_default();
        let mut settled: BTreeMap<SpaceId, Hash> = BTreeMap::new();
        let mut carried: BTreeSet<FragmentId> = BTreeSet::new();
        for line in text.lines() {
            match line.split_once(' ') {
                Some((space, hash)) => {
                    if let (Ok(space), Ok(hash)) = (space.parse(), hash.parse()) {
                        settled.insert(space, hash);
                    }
                }
                None => carried.extend(line.parse::<FragmentId>()),
            }
        }
        let mut state = self.state();
        let curtailed: BTreeSet<SpaceId> = state
            .admission
            .curtailed()
            .map(|(space, _)| space)
            .collect();
        let is_settled =
            |space: &SpaceId| settled.get(space) == Some(&state.admission.curtailment(space));
        let (known, unsettled): (BTreeSet<SpaceId>, BTreeSet<SpaceId>) =
            curtailed.into_iter().partition(is_settled);
        for id in carried {
            let row = self.index.find(&Hash::from(id));
            if let Some(RowKind::Fragment { space, .. }) = row.map(|row| row.kind)
                && known.contains(&space)
            {
                state.carried.insert(id);
                self.set_insert(Lane::Space(space), &id.into());
            }
        }
        unsettled
    }

    /// Returns whether a fragment that is here counts or is carried.
    pub(super) fn is_kept(&self, id: &FragmentId) -> bool {
        let row = self.index.find(&Hash::from(*id));
        row.is_some_and(|row| self.state().is_kept(&row))
    }

    /// Puts the chains that do not count as a whole together anew from what is stored: of a history
    /// that did not count until now, all may be here.
    fn relink(&self, space: SpaceId) {
        let curtailed: BTreeSet<AgentId> = {
            let state = self.state();
            let all = state.admission.curtailed();
            all.filter(|(of, _)| *of == space)
                .map(|(_, author)| author)
                .collect()
        };
        let mut links = Vec::new();
        let mut after = 0;
        while !curtailed.is_empty() {
            let rows = self.index.after(after, ROWS);
            let Some(last) = rows.last() else { break };
            after = last.arrival;
            let of_space = rows.iter().filter_map(Link::of_row);
            links.extend(
                of_space.filter(|link| link.space == space && curtailed.contains(&link.author)),
            );
        }
        self.state().admission.restore_pinned(&links);
    }

    fn sorted(&self, space: SpaceId) -> Sorted {
        let mut sorted = Sorted::default();
        let mut after = 0;
        loop {
            let rows = self.index.after(after, ROWS);
            let Some(last) = rows.last() else {
                return sorted;
            };
            after = last.arrival;
            let state = self.state();
            for row in rows {
                // What is lost is in no set, and comes again.
                let is_of_space = matches!(&row.kind, RowKind::Fragment { space: of, author, seq, .. }
                    if *of == space
                        && !state.admission.has_lost(author, of, *seq, row.id.into()));
                if !is_of_space {
                    continue;
                }
                if state.counts(&row) {
                    sorted.counting.push(row);
                } else {
                    sorted.outside.insert(row.id.into(), row);
                }
            }
        }
    }

    /// Returns what does not count and is built upon by what does, at any distance.
    fn carried(
        &self,
        counting: &[Row],
        outside: &BTreeMap<FragmentId, Row>,
    ) -> BTreeSet<FragmentId> {
        let mut carried = BTreeSet::new();
        if outside.is_empty() {
            return carried;
        }
        let mut queue: Vec<FragmentId> = Vec::new();
        let note = |row: &Row, queue: &mut Vec<FragmentId>| {
            if let Some(fragment) = self.read_fragment(row) {
                let deps = fragment.header.deps.into_iter();
                queue.extend(deps.filter(|dep| outside.contains_key(dep)));
            }
        };
        for row in counting {
            note(row, &mut queue);
        }
        while let Some(id) = queue.pop() {
            if carried.insert(id) {
                note(&outside[&id], &mut queue);
            }
        }
        carried
    }

    /// Has a fork wait until it is this node's turn to show it, unless it is shown.
    pub(super) fn watch_fork(&self, state: &mut State, fragment: &Fragment, other: FragmentId) {
        let header = &fragment.header;
        let authority = Arc::clone(&state.rights.authority);
        // What contradicts a fragment of another place proves nothing: the one that does will be
        // offered.
        let is_elsewhere = self.index.find(&Hash::from(other)).is_some_and(
            |row| matches!(row.kind, RowKind::Fragment { seq, .. } if seq != header.seq),
        );
        if is_elsewhere || authority.frozen(&header.author, &header.space).is_some() {
            return;
        }
        let (chain, members) = ((header.space, header.author), authority.members().count());
        let pair = (fragment.detached(), other);
        state
            .watch
            .note(chain, header.seq, members, self.opened.elapsed(), pair);
    }

    /// Shows the mesh those forks whose turn it is, and forgets those that others have shown.
    ///
    /// Call it with nothing locked.
    pub(super) fn show_forks(&self) {
        let now = self.opened.elapsed();
        let (due, next) = {
            let mut state = self.state();
            if state.watch.next_deadline().is_none() {
                return;
            }
            let authority = Arc::clone(&state.rights.authority);
            let due = state.watch.take_due(now, |(space, author)| {
                authority.frozen(author, space).is_some()
            });
            // Each may be the one that counts from now on.
            let shown = due.shown.into_iter().map(|(fragment, _)| fragment);
            state.recheck.extend(shown);
            (due.to_show, state.watch.next_deadline())
        };
        if let Some(next) = next {
            self.applier.show_forks_at(self.opened + next);
        }
        for (fragment, other) in due {
            self.show_fork(fragment, &other);
        }
        self.admit_rechecked();
    }

    fn show_fork(&self, fragment: Fragment, other: &FragmentId) {
        let Some(other) = self.fragment(other) else {
            return;
        };
        let authority = Arc::clone(&self.rights().authority);
        let header = &fragment.header;
        let proof = ForkProof {
            a: other.envelope.to_vec(),
            b: fragment.envelope.to_vec(),
        };
        let Ok(record) = issue::prove_fork(&self.key, &authority, proof, now_ms()) else {
            return;
        };
        warn!(author = %header.author.fmt_short(), space = %header.space.fmt_short(),
            seq = header.seq, "an author signed two histories; it is frozen where they part");
        self.state().recheck.push(fragment);
        if let Err(error) = self.append_records(vec![record]) {
            warn!(%error, "the proof of a fork could not be stored");
        }
    }

    /// Returns the cuts that leave all that counts here of the chains of `authors`, or all there is.
    pub(super) fn cuts_of(&self, authors: &[AgentId], also_aside: bool) -> Vec<Cut> {
        let state = self.state();
        let mut cuts = Vec::new();
        for author in authors {
            let tips = state.admission.tips_of(*author, also_aside);
            cuts.extend(tips.map(|(space, seq, id)| Cut {
                author: *author,
                space,
                seq,
                hash: id.into(),
            }));
        }
        cuts
    }

    /// Returns the last fragment of a chain that its author dates before `at_ms`.
    pub(super) fn cut_before(&self, author: &AgentId, space: &SpaceId, at_ms: u64) -> Option<Cut> {
        let (mut seq, mut id) = self.state().admission.valid_head(author, space)?;
        loop {
            let header = self.fragment(&id)?.header;
            if header.hlc.unix_ms() < at_ms {
                return Some(Cut {
                    author: *author,
                    space: *space,
                    seq,
                    hash: id.into(),
                });
            }
            (seq, id) = (seq.checked_sub(1)?, header.prev?);
        }
    }

    /// Returns how many fragments of an author are here in a space and do not count.
    pub(super) fn set_aside(&self, author: &AgentId, space: &SpaceId) -> u64 {
        let state = self.state();
        let tip = state.admission.head(author, space);
        let tip = tip.map_or(0, |(seq, _)| seq + 1);
        let valid = state.admission.valid_head(author, space);
        tip - valid.map_or(0, |(seq, _)| seq + 1)
    }

    /// Returns which record keeps a fragment from counting, if it does not count.
    pub(super) fn outside_by(
        &self,
        fragment: &Fragment,
    ) -> Option<(Reach, Vec<rhizome_identity::RecordId>)> {
        if self.counts(&fragment.id) {
            return None;
        }
        let header = &fragment.header;
        let authority = Arc::clone(&self.rights().authority);
        let reach = authority.reach(&header.author, &header.space);
        let subjects = [PublicKey::from(header.author), PublicKey::from(header.node)];
        let mut by: Vec<_> = subjects
            .iter()
            .flat_map(|subject| authority.revocations_of(subject))
            .map(|revocation| revocation.record)
            .collect();
        if by.is_empty()
            && let Some(frozen) = authority.frozen(&header.author, &header.space)
        {
            by.push(frozen.proof);
        }
        Some((reach, by))
    }
}
