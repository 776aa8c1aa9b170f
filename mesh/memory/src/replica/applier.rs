//! Brings the view up to date, in the order of arrival.
//!
//! What became durable is handed over in memory; when that runs over, or after a restart, the rest
//! is read from the segments. So the view may lag, but nobody who writes waits for it, and nothing
//! it missed is forgotten.
//!
//! Applying is a role, not a thread: whoever wants the view up to date, and finds that nobody is at
//! it, does the work itself and pays for no change of threads. What nobody asks for gathers for a
//! moment and is then applied by a thread kept for it, so that the cores are free while a fragment
//! is on its way to disks and peers.

mod step;

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

use self::step::perform;
use super::state::Inner;
use crate::{
    Fragment, FragmentId, Opened, Reader, View,
    store::{Row, RowKind},
};

/// How many items may wait in memory; the rest is read from the segments.
const RECENT: usize = 8192;
/// The most items of one application to the view.
const BATCH: usize = 512;
/// How long items are left to gather while nobody waits for them: a batch costs little more than
/// one item.
const GATHER: Duration = Duration::from_millis(10);
/// This many items are not left to gather any longer, which bounds what the next reader has to do.
const GATHERED: u64 = 64;
/// The longest wait for the view before a publisher looks again.
const PROGRESS: Duration = Duration::from_millis(50);
/// After the files of the view were rewritten they are left alone for so many times as long as that
/// took, so that a member that redacts on and on takes a tenth of a node's time and no more.
const PURGE_REST: u32 = 9;
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
    /// Something was applied, or never will be: for those who wait.
    changed: Condvar,
    /// There is something to do: for the thread.
    work: Condvar,
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
    /// Since when the oldest item gathers.
    gathers_since: Option<Instant>,
    /// Space keys that came after fragments which they open.
    rescans: BTreeSet<(SpaceId, u32)>,
    /// Spaces of which something else counts than before.
    recuts: BTreeSet<SpaceId>,
    /// Fragments whose body may have been redacted, or given back.
    redacts: BTreeSet<FragmentId>,
    /// After this arrival the view left fragments out for which it has room now.
    replay: Option<u64>,
    /// A rescan or a replay is at work.
    is_rescanning: bool,
    /// What counts is being worked out anew, or bodies are being taken.
    is_recutting: bool,
    /// Somebody applies: a step is taken, and not done.
    is_led: bool,
    /// Rows of the replica's index are to be written, which no reader shall wait for.
    is_flush_due: bool,
    /// Files of the view hold what was redacted, and no reader shall wait until they do not.
    is_purge_due: bool,
    /// They are not rewritten again before this.
    rests_until: Option<Instant>,
    /// When it is this node's turn to show a fork.
    forks_at: Option<Instant>,
    stopping: bool,
    dead: bool,
}

/// What the thread does next.
enum Job {
    Step(Step),
    Flush,
    Purge,
    ShowForks,
}

/// What is to be applied next.
enum Step {
    Items(Vec<(u64, Work)>),
    /// Read what arrived after the first, up to the second.
    Read(u64, u64),
    Rescan(BTreeSet<(SpaceId, u32)>),
    /// Work out anew what counts of these spaces.
    Recut(BTreeSet<SpaceId>),
    /// Take the bodies of these, if they are redacted.
    Redact(BTreeSet<FragmentId>),
    /// Apply again what arrived after this.
    Replay(u64),
}

