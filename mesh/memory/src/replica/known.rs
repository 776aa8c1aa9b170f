//! What stays in memory of the rows of the index: little of each, and never all rows at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, RwLock},
};

use rhizome_identity::{AgentId, Authority, Hash, HeldKeys, RecordLog, SignedRecord, SpaceId};
use tracing::warn;

use super::{
    bodies,
    open::Restored,
    request::Fork,
    state::{Rights, State},
};
use crate::{
    Admission, ForkWatch, Fragment, FragmentId, HlcClock, IdSet, Lane,
    admission::Link,
    disk::Disk,
    redaction::{Notice, Redactions},
    store::{Index, Loc, Log, RecoveryReport, Row, RowKind, Tip},
};

/// How many rows are read from the index at a time.
const PAGE: usize = 1024;

/// What the rows said so far; they come in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Known {
    admission: Admission,
    records: Vec<(Hash, Loc)>,
    forks: BTreeMap<(SpaceId, AgentId), Fork>,
    /// Bodies that travel apart, with the fragments that name them.
    blobs: Vec<(Hash, FragmentId)>,
    /// Redactions, and fragments that came with the one which took their body.
    redactions: Vec<Loc>,
    last: Option<(u64, Loc)>,
}

impl Known {
    /// Takes in the next row.
    pub(super) fn take(&mut self, row: &Row) {
        self.last = Some((row.arrival, row.loc));
        let id = FragmentId::from(row.id);
        match &row.kind {
            RowKind::Fragment {
                space,
                author,
                seq,
                prev,
                blob,
                redacts,
                ..
            } => {
                self.admission.restore(*author, *space, *seq, id, *prev);
                self.blobs.extend(blob.map(|blob| (blob, id)));
                self.redactions.extend(redacts.then_some(row.loc));
            }
            RowKind::Evidence {
                space,
                author,
                other,
            } => {
                let (space, author) = (*space, *author);
                let fork = Fork {
                    space,
                    author,
                    ours: *other,
                    theirs: id,
                };
                self.forks.entry((space, author)).or_insert(fork);
            }
            RowKind::Authority => self.records.push((row.id, row.loc)),
            RowKind::Body => {}
        }
    }

    /// Returns arrival and place of the last row.
    pub(super) fn last(&self) -> Option<(u64, Loc)> {
        self.last
    }

    /// Builds what is kept in memory; `tips` are those that the newest commit records name, and
    /// `index` has all the rows that were taken in.
    pub(super) fn restore(
        self,
        disk: &dyn Disk,
        log: &Log,
        index: &Index,
        tips: &BTreeMap<(SpaceId, AgentId), Tip>,
        report: &mut RecoveryReport,
        (clock, watch): (HlcClock, ForkWatch<(Fragment, FragmentId)>),
    ) -> Restored {
        // The records first: they say what everything else means.
        let mut records = RecordLog::default();
        let mut authority_set = IdSet::default();
        for (id, loc) in self.records {
            let payload = log.read(loc).map(|(_, payload)| payload);
            let record = payload.and_then(|payload| SignedRecord::parse(&payload).ok());
            match record.map(|record| records.insert(record)) {
                Some(Ok(_)) => {
                    authority_set.insert(id);
                }
                _ => {
                    warn!(%id, "an authority record is damaged; it will be fetched from a peer")
                }
            }
        }
        let authority = Arc::new(records.resolve());
        let mut admission = self.admission;
        let mut wanted: BTreeMap<Hash, BTreeSet<FragmentId>> = BTreeMap::new();
        for (blob, id) in self.blobs {
            if !disk.exists(&bodies::name(&blob)) {
                wanted.entry(blob).or_default().insert(id);
            }
        }
        // What a commit record names and no record is left of was here: its position is taken.
        for tip in tips.values() {
            if admission.id_at(&tip.author, &tip.space, tip.seq) != Some(tip.id) {
                admission.restore_lost(tip.author, tip.space, tip.seq, tip.id, tip.prev);
                report.lost.push(tip.id);
            }
        }
        pin(&mut admission, &authority, index);
        let mut sets: BTreeMap<Lane, IdSet> = BTreeMap::from([(Lane::Authority, authority_set)]);
        for (space, id) in admission.counted() {
            sets.entry(Lane::Space(space))
                .or_default()
                .insert(id.into());
        }
        let is_curtailed = admission.curtailed().next().is_some();
        let mut state = State {
            records,
            rights: Arc::new(Rights {
                authority,
                keys: HeldKeys::default(),
            }),
            admission,
            forks: self.forks,
            wanted,
            recheck: Vec::new(),
            is_curtailed,
            carried: BTreeSet::new(),
            watch,
            redactions: redactions(log, &self.redactions),
        };
        state.reassess();
        let shared = |(lane, set)| (lane, Arc::new(RwLock::new(set)));
        Restored {
            state,
            clock,
            sets: sets.into_iter().map(shared).collect(),
        }
    }
}

/// Reads redactions, and those that came with a fragment which they took the body of.
fn redactions(log: &Log, places: &[Loc]) -> Redactions {
    let mut redactions = Redactions::default();
    for loc in places {
        let payload = log.read(*loc).map(|(_, payload)| payload);
        let Some(Ok(fragment)) = payload.map(|payload| Fragment::decode(&payload)) else {
            continue;
        };
        let notice = Notice::of(&fragment).or_else(|| {
            let signed = fragment.redaction.as_ref()?;
            Notice::read(signed, &fragment.id, &fragment.header).ok()
        });
        if let Some(notice) = notice {
            redactions.note(notice);
        }
    }
    redactions
}

/// Has the chains count as far as the authority log says, and follow the histories that it pins.
fn pin(admission: &mut Admission, authority: &Authority, index: &Index) {
    admission.authority_pins(authority);
    let curtailed: BTreeSet<(SpaceId, AgentId)> = admission.curtailed().collect();
    if curtailed.is_empty() {
        return;
    }
    let mut links: Vec<Link> = Vec::new();
    let mut after = 0;
    loop {
        let rows = index.after(after, PAGE);
        let Some(last) = rows.last() else { break };
        after = last.arrival;
        let of_page = rows.iter().filter_map(Link::of_row);
        links.extend(of_page.filter(|link| curtailed.contains(&(link.space, link.author))));
    }
    admission.restore_pinned(&links);
}
