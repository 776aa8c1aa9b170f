//! Files in a view: edits that merge, what is found of them, what a deletion hides.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "view/support.rs"]
mod support;

use rhizome_memory::{
    Applied, ComposeError, FileEdit, FileError, FilePath, Hlc, Kind, ListQuery, Opened,
    RecallQuery, View,
};
use support::{Writer, space};

struct Node {
    view: View,
    arrival: u64,
    _dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            view: View::open(dir.path()).unwrap(),
            arrival: 0,
            _dir: dir,
        }
    }

    fn take(&mut self, opened: &Opened) {
        self.arrival += 1;
        let applied = self.view.apply(self.arrival, vec![opened.clone()]);
        assert_eq!(applied[0].1, Applied::Applied);
    }

    fn edit(&mut self, writer: &mut Writer, at: u64, name: &str, edit: &FileEdit) -> Opened {
        let opened = self.try_edit(writer, at, name, edit).unwrap();
        self.take(&opened);
        opened
    }

    fn try_edit(
        &mut self,
        writer: &mut Writer,
        at: u64,
        name: &str,
        edit: &FileEdit,
    ) -> Result<Opened, ComposeError> {
        let (space, now) = (space(1), Hlc::from_ms(at));
        let ctx = writer.ctx(space, now);
        let composed = self.view.compose_file(ctx, &path(name), edit)?;
        let opened = writer.sign(space, now, &composed);
        self.view.reserve(&space, &composed, opened.id);
        Ok(opened)
    }

    fn text(&self, name: &str) -> Option<String> {
        let file = self.view.file(&space(1), &path(name)).unwrap();
        file.map(|file| file.text)
    }

    fn found(&self, words: &str) -> Vec<String> {
        let query = RecallQuery {
            text: words.into(),
            spaces: vec![space(1)],
            kinds: Vec::new(),
            task: None,
            limit: 0,
        };
        let hits = self.view.recall(&query).unwrap();
        hits.into_iter().map(|hit| hit.item.title).collect()
    }
}

fn path(name: &str) -> FilePath {
    FilePath::parse(&format!("/memories/{name}")).unwrap()
}

fn create(text: &str) -> FileEdit {
    FileEdit::Create {
        text: text.into(),
        from: None,
    }
}

fn insert(text: &str) -> FileEdit {
    FileEdit::Insert {
        line: 0,
        text: text.into(),
    }
}

const DELETE: FileEdit = FileEdit::Delete { only_if: None };

#[test]
fn a_line_put_at_the_top_on_both_sides_stands_on_both() {
    let (mut here, mut there) = (Node::new(), Node::new());
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let first = here.edit(&mut ada, 1, "notes.md", &create("common\n"));
    there.take(&first);
    let mine = here.edit(&mut ada, 2, "notes.md", &insert("by ada"));
    let theirs = there.edit(&mut bob, 2, "notes.md", &insert("by bob"));
    there.take(&mine);
    here.take(&theirs);
    let text = here.text("notes.md").unwrap();
    assert_eq!(there.text("notes.md").unwrap(), text);
    assert!(text.contains("by ada\n") && text.contains("by bob\n"));
    assert!(text.ends_with("common\n"));
    // Whoever goes on from there builds on both.
    let next = here.edit(&mut ada, 5, "notes.md", &insert("on top"));
    there.take(&next);
    assert_eq!(there.text("notes.md").unwrap(), format!("on top\n{text}"));
}