impl Applier {
    pub(super) fn new(applied: u64, durable: u64) -> Self {
        let shared = Shared {
            recent: VecDeque::new(),
            durable,
            applied,
            composable_from: durable,
            wanted: durable,
            gathers_since: (applied < durable).then(Instant::now),
            rescans: BTreeSet::new(),
            recuts: BTreeSet::new(),
            redacts: BTreeSet::new(),
            replay: None,
            is_rescanning: false,
            is_recutting: false,
            is_led: false,
            is_flush_due: false,
            is_purge_due: false,
            rests_until: None,
            forks_at: None,
            stopping: false,
            dead: false,
        };
        Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Hands over what has become durable, up to arrival `durable`.
    pub(super) fn push(&self, works: Vec<(u64, Work)>, durable: u64) {
        let mut shared = self.shared();
        let before = shared.pending();
        for work in works {
            if shared.recent.len() < RECENT {
                shared.recent.push_back(work);
            }
        }
        shared.durable = shared.durable.max(durable);
        let now = shared.pending();
        if before == 0 && now > 0 {
            shared.gathers_since = Some(Instant::now());
        }
        // In between, the thread knows already when to wake.
        if (before == 0 && now > 0) || (before < GATHERED && now >= GATHERED) {
            self.work.notify_one();
        }
    }

    /// Has the fragments that these keys open applied, if they came before the keys.
    pub(super) fn rescan(&self, keys: Vec<(SpaceId, u32)>) {
        self.shared().rescans.extend(keys);
        self.work.notify_one();
    }

    /// Has the thread see to the forks that wait, at the latest then.
    pub(super) fn show_forks_at(&self, at: Instant) {
        let mut shared = self.shared();
        if shared.forks_at.is_none_or(|set| at < set) {
            shared.forks_at = Some(at);
            self.work.notify_one();
        }
    }

    /// Has it worked out anew what counts of these spaces.
    pub(super) fn recut(&self, spaces: BTreeSet<SpaceId>) {
        self.shared().recuts.extend(spaces);
        self.work.notify_one();
    }

    /// Has the bodies of these fragments taken, if they are redacted.
    pub(super) fn redact(&self, ids: BTreeSet<FragmentId>) {
        if ids.is_empty() {
            return;
        }
        self.shared().redacts.extend(ids);
        self.work.notify_one();
    }

    /// Returns once everything that is durable now, and can be read now, is applied.
    pub(super) fn catch_up(&self, inner: &Inner) {
        let shared = self.shared();
        let target = shared.durable;
        self.reach(inner, shared, |shared| {
            shared.applied >= target
                && !shared.is_rescanning
                && shared.rescans.is_empty()
                && shared.is_settled()
                && shared.replay.is_none()
        });
    }

    /// Returns, once the view may compose for this node's agents, since when it may.
    pub(super) fn wait_until_composable(&self, inner: &Inner) -> u64 {
        let shared = self.shared();
        let target = shared.composable_from;
        // Nor shall anything be built on what does not count any more.
        self.reach(inner, shared, |shared| {
            shared.applied >= target && shared.is_settled()
        });
        target
    }

    /// Returns whether what was composed since then may be published: nothing has arrived that it
    /// would have to build on.
    pub(super) fn is_composable_since(&self, since: u64) -> bool {
        self.shared().composable_from <= since
    }

    /// Waits until the view has applied something, or a moment is over.
    pub(super) fn wait_for_progress(&self) {
        let mut shared = self.shared();
        let applied = shared.applied;
        shared.wanted = shared.wanted.max(shared.durable);
        self.work.notify_one();
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

    /// Works, or waits for who works, until `is_there`.
    fn reach<'a>(
        &'a self,
        inner: &Inner,
        mut shared: MutexGuard<'a, Shared>,
        is_there: impl Fn(&Shared) -> bool,
    ) {
        while !is_there(&shared) && shared.is_working() {
            shared = if shared.is_led {
                self.changed
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner)
            } else if let Some(step) = shared.take_step() {
                drop(shared);
                self.perform(inner, step);
                self.shared()
            } else {
                return;
            };
        }
    }

    /// Returns the arrival up to which everything is applied.
    pub(super) fn applied(&self) -> u64 {
        self.shared().applied
    }

