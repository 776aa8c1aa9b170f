//! Whoever writes more than their share waits; nobody else does.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mesh::Mesh;
use rhizome_identity::Hash;
use rhizome_memory::{
    Event, Limit, PublishError, RejectReason, Replica, ReplicaConfig, Sharer, Verdict,
};

/// 600 fragments a minute of each author: one more every tenth of a second.
const SHARE: u64 = 600;

fn open_strict(mesh: &Mesh, node: usize, dir: &Path) -> Replica {
    let mut config = ReplicaConfig::default();
    config.shares.refuse_at = 2;
    config.shares.author = Limit {
        fragments_a_minute: SHARE,
        ..config.shares.author
    };
    mesh.open_with(node, dir, config)
}

/// Publishes at one moment what is `count` times one fragment.
fn burst(mesh: &Mesh, author: usize, replica: &Replica, count: u64) -> Vec<Bytes> {
    let published: Vec<_> = (0..count)
        .map(|n| mesh.publish(author, replica, &format!("finding {n}")))
        .collect();
    mesh.wires(replica, &published)
}

#[test]
fn a_flood_is_stored_last_then_refused_and_goes_on_later() {
    let mesh = Mesh::of(3);
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let flooder = mesh.open(0, dirs[0].path());
    let quiet = mesh.open(1, dirs[1].path());
    let replica = open_strict(&mesh, 2, dirs[2].path());
    let flood = burst(&mesh, 0, &flooder, 2 * SHARE + 200);
    let quiet = burst(&mesh, 1, &quiet, 1);

    // The flood comes first in the batch and is stored last.
    let offered: Vec<Bytes> = flood[..1000].iter().chain(&quiet).cloned().collect();
    let mut events = replica.events();
    let outcomes = replica.admit(flooder.node(), offered.clone());
    let is = |wanted: fn(&Verdict) -> bool| {
        outcomes
            .iter()
            .filter(|outcome| wanted(&outcome.verdict))
            .count()
    };
    let in_turn = is(|verdict| *verdict == Verdict::Admit);
    let late = is(|verdict| matches!(verdict, Verdict::Late(Sharer::Author(_))));
    assert_eq!(in_turn + late, offered.len());
    assert!(in_turn as u64 >= SHARE && late > 0, "{in_turn} {late}");
    assert_eq!(outcomes[1000].verdict, Verdict::Admit);
    let of_quiet = Hash::from(outcomes[1000].id.unwrap());
    let stored = std::iter::from_fn(|| events.try_recv().ok());
    let quiet_at = stored
        .filter_map(|event| match event {
            Event::Stored { id, .. } => Some(id),
            _ => None,
        })
        .position(|id| id == of_quiet);
    assert!(quiet_at.unwrap() < in_turn, "before what is late");

    let outcomes = replica.admit(flooder.node(), flood[1000..].to_vec());
    let refused = outcomes
        .iter()
        .position(|outcome| matches!(outcome.verdict, Verdict::Reject(RejectReason::OverShare(_))));
    let refused = 1000 + refused.expect("twice the share is refused");
    let Verdict::Reject(reason) = &outcomes[refused - 1000].verdict else {
        unreachable!();
    };
    assert!(!reason.is_lasting());
    let told = replica.shares();
    assert_eq!(told[0].whose.kind(), "author");
    assert!(told[0].used_percent() > 190 && told[0].refused > 0 && told[0].over > 0);

    // Offered again when there is room, everything arrives: nothing was lost.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        replica.admit(flooder.node(), flood[refused..].to_vec());
        if mesh.ids(&replica) == flood.len() + 1 {
            break;
        }
        assert!(Instant::now() < deadline, "{} arrived", mesh.ids(&replica));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn forged_fragments_use_up_nobodys_share() {
    let mesh = Mesh::of(2);
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let author = mesh.open(0, dirs[0].path());
    let replica = open_strict(&mesh, 1, dirs[1].path());
    let wires = burst(&mesh, 0, &author, 10);
    let broken = |wire: &Bytes| {
        let mut bytes = wire.to_vec();
        // The signature is the only byte string of 64 bytes in the envelope.
        let head = bytes.windows(2).rposition(|pair| pair == [0x58, 64]);
        bytes[head.unwrap() + 10] ^= 1;
        Bytes::from(bytes)
    };
    let forged: Vec<Bytes> = wires.iter().map(broken).collect();
    for _ in 0..2 * SHARE {
        replica.admit(author.node(), forged[..1].to_vec());
    }
    assert_eq!(replica.shares(), []);
    let outcomes = replica.admit(author.node(), wires);
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.verdict == Verdict::Admit)
    );
}

#[test]
fn who_publishes_too_much_is_told_before_others_refuse_it() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let replica = open_strict(&mesh, 0, dir.path());
    let mut published = 0;
    let refused = loop {
        match mesh.try_publish(0, &replica, "once more") {
            Ok(_) => published += 1,
            Err(error) => break error,
        }
        assert!(published < 100 * SHARE);
    };
    assert!(published >= 2 * SHARE);
    assert!(matches!(refused, PublishError::OverShare(_)));
    assert!(refused.to_string().contains("share"), "{refused}");
    assert!(refused.hint().unwrap().contains("publish again in"));
}
