//! Two cores in one room: what they make each other hold, and what a hostile one achieves.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/shelf.rs"]
mod shelf;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId, SpaceId};
use rhizome_memory::{IdSet, Lane};
use rhizome_mesh::proto::replication::{
    Config, Input, ItemOutcome, MAX_FRAME_BYTES, Output, Replication,
};
use shelf::{Shelf, node};

const SPACE: Lane = Lane::Space(SpaceId::from_bytes([7; 32]));

/// Two nodes and the frames between them.
struct Room {
    now: Duration,
    nodes: Vec<(NodeId, Replication, Shelf)>,
    frames: VecDeque<(usize, NodeId, Bytes)>,
    /// What the cores put out beside frames and batches.
    said: Vec<Output>,
    order: Vec<(usize, Lane)>,
    largest_frame: usize,
    most_in_flight: usize,
    /// Batches are held back instead of admitted.
    stalled: bool,
    pending: Vec<(usize, Input)>,
}

impl Room {
    fn new(lanes: [&[Lane]; 2]) -> Self {
        let nodes = (0..2)
            .map(|n| {
                let id = node(u8::try_from(n).unwrap() + 1);
                (
                    id,
                    Replication::new(id, n as u64, Config::default()),
                    Shelf::new(lanes[n]),
                )
            })
            .collect();
        Self {
            now: Duration::ZERO,
            nodes,
            frames: VecDeque::new(),
            said: Vec::new(),
            order: Vec::new(),
            largest_frame: 0,
            most_in_flight: 0,
            stalled: false,
            pending: Vec::new(),
        }
    }

    fn connect(&mut self) {
        let ids = [self.nodes[0].0, self.nodes[1].0];
        self.input(0, Input::PeerUp(ids[1]));
        self.input(1, Input::PeerUp(ids[0]));
    }

    fn input(&mut self, to: usize, input: Input) {
        let (_, core, shelf) = &mut self.nodes[to];
        let outputs = core.handle(self.now, input, shelf);
        self.outputs(to, outputs);
    }

    fn outputs(&mut self, of: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, frame } => {
                    self.largest_frame = self.largest_frame.max(frame.len());
                    assert!(frame.len() <= MAX_FRAME_BYTES);
                    let to = self.nodes.iter().position(|(id, ..)| *id == to).unwrap();
                    self.frames.push_back((to, self.nodes[of].0, frame));
                }
                Output::Admit {
                    from,
                    lane,
                    batch,
                    items,
                } => {
                    self.order.push((of, lane));
                    let shelf = &mut self.nodes[of].2;
                    let outcomes = items
                        .into_iter()
                        .map(|item| match shelf.put(lane, item) {
                            true => ItemOutcome::Stored,
                            false => ItemOutcome::Known,
                        })
                        .collect();
                    self.pending.push((
                        of,
                        Input::AdmitDone {
                            from,
                            lane,
                            batch,
                            outcomes,
                        },
                    ));
                    self.most_in_flight = self.most_in_flight.max(self.pending.len());
                }
                other => self.said.push(other),
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            while let Some((to, from, frame)) = self.frames.pop_front() {
                self.input(to, Input::Frame { from, frame });
            }
            if !self.stalled && !self.pending.is_empty() {
                for (node, done) in std::mem::take(&mut self.pending) {
                    self.input(node, done);
                }
                continue;
            }
            let due = self
                .nodes
                .iter()
                .filter_map(|(_, core, _)| core.next_deadline())
                .min();
            let Some(due) = due.filter(|due| *due <= end) else {
                break;
            };
            assert!(
                due >= self.now,
                "a deadline in the past does not come to rest"
            );
            self.now = due;
            for n in 0..self.nodes.len() {
                let (_, core, shelf) = &mut self.nodes[n];
                let outputs = core.handle_timeout(self.now, shelf);
                self.outputs(n, outputs);
            }
        }
        self.now = end;
    }

    fn same(&self, lane: Lane) -> bool {
        self.nodes[0].2.sets[&lane] == self.nodes[1].2.sets[&lane]
    }
}

fn item(text: &str, n: usize) -> Bytes {
    format!("{text} {n}").into()
}

const BOTH: &[Lane] = &[Lane::Authority, SPACE];