    pub(super) fn stop(&self) {
        self.shared().stopping = true;
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Applies what nobody asked for, until [`Self::stop`]; the body of the thread.
    pub(super) fn run(&self, inner: &Inner) {
        while let Some(job) = self.next() {
            match job {
                Job::Step(step) => self.perform(inner, step),
                Job::Flush => inner.flush_index(),
                Job::Purge => {
                    let begun = Instant::now();
                    inner.purge_view();
                    let rest = begun.elapsed() * PURGE_REST;
                    self.shared().rests_until = Instant::now().checked_add(rest);
                }
                Job::ShowForks => inner.show_forks(),
            }
        }
    }

    /// Does what was taken, and lets the next take the role.
    fn perform(&self, inner: &Inner, step: Step) {
        let is_rescan = !matches!(step, Step::Items(_) | Step::Read(..));
        let worked = panic::catch_unwind(AssertUnwindSafe(|| perform(inner, step)));
        let is_flush_due = inner.index.is_due();
        let is_purge_due = inner.is_purge_due();
        let replay = worked.is_ok().then(|| inner.view.begin_replay()).flatten();
        let mut shared = self.shared();
        shared.is_led = false;
        shared.is_flush_due |= is_flush_due;
        shared.is_purge_due |= is_purge_due && is_rescan;
        match worked {
            Ok(applied) => {
                shared.applied = applied.unwrap_or(shared.applied);
                shared.gathers_since = (shared.pending() > 0).then(Instant::now);
            }
            Err(_) => {
                error!("the view cannot be kept up to date; restart the node");
                shared.dead = true;
            }
        }
        if is_rescan {
            shared.is_rescanning = false;
            shared.is_recutting = false;
        }
        shared.replay = shared.replay.or(replay);
        let is_more = shared.dead
            || shared.is_flush_due
            || shared.is_purge_due
            || shared.pending() > 0
            || !shared.rescans.is_empty()
            || !shared.recuts.is_empty()
            || !shared.redacts.is_empty()
            || shared.replay.is_some();
        drop(shared);
        self.changed.notify_all();
        if is_more {
            self.work.notify_one();
        }
    }

    /// Waits for something to do that has gathered long enough; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut shared = self.shared();
        while shared.is_working() {
            if std::mem::take(&mut shared.is_flush_due) {
                return Some(Job::Flush);
            }
            let resting = shared.resting();
            if shared.is_purge_due && resting.is_none() {
                shared.is_purge_due = false;
                return Some(Job::Purge);
            }
            let now = Instant::now();
            if shared.forks_at.take_if(|at| *at <= now).is_some() {
                return Some(Job::ShowForks);
            }
            let left = shared.gathering();
            if shared.is_led {
                // Whoever applies says so when it is done.
            } else if let Some(left) = left {
                let waited = self.work.wait_timeout(shared, left);
                (shared, _) = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            } else if let Some(step) = shared.take_step() {
                return Some(Job::Step(step));
            }
            let turn = shared.forks_at.map(|at| at - now);
            shared = match resting.into_iter().chain(turn).min() {
                Some(left) => {
                    let waited = self.work.wait_timeout(shared, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .work
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        None
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn is_working(&self) -> bool {
        !self.stopping && !self.dead
    }

    /// Returns whether the view shows what counts, and nothing that was redacted.
    fn is_settled(&self) -> bool {
        self.recuts.is_empty() && self.redacts.is_empty() && !self.is_recutting
    }

    /// Returns how many arrivals the view has not seen.
    fn pending(&self) -> u64 {
        self.durable.saturating_sub(self.applied)
    }

    /// Returns how much longer items may gather, if they may.
    fn gathering(&self) -> Option<Duration> {
        let pending = self.pending();
        if pending == 0 || pending >= GATHERED || self.applied < self.wanted {
            return None;
        }
        GATHER
            .checked_sub(self.gathers_since?.elapsed())
            .filter(|left| !left.is_zero())
    }

    /// Returns how much longer the files of the view are left alone, if they are to be rewritten.
    fn resting(&self) -> Option<Duration> {
        let until = self.rests_until.filter(|_| self.is_purge_due)?;
        let left = until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// Takes what is next, and with it the role of applying; `None` if there is nothing to do.
    fn take_step(&mut self) -> Option<Step> {
        let next = self.applied + 1;
        while self
            .recent
            .front()
            .is_some_and(|(arrival, _)| *arrival < next)
        {
            self.recent.pop_front();
        }
        let step = match self.recent.front() {
            Some((arrival, _)) if *arrival == next => {
                let mut items = Vec::new();
                let mut expected = next;
                while items.len() < BATCH
                    && let Some((arrival, _)) = self.recent.front()
                    && *arrival == expected
                {
                    items.extend(self.recent.pop_front());
                    expected += 1;
                }
                Step::Items(items)
            }
            Some((arrival, _)) => Step::Read(self.applied, arrival - 1),
            None if self.applied < self.durable => Step::Read(self.applied, self.durable),
            None if !self.recuts.is_empty() => {
                self.is_rescanning = true;
                self.is_recutting = true;
                Step::Recut(std::mem::take(&mut self.recuts))
            }
            None if !self.redacts.is_empty() => {
                self.is_rescanning = true;
                self.is_recutting = true;
                Step::Redact(std::mem::take(&mut self.redacts))
            }
            None if !self.rescans.is_empty() => {
                self.is_rescanning = true;
                Step::Rescan(std::mem::take(&mut self.rescans))
            }
            None if let Some(since) = self.replay.take() => {
                self.is_rescanning = true;
                Step::Replay(since)
            }
            None => return None,
        };
        self.is_led = true;
        Some(step)
    }
}

impl Inner {
    /// Returns the view once it has caught up with what is durable now.
    pub(super) fn caught_up(&self) -> &View {
        self.applier.catch_up(self);
        &self.view
    }

    /// Returns a reader of the view once it has caught up with what is durable now.
    pub(super) fn caught_up_reader(&self) -> &Reader {
        self.applier.catch_up(self);
        self.reader()
    }

    /// Decrypts a fragment's change; says why that cannot be done.
    pub(super) fn open(&self, fragment: &Fragment) -> Result<Opened, Unopened> {
        let header = &fragment.header;
        if self.is_redacted(&fragment.id, header) {
            return Err(Unopened::Redacted);
        }
        // The record of before its redaction stopped to count: its body comes with another.
        if fragment.is_bare() {
            return Err(Unopened::NoBody);
        }
        let rights = self.rights();
        let keys: Vec<_> = rights.keys_of(&header.space, header.epoch).collect();
        if keys.is_empty() {
            return Err(Unopened::NoKey);
        }
        let body = match &fragment.body {
            Some(body) => body.clone(),
            None => self.read_body(&header.body_hash).ok_or(Unopened::NoBody)?,
        };
        // Of two keys that were made at the same time, either may have sealed it.
        let aad = header.aad();
        let plain = keys
            .iter()
            .find_map(|key| open_body(key, &header.nonce, &aad, &body).ok());
        let plain = plain.ok_or_else(|| {
            let named = rights.authority.keys_named(&header.space, header.epoch);
            match keys.len() < named {
                true => Unopened::NoKey,
                false => Unopened::Wrong("its body does not decrypt"),
            }
        })?;
        let plain = Bytes::from(plain);
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
    /// Its body was taken for good.
    Redacted,
    NoKey,
    NoBody,
    Wrong(&'static str),
}

/// Lists the space keys whose fragments have all been handed to the view.
const SETTLED_KEYS: &str = "view.keys";

impl Inner {
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
