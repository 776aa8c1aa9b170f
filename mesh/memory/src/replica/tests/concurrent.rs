//! Publishers side by side: on one document, on many, and with writes that fail in the middle.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rhizome_identity::{AgentId, Hash};

use super::{Mesh, open, open_new};
use crate::{
    CheckpointRequest, ContextPatch, Draft, Explored, Fragment, FragmentId, Kind, LogError,
    PublishError, PublishRequest, Published, Replica, Verdict, disk::sim::SimDisk,
};

/// Each publisher is an agent of its own, or shares one with others.
const AGENTS: usize = 3;
const THREADS: usize = 6;

/// What one thread publishes on its `n`th turn.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// All write the same memory.
    OneKey,
    /// All write the same context.
    OneTask,
    /// A few memories and contexts, and new ones in between.
    Mixed,
}

fn publish(
    mesh: &Mesh,
    replica: &Replica,
    target: Target,
    thread: usize,
    n: usize,
) -> Result<Published, PublishError> {
    let agent = &mesh.nodes[thread % AGENTS].agent;
    let draft = |key: Option<String>| {
        let draft = Draft {
            key,
            ..Draft::new(Kind::Fact, format!("thread {thread} turn {n}"), "")
        };
        let request = PublishRequest {
            space: mesh.space,
            draft,
            fingerprint: Hash::of(b"runtime"),
        };
        replica.publish(agent, request)
    };
    let checkpoint = |task: String| {
        let explored = vec![Explored {
            what: format!("thread {thread} turn {n}"),
            result: String::new(),
        }];
        let request = CheckpointRequest {
            space: mesh.space,
            task,
            patch: ContextPatch {
                explored,
                ..ContextPatch::default()
            },
            fingerprint: Hash::of(b"runtime"),
        };
        replica.checkpoint(agent, request)
    };
    match (target, (thread + n) % 4) {
        (Target::OneKey, _) => draft(Some("the key".into())),
        (Target::OneTask, _) => checkpoint("the task".into()),
        (Target::Mixed, 0) => draft(Some(format!("key {}", n % 3))),
        (Target::Mixed, 1) => checkpoint(format!("task {}", n % 2)),
        (Target::Mixed, _) => draft(None),
    }
}

