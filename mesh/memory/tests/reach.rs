//! How far authors count: cuts, two histories, stores put back from a copy.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mesh::Mesh;
use rhizome_identity::{Denied, Hash, PublicKey, Reach, issue, record::Cut};
use rhizome_memory::{
    Draft, FileEdit, FilePath, FileRequest, Kind, Lane, ListQuery, PublishError, Published,
    RejectReason, Replica, ReplicaConfig, Verdict, WhyState, retraction,
};

struct Lab {
    mesh: Mesh,
    dirs: Vec<tempfile::TempDir>,
    nodes: Vec<Replica>,
}

impl Lab {
    /// A lab in which forks are shown as they are found.
    fn of(nodes: u8) -> Self {
        Self::of_turns(nodes, Duration::ZERO)
    }

    fn of_turns(nodes: u8, turn: Duration) -> Self {
        let mesh = Mesh::of(nodes);
        let dirs: Vec<_> = (0..nodes).map(|_| tempfile::tempdir().unwrap()).collect();
        let nodes = dirs.iter().enumerate();
        let nodes = nodes
            .map(|(n, dir)| open(&mesh, n, dir.path(), turn))
            .collect();
        Self { mesh, dirs, nodes }
    }

    fn say(&self, node: usize, title: &str) -> Published {
        self.mesh.publish(node, &self.nodes[node], title)
    }

    fn said(&self, node: usize) -> Vec<String> {
        titles(&self.mesh, &self.nodes[node])
    }

    fn sync(&self, from: usize, to: usize) {
        self.mesh.sync(&self.nodes[from], &self.nodes[to]);
    }

    /// Lets all tell all, in both directions, until nothing is new.
    fn settle(&self) {
        for _ in 0..3 {
            for from in 0..self.nodes.len() {
                for to in 0..self.nodes.len() {
                    if from != to {
                        self.sync(from, to);
                    }
                }
            }
        }
    }

    /// Checks that all hold the same and show the same.
    fn agree(&self) -> Vec<String> {
        let state = |node: &Replica| {
            let set = node.id_set(self.mesh.lane());
            let ids: Vec<Hash> = set.read().unwrap().iter().copied().collect();
            (ids, node.sync_state(&self.mesh.space).heads)
        };
        for node in 1..self.nodes.len() {
            assert_eq!(self.said(node), self.said(0), "node {node}");
            assert_eq!(
                state(&self.nodes[node]),
                state(&self.nodes[0]),
                "node {node}"
            );
        }
        self.said(0)
    }

    fn key(&self, node: usize) -> PublicKey {
        self.mesh.nodes[node].key.public()
    }

    fn cut(&self, node: usize, last: &Published) -> Cut {
        Cut {
            author: self.mesh.nodes[node].agent.id(),
            space: self.mesh.space,
            seq: last.seq,
            hash: last.id.into(),
        }
    }

    /// The founder revokes a node, at the founder's node.
    fn revoke(&self, whom: usize, cuts: Vec<Cut>) {
        let founder = &self.mesh.nodes[0].key;
        let authority = self.nodes[0].authority();
        let records = issue::revoke(
            founder.secret(),
            &authority,
            self.key(whom),
            cuts,
            "left",
            9,
        )
        .unwrap();
        self.nodes[0].append_records(records).unwrap();
    }

    fn edit(&self, node: usize, edit: FileEdit) {
        let request = FileRequest {
            space: self.mesh.space,
            path: FilePath::parse("/memories/notes.md").unwrap(),
            edit,
            fingerprint: Hash::of(b"runtime"),
        };
        self.nodes[node]
            .edit_file(&self.mesh.nodes[node].agent, &request)
            .unwrap();
    }

    fn text(&self, node: usize) -> String {
        let path = FilePath::parse("/memories/notes.md").unwrap();
        let file = self.nodes[node].file(&self.mesh.space, &path).unwrap();
        file.map(|file| file.text).unwrap_or_default()
    }
}

fn open(mesh: &Mesh, node: usize, dir: &Path, fork_turn: Duration) -> Replica {
    let config = ReplicaConfig::default().with_fork_turn(fork_turn);
    mesh.open_with(node, dir, config)
}

