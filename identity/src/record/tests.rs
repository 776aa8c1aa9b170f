use proptest::prelude::*;

use super::*;
use crate::{
    epoch::WrappedKey,
    id::{AgentId, Hash, InviteId, NodeId, SpaceId},
    role::Role,
};

fn key() -> SecretKey {
    SecretKey::from_seed([7; 32])
}

/// One body of every kind.
fn bodies() -> Vec<RecordBody> {
    let space = SpaceId::from_bytes([1; 32]);
    let wrapped = WrappedKey {
        epoch: 1,
        enc: [2; 32],
        sealed: [3; 48],
    };
    let wrap = NodeWrap {
        node: NodeId::from_bytes([4; 32]),
        key: wrapped.clone(),
    };
    let cut = Cut {
        author: AgentId::from_bytes([5; 32]),
        space,
        seq: 300,
        hash: Hash::of(b"x"),
    };
    vec![
        RecordBody::Grant(Grant {
            node: NodeId::from_bytes([4; 32]),
            node_name: "nœud".into(),
            role: Role::Writer,
            spaces: vec![SpaceGrant {
                space,
                role: Role::Reader,
                keys: vec![wrapped],
            }],
            invite: Some(InviteId::from_bytes([6; 32])),
        }),
        RecordBody::SpaceCreate(SpaceCreate {
            name: "s".into(),
            nonce: [9; 16],
            commitment: Hash::of(b"k"),
            keys: vec![wrap.clone()],
        }),
        RecordBody::InviteOpen(InviteOpen {
            invite: InviteId::from_bytes([6; 32]),
            role: Role::Reader,
            spaces: vec![space],
            uses: 1,
            not_after_ms: u64::MAX,
            approve: true,
        }),
        RecordBody::InviteClose(InviteClose {
            invite: InviteId::from_bytes([6; 32]),
        }),
        RecordBody::AgentCert(AgentCert {
            agent: AgentId::from_bytes([5; 32]),
            name: "a".into(),
            spaces: None,
            verbs: Verbs::ALL,
            not_after_ms: Some(5),
            possession: [8; 64],
        }),
        RecordBody::Revoke(Revoke {
            subject: key().public(),
            cuts: vec![cut.clone()],
            reason: "lost".into(),
        }),
        RecordBody::Amend(Amend {
            revoke: RecordId::from_bytes([1; 32]),
            cuts: vec![cut.clone()],
        }),
        RecordBody::KeyEpoch(KeyEpoch {
            space,
            epoch: 2,
            commitment: Hash::of(b"k"),
            wraps: vec![wrap],
            previous: Some(vec![1; 72]),
        }),
        RecordBody::RotateRoot(RotateRoot {
            root: key().public(),
            next_root_hash: Hash::of(b"n"),
        }),
        RecordBody::ForkProof(ForkProof {
            a: vec![1, 2],
            b: vec![],
        }),
        RecordBody::Checkpoint(Checkpoint {
            space,
            covered: Hash::of(b"c"),
            count: 70_000,
            heads: vec![RecordId::from_bytes([2; 32])],
            authors: vec![cut],
            snapshot: Hash::of(b"s"),
            view: Hash::of(b"v"),
            rules: "r1".into(),
        }),
    ]
}

fn record(body: RecordBody) -> Record {
    Record {
        v: RECORD_VERSION,
        mesh: MeshId::from_bytes([1; 32]),
        parents: vec![RecordId::from_bytes([1; 32])],
        at_ms: 1_796_000_000_000,
        body,
    }
}

#[test]
fn every_kind_survives_the_round_trip() {
    for body in bodies() {
        let signed = SignedRecord::sign(&key(), record(body)).unwrap();
        let parsed = SignedRecord::parse(signed.bytes()).unwrap();
        assert_eq!(parsed.record(), signed.record());
        assert_eq!(
            (parsed.id(), parsed.signer()),
            (signed.id(), key().public())
        );
        assert!(parsed.is_understood(), "{}", parsed.record().body.kind());
    }
}

#[test]
fn another_signer_of_the_same_words_makes_another_record() {
    let one = SignedRecord::sign(&key(), record(bodies().remove(3))).unwrap();
    let two = SignedRecord::sign(&SecretKey::from_seed([8; 32]), one.record().clone()).unwrap();
    assert_eq!(one.record(), two.record());
    assert_ne!(one.id(), two.id());
}

#[test]
fn rules_of_the_layout_are_kept_by_signer_and_reader() {
    let space = SpaceId::from_bytes([1; 32]);
    let mut broken = Vec::new();
    for name in ["", " padded", "line\nbreak", &"x".repeat(65)] {
        let RecordBody::SpaceCreate(body) = bodies().remove(1) else {
            panic!("a space")
        };
        broken.push(record(RecordBody::SpaceCreate(SpaceCreate {
            name: name.into(),
            ..body
        })));
    }
    for spaces in [
        vec![space, space],
        vec![SpaceId::from_bytes([2; 32]), space],
    ] {
        let RecordBody::InviteOpen(body) = bodies().remove(2) else {
            panic!("an invite")
        };
        broken.push(record(RecordBody::InviteOpen(InviteOpen {
            spaces,
            ..body
        })));
    }
    let plain = || record(bodies().remove(3));
    broken.push(Record {
        parents: vec![],
        ..plain()
    });
    broken.push(Record {
        mesh: MeshId::from_bytes([0; 32]),
        ..plain()
    });
    broken.push(Record {
        parents: (0..17).map(|n| RecordId::from_bytes([n; 32])).collect(),
        ..plain()
    });
    for record in broken {
        let payload = codec::encode(&record);
        let foreign = envelope::seal(&key(), RECORD_DOMAIN, &payload);
        assert!(matches!(
            SignedRecord::parse(&foreign),
            Err(RecordError::Malformed(_))
        ));
        assert!(matches!(
            SignedRecord::sign(&key(), record),
            Err(RecordError::Malformed(_))
        ));
    }
    let later = Record { v: 2, ..plain() };
    let foreign = envelope::seal(&key(), RECORD_DOMAIN, &codec::encode(&later));
    assert!(matches!(
        SignedRecord::parse(&foreign),
        Err(RecordError::Version(2))
    ));
    let RecordBody::ForkProof(_) = bodies().remove(9) else {
        panic!("a proof")
    };
    let huge = RecordBody::ForkProof(ForkProof {
        a: vec![0; MAX_RECORD_BYTES],
        b: vec![],
    });
    let refused = SignedRecord::sign(&key(), record(huge));
    assert!(matches!(
        refused,
        Err(RecordError::Envelope(EnvelopeError::TooLarge { .. }))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whoever signs broken payloads for real gets an error, or a record that says just that.
    #[test]
    fn mutated_payloads_give_an_error_or_themselves(
        kind in 0..11_usize,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4),
    ) {
        let mut payload = codec::encode(&record(bodies().remove(kind)));
        for (at, byte, how) in edits {
            let at = at.index(payload.len());
            match how {
                0 => payload[at] = byte,
                1 => payload.insert(at, byte),
                _ => drop(payload.remove(at)),
            }
        }
        let bytes = envelope::seal(&key(), RECORD_DOMAIN, &payload);
        if let Ok(parsed) = SignedRecord::parse(&bytes) {
            prop_assert_eq!(parsed.bytes(), &bytes[..]);
            if parsed.is_understood() {
                prop_assert_eq!(codec::encode(parsed.record()), payload);
            }
        }
    }
}
