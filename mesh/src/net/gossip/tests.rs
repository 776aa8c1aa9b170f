//! Gossip over real endpoints on loopback, with a judge of our own.

use std::time::Duration;

use iroh::protocol::Router;
use tokio::sync::watch;

use super::*;
use crate::net::endpoint::{self, GOSSIP_ALPN, Net};

mod topics;

/// Rejects what begins with `bad`, unless it is told to accept everything.
struct Judge {
    accept_all: bool,
    heard: watch::Sender<Vec<Bytes>>,
}

impl Validator for Judge {
    fn judge(&self, heard: &[Heard]) -> Vec<Verdict> {
        self.heard
            .send_modify(|all| all.extend(heard.iter().map(|heard| heard.data.clone())));
        heard
            .iter()
            .map(|heard| match heard.data.starts_with(b"bad") {
                true if !self.accept_all => Verdict::Reject,
                _ => Verdict::Forward,
            })
            .collect()
    }
}

struct Node {
    id: NodeId,
    net: Net,
    gossip: Gossip,
    router: Router,
    heard: watch::Receiver<Vec<Bytes>>,
    stop: CancellationToken,
}

impl Node {
    async fn start(accept_all: bool) -> Self {
        let key = NodeKey::generate();
        let loopback = "127.0.0.1:0".parse().unwrap();
        let net = endpoint::bind(&key, loopback, false, Arc::new(|_| true))
            .await
            .unwrap();
        let (transport, protocol) = IrohTransport::new(net.clone());
        let (gossip, task) = GossipTask::new(&key, transport);
        let stop = CancellationToken::new();
        let (heard_in, heard) = watch::channel(Vec::new());
        let judge = Judge {
            accept_all,
            heard: heard_in,
        };
        tokio::spawn(task.run(Arc::new(judge), stop.clone()));
        let router = Router::builder(net.endpoint.clone())
            .accept(GOSSIP_ALPN, protocol)
            .spawn();
        gossip
            .subscribe(Some(MeshId::from_bytes([9; 32])), BTreeSet::new())
            .await;
        Self {
            id: key.id(),
            net,
            gossip,
            router,
            heard,
            stop,
        }
    }

    /// Connects both ways and waits until each sees the other's subscription.
    async fn meet(&self, other: &Node) {
        self.net.set_addrs(&other.id, &other.net.local_addrs(), []);
        other.net.set_addrs(&self.id, &self.net.local_addrs(), []);
        self.gossip.peer(other.id, true).await;
        other.gossip.peer(self.id, true).await;
        for (one, two) in [(self, other), (other, self)] {
            eventually(async || one.gossip.standing(two.id).await.topics == 1).await;
        }
    }

    async fn say(&self, text: &str) {
        let data = Bytes::copy_from_slice(text.as_bytes());
        self.gossip.publish(Lane::Authority, data).await;
    }

    async fn hears(&mut self, text: &str) {
        let wait = self
            .heard
            .wait_for(|all| all.iter().any(|heard| heard == text));
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap_or_else(|_| panic!("`{text}` never arrived"))
            .unwrap();
    }

    fn bad_heard(&self) -> usize {
        let heard = self.heard.borrow();
        heard.iter().filter(|data| data.starts_with(b"bad")).count()
    }

    async fn end(self) {
        self.stop.cancel();
        self.router.shutdown().await.unwrap();
    }
}

async fn eventually(condition: impl AsyncFn() -> bool) {
    let check = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), check)
        .await
        .expect("the condition never held");
}

/// Three nodes in a line: the ends meet only through the middle.
async fn line(accept_all: bool) -> [Node; 3] {
    let nodes = [
        Node::start(accept_all).await,
        Node::start(accept_all).await,
        Node::start(accept_all).await,
    ];
    nodes[0].meet(&nodes[1]).await;
    nodes[1].meet(&nodes[2]).await;
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries_stop_at_the_first_hop_and_graylist_their_sender() {
    let [liar, mut middle, mut end] = line(false).await;
    liar.say("good 1").await;
    end.hears("good 1").await;
    for n in 0..3 {
        let forgery = format!("bad {n}");
        liar.say(&forgery).await;
        middle.hears(&forgery).await;
    }
    eventually(async || middle.gossip.standing(liar.id).await.score < -70.0).await;
    for n in 3..12 {
        liar.say(&format!("bad {n}")).await;
    }
    end.say("good 2").await;
    middle.hears("good 2").await;
    assert!(
        middle.bad_heard() < 6,
        "a graylisted peer is not listened to: {} heard",
        middle.bad_heard()
    );
    assert_eq!(end.bad_heard(), 0, "what was rejected went no further");
    let graylist = score::thresholds().graylist_threshold;
    assert!(middle.gossip.standing(liar.id).await.score < graylist);
    for (honest, other) in [(&middle, &end), (&end, &middle)] {
        let standing = honest.gossip.standing(other.id).await;
        assert!(standing.connected && standing.score >= 0.0, "{standing:?}");
    }
    for node in [liar, middle, end] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_judge_forgeries_go_all_the_way() {
    let [liar, middle, mut end] = line(true).await;
    for n in 0..12 {
        let forgery = format!("bad {n}");
        liar.say(&forgery).await;
        end.hears(&forgery).await;
    }
    assert_eq!(end.bad_heard(), 12);
    assert!(middle.gossip.standing(liar.id).await.score > 0.0);
    for node in [liar, middle, end] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_above_the_limit_is_not_sent_and_the_next_one_is() {
    let a = Node::start(false).await;
    let mut b = Node::start(false).await;
    a.meet(&b).await;
    a.say(&"x".repeat(MAX_MESSAGE_BYTES + 1)).await;
    a.say("small").await;
    b.hears("small").await;
    let big = "y".repeat(80 * 1024);
    a.say(&big).await;
    b.hears(&big).await;
    assert_eq!(b.heard.borrow().len(), 2);
    a.end().await;
    b.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_both_dial_gets_one_connection() {
    let a = Node::start(false).await;
    let b = Node::start(false).await;
    a.net.set_addrs(&b.id, &b.net.local_addrs(), []);
    b.net.set_addrs(&a.id, &a.net.local_addrs(), []);
    let patience = Duration::from_secs(10);
    let (from_a, from_b) = tokio::join!(
        a.net.connect(&b.id, GOSSIP_ALPN, patience),
        b.net.connect(&a.id, GOSSIP_ALPN, patience)
    );
    let (from_a, from_b) = (from_a.unwrap(), from_b.unwrap());
    let kept_a = a
        .net
        .connections
        .claim(super::super::connections::Protocol::Gossip, &from_a);
    let kept_b = b
        .net
        .connections
        .claim(super::super::connections::Protocol::Gossip, &from_b);
    let (winner, loser) = if a.id < b.id {
        (&from_a, &from_b)
    } else {
        (&from_b, &from_a)
    };
    tokio::time::timeout(patience, loser.closed())
        .await
        .unwrap();
    assert!(winner.close_reason().is_none());
    assert!(kept_a || kept_b);
    a.end().await;
    b.end().await;
}

#[test]
fn topics_differ_by_mesh_and_lane() {
    let (m, n) = (MeshId::from_bytes([1; 32]), MeshId::from_bytes([2; 32]));
    let space = Lane::Space(SpaceId::from_bytes([3; 32]));
    let mut names = BTreeSet::new();
    for (mesh, lane) in [
        (m, Lane::Authority),
        (n, Lane::Authority),
        (m, space),
        (n, space),
    ] {
        names.insert(topic_of(&mesh, &lane).hash().into_string());
    }
    assert_eq!(names.len(), 4);
}
