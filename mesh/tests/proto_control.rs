//! Records beside a burst of fragments, on a link and a store that take their time.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/shelf.rs"]
mod shelf;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use rhizome_identity::{Hash, SpaceId};
use rhizome_memory::Lane;
use rhizome_mesh::proto::replication::{Config, Input, ItemOutcome, Output, Replication};
use shelf::{Shelf, node};

const SPACE: Lane = Lane::Space(SpaceId::from_bytes([7; 32]));
/// The burst, from one author.
const FRAGMENTS: u32 = 100_000;
const FRAGMENT_BYTES: usize = 300;
/// Published at once every so often.
const TICK: Duration = Duration::from_millis(10);
const EACH_TICK: u32 = 500;
const RECORD_EVERY: Duration = Duration::from_millis(70);
/// 200 Mbit/s, and as far as the other end of a country.
const BYTES_PER_SECOND: u64 = 25_000_000;
const LATENCY: Duration = Duration::from_millis(10);
/// What the store takes for a batch, and for each item of it.
const SYNC: Duration = Duration::from_millis(5);
const ADMISSION: Duration = Duration::from_micros(20);

/// One direction of the link: frames arrive in order, each after those before it.
#[derive(Default)]
struct Wire {
    free_at: Duration,
    frames: VecDeque<(Duration, Bytes)>,
    bytes: usize,
    most_bytes: usize,
}

impl Wire {
    fn send(&mut self, now: Duration, frame: Bytes) {
        let nanos = frame.len() as u64 * 1_000_000_000 / BYTES_PER_SECOND;
        self.free_at = self.free_at.max(now) + Duration::from_nanos(nanos);
        self.bytes += frame.len();
        self.most_bytes = self.most_bytes.max(self.bytes);
        self.frames.push_back((self.free_at + LATENCY, frame));
    }

    fn receive(&mut self, now: Duration) -> Option<Bytes> {
        let (_, frame) = self.frames.pop_front_if(|(at, _)| *at <= now)?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

/// A batch that waits for the store or is in it.
struct Batch {
    lane: Lane,
    batch: u64,
    items: Vec<Bytes>,
}

/// A publisher, node 0, and a peer of it, node 1, whose store is slow.
struct Pair {
    now: Duration,
    cores: [Replication; 2],
    shelves: [Shelf; 2],
    /// To each node.
    wires: [Wire; 2],
    waiting: VecDeque<Batch>,
    most_waiting: usize,
    admitting: Option<(Duration, Batch)>,
    /// When each record was durable at its publisher.
    written: BTreeMap<Hash, Duration>,
    took: Vec<Duration>,
}

impl Pair {
    fn new() -> Self {
        let core = |n: u8| Replication::new(node(n), n.into(), Config::default());
        let mut pair = Self {
            now: Duration::ZERO,
            cores: [core(1), core(2)],
            shelves: [(); 2].map(|()| Shelf::new(&[Lane::Authority, SPACE])),
            wires: [Wire::default(), Wire::default()],
            waiting: VecDeque::new(),
            most_waiting: 0,
            admitting: None,
            written: BTreeMap::new(),
            took: Vec::new(),
        };
        pair.input(0, Input::PeerUp(node(2)));
        pair.input(1, Input::PeerUp(node(1)));
        pair
    }

    fn input(&mut self, to: usize, input: Input) {
        let outputs = self.cores[to].handle(self.now, input, &self.shelves[to]);
        self.carry_out(to, outputs);
    }

    fn carry_out(&mut self, of: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { frame, .. } => self.wires[1 - of].send(self.now, frame),
                Output::Admit {
                    lane, batch, items, ..
                } => {
                    assert_eq!(of, 1, "the publisher lacks nothing");
                    let batch = Batch { lane, batch, items };
                    // The shell does the same: records overtake fragments.
                    let place = match lane {
                        Lane::Authority => 0,
                        Lane::Space(_) => self.waiting.len(),
                    };
                    self.waiting.insert(place, batch);
                    self.most_waiting = self.most_waiting.max(self.waiting.len());
                }
                Output::Misbehaved { what, .. } => panic!("node {of} was told off: {what}"),
                _ => {}
            }
        }
    }

