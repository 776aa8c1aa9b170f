//! Joining: what an invite opens, and everything that it does not.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/net.rs"]
mod support;

use std::time::{Duration, Instant};

use rhizome_identity::{Invite, InviteError, InviteParams, NodeKey};
use rhizome_mesh::net::{JoinError, Refusal};
use support::{Node, addr_of, close_code, raw_endpoint, stop_all};

fn parse(invite: &str) -> Invite {
    invite.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_tells_mesh_spaces_and_inviter() {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    let invite = parse(&a.invite(&[space], 1, 60_000));
    let joined = b.mesh.join(&invite, "bee").await.unwrap();
    assert_eq!(Some(joined.mesh), a.replica.authority().mesh());
    assert_eq!(joined.spaces, [space]);
    assert_eq!(joined.by, a.id());
    let authority = a.replica.authority();
    assert_eq!(authority.member(&b.id()).unwrap().name, "bee");
    assert!(
        b.replica
            .space_key(&space, authority.space(&space).unwrap().epoch)
            .is_some()
    );

    let again = b.mesh.join(&invite, "bee").await.unwrap_err();
    assert!(matches!(again, JoinError::AlreadyMember { mesh } if mesh == joined.mesh));
    let own = a.invite(&[space], 1, 60_000);
    let own = a.mesh.join(&parse(&own), "a").await.unwrap_err();
    assert!(matches!(own, JoinError::OwnInvite));
    // Another invite of the mesh gives a member nothing and is not used up.
    let other = parse(&a.invite(&[space], 1, 60_000));
    let still = b.mesh.join(&other, "bee").await.unwrap_err();
    assert!(matches!(still, JoinError::AlreadyMember { mesh } if mesh == joined.mesh));
    let c = Node::start("c").await;
    c.mesh.join(&other, "sea").await.unwrap();
    let elsewhere = Node::start("d").await;
    let space = elsewhere.found();
    let foreign = parse(&elsewhere.invite(&[space], 1, 60_000));
    let torn = b.mesh.join(&foreign, "bee").await.unwrap_err();
    assert!(matches!(torn, JoinError::AlreadyMember { mesh } if mesh == joined.mesh));
    stop_all([c, elsewhere]).await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_use_is_one_use_however_many_try_at_once() {
    let a = Node::start("a").await;
    let space = a.found();
    let invite = parse(&a.invite(&[space], 1, 60_000));
    let mut nodes = Vec::new();
    for n in 0..4 {
        nodes.push(Node::start(&format!("n{n}")).await);
    }
    let results =
        futures::future::join_all(nodes.iter().map(|node| node.mesh.join(&invite, &node.name)))
            .await;
    let joined = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(joined, 1, "{results:?}");
    for result in results {
        if let Err(error) = result {
            assert!(
                matches!(error, JoinError::Refused(Refusal::Spent)),
                "{error:?}"
            );
            assert!(error.hint().is_some());
        }
    }
    assert_eq!(a.replica.authority().members().count(), 2);
    nodes.push(a);
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_answer_was_lost_is_answered_again() {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    let invite = parse(&a.invite(&[space], 1, 60_000));
    b.mesh.join(&invite, "b").await.unwrap();
    let records = a.replica.authority().heads().to_vec();
    // The same key on an empty disk: to the inviter it looks like a retry.
    let (name, _, key, agent) = b.stop().await;
    let empty = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let b = Node::start_in(&name, empty, key, agent).await;
    let joined = b.mesh.join(&invite, "b").await.unwrap();
    assert_eq!(joined.spaces, [space]);
    assert_eq!(a.replica.authority().heads(), records, "no second grant");
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inviter_that_is_down_is_named_in_time() {
    let a = Node::start("a").await;
    let space = a.found();
    let invite = parse(&a.invite(&[space], 1, 60_000));
    let addrs = a.mesh.local_addrs();
    let inviter = a.id();
    a.stop().await;
    let b = Node::start("b").await;
    let started = Instant::now();
    let error = b.mesh.join(&invite, "b").await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(12));
    let JoinError::Unreachable { tried, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(tried.contains(&(inviter, addrs[0])));
    assert!(error.to_string().contains(&addrs[0].to_string()));
    assert!(error.hint().is_some());
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wrong_invite_says_what_is_wrong_with_it() {
    let a = Node::start("a").await;
    let space = a.found();
    let text = a.invite(&[space], 1, 60_000);
    assert!(matches!(
        text[..text.len() - 9].parse::<Invite>(),
        Err(InviteError::Truncated { .. } | InviteError::Mistyped)
    ));
    let mut mistyped = text.clone().into_bytes();
    let last = mistyped.len() - 3;
    mistyped[last] = if mistyped[last] == b'7' { b'8' } else { b'7' };
    let mistyped = String::from_utf8(mistyped).unwrap();
    assert!(matches!(
        mistyped.parse::<Invite>(),
        Err(InviteError::Mistyped)
    ));

    let b = Node::start("b").await;
    let mut expired = parse(&text);
    expired.not_after_ms = 1;
    assert!(matches!(
        b.mesh.join(&expired, "b").await.unwrap_err(),
        JoinError::Expired {
            not_after_ms: 1,
            ..
        }
    ));
    // Whoever prolongs an invite by hand meets the record.
    let mut prolonged = parse(&a.invite(&[space], 1, 0));
    prolonged.not_after_ms += 60_000;
    assert!(matches!(
        b.mesh.join(&prolonged, "b").await.unwrap_err(),
        JoinError::Refused(Refusal::Expired)
    ));
    let mut unknown = parse(&text);
    unknown.seed[0] ^= 1;
    assert!(matches!(
        b.mesh.join(&unknown, "b").await.unwrap_err(),
        JoinError::Refused(Refusal::Unknown)
    ));
    let mut other_mesh = parse(&text);
    other_mesh.mesh = rhizome_identity::MeshId::from_bytes([1; 32]);
    assert!(matches!(
        b.mesh.join(&other_mesh, "b").await.unwrap_err(),
        JoinError::Refused(Refusal::WrongMesh)
    ));
    let watched = InviteParams {
        approve: true,
        ..a.invite_params(&[space], 1, 60_000)
    };
    assert!(matches!(
        b.mesh
            .join(&parse(&a.open(watched)), "b")
            .await
            .unwrap_err(),
        JoinError::Refused(Refusal::ApprovalNeeded)
    ));
    // None of them used the invite up.
    b.mesh.join(&parse(&text), "b").await.unwrap();
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_join_protocol_harms_nobody() {
    let a = Node::start("a").await;
    let space = a.found();
    let stranger = raw_endpoint(&NodeKey::generate()).await;
    let garbage: [&[u8]; 5] = [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\xff",
        b"\x00\x00\x00\x03\x00\xff\xff",
        b"\x00\x00\x00\x02\x09\x00",
        b"\x00\x00\x00\x02\x00\x81",
    ];
    for bytes in garbage {
        let connection = stranger
            .connect(addr_of(&a), b"/rhizome/join/1")
            .await
            .unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        assert_eq!(close_code(&connection).await, 3, "{bytes:02x?}");
    }
    let b = Node::start("b").await;
    b.join(&a.invite(&[space], 1, 60_000)).await;
    stranger.close().await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_strangers_take_no_place_from_an_honest_joiner() {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    let invite = parse(&a.invite(&[space], 1, 60_000));
    let stranger = raw_endpoint(&NodeKey::generate()).await;
    let mut silent = Vec::new();
    for n in 0..64 {
        let connection = stranger
            .connect(addr_of(&a), b"/rhizome/join/1")
            .await
            .unwrap();
        // Half of them begin a request and never end it.
        if n % 2 == 0 {
            let (mut send, recv) = connection.open_bi().await.unwrap();
            send.write_all(b"\x00\x00\x10\x00\x00").await.unwrap();
            silent.push((connection, Some((send, recv))));
        } else {
            silent.push((connection, None));
        }
    }
    let joined = b.mesh.join(&invite, "b").await.unwrap();
    assert_eq!(joined.spaces, [space]);
    drop(silent);
    stranger.close().await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_proof_is_refused_and_takes_no_place() {
    let a = Node::start("a").await;
    let space = a.found();
    let mut unknown = parse(&a.invite(&[space], 1, 60_000));
    let good = parse(&a.invite(&[space], 1, 60_000));
    unknown.seed[3] ^= 1;
    let nodes = futures::future::join_all(
        (0..3).map(|n| async move { Node::start(&format!("n{n}")).await }),
    )
    .await;
    for node in &nodes {
        assert!(matches!(
            node.mesh.join(&unknown, "n").await.unwrap_err(),
            JoinError::Refused(Refusal::Unknown)
        ));
    }
    nodes[0].mesh.join(&good, "n").await.unwrap();
    let late = nodes[1].mesh.join(&good, "n").await.unwrap_err();
    assert!(
        matches!(late, JoinError::Refused(Refusal::Spent)),
        "{late:?}"
    );
    stop_all(nodes.into_iter().chain([a])).await;
}
