//! A replica on a disk that fails.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use proptest::prelude::*;
use rhizome_identity::Hash;

use super::{PublishError, Replica, ReplicaConfig};
use crate::{
    Draft, FragmentId, Kind, LogError, PublishRequest, RejectReason, Verdict, disk::sim::SimDisk,
};

mod concurrent;
#[path = "../../tests/support/mesh.rs"]
mod mesh;
mod redact;

use mesh::Mesh;

const SEGMENT: u64 = 16 * 1024;

fn open(mesh: &Mesh, node: usize, disk: &SimDisk, dir: &Path) -> Replica {
    let config = ReplicaConfig {
        segment_bytes: SEGMENT,
        ..ReplicaConfig::default()
    };
    let key = mesh.nodes[node].key.clone();
    Replica::open_on(Arc::new(disk.clone()), dir, key, config, None).unwrap()
}

fn open_new(mesh: &Mesh, node: usize, disk: &SimDisk, dir: &Path) -> Replica {
    let replica = open(mesh, node, disk, dir);
    replica.append_records(mesh.records.clone()).unwrap();
    replica
}

#[test]
fn a_full_disk_refuses_a_publish_and_the_next_one_takes_its_place() {
    let mesh = Mesh::of(1);
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    mesh.publish(0, &replica, "before");
    let mut events = replica.events();
    for room in [0, 100, 300] {
        disk.set_room(Some(room));
        let error = mesh.try_publish(0, &replica, "no room").unwrap_err();
        assert!(matches!(error, PublishError::Storage(LogError::Write(_))));
        assert!(error.hint().unwrap().contains("space"));
    }
    assert!(
        events.try_recv().is_err(),
        "nothing is told of what is not durable"
    );
    disk.set_room(None);
    assert_eq!(mesh.publish(0, &replica, "after").seq, 1);
    drop(replica);
    let replica = open(&mesh, 0, &disk, dir.path());
    assert!(replica.recovery().is_clean());
    assert_eq!(mesh.ids(&replica), 2);
    assert_eq!(mesh.publish(0, &replica, "on").seq, 2);
}

#[test]
fn a_failed_sync_stops_all_writes_until_the_replica_is_opened_again() {
    let mesh = Mesh::of(2);
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let other = tempfile::tempdir().unwrap();
    let peer = mesh.open(1, other.path());
    let wires = {
        let p = mesh.publish(1, &peer, "from elsewhere");
        mesh.wires(&peer, &[p])
    };
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let kept = mesh.publish(0, &replica, "kept");
    disk.fail_sync_after(Some(0));
    let error = mesh.try_publish(0, &replica, "unknown").unwrap_err();
    assert!(matches!(error, PublishError::Storage(LogError::Sync(_))));
    disk.fail_sync_after(None);
    let error = mesh.try_publish(0, &replica, "refused").unwrap_err();
    assert!(matches!(error, PublishError::Storage(LogError::ReadOnly)));
    let outcome = &replica.admit(peer.node(), wires.clone())[0];
    assert_eq!(outcome.verdict, Verdict::Reject(RejectReason::Storage));
    // Reading goes on.
    assert!(replica.holds(&kept.id));
    drop(replica);
    let replica = open(&mesh, 0, &disk, dir.path());
    assert_eq!(replica.admit(peer.node(), wires)[0].verdict, Verdict::Admit);
    let next = mesh.publish(0, &replica, "again").seq;
    assert_eq!(
        next,
        mesh.ids(&replica) as u64 - 2,
        "after what was found, without a gap"
    );
}

