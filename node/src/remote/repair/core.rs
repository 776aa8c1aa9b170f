//! Which snapshots need another copy, or one less, and who sees to it: a pure decision.
//!
//! A snapshot that was to have so many copies beside the node it was taken on keeps that number. A
//! copy counts while its node is there, and for a while after it went: machines are restarted. The
//! holders that are connected stand in the order of their rendezvous with the snapshot; the first
//! makes the missing copy, and those behind it wait for it to say so. When a node comes back and
//! there are too many, the last in that order let go, each by itself, and only of what as many
//! others before it hold; so no two views of who is there can make the last copy go.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rhizome_identity::NodeId;
use rhizome_memory::FragmentId;
use rhizome_sandbox::{SandboxId, chunks::PackId};

use crate::remote::alarm::core::order;

/// How much longer each holder waits than the one before it.
pub(crate) const STEP: Duration = Duration::from_secs(30);
/// How long a copy that is on its way counts.
pub(crate) const COMING: Duration = Duration::from_secs(900);
/// How long there may be too many, at most: who comes back may go again.
pub(crate) const SETTLE: Duration = Duration::from_secs(120);
/// Wait after the first copy that could not be made; doubled each time.
const RETRY: Duration = Duration::from_secs(60);
/// Longest such wait.
const MAX_RETRY: Duration = Duration::from_secs(3_600);

/// A snapshot and who holds it, as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) sandbox: SandboxId,
    pub(crate) manifest: PackId,
    /// How many nodes beside the runner are to hold it; nothing is done for 0.
    pub(crate) wanted: usize,
    /// Where it was taken, or went on: it holds what it needs for itself.
    pub(crate) runner: NodeId,
    /// Who said so.
    pub(crate) holders: BTreeSet<NodeId>,
    /// Those of them that are connected and have it no more.
    pub(crate) bare: BTreeSet<NodeId>,
    /// Copies on their way: the fragment that says so, and where to.
    pub(crate) coming: Vec<(FragmentId, NodeId)>,
    /// Whether this node may ask others to hold it.
    pub(crate) able: bool,
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Have so many more nodes hold it, none of `except`.
    Copy {
        sandbox: SandboxId,
        manifest: PackId,
        count: usize,
        except: BTreeSet<NodeId>,
    },
    /// Hold it no more, if all of `others` still do.
    LetGo {
        sandbox: SandboxId,
        manifest: PackId,
        others: Vec<NodeId>,
    },
}

#[derive(Debug)]
struct Known {
    kept: Kept,
    coming: BTreeMap<FragmentId, Duration>,
    short_since: Option<Duration>,
    many_since: Option<Duration>,
    is_under_way: bool,
    failures: u32,
    not_before: Duration,
}

/// The copies that one node looks after.
#[derive(Debug)]
pub(crate) struct Repairs {
    me: NodeId,
    grace: Duration,
    known: BTreeMap<SandboxId, Known>,
    connected: BTreeSet<NodeId>,
    /// Holders that are not connected, and since when that is noticed.
    missing: BTreeMap<NodeId, Duration>,
}

