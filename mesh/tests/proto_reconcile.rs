//! Reconciliation finds the difference, the whole difference and nothing else, in bounds.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::collections::BTreeSet;

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use proptest::prelude::*;
use rhizome_identity::Hash;
use rhizome_memory::IdSet;
use rhizome_mesh::proto::reconcile::{Body, Part, SessionKey, answer, decode, encode, open, pack};

const MAX_BYTES: usize = 256 * 1024;

/// What one session did.
#[derive(Debug, Default)]
struct Run {
    /// What the side that opened sent, and the other.
    sent: [BTreeSet<Hash>; 2],
    bytes: usize,
    messages: usize,
    longest: usize,
}

impl Run {
    /// Messages that ask and their answers make round trips; trailing wants travel with the items.
    fn round_trips(&self) -> usize {
        self.messages.div_ceil(2)
    }
}

/// Runs a session between two sets over encoded messages.
fn run(a: &IdSet, b: &IdSet, salt: [u8; 16]) -> Run {
    let key = SessionKey::new(&salt);
    let mut run = Run::default();
    let mut messages = pack(open(a, &key), MAX_BYTES);
    let mut turn = 0;
    while !messages.is_empty() {
        run.messages += 1;
        assert!(run.messages < 64, "the session does not end");
        turn = 1 - turn;
        let set = [a, b][turn];
        let mut next = Vec::new();
        for parts in messages {
            let mut bytes = Vec::new();
            encode(&parts, &mut bytes);
            assert!(bytes.len() <= MAX_BYTES);
            run.bytes += bytes.len();
            run.longest = run.longest.max(bytes.len());
            let decoded = decode(&bytes).unwrap();
            assert_eq!(decoded, parts);
            let answer = answer(set, &key, &decoded);
            run.sent[turn].extend(answer.send);
            next.extend(pack(answer.parts, MAX_BYTES));
        }
        messages = next;
    }
    run
}

fn id(n: u64) -> Hash {
    Hash::of(&n.to_le_bytes())
}

fn set(ids: impl IntoIterator<Item = Hash>) -> IdSet {
    ids.into_iter().collect()
}

fn assert_finds_all(a: &IdSet, b: &IdSet, run: &Run) {
    let (a, b): (BTreeSet<Hash>, BTreeSet<Hash>) =
        (a.iter().copied().collect(), b.iter().copied().collect());
    assert_eq!(run.sent[0], &a - &b, "what only the opening side holds");
    assert_eq!(run.sent[1], &b - &a, "what only the answering side holds");
}

/// Two sets of about `common` ids that differ in `apart` ids, split evenly.
fn pair(common: u64, apart: u64) -> (IdSet, IdSet) {
    let both = (0..common - apart / 2).map(id);
    let only = |from: u64| (from..from + apart / 2).map(id);
    (
        set(both.clone().chain(only(1 << 40))),
        set(both.chain(only(1 << 41))),
    )
}

fn negentropy_difference(a: &IdSet, b: &IdSet) -> [BTreeSet<Hash>; 2] {
    let storage = |set: &IdSet| {
        let mut storage = NegentropyStorageVector::new();
        for id in set {
            storage
                .insert(0, Id::from_byte_array(*id.as_bytes()))
                .unwrap();
        }
        storage.seal().unwrap();
        storage
    };
    let (a, b) = (storage(a), storage(b));
    let mut ours = Negentropy::borrowed(&a, 0).unwrap();
    let mut theirs = Negentropy::borrowed(&b, 0).unwrap();
    let (mut have, mut need) = (Vec::new(), Vec::new());
    let mut message = Some(ours.initiate().unwrap());
    while let Some(query) = message {
        let answer = theirs.reconcile(&query).unwrap();
        message = ours
            .reconcile_with_ids(&answer, &mut have, &mut need)
            .unwrap();
    }
    let hashes = |ids: Vec<Id>| {
        ids.iter()
            .map(|id| Hash::from_bytes(id.to_bytes()))
            .collect()
    };
    [hashes(have), hashes(need)]
}

#[test]
fn a_hundred_in_a_hundred_thousand_stay_within_the_budget() {
    let (a, b) = pair(100_000, 100);
    let run = run(&a, &b, [7; 16]);
    assert_finds_all(&a, &b, &run);
    assert!(run.bytes <= 60_000, "{} bytes", run.bytes);
    assert!(run.round_trips() <= 3, "{} messages", run.messages);
}

