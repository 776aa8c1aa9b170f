//! Taking fragments into the view.

use std::collections::{BTreeMap, BTreeSet};

use automerge::{Change, ChangeHash};
use redb::{Durability, ReadableTable};
use rhizome_identity::SpaceId;

use super::{
    Applied, Opened, Quarantined, View, ViewError,
    documents::{Document, lock},
    live::Live,
    materialise::{Material, materialise, read_material},
    tables::Tables,
    waiting::{Waiting, decode_waiting, encode_waiting},
};
use crate::{
    FragmentId, Header, Reason,
    document::{DocKey, Shape, stated_item},
    fence,
    item::MemoryItem,
};

pub(super) const STATE_APPLIED: &[u8] = &[0];
pub(super) const STATE_WAITING: &[u8] = &[1];
pub(super) const STATE_REFUSED: &[u8] = &[2];

/// What changed for the search index, once the transaction is committed.
pub(super) type Fresh = BTreeMap<DocKey, Renewed>;

/// A memory that has changed.
pub(super) struct Renewed {
    pub(super) generation: u64,
    pub(super) item: MemoryItem,
    /// Whether there was none before.
    pub(super) is_new: bool,
}

/// What applying keeps; one batch at a time.
#[derive(Debug, Default)]
pub(super) struct Applying {
    pub(super) waiting: Waiting,
    /// How many fragments of each space were refused.
    pub(super) refused: BTreeMap<SpaceId, usize>,
    pub(super) watermark: u64,
    /// The arrival after which fragments were left out for want of room.
    crowded: Option<u64>,
    /// Whether one was left out since the last replay began.
    is_left_out: bool,
    /// Whether one that waited has gone since the last replay began.
    has_room: bool,
}

impl View {
    /// Applies `batch` in one transaction.
    pub(super) fn apply_in(
        &self,
        applying: &mut Applying,
        arrival: u64,
        batch: Vec<Opened>,
        redacted: &BTreeSet<FragmentId>,
    ) -> Result<(BTreeMap<FragmentId, Applied>, Fresh), ViewError> {
        let shared = self.shared.clone();
        let txn = shared.store.write(Durability::None)?;
        let mut results = BTreeMap::new();
        let mut fresh = Fresh::new();
        {
            let mut tables = Tables::open(&txn)?;
            let mut queue = batch;
            while !queue.is_empty() {
                let mut documents: BTreeMap<DocKey, Vec<Opened>> = BTreeMap::new();
                for opened in queue.drain(..) {
                    documents.entry(doc_key(&opened)).or_default().push(opened);
                }
                // What waited for several of these goes on once: twice would wake its own waiters
                // twice, and theirs four times.
                let mut woken = BTreeSet::new();
                for (key, items) in documents {
                    let of_document = items.iter().map(|opened| opened.id);
                    let refused = of_document
                        .filter(|id| redacted.contains(id))
                        .map(|id| (id, Reason::Redacted))
                        .collect();
                    let settled = self.apply_document(
                        applying,
                        &mut tables,
                        key,
                        (items, refused),
                        &mut fresh,
                    )?;
                    for settled in settled {
                        let (id, verdict) = settled;
                        let is_final = !matches!(
                            verdict,
                            Applied::Waiting(_) | Applied::Quarantined(Reason::Crowded)
                        );
                        results.insert(id, verdict);
                        if !is_final {
                            continue;
                        }
                        // What waited for this one may go on now, or never will.
                        for waiter in applying.waiting.woken_by(&id) {
                            if !woken.insert(waiter) {
                                continue;
                            }
                            if let Some(row) = tables.waiting.get(&waiter.as_bytes()[..])? {
                                let opened = decode_waiting(waiter, row.value());
                                queue.push(opened.ok_or(ViewError::Damaged("a waiting fragment"))?);
                            }
                        }
                    }
                }
            }
            let watermark = applying.watermark.max(arrival);
            tables.meta.insert("watermark", watermark)?;
        }
        txn.commit()?;
        Ok((results, fresh))
    }

