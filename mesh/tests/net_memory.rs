//! What one node publishes, the others recall: by gossip, after a partition, and by blobs.

#[path = "support/net.rs"]
mod support;

use std::time::Duration;

use rhizome_memory::{Draft, Kind};
use rhizome_mesh::net::{PeerState, SyncState};
use support::{Node, PATIENCE, pair, stop_all, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_share_a_space_after_joining_by_string_alone() {
    let a = Node::start("a").await;
    let space = a.found();
    let b = Node::start("b").await;
    let c = Node::start("c").await;
    let invite = a.invite(&[space], 2, 60_000);
    b.join(&invite).await;
    c.join(&invite).await;

    let from_a = a.publish(space, "quokkas smile", "they do").await;
    b.receives(from_a.id).await;
    c.receives(from_a.id).await;
    b.learns(space, "smile").await;
    c.learns(space, "smile").await;

    // Both joiners write as well, and reach each other.
    let from_c = c.publish(space, "numbats dig", "they do").await;
    a.receives(from_c.id).await;
    b.receives(from_c.id).await;
    let holders = c
        .mesh
        .wait_replicas(space, from_c.id, 2, PATIENCE)
        .await
        .unwrap();
    assert_eq!(holders.len(), 2);
    b.sees(c.id(), PeerState::Connected).await;
    c.sees(b.id(), PeerState::Connected).await;
    stop_all([a, b, c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_catches_up_and_too_few_replicas_are_named() {
    let (a, b, space) = pair().await;
    let (name, dir, key, agent) = b.stop().await;
    a.sees(key.id(), PeerState::Gone).await;
    let mut last = None;
    for n in 0..40 {
        last = Some(
            a.publish(space, &format!("note {n}"), "while b was away")
                .await,
        );
    }
    let last = last.unwrap().id;
    let timeout = a
        .mesh
        .wait_replicas(space, last, 1, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert_eq!((timeout.wanted, timeout.held_by.len()), (1, 0));

    let b = Node::start_in(&name, dir, key, agent).await;
    b.receives(last).await;
    b.replica_says(|| b.replica.sync_state(&space).fragments >= 40)
        .await;
    let holders = a
        .mesh
        .wait_replicas(space, last, 1, PATIENCE)
        .await
        .unwrap();
    assert_eq!(holders, [b.id()]);
    b.mesh_says(|| {
        b.mesh.peers().iter().all(|peer| {
            peer.sync.len() == 2
                && peer
                    .sync
                    .iter()
                    .all(|(_, state)| matches!(state, SyncState::InSync { .. }))
        })
    })
    .await;
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_a_mebibyte_arrives_by_blobs_and_passes_on_without_its_author() {
    let (a, b, space) = pair().await;
    let mut draft = Draft::new(Kind::Artifact, "a large log", "wombat ".repeat(36_000));
    for n in 0..44 {
        let line = format!("{n:04} ").repeat(3_200);
        draft.fields.insert(format!("part{n}"), line);
    }
    let published = a.publish_draft(space, draft).await;
    b.receives(published.id).await;
    b.learns(space, "wombat").await;
    let item = b.replica.memory(&space, &published.doc).unwrap().unwrap();
    assert_eq!((item.text.len(), item.fields.len()), (252_000, 44));
    assert!(b.replica.missing_bodies().is_empty());

    // A third node gets it from the second, when the author is gone.
    let invite = a.invite(&[space], 1, 60_000);
    let c = Node::start("c").await;
    c.join(&invite).await;
    c.sees(b.id(), PeerState::Connected).await;
    a.stop().await;
    c.learns(space, "wombat").await;
    stop_all([b, c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_space_made_later_replicates_to_whom_it_is_granted() {
    let (a, b, first) = pair().await;
    let second = a.create_space("attic");
    let kept = a.publish(second, "only here", "attic").await;
    let shared = a.publish(first, "for both", "lab").await;
    b.receives(shared.id).await;
    assert!(!b.replica.holds(&kept.id), "b has no role in the attic");
    let c = Node::start("c").await;
    c.join(&a.invite(&[first, second], 1, 60_000)).await;
    c.receives(kept.id).await;
    c.learns(second, "attic").await;
    assert!(!b.replica.holds(&kept.id));
    within("shutdown", stop_all([a, b, c])).await;
}