impl Repairs {
    /// Begins on node `me`; a copy is missed once its node is gone for `grace`.
    pub(crate) fn new(me: NodeId, grace: Duration) -> Self {
        Self {
            me,
            grace,
            known: BTreeMap::new(),
            connected: BTreeSet::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Takes note of who is connected and of what is kept, all of it.
    pub(crate) fn update(&mut self, now: Duration, connected: BTreeSet<NodeId>, kept: Vec<Kept>) {
        self.connected = connected;
        let mut before = std::mem::take(&mut self.known);
        for kept in kept {
            let same = before
                .remove(&kept.sandbox)
                .filter(|known| known.kept.manifest == kept.manifest);
            let mut known = same.unwrap_or_else(|| Known {
                kept: kept.clone(),
                coming: BTreeMap::new(),
                short_since: None,
                many_since: None,
                is_under_way: false,
                failures: 0,
                not_before: Duration::ZERO,
            });
            let seen = std::mem::take(&mut known.coming);
            known.coming = kept
                .coming
                .iter()
                .map(|(said, _)| (*said, *seen.get(said).unwrap_or(&now)))
                .collect();
            known.kept = kept;
            self.known.insert(known.kept.sandbox, known);
        }
        let holders: BTreeSet<_> = self
            .known
            .values()
            .flat_map(|known| {
                let coming = known.kept.coming.iter().map(|(_, node)| node);
                known.kept.holders.iter().chain(coming)
            })
            .filter(|node| **node != self.me && !self.connected.contains(node))
            .copied()
            .collect();
        self.missing.retain(|node, _| holders.contains(node));
        for node in holders {
            self.missing.entry(node).or_insert(now);
        }
    }

    /// Takes note of how what was decided ended; one that failed is tried again, later each time.
    pub(crate) fn ended(
        &mut self,
        now: Duration,
        sandbox: &SandboxId,
        manifest: &PackId,
        ok: bool,
    ) {
        let Some(known) = self.known.get_mut(sandbox) else {
            return;
        };
        if known.kept.manifest != *manifest {
            return;
        }
        known.is_under_way = false;
        if ok {
            known.failures = 0;
        } else {
            let wait = RETRY.saturating_mul(1 << known.failures.min(10));
            known.not_before = now + wait.min(MAX_RETRY);
            known.failures += 1;
        }
    }

    /// Decides what to do now.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Repair> {
        let mut known = std::mem::take(&mut self.known);
        let repairs = known.values_mut();
        let repairs = repairs
            .filter_map(|known| self.decide(now, known))
            .collect();
        self.known = known;
        repairs
    }

    /// Returns how many copies of a sandbox's snapshot count now, beside its runner's.
    pub(crate) fn counted(&self, now: Duration, kept: &Kept) -> usize {
        self.others(kept)
            .filter(|node| self.counts(now, node))
            .count()
    }

    fn decide(&self, now: Duration, known: &mut Known) -> Option<Repair> {
        let kept = &known.kept;
        if kept.wanted == 0 || !kept.holders.contains(&self.me) || kept.bare.contains(&self.me) {
            (known.short_since, known.many_since) = (None, None);
            return None;
        }
        let coming = kept.coming.iter().filter(|(said, node)| {
            let seen = known.coming.get(said).copied().unwrap_or_default();
            let holds = kept.holders.contains(node) && !kept.bare.contains(node);
            !holds && seen + COMING > now && self.counts(now, node)
        });
        let have = self.counted(now, kept) + coming.count();
        let there: BTreeSet<_> = self.others(kept).filter(|n| self.is_there(n)).collect();
        let since = |is_so: bool, since: Option<Duration>| is_so.then(|| since.unwrap_or(now));
        known.short_since = since(have < kept.wanted, known.short_since);
        known.many_since = since(there.len() > kept.wanted, known.many_since);
        if known.is_under_way || known.not_before > now {
            return None;
        }
        if let Some(since) = known.short_since {
            let mut actors = kept.holders.clone();
            actors.retain(|node| self.is_there(node) && !kept.bare.contains(node));
            let rank = order(&kept.manifest, &actors)
                .iter()
                .position(|node| *node == self.me)?;
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            if !kept.able || now < since + STEP * rank {
                return None;
            }
            known.is_under_way = true;
            let mut except = kept.holders.clone();
            except.retain(|node| !kept.bare.contains(node));
            except.extend(kept.coming.iter().map(|(_, node)| *node));
            return Some(Repair::Copy {
                sandbox: kept.sandbox,
                manifest: kept.manifest,
                count: kept.wanted - have,
                except,
            });
        }
        let since = known.many_since?;
        if self.me == kept.runner || now < since + SETTLE.min(self.grace) {
            return None;
        }
        let mut first = order(&kept.manifest, &there);
        let rank = first.iter().position(|node| *node == self.me)?;
        if rank < kept.wanted {
            return None;
        }
        first.truncate(kept.wanted);
        known.is_under_way = true;
        Some(Repair::LetGo {
            sandbox: kept.sandbox,
            manifest: kept.manifest,
            others: first,
        })
    }

    /// Returns the holders that copies are counted on.
    fn others<'a>(&self, kept: &'a Kept) -> impl Iterator<Item = NodeId> + use<'a> {
        let counts = |node: &&NodeId| **node != kept.runner && !kept.bare.contains(node);
        kept.holders.iter().filter(counts).copied()
    }

    fn is_there(&self, node: &NodeId) -> bool {
        *node == self.me || self.connected.contains(node)
    }

    fn counts(&self, now: Duration, node: &NodeId) -> bool {
        self.is_there(node)
            || self
                .missing
                .get(node)
                .is_none_or(|since| *since + self.grace > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(600);
    const LATENCY: Duration = Duration::from_secs(2);
    const COPY_TAKES: Duration = Duration::from_secs(90);

    fn id(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn manifest() -> PackId {
        PackId::from_bytes([7; 32])
    }

    fn sandbox() -> SandboxId {
        SandboxId::from_bytes([3; 16])
    }

    /// Nodes that share what was said of one snapshot, as far as they hear each other.
    struct World {
        now: Duration,
        repairs: Vec<Repairs>,
        /// Which island each is on; 255 is down.
        islands: Vec<u8>,
        /// What each knows: who holds, who is said to get one.
        holders: Vec<BTreeSet<NodeId>>,
        coming: Vec<BTreeSet<u8>>,
        bare: BTreeSet<NodeId>,
        /// What is on its way: when, to whom, and what.
        mail: Vec<(Duration, usize, Said)>,
        copying: Vec<(Duration, usize, u8)>,
        copies: usize,
        let_go: Vec<u8>,
        wanted: usize,
    }

    #[derive(Debug, Clone, Copy)]
    enum Said {
        Coming(u8),
        Holds(u8),
        Gone(u8),
    }

    impl World {
        /// Node 0 runs it; it and the next `wanted` hold it.
        fn of(nodes: u8, wanted: u8) -> Self {
            let holders: BTreeSet<_> = (0..=wanted).map(id).collect();
            let all: usize = nodes.into();
            Self {
                now: Duration::ZERO,
                repairs: (0..nodes).map(|n| Repairs::new(id(n), GRACE)).collect(),
                islands: vec![0; all],
                holders: vec![holders; all],
                coming: vec![BTreeSet::new(); all],
                bare: BTreeSet::new(),
                mail: Vec::new(),
                copying: Vec::new(),
                copies: 0,
                let_go: Vec::new(),
                wanted: wanted.into(),
            }
        }

        fn talk(&self, a: usize, b: usize) -> bool {
            self.islands[a] == self.islands[b] && self.islands[a] != 255
        }

        fn say(&mut self, from: usize, said: Said) {
            for to in 0..self.repairs.len() {
                if self.talk(from, to) {
                    let late = if from == to { Duration::ZERO } else { LATENCY };
                    self.mail.push((self.now + late, to, said));
                }
            }
        }

        fn hear(&mut self, to: usize, said: Said) {
            match said {
                Said::Coming(n) => drop(self.coming[to].insert(n)),
                Said::Holds(n) => {
                    self.holders[to].insert(id(n));
                    self.coming[to].remove(&n);
                }
                Said::Gone(n) => {
                    self.holders[to].remove(&id(n));
                    self.coming[to].remove(&n);
                }
            }
        }

        fn run_for(&mut self, length: Duration) {
            let until = self.now + length;
            while self.now < until {
                self.now += Duration::from_secs(1);
                let (due, later) = self.mail.drain(..).partition(|(at, ..)| *at <= self.now);
                self.mail = later;
                let due: Vec<(Duration, usize, Said)> = due;
                for (_, to, said) in due {
                    self.hear(to, said);
                }
                let (done, rest): (Vec<_>, Vec<_>) =
                    self.copying.drain(..).partition(|(at, ..)| *at <= self.now);
                self.copying = rest;
                for (_, by, to) in done {
                    self.bare.remove(&id(to));
                    self.say(by, Said::Holds(to));
                    self.repairs[by].ended(self.now, &sandbox(), &manifest(), true);
                }
                for me in 0..self.repairs.len() {
                    if self.islands[me] != 255 {
                        self.step(me);
                    }
                }
            }
        }

        fn step(&mut self, me: usize) {
            let connected = (0..self.repairs.len())
                .filter(|&other| other != me && self.talk(me, other))
                .map(|other| id(u8::try_from(other).unwrap()))
                .collect();
            let coming = self.coming[me].iter();
            let kept = Kept {
                sandbox: sandbox(),
                manifest: manifest(),
                wanted: self.wanted,
                runner: id(0),
                holders: self.holders[me].clone(),
                bare: self.bare.clone(),
                coming: coming
                    .map(|n| (FragmentId::from_bytes([*n; 32]), id(*n)))
                    .collect(),
                able: true,
            };
            self.repairs[me].update(self.now, connected, vec![kept]);
            for repair in self.repairs[me].tick(self.now) {
                match repair {
                    Repair::Copy { count, except, .. } => {
                        let targets = (0..self.repairs.len())
                            .filter(|&to| self.talk(me, to))
                            .map(|to| u8::try_from(to).unwrap())
                            .filter(|to| !except.contains(&id(*to)))
                            .take(count);
                        let targets: Vec<_> = targets.collect();
                        if targets.is_empty() {
                            self.repairs[me].ended(self.now, &sandbox(), &manifest(), false);
                        }
                        for to in targets {
                            self.copies += 1;
                            self.say(me, Said::Coming(to));
                            self.copying.push((self.now + COPY_TAKES, me, to));
                        }
                    }
                    Repair::LetGo { others, .. } => {
                        assert_eq!(others.len(), self.wanted);
                        assert!(!others.contains(&id(u8::try_from(me).unwrap())));
                        self.let_go.push(u8::try_from(me).unwrap());
                        self.say(me, Said::Gone(u8::try_from(me).unwrap()));
                        self.repairs[me].ended(self.now, &sandbox(), &manifest(), true);
                    }
                }
            }
        }

        /// Returns the nodes beside the runner that hold it, as `me` knows.
        fn others(&self, me: usize) -> usize {
            self.holders[me].iter().filter(|n| **n != id(0)).count()
        }

        /// Tells every node what the others know, as a heal does.
        fn heal(&mut self) {
            let all: BTreeSet<_> = self.holders.iter().flatten().copied().collect();
            for island in &mut self.islands {
                *island = 0;
            }
            self.holders.fill(all);
        }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn while_all_are_there_nothing_is_done() {
        let mut world = World::of(6, 3);
        world.run_for(secs(7_200));
        assert_eq!((world.copies, world.let_go.len()), (0, 0));
    }

    #[test]
    fn a_holder_that_stays_away_is_replaced_once_and_trimmed_when_it_returns() {
        for wanted in 1..=3 {
            let mut world = World::of(6, wanted);
            world.run_for(secs(60));
            world.islands[1] = 255;
            world.run_for(GRACE - secs(5));
            assert_eq!(world.copies, 0, "a restart is no loss");
            world.run_for(secs(600));
            assert_eq!(world.copies, 1, "exactly one acted");
            assert_eq!(world.others(0), usize::from(wanted) + 1);
            // It comes back: one too many, but not for long.
            world.islands[1] = 0;
            world.holders[1] = world.holders[0].clone();
            world.run_for(secs(600));
            assert_eq!(world.let_go.len(), 1, "{:?}", world.let_go);
            for me in 0..6 {
                assert_eq!(world.others(me), usize::from(wanted));
            }
            world.run_for(secs(7_200));
            assert_eq!((world.copies, world.let_go.len()), (1, 1));
        }
    }

    #[test]
    fn the_one_that_should_act_is_waited_for_and_replaced() {
        let mut world = World::of(6, 2);
        world.run_for(secs(60));
        // The runner is gone too, for good.
        world.islands[0] = 255;
        world.islands[1] = 255;
        world.run_for(GRACE * 3);
        assert_eq!(world.copies, 1);
        assert_eq!(world.others(2), 3, "one of the three is gone");
        // One that cannot find room leaves it to nobody, and tries again.
        let mut world = World::of(3, 2);
        world.run_for(secs(60));
        world.islands[1] = 255;
        world.run_for(GRACE * 3);
        assert_eq!(world.copies, 0, "there is no other node");
    }

    #[test]
    fn a_partition_copies_on_both_sides_and_the_heal_trims() {
        let mut world = World::of(8, 2);
        world.run_for(secs(60));
        // The runner and one holder here, the other holder there.
        for n in [0, 1, 3, 4] {
            world.islands[n] = 1;
        }
        world.run_for(GRACE + secs(600));
        assert_eq!(world.copies, 2, "one on each side");
        world.heal();
        world.run_for(secs(900));
        for me in 0..8 {
            assert_eq!(world.others(me), 2, "{:?}", world.let_go);
        }
        assert_eq!(world.let_go.len(), 2);
    }

    #[test]
    fn a_holder_that_lost_its_disk_counts_for_nothing() {
        let mut world = World::of(5, 2);
        world.run_for(secs(60));
        world.bare.insert(id(1));
        world.run_for(secs(300));
        assert_eq!(world.copies, 1);
    }

    #[test]
    fn what_nobody_wanted_more_of_is_left_alone() {
        let mut world = World::of(4, 1);
        world.wanted = 0;
        world.islands[1] = 255;
        world.run_for(GRACE * 3);
        assert_eq!((world.copies, world.let_go.len()), (0, 0));
    }
}
