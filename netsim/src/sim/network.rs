//! A run: nodes, links, what happens next, and what must hold.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};
use rhizome_memory::{FragmentId, Lane};
use rhizome_mesh::proto::{
    address_book,
    replication::{Config, Input, Output},
};

use super::{
    dice::Dice,
    events::{Agenda, Event, NodeIndex},
    founding::Founding,
    hostile::{self, Hostility},
    links::{Links, Weather},
    node::{Batch, SimNode, hash_of},
    shared::Memo,
    store::Item,
};

/// How long a dead connection goes unnoticed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a dial to nobody takes to fail.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the disk takes to sync.
const SYNC_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(12));
/// How often a hostile node does something to each neighbour.
const MISCHIEF_EVERY: Duration = Duration::from_millis(500);
/// Held fragments of one node, as [`rhizome_memory::Admission`] promises.
const MAX_HELD: usize = 4096;

/// What a run starts with.
#[derive(Debug)]
pub struct Builder {
    seed: u64,
    peers: usize,
    neighbours: usize,
    weather: Weather,
    push: bool,
    config: Config,
    hostile: Vec<(usize, Hostility)>,
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

    fn start(builder: Builder) -> Self {
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

    fn step(&mut self) {
        let Some((at, event)) = self.agenda.pop() else {
            return;
        };
        self.now = at;
        self.steps += 1;
        self.note(&event);
        match event {
            Event::Frame {
                from,
                to,
                link,
                frame,
            } => {
                if self.delivers(link) {
                    let from = self.nodes[from as usize].id;
                    self.handle(to, Input::Frame { from, frame });
                }
            }
            Event::Push {
                from,
                to,
                link,
                lane,
                id,
                item,
            } => {
                if self.delivers(link) {
                    self.pushed(from, to, lane, id, &item);
                }
            }
            Event::Timer { node, life } => self.timer(node, life),
            Event::Synced { node, life, mark } => {
                if self.nodes[node as usize].life == life {
                    self.synced(node, mark);
                }
            }
            Event::Dialled { from, to, life } => self.dialled(from, to, life),
            Event::Lost { link } => {
                if self
                    .links
                    .get(link)
                    .is_some_and(|connection| connection.dead)
                {
                    self.close(link);
                }
            }
            Event::Restart { node, life } => {
                if self.nodes[node as usize].life == life {
                    self.boot(node);
                }
            }
            Event::Mischief { node, life } => self.mischief(node, life),
        }
    }

    fn note(&mut self, event: &Event) {
        let (kind, node, content): (u8, u32, &[u8]) = match event {
            Event::Frame { to, frame, .. } => (1, *to, frame),
            Event::Push { to, id, .. } => (2, *to, id.as_bytes()),
            Event::Timer { node, .. } => (3, *node, &[]),
            Event::Synced { node, mark, .. } => (4, *node, &mark.to_le_bytes()),
            Event::Dialled { from, to, .. } => (5, *from, &to.to_le_bytes()),
            Event::Lost { link } => (6, 0, &link.to_le_bytes()),
            Event::Restart { node, .. } => (7, *node, &[]),
            Event::Mischief { node, .. } => (8, *node, &[]),
        };
        self.trace.update(&self.now.as_nanos().to_le_bytes());
        self.trace
            .update(&[kind])
            .update(&node.to_le_bytes())
            .update(content);
    }

    fn delivers(&self, link: u64) -> bool {
        self.links
            .get(link)
            .is_some_and(|connection| !connection.dead)
    }

    fn boot(&mut self, node: NodeIndex) {
        let seed = self.dice.next();
        let space: SpaceId = self.founding.space;
        let config = self.config.clone();
        let memo = &mut self.memo;
        self.nodes[node as usize].start(seed, config, space, memo);
        for neighbour in self.nodes[node as usize].neighbours.clone() {
            let known = address_book::Input::Known(self.nodes[neighbour as usize].id);
            self.tell_book(node, known);
        }
        let life = self.nodes[node as usize].life;
        if self.is_hostile(node) {
            self.agenda
                .add(self.now + MISCHIEF_EVERY, Event::Mischief { node, life });
        }
        self.set_timer(node);
    }

    fn handle(&mut self, node: NodeIndex, input: Input) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut() else {
            return;
        };
        let outputs = running.replication.handle(self.now, input, &n.store);
        self.carry_out(node, outputs);
        self.set_timer(node);
    }

