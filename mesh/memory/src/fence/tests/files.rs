//! Changes of files, as friends and enemies make them.

use super::*;
use crate::{
    FileEdit, FilePath,
    document::{file_doc, write_file},
};

fn path() -> FilePath {
    FilePath::parse("/memories/notes.md").unwrap()
}

fn file() -> Doc {
    Doc::new(DocKey::file(SPACE, file_doc(&SPACE, &path())))
}

pub(super) fn write(text: &str) -> FileEdit {
    FileEdit::Write { text: text.into() }
}

fn insert(text: &str) -> FileEdit {
    FileEdit::Insert {
        line: 0,
        text: text.into(),
    }
}

pub(super) fn compose(doc: &Doc, author: AgentId, at: u64, edit: &FileEdit) -> Opened {
    let mut document = doc.document.clone();
    let (actor, at) = (actor(&author, &doc.key.doc), Hlc::from_ms(at));
    let written = write_file(&mut document, actor, &doc.heads(), at, &path(), edit);
    doc.opened(author, Kind::File, at, written.unwrap().0)
}

fn text(doc: &Doc) -> String {
    let (_, object) = doc.document.get(automerge::ROOT, "text").unwrap().unwrap();
    doc.document.text(&object).unwrap()
}

/// Files, each with a valid change that is not yet applied.
pub(super) fn cases() -> Vec<(Doc, Opened)> {
    let mut doc = file();
    let first = compose(&doc, ADA, 1, &write("one\ntwo\n"));
    let mut cases = vec![(doc.clone(), first.clone())];
    doc.take(&first).unwrap();
    let (ada, bob) = (
        compose(&doc, ADA, 2, &insert("ada")),
        compose(&doc, BOB, 3, &insert("bob")),
    );
    doc.take(&ada).unwrap();
    doc.take(&bob).unwrap();
    let third = compose(&doc, ADA, 4, &write("one\nthree\n"));
    cases.push((doc, third));
    cases
}

#[test]
fn edits_made_apart_both_stand() {
    let mut doc = file();
    doc.take(&compose(&doc, ADA, 1, &write("common\n")))
        .unwrap();
    let ada = compose(&doc, ADA, 2, &insert("from ada"));
    let bob = compose(&doc, BOB, 3, &insert("from bob"));
    let mut other = doc.clone();
    doc.take(&ada).unwrap();
    doc.take(&bob).unwrap();
    other.take(&bob).unwrap();
    other.take(&ada).unwrap();
    assert_eq!(text(&doc), text(&other));
    let merged = text(&doc);
    let mut lines: Vec<&str> = merged.lines().collect();
    assert_eq!(lines.pop(), Some("common"));
    lines.sort_unstable();
    assert_eq!(lines, ["from ada", "from bob"]);
}

#[test]
fn a_large_file_is_taken_and_so_is_what_replaces_it() {
    let mut doc = file();
    let size = crate::MAX_FILE;
    doc.take(&compose(&doc, ADA, 1, &write(&"x".repeat(size))))
        .unwrap();
    let delete = FileEdit::Delete { only_if: None };
    doc.take(&compose(&doc, BOB, 2, &delete)).unwrap();
    doc.take(&compose(&doc, BOB, 3, &write(&"y".repeat(size))))
        .unwrap();
    assert_eq!(text(&doc), "y".repeat(size));
}