/// Has all threads publish `turns` times; returns what was acknowledged and what failed.
fn publish_all(
    mesh: &Mesh,
    replica: &Replica,
    target: Target,
    turns: usize,
) -> (Vec<Published>, Vec<PublishError>) {
    let outcomes = Mutex::new((Vec::new(), Vec::new()));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let outcomes = &outcomes;
            scope.spawn(move || {
                for n in 0..turns {
                    let outcome = publish(mesh, replica, target, thread, n);
                    let mut outcomes = outcomes.lock().unwrap();
                    match outcome {
                        Ok(published) => outcomes.0.push(published),
                        Err(error) => outcomes.1.push(error),
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

/// Checks that a replica holds what was acknowledged, one fragment at each position, and that all
/// of it adds up to documents, here and on a peer.
fn check(mesh: &Mesh, replica: &Replica, acknowledged: &[Published]) {
    for published in acknowledged {
        assert!(replica.holds(&published.id), "{} is lost", published.id);
    }
    let ids: Vec<Hash> = replica
        .id_set(mesh.lane())
        .read()
        .unwrap()
        .iter()
        .copied()
        .collect();
    let wires = replica.wires(mesh.lane(), &ids, usize::MAX);
    assert_eq!(wires.len(), ids.len());
    let mut chains: BTreeMap<AgentId, BTreeSet<u64>> = BTreeMap::new();
    for wire in &wires {
        let header = Fragment::decode(wire).unwrap().header;
        let is_new = chains.entry(header.author).or_default().insert(header.seq);
        assert!(is_new, "two fragments at one position");
    }
    for seqs in chains.values() {
        assert_eq!(seqs.last().copied(), Some(seqs.len() as u64 - 1), "a gap");
    }
    replica.flush().unwrap();
    let stats = replica.sync_state(&mesh.space);
    assert_eq!((stats.waiting, stats.quarantined), (0, 0), "{stats:?}");

    let dir = tempfile::tempdir().unwrap();
    let peer = mesh.open(mesh.nodes.len() - 1, dir.path());
    for outcome in peer.admit(replica.node(), wires) {
        assert_eq!(outcome.verdict, Verdict::Admit);
    }
    peer.flush().unwrap();
    let there = peer.sync_state(&mesh.space);
    assert_eq!((there.waiting, there.quarantined), (0, 0));
    assert_eq!(there.heads, stats.heads);
    for task in ["the task", "task 0", "task 1"] {
        let (here, there) = (
            replica.context(&mesh.space, task).unwrap(),
            peer.context(&mesh.space, task).unwrap(),
        );
        assert_eq!(here, there, "{task}");
    }
    let query = crate::ListQuery {
        limit: 10_000,
        ..crate::ListQuery::default()
    };
    assert_eq!(replica.list(&query).unwrap(), peer.list(&query).unwrap());
}

fn with_a_peer() -> Mesh {
    // The last node is the peer; the agents are all of the first.
    let mut mesh = Mesh::with_agents(AGENTS);
    mesh.join(77);
    mesh
}

#[test]
fn many_publishers_on_one_document_follow_each_other() {
    for target in [Target::OneKey, Target::OneTask] {
        let mesh = with_a_peer();
        let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
        let replica = open_new(&mesh, 0, &disk, dir.path());
        let (acknowledged, failed) = publish_all(&mesh, &replica, target, 12);
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(acknowledged.len(), THREADS * 12);
        check(&mesh, &replica, &acknowledged);
        // Each was written upon all before it, so nothing stands side by side.
        let query = crate::ListQuery::default();
        for item in replica.list(&query).unwrap() {
            assert!(item.conflicts.is_empty(), "{item:?}");
        }
        if let Some(context) = replica.context(&mesh.space, "the task").unwrap() {
            assert_eq!(context.explored.len(), THREADS * 12);
        }
        drop(replica);
        disk.power_loss(|| false);
        let replica = open(&mesh, 0, &disk, dir.path());
        check(&mesh, &replica, &acknowledged);
    }
}

#[test]
fn publishers_on_many_documents_do_not_mind_each_other() {
    let mesh = with_a_peer();
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let (acknowledged, failed) = publish_all(&mesh, &replica, Target::Mixed, 16);
    assert!(failed.is_empty(), "{failed:?}");
    check(&mesh, &replica, &acknowledged);
    drop(replica);
    disk.power_loss(|| false);
    let replica = open(&mesh, 0, &disk, dir.path());
    check(&mesh, &replica, &acknowledged);
    // It goes on where it was.
    let (more, failed) = publish_all(&mesh, &replica, Target::Mixed, 3);
    assert!(failed.is_empty(), "{failed:?}");
    check(&mesh, &replica, &more);
}

#[test]
fn writes_that_fail_in_the_middle_leave_nothing_that_others_build_on() {
    for target in [Target::OneKey, Target::OneTask, Target::Mixed] {
        let mesh = with_a_peer();
        let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
        let replica = open_new(&mesh, 0, &disk, dir.path());
        let done = AtomicBool::new(false);
        let (acknowledged, failed) = thread::scope(|scope| {
            scope.spawn(|| {
                let mut room = 0;
                while !done.load(Ordering::Relaxed) {
                    disk.set_room(Some(room % 4_000));
                    room += 777;
                    thread::yield_now();
                    disk.set_room(None);
                    thread::yield_now();
                }
            });
            let outcomes = publish_all(&mesh, &replica, target, 14);
            done.store(true, Ordering::Relaxed);
            outcomes
        });
        disk.set_room(None);
        for error in &failed {
            let is_expected = matches!(
                error,
                PublishError::Storage(LogError::Write(_) | LogError::Interrupted)
            );
            assert!(is_expected, "{error:?}");
        }
        check(&mesh, &replica, &acknowledged);
        let (more, failed) = publish_all(&mesh, &replica, target, 3);
        assert!(failed.is_empty(), "{failed:?}");
        check(&mesh, &replica, &more);
        drop(replica);
        disk.power_loss(|| false);
        let replica = open(&mesh, 0, &disk, dir.path());
        let all: Vec<Published> = acknowledged.into_iter().chain(more).collect();
        check(&mesh, &replica, &all);
    }
}

#[test]
fn a_failed_sync_among_many_publishers_loses_nothing_acknowledged() {
    for after in [0, 1, 3, 7] {
        let mesh = with_a_peer();
        let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
        let replica = open_new(&mesh, 0, &disk, dir.path());
        disk.fail_sync_after(Some(after));
        let (acknowledged, failed) = publish_all(&mesh, &replica, Target::Mixed, 6);
        assert!(!failed.is_empty());
        disk.fail_sync_after(None);
        drop(replica);
        disk.random_power_loss(after as u64);
        let replica = open(&mesh, 0, &disk, dir.path());
        check(&mesh, &replica, &acknowledged);
        let (more, failed) = publish_all(&mesh, &replica, Target::Mixed, 3);
        assert!(failed.is_empty(), "{failed:?}");
        check(&mesh, &replica, &more);
    }
}

#[test]
fn nothing_behind_an_unfinished_record_is_written_and_if_it_never_is_all_behind_it_fail() {
    let mesh = with_a_peer();
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let before = mesh.publish(0, &replica, "before");
    let inner = replica.inner();
    let reserved = inner.journal.reserve(inner.journal.generation()).unwrap();
    let promise = reserved.promise();
    thread::scope(|scope| {
        let behind = scope.spawn(|| mesh.try_publish(0, &replica, "behind"));
        while inner.journal.waiting() < 2 {
            thread::yield_now();
        }
        assert!(!behind.is_finished());
        assert_eq!(mesh.ids(&replica), 1);
        assert!(!promise.is_broken());
        drop(reserved);
        let error = behind.join().unwrap().unwrap_err();
        assert!(
            matches!(error, PublishError::Storage(LogError::Interrupted)),
            "{error:?}"
        );
    });
    assert!(promise.is_broken());
    let after = mesh.publish(0, &replica, "after");
    assert_eq!((before.seq, after.seq), (0, 1), "nothing stays reserved");
    check(&mesh, &replica, &[before, after]);
}

#[test]
fn a_long_body_is_there_before_its_fragment_or_neither_is() {
    let mesh = with_a_peer();
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let replica = open_new(&mesh, 0, &disk, dir.path());
    let long = |n: usize| Draft::new(Kind::Fact, format!("long {n}"), "x".repeat(100_000));
    let bodies = || {
        let names = disk_names(&disk);
        names
            .into_iter()
            .filter(|name| !name.ends_with(".part"))
            .count()
    };
    // No room for the body; room for the body but not for the record behind it.
    for room in [0, 50_000, 100_600] {
        disk.set_room(Some(room));
        let error = mesh.try_publish_draft(0, &replica, long(0)).unwrap_err();
        assert!(
            matches!(error, PublishError::Storage(LogError::Write(_))),
            "{error:?}"
        );
        assert_eq!(bodies(), 0, "with room for {room}");
    }
    disk.set_room(None);
    let published: Vec<FragmentId> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (mesh, replica) = (&mesh, &replica);
                scope.spawn(move || {
                    mesh.try_publish_draft(n % AGENTS, replica, long(n))
                        .unwrap()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().id)
            .collect()
    });
    assert_eq!(bodies(), 4);
    drop(replica);
    disk.power_loss(|| false);
    let replica = open(&mesh, 0, &disk, dir.path());
    assert!(replica.missing_bodies().is_empty());
    for id in published {
        assert!(replica.holds(&id));
        let fragment = replica.inner().fragment(&id).unwrap();
        assert!(replica.inner().open(&fragment).is_ok());
    }
}

fn disk_names(disk: &SimDisk) -> Vec<String> {
    crate::disk::Disk::list(disk, "bodies").unwrap()
}
