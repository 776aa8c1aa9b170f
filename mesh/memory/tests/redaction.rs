//! A redacted body is gone from every node, and what it was said in stays whole.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use mesh::Mesh;
use rhizome_identity::{Hash, Role, SpaceKey, issue, open_body, record::Cut, seal_body};
use rhizome_memory::{
    DocId, Draft, FileEdit, FilePath, FileRequest, Fragment, FragmentId, Kind, ListQuery,
    PublishError, Published, RecallQuery, RedactRequest, RejectReason, Replica, Verdict, WhyState,
    file_doc,
};

/// One word of letters and digits: a tokenizer leaves it as it is.
const SECRET: &str = "sk5f1e77aa09c3live";

struct Lab {
    mesh: Mesh,
    dirs: Vec<tempfile::TempDir>,
    nodes: Vec<Replica>,
}

impl Lab {
    fn of(nodes: u8) -> Self {
        Self::over(Mesh::of(nodes))
    }

    fn over(mesh: Mesh) -> Self {
        let nodes = mesh.nodes.iter();
        let dirs: Vec<_> = nodes.map(|_| tempfile::tempdir().unwrap()).collect();
        let nodes = dirs.iter().enumerate();
        let nodes = nodes.map(|(n, dir)| mesh.open(n, dir.path())).collect();
        Self { mesh, dirs, nodes }
    }

    fn say(&self, node: usize, draft: Draft) -> Published {
        self.mesh
            .try_publish_draft(node, &self.nodes[node], draft)
            .unwrap()
    }

    fn sync(&self, from: usize, to: usize) {
        self.mesh.sync(&self.nodes[from], &self.nodes[to]);
        for hash in self.nodes[to].missing_bodies() {
            if let Some(path) = self.nodes[from].body_path(hash) {
                let body = std::fs::read(path).unwrap();
                self.nodes[to].put_body(hash, Bytes::from(body)).unwrap();
            }
        }
        self.nodes[to].flush().unwrap();
    }

    fn settle(&self) {
        for _ in 0..3 {
            for from in 0..self.nodes.len() {
                for to in (0..self.nodes.len()).filter(|to| *to != from) {
                    self.sync(from, to);
                }
            }
        }
    }

    fn redact(&self, node: usize, doc: DocId) -> Result<usize, PublishError> {
        let request = self.request(doc);
        let agent = &self.mesh.nodes[node].agent;
        let redacted = self.nodes[node].redact(agent, &request)?;
        self.nodes[node].flush().unwrap();
        Ok(redacted.taken)
    }

    fn request(&self, doc: DocId) -> RedactRequest {
        RedactRequest {
            space: self.mesh.space,
            doc,
            reason: "held a live token".into(),
            own_only: false,
            fingerprint: Hash::of(b"runtime"),
        }
    }

    fn restart(&mut self, node: usize) {
        drop(self.nodes.remove(node));
        let replica = self.mesh.open(node, self.dirs[node].path());
        replica.flush().unwrap();
        self.nodes.insert(node, replica);
    }

    fn titles(&self, node: usize) -> Vec<String> {
        let query = ListQuery {
            spaces: Some(vec![self.mesh.space]),
            limit: 1_000,
            ..ListQuery::default()
        };
        let items = self.nodes[node].list(&query).unwrap();
        let mut titles: Vec<_> = items.into_iter().map(|item| item.title).collect();
        titles.sort();
        titles
    }

    fn found(&self, node: usize, text: &str) -> usize {
        let query = RecallQuery {
            text: text.into(),
            spaces: vec![self.mesh.space],
            kinds: Vec::new(),
            task: None,
            limit: 10,
        };
        self.nodes[node].recall(&query).unwrap().len()
    }

