//! What a run starts with, and how it starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rhizome_memory::Lane;
use rhizome_mesh::proto::replication::Config;

use super::{
    super::{
        arena::Arena,
        dice::Dice,
        events::{Agenda, NodeIndex},
        founding::{ADMINS, Founding},
        hostile::Hostility,
        links::{Links, Nat, Weather},
        node::SimNode,
        store::{Ground, Serving, Store},
    },
    Netsim, as_index,
};

/// What a run starts with.
#[derive(Clone, Debug)]
pub struct Builder {
    seed: u64,
    peers: usize,
    newcomers: usize,
    writers: Option<usize>,
    neighbours: usize,
    weather: Weather,
    push: bool,
    config: Config,
    hostile: Vec<(usize, Hostility)>,
    skews: Vec<i64>,
    nats: [u32; 2],
    relays: usize,
    slow_readers: Vec<(usize, u64)>,
    has_documents: bool,
}

impl Builder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            peers: 3,
            newcomers: 0,
            writers: None,
            neighbours: 4,
            weather: Weather {
                loss_per_mille: 0,
                repeat_per_mille: 10,
                jitter: Duration::from_millis(15),
                latency: (Duration::from_millis(2), Duration::from_millis(90)),
            },
            push: true,
            config: Config::default(),
            hostile: Vec::new(),
            skews: Vec::new(),
            nats: [0; 2],
            relays: 0,
            slow_readers: Vec::new(),
            has_documents: false,
        }
    }

    /// Sets the number of nodes that are members from the start.
    #[must_use]
    pub fn peers(mut self, peers: usize) -> Self {
        self.peers = peers;
        self
    }

    /// Adds nodes that have an invite and start when [`Netsim::join`] says so.
    #[must_use]
    pub fn newcomers(mut self, newcomers: usize) -> Self {
        self.newcomers = newcomers;
        self
    }

    /// Lets only the first `writers` nodes publish; otherwise all do.
    #[must_use]
    pub fn writers(mut self, writers: usize) -> Self {
        self.writers = Some(writers);
        self
    }

    /// Sets how many others each node dials.
    #[must_use]
    pub fn neighbours(mut self, neighbours: usize) -> Self {
        self.neighbours = neighbours;
        self
    }

    /// Sets how many of a hundred frames are lost.
    #[must_use]
    pub fn loss_percent(self, percent: u32) -> Self {
        self.loss_per_mille(10 * percent)
    }

    /// Sets how many of a thousand frames are lost.
    #[must_use]
    pub fn loss_per_mille(mut self, per_mille: u32) -> Self {
        self.weather.loss_per_mille = per_mille;
        self
    }

    /// Sets how many of a thousand frames arrive twice.
    #[must_use]
    pub fn repeat_per_mille(mut self, per_mille: u32) -> Self {
        self.weather.repeat_per_mille = per_mille;
        self
    }

    /// Sets how much later than usual a frame may arrive.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.weather.jitter = jitter;
        self
    }

    /// Sets the shortest and the longest latency of a link.
    #[must_use]
    pub fn latency(mut self, shortest: Duration, longest: Duration) -> Self {
        self.weather.latency = (shortest, longest.max(shortest));
        self
    }

    /// Sets how often a node reconciles with one of its peers.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.config.anti_entropy = period;
        self
    }

    /// Leaves everything to reconciliation: nothing is pushed.
    #[must_use]
    pub fn without_push(mut self) -> Self {
        self.push = false;
        self
    }

    /// Makes one node hostile.
    #[must_use]
    pub fn hostile(mut self, node: usize, hostility: Hostility) -> Self {
        self.hostile.push((node, hostility));
        self
    }

    /// Puts the clocks of the nodes wrong by so many milliseconds, by turns.
    #[must_use]
    pub fn skews(mut self, skews: Vec<i64>) -> Self {
        self.skews = skews;
        self
    }

    /// Puts so many of a thousand nodes behind a cone NAT and behind a symmetric one, and lets the
    /// first `relays` nodes, which stay public, serve as relays.
    #[must_use]
    pub fn nat_per_mille(mut self, cone: u32, symmetric: u32, relays: usize) -> Self {
        self.nats = [cone, symmetric];
        self.relays = relays;
        self
    }

    /// Lets one node read only so many bytes a second from each of its peers.
    #[must_use]
    pub fn slow_reader(mut self, node: usize, bytes_per_second: u64) -> Self {
        self.slow_readers.push((node, bytes_per_second));
        self
    }

    /// Makes what is published changes of documents, so that [`Netsim::view`] can show them.
    #[must_use]
    pub fn with_documents(mut self) -> Self {
        self.has_documents = true;
        self
    }

    /// Founds the mesh and starts every member.
    #[must_use]
    pub fn build(self) -> Netsim {
        let all = self.peers + self.newcomers;
        let writers = self.writers.unwrap_or(self.peers);
        let mut dice = Dice::new(self.seed);
        let mut founding = Founding::new(self.seed, all, self.peers, writers);
        founding.has_documents = self.has_documents;
        let space = Lane::Space(founding.space);
        let mut arena = Arena::default();
        for record in &founding.records {
            let bytes = Bytes::copy_from_slice(record.bytes());
            arena
                .take_in(Lane::Authority, &bytes)
                .expect("signed just now");
        }
        let ground = Arc::new(Ground::of(&arena));
        let nothing = Arc::new(Ground::default());
        let nodes: Vec<SimNode> = (0..all)
            .map(|n| {
                let is_joining = n >= self.peers;
                let ground = if is_joining { &nothing } else { &ground };
                let store = Store::new(space, Arc::clone(ground));
                let mut node = SimNode::new(&founding, n, store);
                node.is_joining = is_joining;
                if let Some(at) = n.checked_rem(self.skews.len()) {
                    node.skew_ms = self.skews[at];
                }
                node
            })
            .collect();
        let by_id = (0..).zip(&nodes).map(|(n, node)| (node.id, n)).collect();
        let mut links = Links::new(self.seed, all, self.weather);
        self.place(&mut links, &mut dice, all);
        let mut net = Netsim {
            seed: self.seed,
            dice,
            now: Duration::ZERO,
            steps: 0,
            trace: blake3::Hasher::new(),
            trail: None,
            agenda: Agenda::default(),
            links,
            founding,
            nodes,
            by_id,
            arena,
            push: self.push,
            config: self.config.clone(),
            acked: Vec::new(),
            acked_count: 0,
            promised: 0,
            positions: BTreeMap::new(),
            revoked: BTreeMap::new(),
            twins: BTreeMap::new(),
            other_heads: BTreeMap::new(),
            sent_away: Vec::new(),
            in_sync: 0,
            replicas: 0,
            bytes: 0,
            violation: None,
        };
        for (node, hostility) in &self.hostile {
            net.make_hostile(*node, *hostility);
        }
        net.acquaint(self.peers, self.neighbours);
        for n in 0..self.peers {
            net.boot(as_index(n));
        }
        net
    }

    fn place(&self, links: &mut Links, dice: &mut Dice, all: usize) {
        let [cone, symmetric] = self.nats;
        for n in (0..all).map(as_index) {
            if (n as usize) < self.relays {
                links.add_relay(n);
            } else if cone + symmetric > 0 {
                let drawn = dice.below(1000);
                if drawn < cone as usize {
                    links.set_nat(n, Nat::Cone);
                } else if drawn < (cone + symmetric) as usize {
                    links.set_nat(n, Nat::Symmetric);
                }
            }
        }
        for (node, rate) in &self.slow_readers {
            links.read_slowly(as_index(*node), *rate);
        }
    }
}

