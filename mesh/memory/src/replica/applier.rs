//! Brings the view up to date, behind everyone's back and in the order of arrival.
//!
//! What became durable is handed over in memory; when that runs over, or after a restart, the rest
//! is read from the segments. So the view may lag, but nobody who writes waits for it, and nothing
//! it missed is forgotten.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rhizome_identity::{Hash, SpaceId, open_body};
use tracing::{error, warn};

use super::state::Inner;
use crate::{
    Applied, Fragment, FragmentId, Opened, Reader, View,
    store::{Row, RowKind},
};

/// How many items may wait in memory; the rest is read from the segments.
const RECENT: usize = 8192;
/// The most items of one application to the view.
const BATCH: usize = 512;
/// How long after one application items are left to gather for the next, while nobody waits for
/// them: a batch costs little more than one item. What comes after a pause is applied at once.
const GATHER: Duration = Duration::from_millis(5);
/// This many items are not left to gather any longer.
const GATHERED: u64 = 64;
/// The longest wait for the view before a publisher looks again.
const PROGRESS: Duration = Duration::from_millis(50);
/// The version byte in front of the change in a body.
pub(super) const BODY_VERSION: u8 = 1;

/// Something durable that the view has to hear of.
#[derive(Debug)]
pub(super) enum Work {
    /// A fragment, with the change inside if we composed it.
    Fragment {
        fragment: Arc<Fragment>,
        change: Option<Bytes>,
    },
    /// The body of these fragments has arrived.
    Body(Vec<FragmentId>),
    /// It does not concern the view.
    Nothing,
}

/// What the applier has to do and has done.
#[derive(Debug)]
pub(super) struct Applier {
    shared: Mutex<Shared>,
    changed: Condvar,
}

#[derive(Debug)]
struct Shared {
    /// Consecutive arrivals, the newest that are not applied.
    recent: VecDeque<(u64, Work)>,
    durable: u64,
    applied: u64,
    /// Up to here there may be fragments of this node's agents that the view did not compose, or
    /// composed in an earlier life: until it has applied them it would compose them once more.
    composable_from: u64,
    /// Up to here somebody waits.
    wanted: u64,
    /// When the last application ended.
    applied_at: Option<Instant>,
    /// Space keys that came after fragments which they open.
    rescans: BTreeSet<(SpaceId, u32)>,
    is_rescanning: bool,
    stopping: bool,
    dead: bool,
}

/// What the thread does next.
enum Step {
    Items(Vec<(u64, Work)>),
    /// Read what arrived after the first, up to the second.
    Read(u64, u64),
    Rescan(BTreeSet<(SpaceId, u32)>),
    Stop,
}

