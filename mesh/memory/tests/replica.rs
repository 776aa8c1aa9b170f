//! A replica as its users see it: publish, admit, read, reopen.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use std::fs;

use bytes::Bytes;
use mesh::Mesh;
use rhizome_identity::{Hash, issue};
use rhizome_memory::{
    ContextPatch, Draft, Event, Kind, Lane, ListQuery, MAX_WAITING_PER_AUTHOR, OpenError,
    Published, RecallQuery, Replica, ReplicaConfig, ReplicaError, Verdict, WhyState,
};

#[test]
fn what_was_published_is_recalled_at_once_and_after_a_restart() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let query = RecallQuery {
        text: "heron".into(),
        spaces: vec![mesh.space],
        kinds: Vec::new(),
        task: None,
        limit: 5,
    };
    let first = {
        let replica = mesh.open(0, dir.path());
        let mut events = replica.events();
        let first = mesh.publish(0, &replica, "the heron stands still");
        assert_eq!(
            (first.seq, first.arrival),
            (0, mesh.records.len() as u64 + 1)
        );
        assert_eq!(mesh.publish(0, &replica, "the otter swims").seq, 1);
        let hits = replica.recall(&query).unwrap();
        assert_eq!(
            hits.iter().map(|hit| hit.item.id).collect::<Vec<_>>(),
            [first.id]
        );
        let stored = Event::Stored {
            lane: mesh.lane(),
            id: first.id.into(),
            own: true,
            arrival: first.arrival,
        };
        assert_eq!(events.try_recv().unwrap(), stored);
        first
    };
    let replica = Replica::open(
        dir.path(),
        mesh.nodes[0].key.clone(),
        ReplicaConfig::default(),
    );
    let replica = replica.unwrap();
    assert!(replica.recovery().is_clean());
    assert_eq!(replica.recall(&query).unwrap()[0].item.id, first.id);
    assert_eq!(mesh.publish(0, &replica, "the heron flew").seq, 2);
    let why = replica.why(&first.id).unwrap().unwrap();
    assert_eq!(
        (why.state, why.author_name.as_deref()),
        (WhyState::Applied, Some("agent0"))
    );
}

#[test]
fn a_directory_is_open_once() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let first = mesh.open(0, dir.path());
    let open = || {
        Replica::open(
            dir.path(),
            mesh.nodes[0].key.clone(),
            ReplicaConfig::default(),
        )
    };
    let refused = open().unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }));
    assert!(refused.hint().is_some());
    drop(first);
    open().unwrap();
}

#[test]
fn another_nodes_directory_is_refused() {
    let mesh = Mesh::of(2);
    let dir = tempfile::tempdir().unwrap();
    drop(mesh.open(0, dir.path()));
    let other = Replica::open(
        dir.path(),
        mesh.nodes[1].key.clone(),
        ReplicaConfig::default(),
    );
    assert!(matches!(other.unwrap_err(), OpenError::Store { .. }));
}

#[test]
fn fragments_travel_in_any_order_and_arrive_once() {
    let mesh = Mesh::of(2);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (mesh.open(0, here.path()), mesh.open(1, there.path()));
    let published: Vec<_> = (0..20)
        .map(|n| mesh.publish(0, &a, &format!("finding {n}")))
        .collect();
    let mut wires = mesh.wires(&a, &published);
    let late = wires.split_off(15);
    let outcomes = b.admit(a.node(), late.clone());
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome.verdict, Verdict::Wait(_)))
    );
    wires.reverse();
    let outcomes = b.admit(a.node(), wires.clone());
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.verdict == Verdict::Admit)
    );
    assert_eq!(mesh.ids(&b), 20);
    let again = b.admit(a.node(), [wires, late].concat());
    assert!(
        again
            .iter()
            .all(|outcome| outcome.verdict == Verdict::Duplicate)
    );
    let seen: Vec<_> = b
        .watch(Some(mesh.space), 0, 100)
        .into_iter()
        .map(|event| event.id)
        .collect();
    assert_eq!(
        seen,
        published
            .iter()
            .map(|published| published.id)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        a.sync_state(&mesh.space).heads,
        b.sync_state(&mesh.space).heads
    );
}

#[test]
fn records_arrive_in_any_order_and_free_what_waited_for_them() {
    let mesh = Mesh::of(2);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let a = mesh.open(0, here.path());
    let published = mesh.publish(0, &a, "early");
    let wires = mesh.wires(&a, &[published]);
    let b = Replica::open(
        there.path(),
        mesh.nodes[1].key.clone(),
        ReplicaConfig::default(),
    );
    let b = b.unwrap();
    let outcomes = b.admit(a.node(), wires);
    assert!(matches!(outcomes[0].verdict, Verdict::Wait(_)));
    let why = b.why(&published.id).unwrap().unwrap();
    assert!(matches!(why.state, WhyState::WaitingFor { .. }));
    for record in mesh.records.iter().rev() {
        b.admit_records(Some(a.node()), vec![Bytes::copy_from_slice(record.bytes())]);
    }
    assert_eq!(b.authority().heads(), a.authority().heads());
    assert!(b.holds(&published.id));
    assert_eq!(b.watch(None, 0, 10).len(), 1);
    assert_eq!(b.lanes(), [Lane::Authority, mesh.lane()]);
}

