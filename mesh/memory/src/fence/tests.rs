//! Changes as an enemy would make them.

use automerge::{
    ActorId, Automerge, Change, ChangeHash, ExpandedChange, ObjType, ScalarValue,
    legacy::{ElementId, Key, ObjectId, OpId, OpType},
};
use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};

mod files;
mod mutations;

use super::*;
use crate::{
    Artifact, ContextPatch, Decision, DocId, Draft, ErrorEntry, Explored, Header, Hlc, Kind,
    document::{actor, context_doc, keyed_doc, single_doc, write_memory, write_patch},
};

const SPACE: SpaceId = SpaceId::from_bytes([1; 32]);
const ADA: AgentId = AgentId::from_bytes([2; 32]);
const BOB: AgentId = AgentId::from_bytes([3; 32]);
const EVE: AgentId = AgentId::from_bytes([4; 32]);

/// A document as the fence sees it.
#[derive(Clone)]
struct Doc {
    key: DocKey,
    document: Automerge,
    index: DocIndex,
}

impl Doc {
    fn new(key: DocKey) -> Self {
        Self {
            key,
            document: genesis(key.shape).document.clone(),
            index: DocIndex::default(),
        }
    }

    fn heads(&self) -> Vec<ChangeHash> {
        match self.index.len() {
            0 => vec![genesis(self.key.shape).hash],
            _ => self
                .index
                .heads()
                .into_iter()
                .map(|head| ChangeHash(self.index.at(head).hash))
                .collect(),
        }
    }

    fn deps(&self) -> Vec<FragmentId> {
        self.index
            .heads()
            .into_iter()
            .map(|head| self.index.at(head).fragment)
            .collect()
    }

    fn opened(&self, author: AgentId, kind: Kind, at: Hlc, change: Vec<u8>) -> Opened {
        let header = Header {
            version: 1,
            mesh: MeshId::from_bytes([0; 32]),
            space: SPACE,
            author,
            node: NodeId::from_bytes([9; 32]),
            seq: 0,
            prev: None,
            auth_heads: Vec::new(),
            deps: self.deps(),
            hlc: at,
            kind,
            doc: self.key.doc,
            fingerprint: Hash::of(b""),
            epoch: 0,
            nonce: [0; 24],
            body_hash: Hash::of(&change),
            body_len: 0,
        };
        Opened {
            id: FragmentId::from(Hash::of(&header.to_bytes())),
            header,
            change: Bytes::from(change),
        }
    }

    fn compose_memory(&self, author: AgentId, at: Hlc, draft: &Draft) -> Opened {
        let mut document = self.document.clone();
        let actor = actor(&author, &self.key.doc);
        let change = write_memory(&mut document, actor, &self.heads(), at, draft).unwrap();
        self.opened(author, draft.kind, at, change)
    }

    fn compose_patch(&self, author: AgentId, at: Hlc, patch: &ContextPatch) -> Opened {
        let mut document = self.document.clone();
        let actor = actor(&author, &self.key.doc);
        let change = write_patch(&mut document, actor, &self.heads(), at, "task", patch).unwrap();
        self.opened(author, Kind::Context, at, change)
    }

    fn take(&mut self, opened: &Opened) -> Result<(), Reason> {
        let checked = check(&self.key, &self.index, opened)?;
        let before = self.index.len();
        self.index.push(checked.meta);
        match apply(&self.document, &[checked.change], &self.heads(), |_| {}) {
            Ok((document, _, ())) => self.document = document,
            Err(reason) => {
                self.index.truncate(before);
                return Err(reason);
            }
        }
        Ok(())
    }
}

fn draft(title: &str) -> Draft {
    Draft {
        key: Some("k".into()),
        ..Draft::new(Kind::Fact, title, "and some text")
    }
}

fn patch(n: u64) -> ContextPatch {
    ContextPatch {
        goal: Some(format!("goal {n}")),
        explored: vec![Explored {
            what: format!("path {n}"),
            result: "none".into(),
        }],
        decisions: vec![Decision {
            what: "go on".into(),
            why: "why not".into(),
        }],
        errors: vec![ErrorEntry {
            error: "E".into(),
            fix: Some(n.to_string()),
            ..ErrorEntry::default()
        }],
        next: Some(vec!["this".into(), "that".into()]),
        requires: Some(vec!["git".into(), format!("memory>={n}")]),
        artifacts: vec![Artifact {
            name: "a".into(),
            reference: "r".into(),
        }],
        ..ContextPatch::default()
    }
}

fn keyed() -> Doc {
    Doc::new(DocKey::memory(SPACE, keyed_doc(&SPACE, Kind::Fact, "k")))
}

fn context() -> Doc {
    Doc::new(DocKey::context(SPACE, context_doc(&SPACE, "task")))
}