    fn carry_out(&mut self, node: NodeIndex, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, frame } => self.send(node, self.by_id[&to], &frame),
                Output::Admit {
                    from,
                    lane,
                    batch,
                    items,
                } => {
                    let (outcomes, mark) =
                        self.nodes[node as usize].admit(lane, &items, &mut self.memo);
                    let batch = Batch {
                        from,
                        lane,
                        batch,
                        outcomes,
                    };
                    self.admitted(node, batch, mark);
                }
                Output::Replica { .. } => self.replicas += 1,
                Output::InSync { .. } => self.in_sync += 1,
                Output::Misbehaved { peer, what } => {
                    let whom = self.by_id[&peer];
                    self.sent_away.push((node, whom, what));
                    if let Some(link) = self.links.between(node, whom) {
                        self.close(link);
                    }
                    self.tell_book(node, address_book::Input::Forget(peer));
                }
                _ => {}
            }
        }
    }

    /// Answers for a batch once it is durable.
    fn admitted(&mut self, node: NodeIndex, batch: Batch, mark: Option<u64>) {
        if let Some(mark) = mark {
            if let Some(running) = self.nodes[node as usize].running.as_mut() {
                running.batches.entry(mark).or_default().push(batch);
            }
            self.sync_later(node, mark);
        } else {
            let Batch {
                from,
                lane,
                batch,
                outcomes,
            } = batch;
            self.handle(
                node,
                Input::AdmitDone {
                    from,
                    lane,
                    batch,
                    outcomes,
                },
            );
        }
    }

    fn sync_later(&mut self, node: NodeIndex, mark: u64) {
        let life = self.nodes[node as usize].life;
        let takes = self.dice.between(SYNC_TIME.0, SYNC_TIME.1);
        self.agenda
            .add(self.now + takes, Event::Synced { node, life, mark });
    }

    fn synced(&mut self, node: NodeIndex, mark: u64) {
        let n = &mut self.nodes[node as usize];
        let mut items = n.store.sync(mark);
        let freed = n.durable(&items, &mut self.memo);
        if n.hostility == Some(Hostility::WithheldPredecessor) {
            items.retain(|item| {
                let first = item.own
                    && item.lane != Lane::Authority
                    && self
                        .memo
                        .fragment(&item.bytes)
                        .is_some_and(|own| own.header.seq == 0);
                if first {
                    n.store.hide(item.lane, &item.id);
                }
                !first
            });
        }
        for item in items {
            self.stored(node, item);
        }
        let Some(running) = self.nodes[node as usize].running.as_mut() else {
            return;
        };
        let later = running.batches.split_off(&(mark + 1));
        let done = std::mem::replace(&mut running.batches, later);
        for Batch {
            from,
            lane,
            batch,
            outcomes,
        } in done.into_values().flatten()
        {
            self.handle(
                node,
                Input::AdmitDone {
                    from,
                    lane,
                    batch,
                    outcomes,
                },
            );
        }
        if let Some(mark) = freed {
            self.sync_later(node, mark);
        }
    }

    fn stored(&mut self, node: NodeIndex, item: Item) {
        let Item {
            lane,
            id,
            bytes,
            own,
        } = item;
        if own && lane != Lane::Authority {
            let fragment = self.memo.fragment(&bytes).expect("its own");
            self.acked.insert(fragment.id, node);
            self.claim_position(fragment.header.author, fragment.header.seq, fragment.id);
        }
        self.handle(node, Input::Stored { lane, id, own });
        if self.push {
            for peer in self.connected(node) {
                let Some(link) = self.links.between(node, peer) else {
                    continue;
                };
                let arrivals = self.links.arrivals(&mut self.dice, node, peer);
                self.bytes += bytes.len() as u64;
                let item = if self.nodes[node as usize].store.breaks(lane) {
                    hostile::broken(&bytes)
                } else {
                    bytes.clone()
                };
                for after in arrivals {
                    let item = item.clone();
                    let push = Event::Push {
                        from: node,
                        to: peer,
                        link,
                        lane,
                        id,
                        item,
                    };
                    self.agenda.add(self.now + after, push);
                }
            }
        }
    }

    /// An author's position never has two fragments, however often its node crashed.
    fn claim_position(&mut self, author: AgentId, seq: u64, id: FragmentId) {
        let first = *self.positions.entry((author, seq)).or_insert(id);
        assert!(
            first == id,
            "position {seq} was used twice; {}",
            self.replay()
        );
    }

    fn pushed(&mut self, from: NodeIndex, to: NodeIndex, lane: Lane, id: Hash, item: &Bytes) {
        let n = &mut self.nodes[to as usize];
        if n.running.is_none() || n.store.holds(&id) {
            return;
        }
        let _ = from;
        let (_, mark) = n.admit(lane, std::slice::from_ref(item), &mut self.memo);
        if let Some(mark) = mark {
            self.sync_later(to, mark);
        }
    }

    fn connected(&self, node: NodeIndex) -> Vec<NodeIndex> {
        let Some(running) = &self.nodes[node as usize].running else {
            return Vec::new();
        };
        running
            .replication
            .peers()
            .map(|peer| self.by_id[peer])
            .collect()
    }

    fn send(&mut self, from: NodeIndex, to: NodeIndex, frame: &Bytes) {
        let Some(link) = self.links.between(from, to) else {
            return;
        };
        let copies = match self.nodes[from as usize].hostility {
            Some(Hostility::Flood) => 20,
            _ => 1,
        };
        for _ in 0..copies {
            self.bytes += frame.len() as u64;
            for after in self.links.arrivals(&mut self.dice, from, to) {
                let frame = frame.clone();
                self.agenda.add(
                    self.now + after,
                    Event::Frame {
                        from,
                        to,
                        link,
                        frame,
                    },
                );
            }
        }
    }

    fn timer(&mut self, node: NodeIndex, life: u32) {
        let n = &mut self.nodes[node as usize];
        if n.life != life {
            return;
        }
        let Some(running) = n.running.as_mut() else {
            return;
        };
        if running.timer != Some(self.now) {
            // Set for a deadline that has moved since.
            return;
        }
        running.timer = None;
        let outputs = running.replication.handle_timeout(self.now, &n.store);
        let dials = running.book.handle_timeout(self.now);
        self.carry_out(node, outputs);
        self.dial(node, dials);
        self.set_timer(node);
    }

    fn set_timer(&mut self, node: NodeIndex) {
        let n = &mut self.nodes[node as usize];
        let Some(running) = n.running.as_mut() else {
            return;
        };
        let deadlines = [
            running.replication.next_deadline(),
            running.book.next_deadline(),
        ];
        let Some(due) = deadlines.into_iter().flatten().min() else {
            return;
        };
        let due = due.max(self.now);
        if running.timer.is_none_or(|set| set > due || set < self.now) {
            running.timer = Some(due);
            let life = n.life;
            self.agenda.add(due, Event::Timer { node, life });
        }
    }

    fn tell_book(&mut self, node: NodeIndex, input: address_book::Input) {
        let Some(running) = self.nodes[node as usize].running.as_mut() else {
            return;
        };
        let dials = running.book.handle(self.now, input);
        self.dial(node, dials);
        self.set_timer(node);
    }

    fn dial(&mut self, node: NodeIndex, dials: Vec<address_book::Output>) {
        let life = self.nodes[node as usize].life;
        for dial in dials {
            let address_book::Output::Dial(peer) = dial else {
                continue;
            };
            let to = self.by_id[&peer];
            let answers = self.links.may_reach(node, to);
            let takes = if answers {
                3 * self.links.latency(&mut self.dice, node, to)
            } else {
                DIAL_TIMEOUT
            };
            self.agenda.add(
                self.now + takes,
                Event::Dialled {
                    from: node,
                    to,
                    life,
                },
            );
        }
    }

    fn dialled(&mut self, from: NodeIndex, to: NodeIndex, life: u32) {
        if self.nodes[from as usize].life != life {
            return;
        }
        let (us, them) = (self.nodes[from as usize].id, self.nodes[to as usize].id);
        if !self.links.may_reach(from, to) || self.nodes[to as usize].running.is_none() {
            return self.tell_book(from, address_book::Input::DialFailed(them));
        }
        if self
            .links
            .between(from, to)
            .is_some_and(|link| self.delivers(link))
        {
            // Both dialled at once, and the other dial won.
            return self.tell_book(from, address_book::Input::Up(them));
        }
        self.links.connect(from, to);
        for (node, peer) in [(from, them), (to, us)] {
            self.tell_book(node, address_book::Input::Up(peer));
            self.handle(node, Input::PeerUp(peer));
        }
    }

    fn close(&mut self, link: u64) {
        let Some(connection) = self.links.close(link) else {
            return;
        };
        let (a, b) = connection.ends;
        for (node, peer) in [(a, b), (b, a)] {
            let peer = self.nodes[peer as usize].id;
            self.handle(node, Input::PeerDown(peer));
            self.tell_book(node, address_book::Input::Down(peer));
        }
    }

    fn mischief(&mut self, node: NodeIndex, life: u32) {
        let n = &self.nodes[node as usize];
        if n.life != life {
            return;
        }
        if n.hostility == Some(Hostility::Garbage) {
            for peer in self.connected(node) {
                let len = 1 + self.dice.below(600);
                let mut frame = self.dice.bytes(len);
                // Half of it looks like a frame of some kind, to get past the first check.
                if self.dice.chance(500) {
                    frame[0] = u8::try_from(1 + self.dice.below(7)).expect("at most seven");
                }
                self.send(node, peer, &frame.into());
            }
        }
        self.agenda
            .add(self.now + MISCHIEF_EVERY, Event::Mischief { node, life });
    }
}

fn as_index(node: usize) -> NodeIndex {
    NodeIndex::try_from(node).expect("fewer nodes than that")
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