    fn apply_document(
        &self,
        applying: &mut Applying,
        tables: &mut Tables<'_>,
        key: DocKey,
        (items, refused): (Vec<Opened>, BTreeMap<FragmentId, Reason>),
        fresh: &mut Fresh,
    ) -> Result<Vec<(FragmentId, Applied)>, ViewError> {
        let cell = self.documents.cell(&key);
        // Whoever composes on this document waits, and nobody else.
        let mut document = lock(&cell);
        self.documents.note_uncommitted(key);
        let mut live = match document.live.take() {
            Some(live) => live,
            None => load(tables, &key)?,
        };
        let items: Vec<&Opened> = items.iter().collect();
        let mut attempt = Attempt {
            waiting: &applying.waiting,
            tables,
            key,
            live: &mut live,
            all: &items,
            refused,
            outcome: None,
            verdicts: BTreeMap::new(),
        };
        attempt.run(&items)?;
        let Attempt {
            outcome, verdicts, ..
        } = attempt;

        let mut is_final = false;
        if let Some(Outcome { saved, material }) = outcome {
            is_final = matches!(&material, Some(Material::Memory(item)) if item.key.is_none());
            tables.saved.insert(&key.to_bytes()[..], &saved[..])?;
            tables
                .index
                .insert(&key.to_bytes()[..], &live.index.encode()[..])?;
            live.bytes = saved.len();
            materialise(tables, &key, material, self.next_generation(), fresh)?;
        }
        let mut settled = Vec::new();
        for opened in items {
            let Some(verdict) = verdicts.get(&opened.id) else {
                continue;
            };
            let verdict = applying.record(tables, &key, &mut document, opened, verdict.clone())?;
            settled.push((opened.id, verdict));
        }
        // A memory without a key is stated once: nobody will want it loaded.
        let is_wanted = !is_final || !document.pending.is_empty();
        let bytes = if is_wanted { live.bytes } else { 0 };
        document.live = is_wanted.then_some(live);
        drop(document);
        self.documents.keep(&key, bytes);
        Ok(settled)
    }
}

/// How many fragments of each space wait, and how many were refused.
pub(super) type Tally = BTreeMap<SpaceId, (usize, usize)>;

impl Applying {
    /// Counts what is not in its document.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::new();
        for (space, waiting) in self.waiting.by_space() {
            tally.entry(*space).or_default().0 = *waiting;
        }
        for (space, refused) in &self.refused {
            tally.entry(*space).or_default().1 = *refused;
        }
        tally
    }

    /// Begins a replay for what was left out, if there is room for some of it now.
    pub(super) fn begin_replay(&mut self) -> Option<u64> {
        let since = self.crowded.filter(|_| self.has_room)?;
        (self.is_left_out, self.has_room) = (false, false);
        Some(since)
    }

    /// Ends a replay; returns whether nothing is left out any more.
    pub(super) fn end_replay(&mut self) -> bool {
        if !self.is_left_out {
            self.crowded = None;
        }
        !self.is_left_out
    }

    /// Notes the verdict on a fragment.
    fn record(
        &mut self,
        tables: &mut Tables<'_>,
        key: &DocKey,
        document: &mut Document,
        opened: &Opened,
        verdict: Applied,
    ) -> Result<Applied, ViewError> {
        let id = &opened.id.as_bytes()[..];
        match &verdict {
            Applied::Waiting(on) => {
                if !self.waiting.insert(key, opened, on) {
                    // Left out for now: the replica replays from here once there is room, or when the
                    // view is next opened.
                    let since = self
                        .crowded
                        .map_or(self.watermark, |since| since.min(self.watermark));
                    (self.crowded, self.is_left_out) = (Some(since), true);
                    tables.meta.insert("crowded", since)?;
                    return Ok(Applied::Quarantined(Reason::Crowded));
                }
                tables.waiting.insert(id, &encode_waiting(opened, on)[..])?;
                tables.states.insert(id, STATE_WAITING)?;
            }
            Applied::Applied => {
                self.forget_waiting(tables, &opened.id)?;
                tables.states.insert(id, STATE_APPLIED)?;
                if document.awaits(&opened.id) {
                    document.settle(&opened.id);
                } else {
                    // What others wrote is not in it.
                    document.tip = None;
                }
            }
            Applied::Quarantined(reason) => {
                self.forget_waiting(tables, &opened.id)?;
                let is_news = tables
                    .states
                    .insert(id, STATE_REFUSED)?
                    .is_none_or(|state| state.value() != STATE_REFUSED);
                if is_news && *reason != Reason::Redacted {
                    *self.refused.entry(key.space).or_default() += 1;
                    tracing::debug!(fragment = %opened.id.fmt_short(), %reason, "a fragment was refused by the view");
                }
                let refused = Quarantined {
                    id: opened.id,
                    space: key.space,
                    author: opened.header.author,
                    reason: reason.clone(),
                };
                let json = serde_json::to_vec(&refused).expect("it has string keys only");
                tables.refused.insert(id, &json[..])?;
                if document.awaits(&opened.id) {
                    document.settle(&opened.id);
                    document.tip = None;
                }
            }
            Applied::Deferred => {}
        }
        Ok(verdict)
    }

    pub(super) fn forget_waiting(
        &mut self,
        tables: &mut Tables<'_>,
        id: &FragmentId,
    ) -> Result<(), ViewError> {
        if self.waiting.remove(id) {
            self.has_room = true;
            tables.waiting.remove(&id.as_bytes()[..])?;
        }
        Ok(())
    }
}

