//! A run: nodes, links, what happens next, and what must hold.

use std::{collections::BTreeMap, time::Duration};

use rhizome_identity::{AgentId, Hash, NodeId};
use rhizome_memory::{FragmentId, Lane};
use rhizome_mesh::proto::replication::Config;

use super::{
    dice::Dice,
    events::{Agenda, Event, NodeIndex},
    founding::Founding,
    links::{Links, Weather},
    node::{SimNode, hash_of},
    shared::Memo,
};

mod builder;
mod course;

pub use builder::Builder;

/// How long a dead connection goes unnoticed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Held fragments of one node, as [`rhizome_memory::Admission`] promises.
const MAX_HELD: usize = 4096;

/// A simulated mesh.
#[derive(Debug)]
pub struct Netsim {
    seed: u64,
    dice: Dice,
    now: Duration,
    steps: u64,
    trace: blake3::Hasher,
    agenda: Agenda,
    links: Links,
    founding: Founding,
    nodes: Vec<SimNode>,
    by_id: BTreeMap<NodeId, NodeIndex>,
    memo: Memo,
    push: bool,
    config: Config,
    /// Own fragments that became durable, which is when a publisher is told.
    acked: BTreeMap<FragmentId, NodeIndex>,
    /// Which fragment every position of an honest chain had when it was acknowledged or sent.
    positions: BTreeMap<(AgentId, u64), FragmentId>,
    sent_away: Vec<(NodeIndex, NodeIndex, &'static str)>,
    in_sync: u64,
    replicas: u64,
    bytes: u64,
}

impl Netsim {
    /// Begins a run; the same seed and the same calls give the same run.
    #[must_use]
    pub fn seeded(seed: u64) -> Builder {
        let weather = Weather {
            loss_per_mille: 0,
            repeat_per_mille: 10,
            jitter: Duration::from_millis(15),
        };
        Builder {
            seed,
            peers: 3,
            neighbours: 4,
            weather,
            push: true,
            config: Config::default(),
            hostile: Vec::new(),
        }
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the time of the run.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns how many events have happened.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the bytes of all frames sent.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.bytes
    }

    /// Returns a digest of everything that has happened, in order.
    #[must_use]
    pub fn trace_hash(&self) -> Hash {
        Hash::from_bytes(*self.trace.finalize().as_bytes())
    }

