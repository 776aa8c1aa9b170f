//! The boundary between a guest's packets and the world, both ends in this process.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and noise")]

#[path = "egress_support/client.rs"]
mod client;
#[path = "egress_support/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use simple_dns::{RCODE, TYPE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use world::{Guarded, connector, echo, listen, mirror};

const PUBLIC: &str = "93.184.216.34";
const OTHER: &str = "151.101.1.69";

fn server_name(name: &str) -> rustls::pki_types::ServerName<'static> {
    name.to_owned().try_into().unwrap()
}

/// A world with `https://example.org` and `https://other.example` at two addresses.
async fn two_sites(policy: &str) -> (Guarded, Arc<Mutex<Vec<String>>>) {
    let guarded = Guarded::new(policy);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (name, address) in [("example.org", PUBLIC), ("other.example", OTHER)] {
        guarded.world.name(name, &[address]);
        let port = guarded.authority.serve(name, Arc::clone(&seen)).await;
        guarded.world.server(&format!("{address}:443"), port);
        let seen = Arc::clone(&seen);
        let port = listen(move |stream| mirror(stream, Arc::clone(&seen))).await;
        guarded.world.server(&format!("{address}:80"), port);
    }
    (guarded, seen)
}

async fn get(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    request: &str,
) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse::<usize>().unwrap() {
                return text.into_owned();
            }
        }
        if stream.read_buf(&mut answer).await.unwrap_or(0) == 0 {
            return String::from_utf8(answer).unwrap();
        }
    }
}