/// Returns the document that a fragment claims to be of.
pub(super) fn doc_key(opened: &Opened) -> DocKey {
    doc_key_of(&opened.header)
}

/// Returns the document that a fragment with this header claims to be of.
pub(crate) fn doc_key_of(header: &Header) -> DocKey {
    DocKey {
        space: header.space,
        shape: Shape::of(header.kind),
        doc: header.doc,
    }
}

/// Loads a document, or begins it.
fn load(tables: &Tables<'_>, key: &DocKey) -> Result<Live, ViewError> {
    let saved = tables.saved.get(&key.to_bytes()[..])?;
    let index = tables.index.get(&key.to_bytes()[..])?;
    Live::from_rows(
        key,
        saved.as_ref().map(|row| row.value()),
        index.as_ref().map(|row| row.value()),
    )
}

/// Applying some fragments of one document, until each has a verdict.
struct Attempt<'a, 'txn> {
    waiting: &'a Waiting,
    tables: &'a Tables<'txn>,
    key: DocKey,
    live: &'a mut Live,
    all: &'a [&'a Opened],
    /// Those of this attempt that automerge did not survive, and those that were redacted.
    refused: BTreeMap<FragmentId, Reason>,
    outcome: Option<Outcome>,
    verdicts: BTreeMap<FragmentId, Applied>,
}

/// What is to be kept of a document that has changed.
struct Outcome {
    saved: Vec<u8>,
    material: Option<Material>,
}

impl Attempt<'_, '_> {
    /// Checks `items` one after the other, and has automerge apply all that pass at once; if it
    /// fails, halves the batch until the culprit stands alone.
    fn run(&mut self, items: &[&Opened]) -> Result<(), ViewError> {
        let base = self.live.index.len();
        let before = self.verdicts.clone();
        let mut changes: Vec<Change> = Vec::new();
        let mut first = None;
        let mut last = None;
        for opened in items {
            let verdict = match self.judge(opened)? {
                Judged::Settled(verdict) => verdict,
                Judged::Passed(checked) => {
                    self.live.index.push(checked.meta);
                    changes.push(checked.change);
                    first = first.or(checked.first);
                    last = Some(opened.id);
                    Applied::Applied
                }
            };
            self.verdicts.insert(opened.id, verdict);
        }
        let Some(last) = last else { return Ok(()) };
        if let (Some(draft), [change]) = (first, &changes[..]) {
            let item = stated_item(&self.key, draft, self.live.index.at(0));
            self.outcome = Some(Outcome {
                saved: change.raw_bytes().to_vec(),
                material: Some(Material::Memory(Box::new(item))),
            });
            self.live.begin_with(change.clone());
            return Ok(());
        }
        let heads = self.live.index.heads();
        let heads: Vec<ChangeHash> = heads
            .into_iter()
            .map(|head| ChangeHash(self.live.index.at(head).hash))
            .collect();
        let (document, index) = self.live.parts()?;
        let read = |document: &_| read_material(&self.key, document, index);
        let reason = match fence::apply(document, &changes, &heads, read) {
            Ok((document, saved, material)) => {
                self.live.replace(document);
                self.outcome = Some(Outcome { saved, material });
                return Ok(());
            }
            Err(reason) => reason,
        };
        // The copy is gone; the document is what it was before.
        self.live.index.truncate(base);
        self.verdicts = before;
        if changes.len() == 1 {
            self.refused.insert(last, reason);
            return self.run(items);
        }
        let (first, second) = items.split_at(items.len() / 2);
        self.run(first)?;
        self.run(second)
    }

