//! What the boundary costs: round trips and throughput through the gateway, beside a plain
//! connection over loopback.
//!
//! Both ends are in this process: the guest's stack (the same one, on the other side), the
//! gateway, and an origin on loopback. So the figures hold two stacks and no virtual machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prepares what it needs, and prints"
)]

#[path = "../tests/egress_support/client.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod client;
#[path = "../tests/egress_support/world.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod world;

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use world::{Guarded, echo, listen};

/// Round trips that are timed.
const TRIPS: usize = 500;
/// Bytes that are sent, or taken, in one measurement of throughput.
const MUCH: usize = 32 << 20;
const RUNS: usize = 3;

fn main() {
    // Under `cargo test` there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let guarded = Guarded::new("allow 10.0.0.5");
    let echoing = listen(echo).await;
    let sinking = listen(sink).await;
    let pouring = listen(pour).await;
    for (port, here) in [(7, echoing), (9, sinking), (19, pouring)] {
        guarded.world.server(&format!("10.0.0.5:{port}"), here);
    }
    println!("{:<28} {:>14} {:>14}", "", "loopback", "gateway");
    let direct = round_trip(TcpStream::connect(("127.0.0.1", echoing)).await.unwrap()).await;
    let guest = round_trip(guarded.client.connect("10.0.0.5:7").await.unwrap()).await;
    println!(
        "{:<28} {direct:>14.1?} {guest:>14.1?}",
        "round trip, 1 byte, median"
    );
    let mut direct = Duration::MAX;
    let mut guest = Duration::MAX;
    for _ in 0..100 {
        let begun = Instant::now();
        drop(TcpStream::connect(("127.0.0.1", echoing)).await.unwrap());
        direct = direct.min(begun.elapsed());
        let begun = Instant::now();
        drop(guarded.client.connect("10.0.0.5:7").await.unwrap());
        guest = guest.min(begun.elapsed());
    }
    println!(
        "{:<28} {direct:>14.1?} {guest:>14.1?}",
        "connection, best of 100"
    );
    for (what, port, here) in [
        ("out of the guest", 9, sinking),
        ("into the guest", 19, pouring),
    ] {
        let (mut direct, mut guest) = (f64::MAX, f64::MAX);
        for _ in 0..RUNS {
            let stream = TcpStream::connect(("127.0.0.1", here)).await.unwrap();
            direct = direct.min(transfer(stream, port).await);
            let stream = guarded
                .client
                .connect(format!("10.0.0.5:{port}"))
                .await
                .unwrap();
            guest = guest.min(transfer(stream, port).await);
        }
        let rate = |seconds: f64| format!("{:.0} MiB/s", (MUCH >> 20) as f64 / seconds);
        println!("{what:<28} {:>14} {:>14}", rate(direct), rate(guest));
    }
    let usage = guarded.boundaries.usage(&guarded.id);
    println!(
        "{} MiB out, {} MiB in, {} connections",
        usage.sent_bytes >> 20,
        usage.received_bytes >> 20,
        usage.connections
    );
}

async fn round_trip(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Duration {
    let mut times = Vec::new();
    let mut byte = [1];
    for _ in 0..TRIPS {
        let begun = Instant::now();
        stream.write_all(&byte).await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times[TRIPS / 2]
}

/// Returns the seconds that all bytes took, to their last acknowledgement.
async fn transfer(mut stream: impl AsyncRead + AsyncWrite + Unpin, port: u16) -> f64 {
    let begun = Instant::now();
    let mut buffer = vec![7; 64 * 1024];
    if port == 9 {
        for _ in 0..MUCH / buffer.len() {
            stream.write_all(&buffer).await.unwrap();
        }
        stream.shutdown().await.unwrap();
        // The other end says how much it got.
        let mut got = [0; 8];
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(u64::from_le_bytes(got), MUCH as u64);
    } else {
        let mut got = 0;
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                len => got += len,
            }
        }
        assert_eq!(got, MUCH);
    }
    begun.elapsed().as_secs_f64()
}

async fn sink(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    let mut got = 0_u64;
    while let Ok(len) = stream.read(&mut buffer).await {
        if len == 0 {
            break;
        }
        got += len as u64;
    }
    let _ = stream.write_all(&got.to_le_bytes()).await;
}

async fn pour(mut stream: TcpStream) {
    let buffer = vec![7; 64 * 1024];
    for _ in 0..MUCH / buffer.len() {
        if stream.write_all(&buffer).await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}