fn request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// Reads to the end; a reset looks the same.
async fn rest(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn an_allowed_name_is_reached_over_tls_and_http() {
    let (guarded, seen) = two_sites("allow example.org").await;
    let (code, addresses) = guarded.client.lookup("Example.ORG").await;
    assert_eq!(
        (code, &addresses[..]),
        (RCODE::NoError, &[PUBLIC.parse::<Ipv4Addr>().unwrap()][..])
    );
    assert_eq!(
        guarded.client.ask("example.org", TYPE::AAAA).await,
        (RCODE::NoError, vec![])
    );

    let stream = guarded
        .client
        .connect(format!("{PUBLIC}:443"))
        .await
        .unwrap();
    let connector = connector(guarded.authority.roots());
    let mut tls = connector
        .connect(server_name("example.org"), stream)
        .await
        .unwrap();
    assert!(
        get(&mut tls, &request("example.org"))
            .await
            .ends_with("hello")
    );

    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    for _ in 0..3 {
        assert!(
            get(&mut http, &request("example.org"))
                .await
                .ends_with("hello")
        );
    }
    assert_eq!(seen.lock().unwrap().len(), 4);
    let usage = guarded.boundaries.usage(&guarded.id);
    assert_eq!((usage.connections, usage.denied), (2, 0));
    assert!(
        usage.sent_bytes > 200 && usage.received_bytes > 1000,
        "{usage:?}"
    );
}

#[tokio::test]
async fn with_nothing_allowed_nothing_leaves_and_everything_is_told() {
    let (mut guarded, _) = two_sites("none").await;
    assert_eq!(
        guarded.client.lookup("example.org").await,
        (RCODE::NameError, vec![])
    );
    assert_eq!(guarded.event().await, "dns example.org: the policy `none`");
    assert_eq!(
        guarded.client.ask("example.org", TYPE::MX).await.0,
        RCODE::NameError
    );
    assert!(
        guarded
            .client
            .connect(format!("{PUBLIC}:443"))
            .await
            .is_err()
    );
    assert_eq!(
        guarded.event().await,
        "tcp 93.184.216.34:443: the policy `none`"
    );
    for to in [
        "127.0.0.1:80",
        "169.254.169.254:80",
        "10.107.0.1:80",
        "10.0.0.1:22",
    ] {
        assert!(guarded.client.connect(to).await.is_err(), "{to}");
        assert!(
            guarded.event().await.starts_with(&format!("tcp {to}")),
            "{to}"
        );
    }
    assert!(guarded.world.looked_up.lock().unwrap().is_empty());
    assert!(guarded.world.dialled().is_empty());
    let denials = guarded.boundaries.denials(&guarded.id);
    assert_eq!(denials.len(), 6);
    assert_eq!(
        (
            denials[0].count,
            guarded.boundaries.usage(&guarded.id).denied
        ),
        (2, 7)
    );
}

#[tokio::test]
async fn a_greeting_must_name_what_led_to_its_address() {
    let (mut guarded, seen) = two_sites("allow example.org, other.example").await;
    guarded.client.lookup("example.org").await;
    guarded.client.lookup("other.example").await;
    let connector = connector(guarded.authority.roots());
    for (said, expected) in [
        (
            "other.example",
            "tls other.example:443 at 93.184.216.34: allow other.example, which",
        ),
        (
            "evil.example",
            "tls evil.example:443: no rule that allows it",
        ),
    ] {
        let stream = guarded
            .client
            .connect(format!("{PUBLIC}:443"))
            .await
            .unwrap();
        assert!(
            connector.connect(server_name(said), stream).await.is_err(),
            "{said}"
        );
        let event = guarded.event().await;
        assert!(event.starts_with(expected), "{event}");
    }
    // No name at all: an address is not one.
    let stream = guarded
        .client
        .connect(format!("{PUBLIC}:443"))
        .await
        .unwrap();
    let nameless = rustls::pki_types::ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    assert!(connector.connect(nameless, stream).await.is_err());
    assert!(guarded.event().await.contains("names no server"));
    // No TLS and no HTTP.
    let mut stream = guarded
        .client
        .connect(format!("{PUBLIC}:443"))
        .await
        .unwrap();
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    assert!(rest(&mut stream).await.starts_with(b"HTTP/1.1 403"));
    assert!(guarded.event().await.contains("not HTTP/1.1"));
    assert!(guarded.world.dialled().is_empty() && seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn each_request_is_decided_about_by_its_host() {
    let (mut guarded, seen) = two_sites("allow example.org, other.example").await;
    guarded.client.lookup("example.org").await;
    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    let answer = get(&mut http, &request("evil.example")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        answer.contains("rhizome sandbox policy allow <sandbox> evil.example:80"),
        "{answer}"
    );
    assert_eq!(
        guarded.event().await,
        "http evil.example:80: no rule that allows it"
    );
    assert!(guarded.world.dialled().is_empty());

    // The second request of a connection, and one hidden behind the first.
    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    assert!(
        get(&mut http, &request("example.org"))
            .await
            .ends_with("hello")
    );
    http.write_all(request("other.example").as_bytes())
        .await
        .unwrap();
    assert!(rest(&mut http).await.is_empty());
    assert!(
        guarded
            .event()
            .await
            .starts_with("http other.example:80 at 93.184.216.34")
    );
    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    let smuggled = format!(
        "POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 3\r\n\r\nabc{}",
        request("worse.example")
    );
    http.write_all(smuggled.as_bytes()).await.unwrap();
    rest(&mut http).await;
    assert_eq!(
        guarded.event().await,
        "http worse.example:80: no rule that allows it"
    );
    let twice = "GET / HTTP/1.1\r\nHost: example.org\r\nHost: evil.example\r\n\r\n";
    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    assert!(get(&mut http, twice).await.starts_with("HTTP/1.1 403 "));
    let seen = seen.lock().unwrap();
    assert!(
        seen.iter()
            .all(|request| request.contains("host: example.org\r\n")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn bodies_pass_whole_also_in_chunks() {
    let (guarded, seen) = two_sites("allow example.org").await;
    guarded.client.lookup("example.org").await;
    let mut http = guarded
        .client
        .connect(format!("{PUBLIC}:80"))
        .await
        .unwrap();
    let body = "x".repeat(100_000);
    let text = format!(
        "PUT /a HTTP/1.1\r\nHost: example.org\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(get(&mut http, &text).await.ends_with("hello"));
    assert!(
        get(&mut http, &request("example.org"))
            .await
            .ends_with("hello")
    );
    let seen = seen.lock().unwrap();
    assert!(seen[0].ends_with(&body) && seen[1].starts_with("GET / "));
}

#[tokio::test]
async fn a_bare_address_is_reached_by_a_rule_about_addresses_alone() {
    let mut guarded = Guarded::new("allow example.org, 10.0.0.0/8:5432, tcp:db.example.net:5432");
    let port = listen(|mut stream| async move {
        let _ = stream.write_all(b"I speak first\n").await;
        echo(stream).await;
    })
    .await;
    for at in ["10.0.0.5:5432", "93.184.216.34:5432", "93.184.216.34:443"] {
        guarded.world.server(at, port);
    }
    guarded.world.name("db.example.net", &[PUBLIC]);
    let mut stream = guarded.client.connect("10.0.0.5:5432").await.unwrap();
    stream.write_all(b"and I second\n").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, b"I speak first\nand I second\n");
    assert!(guarded.client.connect("10.0.0.5:22").await.is_err());
    assert!(guarded.event().await.starts_with("tcp 10.0.0.5:22: "));
    assert!(
        guarded
            .client
            .connect(format!("{PUBLIC}:5432"))
            .await
            .is_err()
    );
    guarded.event().await;
    assert_eq!(
        guarded.client.lookup("db.example.net").await.0,
        RCODE::NoError
    );
    let mut stream = guarded
        .client
        .connect(format!("{PUBLIC}:5432"))
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, b"I speak first\n");
    // What nobody serves outside is refused inside.
    assert!(guarded.client.connect("10.0.0.6:5432").await.is_err());
    assert!(guarded.events.try_recv().is_err());
}

#[tokio::test]
async fn a_server_far_away_is_waited_for() {
    let guarded = Guarded::new("allow 10.0.0.5:7");
    let port = listen(echo).await;
    guarded.world.server("10.0.0.5:7", port);
    // Longer than the guest's stack waits before it asks again.
    *guarded.world.distance.lock().unwrap() = std::time::Duration::from_millis(2500);
    let mut stream = guarded.client.connect("10.0.0.5:7").await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(guarded.world.dialled().len(), 1);
}

#[tokio::test]
async fn a_public_name_does_not_lead_inside() {
    let mut guarded = Guarded::new("allow *.example.org, 10.9.0.0/16");
    for (name, address) in [
        ("a.example.org", "10.0.0.5"),
        ("b.example.org", "127.0.0.1"),
        ("c.example.org", "169.254.169.254"),
    ] {
        guarded.world.name(name, &[address]);
        assert_eq!(
            guarded.client.lookup(name).await,
            (RCODE::NameError, vec![]),
            "{name}"
        );
        let event = guarded.event().await;
        assert!(
            event.starts_with(&format!("dns {name} at {address}: the guard of")),
            "{event}"
        );
    }
    guarded
        .world
        .name("d.example.org", &["10.0.0.5", PUBLIC, "10.9.0.1"]);
    let (_, found) = guarded.client.lookup("d.example.org").await;
    assert_eq!(
        found,
        [
            PUBLIC.parse::<Ipv4Addr>().unwrap(),
            Ipv4Addr::new(10, 9, 0, 1)
        ]
    );
    guarded
        .world
        .own
        .lock()
        .unwrap()
        .push(Ipv4Addr::new(10, 9, 0, 1));
    assert!(guarded.client.connect("10.9.0.1:22").await.is_err());
    assert!(
        guarded
            .event()
            .await
            .contains("the guard of the node itself")
    );
    assert_eq!(
        guarded.client.lookup("gone.example.org").await.0,
        RCODE::NameError
    );
    assert!(guarded.events.try_recv().is_err());
}

#[tokio::test]
async fn a_policy_that_changes_cuts_what_it_no_longer_allows() {
    let mut guarded = Guarded::new("allow 10.0.0.0/8, 172.16.0.0/12");
    let port = listen(echo).await;
    for at in ["10.0.0.5:7", "172.16.0.5:7"] {
        guarded.world.server(at, port);
    }
    let mut cut = guarded.client.connect("10.0.0.5:7").await.unwrap();
    let mut kept = guarded.client.connect("172.16.0.5:7").await.unwrap();
    let mut byte = [0];
    for stream in [&mut cut, &mut kept] {
        stream.write_all(b"x").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
    }
    guarded.set("allow 172.16.0.0/12", Vec::new());
    assert!(rest(&mut cut).await.is_empty());
    assert!(guarded.event().await.starts_with("tcp 10.0.0.5:7: "));
    kept.write_all(b"y").await.unwrap();
    kept.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"y");
    assert!(guarded.client.connect("10.0.0.5:7").await.is_err());
    guarded.set("open", Vec::new());
    assert!(guarded.client.connect("10.0.0.5:7").await.is_ok());
}

#[tokio::test]
async fn much_passes_both_ways_unharmed_and_a_slow_reader_holds_up_itself_alone() {
    const MUCH: usize = 6 << 20;
    let guarded = Guarded::new("allow 10.0.0.5:7");
    let port = listen(echo).await;
    guarded.world.server("10.0.0.5:7", port);
    let mut slow = guarded.client.connect("10.0.0.5:7").await.unwrap();
    // Nobody reads what comes back, so this must stop somewhere.
    let flood = vec![1; 64 * 1024];
    let mut flooded = 0;
    while tokio::time::timeout(
        std::time::Duration::from_millis(500),
        slow.write_all(&flood),
    )
    .await
    .is_ok()
    {
        flooded += flood.len();
        assert!(flooded < 64 << 20, "nothing holds a flood back");
    }
    let stream = guarded.client.connect("10.0.0.5:7").await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let data: Vec<u8> = (0..MUCH).map(|at| (at / 7) as u8).collect();
    let sent = data.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    reader.read_to_end(&mut back).await.unwrap();
    writing.await.unwrap();
    assert!(back == data, "{} of {} bytes", back.len(), data.len());
}

#[tokio::test]
async fn connections_have_a_bound_and_an_end() {
    let mut guarded = Guarded::new("allow 10.0.0.5:7");
    let port = listen(echo).await;
    guarded.world.server("10.0.0.5:7", port);
    let mut open = Vec::new();
    for _ in 0..128 {
        open.push(guarded.client.connect("10.0.0.5:7").await.unwrap());
    }
    assert!(guarded.client.connect("10.0.0.5:7").await.is_err());
    assert!(
        guarded
            .event()
            .await
            .contains("the limit of 128 connections")
    );
    // One that ends makes room, and so does the end of all at a new attachment.
    let mut first = open.remove(0);
    first.shutdown().await.unwrap();
    rest(&mut first).await;
    let again = async {
        while guarded.client.connect("10.0.0.5:7").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), again)
        .await
        .unwrap();
    guarded.attach();
    assert!(guarded.client.connect("10.0.0.5:7").await.is_ok());
}

#[tokio::test]
async fn a_connection_of_an_earlier_gateway_is_reset() {
    let mut guarded = Guarded::new("allow 10.0.0.5:7");
    let port = listen(echo).await;
    guarded.world.server("10.0.0.5:7", port);
    // The packets of one guest, carried first by one gateway and then by another.
    let (near, mut gateway) = tokio::io::duplex(64 * 1024);
    guarded.client = client::Client::start(near);
    let (old, far) = tokio::io::duplex(64 * 1024);
    guarded.boundaries.carry(&guarded.id, far);
    let mut old = Some(old);
    let (switch, mut switched) = tokio::sync::oneshot::channel::<()>();
    let (boundaries, id) = (guarded.boundaries.clone(), guarded.id);
    tokio::spawn(async move {
        let mut first = old.take().unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut gateway, &mut first) => {}
            _ = &mut switched => {}
        }
        let (mut new, far) = tokio::io::duplex(64 * 1024);
        boundaries.carry(&id, far);
        let _ = tokio::io::copy_bidirectional(&mut gateway, &mut new).await;
    });
    let mut stream = guarded.client.connect("10.0.0.5:7").await.unwrap();
    let mut byte = [0];
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut byte).await.unwrap();
    switch.send(()).unwrap();
    let reset = async {
        while stream.write_all(b"y").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), reset)
        .await
        .unwrap();
    assert!(guarded.client.connect("10.0.0.5:7").await.is_ok());
}