    fn publish(&mut self, lane: Lane, item: Bytes) {
        let id = Hash::of(&item);
        self.shelves[0].put(lane, item);
        if lane == Lane::Authority {
            self.written.insert(id, self.now);
        }
        self.input(
            0,
            Input::Stored {
                lane,
                id,
                own: true,
            },
        );
    }

    fn admit(&mut self) {
        if let Some((_, done)) = self.admitting.take_if(|(at, _)| *at <= self.now) {
            let mut outcomes = Vec::new();
            for item in done.items {
                let id = Hash::of(&item);
                let is_new = self.shelves[1].put(done.lane, item);
                if let Some(written) = self.written.get(&id).filter(|_| is_new) {
                    self.took.push(self.now - *written);
                }
                outcomes.push(match is_new {
                    true => ItemOutcome::Stored,
                    false => ItemOutcome::Known,
                });
            }
            let (from, lane, batch) = (node(1), done.lane, done.batch);
            let done = Input::AdmitDone {
                from,
                lane,
                batch,
                outcomes,
            };
            self.input(1, done);
        }
        if self.admitting.is_none()
            && let Some(next) = self.waiting.pop_front()
        {
            let items = u32::try_from(next.items.len()).unwrap();
            self.admitting = Some((self.now + SYNC + ADMISSION * items, next));
        }
    }

    /// Goes on to what is due next, at the latest to `end`.
    fn run(&mut self, end: Duration) {
        loop {
            for to in 0..2 {
                while let Some(frame) = self.wires[to].receive(self.now) {
                    let from = node(2 - u8::try_from(to).unwrap());
                    self.input(to, Input::Frame { from, frame });
                }
                if self.cores[to]
                    .next_deadline()
                    .is_some_and(|due| due <= self.now)
                {
                    let outputs = self.cores[to].handle_timeout(self.now, &self.shelves[to]);
                    self.carry_out(to, outputs);
                }
            }
            self.admit();
            let arrivals = self.wires.iter().filter_map(|wire| wire.frames.front());
            let arrivals = arrivals.map(|(at, _)| *at);
            let stored = self.admitting.iter().map(|(at, _)| *at);
            let deadlines = self.cores.iter().filter_map(Replication::next_deadline);
            let due = arrivals.chain(stored).chain(deadlines).min();
            match due.filter(|due| *due <= end) {
                Some(due) => self.now = self.now.max(due),
                None => break,
            }
        }
        self.now = end;
    }
}

#[test]
fn records_pass_a_burst_of_a_hundred_thousand_fragments_within_a_tenth_of_a_second() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(2));
    let (mut published, mut records, mut next_record) = (0, 0, pair.now);
    while pair.shelves[1].sets[&SPACE].len() < FRAGMENTS as usize {
        let these = published..(published + EACH_TICK).min(FRAGMENTS);
        published = these.end;
        for n in these {
            let mut item = vec![0; FRAGMENT_BYTES];
            item[..4].copy_from_slice(&n.to_be_bytes());
            pair.publish(SPACE, item.into());
        }
        if pair.now >= next_record {
            pair.publish(Lane::Authority, format!("record {records}").into());
            records += 1;
            next_record += RECORD_EVERY;
        }
        pair.run(pair.now + TICK);
        assert!(
            pair.now < Duration::from_secs(120),
            "the burst does not arrive"
        );
    }
    pair.run(pair.now + Duration::from_secs(1));
    assert!(records > 40, "the burst took {:?} only", pair.now);
    assert_eq!(pair.took.len(), records, "each record arrived once");
    pair.took.sort_unstable();
    let p99 = pair.took[pair.took.len() * 99 / 100];
    assert!(
        p99 < Duration::from_millis(100),
        "{p99:?}, the last {:?}",
        pair.took.last()
    );
    // What is on its way is bounded by the windows, and a little for what announces it.
    let most = pair.wires[1].most_bytes;
    assert!(most < 2 << 20, "{most} bytes on the link");
    assert!(
        pair.most_waiting <= 2 * Config::default().window,
        "{}",
        pair.most_waiting
    );
}