#[test]
fn what_is_no_edit_of_a_text_is_refused() {
    let cases = cases();
    let (doc, valid) = &cases[1];
    let schema = |forge: &dyn Fn(&mut ExpandedChange)| {
        let reason = refused(doc, valid, forge);
        assert!(
            matches!(reason, Reason::Schema { .. } | Reason::Malformed { .. }),
            "{reason:?}"
        );
    };
    let find = |change: &ExpandedChange, wanted: fn(&OpType) -> bool| {
        let on_text = |op: &automerge::legacy::Op| op.obj != ObjectId::Root && wanted(&op.action);
        change.operations.iter().position(on_text).unwrap()
    };
    let insert = |change: &ExpandedChange| find(change, |op| matches!(op, OpType::Put(_)));
    let delete = |change: &ExpandedChange| find(change, |op| matches!(op, OpType::Delete));
    let nobody = ActorId::from(&[7_u8; 16][..]);
    let genesis = genesis(doc.key.shape);

    // The mark: another path, another clock, none at all, two.
    schema(&|change| {
        let OpType::Put(ScalarValue::Str(mark)) = &change.operations[0].action else {
            panic!("the mark comes first");
        };
        let other = mark.replace("notes", "other");
        change.operations[0].action = put(&other);
    });
    schema(&|change| change.operations[0].action = put("{}"));
    schema(&|change| drop(change.operations.remove(0)));
    schema(&|change| change.operations.insert(1, change.operations[0].clone()));
    schema(&|change| change.operations[0].key = Key::Map("schema".into()));
    // Elements that are no single character.
    for value in ["", "ab", "e\u{301}"] {
        schema(&|change| {
            let at = insert(change);
            change.operations[at].action = put(value);
        });
    }
    for value in [
        ScalarValue::Null,
        ScalarValue::Int(1),
        ScalarValue::counter(1),
    ] {
        schema(&|change| {
            let at = insert(change);
            change.operations[at].action = OpType::Put(value.clone());
        });
    }
    schema(&|change| {
        let at = insert(change);
        change.operations[at].action = OpType::Make(ObjType::Map);
    });
    // A character put over another, or in no place.
    schema(&|change| {
        let at = insert(change);
        change.operations[at].insert = false;
    });
    schema(&|change| {
        let at = insert(change);
        change.operations[at].key = Key::Map("a".into());
    });
    let elsewhere = [
        OpId::new(3, &nobody),
        OpId::new(999, &change_actor(valid)),
        OpId::new(1, &genesis.actor),
        OpId::new(2, &genesis.actor),
        // The mark of the change before.
        OpId::new(
            doc.index.at(0).start_op,
            &ActorId::from(&doc.index.at(0).actor[..]),
        ),
    ];
    for place in &elsewhere {
        schema(&|change| {
            let at = insert(change);
            change.operations[at].key = Key::Seq(ElementId::Id(place.clone()));
        });
        schema(&|change| {
            let at = delete(change);
            change.operations[at].key = Key::Seq(ElementId::Id(place.clone()));
            change.operations[at].pred = vec![place.clone()].into();
        });
    }
    // A removal of another character than it names, of none, or twice.
    schema(&|change| {
        let at = delete(change);
        change.operations[at].pred = Vec::new().into();
    });
    schema(&|change| {
        let at = delete(change);
        change.operations[at].key = Key::Seq(ElementId::Head);
    });
    schema(&|change| {
        let at = delete(change);
        change.operations.push(change.operations[at].clone());
    });
    // Another object, and the root as a text.
    schema(&|change| {
        let at = insert(change);
        change.operations[at].obj = ObjectId::Id(OpId::new(2, &nobody));
    });
    schema(&|change| {
        let at = insert(change);
        change.operations[at].obj = ObjectId::Root;
    });
}

fn change_actor(opened: &Opened) -> ActorId {
    let change = Change::from_bytes(opened.change.to_vec()).unwrap();
    change.actor_id().clone()
}

#[test]
fn who_has_not_seen_a_character_cannot_write_beside_it() {
    let mut doc = file();
    doc.take(&compose(&doc, ADA, 1, &write("one\n"))).unwrap();
    let before = doc.clone();
    doc.take(&compose(&doc, BOB, 2, &write("one\ntwo\n")))
        .unwrap();
    let seen = compose(&doc, EVE, 3, &write("one\ntwo\nthree\n"));
    // The same operations under dependencies that do not have them.
    let unseen = forged(&seen, |change| {
        change.deps = before.heads();
        change.start_op = std::num::NonZeroU64::new(before.index.at(0).max_op + 1).unwrap();
    });
    let unseen = Opened {
        header: Header {
            deps: before.deps(),
            ..unseen.header.clone()
        },
        ..unseen
    };
    let reason = doc.clone().take(&unseen).unwrap_err();
    assert!(matches!(reason, Reason::Schema { .. }), "{reason:?}");
    assert_eq!(doc.take(&seen), Ok(()));
}

#[test]
fn a_text_has_no_place_in_a_memory() {
    let file = file();
    let change = compose(&file, ADA, 1, &write("one\n")).change.to_vec();
    let memory = keyed();
    let opened = memory.opened(ADA, Kind::Fact, Hlc::from_ms(1), change);
    assert!(memory.clone().take(&opened).is_err());
}
