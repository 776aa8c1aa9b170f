//! How long after an acknowledged publish another node can recall it, beside its limits.
//!
//! Three nodes in one process on loopback. The limit is the round trip of a raw iroh stream on
//! the same path plus one durable write on the same disk.

#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "../tests/support/net.rs"]
mod support;

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use iroh::{Endpoint, EndpointAddr, endpoint::presets};
use rhizome_identity::SpaceId;
use rhizome_memory::Event;
use rhizome_mesh::net::PeerState;
use support::Node;

const ROUNDS: usize = 200;
const WARM_UP: usize = 20;
/// About the size of a small fragment on the wire.
const PAYLOAD: usize = 600;
const ALPN: &[u8] = b"/rhizome/bench/1";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run());
}

async fn run() {
    let round_trip = raw_round_trip().await;
    let append = durable_append();
    let a = Node::start("a").await;
    let space = a.found();
    let (b, c) = (Node::start("b").await, Node::start("c").await);
    let invite = a.invite(&[space], 2, 60_000);
    b.join(&invite).await;
    c.join(&invite).await;
    for (one, two) in [(&a, &b), (&a, &c), (&b, &c)] {
        one.sees(two.id(), PeerState::Connected).await;
        two.sees(one.id(), PeerState::Connected).await;
    }
    let first = a
        .publish(space, "first", "so that the topics are joined")
        .await;
    b.receives(first.id).await;

    let mut acked = Samples::default();
    let mut held = Samples::default();
    let mut recallable = Samples::default();
    let mut recall = Samples::default();
    for round in 0..WARM_UP + ROUNDS {
        let word = format!("wombat{round}x");
        let mut events = b.replica.events();
        let began = Instant::now();
        let published = a
            .publish(space, &word, "a finding of ordinary length")
            .await;
        let ack = Instant::now();
        loop {
            match events.recv().await {
                Ok(Event::Stored { id, .. }) if id == published.id.into() => break,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let stored = Instant::now();
        let (found, search) = recalled(&b, space, &word).await;
        if round < WARM_UP {
            continue;
        }
        acked.push(ack - began);
        held.push(stored.saturating_duration_since(ack));
        recallable.push(found.saturating_duration_since(ack));
        recall.push(search);
    }
    let limit = round_trip.at(50) + append.at(50);
    println!("publish latency, three nodes on loopback, {ROUNDS} publishes one after the other");
    round_trip.print("raw iroh stream round trip");
    append.print("durable append (write + fdatasync)");
    acked.print("publish acknowledged on A");
    held.print("acknowledged on A -> durable on B");
    recallable.print("acknowledged on A -> recalled on B");
    recall.print("  of which the search itself");
    println!(
        "limit (round trip + append) {:.3} ms; median is {:.2} times the limit (goal: at most 3)",
        ms(limit),
        recallable.at(50).as_secs_f64() / limit.as_secs_f64()
    );
    for node in [a, b, c] {
        node.stop().await;
    }
}

/// Searches until the word is found; returns when, and how long the last search took.
async fn recalled(node: &Node, space: SpaceId, word: &str) -> (Instant, Duration) {
    loop {
        let began = Instant::now();
        if node.recalls(space, word) {
            return (Instant::now(), began.elapsed());
        }
        tokio::task::yield_now().await;
    }
}

async fn raw_round_trip() -> Samples {
    let bind = || async {
        Endpoint::builder(presets::Minimal)
            .alpns(vec![ALPN.to_vec()])
            .clear_ip_transports()
            .bind_addr("127.0.0.1:0")
            .expect("loopback is an address")
            .bind()
            .await
            .expect("loopback can be bound")
    };
    let (client, server) = (bind().await, bind().await);
    let addr = server
        .bound_sockets()
        .into_iter()
        .fold(EndpointAddr::new(server.id()), |addr, ip| {
            addr.with_ip_addr(ip)
        });
    let echo = server.clone();
    let echo = tokio::spawn(async move {
        let incoming = echo.accept().await.expect("one connection comes");
        let connection = incoming.await.expect("the handshake succeeds");
        let (mut send, mut recv) = connection.accept_bi().await.expect("one stream comes");
        let mut buffer = [0; PAYLOAD];
        while recv.read_exact(&mut buffer).await.is_ok() {
            send.write_all(&buffer).await.expect("the client reads");
        }
    });
    let connection = client.connect(addr, ALPN).await.expect("loopback connects");
    let (mut send, mut recv) = connection.open_bi().await.expect("a stream opens");
    let mut samples = Samples::default();
    let mut buffer = [7; PAYLOAD];
    for round in 0..WARM_UP + ROUNDS {
        let began = Instant::now();
        send.write_all(&buffer).await.expect("the server reads");
        recv.read_exact(&mut buffer)
            .await
            .expect("the server echoes");
        if round >= WARM_UP {
            samples.push(began.elapsed());
        }
    }
    drop((send, connection));
    client.close().await;
    echo.abort();
    server.close().await;
    samples
}

fn durable_append() -> Samples {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut file = File::create(dir.path().join("append")).expect("a file can be made");
    let mut samples = Samples::default();
    for round in 0..WARM_UP + ROUNDS {
        let began = Instant::now();
        file.write_all(&[7; PAYLOAD]).expect("the disk has room");
        file.sync_data().expect("the disk syncs");
        if round >= WARM_UP {
            samples.push(began.elapsed());
        }
    }
    samples
}

#[derive(Default)]
struct Samples(Vec<Duration>);

impl Samples {
    fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    fn at(&self, percentile: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let index = (sorted.len() * percentile / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }

    fn print(&self, what: &str) {
        println!(
            "{what:<40} p50 {:>8.3} ms   p99 {:>8.3} ms",
            ms(self.at(50)),
            ms(self.at(99))
        );
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
