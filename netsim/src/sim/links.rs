//! Who can reach whom, and what happens to a frame on the way.

use std::{collections::BTreeMap, time::Duration};

use super::{dice::Dice, events::NodeIndex};

/// Faults of every link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) loss_per_mille: u32,
    pub(super) repeat_per_mille: u32,
    /// How much later than usual a frame may arrive; more than the gap between frames reorders.
    pub(super) jitter: Duration,
}

/// A connection between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) ends: (NodeIndex, NodeIndex),
    /// A dead connection swallows frames until both ends notice.
    pub(super) dead: bool,
}

#[derive(Debug)]
pub(super) struct Links {
    weather: Weather,
    /// One latency for each pair, drawn once.
    latencies: BTreeMap<(NodeIndex, NodeIndex), Duration>,
    connections: BTreeMap<u64, Connection>,
    by_pair: BTreeMap<(NodeIndex, NodeIndex), u64>,
    next: u64,
    /// The side of the partition each node is on; all alike without one.
    sides: Vec<u32>,
}

impl Links {
    pub(super) fn new(nodes: usize, weather: Weather) -> Self {
        Self {
            weather,
            latencies: BTreeMap::new(),
            connections: BTreeMap::new(),
            by_pair: BTreeMap::new(),
            next: 1,
            sides: vec![0; nodes],
        }
    }

    pub(super) fn set_sides(&mut self, sides: Vec<u32>) {
        self.sides = sides;
    }

    pub(super) fn may_reach(&self, a: NodeIndex, b: NodeIndex) -> bool {
        self.sides[a as usize] == self.sides[b as usize]
    }

    /// Returns when the copies of a frame arrive, after now: none, one or two.
    pub(super) fn arrivals(
        &mut self,
        dice: &mut Dice,
        a: NodeIndex,
        b: NodeIndex,
    ) -> impl Iterator<Item = Duration> + use<> {
        let latency = self.latency(dice, a, b);
        let jitter = self.weather.jitter;
        let first = (!dice.chance(self.weather.loss_per_mille))
            .then(|| latency + dice.between(Duration::ZERO, jitter));
        let second = (first.is_some() && dice.chance(self.weather.repeat_per_mille))
            .then(|| latency + dice.between(Duration::ZERO, 4 * jitter));
        first.into_iter().chain(second)
    }

    pub(super) fn latency(&mut self, dice: &mut Dice, a: NodeIndex, b: NodeIndex) -> Duration {
        let pair = (a.min(b), a.max(b));
        *self
            .latencies
            .entry(pair)
            .or_insert_with(|| dice.between(Duration::from_millis(2), Duration::from_millis(90)))
    }

    /// Connects two nodes; returns the new connection, and the one it replaces.
    pub(super) fn connect(&mut self, a: NodeIndex, b: NodeIndex) -> (u64, Option<u64>) {
        let link = self.next;
        self.next += 1;
        let old = self.by_pair.insert((a.min(b), a.max(b)), link);
        if let Some(old) = old {
            self.connections.remove(&old);
        }
        self.connections.insert(
            link,
            Connection {
                ends: (a, b),
                dead: false,
            },
        );
        (link, old)
    }

    pub(super) fn between(&self, a: NodeIndex, b: NodeIndex) -> Option<u64> {
        self.by_pair.get(&(a.min(b), a.max(b))).copied()
    }

    pub(super) fn get(&self, link: u64) -> Option<Connection> {
        self.connections.get(&link).copied()
    }

    pub(super) fn close(&mut self, link: u64) -> Option<Connection> {
        let closed = self.connections.remove(&link)?;
        let (a, b) = closed.ends;
        self.by_pair.remove(&(a.min(b), a.max(b)));
        Some(closed)
    }

    /// Marks the connections dead that `cut` picks; returns those that were alive.
    pub(super) fn kill(&mut self, cut: impl Fn(&Self, Connection) -> bool) -> Vec<u64> {
        let picked: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| !connection.dead && cut(self, **connection))
            .map(|(link, _)| *link)
            .collect();
        for link in &picked {
            if let Some(connection) = self.connections.get_mut(link) {
                connection.dead = true;
            }
        }
        picked
    }
}
