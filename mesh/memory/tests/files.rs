//! Files over whole replicas: partitioned edits, restarts, hostile fragments.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use mesh::Mesh;
use rhizome_identity::Hash;
use rhizome_memory::{
    ComposeError, Edited, FileEdit, FileError, FilePath, FileRequest, Kind, MAX_FILE, PublishError,
    RecallQuery, Replica, WhyState,
};

fn path(name: &str) -> FilePath {
    FilePath::parse(&format!("/memories/{name}")).unwrap()
}

fn edit(mesh: &Mesh, node: usize, replica: &Replica, name: &str, edit: FileEdit) -> Edited {
    try_edit(mesh, node, replica, name, edit).unwrap()
}

fn try_edit(
    mesh: &Mesh,
    node: usize,
    replica: &Replica,
    name: &str,
    edit: FileEdit,
) -> Result<Edited, PublishError> {
    let request = FileRequest {
        space: mesh.space,
        path: path(name),
        edit,
        fingerprint: Hash::of(b"runtime"),
    };
    replica.edit_file(&mesh.nodes[node].agent, &request)
}

fn create(text: &str) -> FileEdit {
    FileEdit::Create {
        text: text.into(),
        from: None,
    }
}

fn insert(text: impl Into<String>) -> FileEdit {
    FileEdit::Insert {
        line: 0,
        text: text.into(),
    }
}

fn text(mesh: &Mesh, replica: &Replica, name: &str) -> Option<String> {
    let file = replica.file(&mesh.space, &path(name)).unwrap();
    file.map(|file| file.text)
}

/// Gives `to` everything that `from` has and it lacks, the last first.
fn carry(mesh: &Mesh, from: &Replica, to: &Replica) {
    let mut ids: Vec<Hash> = {
        let set = from.id_set(mesh.lane());
        let set = set.read().unwrap();
        set.iter().copied().collect()
    };
    ids.retain(|id| !to.holds(&(*id).into()));
    ids.reverse();
    let wires = from.wires(mesh.lane(), &ids, usize::MAX);
    to.admit(mesh.nodes[0].key.id(), wires);
}

#[test]
fn lines_put_at_the_top_while_apart_stand_on_every_node() {
    let mesh = Mesh::of(3);
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let nodes: Vec<Replica> = (0..3).map(|n| mesh.open(n, dirs[n].path())).collect();
    edit(&mesh, 0, &nodes[0], "notes.md", create("# notes\n"));
    for node in &nodes[1..] {
        carry(&mesh, &nodes[0], node);
    }
    // Partitioned: each adds lines at the top, one as well at the end of the first line.
    for (n, node) in nodes.iter().enumerate() {
        for round in 0..5 {
            edit(&mesh, n, node, "notes.md", insert(format!("{n}.{round}")));
        }
        let replace = FileEdit::Replace {
            old: format!("{n}.4"),
            new: format!("{n}.4 and more"),
        };
        edit(&mesh, n, node, "notes.md", replace);
    }
    for from in &nodes {
        for to in &nodes {
            carry(&mesh, from, to);
        }
    }
    let merged = text(&mesh, &nodes[0], "notes.md").unwrap();
    for node in &nodes {
        assert_eq!(text(&mesh, node, "notes.md").unwrap(), merged);
    }
    let lines: Vec<&str> = merged.lines().collect();
    assert_eq!(lines.len(), 16, "{merged}");
    for n in 0..3 {
        for round in 0..4 {
            assert!(lines.contains(&&*format!("{n}.{round}")), "{merged}");
        }
        assert!(lines.contains(&&*format!("{n}.4 and more")), "{merged}");
    }
    assert_eq!(lines.last(), Some(&"# notes"));
}

#[test]
fn a_file_is_there_after_a_restart_with_its_author() {
    let mesh = Mesh::of(1);
    let dir = tempfile::tempdir().unwrap();
    let made = {
        let replica = mesh.open(0, dir.path());
        edit(
            &mesh,
            0,
            &replica,
            "a/b.md",
            create("the heron stands still\n"),
        );
        edit(&mesh, 0, &replica, "a/b.md", insert("on one leg"))
    };
    assert_eq!(made.text.before.unwrap(), "the heron stands still\n");
    let replica = mesh.open(0, dir.path());
    let whole = "on one leg\nthe heron stands still\n";
    assert_eq!(text(&mesh, &replica, "a/b.md").unwrap(), whole);
    let query = RecallQuery {
        text: "heron".into(),
        spaces: vec![mesh.space],
        kinds: vec![Kind::File],
        task: None,
        limit: 5,
    };
    let hits = replica.recall(&query).unwrap();
    let item = &hits[0].item;
    assert_eq!(
        (hits.len(), item.id, item.doc),
        (1, made.published.id, made.published.doc)
    );
    assert_eq!(item.author, mesh.nodes[0].agent.id());
    assert_eq!((&*item.title, item.kind), ("/memories/a/b.md", Kind::File));
    let why = replica.why(&made.published.id).unwrap().unwrap();
    assert_eq!((why.state, why.kind), (WhyState::Applied, Kind::File));
    let events = replica.watch(Some(mesh.space), 0, 10);
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].item.text, whole);
    assert!(replica.contexts(Some(mesh.space)).unwrap().is_empty());
}

#[test]
fn a_large_file_goes_as_a_blob_and_comes_back() {
    let mesh = Mesh::of(2);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (mesh.open(0, here.path()), mesh.open(1, there.path()));
    let long = "0123456789abcde\n".repeat(MAX_FILE / 16);
    let made = edit(&mesh, 0, &here, "long", create(&long));
    let over = try_edit(&mesh, 0, &here, "long", insert("x"));
    assert!(matches!(
        over,
        Err(PublishError::Compose(ComposeError::File(
            FileError::TooLarge { .. }
        )))
    ));
    there.admit(mesh.nodes[0].key.id(), mesh.wires(&here, &[made.published]));
    let hash = here.why(&made.published.id).unwrap().unwrap().body_hash;
    let body = std::fs::read(here.body_path(hash).unwrap()).unwrap();
    there.put_body(hash, body.into()).unwrap();
    assert_eq!(text(&mesh, &there, "long").unwrap(), long);
}
