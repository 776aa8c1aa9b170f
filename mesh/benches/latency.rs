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

use iroh::{
    Endpoint, EndpointAddr,
    endpoint::{Connection, RecvStream, SendStream, presets},
};
use rhizome_identity::SpaceId;
use rhizome_memory::Event;
use rhizome_mesh::net::PeerState;
use support::Node;
use tempfile::TempDir;
use tokio::task::JoinHandle;

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

    let mut stream = RawStream::open().await;
    let mut disk = Disk::open();
    let mut round_trip = Samples::default();
    let mut append = Samples::default();
    let mut acked = Samples::default();
    let mut held = Samples::default();
    let mut recallable = Samples::default();
    let mut recall = Samples::default();
    for round in 0..WARM_UP + ROUNDS {
        // In turns, so that a busy minute of the machine falls on all.
        let echoed = stream.echo().await;
        let appended = disk.append();
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
        round_trip.push(echoed);
        append.push(appended);
        acked.push(ack - began);
        held.push(stored.saturating_duration_since(ack));
        recallable.push(found.saturating_duration_since(ack));
        recall.push(search);
    }
    let limit = round_trip.at(50) + append.at(50);
    println!("publish latency, three nodes on loopback, {ROUNDS} publishes one after the other");
    recallable.print("acknowledged on A -> recalled on B");
    println!(
        "{:<40} p50 {:>8.3} ms   the median is {:.1} times this (goal: at most 3)",
        "limit: round trip + append",
        ms(limit),
        recallable.at(50).as_secs_f64() / limit.as_secs_f64()
    );
    round_trip.print("  raw iroh stream, round trip");
    append.print("  durable append (write + fdatasync)");
    println!("of which");
    held.print("  acknowledged on A -> durable on B");
    recall.print("  the search that found it");
    println!("before it");
    acked.print("  publish acknowledged on A");
    stream.close().await;
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

/// A stream between two bare endpoints; one side sends back what it gets.
struct RawStream {
    client: Endpoint,
    server: Endpoint,
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    echo: JoinHandle<()>,
}

impl RawStream {
    async fn open() -> Self {
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
        let (send, recv) = connection.open_bi().await.expect("a stream opens");
        Self {
            client,
            server,
            connection,
            send,
            recv,
            echo,
        }
    }

    async fn echo(&mut self) -> Duration {
        let mut buffer = [7; PAYLOAD];
        let began = Instant::now();
        self.send
            .write_all(&buffer)
            .await
            .expect("the server reads");
        let read = self.recv.read_exact(&mut buffer);
        read.await.expect("the server echoes");
        began.elapsed()
    }

    async fn close(self) {
        drop((self.send, self.recv, self.connection));
        self.client.close().await;
        self.echo.abort();
        self.server.close().await;
    }
}

/// A file that grows by durable writes.
struct Disk {
    file: File,
    _dir: TempDir,
}

impl Disk {
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = File::create(dir.path().join("append")).expect("a file can be made");
        Self { file, _dir: dir }
    }

    fn append(&mut self) -> Duration {
        let began = Instant::now();
        self.file
            .write_all(&[7; PAYLOAD])
            .expect("the disk has room");
        self.file.sync_data().expect("the disk syncs");
        began.elapsed()
    }
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