impl Netsim {
    fn make_hostile(&mut self, node: usize, hostility: Hostility) {
        let n = &mut self.nodes[node];
        n.hostility = Some(hostility);
        n.store.serve(match hostility {
            Hostility::BrokenSignatures => Serving::Broken,
            Hostility::Hollow => Serving::Hollow,
            Hostility::Eclipse => Serving::Silent,
            _ => Serving::Honest,
        });
    }

    /// Draws whom the members dial. Those who eclipse all crowd around the last honest one.
    fn acquaint(&mut self, peers: usize, count: usize) {
        let victim = (0..peers).rfind(|n| self.nodes[*n].hostility.is_none());
        for n in 0..peers {
            let crowds = self.nodes[n].hostility == Some(Hostility::Eclipse);
            self.nodes[n].neighbours = match victim {
                Some(victim) if crowds => vec![as_index(victim)],
                _ => draw_neighbours(&mut self.dice, n, peers, count),
            };
        }
    }

    /// Returns whom a newcomer's invite names: an admin for each of its uses, the founder first.
    pub(super) fn invited_by(&self) -> Vec<NodeIndex> {
        (0..ADMINS.min(self.nodes.len())).map(as_index).collect()
    }
}

/// Draws whom a node dials: the next one, so that all are connected, and others at random.
pub(super) fn draw_neighbours(
    dice: &mut Dice,
    node: usize,
    peers: usize,
    count: usize,
) -> Vec<u32> {
    let mut neighbours = BTreeSet::new();
    if peers > 1 {
        neighbours.insert(as_index((node + 1) % peers));
    }
    while neighbours.len() < count.min(peers.saturating_sub(1)) {
        let drawn = dice.below(peers);
        if drawn != node {
            neighbours.insert(as_index(drawn));
        }
    }
    neighbours.into_iter().collect()
}
