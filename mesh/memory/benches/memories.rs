//! What one more memory costs where there are few, and where there are very many.
//!
//! `cargo bench -p rhizome-memory --bench memories`; `MEMORIES` sets how many the large replica
//! holds, 1,000,000 by default. Both replicas are real ones, with their views, and publish in turns,
//! so that a busy moment of the machine falls on both; `times` compares the medians.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports on stdout and has nobody to return an error to"
)]

#[path = "../tests/support/mesh.rs"]
mod mesh;
#[path = "support/rate.rs"]
mod rate;
#[path = "support/shares.rs"]
mod shares;

use std::{
    env,
    path::Path,
    time::{Duration, Instant},
};

use mesh::Mesh;
use rate::{Rate, on_core, since_start};
use rhizome_identity::Hash;
use rhizome_memory::{Draft, Kind, PublishRequest, Published, Replica};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// Takes the place of [`MANY`] when `cargo test` only looks whether the benchmark works.
const FOR_TEST: usize = 2_000;
/// How many times as much it may cost in the large replica.
const MOST_TIMES: f64 = 1.2;
const PUBLISHES: usize = 1_000;
/// How many memories are published while the view is behind.
const LEAD: usize = 4096;
const TEXT: &str = "the test suite fails in parse_duration when a week is given with a fraction";

fn main() {
    let is_test = !env::args().any(|argument| argument == "--bench");
    let asked = env::var("MEMORIES").ok();
    let asked = asked.and_then(|count| count.parse().ok());
    let many = asked.unwrap_or(if is_test { FOR_TEST } else { MANY });

    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let small = open(&mesh, &dir.path().join("small"));
    let large = open(&mesh, &dir.path().join("large"));
    fill(&mesh, &small, FEW);
    let begun = Instant::now();
    fill(&mesh, &large, many);
    let filled = begun.elapsed().as_secs_f64();
    println!("durable publishing among {FEW} and among {many} memories, filled in {filled:.0} s");
    println!("{:<28} {:<44} {:<44} {:>6}", "", FEW, many, "times");
    let replicas = [&small, &large];
    let one = |replica: &Replica| {
        publish(&mesh, replica);
    };
    let read_back = |replica: &Replica| {
        let published = publish(&mesh, replica);
        let memory = replica.memory(&mesh.space, &published.doc).unwrap();
        assert!(memory.is_some());
    };
    compare("durable", true, since_start, one, replicas);
    compare("the same, time on a core", true, on_core, one, replicas);
    compare(
        "durable and read back",
        false,
        since_start,
        read_back,
        replicas,
    );
    large.close().unwrap();
    drop(large);
    let begun = Instant::now();
    let large = open(&mesh, &dir.path().join("large"));
    println!(
        "open again with the view of {many}: {:.0} ms",
        begun.elapsed().as_secs_f64() * 1e3
    );
    assert!(mesh.ids(&large) >= many);
}

/// Measures the same in two replicas, in turns, and prints how the second stands to the first.
fn compare(
    what: &str,
    is_limited: bool,
    clock: impl Fn() -> Duration,
    act: impl Fn(&Replica),
    replicas: [&Replica; 2],
) {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..PUBLISHES {
        for (each, replica) in rates.iter_mut().zip(replicas) {
            let begun = clock();
            act(replica);
            each.push(clock() - begun);
        }
    }
    let [few, many] = rates.map(Rate::of);
    let times = many.p50_micros() / few.p50_micros();
    let limit = match is_limited {
        true => format!("limit {MOST_TIMES}"),
        false => String::new(),
    };
    println!(
        "{what:<28} {:<44} {:<44} {times:>6.2} {limit}",
        few.to_string(),
        many.to_string()
    );
}

fn open(mesh: &Mesh, dir: &Path) -> Replica {
    let config = shares::unbounded();
    mesh.open_with(0, dir, config)
}

/// Publishes so many memories with few syncs, and waits until the view has them all.
fn fill(mesh: &Mesh, replica: &Replica, count: usize) {
    let agent = &mesh.nodes[0].agent;
    let mut left = count;
    while left > 0 {
        let some = left.min(LEAD);
        let requests: Vec<_> = (left - some..left).map(|n| request(mesh, n)).collect();
        let published = replica.publish_all(agent, &requests);
        let last = published.into_iter().map(Result::unwrap).last().unwrap();
        // The next ones are handed to the view in memory if it is not too far behind.
        let memory = replica.memory(&mesh.space, &last.doc).unwrap();
        assert!(memory.is_some());
        left -= some;
    }
    replica.flush().unwrap();
}

fn publish(mesh: &Mesh, replica: &Replica) -> Published {
    // Where it comes in the order of arrival tells it from all others.
    let n = usize::try_from(replica.last_arrival()).unwrap();
    let request = request(mesh, usize::MAX - n);
    replica.publish(&mesh.nodes[0].agent, request).unwrap()
}

fn request(mesh: &Mesh, n: usize) -> PublishRequest {
    PublishRequest {
        space: mesh.space,
        draft: Draft::new(Kind::Fact, format!("{n} {TEXT}"), "found in a benchmark"),
        fingerprint: Hash::of(b"runtime"),
    }
}
