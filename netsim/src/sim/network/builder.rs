//! What a run starts with, and how it starts.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rhizome_identity::Hash;
use rhizome_memory::Lane;
use rhizome_mesh::proto::replication::Config;

use super::{
    super::{
        dice::Dice,
        events::{Agenda, NodeIndex},
        founding::Founding,
        hostile::Hostility,
        links::{Links, Weather},
        node::SimNode,
        shared::Memo,
        store::Item,
    },
    Netsim, as_index,
};

/// What a run starts with.
#[derive(Debug)]
pub struct Builder {
    pub(super) seed: u64,
    pub(super) peers: usize,
    pub(super) neighbours: usize,
    pub(super) weather: Weather,
    pub(super) push: bool,
    pub(super) config: Config,
    pub(super) hostile: Vec<(usize, Hostility)>,
}

impl Builder {
    /// Sets the number of nodes.
    #[must_use]
    pub fn peers(mut self, peers: usize) -> Self {
        self.peers = peers;
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
    pub fn loss_percent(mut self, percent: u32) -> Self {
        self.weather.loss_per_mille = 10 * percent;
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

    /// Founds the mesh and starts every node.
    #[must_use]
    pub fn build(self) -> Netsim {
        Netsim::start(self)
    }
}

impl Netsim {
    pub(super) fn start(builder: Builder) -> Self {
        let Builder {
            seed,
            peers,
            neighbours,
            weather,
            push,
            config,
            hostile,
        } = builder;
        let mut dice = Dice::new(seed);
        let founding = Founding::new(seed, peers);
        let nodes: Vec<SimNode> = (0..peers)
            .map(|n| {
                SimNode::new(
                    &founding,
                    n,
                    draw_neighbours(&mut dice, n, peers, neighbours),
                )
            })
            .collect();
        let index = |n: usize| NodeIndex::try_from(n).expect("fewer nodes than that");
        let by_id = nodes
            .iter()
            .enumerate()
            .map(|(n, node)| (node.id, index(n)))
            .collect();
        let mut net = Self {
            seed,
            dice,
            now: Duration::ZERO,
            steps: 0,
            trace: blake3::Hasher::new(),
            agenda: Agenda::default(),
            links: Links::new(peers, weather),
            founding,
            nodes,
            by_id,
            memo: Memo::default(),
            push,
            config,
            acked: BTreeMap::new(),
            positions: BTreeMap::new(),
            sent_away: Vec::new(),
            in_sync: 0,
            replicas: 0,
            bytes: 0,
        };
        for (node, hostility) in hostile {
            net.nodes[node].hostility = Some(hostility);
            if hostility == Hostility::BrokenSignatures {
                net.nodes[node].store.break_items();
            }
        }
        for n in 0..peers {
            net.settle(n);
            net.boot(index(n));
            let authority = net.nodes[n].authority(&mut net.memo).expect("just started");
            let certificate = net.founding.certificate(n, &authority);
            let mark = net.nodes[n].record(&certificate);
            net.sync_later(index(n), mark);
        }
        net
    }

    /// Puts the founding records on a node's disk, as if it had joined long ago.
    fn settle(&mut self, node: usize) {
        let store = &mut self.nodes[node].store;
        let mut mark = 0;
        for record in &self.founding.records {
            let bytes = Bytes::copy_from_slice(record.bytes());
            let id = Hash::from_bytes(*record.id().as_bytes());
            mark = store.write(Item {
                lane: Lane::Authority,
                id,
                bytes,
                own: false,
            });
        }
        store.sync(mark);
    }
}

/// Draws whom a node dials: the next one, so that all are connected, and others at random.
fn draw_neighbours(dice: &mut Dice, node: usize, peers: usize, count: usize) -> Vec<u32> {
    let mut neighbours = std::collections::BTreeSet::new();
    if peers > 1 {
        neighbours.insert(as_index((node + 1) % peers));
    }
    while neighbours.len() < count.min(peers - 1) {
        let drawn = dice.below(peers);
        if drawn != node {
            neighbours.insert(as_index(drawn));
        }
    }
    neighbours.into_iter().collect()
}