#[tokio::test]
async fn hostile_packets_do_no_harm() {
    let mut guarded = Guarded::new("allow 10.0.0.5:7, example.org");
    let port = listen(echo).await;
    guarded.world.server("10.0.0.5:7", port);
    guarded.world.name("example.org", &[PUBLIC]);
    let mut stream = guarded.client.connect("10.0.0.5:7").await.unwrap();
    let mut number = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: usize| {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        (number % below as u64) as usize
    };
    for round in 0..4000 {
        let mut packet = sample(draw(4), draw(65_536) as u16);
        for _ in 0..=draw(3) {
            let at = draw(packet.len());
            packet[at] = draw(256) as u8;
        }
        packet.truncate(1 + draw(packet.len()));
        if round % 2 == 0 && packet.len() >= 20 {
            packet[0] = 0x45;
            let len = (packet.len() as u16).to_be_bytes();
            packet[2..4].copy_from_slice(&len);
            smoltcp::wire::Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
        }
        guarded.client.raw(packet).await;
        // Events are the node's to read.
        while guarded.events.try_recv().is_ok() {}
    }
    assert_eq!(guarded.client.lookup("example.org").await.0, RCODE::NoError);
    let mut byte = [0];
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut byte).await.unwrap();
    assert!(guarded.boundaries.denials(&guarded.id).len() <= 256);
}

/// A packet as a guest sends them: a SYN, a segment, a datagram, a ping.
fn sample(kind: usize, port: u16) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 107, 0, 2, 10, 0, 0, 5,
    ];
    let mut rest = match kind {
        0 | 1 => {
            let mut tcp = vec![0; 20];
            tcp[..2].copy_from_slice(&port.to_be_bytes());
            tcp[3] = 7;
            tcp[12] = 0x50;
            tcp[13] = if kind == 0 { 2 } else { 0x10 };
            tcp[14] = 1;
            tcp
        }
        2 => {
            packet[9] = 17;
            let mut udp = vec![0; 28];
            udp[..2].copy_from_slice(&port.to_be_bytes());
            udp[3] = 53;
            udp[5] = 28;
            packet[16..20].copy_from_slice(&[10, 107, 0, 1]);
            udp
        }
        _ => {
            packet[9] = 1;
            vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]
        }
    };
    packet.append(&mut rest);
    let len = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&len);
    smoltcp::wire::Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
    packet
}