#[test]
fn a_context_is_verified_fragment_by_fragment() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let replica = mesh.open(0, dir.path());
    for goal in ["read", "understand", "mend"] {
        let patch = ContextPatch {
            goal: Some(goal.into()),
            ..ContextPatch::default()
        };
        mesh.checkpoint(0, &replica, patch);
    }
    let verification = replica
        .verify_context(&mesh.space, "mend the parser")
        .unwrap();
    assert_eq!(verification.fragments.len(), 3);
    assert!(verification.is_ok(), "{verification:?}");

    // Damage one of them on disk, and it is named.
    let segment = dir.path().join("segments/00000001.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let last = bytes.len() - 400;
    bytes[last] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let verification = replica
        .verify_context(&mesh.space, "mend the parser")
        .unwrap();
    assert_eq!(
        (verification.fragments.len(), verification.passed()),
        (3, 2)
    );
    assert!(verification.fragments[2].problem.is_some());
}

#[test]
fn a_long_body_is_a_file_and_may_come_later() {
    let mesh = Mesh::of(2);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (mesh.open(0, here.path()), mesh.open(1, there.path()));
    // Text that does not compress, so that the change stays long.
    let text: String = (0_u32..5000)
        .map(|n| Hash::of(&n.to_be_bytes()).to_string())
        .collect();
    let draft = Draft::new(Kind::Artifact, "a long log", &text[..200_000]);
    let published = mesh.try_publish_draft(0, &a, draft).unwrap();
    let outcomes = b.admit(a.node(), mesh.wires(&a, &[published]));
    assert_eq!(outcomes[0].verdict, Verdict::Admit);
    let [wanted] = b.missing_bodies()[..] else {
        panic!("one body is missing")
    };
    let body = Bytes::from(fs::read(a.body_path(wanted).unwrap()).unwrap());
    let wrong = b.put_body(wanted, body.slice(1..)).unwrap_err();
    assert!(matches!(wrong, ReplicaError::BodyMismatch(_)));
    assert!(b.memory(&mesh.space, &published.doc).unwrap().is_none());
    let seen = b
        .watch(None, 0, 10)
        .last()
        .map_or(published.arrival, |event| event.arrival);
    let mut events = b.events();
    b.put_body(wanted, body.clone()).unwrap();
    assert_eq!(events.try_recv().unwrap(), Event::BodyStored(wanted));
    assert_eq!(b.watch(None, seen, 10)[0].item.doc, published.doc);
    assert!(b.missing_bodies().is_empty());
    assert_eq!(
        b.memory(&mesh.space, &published.doc)
            .unwrap()
            .unwrap()
            .text
            .len(),
        200_000
    );
    assert!(matches!(
        b.put_body(wanted, body),
        Err(ReplicaError::UnwantedBody(_))
    ));
}

#[test]
fn a_node_that_gets_its_key_late_reads_what_it_only_stored_before() {
    let mesh = Mesh::of(2);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let a = mesh.open(0, here.path());
    let published = mesh.publish(0, &a, "the heron stands still");
    let key = || mesh.nodes[1].key.clone();
    // Genesis, its grant, the space and the first agent: everything but what concerns this node.
    let (early, late) = mesh.records.split_at(4);
    let b = Replica::open(there.path(), key(), ReplicaConfig::default()).unwrap();
    b.append_records(early.to_vec()).unwrap();
    let wires = mesh.wires(&a, &[published]);
    // The fragment names records that are not here, but its author is known: that is enough.
    assert_eq!(b.admit(a.node(), wires)[0].verdict, Verdict::Admit);
    let why = b.why(&published.id).unwrap().unwrap();
    assert_eq!(why.state, WhyState::Unreadable { epoch: 1 });
    assert!(b.memory(&mesh.space, &published.doc).unwrap().is_none());
    b.flush().unwrap();
    b.append_records(late.to_vec()).unwrap();
    drop(b);
    // Whether or not there was time for it before the restart.
    let b = Replica::open(there.path(), key(), ReplicaConfig::default()).unwrap();
    assert!(b.space_key(&mesh.space, 1).is_some());
    assert_eq!(
        b.memory(&mesh.space, &published.doc).unwrap().unwrap().id,
        published.id
    );
}

