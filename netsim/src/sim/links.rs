//! Who can reach whom, and what happens to a frame on the way.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{dice::Dice, events::NodeIndex};

/// How many frames may wait for one peer that reads slowly before its session ends: what the shell
/// of production allows.
pub(super) const MAX_QUEUED_FRAMES: usize = 128;

/// Faults of every link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weather {
    pub(crate) loss_per_mille: u32,
    pub(crate) repeat_per_mille: u32,
    /// How much later than usual a frame may arrive; more than the gap between frames reorders.
    pub(crate) jitter: Duration,
    /// The shortest and the longest latency of a link; each link has one, drawn once.
    pub(crate) latency: (Duration, Duration),
}

/// From where a node can be dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Nat {
    /// From anywhere.
    #[default]
    Public,
    /// From public nodes never; two of this kind meet directly once a relay has introduced them.
    Cone,
    /// Only through a relay, unless it dials a public node itself.
    Symmetric,
}

/// How two nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Direct,
    Via(NodeIndex),
}

/// A connection between two nodes.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) ends: (NodeIndex, NodeIndex),
    pub(super) path: Path,
    /// A dead connection swallows frames until both ends notice.
    pub(super) dead: bool,
}

/// What waits to be read by a node that reads slowly, on one connection.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// When each frame will have been read.
    read_at: VecDeque<Duration>,
}

/// The frame did not fit into the queue of the peer that it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooSlow;

#[derive(Debug)]
pub(super) struct Links {
    seed: u64,
    pub(super) weather: Weather,
    nats: Vec<Nat>,
    relays: Vec<NodeIndex>,
    /// Relays that pass nothing on.
    silent_relays: Vec<NodeIndex>,
    up: Vec<bool>,
    /// Bytes a second, for nodes that read slowly.
    readers: BTreeMap<NodeIndex, u64>,
    queues: BTreeMap<(u64, NodeIndex), Queue>,
    longest_queue: usize,
    connections: Vec<Option<Connection>>,
    by_node: Vec<BTreeMap<NodeIndex, u64>>,
    /// The side of the partition each node is on; all alike without one.
    sides: Vec<u32>,
}

impl Links {
    pub(super) fn new(seed: u64, nodes: usize, weather: Weather) -> Self {
        Self {
            seed,
            weather,
            nats: vec![Nat::Public; nodes],
            relays: Vec::new(),
            silent_relays: Vec::new(),
            up: vec![false; nodes],
            readers: BTreeMap::new(),
            queues: BTreeMap::new(),
            longest_queue: 0,
            connections: Vec::new(),
            by_node: vec![BTreeMap::new(); nodes],
            sides: vec![0; nodes],
        }
    }

    pub(super) fn set_nat(&mut self, node: NodeIndex, nat: Nat) {
        self.nats[node as usize] = nat;
    }

    pub(super) fn add_relay(&mut self, node: NodeIndex) {
        self.relays.push(node);
    }

    /// Makes a relay pass nothing on any more, or let it work again.
    pub(super) fn silence_relay(&mut self, node: NodeIndex, silent: bool) {
        self.silent_relays.retain(|relay| *relay != node);
        if silent {
            self.silent_relays.push(node);
        }
    }

    pub(super) fn relays(&self) -> &[NodeIndex] {
        &self.relays
    }

    pub(super) fn set_up(&mut self, node: NodeIndex, up: bool) {
        self.up[node as usize] = up;
    }

    pub(super) fn read_slowly(&mut self, node: NodeIndex, bytes_per_second: u64) {
        self.readers.insert(node, bytes_per_second.max(1));
    }

    /// Returns the most frames that ever waited for one peer.
    pub(super) fn longest_queue(&self) -> usize {
        self.longest_queue
    }

    pub(super) fn set_sides(&mut self, sides: Vec<u32>) {
        self.sides = sides;
    }

    pub(super) fn is_cut(&self, a: NodeIndex, b: NodeIndex) -> bool {
        self.sides[a as usize] != self.sides[b as usize]
    }

    /// Returns how `from` reaches `to` when it dials now; `None` when it does not.
    pub(super) fn path(&self, from: NodeIndex, to: NodeIndex) -> Option<Path> {
        if self.is_cut(from, to) || !self.up[to as usize] {
            return None;
        }
        let nat = |node: NodeIndex| self.nats[node as usize];
        if nat(to) == Nat::Public {
            return Some(Path::Direct);
        }
        let relay = self.relay_between(from, to)?;
        // Behind one cone each, or from a public node: a relay's introduction is enough.
        let punches =
            nat(from) != Nat::Symmetric && nat(to) == Nat::Cone || nat(from) == Nat::Public;
        Some(if punches {
            Path::Direct
        } else {
            Path::Via(relay)
        })
    }