#[test]
fn both_sides_get_what_they_lack_the_authority_log_first() {
    let mut room = Room::new([BOTH, BOTH]);
    for n in 0..300 {
        room.nodes[0].2.put(SPACE, item("left", n));
        room.nodes[1].2.put(SPACE, item("right", n));
        room.nodes[n % 2].2.put(Lane::Authority, item("record", n));
    }
    room.connect();
    room.run(Duration::from_secs(5));
    assert!(room.same(SPACE) && room.same(Lane::Authority));
    let first_space = room
        .order
        .iter()
        .position(|(_, lane)| *lane == SPACE)
        .unwrap();
    let last_record = room
        .order
        .iter()
        .rposition(|(_, lane)| *lane == Lane::Authority)
        .unwrap();
    assert!(last_record < first_space, "{:?}", room.order);
    let in_sync: BTreeSet<Lane> = room
        .said
        .iter()
        .filter_map(|said| match said {
            Output::InSync { lane, .. } => Some(*lane),
            _ => None,
        })
        .collect();
    assert_eq!(in_sync.len(), 2, "{in_sync:?}");
}

#[test]
fn a_lane_that_only_one_side_holds_stays_there() {
    let mut room = Room::new([BOTH, &[Lane::Authority]]);
    room.nodes[0].2.put(SPACE, item("secret", 0));
    room.connect();
    room.run(Duration::from_secs(60));
    assert!(room.order.is_empty());
    // Once the other side holds it too, it follows without a new connection.
    room.nodes[1].2.sets.insert(SPACE, IdSet::new());
    room.input(1, Input::LanesChanged);
    room.run(Duration::from_secs(5));
    assert!(room.same(SPACE));
}

#[test]
fn a_grant_opens_a_space_to_a_connected_peer() {
    let mut room = Room::new([BOTH, BOTH]);
    room.nodes[0].2.barred.insert(node(2));
    room.nodes[0].2.put(SPACE, item("for members", 0));
    room.connect();
    room.run(Duration::from_secs(60));
    assert!(room.order.is_empty(), "not a member yet");
    room.nodes[0].2.barred.clear();
    let grant = item("grant", 0);
    let id = Hash::of(&grant);
    room.nodes[0].2.put(Lane::Authority, grant);
    room.input(
        0,
        Input::Stored {
            lane: Lane::Authority,
            id,
            own: true,
        },
    );
    room.run(Duration::from_secs(3));
    assert!(room.same(SPACE));
}

#[test]
fn batches_wait_for_the_slow_store() {
    let mut room = Room::new([BOTH, BOTH]);
    room.stalled = true;
    for n in 0..200 {
        room.nodes[0]
            .2
            .put(SPACE, vec![u8::try_from(n).unwrap(); 60_000].into());
    }
    room.connect();
    room.run(Duration::from_secs(8));
    assert!(
        room.most_in_flight <= Config::default().window,
        "{}",
        room.most_in_flight
    );
    room.stalled = false;
    room.run(Duration::from_secs(120));
    assert!(room.same(SPACE));
}

#[test]
fn an_own_item_is_announced_fetched_and_acknowledged() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(5));
    let id = Hash::of(&item("fresh", 0));
    room.nodes[0].2.put(SPACE, item("fresh", 0));
    room.input(
        0,
        Input::Stored {
            lane: SPACE,
            id,
            own: true,
        },
    );
    room.run(Duration::from_secs(2));
    assert!(
        room.same(SPACE),
        "fetched without gossip and before anti-entropy"
    );
    let replica = Output::Replica {
        peer: node(2),
        lane: SPACE,
        id,
    };
    assert!(room.said.contains(&replica));
}

#[test]
fn an_item_that_gossip_brought_is_acknowledged() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(5));
    let id = Hash::of(&item("fresh", 0));
    room.nodes[0].2.put(SPACE, item("fresh", 0));
    room.input(
        0,
        Input::Stored {
            lane: SPACE,
            id,
            own: true,
        },
    );
    room.run(Duration::from_millis(100));
    room.nodes[1].2.put(SPACE, item("fresh", 0));
    room.input(
        1,
        Input::Stored {
            lane: SPACE,
            id,
            own: false,
        },
    );
    room.run(Duration::from_millis(100));
    assert!(room.said.contains(&Output::Replica {
        peer: node(2),
        lane: SPACE,
        id
    }));
}