/// Documents, each with a valid change that is not yet applied.
fn cases() -> Vec<(Doc, Opened)> {
    let mut cases = Vec::new();
    let single = Doc::new(DocKey::memory(
        SPACE,
        single_doc(&SPACE, &ADA, Hlc::from_ms(5)),
    ));
    let opened = single.compose_memory(
        ADA,
        Hlc::from_ms(5),
        &Draft::new(Kind::Error, "it broke", "badly"),
    );
    cases.push((single, opened));

    // Two concurrent values, and a third that replaces both.
    let mut doc = keyed();
    let first = doc.compose_memory(ADA, Hlc::from_ms(1), &draft("one"));
    let second = doc.compose_memory(BOB, Hlc::from_ms(2), &draft("two"));
    cases.push((doc.clone(), first.clone()));
    doc.take(&first).unwrap();
    doc.take(&second).unwrap();
    let third = doc.compose_memory(ADA, Hlc::from_ms(3), &draft("three"));
    cases.push((doc, third));

    let mut doc = context();
    let first = doc.compose_patch(ADA, Hlc::from_ms(1), &patch(1));
    let second = doc.compose_patch(BOB, Hlc::from_ms(2), &patch(2));
    cases.push((doc.clone(), first.clone()));
    doc.take(&first).unwrap();
    doc.take(&second).unwrap();
    let third = doc.compose_patch(ADA, Hlc::from_ms(3), &patch(3));
    cases.push((doc, third));
    cases
}

fn leb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        if value == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

#[test]
fn valid_changes_pass() {
    for (mut doc, opened) in cases() {
        assert_eq!(doc.take(&opened), Ok(()));
    }
}

/// Changes a valid change's parts and encodes it canonically.
fn forged(opened: &Opened, forge: impl FnOnce(&mut ExpandedChange)) -> Opened {
    let mut expanded = Change::from_bytes(opened.change.to_vec()).unwrap().decode();
    forge(&mut expanded);
    Opened {
        change: Bytes::from(Change::from(expanded).raw_bytes().to_vec()),
        ..opened.clone()
    }
}

fn refused(doc: &Doc, opened: &Opened, forge: impl FnOnce(&mut ExpandedChange)) -> Reason {
    doc.clone().take(&forged(opened, forge)).unwrap_err()
}

fn put(value: &str) -> OpType {
    OpType::Put(ScalarValue::Str(value.into()))
}

#[test]
fn a_change_out_of_its_place_is_refused_by_name() {
    let cases = cases();
    let (doc, valid) = &cases[2];
    let stranger = actor(&EVE, &doc.key.doc);
    assert_eq!(
        refused(doc, valid, |change| change.actor_id = stranger),
        Reason::WrongActor
    );
    assert_eq!(
        refused(doc, valid, |change| change.seq = 7),
        Reason::WrongSeq {
            seq: 7,
            expected: 2
        }
    );
    let other = doc.index.at(0).fragment;
    assert_eq!(
        refused(doc, valid, |change| change.seq = 1),
        Reason::Forked { other }
    );
    assert_eq!(
        refused(doc, valid, |change| change.deps.truncate(1)),
        Reason::DepsDisagree
    );
    assert_eq!(
        refused(doc, valid, |change| change.deps.push(ChangeHash([7; 32]))),
        Reason::DepsDisagree
    );
    assert_eq!(
        refused(doc, valid, |change| change.deps.clear()),
        Reason::DepsDisagree
    );
    for start in [1, 2, 4, u64::from(u32::MAX)] {
        let forge = |change: &mut ExpandedChange| {
            change.start_op = std::num::NonZeroU64::new(start).unwrap()
        };
        assert!(
            matches!(refused(doc, valid, forge), Reason::WrongStart { .. }),
            "{start}"
        );
    }
    assert!(matches!(
        refused(doc, valid, |change| change.time = 1),
        Reason::Malformed { .. }
    ));
    assert!(matches!(
        refused(doc, valid, |change| change.message = Some("hi".into())),
        Reason::Malformed { .. }
    ));
    assert!(matches!(
        refused(doc, valid, |change| change.extra_bytes = vec![1]),
        Reason::Malformed { .. }
    ));
    let unnamed = Opened {
        header: Header {
            deps: Vec::new(),
            ..valid.header.clone()
        },
        ..valid.clone()
    };
    assert_eq!(doc.clone().take(&unnamed), Err(Reason::DepsDisagree));
    let big = Opened {
        change: Bytes::from(vec![0; MAX_CHANGE + 1]),
        ..valid.clone()
    };
    assert_eq!(
        doc.clone().take(&big),
        Err(Reason::TooLarge {
            size: MAX_CHANGE + 1,
            limit: MAX_CHANGE
        })
    );
}