fn titles(mesh: &Mesh, replica: &Replica) -> Vec<String> {
    replica.flush().unwrap();
    let query = ListQuery {
        spaces: Some(vec![mesh.space]),
        limit: 1_000,
        ..ListQuery::default()
    };
    let mut titles: Vec<_> = replica
        .list(&query)
        .unwrap()
        .into_iter()
        .map(|item| item.title)
        .collect();
    titles.sort();
    titles
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn what_is_beyond_a_cut_is_nowhere_whatever_came_first() {
    let lab = Lab::of(4);
    let said: Vec<Published> = (0..6).map(|n| lab.say(2, &format!("said {n}"))).collect();
    // One node knows all of it before the revocation, one some, one nothing.
    lab.sync(2, 0);
    let some = lab.mesh.wires(&lab.nodes[2], &said[..2]);
    lab.nodes[1].admit(lab.nodes[2].node(), some);
    assert_eq!(lab.said(0).len(), 6);
    lab.revoke(2, vec![lab.cut(2, &said[3])]);
    let wires = lab.mesh.wires(&lab.nodes[2], &said);
    assert_eq!(lab.said(0).len(), 4, "at once");
    lab.settle();
    assert_eq!(lab.agree(), ["said 0", "said 1", "said 2", "said 3"]);
    let outcomes = lab.nodes[3].admit(lab.nodes[2].node(), wires);
    let verdict = &outcomes[4].verdict;
    assert_eq!(*verdict, Verdict::Reject(RejectReason::BeyondCut));
    // What was set aside says so, and by which record.
    let why = lab.nodes[0].why(&said[5].id).unwrap().unwrap();
    let WhyState::SetAside {
        up_to,
        by,
        carried: false,
    } = why.state
    else {
        panic!("{:?}", why.state);
    };
    assert_eq!((up_to, by.len()), (Some(3), 1));
    let author = lab.mesh.nodes[2].agent.id();
    assert_eq!(lab.nodes[0].set_aside(&author, &lab.mesh.space), 2);
    let denied = lab.mesh.try_publish(2, &lab.nodes[2], "more").unwrap_err();
    let PublishError::Denied { source, .. } = denied else {
        panic!("{denied}");
    };
    assert_eq!(source, Denied::Revoked);
    // A restart changes nothing, and an Amend gives it back everywhere, also after one.
    drop(lab.nodes[0].clone());
    let Lab {
        mesh,
        dirs,
        mut nodes,
    } = lab;
    drop(nodes.remove(0));
    nodes.insert(0, mesh.open(0, dirs[0].path()));
    let lab = Lab { mesh, dirs, nodes };
    assert_eq!(lab.agree().len(), 4);
    let authority = lab.nodes[0].authority();
    let revocation = authority.revocations_of(&lab.key(2)).next().unwrap().record;
    let cuts = lab.nodes[0].cuts_of(&[author], true);
    assert_eq!(cuts[0].seq, 5);
    let founder = lab.mesh.nodes[0].key.secret();
    let amends = issue::amend(founder, &authority, revocation, &cuts, 10).unwrap();
    lab.nodes[0].append_records(amends).unwrap();
    lab.settle();
    assert_eq!(lab.agree().len(), 6);
}

#[test]
fn the_work_of_others_stands_without_what_it_was_built_on() {
    let lab = Lab::of(4);
    let create = |text: &str| FileEdit::Create {
        text: text.into(),
        from: None,
    };
    let insert = |line, text: &str| FileEdit::Insert {
        line,
        text: text.into(),
    };
    lab.edit(1, create("one\n"));
    lab.sync(1, 2);
    let kept = lab.say(2, "kept");
    lab.edit(2, insert(1, "spoiled"));
    lab.sync(2, 1);
    lab.edit(1, insert(2, "three"));
    assert_eq!(lab.text(1), "one\nspoiled\nthree\n");
    lab.sync(1, 0);
    lab.revoke(2, vec![lab.cut(2, &kept)]);
    // The last node hears of the revocation before it hears of anything else.
    lab.mesh.sync(&lab.nodes[0], &lab.nodes[3]);
    lab.settle();
    lab.agree();
    for node in 0..4 {
        assert_eq!(lab.text(node), "one\nthree\n", "node {node}");
    }
}

/// Two replicas of one node: an honest one, and what whoever holds its keys says elsewhere.
fn with_twin(nodes: u8) -> (Lab, Replica, tempfile::TempDir) {
    let lab = Lab::of(nodes);
    for n in 0..3 {
        lab.say(2, &format!("both {n}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let twin = lab.mesh.open(2, dir.path());
    lab.mesh.sync(&lab.nodes[2], &twin);
    (lab, twin, dir)
}

#[test]
fn an_author_of_two_histories_is_frozen_where_they_part_on_every_node() {
    for turn in 0..3 {
        let (lab, twin, _dir) = with_twin(4);
        let here: Vec<_> = (0..3)
            .map(|n| lab.say(2, &format!("here {turn}.{n}")))
            .collect();
        let there: Vec<_> = (0..2)
            .map(|n| lab.mesh.publish(2, &twin, &format!("there {turn}.{n}")))
            .collect();
        // Half of the mesh hears one history, half the other.
        lab.sync(2, 0);
        lab.mesh.sync(&twin, &lab.nodes[1]);
        lab.mesh.sync(&twin, &lab.nodes[3]);
        assert_eq!((lab.said(0).len(), lab.said(1).len()), (6, 5));
        lab.settle();
        let is_here = here[0].id < there[0].id;
        let first = if is_here { "here" } else { "there" };
        let expected = [
            "both 0".to_owned(),
            "both 1".into(),
            "both 2".into(),
            format!("{first} {turn}.0"),
        ];
        assert_eq!(lab.agree(), expected);
        let author = lab.mesh.nodes[2].agent.id();
        for node in &lab.nodes {
            let authority = node.authority();
            let frozen = authority.frozen(&author, &lab.mesh.space).unwrap();
            assert_eq!(frozen.pin.seq, 3);
        }
        let denied = lab.mesh.try_publish(2, &lab.nodes[2], "more").unwrap_err();
        assert!(
            matches!(
                denied,
                PublishError::Denied {
                    source: Denied::Frozen,
                    ..
                }
            ),
            "{denied}"
        );
        // An admin says which history is meant: the other one than the lower hash.
        let (meant, last) = if is_here {
            (&twin, &there[1])
        } else {
            (&lab.nodes[2], &here[2])
        };
        lab.mesh.sync(&lab.nodes[0], &twin);
        let authority = lab.nodes[0].authority();
        let proof = authority.frozen(&author, &lab.mesh.space).unwrap().proof;
        let founder = lab.mesh.nodes[0].key.secret();
        let cut = [lab.cut(2, last)];
        let amends = issue::amend(founder, &authority, proof, &cut, 10).unwrap();
        lab.nodes[0].append_records(amends).unwrap();
        lab.mesh.sync(&lab.nodes[0], meant);
        for _ in 0..2 {
            lab.mesh.sync(meant, &lab.nodes[1]);
            lab.settle();
        }
        let said = lab.agree();
        let other = if is_here { "there" } else { "here" };
        assert_eq!(said.len(), if is_here { 5 } else { 6 }, "{said:?}");
        assert!(
            said[3..].iter().all(|title| title.starts_with(other)),
            "{said:?}"
        );
        // Opened anew, from the segments alone, it is the same.
        let authority = lab.nodes[1].authority();
        assert!(matches!(
            authority.reach(&author, &lab.mesh.space),
            Reach::UpTo(pin) if pin.seq == last.seq
        ));
        let Lab {
            mesh,
            dirs,
            mut nodes,
        } = lab;
        drop(nodes.remove(1));
        std::fs::remove_file(dirs[1].path().join("index.redb")).unwrap();
        std::fs::remove_dir_all(dirs[1].path().join("view")).unwrap();
        nodes.insert(1, mesh.open(1, dirs[1].path()));
        let lab = Lab { mesh, dirs, nodes };
        assert_eq!(lab.agree(), said);
    }
}

#[test]
fn what_is_dated_back_below_a_cut_is_proof_against_its_author_and_changes_nothing() {
    let (lab, twin, _dir) = with_twin(3);
    let honest: Vec<_> = (0..4).map(|n| lab.say(2, &format!("honest {n}"))).collect();
    let forged: Vec<_> = (0..6)
        .map(|n| lab.mesh.publish(2, &twin, &format!("forged {n}")))
        .collect();
    lab.sync(2, 0);
    // One node is told the forged history first and knows no other.
    lab.mesh.sync(&twin, &lab.nodes[1]);
    lab.revoke(2, vec![lab.cut(2, &honest[2])]);
    let wires = lab.mesh.wires(&twin, &forged);
    let outcomes = lab.nodes[0].admit(twin.node(), wires.clone());
    assert_eq!(
        outcomes[0].verdict,
        Verdict::Fork {
            other: honest[0].id
        }
    );
    assert_eq!(lab.nodes[0].forks().len(), 1);
    lab.settle();
    let said = lab.agree();
    assert_eq!(said.len(), 6);
    assert!(!said.iter().any(|title| title.starts_with("forged")));
    let author = lab.mesh.nodes[2].agent.id();
    let authority = lab.nodes[1].authority();
    assert!(
        authority.frozen(&author, &lab.mesh.space).is_some(),
        "all know the proof"
    );
    // Once more, to a node that has settled.
    lab.nodes[1].admit(twin.node(), wires);
    assert_eq!(lab.agree(), said);
}

#[test]
fn a_delete_counts_as_far_as_its_author_does() {
    for is_kept in [true, false] {
        let lab = Lab::of(4);
        let memory = lab.say(0, "worth keeping");
        lab.edit(
            0,
            FileEdit::Create {
                text: "a file\n".into(),
                from: None,
            },
        );
        lab.settle();
        // Node 3 goes away. Node 2 deletes the memory and the file and is then revoked.
        let before = lab.say(2, "before");
        let item = lab.nodes[2].memory(&lab.mesh.space, &memory.doc).unwrap();
        let draft = retraction(&item.unwrap());
        let deleted = lab.mesh.try_publish_draft(2, &lab.nodes[2], draft).unwrap();
        lab.edit(2, FileEdit::Delete { only_if: None });
        let all = lab.nodes[2].cuts_of(&[lab.mesh.nodes[2].agent.id()], false);
        lab.sync(2, 0);
        lab.sync(0, 1);
        assert!(!lab.said(1).contains(&"worth keeping".to_owned()));
        assert_eq!(lab.text(1), "");
        let cuts = if is_kept {
            all
        } else {
            vec![lab.cut(2, &before)]
        };
        assert!(deleted.seq > before.seq);
        lab.revoke(2, cuts);
        lab.sync(0, 1);
        // The one that was away has gone on with the older state.
        lab.say(3, "meanwhile");
        lab.settle();
        let said = lab.agree();
        assert!(said.contains(&"meanwhile".to_owned()));
        assert_eq!(said.contains(&"worth keeping".to_owned()), !is_kept);
        for node in 0..4 {
            let text = if is_kept { "" } else { "a file\n" };
            assert_eq!(lab.text(node), text, "node {node}");
        }
    }
}

#[test]
fn a_context_is_what_those_who_count_made_of_it() {
    use rhizome_memory::ContextPatch;
    let lab = Lab::of(3);
    let patch = |goal: &str, line: &str| ContextPatch {
        goal: Some(goal.into()),
        decisions: vec![rhizome_memory::Decision {
            what: line.into(),
            ..rhizome_memory::Decision::default()
        }],
        ..ContextPatch::default()
    };
    lab.mesh.checkpoint(1, &lab.nodes[1], patch("good", "stay"));
    lab.sync(1, 2);
    lab.mesh.checkpoint(2, &lab.nodes[2], patch("bad", "leave"));
    lab.sync(2, 1);
    lab.mesh.checkpoint(
        1,
        &lab.nodes[1],
        ContextPatch {
            next: Some(vec!["go on".into()]),
            ..ContextPatch::default()
        },
    );
    lab.sync(1, 0);
    lab.revoke(2, vec![]);
    lab.settle();
    lab.agree();
    for node in &lab.nodes {
        let context = node.context(&lab.mesh.space, "mend the parser").unwrap();
        let context = context.unwrap();
        assert_eq!(context.goal.unwrap().value.text, "good");
        assert_eq!(context.decisions.len(), 1);
        assert_eq!(context.next.len(), 1);
        let listed = node.contexts(Some(lab.mesh.space)).unwrap();
        assert_eq!(listed[0].goal.as_deref(), Some("good"));
    }
}

#[test]
fn a_store_put_back_from_a_copy_fetches_its_own_before_it_goes_on() {
    let lab = Lab::of(2);
    lab.say(1, "before the copy");
    let copy = tempfile::tempdir().unwrap();
    lab.nodes[1].flush().unwrap();
    copy_all(lab.dirs[1].path(), copy.path());
    let last = lab.say(1, "after the copy");
    lab.sync(1, 0);
    let Lab {
        mesh,
        dirs,
        mut nodes,
    } = lab;
    drop(nodes.remove(1));
    assert_eq!(dirs.len(), 2);
    let key = || mesh.nodes[1].key.clone();
    let replica = Replica::open(copy.path(), key(), ReplicaConfig::default()).unwrap();
    assert!(replica.is_unconfirmed_copy());
    let error = mesh.try_publish(1, &replica, "too soon").unwrap_err();
    assert!(matches!(error, PublishError::Restored(_)), "{error}");
    assert!(error.hint().unwrap().contains("peer"));
    // It stays so until it was compared, whatever happens in between.
    drop(replica);
    let replica = Replica::open(copy.path(), key(), ReplicaConfig::default()).unwrap();
    assert!(replica.is_unconfirmed_copy());
    mesh.sync(&nodes[0], &replica);
    assert_eq!(replica.refetched(), 1);
    replica.note_compared(mesh.space);
    let next = mesh.publish(1, &replica, "goes on");
    assert_eq!(next.seq, last.seq + 1);
    assert!(!replica.is_unconfirmed_copy());
    mesh.sync(&replica, &nodes[0]);
    assert!(nodes[0].forks().is_empty());
    assert_eq!(titles(&mesh, &nodes[0]).len(), 3);
    drop(replica);
    let replica = Replica::open(copy.path(), key(), ReplicaConfig::default()).unwrap();
    assert!(!replica.is_unconfirmed_copy(), "it is at home here now");
}

#[test]
fn a_copy_that_goes_on_all_the_same_is_found_out() {
    let lab = Lab::of(2);
    lab.say(1, "before the copy");
    lab.nodes[1].flush().unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_all(lab.dirs[1].path(), copy.path());
    lab.say(1, "after the copy");
    lab.sync(1, 0);
    let key = lab.mesh.nodes[1].key.clone();
    let replica = Replica::open(copy.path(), key, ReplicaConfig::default()).unwrap();
    replica.accept_copy();
    lab.mesh.publish(1, &replica, "another history");
    lab.mesh.sync(&replica, &lab.nodes[0]);
    let author = lab.mesh.nodes[1].agent.id();
    let authority = lab.nodes[0].authority();
    assert!(authority.frozen(&author, &lab.mesh.space).is_some());
    lab.mesh.sync(&lab.nodes[0], &replica);
    let denied = lab.mesh.try_publish(1, &replica, "more").unwrap_err();
    assert!(matches!(
        denied,
        PublishError::Denied {
            source: Denied::Frozen,
            ..
        }
    ));
    let draft = Draft::new(Kind::Fact, "the founder goes on", "");
    lab.mesh.try_publish_draft(0, &lab.nodes[0], draft).unwrap();
}

/// Node 0 knows one history of the last of `nodes`, and is told the other one.
fn with_fork(lab: &Lab) -> (Replica, tempfile::TempDir) {
    let last = lab.nodes.len() - 1;
    let dir = tempfile::tempdir().unwrap();
    let twin = open(&lab.mesh, last, dir.path(), Duration::from_secs(3600));
    lab.say(last, "here");
    lab.mesh.publish(last, &twin, "there");
    lab.sync(last, 0);
    lab.mesh.sync(&twin, &lab.nodes[0]);
    (twin, dir)
}

fn is_frozen(lab: &Lab, node: usize) -> bool {
    let author = lab.mesh.nodes[lab.nodes.len() - 1].agent.id();
    let authority = lab.nodes[node].authority();
    authority.frozen(&author, &lab.mesh.space).is_some()
}

#[test]
fn a_fork_is_shown_when_its_turn_comes_though_nobody_asks() {
    let lab = Lab::of_turns(3, Duration::from_millis(200));
    with_fork(&lab);
    let begun = Instant::now();
    while !is_frozen(&lab, 0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not shown");
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.settle();
    assert_eq!(lab.agree().len(), 1);
}

#[test]
fn a_proof_that_comes_first_is_the_only_one() {
    let mut lab = Lab::of_turns(3, Duration::from_secs(3600));
    let dir = tempfile::tempdir().unwrap();
    lab.nodes[1] = lab.mesh.open(1, dir.path());
    let (twin, _twin_dir) = with_fork(&lab);
    assert_eq!(lab.nodes[0].forks().len(), 1);
    assert!(!is_frozen(&lab, 0), "it waits for its turn");
    let records = |node: usize| {
        lab.nodes[node]
            .id_set(Lane::Authority)
            .read()
            .unwrap()
            .len()
    };
    let before = records(0);
    lab.sync(2, 1);
    lab.mesh.sync(&twin, &lab.nodes[1]);
    assert!(is_frozen(&lab, 1), "it has no turn to wait for");
    lab.settle();
    assert_eq!(lab.agree().len(), 1);
    assert_eq!([records(0), records(1), records(2)], [before + 1; 3]);
}