#[test]
fn equal_sets_cost_one_small_message() {
    let (a, _) = pair(100_000, 0);
    let run = run(&a, &a.clone(), [1; 16]);
    assert_finds_all(&a, &a, &run);
    assert!(run.bytes < 600 && run.messages == 1, "{run:?}");
}

#[test]
fn many_differences_take_frames_in_bounds() {
    let (a, b) = pair(60_000, 10_000);
    let run = run(&a, &b, [3; 16]);
    assert_finds_all(&a, &b, &run);
    assert!(
        run.longest <= MAX_BYTES && run.round_trips() <= 4,
        "{} messages",
        run.messages
    );
}

#[test]
fn crafted_neighbours_are_told_apart() {
    // Ids that share all but the last bytes, as an attacker who picks ids would make them.
    let near = |n: u16| {
        let mut id = [0xaa; 32];
        id[30..].copy_from_slice(&n.to_be_bytes());
        Hash::from_bytes(id)
    };
    let a = set((0..2000).map(near).chain((0..500).map(id)));
    let b = set((1..2001).map(near).chain((100..600).map(id)));
    let run = run(&a, &b, [9; 16]);
    assert_finds_all(&a, &b, &run);
}

fn ids(max: u64) -> impl Strategy<Value = BTreeSet<u64>> {
    prop::collection::btree_set(0..max, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_negentropy(a in ids(600), b in ids(600), salt: [u8; 16]) {
        let (a, b) = (set(a.into_iter().map(id)), set(b.into_iter().map(id)));
        let run = run(&a, &b, salt);
        prop_assert_eq!(&run.sent, &negentropy_difference(&a, &b));
    }

    #[test]
    fn subsets_empties_and_equals_converge(a in ids(5000), keep in 0_usize..500, salt: [u8; 16]) {
        let small: IdSet = a.iter().take(keep).map(|n| id(*n)).collect();
        let large: IdSet = a.iter().map(|n| id(*n)).collect();
        for (a, b) in [(&small, &large), (&large, &small), (&IdSet::new(), &large), (&large, &large)] {
            let run = run(a, b, salt);
            assert_finds_all(a, b, &run);
        }
    }

    #[test]
    fn garbage_is_a_typed_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let held = set((0..300).map(id));
        if let Ok(parts) = decode(&bytes) {
            // What happens to be well formed is answered in bounds.
            let answer = answer(&held, &SessionKey::new(&[0; 16]), &parts);
            prop_assert!(answer.parts.len() <= 64 * parts.len().max(1));
        }
    }

    #[test]
    fn mutated_messages_never_panic(flips in prop::collection::vec((0_usize..2000, any::<u8>()), 1..8)) {
        let held = set((0..2000).map(id));
        let other = set((40..2040).map(id));
        let key = SessionKey::new(&[5; 16]);
        let parts = answer(&other, &key, &open(&held, &key)).parts;
        let mut bytes = Vec::new();
        encode(&parts, &mut bytes);
        for (at, flip) in flips {
            let at = at % bytes.len();
            bytes[at] ^= flip;
        }
        if let Ok(parts) = decode(&bytes) {
            let answer = answer(&held, &key, &parts);
            prop_assert!(answer.send.len() <= held.len());
        }
    }
}

#[test]
fn a_message_that_differs_everywhere_gets_a_bounded_answer() {
    let held = set((0..50_000).map(id));
    let key = SessionKey::new(&[2; 16]);
    // As many ranges as a frame takes, every one with a wrong digest.
    let bound = |n: u32| {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&(n << 14).to_be_bytes());
        id[4] = 1;
        Hash::from_bytes(id)
    };
    let parts: Vec<Part> = (0..16_000)
        .map(|n| Part {
            lo: bound(n),
            hi: Some(bound(n + 1)),
            body: Body::Digest(1),
        })
        .collect();
    let answer = answer(&held, &key, &parts);
    let bytes: usize = pack(answer.parts, MAX_BYTES).len() * MAX_BYTES;
    assert!(bytes <= 8 * MAX_BYTES);
}

#[test]
fn orders_and_overlaps_are_refused() {
    let part = |lo: u8, hi: u8| Part {
        lo: Hash::from_bytes([lo; 32]),
        hi: Some(Hash::from_bytes([hi; 32])),
        body: Body::Digest(0),
    };
    for parts in [
        vec![part(3, 2)],
        vec![part(2, 4), part(3, 5)],
        vec![part(4, 5), part(1, 2)],
    ] {
        let mut bytes = Vec::new();
        encode(&parts, &mut bytes);
        assert!(decode(&bytes).is_err(), "{parts:?}");
    }
}