#[test]
fn a_change_that_does_not_fit_its_document_is_refused() {
    let cases = cases();
    let schema = |case: usize, forge: &dyn Fn(&mut ExpandedChange)| {
        let (doc, valid) = &cases[case];
        let reason = refused(doc, valid, forge);
        assert!(
            matches!(
                reason,
                Reason::Schema { .. } | Reason::Malformed { .. } | Reason::TooMany { .. }
            ),
            "{reason:?}"
        );
    };
    let entry = |change: &ExpandedChange| {
        change
            .operations
            .iter()
            .position(|op| op.obj != ObjectId::Root)
            .unwrap()
    };
    let nobody = ActorId::from(&[7_u8; 16][..]);
    for case in 0..cases.len() {
        // Values of another type, or in another form.
        schema(case, &|change| {
            change.operations[0].action = OpType::Put(ScalarValue::Int(1))
        });
        schema(case, &|change| {
            change.operations[0].action = OpType::Make(ObjType::Map)
        });
        schema(case, &|change| change.operations[0].action = OpType::Delete);
        schema(case, &|change| {
            change.operations[0].action = OpType::Increment(3)
        });
        schema(case, &|change| change.operations[0].action = put("{}"));
        schema(case, &|change| change.operations[0].action = put(""));
        schema(case, &|change| {
            let OpType::Put(ScalarValue::Str(text)) = &change.operations[0].action else {
                panic!("not a string")
            };
            change.operations[0].action = put(&format!("{text} "));
        });
        // Places that are not there.
        schema(case, &|change| {
            change.operations[0].key = Key::Map("another".into())
        });
        schema(case, &|change| {
            change.operations[0].key = Key::Seq(ElementId::Head)
        });
        schema(case, &|change| change.operations[0].insert = true);
        schema(case, &|change| {
            change.operations[0].obj = ObjectId::Id(OpId::new(99, &nobody))
        });
        schema(case, &|change| {
            change.operations[0].obj = ObjectId::Id(OpId::new(1, &change.actor_id))
        });
        // Overwriting what it has not seen, or what is no value of the register.
        schema(case, &|change| {
            change.operations[0].pred = vec![OpId::new(1, &nobody)].into()
        });
        schema(case, &|change| {
            change.operations[0].pred = vec![OpId::new(40, &change.actor_id)].into()
        });
        // The same twice.
        schema(case, &|change| {
            change.operations.push(change.operations[0].clone())
        });
    }
    // Another's entry, or another's name on one's own.
    let own_key = |change: &ExpandedChange| change.operations[entry(change)].key.clone();
    for case in [3, 4] {
        schema(case, &|change| {
            let at = entry(change);
            let Key::Map(key) = own_key(change) else {
                panic!("not a map key")
            };
            let others = actor(&BOB, &cases[case].0.key.doc).to_hex_string() + &key[32..];
            change.operations[at].key = Key::Map(others.into());
        });
        schema(case, &|change| {
            let at = entry(change);
            change.operations[at].pred = vec![OpId::new(9, &change.actor_id)].into();
        });
        schema(case, &|change| {
            let at = entry(change);
            change.operations[at].action = put(r#"{"what":"","result":"blank"}"#);
        });
    }
    // More requirements than there may be, longer ones, other than text, or of another moment.
    let requires = |change: &ExpandedChange| {
        let is = |operation: &automerge::legacy::Op| matches!(&operation.key, Key::Map(name) if name == "requires");
        change.operations.iter().position(is).unwrap()
    };
    let many = vec!["git"; crate::context::MAX_PATCH_ENTRIES + 1];
    let long = ["x".repeat(crate::context::MAX_ENTRY_TEXT + 1)];
    for hostile in [
        serde_json::json!({"at": 196_608, "value": many}).to_string(),
        serde_json::json!({"at": 196_608, "value": long}).to_string(),
        r#"{"at":196608,"value":[1]}"#.to_owned(),
        r#"{"at":196608,"value":"git"}"#.to_owned(),
        r#"{"at":65536,"value":["git"]}"#.to_owned(),
        r#"{"at":196608,"value":["git"] }"#.to_owned(),
    ] {
        schema(4, &|change| {
            let at = requires(change);
            change.operations[at].action = put(&hostile);
        });
    }
    // The same forge with nothing wrong in it is taken, so it is those values that are refused.
    let (doc, valid) = &cases[4];
    let fine = forged(valid, |change| {
        let at = requires(change);
        change.operations[at].action = put(r#"{"at":196608,"value":["git"]}"#);
    });
    doc.clone().take(&fine).unwrap();
    // A context that does not say of which task it is, or says another.
    let (doc, valid) = &cases[3];
    let nameless = refused(doc, valid, |change| drop(change.operations.remove(0)));
    assert!(matches!(nameless, Reason::Schema { .. }));
    schema(3, &|change| {
        change.operations[0].action = put(r#"{"at":65536,"value":{"text":"other"}}"#)
    });
}

#[test]
fn a_statement_under_another_name_than_its_documents_is_refused() {
    let another = Doc::new(DocKey::memory(SPACE, DocId::from_bytes([5; 32])));
    let opened = another.compose_memory(ADA, Hlc::from_ms(1), &draft("x"));
    assert!(matches!(
        another.clone().take(&opened),
        Err(Reason::Schema { .. })
    ));
    // Nobody writes over a memory without a key: it is its author's.
    let (mut doc, opened) = cases().remove(0);
    doc.take(&opened).unwrap();
    let over = doc.compose_memory(
        EVE,
        Hlc::from_ms(6),
        &Draft::new(Kind::Error, "not at all", ""),
    );
    assert!(matches!(doc.take(&over), Err(Reason::Schema { .. })));
}

#[test]
fn a_compressed_change_is_refused_unread() {
    let doc = keyed();
    let big = Draft {
        text: "again and ".repeat(2_000),
        ..draft("x")
    };
    let opened = doc.compose_memory(ADA, Hlc::from_ms(1), &big);
    let mut change = Change::from_bytes(opened.change.to_vec()).unwrap();
    let compressed = Opened {
        change: Bytes::from(change.bytes().into_owned()),
        ..opened.clone()
    };
    assert!(compressed.change.len() < opened.change.len());
    assert_eq!(doc.clone().take(&compressed), Err(Reason::Compressed));
    assert_eq!(doc.clone().take(&opened), Ok(()));
}

#[test]
fn runs_that_claim_a_billion_operations_are_refused_without_being_walked() {
    let doc = keyed();
    let author = actor(&ADA, &doc.key.doc);
    let chunk = |columns: &[(u64, Vec<u8>)]| {
        let mut content = vec![1];
        content.extend(genesis(doc.key.shape).hash.0);
        content.push(16);
        content.extend(author.to_bytes());
        content.extend([1, 2, 0, 0, 0]);
        content.extend(leb(columns.len() as u64));
        columns
            .iter()
            .for_each(|(spec, data)| content.extend([leb(*spec), leb(data.len() as u64)].concat()));
        columns.iter().for_each(|(_, data)| content.extend(data));
        let mut chunk = vec![0x85, 0x6f, 0x4a, 0x83, 0, 0, 0, 0, 1];
        chunk.extend(leb(content.len() as u64));
        chunk.extend(content);
        chunk
    };
    // A run's length is a signed LEB128 number: this one is 2^40.
    let run = [0x80, 0x80, 0x80, 0x80, 0x80, 0x20].to_vec();
    let huge = |value: &[u8]| [run.clone(), value.to_vec()].concat();
    let nulls = [vec![0], leb(1 << 40)].concat();
    let one = |value: u8| vec![1, value];
    for columns in [
        vec![(0x42, huge(&[1]))],
        vec![(0x42, nulls.clone())],
        vec![(0x15, huge(&[1, b'k'])), (0x42, one(1))],
        vec![(0x34, leb(1 << 50)), (0x42, one(1))],
        vec![(0x42, one(1)), (0x56, huge(&[0]))],
        vec![(0x42, one(1)), (0x70, [one(0), leb(1 << 60)].concat())],
        vec![(0x42, one(1)), (0x70, [vec![1], leb(1 << 60)].concat())],
        vec![(0x42, one(1)), (0x71, nulls)],
        vec![(0x42, one(1)), (0x73, huge(&[1]))],
    ] {
        let opened = doc.opened(ADA, Kind::Fact, Hlc::from_ms(1), chunk(&columns));
        let reason = doc.clone().take(&opened).unwrap_err();
        assert!(
            matches!(reason, Reason::TooMany { .. } | Reason::Malformed { .. }),
            "{reason:?}"
        );
    }
}

#[test]
fn the_genesis_changes_are_what_they_have_always_been() {
    let hash = |shape| genesis(shape).hash.to_string();
    assert_eq!(
        hash(crate::document::Shape::Memory),
        "b07c1cc104c70aa239d13a625fbe31736f9ac0a1605538f74b9fabe8a2548d78"
    );
    assert_eq!(
        hash(crate::document::Shape::Context),
        "367442b82ef77b7bb0266fffa60ee11390505b9753aee42276e93a35ee26aeda"
    );
    assert_eq!(
        hash(crate::document::Shape::File),
        "a5a6f5e2e5e6ea00bde1c8d610cc5f8e71e88b44ba672175e1c232b82f3956b2"
    );
}
