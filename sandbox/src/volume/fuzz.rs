//! What a fuzzer calls of a volume's formats.

use super::{
    Content, Entry, Meta, Name, Node, Packed, Version, VersionId,
    tree::{encode_tree, parse_tree},
};
use crate::chunks::PackId;

/// A version, its packs and a directory have one encoding each, and what one names is bounded.
pub(crate) fn manifest(bytes: &[u8]) {
    if let Ok(version) = Version::parse(bytes) {
        assert_eq!(version.to_bytes(), bytes, "a second spelling of a version");
    }
    if let Ok(packed) = Packed::parse(bytes) {
        assert_eq!(packed.to_bytes(), bytes, "a second spelling of packs");
    }
    if let Ok(entries) = parse_tree(bytes) {
        assert_eq!(
            encode_tree(&entries),
            bytes,
            "a second spelling of a directory"
        );
    }
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let packs: Vec<PackId> = [1, 2].map(|n| PackId::from_bytes([n; 32])).to_vec();
    let version = Version {
        volume: [3; 16],
        parents: vec![VersionId::from_bytes([4; 32])],
        root: Content::default(),
        packs: packs.clone(),
        author: "agent".into(),
        at_ms: 1,
        message: "after the tests".into(),
    };
    let packed = Packed {
        version: VersionId::from_bytes([4; 32]),
        packs,
    };
    let entry = |name: &str, node: Node, attributes: &[(&[u8], &[u8])]| Entry {
        name: Name::new(name).expect("a short name"),
        meta: Meta {
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            mtime_ns: 1,
            attributes: attributes
                .iter()
                .map(|(name, value)| (name.to_vec(), value.to_vec()))
                .collect(),
        },
        node,
    };
    let entries = [
        entry("a", Node::File(Content::default()), &[(b"user.x", b"1")]),
        entry("b", Node::Dir(Content::default()), &[]),
        entry("c", Node::Symlink(b"../a".to_vec()), &[]),
    ];
    vec![version.to_bytes(), packed.to_bytes(), encode_tree(&entries)]
}
