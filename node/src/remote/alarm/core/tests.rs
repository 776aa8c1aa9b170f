//! The alarms of several nodes in virtual time: fragments travel, links break, clocks are wrong.
use std::collections::VecDeque;

use super::*;

/// A look at every node, so often.
const TICK: Duration = Duration::from_millis(400);
/// How long a fragment travels.
const LATENCY: Duration = Duration::from_millis(800);
/// How long it takes to see that a node is gone.
const DETECT: Duration = Duration::from_secs(20);
/// Wall clock of the world at its beginning.
const EPOCH_MS: u64 = 1_800_000_000_000;
/// When the sandbox is to wake, after that.
const DUE: Duration = Duration::from_secs(100);

/// What nodes publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// Somebody went to sleep: version `0` of the record.
    Asleep,
    Cancelled,
    Lease(u8),
    Returned(u8),
    Awake(u8),
}

struct Member {
    alarms: Alarms,
    knows: BTreeSet<Said>,
    arriving: VecDeque<(Duration, Said)>,
    is_up: bool,
    able: bool,
    /// Fails this often before it can wake anything.
    fails: u32,
    clock_ahead_ms: i64,
    waking: Option<Duration>,
}

struct World {
    now: Duration,
    members: Vec<Member>,
    /// Which island each is on; those of one island hear each other.
    islands: Vec<u8>,
    /// Since when two are apart, by the smaller first.
    apart_since: BTreeMap<(usize, usize), Duration>,
    conditions: Vec<Condition>,
    wake_takes: Duration,
    woken: Vec<(u8, Duration)>,
    began: Vec<(u8, Duration)>,
}