    fn judge(&self, opened: &Opened) -> Result<Judged, ViewError> {
        if let Some(reason) = self.refused.get(&opened.id) {
            return Ok(Judged::Settled(Applied::Quarantined(reason.clone())));
        }
        if self.live.index.by_fragment(&opened.id).is_some() {
            return Ok(Judged::Settled(Applied::Applied));
        }
        match self.state(&opened.id)? {
            Some(state) if state == STATE_REFUSED => {
                let row = self.tables.refused.get(&opened.id.as_bytes()[..])?;
                let refused =
                    row.and_then(|row| serde_json::from_slice::<Quarantined>(row.value()).ok());
                let reason = refused
                    .ok_or(ViewError::Damaged("a refused fragment"))?
                    .reason;
                return Ok(Judged::Settled(Applied::Quarantined(reason)));
            }
            Some(state) if state == STATE_APPLIED => {
                return Err(ViewError::Damaged("the index of a document"));
            }
            _ => {}
        }
        let mut missing = Vec::new();
        for dep in &opened.header.deps {
            if self.live.index.by_fragment(dep).is_some() {
                continue;
            }
            let verdict = match self.verdicts.get(dep) {
                Some(Applied::Quarantined(_)) => Some(STATE_REFUSED.to_vec()),
                Some(_) => Some(STATE_WAITING.to_vec()),
                None => self.state(dep)?,
            };
            match verdict.as_deref() {
                Some(STATE_REFUSED) => {
                    let reason = Reason::DependsOnRefused { on: *dep };
                    return Ok(Judged::Settled(Applied::Quarantined(reason)));
                }
                Some(STATE_APPLIED) => {
                    return Ok(Judged::Settled(Applied::Quarantined(
                        Reason::OtherDocument { on: *dep },
                    )));
                }
                _ => missing.push(*dep),
            }
        }
        // An author's changes get their verdicts in the order of its chain, else which of two with
        // one number is the first would depend on what arrived when.
        let settled = |id: &FragmentId| {
            self.verdicts
                .get(id)
                .is_some_and(|verdict| !matches!(verdict, Applied::Waiting(_)))
        };
        if missing.is_empty() {
            let earlier = self
                .waiting
                .earlier_of_author(&self.key, opened)
                .find(|id| !settled(id));
            let earlier = earlier.or_else(|| self.earlier_in_batch(opened));
            missing.extend(earlier);
        }
        if !missing.is_empty() {
            return Ok(Judged::Settled(Applied::Waiting(missing)));
        }
        Ok(match fence::check(&self.key, &self.live.index, opened) {
            Ok(checked) => Judged::Passed(Box::new(checked)),
            Err(reason) => Judged::Settled(Applied::Quarantined(reason)),
        })
    }

    /// Returns a fragment of this batch by the same author that comes earlier and waits.
    fn earlier_in_batch(&self, opened: &Opened) -> Option<FragmentId> {
        let earlier = self.all.iter().filter(|other| {
            other.header.author == opened.header.author && other.header.seq < opened.header.seq
        });
        earlier
            .map(|other| other.id)
            .find(|id| matches!(self.verdicts.get(id), Some(Applied::Waiting(_))))
    }

    fn state(&self, id: &FragmentId) -> Result<Option<Vec<u8>>, ViewError> {
        Ok(self
            .tables
            .states
            .get(&id.as_bytes()[..])?
            .map(|state| state.value().to_vec()))
    }
}

enum Judged {
    Settled(Applied),
    Passed(Box<fence::Checked>),
}
