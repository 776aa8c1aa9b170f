//! How soon a newcomer holds a space with very many fragments, beside its limit.
//!
//! Two whole nodes in one process on loopback; the newcomer joins by an invite and is done when
//! every fragment is durable there. It reads the space, so its view is at work on the same cores
//! meanwhile. The limit is the same bytes over one stream of iroh as it is, and after that what it
//! takes one core to decode them and verify their signatures in batches.
//! `COLD_FRAGMENTS` sets how many, 100,000 by default.

#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/stream.rs"]
mod stream;
#[path = "../tests/support/net.rs"]
mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use rhizome_identity::{AgentKey, Hash, SpaceId};
use rhizome_memory::{Draft, Fragment, Kind, Lane, PublishRequest, check_signatures};
use stream::{Cost, PIECE, iroh_stream};
use support::{Node, stop_all};

const FRAGMENTS: usize = 100_000;
/// As many when `cargo test` only looks whether the benchmark works.
const FEW: usize = 500;
/// How many are published, and are read back, at a time.
const LEAD: usize = 4096;
const BATCH: usize = 256;
/// How many times as long as its limit it may take.
const MOST_TIMES: f64 = 2.0;
const TEXT: &str = "the test suite fails in parse_duration when a week is given with a fraction";
/// How often the newcomer is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// After this the newcomer is not coming.
const PATIENCE: Duration = Duration::from_secs(600);

fn main() {
    let is_test = !std::env::args().any(|arg| arg == "--bench");
    let asked = std::env::var("COLD_FRAGMENTS").ok();
    let asked = asked.and_then(|count| count.parse().ok());
    let count = asked.unwrap_or(if is_test { FEW } else { FRAGMENTS });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(count));
}

async fn run(count: usize) {
    let a = Node::start("a").await;
    let space = a.found();
    fill(&a, space, count).await;
    let wires = wires(&a, space);
    let size: usize = wires.iter().map(Bytes::len).sum();
    println!(
        "cold sync of {count} fragments, {:.1} MB, over loopback, both sides in one process",
        size as f64 / 1e6
    );

    let b = Node::start("b").await;
    let invite = a.invite(&[space], 1, 60_000);
    let begun = Instant::now();
    let cost = Cost::of(async {
        b.join(&invite).await;
        holds(&b, space, count).await;
    })
    .await;
    let replica = b.replica.clone();
    let flushed = tokio::task::spawn_blocking(move || replica.flush()).await;
    flushed.expect("no panic").expect("the view can be written");
    let in_view = begun.elapsed();
    stop_all([a, b]).await;

    let bytes = size.next_multiple_of(PIECE) as u64;
    let transfer = iroh_stream(bytes).await;
    let verification = Cost::of(async { verify(&wires) }).await;
    cost.print("joined, and everything durable", size as u64);
    println!(
        "{:<40} {:>8.2} s",
        "  and in the view",
        in_view.as_secs_f64()
    );
    transfer.print("limit: raw iroh stream", bytes);
    verification.print("  and decoded and verified, one core", size as u64);
    let limit = transfer.took + verification.took;
    println!(
        "{:<40} {:>8.2} s, limit {:.2} s: {:.2} times, at most {MOST_TIMES}",
        "our path",
        cost.took.as_secs_f64(),
        limit.as_secs_f64(),
        cost.took.as_secs_f64() / limit.as_secs_f64()
    );
}

/// Publishes so many memories, and waits until the view has them.
async fn fill(node: &Node, space: SpaceId, count: usize) {
    let replica = node.replica.clone();
    let agent = AgentKey::from_seed(*node.agent.secret_bytes());
    let request = move |n| PublishRequest {
        space,
        draft: Draft::new(Kind::Fact, format!("{n} {TEXT}"), "found in a benchmark"),
        fingerprint: Hash::of(b"runtime"),
    };
    let work = move || {
        for from in (0..count).step_by(LEAD) {
            let requests: Vec<_> = (from..count.min(from + LEAD)).map(request).collect();
            for published in replica.publish_all(&agent, &requests) {
                published.expect("the node may write");
            }
        }
        replica.flush().expect("the view can be written");
    };
    tokio::task::spawn_blocking(work).await.expect("no panic");
}

/// Returns the wire form of everything in the space.
fn wires(node: &Node, space: SpaceId) -> Vec<Bytes> {
    let lane = Lane::Space(space);
    let set = node.replica.id_set(lane);
    let set = set.read().expect("nobody panicked").clone();
    let ids: Vec<Hash> = set.iter().copied().collect();
    let of = |ids: &[Hash]| node.replica.wires(lane, ids, usize::MAX);
    ids.chunks(LEAD).flat_map(of).collect()
}

async fn holds(node: &Node, space: SpaceId, count: usize) {
    let set = node.replica.id_set(Lane::Space(space));
    let all = async {
        while set.read().expect("nobody panicked").len() < count {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, all).await;
    came.expect("everything arrives");
}

fn verify(wires: &[Bytes]) {
    for wires in wires.chunks(BATCH) {
        let decoded = wires.iter().map(Fragment::decode);
        let decoded: Vec<Fragment> = decoded.collect::<Result<_, _>>().expect("our own bytes");
        assert!(check_signatures(&decoded).into_iter().all(|valid| valid));
    }
}