fn id(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

fn manifest() -> PackId {
    PackId::from_bytes([7; 32])
}

fn sandbox() -> SandboxId {
    SandboxId::from_bytes([3; 16])
}

fn record() -> FragmentId {
    FragmentId::from_bytes([8; 32])
}

fn lease_of(n: u8) -> FragmentId {
    FragmentId::from_bytes([100 + n; 32])
}

impl World {
    /// All of `count` nodes hold the snapshot and know it.
    fn of(count: u8) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            members: Vec::new(),
            islands: vec![0; count.into()],
            apart_since: BTreeMap::new(),
            conditions: vec![Condition::Time {
                at_ms: EPOCH_MS + u64::try_from(DUE.as_millis()).unwrap(),
            }],
            wake_takes: Duration::from_secs(20),
            woken: Vec::new(),
            began: Vec::new(),
        };
        for n in 0..count {
            let now = world.clock(0);
            world.members.push(Member {
                alarms: Alarms::new(id(n), now),
                knows: BTreeSet::from([Said::Asleep]),
                arriving: VecDeque::new(),
                is_up: true,
                able: true,
                fails: 0,
                clock_ahead_ms: 0,
                waking: None,
            });
        }
        world
    }

    fn clock(&self, ahead_ms: i64) -> Now {
        let wall_ms = EPOCH_MS + u64::try_from(self.now.as_millis()).unwrap();
        Now {
            wall_ms: wall_ms.checked_add_signed(ahead_ms).unwrap(),
            ticks: self.now,
        }
    }

    fn talk(&self, a: usize, b: usize) -> bool {
        let (one, other) = (&self.members[a], &self.members[b]);
        one.is_up && other.is_up && self.islands[a] == self.islands[b]
    }

    fn publish(&mut self, from: usize, said: Said) {
        self.members[from].knows.insert(said);
        for to in 0..self.members.len() {
            if to != from && self.talk(from, to) {
                let at = self.now + LATENCY;
                self.members[to].arriving.push_back((at, said));
            }
        }
    }

    /// Says who is connected, as `me` sees it: late to miss anybody.
    fn connected(&self, me: usize) -> BTreeSet<NodeId> {
        (0..self.members.len())
            .filter(|&other| other != me)
            .filter(|&other| {
                let pair = (me.min(other), me.max(other));
                let apart = self.apart_since.get(&pair);
                apart.is_none_or(|since| *since + DETECT > self.now)
            })
            .map(|other| id(u8::try_from(other).unwrap()))
            .collect()
    }

    fn run_for(&mut self, length: Duration) {
        let until = self.now + length;
        while self.now < until {
            self.now += TICK;
            self.links();
            for me in 0..self.members.len() {
                if self.members[me].is_up {
                    self.step(me);
                }
            }
        }
    }

    fn links(&mut self) {
        for a in 0..self.members.len() {
            for b in a + 1..self.members.len() {
                if !self.talk(a, b) {
                    self.apart_since.entry((a, b)).or_insert(self.now);
                } else if self.apart_since.remove(&(a, b)).is_some() {
                    // They meet again: each sends what the other lacks.
                    let at = self.now + LATENCY;
                    let (one, other) =
                        (self.members[a].knows.clone(), self.members[b].knows.clone());
                    let lacks = |has: &BTreeSet<Said>, from: &BTreeSet<Said>| -> Vec<_> {
                        from.difference(has).map(|said| (at, *said)).collect()
                    };
                    self.members[a].arriving.extend(lacks(&one, &other));
                    self.members[b].arriving.extend(lacks(&other, &one));
                }
            }
        }
    }

    fn step(&mut self, me: usize) {
        let connected = self.connected(me);
        let now = self.clock(self.members[me].clock_ahead_ms);
        let n = u8::try_from(me).unwrap();
        let holders = (0..u8::try_from(self.members.len()).unwrap())
            .map(id)
            .collect();
        let member = &mut self.members[me];
        while let Some((at, said)) = member.arriving.front().copied() {
            if at > now.ticks {
                break;
            }
            member.arriving.pop_front();
            member.knows.insert(said);
        }
        let asleep = !member
            .knows
            .iter()
            .any(|said| matches!(said, Said::Awake(_) | Said::Cancelled));
        let leases = member.knows.iter().filter_map(|said| match said {
            Said::Lease(of) if !member.knows.contains(&Said::Returned(*of)) => {
                Some((lease_of(*of), id(*of)))
            }
            _ => None,
        });
        let sleeper = Sleeper {
            sandbox: sandbox(),
            record: record(),
            manifest: manifest(),
            holders,
            conditions: self.conditions.clone(),
            leases: leases.collect(),
            able: member.able,
        };
        member.alarms.peers(now, connected);
        member
            .alarms
            .sleepers(now, if asleep { vec![sleeper] } else { Vec::new() });
        let orders = member.alarms.tick(now);
        if member.waking.is_some_and(|done| done <= now.ticks) {
            member.waking = None;
            if member.fails > 0 {
                member.fails -= 1;
                member.alarms.failed(now, &sandbox(), &record());
                self.publish(me, Said::Returned(n));
            } else {
                self.woken.push((n, now.ticks));
                self.publish(me, Said::Awake(n));
            }
        }
        for order in orders {
            assert_eq!((order.sandbox, order.record), (sandbox(), record()));
            self.began.push((n, now.ticks));
            self.members[me].waking = Some(now.ticks + self.wake_takes);
            self.members[me].knows.remove(&Said::Returned(n));
            self.publish(me, Said::Lease(n));
        }
    }

    fn kill(&mut self, n: u8) {
        let member = &mut self.members[usize::from(n)];
        member.is_up = false;
        member.waking = None;
        member.arriving.clear();
    }

    fn restart(&mut self, n: u8) {
        let now = self.clock(self.members[usize::from(n)].clock_ahead_ms);
        let member = &mut self.members[usize::from(n)];
        member.is_up = true;
        member.alarms = Alarms::new(id(n), now);
    }

    /// The nodes in the order in which they act.
    fn order(&self) -> Vec<u8> {
        let holders = (0..u8::try_from(self.members.len()).unwrap())
            .map(id)
            .collect();
        let order = order(&manifest(), &holders);
        order.iter().map(|node| node.as_bytes()[0]).collect()
    }

    fn who_woke(&self) -> Vec<u8> {
        self.woken.iter().map(|(n, _)| *n).collect()
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn the_first_in_order_wakes_it_in_time_and_nobody_else_does() {
    for count in 1..=6 {
        let mut world = World::of(count);
        world.run_for(DUE - secs(1));
        assert!(world.began.is_empty(), "nobody is early");
        world.run_for(secs(600));
        let first = world.order()[0];
        assert_eq!(world.who_woke(), [first], "of {count}");
        assert_eq!(world.began.len(), 1, "nobody else even began");
        assert!(world.began[0].1 <= DUE + secs(1), "{:?}", world.began);
    }
}

#[test]
fn who_cannot_is_passed_over_by_those_behind() {
    let mut world = World::of(3);
    let order = world.order();
    world.members[usize::from(order[0])].able = false;
    world.run_for(DUE + STEP - secs(1));
    assert!(world.began.is_empty());
    world.run_for(secs(600));
    assert_eq!(world.who_woke(), [order[1]]);
    assert_eq!(world.began.len(), 1);
}

#[test]
fn a_wake_up_that_takes_long_is_waited_for_and_one_that_fails_is_not() {
    let mut world = World::of(3);
    world.wake_takes = secs(300);
    world.run_for(secs(900));
    assert_eq!(world.who_woke(), world.order()[..1]);
    assert_eq!(world.began.len(), 1);

    let mut world = World::of(3);
    let order = world.order();
    world.members[usize::from(order[0])].fails = 1;
    world.run_for(secs(900));
    assert_eq!(world.who_woke(), [order[1]], "{:?}", world.began);
    assert_eq!(world.began.len(), 2);

    // All fail once: it is tried again, a while later.
    let mut world = World::of(2);
    for member in &mut world.members {
        member.fails = 1;
    }
    world.run_for(secs(900));
    assert_eq!(world.woken.len(), 1, "{:?}", world.began);
    assert_eq!(world.began.len(), 3);
    let (last, before) = (world.began[2].1, world.began[0].1);
    assert!(last >= before + secs(20) + RETRY, "{:?}", world.began);
}

#[test]
fn who_dies_before_or_while_it_wakes_it_is_replaced_once() {
    let mut world = World::of(3);
    let order = world.order();
    world.run_for(DUE - secs(2));
    world.kill(order[0]);
    world.run_for(secs(600));
    assert_eq!(world.who_woke(), [order[1]]);
    assert_eq!(world.began.len(), 1, "not yet missed, but only waited for");

    let mut world = World::of(3);
    world.run_for(DUE + secs(5));
    assert_eq!(world.began.len(), 1);
    world.kill(order[0]);
    world.run_for(secs(30));
    assert_eq!(world.began.len(), 1, "its lease stands for a while");
    world.run_for(secs(600));
    assert_eq!(world.who_woke(), [order[1]]);
    let again = world.began[1].1;
    assert!(again < DUE + secs(5) + DETECT + LEASE_OF_GONE + STEP * 2);
}

#[test]
fn a_partition_wakes_one_on_each_side_and_all_see_both() {
    let mut world = World::of(5);
    let order = world.order();
    world.run_for(secs(20));
    // The first and the third here, the others there.
    for n in [order[0], order[2]] {
        world.islands[usize::from(n)] = 1;
    }
    world.run_for(DUE + secs(300));
    let mut woke = world.who_woke();
    woke.sort_unstable();
    let mut expected = [order[0], order[1]];
    expected.sort_unstable();
    assert_eq!(woke, expected);
    for island in &mut world.islands {
        *island = 0;
    }
    world.run_for(secs(60));
    for (n, member) in world.members.iter().enumerate() {
        let awake = [Said::Awake(order[0]), Said::Awake(order[1])];
        assert!(awake.iter().all(|said| member.knows.contains(said)), "{n}");
    }
    world.run_for(secs(3_600));
    assert_eq!(world.woken.len(), 2, "the heal wakes nobody");
}

#[test]
fn a_node_that_is_cut_off_alone_takes_its_time() {
    let mut world = World::of(3);
    let order = world.order();
    world.run_for(secs(20));
    world.islands[usize::from(order[0])] = 1;
    // Cut off just long enough to have missed everybody when its time comes, and back soon.
    world.run_for(DUE - secs(20) + secs(20));
    world.islands[usize::from(order[0])] = 0;
    world.run_for(secs(600));
    assert_eq!(world.who_woke(), [order[1]], "{:?}", world.began);
    assert_eq!(world.began.len(), 1);
}

#[test]
fn clocks_that_differ_wake_it_once_by_the_first_that_gets_there() {
    for (ahead, behind) in [(600_000, -600_000), (7_000, -7_000), (2_000, -2_000)] {
        for fast in 0..3 {
            let mut world = World::of(3);
            world.conditions = vec![Condition::Time {
                at_ms: EPOCH_MS + 700_000,
            }];
            for (n, member) in world.members.iter_mut().enumerate() {
                member.clock_ahead_ms = if n == fast { ahead } else { behind };
            }
            world.run_for(secs(1_500));
            assert_eq!(world.woken.len(), 1, "{ahead} {fast}: {:?}", world.began);
            assert_eq!(world.began.len(), 1, "{ahead} {fast}: {:?}", world.began);
            if ahead >= 7_000 {
                assert_eq!(usize::from(world.woken[0].0), fast);
            }
        }
    }
}

#[test]
fn a_clock_that_jumps_back_does_not_wake_it_twice() {
    let mut world = World::of(2);
    world.run_for(DUE + secs(5));
    assert_eq!(world.began.len(), 1);
    for member in &mut world.members {
        member.clock_ahead_ms = -90_000;
    }
    world.run_for(secs(600));
    assert_eq!(world.began.len(), 1);
    assert_eq!(world.woken.len(), 1);
}

#[test]
fn who_comes_back_hears_first_what_happened_meanwhile() {
    for who in 0..3 {
        let mut world = World::of(3);
        world.run_for(secs(50));
        world.kill(who);
        world.run_for(secs(300));
        assert_eq!(world.woken.len(), 1);
        world.restart(who);
        world.run_for(secs(300));
        assert_eq!(world.woken.len(), 1, "{who} knew no better and waited");
        assert_eq!(world.began.len(), 1);
    }
    // All are killed; whoever starts alone waits for the others, and then does it.
    let mut world = World::of(3);
    for who in 0..3 {
        world.kill(who);
    }
    world.run_for(secs(300));
    world.restart(1);
    world.run_for(secs(20));
    assert!(world.began.is_empty());
    world.run_for(ALONE + secs(60));
    assert_eq!(world.who_woke(), [1]);
}

#[test]
fn what_is_cancelled_sleeps_on() {
    let mut world = World::of(3);
    world.run_for(DUE - secs(10));
    world.publish(0, Said::Cancelled);
    world.run_for(secs(900));
    assert!(world.began.is_empty());
}

#[test]
fn a_memory_that_all_notice_wakes_it_once_and_the_first_of_two_causes_counts() {
    let cause = |n: u8| Cause::Memory {
        query: "build".into(),
        fragment: FragmentId::from_bytes([n; 32]),
        doc: rhizome_memory::DocId::from_bytes([n; 32]),
        title: "the build is green".into(),
    };
    let mut world = World::of(4);
    world.conditions = vec![Condition::Memory {
        query: "build".into(),
    }];
    world.run_for(secs(30));
    assert_eq!(world.members[0].alarms.wait_for_memories().count(), 1);
    for n in 0..4 {
        let now = world.clock(0);
        let alarms = &mut world.members[n].alarms;
        alarms.noticed(now, &sandbox(), &record(), cause(1));
        alarms.noticed(now, &sandbox(), &record(), cause(2));
        // What was noticed of an older record wakes nothing.
        alarms.noticed(now, &sandbox(), &lease_of(1), cause(3));
        assert_eq!(alarms.wait_for_memories().count(), 0);
    }
    world.run_for(secs(600));
    assert_eq!(world.who_woke(), world.order()[..1]);
    assert_eq!(world.began.len(), 1);
}

#[test]
fn an_order_names_its_cause_and_its_record() {
    let mut alarms = Alarms::new(id(1), World::of(1).clock(0));
    let now = World::of(1).clock(0);
    let sleeper = Sleeper {
        sandbox: sandbox(),
        record: record(),
        manifest: manifest(),
        holders: BTreeSet::from([id(1)]),
        conditions: vec![Condition::Time { at_ms: 5 }, Condition::Time { at_ms: 4 }],
        leases: Vec::new(),
        able: true,
    };
    assert_eq!(alarms.sleepers(now, vec![sleeper.clone()]), [sandbox()]);
    assert_eq!(alarms.sleepers(now, vec![sleeper]), []);
    let orders = alarms.tick(now);
    let cause = Cause::Time { at_ms: 4 };
    assert_eq!(
        orders,
        [Order {
            sandbox: sandbox(),
            record: record(),
            cause
        }]
    );
    assert_eq!(alarms.tick(now), [], "once");
    assert_eq!(alarms.look_again(now), None);
}