impl Applier {
    pub(super) fn new(applied: u64, durable: u64) -> Self {
        let shared = Shared {
            recent: VecDeque::new(),
            durable,
            applied,
            composable_from: durable,
            wanted: durable,
            applied_at: None,
            rescans: BTreeSet::new(),
            is_rescanning: false,
            stopping: false,
            dead: false,
        };
        Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
        }
    }

    /// Hands over what has become durable, up to arrival `durable`.
    pub(super) fn push(&self, works: Vec<(u64, Work)>, durable: u64) {
        let mut shared = self.shared();
        for work in works {
            if shared.recent.len() < RECENT {
                shared.recent.push_back(work);
            }
        }
        shared.durable = shared.durable.max(durable);
        self.changed.notify_all();
    }

    /// Has the fragments that these keys open applied, if they came before the keys.
    pub(super) fn rescan(&self, keys: Vec<(SpaceId, u32)>) {
        self.shared().rescans.extend(keys);
        self.changed.notify_all();
    }

    /// Waits until everything that is durable now, and can be read now, is applied.
    pub(super) fn catch_up(&self) {
        let shared = self.shared();
        let target = shared.durable;
        let mut shared = self.wait_for(shared, target);
        while (shared.is_rescanning || !shared.rescans.is_empty()) && shared.is_working() {
            shared = self
                .changed
                .wait(shared)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the view may compose for this node's agents; returns since when it may.
    pub(super) fn wait_until_composable(&self) -> u64 {
        let shared = self.shared();
        let target = shared.composable_from;
        drop(self.wait_for(shared, target));
        target
    }

    /// Returns whether what was composed since then may be published: nothing has arrived that it
    /// would have to build on.
    pub(super) fn is_composable_since(&self, since: u64) -> bool {
        self.shared().composable_from <= since
    }

    /// Waits until the view has applied something, or a moment is over.
    pub(super) fn wait_for_progress(&self) {
        let shared = self.shared();
        let applied = shared.applied;
        let waits = |shared: &mut Shared| shared.applied == applied && shared.is_working();
        drop(
            self.changed
                .wait_timeout_while(shared, PROGRESS, waits)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Has composing wait until the view has applied up to `arrival`.
    pub(super) fn hold_composing_until(&self, arrival: u64) {
        let mut shared = self.shared();
        shared.composable_from = shared.composable_from.max(arrival);
    }

    fn wait_for<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        target: u64,
    ) -> MutexGuard<'a, Shared> {
        if shared.applied < target && shared.wanted < target {
            shared.wanted = target;
            self.changed.notify_all();
        }
        while shared.applied < target && shared.is_working() {
            shared = self
                .changed
                .wait(shared)
                .unwrap_or_else(PoisonError::into_inner);
        }
        shared
    }

    /// Returns the arrival up to which everything is applied.
    pub(super) fn applied(&self) -> u64 {
        self.shared().applied
    }

    pub(super) fn stop(&self) {
        self.shared().stopping = true;
        self.changed.notify_all();
    }

    /// Works until [`Self::stop`]; the body of the thread.
    pub(super) fn run(&self, inner: &Inner) {
        let worked = panic::catch_unwind(AssertUnwindSafe(|| self.work(inner)));
        if worked.is_err() {
            error!("the view cannot be kept up to date; restart the node");
        }
        self.shared().dead = true;
        self.changed.notify_all();
    }

    fn work(&self, inner: &Inner) {
        loop {
            let applied = match self.next() {
                Step::Stop => return,
                Step::Items(items) => {
                    let last = items.last().map_or(0, |(arrival, _)| *arrival);
                    let opened = items
                        .into_iter()
                        .flat_map(|(_, work)| open_work(inner, work));
                    apply(inner, last, opened.collect());
                    last
                }
                Step::Read(after, until) => read_and_apply(inner, after, until),
                Step::Rescan(keys) => {
                    rescan(inner, &keys);
                    self.shared().is_rescanning = false;
                    self.changed.notify_all();
                    continue;
                }
            };
            if inner.index.is_due() {
                inner.flush_index();
            }
            let mut shared = self.shared();
            shared.applied = applied;
            shared.applied_at = Some(Instant::now());
            drop(shared);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Step {
        let mut shared = self.shared();
        loop {
            if shared.stopping {
                return Step::Stop;
            }
            if let Some(left) = shared.gathering() {
                let waited = self.changed.wait_timeout(shared, left);
                (shared, _) = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let next = shared.applied + 1;
            while shared
                .recent
                .front()
                .is_some_and(|(arrival, _)| *arrival < next)
            {
                shared.recent.pop_front();
            }
            match shared.recent.front() {
                Some((arrival, _)) if *arrival == next => {
                    let mut items = Vec::new();
                    let mut expected = next;
                    while items.len() < BATCH
                        && let Some((arrival, _)) = shared.recent.front()
                        && *arrival == expected
                    {
                        items.extend(shared.recent.pop_front());
                        expected += 1;
                    }
                    return Step::Items(items);
                }
                Some((arrival, _)) => return Step::Read(shared.applied, arrival - 1),
                None if shared.applied < shared.durable => {
                    return Step::Read(shared.applied, shared.durable);
                }
                None if !shared.rescans.is_empty() => {
                    shared.is_rescanning = true;
                    return Step::Rescan(std::mem::take(&mut shared.rescans));
                }
                None => {
                    shared = self
                        .changed
                        .wait(shared)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn is_working(&self) -> bool {
        !self.stopping && !self.dead
    }

    /// Returns how much longer items may gather, if they may.
    fn gathering(&self) -> Option<Duration> {
        let pending = self.durable.saturating_sub(self.applied);
        if pending == 0 || pending >= GATHERED || self.applied < self.wanted {
            return None;
        }
        GATHER
            .checked_sub(self.applied_at?.elapsed())
            .filter(|left| !left.is_zero())
    }
}

impl Inner {
    /// Returns the view once it has caught up with what is durable now.
    pub(super) fn caught_up(&self) -> &View {
        self.applier.catch_up();
        &self.view
    }

    /// Returns a reader of the view once it has caught up with what is durable now.
    pub(super) fn caught_up_reader(&self) -> &Reader {
        self.applier.catch_up();
        self.reader()
    }

    /// Decrypts a fragment's change; says why that cannot be done.
    pub(super) fn open(&self, fragment: &Fragment) -> Result<Opened, Unopened> {
        let header = &fragment.header;
        let rights = self.rights();
        let key = rights.keys.get(&(header.space, header.epoch));
        let key = key.ok_or(Unopened::NoKey)?;
        let body = match &fragment.body {
            Some(body) => body.clone(),
            None => self.read_body(&header.body_hash).ok_or(Unopened::NoBody)?,
        };
        let plain = open_body(key, &header.nonce, &header.aad(), &body);
        let plain = Bytes::from(plain.map_err(|_| Unopened::Wrong("its body does not decrypt"))?);
        if plain.first() != Some(&BODY_VERSION) {
            return Err(Unopened::Wrong("its body has another version"));
        }
        Ok(Opened {
            id: fragment.id,
            header: header.clone(),
            change: plain.slice(1..),
        })
    }

    pub(super) fn flush_index(&self) {
        let reach = *self.reach.lock().unwrap_or_else(PoisonError::into_inner);
        self.index.flush(reach);
    }

    /// Returns the keys whose fragments have all been applied, as far as that was noted.
    pub(super) fn settled_keys(dir: &std::path::Path) -> BTreeSet<(SpaceId, u32)> {
        let text = fs::read_to_string(dir.join(SETTLED_KEYS)).unwrap_or_default();
        let key = |line: &str| {
            let (space, epoch) = line.split_once(' ')?;
            Some((space.parse().ok()?, epoch.parse().ok()?))
        };
        text.lines().filter_map(key).collect()
    }

    pub(super) fn note_settled_keys(&self, new: &BTreeSet<(SpaceId, u32)>) {
        let mut keys = Self::settled_keys(&self.dir);
        keys.extend(new);
        let text: String = keys
            .iter()
            .map(|(space, epoch)| format!("{space} {epoch}\n"))
            .collect();
        // Lost or torn, it costs a rescan and nothing else.
        if let Err(error) = fs::write(self.dir.join(SETTLED_KEYS), text) {
            warn!(%error, "cannot note which space keys are settled");
        }
    }
}

/// Why a fragment cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unopened {
    NoKey,
    NoBody,
    Wrong(&'static str),
}

/// Lists the space keys whose fragments have all been handed to the view.
const SETTLED_KEYS: &str = "view.keys";

fn open_work(inner: &Inner, work: Work) -> Vec<Opened> {
    match work {
        Work::Fragment {
            fragment,
            change: Some(change),
        } => {
            vec![Opened {
                id: fragment.id,
                header: fragment.header.clone(),
                change,
            }]
        }
        Work::Fragment {
            fragment,
            change: None,
        } => inner.open(&fragment).into_iter().collect(),
        Work::Body(fragments) => fragments
            .iter()
            .filter_map(|id| inner.open(&inner.fragment(id)?).ok())
            .collect(),
        Work::Nothing => Vec::new(),
    }
}

fn apply(inner: &Inner, arrival: u64, opened: Vec<Opened>) {
    let outcomes = inner.view.apply(arrival, opened);
    for (id, applied) in outcomes {
        if let Applied::Quarantined(reason) = applied {
            warn!(id = %id.fmt_short(), %reason, "a fragment is kept out of its document");
        }
    }
}

/// Applies a batch read from the segments; returns the arrival up to which it reaches.
fn read_and_apply(inner: &Inner, after: u64, until: u64) -> u64 {
    let mut rows = inner.index.after(after, BATCH);
    rows.retain(|row| row.arrival <= until);
    let last = rows.last().map_or(until, |row| row.arrival);
    let opened = rows.iter().flat_map(|row| match &row.kind {
        RowKind::Fragment { .. } => open_row(inner, row).into_iter().collect(),
        RowKind::Body => inner.open_all_with_body(&row.id),
        RowKind::Authority | RowKind::Evidence { .. } => Vec::new(),
    });
    let opened = opened.collect();
    apply(inner, last, opened);
    last
}

fn rescan(inner: &Inner, keys: &BTreeSet<(SpaceId, u32)>) {
    let spaces: BTreeSet<SpaceId> = keys.iter().map(|(space, _)| *space).collect();
    let until = inner.applier.applied();
    let mut after = 0;
    while after < until {
        let rows = inner.index.after(after, BATCH);
        let Some(last) = rows.last() else { break };
        after = last.arrival;
        let in_spaces = rows.iter().filter(|row| match &row.kind {
            RowKind::Fragment { space, .. } => row.arrival <= until && spaces.contains(space),
            _ => false,
        });
        let opened: Vec<Opened> = in_spaces.filter_map(|row| open_row(inner, row)).collect();
        if !opened.is_empty() {
            apply(inner, until, opened);
        }
    }
    inner.note_settled_keys(keys);
}

fn open_row(inner: &Inner, row: &Row) -> Option<Opened> {
    let fragment = Fragment::decode(&inner.read_row(row)?).ok()?;
    inner.open(&fragment).ok()
}

impl Inner {
    fn open_all_with_body(&self, body: &Hash) -> Vec<Opened> {
        let rows = self.rows_with_body(body);
        rows.iter().filter_map(|row| open_row(self, row)).collect()
    }

    /// Returns the fragments whose body this is; there is hardly ever more than one.
    pub(super) fn rows_with_body(&self, body: &Hash) -> Vec<Row> {
        let mut found = Vec::new();
        let mut after = 0;
        loop {
            let rows = self.index.after(after, BATCH);
            let Some(last) = rows.last() else {
                return found;
            };
            after = last.arrival;
            found.extend(rows.into_iter().filter(|row| {
                matches!(&row.kind, RowKind::Fragment { blob: Some(blob), .. } if blob == body)
            }));
        }
    }
}
