//! Who is there, who is gone, who gets in, and how members find each other again.

#[path = "support/net.rs"]
mod support;

use std::time::Duration;

use rhizome_identity::{
    AgentKey, NodeKey, Record, RecordBody, SignedRecord,
    record::{RECORD_VERSION, Revoke},
};
use rhizome_mesh::net::{PathKind, PeerState};
use support::{Node, addr_of, close_code, now_ms, pair, raw_endpoint, stop_all};

const ALPNS: [&[u8]; 3] = [b"/rhizome/libp2p/1", b"/rhizome/sync/1", iroh_blobs::ALPN];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_in_on_no_protocol() {
    let (a, b, _) = pair().await;
    let stranger = raw_endpoint(&NodeKey::generate()).await;
    for alpn in ALPNS {
        let code = match stranger.connect(addr_of(&a), alpn).await {
            Ok(connection) => close_code(&connection).await,
            Err(_) => continue,
        };
        assert_eq!(code, 1, "{}", String::from_utf8_lossy(alpn));
    }
    assert!(
        stranger
            .connect(addr_of(&a), b"/rhizome/other/1")
            .await
            .is_err()
    );
    // The members did not notice.
    assert_eq!(a.mesh.peers().len(), 1);
    b.sees(a.id(), PeerState::Connected).await;
    stranger.close().await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_from_a_member_ends_its_session_and_nothing_else() {
    let (a, b, space) = pair().await;
    let c = Node::start("c").await;
    c.join(&a.invite(&[space], 1, 60_000)).await;
    let (_, _dir, key, _) = c.stop().await;
    let rogue = raw_endpoint(&key).await;
    let hello = |payload: &[u8]| {
        let mut frame = u32::try_from(payload.len() + 1)
            .unwrap()
            .to_be_bytes()
            .to_vec();
        frame.push(0);
        frame.extend_from_slice(payload);
        frame
    };
    let mesh = a.replica.authority().mesh().unwrap();
    let mut good_hello = vec![0x83, 0x01, 0x58, 0x20];
    good_hello.extend_from_slice(mesh.as_bytes());
    good_hello.extend_from_slice(&[0x41, 0x00]);
    let good_hello = hello(&good_hello);
    let after = |more: &[u8]| [&good_hello[..], more].concat();
    let garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 0, 0, 0],
        vec![255; 64],
        hello(b"\xff\xff"),
        hello(&[0x83, 0x02]),
        after(&[0, 0, 0, 0]),
        after(&[0, 4, 0, 2, 1]),
        after(&[0, 0, 0, 2, 99, 0]),
        after(&[0, 0, 0, 4, 3, 1, 2, 3]),
        after(&[0, 0, 0, 4, 2, 0, 9, 9]),
        after(&[0, 0, 0, 4, 1, 255, 255, 255]),
    ];
    for bytes in garbage {
        let connection = rogue
            .connect(addr_of(&a), b"/rhizome/sync/1")
            .await
            .unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(&bytes).await.unwrap();
        assert_eq!(close_code(&connection).await, 3, "{bytes:02x?}");
    }
    let published = a.publish(space, "unharmed", "still here").await;
    b.receives(published.id).await;
    rogue.close().await;
    stop_all([a, b]).await;
}

#[test]
fn a_node_that_dies_without_a_word_is_gone_with_the_time_it_was_seen() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    let (ours, theirs) = (runtime(), runtime());
    let (a, space) = ours.block_on(async {
        let a = Node::start("a").await;
        let space = a.found();
        (a, space)
    });
    let invite = a.invite(&[space], 1, 60_000);
    let b = theirs.block_on(async {
        let b = Node::start("b").await;
        b.join(&invite).await;
        b.sees(a.id(), PeerState::Connected).await;
        b
    });
    let (id, before) = (b.id(), now_ms());
    ours.block_on(async {
        a.sees(id, PeerState::Connected).await;
        let peer = a.mesh.peers().remove(0);
        assert_eq!((peer.name.as_str(), peer.node), ("b", id));
        let path = peer.path.expect("a connected peer has a path");
        assert_eq!(path.kind, PathKind::Direct);
        assert!(path.rtt < Duration::from_secs(1));
        assert!(peer.bytes.sent > 0 && peer.bytes.received > 0);
        assert!(peer.since_ms.unwrap() <= peer.last_seen_ms.unwrap());
    });
    // Its tasks and its socket vanish; no goodbye is sent.
    std::mem::forget(b);
    theirs.shutdown_background();
    ours.block_on(async {
        a.sees(id, PeerState::Gone).await;
        let peer = a.mesh.peers().remove(0);
        assert!(peer.last_seen_ms.unwrap() >= before);
        assert_eq!(peer.path, None);
        a.stop().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_find_each_other_after_their_introducer_has_died() {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    let c = Node::start("c").await;
    let invite = a.invite(&[space], 2, 60_000);
    b.join(&invite).await;
    c.join(&invite).await;
    b.sees(c.id(), PeerState::Connected).await;
    a.stop().await;
    // c comes back on another port and knows b from its book alone.
    let c = c.restart().await;
    c.sees(b.id(), PeerState::Connected).await;
    b.sees(c.id(), PeerState::Connected).await;
    let published = c.publish(space, "we go on", "without a").await;
    b.receives(published.id).await;
    stop_all([b, c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_without_a_mesh_and_picks_one_up() {
    let a = Node::start("a").await;
    assert!(a.mesh.peers().is_empty());
    assert_eq!(a.mesh.local_addrs().len(), 1);
    assert_ne!(a.mesh.local_addrs()[0].port(), 0);
    let key = NodeKey::generate();
    let stranger = raw_endpoint(&key).await;
    if let Ok(connection) = stranger.connect(addr_of(&a), b"/rhizome/sync/1").await {
        assert_eq!(close_code(&connection).await, 1);
    }
    stranger.close().await;
    let space = a.found();
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let b = Node::start_in("b", dir, key, AgentKey::generate()).await;
    b.join(&a.invite(&[space], 1, 60_000)).await;
    a.sees(b.id(), PeerState::Connected).await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_revoked_is_disconnected_and_stays_out() {
    let (a, b, _) = pair().await;
    let authority = a.replica.authority();
    let revoke = Record {
        v: RECORD_VERSION,
        mesh: authority.mesh().unwrap(),
        parents: authority.heads().to_vec(),
        at_ms: now_ms(),
        body: RecordBody::Revoke(Revoke {
            subject: b.id().into(),
            cuts: Vec::new(),
            reason: "left".to_owned(),
        }),
    };
    let revoke = SignedRecord::sign(a.key.secret(), revoke).unwrap();
    a.replica.append_records(vec![revoke]).unwrap();
    assert!(!a.replica.authority().is_member(&b.id()));
    // b may or may not have heard why.
    b.mesh_says(|| {
        let peers = b.mesh.peers();
        peers.iter().all(|peer| peer.state != PeerState::Connected)
    })
    .await;
    let key = NodeKey::from_seed(*b.key.secret_bytes());
    b.stop().await;
    let old = raw_endpoint(&key).await;
    if let Ok(connection) = old.connect(addr_of(&a), b"/rhizome/sync/1").await {
        assert_eq!(close_code(&connection).await, 1);
    }
    assert!(a.mesh.peers().is_empty());
    old.close().await;
    a.stop().await;
}
