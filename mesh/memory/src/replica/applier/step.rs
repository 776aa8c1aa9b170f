//! What is done in one turn of the applier.

use std::collections::BTreeSet;

use rhizome_identity::SpaceId;
use tracing::warn;

use super::{
    super::{redact::redacted, state::Inner},
    BATCH, Step, Unopened, Work,
};
use crate::{
    Applied, Fragment, Kind, Opened, Reason,
    store::{Row, RowKind},
};

/// Does one step; returns the arrival up to which everything is applied then, if that moved.
pub(super) fn perform(inner: &Inner, step: Step) -> Option<u64> {
    match step {
        Step::Items(items) => {
            let last = items.last().map_or(0, |(arrival, _)| *arrival);
            let mut batch = Batch::default();
            for (_, work) in items {
                batch.add_work(inner, work);
            }
            batch.apply(inner, last);
            Some(last)
        }
        Step::Read(after, until) => Some(read_and_apply(inner, after, until)),
        Step::Rescan(keys) => {
            rescan(inner, &keys.iter().map(|(space, _)| *space).collect());
            inner.note_settled_keys(&keys);
            None
        }
        Step::Recut(spaces) => {
            let renewed = inner.recut(&spaces);
            if !renewed.is_empty() {
                rescan(inner, &renewed);
            }
            inner.note_settled_cuts();
            None
        }
        Step::Redact(ids) => {
            let renewed = inner.redact(&ids);
            if !renewed.is_empty() {
                rescan(inner, &renewed);
            }
            None
        }
        Step::Replay(since) => {
            replay(inner, since);
            None
        }
    }
}

/// What the view is to hear of at once.
#[derive(Default)]
struct Batch {
    opened: Vec<Opened>,
    redacted: Vec<Opened>,
}

impl Batch {
    fn add_work(&mut self, inner: &Inner, work: Work) {
        match work {
            Work::Fragment {
                fragment,
                change: Some(change),
            } => {
                let header = &fragment.header;
                if header.kind == Kind::Redaction {
                    return;
                }
                if inner.is_redacted(&fragment.id, header) {
                    self.redacted.push(redacted(fragment.id, header.clone()));
                } else {
                    self.opened.push(Opened {
                        id: fragment.id,
                        header: header.clone(),
                        change,
                    });
                }
            }
            Work::Fragment {
                fragment,
                change: None,
            } => self.add(inner, &fragment),
            Work::Body(fragments) => {
                let kept = fragments.iter().filter(|id| inner.is_kept(id));
                for fragment in kept.filter_map(|id| inner.fragment(id)) {
                    self.add(inner, &fragment);
                }
            }
            Work::Nothing => {}
        }
    }

    fn add_row(&mut self, inner: &Inner, row: &Row) {
        if let Some(fragment) = inner.read_fragment(row) {
            self.add(inner, &fragment);
        }
    }

    /// Adds a fragment as far as it can be read; what redacts others does not concern the view.
    fn add(&mut self, inner: &Inner, fragment: &Fragment) {
        if fragment.header.kind == Kind::Redaction {
            return;
        }
        match inner.open(fragment) {
            Ok(opened) => self.opened.push(opened),
            Err(Unopened::Redacted) => {
                let header = fragment.header.clone();
                self.redacted.push(redacted(fragment.id, header));
            }
            Err(_) => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.opened.is_empty() && self.redacted.is_empty()
    }

    fn apply(self, inner: &Inner, arrival: u64) {
        let outcomes = inner.view.apply_all(arrival, self.opened, self.redacted);
        for (id, applied) in outcomes {
            match applied {
                Applied::Quarantined(Reason::Redacted) => {}
                Applied::Quarantined(reason) => {
                    warn!(id = %id.fmt_short(), %reason, "a fragment is kept out of its document");
                }
                _ => {}
            }
        }
    }
}

/// Applies a batch read from the segments; returns the arrival up to which it reaches.
fn read_and_apply(inner: &Inner, after: u64, until: u64) -> u64 {
    let mut rows = inner.index.after(after, BATCH);
    rows.retain(|row| row.arrival <= until);
    let last = rows.last().map_or(until, |row| row.arrival);
    inner.retain_kept(&mut rows);
    let mut batch = Batch::default();
    for row in &rows {
        match &row.kind {
            RowKind::Fragment { .. } => batch.add_row(inner, row),
            RowKind::Body => {
                let mut rows = inner.rows_with_body(&row.id);
                inner.retain_kept(&mut rows);
                rows.iter().for_each(|row| batch.add_row(inner, row));
            }
            RowKind::Authority | RowKind::Evidence { .. } => {}
        }
    }
    batch.apply(inner, last);
    last
}

/// Applies what is there of these spaces again.
fn rescan(inner: &Inner, spaces: &BTreeSet<SpaceId>) {
    let until = inner.applier.applied();
    let mut after = 0;
    while after < until {
        let mut rows = inner.index.after(after, BATCH);
        let Some(last) = rows.last() else { break };
        after = last.arrival;
        inner.retain_kept(&mut rows);
        let in_spaces = rows.iter().filter(|row| match &row.kind {
            RowKind::Fragment { space, .. } => row.arrival <= until && spaces.contains(space),
            _ => false,
        });
        let mut batch = Batch::default();
        in_spaces.for_each(|row| batch.add_row(inner, row));
        if !batch.is_empty() {
            batch.apply(inner, until);
        }
    }
}

/// Applies again what arrived after `since`: some of it was left out, and the rest changes nothing.
fn replay(inner: &Inner, since: u64) {
    let until = inner.applier.applied();
    let mut after = since;
    while after < until {
        after = read_and_apply(inner, after, until);
    }
    if let Err(error) = inner.view.end_replay() {
        warn!(%error, "a replay of the view is repeated when it is next opened");
    }
}