#[test]
fn a_damaged_fragment_of_ours_is_fetched_back_and_its_position_not_reused() {
    let mesh = Mesh::of(2);
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let other = tempfile::tempdir().unwrap();
    let peer = mesh.open(1, other.path());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let published: Vec<_> = (0..3)
        .map(|n| mesh.publish(0, &replica, &format!("{n}")))
        .collect();
    let wires = mesh.wires(&replica, &published);
    peer.admit(replica.node(), wires.clone());
    let loc = |n: usize| {
        replica
            .inner()
            .index
            .find(&published[n].id.into())
            .unwrap()
            .loc
    };
    let locs = [loc(1), loc(2)];
    drop(replica);
    // The index goes as well, so that nobody remembers.
    std::fs::remove_file(dir.path().join("index.redb")).unwrap();
    for loc in locs {
        let byte = usize::try_from(loc.offset).unwrap() + 60;
        disk.flip(&crate::store::segment_name(loc.segment), byte, 2);
    }
    let replica = open(&mesh, 0, &disk, dir.path());
    let report = replica.recovery();
    assert!(report.index_rebuilt);
    assert_eq!(
        (report.damage.len(), report.lost.len()),
        (2, 1),
        "{report:?}"
    );
    let error = mesh.try_publish(0, &replica, "not now").unwrap_err();
    assert!(
        matches!(error, PublishError::ChainBroken { seq: 1, .. }),
        "{error:?}"
    );
    assert!(error.hint().is_some());
    assert_eq!(mesh.ids(&replica), 1, "reconciliation sees what is missing");
    let outcomes = replica.admit(peer.node(), wires);
    assert_eq!(outcomes[1].verdict, Verdict::Admit);
    assert_eq!(outcomes[2].verdict, Verdict::Admit);
    assert_eq!(mesh.publish(0, &replica, "now").seq, 3);
}

#[test]
fn an_index_ahead_of_the_segments_is_built_anew() {
    let mesh = Mesh::of(1);
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let backup = {
        let replica = open_new(&mesh, 0, &disk, dir.path());
        mesh.publish(0, &replica, "first");
        replica.close().unwrap();
        disk.copy()
    };
    {
        let replica = open(&mesh, 0, &disk, dir.path());
        for n in 0..5 {
            mesh.publish(0, &replica, &format!("later {n}"));
        }
        replica.close().unwrap();
    }
    // The segments come back from a backup; index and view are of the future.
    let replica = open(&mesh, 0, &backup, dir.path());
    assert!(replica.recovery().index_rebuilt);
    assert_eq!(mesh.ids(&replica), 1);
    assert_eq!(replica.watch(None, 0, 100).len(), 1);
}

