//! Who wakes what, and when: a pure decision over what a node knows and two clocks it is handed.
//!
//! Every holder of a snapshot decides for itself, and the rules make one of them come first. The
//! holders stand in the order of their rendezvous with the snapshot; who stands further back waits
//! a while longer, so that the first has said so before anybody else moves. It says so with a
//! lease, a fragment in the memory of the space, which the others heed for as long as its node is
//! there, or was lately. A node that sees no other holder takes its time, since it is more often
//! the one that is cut off than the one that is left.
//!
//! The wall clock decides one thing, whether a time has come; everything else is measured on a
//! clock that only ticks. A node whose wall clock is fast wakes a sandbox early, a node whose clock
//! is slow leaves it to the others; neither makes two wake it.
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rhizome_identity::{Hash, NodeId};
use rhizome_memory::FragmentId;
use rhizome_sandbox::{SandboxId, chunks::PackId};

use super::condition::{Cause, Condition};
use crate::remote::placement::rendezvous;

/// How much longer each holder waits than the one before it: what a fragment takes to arrive, well
/// measured.
pub(crate) const STEP: Duration = Duration::from_secs(5);
/// How long a holder that is not connected is still waited for.
pub(crate) const MISSED: Duration = Duration::from_secs(30);
/// How long a node that sees no other holder waits before it acts alone.
pub(crate) const ALONE: Duration = Duration::from_secs(45);
/// How long a node that has just started, or just met the first other one, hears what is new.
pub(crate) const HEARING: Duration = Duration::from_secs(10);
/// How long a lease stands while its node is there.
pub(crate) const LEASE: Duration = Duration::from_secs(600);
/// How long it stands when its node is gone.
pub(crate) const LEASE_OF_GONE: Duration = Duration::from_secs(60);
/// Wait after the first wake-up that failed here; doubled each time.
const RETRY: Duration = Duration::from_secs(30);
/// Longest such wait.
const MAX_RETRY: Duration = Duration::from_secs(1_800);
/// How often something that is due and waits is looked at again.
const LOOK: Duration = Duration::from_secs(1);

/// What the clocks say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Unix milliseconds; may be wrong, and jump.
    pub(crate) wall_ms: u64,
    /// Since some moment; only ticks.
    pub(crate) ticks: Duration,
}

/// A sandbox that sleeps until something happens, as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sleeper {
    pub(crate) sandbox: SandboxId,
    /// The fragment that says so.
    pub(crate) record: FragmentId,
    /// What it sleeps in.
    pub(crate) manifest: PackId,
    /// Who holds that.
    pub(crate) holders: BTreeSet<NodeId>,
    pub(crate) conditions: Vec<Condition>,
    /// Leases on this very record that were not given back: the fragment, and whose.
    pub(crate) leases: Vec<(FragmentId, NodeId)>,
    /// Whether this node holds it, may wake it and has room to run it.
    pub(crate) able: bool,
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) sandbox: SandboxId,
    /// The record that the decision rests on; a newer one makes it void.
    pub(crate) record: FragmentId,
    pub(crate) cause: Cause,
}

#[derive(Debug)]
struct Known {
    sleeper: Sleeper,
    /// What it is to wake for, and when that was noticed here.
    due: Option<(Cause, Duration)>,
    /// Leases by fragment, and when they were first seen here.
    leases: BTreeMap<FragmentId, Duration>,
    /// When the last one was given back: whoever waited for it goes on in order from there.
    freed: Duration,
    is_under_way: bool,
    failures: u32,
    not_before: Duration,
}

/// The alarms of one node.
#[derive(Debug)]
pub(crate) struct Alarms {
    me: NodeId,
    started: Duration,
    known: BTreeMap<SandboxId, Known>,
    connected: BTreeSet<NodeId>,
    /// Holders that are not connected, and since when that is noticed.
    missing: BTreeMap<NodeId, Duration>,
    /// Since when any other node is connected.
    in_company_since: Option<Duration>,
}

impl Alarms {
    /// Begins on node `me`, knowing nothing.
    pub(crate) fn new(me: NodeId, now: Now) -> Self {
        Self {
            me,
            started: now.ticks,
            known: BTreeMap::new(),
            connected: BTreeSet::new(),
            missing: BTreeMap::new(),
            in_company_since: None,
        }
    }