    /// Says how to see this again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!(
            "rerun with SEED={}; step {} at {:?}",
            self.seed, self.steps, self.now
        )
    }

    /// Publishes one fragment on a node; does nothing while the node is down.
    pub fn publish(&mut self, node: usize) -> Option<FragmentId> {
        let (_, id, mark) =
            self.nodes[node].publish(&self.founding, node, self.now, &mut self.memo)?;
        self.sync_later(as_index(node), mark);
        Some(id)
    }

    /// Parts the nodes: those of different groups cannot reach each other. Nodes in no group
    /// form one together.
    pub fn partition(&mut self, groups: &[std::ops::Range<usize>]) -> &mut Self {
        let mut sides = vec![0; self.nodes.len()];
        for (side, group) in (1..).zip(groups) {
            sides[group.clone()].fill(side);
        }
        self.links.set_sides(sides);
        let cut = self.links.kill(|links, connection| {
            let (a, b) = connection.ends;
            !links.may_reach(a, b)
        });
        for link in cut {
            self.agenda
                .add(self.now + IDLE_TIMEOUT, Event::Lost { link });
        }
        self
    }

    /// Lets all nodes reach each other again.
    pub fn heal(&mut self) -> &mut Self {
        self.links.set_sides(vec![0; self.nodes.len()]);
        self
    }

    /// Crashes a node; it starts again after `down`. What it had not synced is lost, or part of it.
    pub fn crash(&mut self, node: usize, down: Duration) -> &mut Self {
        let unsynced = self.nodes[node].store.unsynced();
        let torn = self.dice.below(unsynced + 1);
        self.nodes[node].crash(torn);
        let index = as_index(node);
        let dead = self
            .links
            .kill(|_, connection| connection.ends.0 == index || connection.ends.1 == index);
        for link in dead {
            self.agenda
                .add(self.now + IDLE_TIMEOUT, Event::Lost { link });
        }
        let life = self.nodes[node].life;
        self.agenda
            .add(self.now + down, Event::Restart { node: index, life });
        self
    }

    /// Runs for `span`.
    pub fn run_for(&mut self, span: Duration) -> &mut Self {
        let end = self.now + span;
        while self.agenda.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
        self
    }

    /// Runs until `done` holds, at most for `limit`; returns how long it took.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        let begin = self.now;
        while !done(self) && self.now < begin + limit {
            self.run_for(Duration::from_millis(500));
        }
        self.now - begin
    }

    /// Returns how many fragments were acknowledged to their publishers.
    #[must_use]
    pub fn acked(&self) -> usize {
        self.acked.len()
    }

    /// Says whether every acknowledged fragment of an honest node is on every honest node that is
    /// up.
    #[must_use]
    pub fn all_acked_everywhere(&self) -> bool {
        let lane = self.lane();
        let honest = |node: &&SimNode| node.hostility.is_none() && node.running.is_some();
        self.nodes.iter().filter(honest).all(|node| {
            let set = node.store.set(lane).expect("every node holds the space");
            let mut acked = self.acked.iter();
            acked.all(|(id, by)| self.is_hostile(*by) || set.contains(&hash_of(*id)))
        })
    }

    /// Returns how many different states the honest nodes that are up are in.
    #[must_use]
    pub fn distinct_states(&self) -> usize {
        let state = |node: &SimNode| {
            let of = |lane| {
                node.store
                    .set(lane)
                    .expect("held by all")
                    .fingerprint()
                    .to_bytes()
            };
            [of(Lane::Authority), of(self.lane())]
        };
        let honest = |node: &&SimNode| node.hostility.is_none() && node.running.is_some();
        let states: std::collections::BTreeSet<_> =
            self.nodes.iter().filter(honest).map(state).collect();
        states.len()
    }

    /// Returns how often two peers found each other in sync.
    #[must_use]
    pub fn in_sync_reports(&self) -> u64 {
        self.in_sync
    }

    /// Returns how many acknowledgements of replicas publishers and senders were given.
    #[must_use]
    pub fn replica_reports(&self) -> u64 {
        self.replicas
    }

    /// Returns how many items were rejected by the real check.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.memo.rejected
    }

    /// Returns who sent whom away, and why.
    #[must_use]
    pub fn sent_away(&self) -> &[(u32, u32, &'static str)] {
        &self.sent_away
    }

    /// Checks what must hold at any time.
    ///
    /// # Panics
    /// When something does not, with the seed and the step.
    pub fn check(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(running) = &node.running else {
                continue;
            };
            let held = running.admission.held();
            assert!(
                held <= MAX_HELD,
                "node {index} holds {held} fragments; {}",
                self.replay()
            );
            let batches: usize = running.batches.values().map(Vec::len).sum();
            let bound = 2 * self.config.window * running.replication.peers().count().max(1);
            assert!(
                batches <= bound,
                "node {index} admits {batches} batches; {}",
                self.replay()
            );
        }
        let honest = |(by, _, _): &&(u32, u32, &str)| !self.is_hostile(*by);
        for (by, whom, why) in self.sent_away.iter().filter(honest) {
            let what = format!("node {by} sent node {whom} away because it {why}");
            assert!(self.is_hostile(*whom), "{what}; {}", self.replay());
        }
    }

    fn lane(&self) -> Lane {
        Lane::Space(self.founding.space)
    }

    fn is_hostile(&self, node: NodeIndex) -> bool {
        self.nodes[node as usize].hostility.is_some()
    }
}

fn as_index(node: usize) -> NodeIndex {
    NodeIndex::try_from(node).expect("fewer nodes than that")
}