#[derive(Debug, Clone)]
enum Op {
    Publish,
    Checkpoint,
    Admit,
    Full(usize),
    FailSync,
    PowerLoss(u64),
    Restart,
    DropIndex,
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Publish),
        3 => Just(Op::Checkpoint),
        5 => Just(Op::Admit),
        1 => (0_usize..3000).prop_map(Op::Full),
        1 => Just(Op::FailSync),
        2 => any::<u64>().prop_map(Op::PowerLoss),
        1 => Just(Op::Restart),
        1 => Just(Op::DropIndex),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_acknowledged_is_lost_and_no_position_has_two_contents(
        ops in prop::collection::vec(op(), 1..30)
    ) {
        let mesh = Mesh::of(2);
        let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
        let other = tempfile::tempdir().unwrap();
        let peer = mesh.open(1, other.path());
        let mut replica = open_new(&mesh, 0, &disk, dir.path());
        let mut acknowledged: Vec<FragmentId> = Vec::new();
        let mut foreign: Vec<FragmentId> = Vec::new();
        let mut sent: Vec<_> = Vec::new();
        let mut positions: BTreeMap<u64, FragmentId> = BTreeMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            let mut reopen = false;
            match op {
                Op::Publish | Op::Checkpoint => {
                    let published = if matches!(op, Op::Publish) {
                        mesh.try_publish(0, &replica, &format!("finding {n}"))
                    } else {
                        let request = crate::CheckpointRequest {
                            space: mesh.space,
                            task: "task".into(),
                            patch: crate::ContextPatch {
                                status: Some(format!("step {n}")),
                                ..crate::ContextPatch::default()
                            },
                            fingerprint: Hash::of(b"runtime"),
                        };
                        replica.checkpoint(&mesh.nodes[0].agent, request)
                    };
                    if let Ok(published) = published {
                        let before = positions.insert(published.seq, published.id);
                        prop_assert!(before.is_none_or(|before| before == published.id));
                        acknowledged.push(published.id);
                    }
                    disk.set_room(None);
                    disk.fail_sync_after(None);
                }
                Op::Admit => {
                    sent.push(mesh.publish(1, &peer, &format!("elsewhere {n}")));
                    let wires = mesh.wires(&peer, &sent);
                    for outcome in replica.admit(peer.node(), wires) {
                        if outcome.verdict == Verdict::Admit {
                            foreign.extend(outcome.id);
                        }
                    }
                    disk.set_room(None);
                    disk.fail_sync_after(None);
                }
                Op::Full(room) => disk.set_room(Some(room)),
                Op::FailSync => disk.fail_sync_after(Some(0)),
                Op::PowerLoss(seed) => {
                    drop(replica);
                    disk.random_power_loss(seed);
                    replica = open(&mesh, 0, &disk, dir.path());
                    reopen = true;
                }
                Op::Restart => {
                    drop(replica);
                    disk.set_room(None);
                    disk.fail_sync_after(None);
                    replica = open(&mesh, 0, &disk, dir.path());
                    reopen = true;
                }
                Op::DropIndex => {
                    drop(replica);
                    disk.set_room(None);
                    disk.fail_sync_after(None);
                    let _ = std::fs::remove_file(dir.path().join("index.redb"));
                    replica = open(&mesh, 0, &disk, dir.path());
                    reopen = true;
                }
                Op::Flush => replica.flush().unwrap(),
            }
            if reopen {
                for id in acknowledged.iter().chain(&foreign) {
                    prop_assert!(replica.holds(id), "{} is lost", id);
                }
                // What was written but never acknowledged may be there: then it keeps its position.
                let own = mesh.nodes[0].agent.id();
                let mut after = 0;
                loop {
                    let rows = replica.inner().index.after(after, 100);
                    let Some(last) = rows.last() else { break };
                    after = last.arrival;
                    for row in rows {
                        let crate::store::RowKind::Fragment { author, seq, .. } = row.kind else {
                            continue;
                        };
                        if author == own {
                            let id = FragmentId::from(row.id);
                            let before = positions.insert(seq, id);
                            prop_assert!(before.is_none_or(|before| before == id));
                        }
                    }
                }
                prop_assert!(replica.recovery().damage.is_empty());
            }
        }
        // The whole chain is acceptable to a peer.
        let ids: Vec<Hash> = positions.values().map(|id| Hash::from(*id)).collect();
        let wires = replica.wires(mesh.lane(), &ids, usize::MAX);
        for outcome in peer.admit(replica.node(), wires) {
            prop_assert_eq!(outcome.verdict, Verdict::Admit);
        }
        replica.flush().unwrap();
        let stats = replica.sync_state(&mesh.space);
        prop_assert_eq!((stats.waiting, stats.quarantined), (0, 0));
    }
}

#[test]
fn many_publishers_share_syncs_and_a_failure_hits_all_who_were_waiting() {
    let mesh = Mesh::of(1);
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let publish = |n: usize| {
        let draft = Draft::new(Kind::Fact, format!("finding {n}"), "");
        let request = PublishRequest {
            space: mesh.space,
            draft,
            fingerprint: Hash::of(b""),
        };
        replica.publish(&mesh.nodes[0].agent, request)
    };
    let publish = &publish;
    let round = |from: usize| -> Vec<Result<u64, PublishError>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|n| scope.spawn(move || publish(from + n).map(|published| published.seq)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    };
    let mut seqs: Vec<u64> = round(0).into_iter().map(Result::unwrap).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (0..16).collect::<Vec<_>>());
    disk.set_room(Some(0));
    for outcome in round(16) {
        assert!(matches!(outcome.unwrap_err(), PublishError::Storage(_)));
    }
    disk.set_room(None);
    let mut seqs: Vec<u64> = round(32).into_iter().filter_map(Result::ok).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (16..16 + seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!(seqs.len(), 16);
    assert!(!replica.inner().disk.list("segments").unwrap().is_empty());
}