    /// Takes note of who is connected.
    pub(crate) fn peers(&mut self, now: Now, connected: BTreeSet<NodeId>) {
        self.in_company_since = match (connected.is_empty(), self.in_company_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now.ticks)),
        };
        self.connected = connected;
        self.note_missing(now);
    }

    /// Takes note of what sleeps, all of it; returns those that were not known so before.
    pub(crate) fn sleepers(&mut self, now: Now, sleepers: Vec<Sleeper>) -> Vec<SandboxId> {
        let mut before = std::mem::take(&mut self.known);
        let mut new = Vec::new();
        for sleeper in sleepers {
            let id = sleeper.sandbox;
            let same = before
                .remove(&id)
                .filter(|known| known.sleeper.record == sleeper.record);
            let mut known = same.unwrap_or_else(|| {
                new.push(id);
                Known {
                    sleeper: sleeper.clone(),
                    due: None,
                    leases: BTreeMap::new(),
                    freed: Duration::ZERO,
                    is_under_way: false,
                    failures: 0,
                    not_before: Duration::ZERO,
                }
            });
            let seen = std::mem::take(&mut known.leases);
            known.leases = sleeper
                .leases
                .iter()
                .map(|(lease, _)| (*lease, *seen.get(lease).unwrap_or(&now.ticks)))
                .collect();
            if seen.keys().any(|lease| !known.leases.contains_key(lease)) {
                known.freed = now.ticks;
            }
            known.sleeper = sleeper;
            self.known.insert(id, known);
        }
        self.note_missing(now);
        new
    }

    /// Takes note that what a sandbox waits for has happened; the first of several counts.
    pub(crate) fn noticed(
        &mut self,
        now: Now,
        sandbox: &SandboxId,
        record: &FragmentId,
        cause: Cause,
    ) {
        if let Some(known) = self.known.get_mut(sandbox)
            && known.sleeper.record == *record
            && known.due.is_none()
        {
            known.due = Some((cause, now.ticks));
        }
    }

    /// Takes note that a wake-up that was ordered came to nothing.
    pub(crate) fn failed(&mut self, now: Now, sandbox: &SandboxId, record: &FragmentId) {
        if let Some(known) = self.known.get_mut(sandbox)
            && known.sleeper.record == *record
        {
            known.is_under_way = false;
            let wait = RETRY.saturating_mul(1 << known.failures.min(10));
            known.not_before = now.ticks + wait.min(MAX_RETRY);
            known.failures += 1;
        }
    }

    /// Returns the sandboxes that wait for a memory, with what and since which record.
    pub(crate) fn wait_for_memories(
        &self,
    ) -> impl Iterator<Item = (&SandboxId, &FragmentId, &str)> {
        self.known
            .values()
            .filter(|known| known.due.is_none())
            .flat_map(|known| {
                let sleeper = &known.sleeper;
                let queries = sleeper.conditions.iter().filter_map(|one| match one {
                    Condition::Memory { query } => Some(query.as_str()),
                    _ => None,
                });
                queries.map(|query| (&sleeper.sandbox, &sleeper.record, query))
            })
    }

    /// Says whether anything sleeps until something happens.
    pub(crate) fn is_waited_for_anything(&self) -> bool {
        !self.known.is_empty()
    }

    /// Decides what to wake now.
    pub(crate) fn tick(&mut self, now: Now) -> Vec<Order> {
        let mut orders = Vec::new();
        let ids: Vec<_> = self.known.keys().copied().collect();
        for id in ids {
            self.notice_time(now, &id);
            let Some(known) = self.known.get(&id) else {
                continue;
            };
            let Some((cause, _)) = known.due.clone() else {
                continue;
            };
            let starts = self.starts(known);
            if known.is_under_way || starts.is_none_or(|starts| starts > now.ticks) {
                continue;
            }
            let record = known.sleeper.record;
            if let Some(known) = self.known.get_mut(&id) {
                known.is_under_way = true;
            }
            orders.push(Order {
                sandbox: id,
                record,
                cause,
            });
        }
        orders
    }

    /// Returns after how long to look again, if nothing else happens.
    pub(crate) fn look_again(&self, now: Now) -> Option<Duration> {
        let waits = self.known.values().filter_map(|known| {
            if known.due.is_some() {
                return (known.sleeper.able && !known.is_under_way).then_some(LOOK);
            }
            let at_ms = first_time(&known.sleeper.conditions)?;
            let wait = Duration::from_millis(at_ms.saturating_sub(now.wall_ms));
            // Not asleep for days on a clock that may be set meanwhile.
            Some(wait.clamp(Duration::from_millis(1), Duration::from_secs(60)))
        });
        waits.min()
    }

    fn notice_time(&mut self, now: Now, sandbox: &SandboxId) {
        let Some(known) = self.known.get_mut(sandbox) else {
            return;
        };
        let come = first_time(&known.sleeper.conditions).filter(|at_ms| *at_ms <= now.wall_ms);
        if let Some(at_ms) = come
            && known.due.is_none()
        {
            known.due = Some((Cause::Time { at_ms }, now.ticks));
        }
    }

    /// Returns when this node is to wake it, on the clock that only ticks; `None` if never.
    fn starts(&self, known: &Known) -> Option<Duration> {
        let sleeper = &known.sleeper;
        let (_, noticed) = known.due.as_ref()?;
        if !sleeper.able || !sleeper.holders.contains(&self.me) {
            return None;
        }
        let mut open = (*noticed).max(known.not_before).max(known.freed);
        for (lease, node) in sleeper.leases.iter().filter(|(_, node)| *node != self.me) {
            let seen = known.leases.get(lease).copied().unwrap_or_default();
            let stands = match self.missing.get(node) {
                Some(since) => LEASE.min((*since).max(seen) + LEASE_OF_GONE - seen),
                None => LEASE,
            };
            open = open.max(seen + stands);
        }
        // Those before us that are there, or were lately.
        let before = order(&sleeper.manifest, &sleeper.holders)
            .into_iter()
            .take_while(|node| *node != self.me)
            .filter(|node| self.is_waited_for(node, open))
            .count();
        let mut starts = open + STEP * u32::try_from(before).unwrap_or(u32::MAX);
        let others: Vec<_> = sleeper.holders.iter().filter(|n| **n != self.me).collect();
        if !others.is_empty() {
            starts = starts.max(self.started + HEARING);
            starts = starts.max(match self.in_company_since {
                Some(since) => since + HEARING,
                None => Duration::ZERO,
            });
            // Since when none of them is there: each is missed since some moment.
            let alone_since = others
                .iter()
                .map(|node| self.missing.get(node).copied())
                .try_fold(Duration::ZERO, |last, since| Some(last.max(since?)));
            if let Some(since) = alone_since
                && self.in_company_since.is_none()
            {
                starts = starts.max(since.max(*noticed) + ALONE);
            }
        }
        Some(starts)
    }

    /// Whether a holder before us may still act, given how long it is missing.
    fn is_waited_for(&self, node: &NodeId, open: Duration) -> bool {
        match self.missing.get(node) {
            None => true,
            // One that was long gone when anybody could act is not waited for.
            Some(since) => *since + MISSED > open,
        }
    }

    fn note_missing(&mut self, now: Now) {
        let holders: BTreeSet<_> = self
            .known
            .values()
            .flat_map(|known| {
                let leased = known.sleeper.leases.iter().map(|(_, node)| node);
                known.sleeper.holders.iter().chain(leased)
            })
            .filter(|node| **node != self.me && !self.connected.contains(node))
            .copied()
            .collect();
        self.missing.retain(|node, _| holders.contains(node));
        for node in holders {
            self.missing.entry(node).or_insert(now.ticks);
        }
    }
}

/// Returns the holders of a snapshot in the order in which they act, the same everywhere.
pub(crate) fn order(manifest: &PackId, holders: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let seed = Hash::keyed("rhizome snapshot rendezvous 1", manifest.as_bytes());
    let mut nodes: Vec<_> = holders.iter().copied().collect();
    nodes.sort_by_cached_key(|node| Reverse(rendezvous(&seed, node)));
    nodes
}

fn first_time(conditions: &[Condition]) -> Option<u64> {
    let times = conditions.iter().filter_map(|one| match one {
        Condition::Time { at_ms } => Some(*at_ms),
        _ => None,
    });
    times.min()
}

#[cfg(test)]
mod tests;
