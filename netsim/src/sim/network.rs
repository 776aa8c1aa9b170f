//! A run: nodes, links, what happens next, and what must hold.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use rhizome_identity::{AgentId, Hash, NodeId, RecordBody};
use rhizome_memory::{FragmentId, Lane};
use rhizome_mesh::proto::replication::Config;

use super::{
    arena::{Arena, Content, ItemIndex},
    dice::Dice,
    events::{Agenda, Event, EventContent, NodeIndex},
    founding::Founding,
    invariants::{RevokedAgents, Violation},
    links::Links,
    node::SimNode,
};

mod builder;
mod course;
mod faults;
mod mischief;
mod transport;

pub use builder::Builder;

/// How many of the last events are remembered when a trail is kept.
const TRAIL: usize = 64;

/// A simulated mesh.
#[derive(Debug)]
pub struct Netsim {
    pub(super) seed: u64,
    pub(super) dice: Dice,
    pub(super) now: Duration,
    pub(super) steps: u64,
    trace: blake3::Hasher,
    trail: Option<VecDeque<String>>,
    agenda: Agenda,
    pub(super) links: Links,
    pub(super) founding: Founding,
    pub(super) nodes: Vec<SimNode>,
    by_id: BTreeMap<NodeId, NodeIndex>,
    pub(super) arena: Arena,
    push: bool,
    pub(super) config: Config,
    /// Own fragments that became durable, which is when a publisher is told; by item.
    acked: Vec<bool>,
    acked_count: usize,
    /// Those of them that every honest member is to have.
    pub(super) promised: usize,
    /// Which fragment every position of an honest chain had when it was acknowledged or sent.
    positions: BTreeMap<(AgentId, u64), FragmentId>,
    pub(super) revoked: RevokedAgents,
    /// What members that fork show to a part of their peers, by what they show to the others.
    twins: BTreeMap<ItemIndex, ItemIndex>,
    /// The last fragment of the other history of a member that forks.
    other_heads: BTreeMap<NodeIndex, FragmentId>,
    pub(super) sent_away: Vec<(NodeIndex, NodeIndex, &'static str)>,
    in_sync: u64,
    replicas: u64,
    bytes: u64,
    pub(super) violation: Option<Violation>,
}

impl Netsim {
    /// Begins a run; the same seed and the same calls give the same run.
    #[must_use]
    pub fn seeded(seed: u64) -> Builder {
        Builder::new(seed)
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the number of nodes, newcomers included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
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

    /// Keeps the last events from now on, for people to read.
    pub fn keep_trail(&mut self) -> &mut Self {
        self.trail.get_or_insert_default();
        self
    }

    /// Returns the last events, oldest first.
    pub fn trail(&self) -> impl Iterator<Item = &str> {
        self.trail.iter().flatten().map(String::as_str)
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
        if self.nodes[node].hostility == Some(super::Hostility::Fork) {
            return self.publish_forked(node);
        }
        let n = &mut self.nodes[node];
        let (id, mark) = n.publish(&self.founding, node, self.now, &mut self.arena)?;
        self.sync_later(as_index(node), mark);
        Some(id)
    }

    /// Runs for `span`, or until something does not hold that must.
    pub fn run_for(&mut self, span: Duration) -> &mut Self {
        let end = self.now + span;
        while self.violation.is_none() && self.agenda.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
        self
    }

    /// Carries out at most `steps` events that are due until `end`; says whether more are.
    pub fn run_some(&mut self, end: Duration, steps: u64) -> bool {
        for _ in 0..steps {
            let is_due = self.agenda.next_at().is_some_and(|at| at <= end);
            if self.violation.is_some() || !is_due {
                self.now = end;
                return false;
            }
            self.step();
        }
        true
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
        self.acked_count
    }

    /// Says whether every acknowledged fragment of an honest node is on every honest node that is
    /// up.
    #[must_use]
    pub fn all_acked_everywhere(&self) -> bool {
        let mut kept_to = self.nodes.iter().filter(|node| self.counts(node));
        kept_to.all(|node| node.acked_here == self.promised)
    }

    /// Says whether a node holds a fragment durably.
    #[must_use]
    pub fn holds(&self, node: usize, id: FragmentId) -> bool {
        let item = self.arena.find(&super::node::hash_of(id));
        item.is_some_and(|item| self.nodes[node].store.holds(item))
    }

    /// Returns what a node says of what it holds: the fingerprint of the set, and the heads of the
    /// chains; `None` while it is down.
    #[must_use]
    pub fn summary(&self, node: usize) -> Option<([u8; 40], Hash)> {
        let n = &self.nodes[node];
        let heads = n
            .running
            .as_ref()?
            .admission
            .heads_hash(&self.founding.space);
        Some((n.store.ids(self.lane()).fingerprint().to_bytes(), heads))
    }

    /// Returns when the next event is due.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Duration> {
        self.agenda.next_at()
    }

