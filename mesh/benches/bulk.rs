//! How fast a large file goes to another node, beside its limits.
//!
//! Two nodes in one process on loopback: both sides share the same cores, so what costs processor
//! time costs throughput, and the seconds of it are printed. Limits, each over one stream: iroh as
//! it is under us, and quinn, the parent of iroh's QUIC, with a self-signed certificate.
//! `BULK_MIB` sets the size, 256 by default.

#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/stream.rs"]
mod stream;
#[path = "../tests/support/net.rs"]
mod support;

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use rhizome_identity::Hash;
use rhizome_mesh::net::PeerState;
use stream::{Cost, PIECE, iroh_stream};
use support::{Node, stop_all};

const DEFAULT_MIB: u64 = 256;

fn main() {
    // `cargo test` runs benchmarks to see that they work, and need not wait for all of it.
    let is_test = !std::env::args().any(|arg| arg == "--bench");
    let asked = std::env::var("BULK_MIB")
        .ok()
        .and_then(|mib| mib.parse().ok());
    let mib = asked.unwrap_or(if is_test { 4 } else { DEFAULT_MIB });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(mib));
}

async fn run(mib: u64) {
    let size = mib * 1024 * 1024;
    println!("bulk transfer of {mib} MiB over loopback, both sides in one process");
    let blob = blob(size).await;
    let iroh = iroh_stream(size).await;
    let quinn = quinn_stream(size).await;
    blob.print("file to file, verified (iroh-blobs)", size);
    iroh.print("limit: raw iroh stream", size);
    quinn.print("limit: raw quinn stream", size);
    println!(
        "{:<40} {:>8.2} of quinn's rate, {:.2} of iroh's",
        "our path",
        quinn.took.as_secs_f64() / blob.took.as_secs_f64(),
        iroh.took.as_secs_f64() / blob.took.as_secs_f64()
    );
}

async fn blob(size: u64) -> Cost {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    b.join(&a.invite(&[space], 1, 60_000)).await;
    b.sees(a.id(), PeerState::Connected).await;
    let dir = tempfile::tempdir().expect("a directory can be made");
    let (path, hash) = file(dir.path(), size);
    a.mesh
        .serve_file(hash, &path)
        .await
        .expect("the file is there");
    let to = dir.path().join("received");
    let cost = Cost::of(async {
        let from = [a.id()];
        let fetched = b.mesh.fetch_file(hash, &from, &to, size, &|_, _| {}).await;
        assert_eq!(fetched.expect("it arrives"), size);
    })
    .await;
    stop_all([a, b]).await;
    cost
}

/// Writes a file that compresses to nothing less and repeats nowhere.
fn file(dir: &Path, size: u64) -> (PathBuf, Hash) {
    let path = dir.join("sent");
    let mut out = std::fs::File::create(&path).expect("a file can be made");
    let mut hasher = blake3::Hasher::new();
    let mut noise = blake3::Hasher::new().finalize_xof();
    let mut piece = vec![0; PIECE];
    for _ in 0..size / PIECE as u64 {
        noise.fill(&mut piece);
        hasher.update(&piece);
        out.write_all(&piece).expect("the disk has room");
    }
    (path, Hash::from_bytes(*hasher.finalize().as_bytes()))
}

async fn quinn_stream(size: u64) -> Cost {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let rcgen::CertifiedKey { cert, key_pair } = made.expect("a certificate can be made");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key_pair.serialize_der());
    let served = quinn::ServerConfig::with_single_cert(vec![cert.der().clone()], key.into());
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = quinn::Endpoint::server(served.expect("the certificate is one"), here)
        .expect("loopback can be bound");
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(cert.der().clone())
        .expect("the certificate is one");
    let trusted = quinn::ClientConfig::with_root_certificates(Arc::new(roots));
    let mut client = quinn::Endpoint::client(here).expect("loopback can be bound");
    client.set_default_client_config(trusted.expect("the roots are some"));
    let addr = server.local_addr().expect("it is bound");
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
    let connecting = client
        .connect(addr, "localhost")
        .expect("an address and a name");
    let connection = connecting.await.expect("loopback connects");
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
    client.wait_idle().await;
    cost
}
