//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `fuzz/` and `tests/fuzz.rs` both
//! drive them (`docs/howto/fuzz.md`); nothing else should.

mod admission;

use std::sync::OnceLock;

use bytes::Bytes;
use rhizome_identity::{AgentKey, Hash, MeshId, NodeId, NodeKey, RecordId, SpaceId};

use crate::{
    DocId, FRAGMENT_VERSION, FilePath, Fragment, FragmentId, Header, Hlc, Kind, TreePath, fence,
    store::record::{FORMAT, HEAD, Head, RecordKind, StoreKey, Tip},
};

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("fragment", fragment, fragments),
    ("header", header, headers),
    ("change", change, changes),
    ("segment", segment, segments),
    ("file_path", file_path, file_paths),
    ("admission", admission::admission, admission::orders),
];

/// A fragment has one spelling.
pub fn fragment(bytes: &[u8]) {
    let wire = Bytes::copy_from_slice(bytes);
    if let Ok(fragment) = Fragment::decode(&wire) {
        assert_eq!(fragment.encode(), wire, "a second spelling of a fragment");
        assert_eq!(fragment.detached(), fragment);
        let _ = crate::check_signatures([&fragment]);
    }
}

/// The inside of a fragment, without the signature that a fuzzer cannot make.
pub fn header(bytes: &[u8]) {
    if let Ok(header) = Header::from_bytes(bytes) {
        assert_eq!(header.to_bytes(), bytes, "a second spelling of a header");
        assert!(header.aad().len() < bytes.len());
    }
}

/// A change is refused or decoded behind the fence; its claims alone reserve nothing.
pub fn change(bytes: &[u8]) {
    fence::probe::probe(bytes);
}

/// A path stays in the tree and has one spelling; so does a directory's.
pub fn file_path(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(path) = FilePath::parse(&text) {
        assert_eq!(path.as_str(), text, "a second spelling of a path");
        let below = std::path::Path::new(path.below());
        let is_name = |part| matches!(part, std::path::Component::Normal(_));
        assert!(
            below.components().all(is_name),
            "a path that leaves the tree"
        );
        assert_eq!(below.components().count(), path.names().count());
        assert!(
            path.parents()
                .all(|parent| FilePath::parse(parent.as_str()).is_ok())
        );
    }
    if let Ok(tree) = TreePath::parse(&text) {
        assert_eq!(tree.is_root(), tree.file().is_none());
        assert!(text.starts_with(tree.as_str()));
    }
}

/// A damaged segment is read up to the damage and found again behind it.
pub fn segment(bytes: &[u8]) {
    let key = store_key();
    let _ = key.read_segment_head(bytes, 1);
    let mut at = 0;
    while at < bytes.len() {
        match key.read(&bytes[at..]) {
            Some((head, payload)) => {
                if head.kind == RecordKind::Commit {
                    for tip in Tip::read_all(payload) {
                        assert_eq!(tip.seq == 0, tip.prev.is_none());
                    }
                }
                at += HEAD + payload.len();
            }
            None => match key.resync(bytes, at + 1) {
                Some(next) => {
                    assert!(next > at, "a search that does not move on");
                    at = next;
                }
                None => break,
            },
        }
    }
}

fn store_key() -> &'static StoreKey {
    static KEY: OnceLock<StoreKey> = OnceLock::new();
    KEY.get_or_init(|| StoreKey::new(&NodeKey::from_seed([5; 32])))
}

fn sample(seq: u64, body: usize) -> Fragment {
    let key = AgentKey::from_seed([4; 32]);
    let header = Header {
        version: FRAGMENT_VERSION,
        mesh: MeshId::from_bytes([1; 32]),
        space: SpaceId::from_bytes([2; 32]),
        author: key.id(),
        node: NodeId::from_bytes([3; 32]),
        seq,
        prev: (seq > 0).then(|| FragmentId::from_bytes([9; 32])),
        auth_heads: (0..2).map(|n| RecordId::from_bytes([n; 32])).collect(),
        deps: vec![FragmentId::from_bytes([8; 32])],
        hlc: Hlc::default(),
        kind: Kind::Fact,
        doc: DocId::from_bytes([6; 32]),
        fingerprint: Hash::of(b"runtime"),
        epoch: 1,
        nonce: [7; 24],
        body_hash: Hash::of(b""),
        body_len: 0,
    };
    Fragment::sign(&key, header, vec![0xab; body].into()).expect("a small fragment")
}

fn fragments() -> Vec<Vec<u8>> {
    // The last one's body travels apart.
    [(0, 0), (1, 40), (2, 300), (3, 70_000)]
        .map(|(seq, body)| sample(seq, body).encode().to_vec())
        .to_vec()
}

fn headers() -> Vec<Vec<u8>> {
    [(0, 0), (1, 40)]
        .map(|(seq, body)| sample(seq, body).header.to_bytes())
        .to_vec()
}

fn changes() -> Vec<Vec<u8>> {
    fence::probe::seeds()
}

fn file_paths() -> Vec<Vec<u8>> {
    [
        "/memories/notes.md",
        "/memories/a/../%2e%2e",
        "/memories/\u{fc}/\u{ff0e}/",
    ]
    .map(|path| path.as_bytes().to_vec())
    .to_vec()
}

fn segments() -> Vec<Vec<u8>> {
    let key = store_key();
    let mut bytes = key.segment_head(1, FORMAT).to_vec();
    let tip = Tip {
        space: SpaceId::from_bytes([2; 32]),
        author: AgentKey::from_seed([4; 32]).id(),
        seq: 0,
        id: FragmentId::from_bytes([9; 32]),
        prev: None,
    };
    let payloads = [
        (RecordKind::Fragment, sample(0, 40).encode().to_vec()),
        (RecordKind::Commit, Tip::write_all(&[tip])),
        (RecordKind::Filler, vec![0; 64]),
    ];
    for (kind, payload) in payloads {
        let head = Head {
            kind,
            len: u32::try_from(payload.len()).expect("a short payload"),
            index: 0,
            last: true,
            batch: 1,
            arrival: 1,
        };
        key.write(&mut bytes, head, &payload);
    }
    // With and without the head, as the target reads from the first byte.
    vec![bytes.split_off(64), bytes]
}