    /// Says whether a node is up and a member by its own log.
    #[must_use]
    pub fn is_member(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        n.running
            .as_ref()
            .is_some_and(|running| running.authority.is_member(&n.id))
    }

    /// Returns how many different states the honest nodes that are up are in.
    #[must_use]
    pub fn distinct_states(&self) -> usize {
        let state = |node: &SimNode| {
            let of = |lane| node.store.ids(lane).fingerprint().to_bytes();
            [of(Lane::Authority), of(self.lane())]
        };
        let kept_to = self.nodes.iter().filter(|node| self.counts(node));
        kept_to.map(state).collect::<BTreeSet<_>>().len()
    }

    /// Returns how many records of all that were written prove a fork.
    #[must_use]
    pub fn fork_proofs(&self) -> usize {
        let items = (0..self.arena.len()).map(|item| &self.arena.item(item).content);
        let records = items.filter_map(|content| match content {
            Content::Record(record) => Some(&record.record().body),
            Content::Fragment(_) => None,
        });
        records
            .filter(|body| matches!(body, RecordBody::ForkProof(_)))
            .count()
    }

    /// Returns how many chains are frozen by the log of a node that is up.
    #[must_use]
    pub fn frozen_chains(&self, node: usize) -> usize {
        let running = self.nodes[node].running.as_ref();
        running.map_or(0, |running| running.authority.all_frozen().count())
    }

    /// Returns into how many components the live connections part the honest nodes that are up.
    #[must_use]
    pub fn components(&self) -> usize {
        let mut left: BTreeSet<NodeIndex> = (0..)
            .zip(&self.nodes)
            .filter(|(_, node)| self.counts(node))
            .map(|(index, _)| index)
            .collect();
        let mut components = 0;
        while let Some(first) = left.pop_first() {
            components += 1;
            let mut reached = vec![first];
            while let Some(node) = reached.pop() {
                let alive = self
                    .links
                    .of(node)
                    .filter(|(_, link)| self.links.is_alive(*link));
                reached.extend(alive.map(|(peer, _)| peer).filter(|peer| left.remove(peer)));
            }
        }
        components
    }

    /// Returns how many live connections of a node one of its ends gave up, at most over all
    /// honest nodes.
    #[must_use]
    pub fn most_evictions(&self) -> u32 {
        let honest = self.nodes.iter().filter(|node| node.hostility.is_none());
        honest.map(|node| node.evictions).max().unwrap_or(0)
    }

    /// Forgets the evictions so far.
    pub fn forget_evictions(&mut self) -> &mut Self {
        for node in &mut self.nodes {
            node.evictions = 0;
        }
        self
    }

    /// Returns how many connections between nodes go through a relay.
    #[must_use]
    pub fn relayed(&self) -> usize {
        let all = (0_u32..).zip(&self.nodes);
        let links = all.flat_map(|(node, _)| self.links.of(node).map(move |of| (node, of)));
        let once = links.filter(|(node, (peer, _))| node < peer);
        let relayed = once.filter(|(_, (_, link))| self.links.is_relayed(*link));
        relayed.count()
    }

    /// Returns the most frames that ever waited for one peer that reads slowly.
    #[must_use]
    pub fn longest_queue(&self) -> usize {
        self.links.longest_queue()
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
        self.arena.rejected()
    }

    /// Returns who sent whom away, and why.
    #[must_use]
    pub fn sent_away(&self) -> &[(u32, u32, &'static str)] {
        &self.sent_away
    }

    fn note(&mut self, event: &Event) {
        let (kind, node, content) = event.parts();
        let mut head = [0; 13];
        // The lower half of the nanoseconds tells every two moments of five hundred years apart.
        let nanos = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        head[..8].copy_from_slice(&nanos.to_le_bytes());
        head[8] = kind;
        head[9..].copy_from_slice(&node.to_le_bytes());
        self.trace.update(&head);
        match content {
            EventContent::Nothing => {}
            EventContent::Number(number) => {
                self.trace.update(&number.to_le_bytes());
            }
            EventContent::Bytes(bytes) => {
                self.trace.update(bytes);
            }
        }
        if let Some(trail) = &mut self.trail {
            if trail.len() >= TRAIL {
                trail.pop_front();
            }
            let (step, now, name) = (self.steps, self.now, event.name());
            trail.push_back(match content {
                EventContent::Nothing => format!("{step} {now:?} node {node} {name}"),
                EventContent::Number(n) => format!("{step} {now:?} node {node} {name} {n}"),
                EventContent::Bytes(bytes) => {
                    format!("{step} {now:?} node {node} {name} of {} bytes", bytes.len())
                }
            });
        }
    }
}

fn as_index(node: usize) -> NodeIndex {
    NodeIndex::try_from(node).expect("fewer nodes than that")
}