    /// Checks that a node shows and keeps nothing of what was said, in whatever form.
    fn assert_gone(&self, node: usize, ciphertexts: &[Vec<u8>]) {
        let replica = &self.nodes[node];
        assert_eq!(self.found(node, SECRET), 0, "node {node}");
        let watched = replica.watch(None, 0, 1_000);
        assert!(
            watched
                .iter()
                .all(|event| !event.item.text.contains(SECRET))
        );
        for file in files(self.dirs[node].path()) {
            let bytes = std::fs::read(&file).unwrap();
            let name = file.display();
            assert!(
                !contains(&bytes, SECRET.as_bytes()),
                "node {node}: words in {name}"
            );
            for ciphertext in ciphertexts {
                assert!(
                    !contains(&bytes, ciphertext),
                    "node {node}: a body in {name}"
                );
            }
        }
        // With the key of the space, every record that is left is tried.
        let ids: Vec<Hash> = {
            let set = replica.id_set(self.mesh.lane());
            let set = set.read().unwrap();
            set.iter().copied().collect()
        };
        let wires = replica.wires(self.mesh.lane(), &ids, usize::MAX);
        assert_eq!(wires.len(), ids.len(), "every header is still served");
        for wire in wires {
            let said = plaintext(&self.mesh.space_key, &Fragment::decode(&wire).unwrap());
            assert!(!contains(&said, SECRET.as_bytes()));
        }
    }