#[test]
fn index_and_view_can_be_deleted_or_garbage() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let published: Vec<_> = {
        let replica = mesh.open(0, dir.path());
        let published = (0..30)
            .map(|n| mesh.publish(0, &replica, &format!("{n} herons")))
            .collect();
        replica.close().unwrap();
        published
    };
    let open = || {
        Replica::open(
            dir.path(),
            mesh.nodes[0].key.clone(),
            ReplicaConfig::default(),
        )
    };
    let is_whole = |replica: &Replica, rebuilt: bool| {
        assert_eq!(replica.recovery().index_rebuilt, rebuilt);
        assert!(replica.recovery().is_clean());
        assert_eq!(replica.watch(None, 0, 100).len(), 30);
        let ids = replica
            .watch(None, 0, 100)
            .into_iter()
            .map(|event| event.id);
        assert!(ids.eq(published.iter().map(|published| published.id)));
    };
    is_whole(&open().unwrap(), false);
    let index = dir.path().join("index.redb");
    fs::remove_file(&index).unwrap();
    is_whole(&open().unwrap(), true);
    fs::write(&index, b"this is not an index").unwrap();
    is_whole(&open().unwrap(), true);
    fs::remove_dir_all(dir.path().join("view")).unwrap();
    is_whole(&open().unwrap(), false);
    let replica = open().unwrap();
    assert_eq!(mesh.publish(0, &replica, "one more").seq, 30);
}

#[test]
fn what_there_was_no_room_for_is_shown_once_there_is() {
    let mesh = Mesh::of(3);
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let [first, second, late] = [0, 1, 2].map(|node| mesh.open(node, dirs[node].path()));
    let keyed = |title: String| Draft {
        key: Some("the key".into()),
        ..Draft::new(Kind::Fact, title, "")
    };
    let root = mesh
        .try_publish_draft(0, &first, keyed("root".into()))
        .unwrap();
    let root = mesh.wires(&first, &[root]);
    second.admit(first.node(), root.clone());
    assert_eq!(second.list(&ListQuery::default()).unwrap().len(), 1);
    // Each rests on the one before, and the first of them on what the late one does not have.
    let count = MAX_WAITING_PER_AUTHOR + 300;
    let published: Vec<Published> = (1..=count)
        .map(|n| {
            mesh.try_publish_draft(1, &second, keyed(format!("v{n}")))
                .unwrap()
        })
        .collect();
    late.admit(second.node(), mesh.wires(&second, &published));
    assert_eq!(late.list(&ListQuery::default()).unwrap().len(), 0);
    let waiting = late.sync_state(&mesh.space).waiting;
    assert_eq!(waiting, MAX_WAITING_PER_AUTHOR as u64);
    late.admit(first.node(), root);
    let shown = late.list(&ListQuery::default()).unwrap();
    assert_eq!(shown[0].title, format!("v{count}"));
    assert_eq!(late.sync_state(&mesh.space).waiting, 0);
    let why = late.why(&published[count - 1].id).unwrap().unwrap();
    assert!(matches!(why.state, WhyState::Applied), "{why:?}");
}

#[test]
fn what_two_keys_made_at_once_sealed_is_read_by_all() {
    let mesh = Mesh::of(2);
    let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let open = |at: usize| mesh.open(at, dirs[at].path());
    let [a, b] = [0, 1].map(open);
    // Two halves of a mesh: in each the space gets a new key, and something is said under it.
    let (founder, authority) = (&mesh.nodes[0].key, mesh.authority());
    let made = [5, 6].map(|now| issue::rotate_key(founder, &authority, &mesh.space, now).unwrap());
    a.append_records(vec![made[0].clone()]).unwrap();
    b.append_records(vec![made[1].clone()]).unwrap();
    let said = [
        mesh.publish(0, &a, "the heron"),
        mesh.publish(1, &b, "the otter"),
    ];
    let key = |replica: &Replica| replica.space_key(&mesh.space, 2).unwrap().commitment();
    assert_ne!(key(&a), key(&b));
    // What was said comes first, and the key that opens it later.
    let wires = [mesh.wires(&a, &said[..1]), mesh.wires(&b, &said[1..])];
    assert_eq!(
        b.admit(a.node(), wires[0].clone())[0].verdict,
        Verdict::Admit
    );
    assert_eq!(
        a.admit(b.node(), wires[1].clone())[0].verdict,
        Verdict::Admit
    );
    let titles = |replica: &Replica| {
        let items = replica.list(&ListQuery::default()).unwrap();
        let mut titles: Vec<_> = items.into_iter().map(|item| item.title).collect();
        titles.sort();
        titles
    };
    assert_eq!((titles(&a).len(), titles(&b).len()), (1, 1));
    a.append_records(vec![made[1].clone()]).unwrap();
    b.append_records(vec![made[0].clone()]).unwrap();
    assert_eq!(key(&a), key(&b));
    for replica in [&a, &b] {
        assert_eq!(titles(replica), ["the heron", "the otter"]);
    }
    // Also of what is said from now on, and after a restart.
    let next = mesh.publish(1, &b, "the reed");
    a.admit(b.node(), mesh.wires(&b, &[next]));
    drop((a, b));
    let [a, b] = [0, 1].map(open);
    for replica in [&a, &b] {
        assert_eq!(titles(replica), ["the heron", "the otter", "the reed"]);
    }
}
