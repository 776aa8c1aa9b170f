//! What must hold at any time, and what must hold once all is quiet.
//!
//! The numbers are those of `docs/simulator.md`, which says where each is checked, and which are
//! checked elsewhere because the simulator has nothing to say about them.

use std::{collections::BTreeMap, fmt, time::Duration};

use rhizome_identity::{AgentId, PublicKey};
use rhizome_memory::{Lane, MAX_HELD};

use super::{
    arena::ItemIndex, events::NodeIndex, links::MAX_QUEUED_FRAMES, network::Netsim, node::SimNode,
};

/// A promise of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Invariant {
    /// I1: what was acknowledged reaches every node that is connected and entitled.
    Delivered,
    /// I2: equal sets of fragments give equal summaries and views.
    SameView,
    /// I3: nothing beyond its author's cut is taken in or seen.
    WithinCut,
    /// I4: a position of a chain is never used twice, whatever crashes.
    OnePosition,
    /// I5: a partition of any length heals within two periods.
    HealsInTime,
    /// I6: what one peer or author can make a node remember is bounded.
    Bounded,
    /// I7: honest nodes serve each other whatever others do.
    HonestServed,
    /// An acknowledged fragment is on its author's disk for good.
    Durable,
    /// An expectation of the scenario.
    Expected,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Delivered => "I1",
            Self::SameView => "I2",
            Self::WithinCut => "I3",
            Self::OnePosition => "I4",
            Self::HealsInTime => "I5",
            Self::Bounded => "I6",
            Self::HonestServed => "I7",
            Self::Durable => "durability",
            Self::Expected => "expectation",
        })
    }
}

/// Something that must hold does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} broken at step {step}, {at:?} into the run: {what}")]
pub struct Violation {
    /// What should hold.
    pub invariant: Invariant,
    /// What was seen.
    pub what: String,
    /// How many events had happened.
    pub step: u64,
    /// When, in virtual time.
    pub at: Duration,
}

/// A node that was revoked, and how much of its chain stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revoked {
    /// The record.
    pub(super) record: ItemIndex,
    /// The last position that stays; none when nothing does.
    pub(super) last: Option<u64>,
}

impl Revoked {
    fn forbids(&self, seq: u64) -> bool {
        self.last.is_none_or(|last| seq > last)
    }
}

/// What was revoked, by the agent whose chain is cut.
pub(super) type RevokedAgents = BTreeMap<AgentId, Revoked>;

impl Netsim {
    /// Notes that something does not hold; the first such thing ends the run.
    pub(super) fn violate(&mut self, invariant: Invariant, what: String) {
        let (step, at) = (self.steps, self.now);
        self.violation.get_or_insert(Violation {
            invariant,
            what,
            step,
            at,
        });
    }

    /// Returns the first thing that did not hold.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Checks what a node has just taken in, and what it keeps in memory.
    pub(super) fn check_admitted(&mut self, node: NodeIndex, taken: &[ItemIndex]) {
        let n = &self.nodes[node as usize];
        let Some(running) = &n.running else {
            return;
        };
        let held = running.admission.held();
        if held > MAX_HELD {
            return self.violate(
                Invariant::Bounded,
                format!("node {node} holds {held} fragments"),
            );
        }
        if self.revoked.is_empty() || n.hostility.is_some() {
            return;
        }
        let beyond = taken.iter().find_map(|item| {
            let header = &self.arena.item(*item).fragment()?.header;
            let revoked = self.revoked.get(&header.author)?;
            let knew = n.store.holds(revoked.record);
            (knew && revoked.forbids(header.seq)).then_some(header.seq)
        });
        if let Some(seq) = beyond {
            let what = format!("node {node} took in position {seq} beyond a cut that it knew");
            self.violate(Invariant::WithinCut, what);
        }
    }

