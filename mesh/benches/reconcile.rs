//! Bytes, round trips and time of reconciliation, with `negentropy` beside it.
//!
//! `cargo bench -p rhizome-mesh --bench reconcile`
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::time::{Duration, Instant};

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use rhizome_identity::Hash;
use rhizome_memory::IdSet;
use rhizome_mesh::proto::reconcile::{SessionKey, answer, decode, encode, open, pack};

const HELD: u64 = 100_000;
/// What a hundred differences may cost.
const MOST_BYTES: usize = 120_000;
const MOST_TRIPS: usize = 3;
const MAX_BYTES: usize = 256 * 1024 - 128;

struct Cost {
    bytes: usize,
    messages: usize,
    found: usize,
    time: Duration,
}

fn main() {
    println!("reconciliation of {HELD} ids a side, differences split evenly between the sides");
    println!("{:>7}  {:>26}  {:>26}", "", "rhizome", "negentropy 0.5.3");
    println!(
        "{:>7}  {:>10} {:>5} {:>9}  {:>10} {:>5} {:>9}",
        "differ", "bytes", "trips", "ms", "bytes", "trips", "ms"
    );
    for differ in [0, 2, 100, 10_000] {
        let (a, b) = pair(differ);
        let (ours, theirs) = (rhizome(&a, &b), negentropy(&a, &b));
        assert_eq!(ours.found as u64, differ, "rhizome missed something");
        assert_eq!(theirs.found as u64, differ, "negentropy missed something");
        println!(
            "{differ:>7}  {:>10} {:>5} {:>9.2}  {:>10} {:>5} {:>9.2}",
            ours.bytes,
            ours.messages.div_ceil(2),
            ours.time.as_secs_f64() * 1e3,
            theirs.bytes,
            theirs.messages.div_ceil(2),
            theirs.time.as_secs_f64() * 1e3,
        );
        if differ == 100 {
            println!("{:>7}  {:>10} {:>5}", "limit", MOST_BYTES, MOST_TRIPS);
        }
    }
    let started = Instant::now();
    let set: IdSet = (0..HELD).map(id).collect();
    let each = started.elapsed().as_nanos() / u128::from(HELD);
    println!("insert: {each} ns each into a set of {}", set.len());
    println!("trips count to the last message; the wants in a third trip travel with the items");
}

fn id(n: u64) -> Hash {
    Hash::of(&n.to_le_bytes())
}

fn pair(differ: u64) -> (IdSet, IdSet) {
    let both = (0..HELD - differ / 2).map(id);
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
