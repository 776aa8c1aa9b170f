//! One foreign change against the whole fence, for [`crate::fuzz`].

use automerge::{Automerge, Change, ChangeHash};
use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};

use super::{apply, check, fenced, scan};
use crate::{
    ContextPatch, Draft, FRAGMENT_VERSION, FileEdit, FilePath, Header, Hlc, Kind, Opened,
    document::{
        DocIndex, DocKey, Shape, actor, context_doc, document_of_first, file_doc, genesis,
        single_doc, write_file, write_memory, write_patch,
    },
};

const SPACE: SpaceId = SpaceId::from_bytes([1; 32]);
const AUTHOR: AgentId = AgentId::from_bytes([2; 32]);
const AT: Hlc = Hlc::from_ms(5);
/// Magic, checksum and kind of an automerge chunk that holds a change.
const CHUNK: [u8; 9] = [0x85, 0x6f, 0x4a, 0x83, 0, 0, 0, 0, 1];

/// Takes the content of a change, as its author's first on an empty document: a memory, a context
/// or a file by the rest of the first byte divided by three. Length and checksum are put around it, as an enemy would.
pub(crate) fn probe(bytes: &[u8]) {
    let Some((first, content)) = bytes.split_first() else {
        return;
    };
    let key = key(first % 3);
    let change = framed(content, key.shape);
    let opened = opened(&key, change);
    let index = DocIndex::default();
    let Ok(checked) = check(&key, &index, &opened) else {
        return;
    };
    // A memory's first change is kept as it is, so the document has to be there when it is wanted.
    let first = checked.first.map(|_| {
        let built = fenced(|| document_of_first(&checked.change));
        built.expect("no panic").expect("it follows the genesis")
    });
    let document = &genesis(key.shape).document;
    let heads = [ChangeHash(checked.meta.hash)];
    match apply(document, &[checked.change], &heads, |_| {}) {
        Ok((document, saved, ())) => {
            let again = super::load(&saved).expect("what the fence took loads again");
            assert_eq!(again.get_heads(), document.get_heads());
            assert!(first.is_none_or(|first| first.save() == document.save()));
        }
        Err(reason) => assert!(first.is_none(), "{reason}"),
    }
}

/// Returns inputs that the fence takes.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let document = |key: &DocKey| -> (Automerge, Vec<ChangeHash>) {
        let genesis = genesis(key.shape);
        (genesis.document.clone(), vec![genesis.hash])
    };
    let memory = key(0);
    let (mut doc, heads) = document(&memory);
    let draft = Draft::new(Kind::Error, "it broke", "badly");
    let by = actor(&AUTHOR, &memory.doc);
    let error = write_memory(&mut doc, by, &heads, AT, &draft).expect("a short draft");

    let context = key(1);
    let (mut doc, heads) = document(&context);
    let patch = ContextPatch {
        goal: Some("goal".into()),
        next: Some(vec!["this".into(), "that".into()]),
        ..ContextPatch::default()
    };
    let by = actor(&AUTHOR, &context.doc);
    let patch = write_patch(&mut doc, by, &heads, AT, "task", &patch).expect("a short patch");

    let file = key(2);
    let (mut doc, heads) = document(&file);
    let create = FileEdit::Create {
        text: "one\ntwo ü\n".into(),
        from: None,
    };
    let by = actor(&AUTHOR, &file.doc);
    let (create, _) = write_file(&mut doc, by, &heads, AT, &path(), &create).expect("a short text");
    vec![
        [&[0], content(&error)].concat(),
        [&[1], content(&patch)].concat(),
        [&[2], content(&create)].concat(),
    ]
}

fn key(shape: u8) -> DocKey {
    match shape {
        0 => DocKey::memory(SPACE, single_doc(&SPACE, &AUTHOR, AT)),
        1 => DocKey::context(SPACE, context_doc(&SPACE, "task")),
        _ => DocKey::file(SPACE, file_doc(&SPACE, &path())),
    }
}

fn path() -> FilePath {
    FilePath::parse("/memories/notes.md").expect("a plain path")
}

fn opened(key: &DocKey, change: Vec<u8>) -> Opened {
    let header = Header {
        version: FRAGMENT_VERSION,
        mesh: MeshId::from_bytes([0; 32]),
        space: SPACE,
        author: AUTHOR,
        node: NodeId::from_bytes([9; 32]),
        seq: 0,
        prev: None,
        auth_heads: Vec::new(),
        deps: Vec::new(),
        hlc: AT,
        kind: match key.shape {
            crate::document::Shape::Memory => Kind::Error,
            crate::document::Shape::Context => Kind::Context,
            crate::document::Shape::File => Kind::File,
        },
        doc: key.doc,
        fingerprint: Hash::of(b""),
        epoch: 0,
        nonce: [0; 24],
        body_hash: Hash::of(&change),
        body_len: 0,
    };
    Opened {
        id: Hash::of(&header.to_bytes()).into(),
        header,
        change: Bytes::from(change),
    }
}

fn framed(content: &[u8], shape: Shape) -> Vec<u8> {
    let mut chunk = CHUNK.to_vec();
    let mut length = content.len();
    loop {
        let byte = (length & 0x7f).to_le_bytes()[0];
        length >>= 7;
        if length == 0 {
            chunk.push(byte);
            break;
        }
        chunk.push(byte | 0x80);
    }
    chunk.extend_from_slice(content);
    // Scanned first: decoding believes the counts that it reads.
    if scan(&chunk, shape).is_ok()
        && let Ok(Ok(change)) = fenced(|| Change::from_bytes(chunk.clone()))
    {
        chunk[4..8].copy_from_slice(&change.hash().0[..4]);
    }
    chunk
}

fn content(chunk: &[u8]) -> &[u8] {
    let rest = &chunk[CHUNK.len()..];
    let length = rest.iter().take_while(|byte| *byte & 0x80 != 0).count() + 1;
    &rest[length..]
}