    /// Checks everything that must hold at any time, over all nodes.
    ///
    /// # Errors
    /// Returns what does not.
    pub fn verify(&self) -> Result<(), Violation> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        self.verify_bounds()?;
        self.verify_blame()?;
        self.verify_views()
    }

    /// Checks what must hold at any time.
    ///
    /// # Panics
    /// When something does not, with the seed and the step.
    pub fn check(&self) {
        if let Err(violation) = self.verify() {
            panic!("{violation}; {}", self.replay());
        }
    }

    fn broken(&self, invariant: Invariant, what: String) -> Violation {
        Violation {
            invariant,
            what,
            step: self.steps,
            at: self.now,
        }
    }

    fn verify_bounds(&self) -> Result<(), Violation> {
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(running) = &node.running else {
                continue;
            };
            let batches: usize = running.batches.values().map(Vec::len).sum();
            let bound = 2 * self.config.window * running.replication.peers().count().max(1);
            if batches > bound {
                let what = format!("node {index} admits {batches} batches, {bound} are allowed");
                return Err(self.broken(Invariant::Bounded, what));
            }
        }
        let queue = self.links.longest_queue();
        if queue > MAX_QUEUED_FRAMES {
            let what = format!("{queue} frames waited for one peer");
            return Err(self.broken(Invariant::Bounded, what));
        }
        Ok(())
    }

    /// No honest node sends another honest one away.
    fn verify_blame(&self) -> Result<(), Violation> {
        let honest = |(by, _, _): &&(u32, u32, &str)| !self.is_hostile(*by);
        for (by, whom, why) in self.sent_away.iter().filter(honest) {
            if !self.is_hostile(*whom) {
                let what = format!("node {by} sent node {whom} away because it {why}");
                return Err(self.broken(Invariant::HonestServed, what));
            }
        }
        Ok(())
    }

    /// Equal sets give equal summaries; what was cut is in no view of a node that knows it.
    fn verify_views(&self) -> Result<(), Violation> {
        let mut summaries = BTreeMap::new();
        let up = (0..).zip(&self.nodes);
        for (index, node) in up.filter(|(_, node)| node.hostility.is_none()) {
            let index: NodeIndex = index;
            let Some(running) = &node.running else {
                continue;
            };
            let set = node.store.ids(self.lane()).fingerprint().to_bytes();
            let summary = running.admission.heads_hash(&self.founding.space);
            let (first, known) = *summaries.entry(set).or_insert((index, summary));
            if known != summary {
                let what = format!("nodes {first} and {index} hold the same and say otherwise");
                return Err(self.broken(Invariant::SameView, what));
            }
            if let Some(seq) = self.seen_beyond_cut(node) {
                let what = format!("node {index} shows position {seq} beyond a cut that it knows");
                return Err(self.broken(Invariant::WithinCut, what));
            }
        }
        Ok(())
    }

    /// Returns a position that a node would show although it knows that it was cut off.
    fn seen_beyond_cut(&self, node: &SimNode) -> Option<u64> {
        let running = node.running.as_ref()?;
        let authority = &running.authority;
        if !self
            .revoked
            .values()
            .any(|revoked| node.store.holds(revoked.record))
        {
            return None;
        }
        node.store.beyond_ground().iter().find_map(|item| {
            let header = &self.arena.item(*item).fragment()?.header;
            let revoked = self.revoked.get(&header.author)?;
            let is_revoked = authority.is_revoked(&PublicKey::from(header.author))
                || authority.is_revoked(&PublicKey::from(header.node));
            let cut = authority.cut(&header.author, &header.space);
            let shown = !is_revoked || cut.is_some_and(|(last, _)| header.seq <= last);
            (node.store.holds(revoked.record) && shown && revoked.forbids(header.seq))
                .then_some(header.seq)
        })
    }

    /// Checks what must hold once all is quiet: everything acknowledged is everywhere.
    ///
    /// # Errors
    /// Returns what does not.
    pub fn verify_quiet(&self) -> Result<(), Violation> {
        self.verify()?;
        let lacking = (0_u32..)
            .zip(&self.nodes)
            .find(|(_, node)| self.counts(node) && node.acked_here < self.promised);
        match lacking {
            None => Ok(()),
            Some((index, node)) => {
                let what = format!(
                    "node {index} holds {} of {} acknowledged fragments",
                    node.acked_here, self.promised
                );
                Err(self.broken(Invariant::Delivered, what))
            }
        }
    }

    /// Says whether a node is one of those that promises are kept to: honest, up and a member.
    pub(super) fn counts(&self, node: &SimNode) -> bool {
        let is_member = |running: &super::node::Running| running.authority.is_member(&node.id);
        node.hostility.is_none()
            && !self.is_revoked(node)
            && node.running.as_deref().is_some_and(is_member)
    }

    pub(super) fn is_revoked(&self, node: &SimNode) -> bool {
        self.revoked.contains_key(&node.agent)
    }

    pub(super) fn lane(&self) -> Lane {
        Lane::Space(self.founding.space)
    }

    pub(super) fn is_hostile(&self, node: NodeIndex) -> bool {
        self.nodes[node as usize].hostility.is_some()
    }
}