    /// Returns a relay that works and that both reach: the one with the shortest way.
    fn relay_between(&self, a: NodeIndex, b: NodeIndex) -> Option<NodeIndex> {
        let works = |relay: &NodeIndex| {
            *relay != a
                && *relay != b
                && self.up[*relay as usize]
                && !self.silent_relays.contains(relay)
                && !self.is_cut(a, *relay)
                && !self.is_cut(b, *relay)
        };
        let usable = self.relays.iter().copied().filter(works);
        usable.min_by_key(|relay| (self.latency(a, *relay) + self.latency(*relay, b), *relay))
    }

    /// Returns the latency of the way that a connection takes.
    fn latency_on(&self, connection: &Connection) -> Duration {
        let (a, b) = connection.ends;
        match connection.path {
            Path::Direct => self.latency(a, b),
            Path::Via(relay) => self.latency(a, relay) + self.latency(relay, b),
        }
    }

    /// Returns the latency between two nodes: the same for the whole run, drawn from the seed.
    pub(super) fn latency(&self, a: NodeIndex, b: NodeIndex) -> Duration {
        let (lo, hi) = self.weather.latency;
        let pair = u64::from(a.min(b)) << 32 | u64::from(a.max(b));
        let span = u64::try_from((hi - lo).as_nanos()).unwrap_or(u64::MAX);
        let drawn = u128::from(mixed(self.seed ^ mixed(pair))) * u128::from(span.max(1));
        lo + Duration::from_nanos(u64::try_from(drawn >> 64).expect("below the span"))
    }

    /// Returns when the copies of a frame sent on `link` arrive: none, one or two.
    pub(super) fn arrivals(
        &mut self,
        dice: &mut Dice,
        now: Duration,
        link: u64,
        to: NodeIndex,
        bytes: usize,
    ) -> Result<impl Iterator<Item = Duration> + use<>, TooSlow> {
        let latency = self
            .get(link)
            .map_or(Duration::ZERO, |connection| self.latency_on(connection));
        let jitter = self.weather.jitter;
        let first = (!dice.chance(self.weather.loss_per_mille))
            .then(|| now + latency + dice.between(Duration::ZERO, jitter));
        let second = (first.is_some() && dice.chance(self.weather.repeat_per_mille))
            .then(|| now + latency + dice.between(Duration::ZERO, 4 * jitter));
        let mut arrivals = [first, second];
        if let Some(rate) = self.readers.get(&to).copied() {
            let queue = self.queues.entry((link, to)).or_default();
            while queue.read_at.pop_front_if(|at| *at <= now).is_some() {}
            for at in arrivals.iter_mut().flatten() {
                if queue.read_at.len() >= MAX_QUEUED_FRAMES {
                    return Err(TooSlow);
                }
                let takes = Duration::from_nanos(bytes as u64 * 1_000_000_000 / rate);
                *at = (*at).max(queue.read_at.back().copied().unwrap_or_default()) + takes;
                queue.read_at.push_back(*at);
            }
            self.longest_queue = self.longest_queue.max(queue.read_at.len());
        }
        Ok(arrivals.into_iter().flatten())
    }

    /// Connects two nodes; returns the new connection.
    pub(super) fn connect(&mut self, a: NodeIndex, b: NodeIndex, path: Path) -> u64 {
        if let Some(old) = self.between(a, b) {
            self.close(old);
        }
        let link = self.connections.len() as u64;
        self.connections.push(Some(Connection {
            ends: (a, b),
            path,
            dead: false,
        }));
        self.by_node[a as usize].insert(b, link);
        self.by_node[b as usize].insert(a, link);
        link
    }

    pub(super) fn between(&self, a: NodeIndex, b: NodeIndex) -> Option<u64> {
        self.by_node[a as usize].get(&b).copied()
    }

    /// Returns whom a node is connected with, in order, and by which connection.
    pub(super) fn of(&self, node: NodeIndex) -> impl Iterator<Item = (NodeIndex, u64)> {
        self.by_node[node as usize]
            .iter()
            .map(|(peer, link)| (*peer, *link))
    }

