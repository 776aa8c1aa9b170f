//! A peer that makes up topics without end.

use super::*;

/// More than a peer may have.
const NAMES: usize = MAX_TOPICS + 900;

fn made_up(round: usize) -> BTreeSet<SpaceId> {
    let name = |n: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&round.to_be_bytes());
        bytes[8..16].copy_from_slice(&n.to_be_bytes());
        SpaceId::from_bytes(bytes)
    };
    (0..NAMES).map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_without_end_from_one_peer_leave_nothing_behind() {
    let mesh = Some(MeshId::from_bytes([9; 32]));
    let (mut victim, liar) = (Node::start(false).await, Node::start(false).await);
    victim.meet(&liar).await;
    for round in 0..3 {
        let names = made_up(round);
        let of_nobody = Lane::Space(*names.first().unwrap());
        liar.gossip.subscribe(mesh, names).await;
        // As many as one may have, whatever it asks for.
        eventually(async || {
            let topics = victim.gossip.standing(liar.id).await.topics;
            assert!(topics <= MAX_TOPICS, "{topics}");
            topics == MAX_TOPICS
        })
        .await;
        let unheard = Bytes::from(format!("bad {round}"));
        liar.gossip.publish(of_nobody, unheard).await;
        liar.gossip.subscribe(mesh, BTreeSet::new()).await;
        eventually(async || victim.gossip.standing(liar.id).await.topics == 1).await;
    }
    liar.say("good").await;
    victim.hears("good").await;
    assert_eq!(
        victim.bad_heard(),
        0,
        "what is of no topic of ours is not looked at"
    );
    victim.end().await;
    liar.end().await;
}