#[test]
fn anti_entropy_finds_what_nobody_announced() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(5));
    room.nodes[1].2.put(SPACE, item("quiet", 0));
    room.run(Duration::from_secs(40));
    assert!(room.same(SPACE));
}

#[test]
fn garbage_and_strange_spaces_end_the_session() {
    let strange = {
        let mut frame = vec![5, 1];
        frame.extend([9; 32]);
        frame.extend(0_u32.to_le_bytes());
        frame
    };
    for bad in [vec![], vec![99], vec![2, 0, 1], strange] {
        let mut room = Room::new([BOTH, BOTH]);
        room.connect();
        room.run(Duration::from_secs(1));
        room.input(
            0,
            Input::Frame {
                from: node(2),
                frame: bad.clone().into(),
            },
        );
        let away =
            |said: &Output| matches!(said, Output::Misbehaved { peer, .. } if *peer == node(2));
        assert_eq!(
            room.said.iter().filter(|said| away(said)).count(),
            1,
            "{bad:?}"
        );
        // Nothing is heard of it any more.
        room.input(
            0,
            Input::Frame {
                from: node(2),
                frame: vec![99].into(),
            },
        );
        assert_eq!(room.said.iter().filter(|said| away(said)).count(), 1);
    }
}

#[test]
fn unasked_batches_beyond_the_window_are_dropped_and_then_punished() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(1));
    room.stalled = true;
    for batch in 0..200_u64 {
        let mut frame = vec![3, 0];
        frame.extend(batch.to_le_bytes());
        frame.extend(1_u32.to_le_bytes());
        frame.extend(1_u32.to_le_bytes());
        frame.push(u8::try_from(batch).unwrap());
        room.input(
            0,
            Input::Frame {
                from: node(2),
                frame: frame.into(),
            },
        );
    }
    assert!(
        room.pending.len() <= 2 * Config::default().window,
        "{}",
        room.pending.len()
    );
    for _ in 0..2000 {
        room.input(
            0,
            Input::Frame {
                from: node(2),
                frame: vec![6, 0, 0, 0, 0, 0].into(),
            },
        );
    }
    assert!(
        room.said
            .iter()
            .any(|said| matches!(said, Output::Misbehaved { .. }))
    );
}

#[test]
fn refused_items_beyond_measure_end_the_session() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(1));
    room.stalled = true;
    for batch in 0..400_u64 {
        let mut frame = vec![3, 0];
        frame.extend(batch.to_le_bytes());
        frame.extend(1_u32.to_le_bytes());
        frame.extend(0_u32.to_le_bytes());
        room.now += Duration::from_millis(50);
        room.input(
            0,
            Input::Frame {
                from: node(2),
                frame: frame.into(),
            },
        );
        room.pending.clear();
        let refused = vec![ItemOutcome::Refused];
        let done = Input::AdmitDone {
            from: node(2),
            lane: Lane::Authority,
            batch,
            outcomes: refused,
        };
        room.input(0, done);
    }
    assert!(
        room.said
            .iter()
            .any(|said| matches!(said, Output::Misbehaved { .. }))
    );
}

#[test]
fn a_silent_peer_is_asked_a_few_times_and_costs_little() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(1));
    room.nodes[0].2.put(SPACE, item("x", 0));
    // From now on nothing reaches the other side.
    let mut sent = 0;
    for _ in 0..600 {
        room.now += Duration::from_secs(1);
        let (_, core, shelf) = &mut room.nodes[0];
        sent += core.handle_timeout(room.now, shelf).len();
    }
    assert!(sent < 300, "{sent} frames in ten minutes");
}

#[test]
fn an_incompatible_peer_is_told_apart_from_a_hostile_one() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    let mut hello = vec![1, 9, 9];
    hello.extend([0; 8]);
    hello.extend(1_u32.to_le_bytes());
    hello.extend(0_u32.to_le_bytes());
    hello.extend(0_u32.to_le_bytes());
    room.input(
        0,
        Input::Frame {
            from: node(2),
            frame: hello.into(),
        },
    );
    assert!(room.said.contains(&Output::Incompatible {
        peer: node(2),
        version: 9
    }));
}