    pub(super) fn get(&self, link: u64) -> Option<&Connection> {
        let at = usize::try_from(link).ok()?;
        self.connections.get(at)?.as_ref()
    }

    pub(super) fn is_alive(&self, link: u64) -> bool {
        self.get(link).is_some_and(|connection| !connection.dead)
    }

    pub(super) fn is_relayed(&self, link: u64) -> bool {
        self.get(link)
            .is_some_and(|connection| matches!(connection.path, Path::Via(_)))
    }

    pub(super) fn close(&mut self, link: u64) -> Option<Connection> {
        let at = usize::try_from(link).ok()?;
        let closed = self.connections.get_mut(at)?.take()?;
        let (a, b) = closed.ends;
        self.by_node[a as usize].remove(&b);
        self.by_node[b as usize].remove(&a);
        self.queues.remove(&(link, a));
        self.queues.remove(&(link, b));
        Some(closed)
    }

    /// Marks the connections dead that `cut` picks; returns those that were alive.
    pub(super) fn kill(&mut self, cut: impl Fn(&Self, &Connection) -> bool) -> Vec<u64> {
        let alive = (0..).zip(&self.connections);
        let alive = alive.filter_map(|(link, connection)| Some((link, connection.as_ref()?)));
        let picked: Vec<u64> = alive
            .filter(|(_, connection)| !connection.dead && cut(self, connection))
            .map(|(link, _)| link)
            .collect();
        self.mark_dead(&picked);
        picked
    }

    /// Marks all connections of one node dead; returns those that were alive.
    pub(super) fn kill_of(&mut self, node: NodeIndex) -> Vec<u64> {
        let own: Vec<u64> = self.of(node).map(|(_, link)| link).collect();
        let alive: Vec<u64> = own
            .into_iter()
            .filter(|link| self.is_alive(*link))
            .collect();
        self.mark_dead(&alive);
        alive
    }

    fn mark_dead(&mut self, links: &[u64]) {
        for link in links {
            let at = usize::try_from(*link).expect("a place in memory");
            if let Some(connection) = &mut self.connections[at] {
                connection.dead = true;
            }
        }
    }
}

/// Spreads a number over all of its bits (the finaliser of SplitMix64).
fn mixed(mut n: u64) -> u64 {
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(nats: &[Nat]) -> Links {
        let weather = Weather {
            loss_per_mille: 0,
            repeat_per_mille: 0,
            jitter: Duration::ZERO,
            latency: (Duration::from_millis(2), Duration::from_millis(90)),
        };
        let mut links = Links::new(1, nats.len(), weather);
        for (node, nat) in (0..).zip(nats) {
            links.set_nat(node, *nat);
            links.set_up(node, true);
        }
        links
    }

    #[test]
    fn a_relay_introduces_or_carries() {
        use Nat::{Cone, Public, Symmetric};
        let mut links = links(&[Public, Cone, Cone, Symmetric, Symmetric, Public]);
        assert_eq!(
            links.path(3, 0),
            Some(Path::Direct),
            "anyone dials a public node"
        );
        assert_eq!(
            links.path(1, 2),
            None,
            "without a relay nobody introduces them"
        );
        links.add_relay(5);
        assert_eq!(links.path(1, 2), Some(Path::Direct));
        assert_eq!(links.path(0, 4), Some(Path::Direct), "it dials back");
        assert_eq!(links.path(1, 3), Some(Path::Via(5)));
        assert_eq!(links.path(3, 4), Some(Path::Via(5)));
        links.silence_relay(5, true);
        assert_eq!(links.path(3, 4), None);
        links.add_relay(0);
        assert_eq!(links.path(3, 4), Some(Path::Via(0)));
    }

    #[test]
    fn a_slow_reader_has_a_bounded_queue() {
        let mut links = links(&[Nat::Public; 2]);
        links.read_slowly(1, 1000);
        let link = links.connect(0, 1, Path::Direct);
        let mut dice = Dice::new(1);
        let mut sent = 0;
        while let Ok(arrivals) = links.arrivals(&mut dice, Duration::ZERO, link, 1, 1000) {
            sent += arrivals.count();
        }
        assert_eq!(sent, MAX_QUEUED_FRAMES);
        let later = Duration::from_secs(10);
        assert!(
            links.arrivals(&mut dice, later, link, 1, 1000).is_ok(),
            "some were read"
        );
    }
}
