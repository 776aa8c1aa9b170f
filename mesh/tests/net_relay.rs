//! Members that have no direct path, and the members who carry their packets.
//!
//! A node with a socket of IPv4 alone and one of IPv6 alone cannot reach each other by UDP; a
//! relay is reached by TCP, from both.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/net.rs"]
mod support;

use std::time::{Duration, Instant};

use iroh::{Endpoint, RelayMode, SecretKey, Watcher as _, endpoint::presets};
use rhizome_identity::{NodeId, NodeKey};
use rhizome_mesh::net::{PathKind, PeerInfo, PeerState, RelayConfig};
use support::{Node, PATIENCE, stop_all, within};

async fn relay(name: &str) -> Node {
    Node::start_special(name, |config| {
        config.relay = Some(RelayConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            url: None,
        });
    })
    .await
}

/// A node that no node of IPv4 can reach.
async fn apart(name: &str) -> Node {
    Node::start_special(name, |config| config.bind = "[::1]:0".parse().unwrap()).await
}

fn peer(node: &Node, other: NodeId) -> PeerInfo {
    let mut peers = node.mesh.peers().into_iter();
    peers.find(|peer| peer.node == other).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_without_a_direct_path_joins_and_replicates_through_a_relay() {
    let hub = relay("hub").await;
    let space = hub.found();
    let url = hub.mesh.relay().unwrap();
    // The inviter is reached through its own relay once it is at home there.
    at_home(&hub, &url).await;
    let far = apart("far").await;
    far.join(&hub.invite(&[space], 1, 60_000)).await;
    far.sees(hub.id(), PeerState::Connected).await;
    let there = hub.publish(space, "hello", "through the relay").await;
    far.receives(there.id).await;
    let back = far.publish(space, "answer", "and back").await;
    hub.receives(back.id).await;
    let path = peer(&far, hub.id()).path.expect("it is connected");
    assert_eq!((path.kind, &path.addr), (PathKind::Relayed, &url));
    assert_eq!(path.relay, Some(hub.id()), "whose relay it is");
    assert!(path.why.is_some(), "why it is not direct");
    assert_eq!(peer(&far, hub.id()).relay, Some(url));
    stop_all([hub, far]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_refuses_strangers() {
    let hub = relay("hub").await;
    hub.found();
    let url = hub.mesh.relay().unwrap();
    let stranger = Endpoint::builder(presets::Minimal)
        .secret_key(SecretKey::from_bytes(&NodeKey::generate().secret_bytes()))
        .relay_mode(RelayMode::custom([url.parse().unwrap()]))
        .bind()
        .await
        .unwrap();
    let mut status = stranger.home_relay_status();
    let refused = async {
        loop {
            let relays = status.get();
            assert!(!relays.iter().any(iroh::endpoint::RelayStatus::is_connected));
            if let Some(why) = relays.iter().find_map(|relay| relay.auth_denied_reason()) {
                break why.to_owned();
            }
            status.updated().await.unwrap();
        }
    };
    let why = within("the relay never answered", refused).await;
    assert_eq!(why, "not a member of the mesh");
    stranger.close().await;
    stop_all([hub]).await;
}

/// Waits until others can reach `node` through the relay at `url`.
async fn at_home(node: &Node, url: &String) {
    let end = Instant::now() + PATIENCE;
    while !node.mesh.at_home(url) {
        assert!(
            Instant::now() < end,
            "{} is not at home at {url}",
            node.name
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
