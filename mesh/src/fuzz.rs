//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `fuzz/` and `tests/fuzz.rs` both
//! drive them (`docs/howto/fuzz.md`); nothing else should.

use std::sync::OnceLock;

use bytes::Bytes;
use rhizome_identity::Hash;
use rhizome_memory::IdSet;

use crate::{
    net,
    proto::{
        reconcile::{self, Body, SessionKey},
        replication,
    },
};

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    (
        "sync_frame",
        replication::fuzz::frame,
        replication::fuzz::frames,
    ),
    ("reconcile", ranges, messages),
    ("join", net::fuzz::join, net::fuzz::joins),
    ("node_infos", net::fuzz::infos, net::fuzz::info_frames),
    ("address_book", net::fuzz::book, net::fuzz::books),
];

/// A message has one spelling, and is answered within bounds whatever it says.
pub fn ranges(bytes: &[u8]) {
    let Ok(parts) = reconcile::decode(bytes) else {
        return;
    };
    let mut again = Vec::new();
    reconcile::encode(&parts, &mut again);
    assert_eq!(
        reconcile::decode(&again).expect("what we write we can read"),
        parts
    );
    let key = SessionKey::new(&[3; 16]);
    let answer = reconcile::answer(set(), &key, &parts);
    for id in &answer.send {
        assert!(set().contains(id), "an id that nobody holds");
    }
    let mut reply = Vec::new();
    reconcile::encode(&answer.parts, &mut reply);
    assert_eq!(
        reconcile::decode(&reply).expect("our own answer can be read"),
        answer.parts
    );
    let wants = |body: &Body| matches!(body, Body::Want(_));
    assert!(
        parts
            .iter()
            .all(|part| part.is_question() != wants(&part.body))
    );
}

fn set() -> &'static IdSet {
    static SET: OnceLock<IdSet> = OnceLock::new();
    SET.get_or_init(|| {
        let mut set = IdSet::new();
        for n in 0..500_u32 {
            set.insert(Hash::of(&n.to_le_bytes()));
        }
        set
    })
}

fn messages() -> Vec<Vec<u8>> {
    let key = SessionKey::new(&[3; 16]);
    let mut other = set().clone();
    for n in 1_000..1_040_u32 {
        other.insert(Hash::of(&n.to_le_bytes()));
    }
    let mut seeds = Vec::new();
    let mut parts = reconcile::open(&other, &key);
    let mut mine = true;
    while !parts.is_empty() && seeds.len() < 6 {
        let mut bytes = Vec::new();
        reconcile::encode(&parts, &mut bytes);
        seeds.push(bytes);
        let holder = if mine { set() } else { &other };
        parts = reconcile::answer(holder, &key, &parts).parts;
        mine = !mine;
    }
    seeds
}

/// Prefixes `bytes` with their length, as lists of this crate do.
pub(crate) fn counted(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).expect("a short sample");
    [&length.to_be_bytes()[..], bytes].concat().into()
}