    /// Checks that all hold the same, and that a further exchange has nothing to move.
    fn assert_quiet(&self) {
        let state = |node: &Replica| {
            let set = node.id_set(self.mesh.lane());
            let ids: BTreeSet<Hash> = set.read().unwrap().iter().copied().collect();
            (ids, node.sync_state(&self.mesh.space))
        };
        for node in &self.nodes[1..] {
            assert_eq!(state(node), state(&self.nodes[0]));
            assert_eq!(node.missing_bodies(), []);
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn plaintext(key: &SpaceKey, fragment: &Fragment) -> Vec<u8> {
    let body = fragment.body.as_ref();
    let header = &fragment.header;
    body.and_then(|body| open_body(key, &header.nonce, &header.aad(), body).ok())
        .unwrap_or_default()
}

fn secret(title: &str) -> Draft {
    Draft::new(Kind::Fact, title, format!("the token is {SECRET} they say"))
}

/// Returns a piece of the ciphertext of each of these, as node 0 holds it.
fn ciphertexts(lab: &Lab, said: &[Published]) -> Vec<Vec<u8>> {
    let wires = lab.mesh.wires(&lab.nodes[0], said);
    let fragments = wires.iter().map(|wire| Fragment::decode(wire).unwrap());
    let bodies = fragments.map(|fragment| match fragment.body {
        Some(body) => body.to_vec(),
        None => std::fs::read(lab.nodes[0].body_path(fragment.header.body_hash).unwrap()).unwrap(),
    });
    bodies
        .map(|body| body[..48.min(body.len())].to_vec())
        .collect()
}

#[test]
fn a_redacted_memory_is_gone_from_every_node_also_from_one_that_comes_back_later() {
    let mut lab = Lab::of(4);
    lab.say(0, Draft::new(Kind::Fact, "the build needs cmake", "3.28"));
    let short = lab.say(0, secret("a short one"));
    let mut long = secret("a long one");
    long.text = format!("{} {}", long.text, "unpressed ".repeat(20_000));
    let long = lab.say(0, long);
    let after = lab.say(0, Draft::new(Kind::Fact, "what came after", "it stands"));
    let said = [short, long];
    let bodies = ciphertexts(&lab, &said);
    let with_bodies = lab.mesh.wires(&lab.nodes[0], &said);
    for node in [1, 2] {
        lab.sync(0, node);
        assert_eq!(lab.found(node, SECRET), 2);
        let all: Vec<u8> = files(lab.dirs[node].path())
            .iter()
            .flat_map(|file| std::fs::read(file).unwrap())
            .collect();
        assert!(
            contains(&all, SECRET.as_bytes()),
            "the test looks where it was"
        );
        assert!(bodies.iter().all(|body| contains(&all, body)));
    }

    assert_eq!(lab.redact(0, short.doc).unwrap(), 1);
    assert_eq!(lab.redact(0, long.doc).unwrap(), 1);
    lab.assert_gone(0, &bodies);
    lab.sync(0, 1);
    lab.assert_gone(1, &bodies);
    // A newcomer hears of all from one that has headers only, the last first.
    lab.sync(1, 3);
    lab.assert_gone(3, &bodies);
    assert_eq!(lab.titles(3), ["the build needs cmake", "what came after"]);
    // The one that was away has the bodies, and lets go of them.
    lab.sync(1, 2);
    lab.assert_gone(2, &bodies);
    lab.settle();
    lab.assert_quiet();

    // Whoever still offers a body finds no taker.
    for node in 0..4 {
        let outcomes = lab.nodes[node].admit(lab.nodes[0].node(), with_bodies.clone());
        assert!(
            outcomes
                .iter()
                .all(|outcome| outcome.verdict == Verdict::Duplicate)
        );
        let blob = Fragment::decode(&with_bodies[1]).unwrap().header.body_hash;
        assert!(
            lab.nodes[node]
                .put_body(blob, Bytes::from_static(b"x"))
                .is_err()
        );
        lab.restart(node);
        lab.assert_gone(node, &bodies);
        let why = lab.nodes[node].why(&short.id).unwrap().unwrap();
        let WhyState::Redacted(by) = why.state else {
            panic!("{:?}", why.state);
        };
        assert_eq!(by.author, lab.mesh.nodes[0].agent.id());
        assert_eq!(by.reason.as_deref(), Some("held a live token"));
        let by = lab.nodes[node].redacted(&lab.mesh.space, &long.doc);
        assert!(by.is_some());
    }
    lab.assert_quiet();
    // The chain goes on, and so does a start without an index.
    assert_eq!(
        lab.say(0, Draft::new(Kind::Fact, "goes on", "")).seq,
        after.seq + 3
    );
    for node in 0..4 {
        drop(lab.nodes.remove(node));
        std::fs::remove_file(lab.dirs[node].path().join("index.redb")).unwrap();
        std::fs::remove_dir_all(lab.dirs[node].path().join("view")).unwrap();
        let replica = lab.mesh.open(node, lab.dirs[node].path());
        replica.flush().unwrap();
        lab.nodes.insert(node, replica);
        lab.assert_gone(node, &bodies);
    }
    lab.settle();
    lab.assert_quiet();
}

#[test]
fn a_relay_that_cannot_read_obeys_as_well() {
    let mut mesh = Mesh::of(2);
    mesh.join_as(70, Role::Relay);
    let lab = Lab::over(mesh);
    let said = lab.say(1, secret("of node 1"));
    let mut long = secret("a long one");
    long.text = "unpressed ".repeat(20_000);
    let long = lab.say(1, long);
    lab.settle();
    let bodies = ciphertexts(&lab, &[said, long]);
    let held: Vec<u8> = files(lab.dirs[2].path())
        .iter()
        .flat_map(|file| std::fs::read(file).unwrap())
        .collect();
    assert!(bodies.iter().all(|body| contains(&held, body)));
    let why = lab.nodes[2].why(&said.id).unwrap().unwrap();
    assert!(matches!(why.state, WhyState::Unreadable { .. }));
    lab.redact(1, said.doc).unwrap();
    lab.redact(1, long.doc).unwrap();
    lab.settle();
    for node in 0..3 {
        lab.assert_gone(node, &bodies);
    }
    lab.assert_quiet();
    let why = lab.nodes[2].why(&said.id).unwrap().unwrap();
    let WhyState::Redacted(by) = why.state else {
        panic!("{:?}", why.state);
    };
    assert_eq!(by.reason, None, "it cannot read that either");
}

#[test]
fn who_speaks_for_a_node_takes_what_was_written_there_unless_bound_to_its_own() {
    let lab = Lab::over(Mesh::with_agents(2));
    // Both agents are of one node, and one store is enough.
    let replica = &lab.nodes[0];
    let said = lab
        .mesh
        .try_publish_draft(1, replica, secret("of the other"));
    let said = said.unwrap();
    let mut request = lab.request(said.doc);
    request.own_only = true;
    let agent = &lab.mesh.nodes[0].agent;
    let refused = replica.redact(agent, &request).unwrap_err();
    assert!(
        matches!(refused, PublishError::NotRedactable(_)),
        "{refused}"
    );
    request.reason = "x".repeat(501);
    let refused = replica.redact(agent, &request).unwrap_err();
    assert!(
        matches!(refused, PublishError::LongReason { size: 501 }),
        "{refused}"
    );
    request.reason = String::new();
    request.own_only = false;
    let redacted = replica.redact(agent, &request).unwrap();
    assert_eq!((redacted.taken, redacted.left), (1, 0));
    lab.assert_gone(0, &[]);
}

#[test]
fn a_redaction_that_comes_first_takes_the_body_as_it_comes() {
    let lab = Lab::of(3);
    let said = lab.say(0, secret("to be redacted"));
    let bodies = ciphertexts(&lab, &[said]);
    let with_body = lab.mesh.wires(&lab.nodes[0], &[said]);
    lab.sync(0, 1);
    lab.redact(0, said.doc).unwrap();
    let redaction = lab.nodes[0].redacted(&lab.mesh.space, &said.doc).unwrap();
    let bare = lab.mesh.wires_of(&lab.nodes[0], &[said.id]);
    assert!(Fragment::decode(&bare[0]).unwrap().body.is_none());
    let other = lab.nodes[0].node();
    lab.nodes[2].admit_records(None, records(&lab));
    // What comes with the redaction that took it is taken in, and teaches the redaction.
    let outcomes = lab.nodes[2].admit(other, bare);
    assert_eq!(outcomes[0].verdict, Verdict::Admit);
    assert!(!lab.nodes[2].holds(&redaction.redaction));
    lab.nodes[2].flush().unwrap();
    lab.assert_gone(2, &bodies);
    let outcomes = lab.nodes[2].admit(other, with_body);
    assert_eq!(outcomes[0].verdict, Verdict::Duplicate);
    lab.nodes[2].flush().unwrap();
    lab.assert_gone(2, &bodies);
    lab.settle();
    lab.assert_quiet();
}

fn records(lab: &Lab) -> Vec<Bytes> {
    let records = lab.mesh.records.iter();
    records
        .map(|record| Bytes::copy_from_slice(record.bytes()))
        .collect()
}

/// Signs a redaction without asking anybody whether it may be.
fn forge(lab: &Lab, by: usize, doc: DocId, targets: Vec<FragmentId>) -> Fragment {
    let next = lab.say(by, Draft::new(Kind::Fact, "before it", ""));
    let before = lab.mesh.wires(&lab.nodes[by], &[next]);
    let before = Fragment::decode(&before[0]).unwrap();
    let mut header = before.header.clone();
    header.seq += 1;
    header.prev = Some(before.id);
    header.kind = Kind::Redaction;
    header.doc = doc;
    header.deps = targets;
    let body = seal_body(
        &lab.mesh.space_key,
        &header.nonce,
        &header.aad(),
        b"\x01because",
    );
    Fragment::sign(&lab.mesh.nodes[by].agent, header, Bytes::from(body)).unwrap()
}

#[test]
fn who_is_neither_the_author_nor_an_admin_redacts_nothing() {
    let lab = Lab::of(3);
    let said = lab.say(1, secret("of node 1"));
    lab.settle();
    let refused = lab.redact(2, said.doc).unwrap_err();
    assert!(
        matches!(refused, PublishError::NotRedactable(_)),
        "{refused}"
    );
    assert!(refused.hint().unwrap().contains("admin"));
    let forged = forge(&lab, 2, said.doc, vec![said.id]);
    lab.settle();
    for node in 0..3 {
        let outcomes = lab.nodes[node].admit(lab.nodes[2].node(), vec![forged.encode()]);
        assert_eq!(
            outcomes[0].verdict,
            Verdict::Admit,
            "it is a fragment like others"
        );
    }
    lab.settle();
    for node in 0..3 {
        assert_eq!(lab.found(node, SECRET), 1, "and has no effect");
        let why = lab.nodes[node].why(&forged.id).unwrap().unwrap();
        assert!(
            matches!(why.state, WhyState::Quarantined { .. }),
            "{:?}",
            why.state
        );
    }
    // Nor does it excuse whoever holds the body back.
    let mut held_back = Fragment::decode(&lab.mesh.wires(&lab.nodes[0], &[said])[0]).unwrap();
    held_back.body = None;
    held_back.redaction = Some(forged.envelope.clone());
    let dir = tempfile::tempdir().unwrap();
    let fresh = lab.mesh.open(0, dir.path());
    let outcomes = fresh.admit(lab.nodes[2].node(), vec![held_back.encode()]);
    assert_eq!(outcomes[0].verdict, Verdict::Reject(RejectReason::Withheld));
    let whole = lab.mesh.wires(&lab.nodes[0], &[said]);
    assert_eq!(
        fresh.admit(lab.nodes[0].node(), whole)[0].verdict,
        Verdict::Admit
    );
    // An admin of the space may, whoever wrote it.
    assert_eq!(lab.redact(0, said.doc).unwrap(), 1);
    lab.settle();
    for node in 0..3 {
        lab.assert_gone(node, &[]);
    }
    lab.assert_quiet();
}

#[test]
fn a_redaction_beyond_the_cut_of_its_author_takes_nothing_and_gives_back_what_others_hold() {
    let lab = Lab::of(3);
    let said = lab.say(1, secret("worth keeping"));
    lab.settle();
    lab.redact(1, said.doc).unwrap();
    lab.sync(1, 0);
    assert_eq!((lab.found(0, SECRET), lab.found(2, SECRET)), (0, 1));
    // The founder ends node 1 by what it had said before.
    let cut = Cut {
        author: lab.mesh.nodes[1].agent.id(),
        space: lab.mesh.space,
        seq: said.seq,
        hash: said.id.into(),
    };
    let authority = lab.nodes[0].authority();
    let founder = lab.mesh.nodes[0].key.secret();
    let subject = lab.mesh.nodes[1].key.public();
    let records = issue::revoke(founder, &authority, subject, vec![cut], "left", 9).unwrap();
    lab.nodes[0].append_records(records).unwrap();
    lab.settle();
    for node in [0, 2] {
        assert_eq!(lab.titles(node), ["worth keeping"], "node {node}");
        assert_eq!(lab.found(node, SECRET), 1, "node {node}");
    }
    lab.assert_quiet();
}

#[test]
fn a_key_can_be_used_again_and_what_built_on_the_redacted_is_not_shown() {
    let lab = Lab::of(2);
    let mut first = secret("the deploy key");
    first.key = Some("deploy-key".into());
    let first = lab.say(0, first);
    lab.settle();
    // Node 1 goes on with it while node 0 redacts it.
    let mut second = Draft::new(Kind::Fact, "the deploy key", "rotated by node 1");
    second.key = Some("deploy-key".into());
    let second = lab.say(1, second);
    lab.redact(0, first.doc).unwrap();
    let mut third = Draft::new(Kind::Fact, "the deploy key", "in the vault");
    third.key = Some("deploy-key".into());
    lab.say(0, third);
    lab.settle();
    for node in 0..2 {
        lab.assert_gone(node, &[]);
        let item = lab.nodes[node]
            .memory(&lab.mesh.space, &first.doc)
            .unwrap()
            .unwrap();
        assert_eq!(item.text, "in the vault", "node {node}");
        let why = lab.nodes[node].why(&second.id).unwrap().unwrap();
        assert!(
            matches!(why.state, WhyState::Quarantined { .. }),
            "{:?}",
            why.state
        );
    }
    lab.assert_quiet();
}

#[test]
fn a_file_and_a_context_are_redacted_with_all_their_edits() {
    let lab = Lab::of(2);
    let path = FilePath::parse("/memories/keys.md").unwrap();
    let edit = |text: &str| FileRequest {
        space: lab.mesh.space,
        path: path.clone(),
        edit: FileEdit::Write { text: text.into() },
        fingerprint: Hash::of(b"runtime"),
    };
    let agent = &lab.mesh.nodes[0].agent;
    // More edits than one redaction names.
    for n in 0..40 {
        let text = format!("line {n}\ntoken = {SECRET}\n");
        lab.nodes[0].edit_file(agent, &edit(&text)).unwrap();
    }
    let patch = rhizome_memory::ContextPatch {
        goal: Some(format!("use {SECRET}")),
        ..rhizome_memory::ContextPatch::default()
    };
    let context = lab.mesh.checkpoint(0, &lab.nodes[0], patch);
    lab.settle();
    let doc = file_doc(&lab.mesh.space, &path);
    assert_eq!(lab.redact(0, doc).unwrap(), 40);
    assert_eq!(lab.redact(0, context.doc).unwrap(), 1);
    let nothing = lab.redact(0, doc).unwrap_err();
    assert!(
        matches!(nothing, PublishError::NothingToRedact(_)),
        "{nothing}"
    );
    lab.settle();
    for node in 0..2 {
        lab.assert_gone(node, &[]);
        assert!(
            lab.nodes[node]
                .file(&lab.mesh.space, &path)
                .unwrap()
                .is_none()
        );
        assert!(
            lab.nodes[node]
                .context(&lab.mesh.space, "mend the parser")
                .unwrap()
                .is_none()
        );
    }
    lab.nodes[1]
        .edit_file(&lab.mesh.nodes[1].agent, &edit("clean"))
        .unwrap();
    lab.settle();
    let file = lab.nodes[0].file(&lab.mesh.space, &path).unwrap().unwrap();
    assert_eq!(file.text, "clean");
    lab.assert_quiet();
}
