//! Bytes, round trips and time of reconciliation, with `negentropy` beside it.
//!
//! `cargo bench -p rhizome-mesh --bench reconcile`. `RECONCILE_LARGE` sets how many ids the large
//! pair of sets holds a side, 1,000,000 by default; the limit beside it is for as many.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::time::{Duration, Instant};

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use rhizome_identity::Hash;
use rhizome_memory::IdSet;
use rhizome_mesh::proto::reconcile::{SessionKey, answer, decode, encode, open, pack};

const HELD: u64 = 100_000;
const LARGE: u64 = 1_000_000;
/// What a hundred differences among [`HELD`] may cost.
const HUNDRED: Limit = Limit {
    bytes: 120_000,
    trips: 3,
};
/// What ten differences among [`LARGE`] may cost.
const TEN_OF_LARGE: Limit = Limit {
    bytes: 20_000,
    trips: 4,
};
const MAX_BYTES: usize = 256 * 1024 - 128;

struct Cost {
    bytes: usize,
    messages: usize,
    found: usize,
    time: Duration,
}

impl Cost {
    fn trips(&self) -> usize {
        self.messages.div_ceil(2)
    }
}

/// What finding the differences may cost at most.
struct Limit {
    bytes: usize,
    trips: usize,
}

fn main() {
    let asked = std::env::var("RECONCILE_LARGE").ok();
    let large = asked.and_then(|ids| ids.parse().ok()).unwrap_or(LARGE);
    println!("reconciliation of two sets of ids, differences split evenly between the sides");
    println!("{:>16}  {:>26}  {:>26}", "", "rhizome", "negentropy 0.5.3");
    println!(
        "{:>8} {:>7}  {:>10} {:>5} {:>9}  {:>10} {:>5} {:>9}",
        "ids", "differ", "bytes", "trips", "ms", "bytes", "trips", "ms"
    );
    for (differ, limit) in [(0, None), (2, None), (100, Some(HUNDRED)), (10_000, None)] {
        compare(HELD, differ, limit.as_ref());
    }
    compare(large, 10, Some(&TEN_OF_LARGE));
    let started = Instant::now();
    let set: IdSet = (0..HELD).map(id).collect();
    let each = started.elapsed().as_nanos() / u128::from(HELD);
    println!("insert: {each} ns each into a set of {}", set.len());
    println!("trips count to the last message; the wants in a third trip travel with the items");
}

/// Reconciles two sets both ways, and prints what that cost beside what it may cost.
fn compare(held: u64, differ: u64, limit: Option<&Limit>) {
    let (a, b) = pair(held, differ);
    let (ours, theirs) = (rhizome(&a, &b), negentropy(&a, &b));
    assert_eq!(ours.found as u64, differ, "rhizome missed something");
    assert_eq!(theirs.found as u64, differ, "negentropy missed something");
    println!(
        "{held:>8} {differ:>7}  {:>10} {:>5} {:>9.2}  {:>10} {:>5} {:>9.2}",
        ours.bytes,
        ours.trips(),
        ours.time.as_secs_f64() * 1e3,
        theirs.bytes,
        theirs.trips(),
        theirs.time.as_secs_f64() * 1e3,
    );
    if let Some(Limit { bytes, trips }) = limit {
        println!("{:>16}  {bytes:>10} {trips:>5}", "limit");
    }
}

fn id(n: u64) -> Hash {
    Hash::of(&n.to_le_bytes())
}

fn pair(held: u64, differ: u64) -> (IdSet, IdSet) {
    let both = (0..held - differ / 2).map(id);
    let only = |from: u64| (from..from + differ / 2).map(id);
    (
        both.clone().chain(only(1 << 40)).collect(),
        both.chain(only(1 << 41)).collect(),
    )
}

fn rhizome(a: &IdSet, b: &IdSet) -> Cost {
    let key = SessionKey::new(&[7; 16]);
    let started = Instant::now();
    let mut cost = Cost {
        bytes: 0,
        messages: 0,
        found: 0,
        time: Duration::ZERO,
    };
    let mut messages = pack(open(a, &key), MAX_BYTES);
    let mut turn = 0;
    while !messages.is_empty() {
        cost.messages += 1;
        turn = 1 - turn;
        let mut next = Vec::new();
        for parts in messages {
            let mut bytes = Vec::new();
            encode(&parts, &mut bytes);
            cost.bytes += bytes.len();
            let parts = decode(&bytes).expect("our own message");
            let answer = answer([a, b][turn], &key, &parts);
            cost.found += answer.send.len();
            next.extend(pack(answer.parts, MAX_BYTES));
        }
        messages = next;
    }
    cost.time = started.elapsed();
    cost
}

fn negentropy(a: &IdSet, b: &IdSet) -> Cost {
    let storage = |set: &IdSet| {
        let mut storage = NegentropyStorageVector::with_capacity(set.len());
        for id in set {
            storage
                .insert(0, Id::from_byte_array(*id.as_bytes()))
                .expect("unsealed");
        }
        storage.seal().expect("no duplicates");
        storage
    };
    let (a, b) = (storage(a), storage(b));
    let started = Instant::now();
    let mut ours = Negentropy::borrowed(&a, 0).expect("no frame limit");
    let mut theirs = Negentropy::borrowed(&b, 0).expect("no frame limit");
    let (mut have, mut need) = (Vec::new(), Vec::new());
    let mut cost = Cost {
        bytes: 0,
        messages: 0,
        found: 0,
        time: Duration::ZERO,
    };
    let mut message = Some(ours.initiate().expect("sealed"));
    while let Some(query) = message {
        let answer = theirs.reconcile(&query).expect("our own message");
        cost.bytes += query.len() + answer.len();
        cost.messages += 2;
        message = ours
            .reconcile_with_ids(&answer, &mut have, &mut need)
            .expect("an answer");
    }
    cost.found = have.len() + need.len();
    cost.time = started.elapsed();
    cost
}
