//! What a transfer costs, and what it costs over a bare stream of iroh on loopback: the limit.
#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each benchmark uses its share, and reports on stdout"
)]

use std::time::{Duration, Instant};

use iroh::{Endpoint, EndpointAddr, endpoint::presets};

const ALPN: &[u8] = b"/rhizome/bench/1";
/// What a stream is given at a time, in bytes.
pub(crate) const PIECE: usize = 64 * 1024;

/// What a transfer cost.
pub(crate) struct Cost {
    pub(crate) took: Duration,
    pub(crate) cpu: Duration,
}

impl Cost {
    /// Measures a transfer.
    pub(crate) async fn of(work: impl Future<Output = ()>) -> Self {
        let (began, cpu) = (Instant::now(), cpu_time());
        work.await;
        Self {
            took: began.elapsed(),
            cpu: cpu_time().saturating_sub(cpu),
        }
    }

    /// Prints the rate at which `size` bytes went over.
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn print(&self, what: &str, size: u64) {
        let mb = size as f64 / 1e6;
        println!(
            "{what:<40} {:>8.1} MB/s   {:>7.2} s of CPU, {:>6.1} ms for each MB",
            mb / self.took.as_secs_f64(),
            self.cpu.as_secs_f64(),
            self.cpu.as_secs_f64() * 1e3 / mb
        );
    }
}

/// Returns the processor time of this process, kernel included.
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let mut fields = after_name.split_whitespace().skip(11);
    let mut ticks = || {
        fields
            .next()
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    // A hundred ticks a second, on every Linux that this runs on.
    Duration::from_millis((ticks() + ticks()) * 10)
}

/// Sends `size` bytes, a multiple of [`PIECE`], over one stream of iroh as it is.
pub(crate) async fn iroh_stream(size: u64) -> Cost {
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
    let sockets = server.bound_sockets().into_iter();
    let addr = sockets.fold(EndpointAddr::new(server.id()), |addr, ip| {
        addr.with_ip_addr(ip)
    });
    let sender = server.clone();
    let sends = tokio::spawn(async move {
        let incoming = sender.accept().await.expect("one connection comes");
        let connection = incoming.await.expect("the handshake succeeds");
        let (mut send, _recv) = connection.accept_bi().await.expect("one stream comes");
        let piece = vec![7; PIECE];
        for _ in 0..size / PIECE as u64 {
            send.write_all(&piece).await.expect("the client reads");
        }
        send.finish().expect("the stream is open");
        connection.closed().await;
    });
    let connection = client.connect(addr, ALPN).await.expect("loopback connects");
    let (mut ask, mut recv) = connection.open_bi().await.expect("a stream opens");
    let cost = Cost::of(async {
        ask.write_all(b"!").await.expect("the server reads");
        let mut read = 0;
        let mut piece = vec![0; PIECE];
        while let Some(more) = recv.read(&mut piece).await.expect("the server sends") {
            read += more as u64;
        }
        assert_eq!(read, size);
    })
    .await;
    connection.close(0_u32.into(), b"done");
    sends.await.expect("the sender ends");
    client.close().await;
    server.close().await;
    cost
}