/// Counts how often everything that is on its way arrives until both sides hold the same.
fn hops_until_same(room: &mut Room, lane: Lane) -> usize {
    let mut hops = 0;
    while !room.same(lane) {
        for (to, from, frame) in std::mem::take(&mut room.frames) {
            room.input(to, Input::Frame { from, frame });
        }
        for (node, done) in std::mem::take(&mut room.pending) {
            room.input(node, done);
        }
        hops += 1;
        assert!(hops < 20, "nothing moves any more");
    }
    hops
}

#[test]
fn a_hole_of_five_hundred_is_repaired_in_three_round_trips() {
    for common in [0, 600, 20_000] {
        for lacking in [0, 1] {
            let mut room = Room::new([BOTH, BOTH]);
            for n in 0..common {
                for (_, _, shelf) in &mut room.nodes {
                    shelf.put(SPACE, item("common", n));
                }
            }
            room.connect();
            room.run(Duration::from_secs(5));
            assert!(room.same(SPACE));
            for n in 0..500 {
                let text = format!("{:>700}", "missing");
                room.nodes[1 - lacking].2.put(SPACE, item(&text, n));
            }
            // Nobody announced them: one side opens a session of its own accord.
            while room.frames.is_empty() {
                let due = room
                    .nodes
                    .iter()
                    .filter_map(|(_, core, _)| core.next_deadline());
                room.now = due.min().unwrap();
                for n in 0..2 {
                    let (_, core, shelf) = &mut room.nodes[n];
                    let outputs = core.handle_timeout(room.now, shelf);
                    room.outputs(n, outputs);
                }
            }
            let hops = hops_until_same(&mut room, SPACE);
            assert!(hops <= 6, "{hops} hops with {common} in common");
        }
    }
}

#[test]
fn a_million_unknown_names_from_one_peer_leave_nothing_behind() {
    const NAMES: u32 = 4096;
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(1));
    // All of the state is in it, so its length stands for the memory it takes.
    let size = |room: &Room| format!("{:?}", room.nodes[0].1).len();
    let mut first = 0;
    for round in 0..256_u32 {
        let mut hello = vec![1, 1, 1];
        hello.extend(77_u64.to_le_bytes());
        hello.extend((round + 1).to_le_bytes());
        hello.extend(0_u32.to_le_bytes());
        hello.extend(NAMES.to_le_bytes());
        for n in 0..NAMES {
            hello.extend(Hash::of(&(round * NAMES + n).to_le_bytes()).as_bytes());
        }
        room.now += Duration::from_millis(100);
        let from = node(2);
        let frame = hello.into();
        room.input(0, Input::Frame { from, frame });
        room.frames.clear();
        if round == 0 {
            first = size(&room);
        }
    }
    let last = size(&room);
    assert!(last < first + first / 10, "{first} became {last}");
    assert!(
        room.said
            .iter()
            .all(|said| !matches!(said, Output::Misbehaved { .. }))
    );
}

#[test]
fn declined_items_end_no_session_and_cost_no_more_than_so_many() {
    let mut room = Room::new([BOTH, BOTH]);
    room.connect();
    room.run(Duration::from_secs(1));
    room.stalled = true;
    let offer = |room: &mut Room, batch: u64| {
        let mut frame = vec![3, 0];
        frame.extend(batch.to_le_bytes());
        frame.extend(1_u32.to_le_bytes());
        frame.extend(1_u32.to_le_bytes());
        frame.push(7);
        let (from, frame) = (node(2), frame.into());
        room.input(0, Input::Frame { from, frame });
        let admitted = !room.pending.is_empty();
        room.pending.clear();
        if admitted {
            let (from, lane) = (node(2), Lane::Authority);
            // One frame holds up to 1,024 items; their number is what counts.
            let outcomes = vec![ItemOutcome::Declined; 1024];
            room.input(
                0,
                Input::AdmitDone {
                    from,
                    lane,
                    batch,
                    outcomes,
                },
            );
        }
        admitted
    };
    let admitted = (0..20).filter(|batch| offer(&mut room, *batch)).count();
    assert_eq!(admitted, 5);
    room.now += Duration::from_secs(60);
    assert!(offer(&mut room, 20), "it is listened to again");
    assert!(
        room.said
            .iter()
            .all(|said| !matches!(said, Output::Misbehaved { .. }))
    );
}