#[test]
fn a_file_is_found_at_once_and_gone_once_deleted() {
    let mut node = Node::new();
    let mut ada = Writer::new(1);
    let made = node.edit(
        &mut ada,
        1,
        "deploy/steps.md",
        &create("drain the zebra queue\n"),
    );
    assert_eq!(node.found("zebra"), ["/memories/deploy/steps.md"]);
    let all = ListQuery::default();
    let listed = node.view.list(&all).unwrap();
    assert_eq!(
        (listed.len(), listed[0].kind, listed[0].id),
        (1, Kind::File, made.id)
    );
    assert_eq!(listed[0].author, ada.id);
    let shown = node
        .view
        .memory(&space(1), &listed[0].doc)
        .unwrap()
        .unwrap();
    assert_eq!(shown.text, "drain the zebra queue\n");
    let files = node.view.files(&space(1)).unwrap();
    assert_eq!((files.len(), files[0].bytes), (1, 22));
    assert!(node.view.contexts(None).unwrap().is_empty());

    node.edit(&mut ada, 2, "deploy/steps.md", &DELETE);
    node.view.flush().unwrap();
    assert!(node.found("zebra").is_empty() && node.found("steps").is_empty());
    assert!(node.view.list(&all).unwrap().is_empty());
    assert!(node.view.files(&space(1)).unwrap().is_empty());
    assert_eq!(node.text("deploy/steps.md"), None);
    let again = node.try_edit(&mut ada, 3, "deploy/steps.md", &DELETE);
    assert!(matches!(
        again,
        Err(ComposeError::File(FileError::NotFound))
    ));

    node.edit(&mut ada, 4, "deploy/steps.md", &create("anew\n"));
    assert_eq!(node.text("deploy/steps.md").unwrap(), "anew\n");
    let twice = node.try_edit(&mut ada, 5, "deploy/steps.md", &create("x"));
    assert!(matches!(twice, Err(ComposeError::File(FileError::Exists))));
    assert_eq!(node.found("anew").len(), 1);
}

#[test]
fn an_edit_survives_a_deletion_that_had_not_seen_it() {
    let (mut here, mut there) = (Node::new(), Node::new());
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let first = here.edit(&mut ada, 1, "a", &create("one\ntwo\n"));
    there.take(&first);
    let edited = here.edit(&mut ada, 2, "a", &insert("zero"));
    let deleted = there.edit(&mut bob, 9, "a", &DELETE);
    assert_eq!(there.text("a"), None);
    here.take(&deleted);
    there.take(&edited);
    for node in [&here, &there] {
        assert_eq!(node.text("a").unwrap(), "zero\none\ntwo\n");
    }
    // Who deletes it now has seen it all.
    let gone = here.edit(&mut ada, 10, "a", &DELETE);
    there.take(&gone);
    assert_eq!((here.text("a"), there.text("a")), (None, None));
}

#[test]
fn a_file_made_twice_apart_has_both_texts() {
    let (mut here, mut there) = (Node::new(), Node::new());
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let one = here.edit(&mut ada, 1, "a", &create("by ada\n"));
    let other = there.edit(&mut bob, 1, "a", &create("by bob\n"));
    here.take(&other);
    there.take(&one);
    let text = here.text("a").unwrap();
    assert_eq!(there.text("a").unwrap(), text);
    assert_eq!(text.len(), 14, "{text}");
    assert!(
        text.contains("by ada\n") && text.contains("by bob\n"),
        "{text}"
    );
}

#[test]
fn edits_in_a_row_need_not_wait_for_each_other() {
    let mut node = Node::new();
    let mut ada = Writer::new(1);
    let mut edits = vec![node.try_edit(&mut ada, 1, "a", &create("0\n")).unwrap()];
    for n in 2..20 {
        let edit = insert(&n.to_string());
        edits.push(node.try_edit(&mut ada, n, "a", &edit).unwrap());
    }
    let refused = node.try_edit(
        &mut ada,
        30,
        "a",
        &FileEdit::Replace {
            old: "none".into(),
            new: String::new(),
        },
    );
    assert!(matches!(
        refused,
        Err(ComposeError::File(FileError::NoMatch))
    ));
    edits.push(node.try_edit(&mut ada, 31, "a", &insert("last")).unwrap());
    let applied = node.view.apply(1, edits);
    assert!(
        applied
            .iter()
            .all(|(_, applied)| *applied == Applied::Applied)
    );
    assert!(node.text("a").unwrap().starts_with("last\n19\n18\n"));
}
