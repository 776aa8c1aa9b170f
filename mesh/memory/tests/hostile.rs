//! What a peer may send, and what it gets.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/mesh.rs"]
mod mesh;

use std::fs;

use bytes::Bytes;
use mesh::Mesh;
use rhizome_identity::{
    AgentKey, Denied, Domain, Hash, MeshId, SpaceId, epoch::random_nonce, seal, seal_body,
};
use rhizome_memory::{
    DocId, Event, Fragment, FragmentError, FragmentId, Header, Hlc, Kind, MAX_HELD_PER_AUTHOR,
    MAX_HLC_LEAD_MS, MAX_INLINE_BODY, MAX_WIRE, Missing, RejectReason, Replica, ReplicaConfig,
    Verdict, WhyState,
};

const DOMAIN: Domain = Domain("rhizome/fragment/1");

struct World {
    mesh: Mesh,
    replica: Replica,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let mesh = Mesh::of(2);
        let dir = tempfile::tempdir().unwrap();
        let replica = mesh.open(0, dir.path());
        Self {
            mesh,
            replica,
            _dir: dir,
        }
    }

    /// Returns the header of node 1's agent's first fragment, to be spoilt.
    fn header(&self) -> Header {
        Header {
            version: 1,
            mesh: self.mesh.authority().mesh().unwrap(),
            space: self.mesh.space,
            author: self.mesh.nodes[1].agent.id(),
            node: self.mesh.nodes[1].key.id(),
            seq: 0,
            prev: None,
            auth_heads: self.mesh.authority().heads().to_vec(),
            deps: Vec::new(),
            hlc: Hlc::from_ms(1_700_000_000_000),
            kind: Kind::Fact,
            doc: DocId::from_bytes([9; 32]),
            fingerprint: Hash::of(b"runtime"),
            epoch: 1,
            nonce: random_nonce(),
            body_hash: Hash::of(b""),
            body_len: 0,
        }
    }

    fn sign(&self, header: Header, body: &[u8]) -> Fragment {
        self.sign_as(&self.mesh.nodes[1].agent, header, body)
    }

    fn sign_as(&self, key: &AgentKey, header: Header, body: &[u8]) -> Fragment {
        Fragment::sign(key, header, Bytes::copy_from_slice(body)).unwrap()
    }

    fn admit(&self, fragment: &Fragment) -> Verdict {
        self.admit_wire(fragment.encode())
    }

    fn admit_wire(&self, wire: Bytes) -> Verdict {
        let mut outcomes = self.replica.admit(self.mesh.nodes[1].key.id(), vec![wire]);
        assert_eq!(outcomes.len(), 1);
        outcomes.remove(0).verdict
    }

    /// Nothing of what was refused is left, and honest fragments go on being taken in.
    fn is_unharmed(&self) {
        let before = self.mesh.ids(&self.replica);
        let honest = self.mesh.publish(0, &self.replica, "still here");
        assert!(
            self.replica
                .memory(&self.mesh.space, &honest.doc)
                .unwrap()
                .is_some()
        );
        assert_eq!(self.mesh.ids(&self.replica), before + 1);
    }
}

#[test]
fn a_broken_signature_is_refused_alone() {
    let world = World::new();
    let good = world.sign(world.header(), b"body");
    let mut header = world.header();
    header.seq = 1;
    header.prev = Some(good.id);
    let bad = world.sign(header, b"body");
    let mut wire = bad.encode().to_vec();
    // The signature ends the envelope, in front of the body's five bytes.
    let last = wire.len() - 6;
    wire[last] ^= 1;
    let outcomes = world.replica.admit(
        world.mesh.nodes[1].key.id(),
        vec![good.encode(), wire.into()],
    );
    assert_eq!(outcomes[0].verdict, Verdict::Admit);
    assert_eq!(
        outcomes[1].verdict,
        Verdict::Reject(RejectReason::Signature)
    );
    assert_eq!(
        world.admit(&bad),
        Verdict::Admit,
        "the chain goes on with the true one"
    );
    world.is_unharmed();
}

#[test]
fn a_forged_author_is_refused() {
    let world = World::new();
    // Signed by one key, naming another as its author.
    let header = world.header();
    let forged = world.sign_as(&AgentKey::generate(), header, b"body");
    let forged_verdict = world.admit(&forged);
    assert!(
        matches!(
            forged_verdict,
            Verdict::Reject(RejectReason::Malformed(FragmentError::ForgedAuthor { .. }))
        ),
        "{forged_verdict:?}"
    );
    world.is_unharmed();
}

#[test]
fn an_agent_that_no_record_certifies_is_refused() {
    let world = World::new();
    let stranger = AgentKey::generate();
    let header = Header {
        author: stranger.id(),
        ..world.header()
    };
    let denied = world.admit(&world.sign_as(&stranger, header.clone(), b"body"));
    assert_eq!(
        denied,
        Verdict::Reject(RejectReason::Denied(Denied::UnknownAgent))
    );
    // If its node knew records that we do not, it may be right: it waits, within bounds.
    let unknown = rhizome_identity::RecordId::from_bytes([5; 32]);
    for n in 0..2000_u32 {
        let header = Header {
            auth_heads: vec![unknown],
            doc: DocId::from_bytes(*Hash::of(&n.to_be_bytes()).as_bytes()),
            ..header.clone()
        };
        if !(3..=1990).contains(&n) {
            let verdict = world.admit(&world.sign_as(&stranger, header, b"body"));
            assert_eq!(verdict, Verdict::Wait(Missing::Authority));
        }
    }
    world.is_unharmed();
}

#[test]
fn another_nodes_agent_is_refused_on_this_node() {
    let world = World::new();
    let header = Header {
        node: world.mesh.nodes[0].key.id(),
        ..world.header()
    };
    let verdict = world.admit(&world.sign(header, b"body"));
    assert!(
        matches!(verdict, Verdict::Reject(RejectReason::Denied(_))),
        "{verdict:?}"
    );
    world.is_unharmed();
}

#[test]
fn another_mesh_and_an_unknown_space_are_refused() {
    let world = World::new();
    let header = Header {
        mesh: MeshId::from_bytes([1; 32]),
        ..world.header()
    };
    let verdict = world.admit(&world.sign(header, b"body"));
    assert_eq!(verdict, Verdict::Reject(RejectReason::WrongMesh));
    let header = Header {
        space: SpaceId::from_bytes([1; 32]),
        ..world.header()
    };
    let verdict = world.admit(&world.sign(header, b"body"));
    assert_eq!(verdict, Verdict::Reject(RejectReason::UnknownSpace));
    world.is_unharmed();
}

#[test]
fn a_gap_waits_within_bounds_and_closes() {
    let world = World::new();
    let mut chain = Vec::new();
    let mut prev = None;
    for seq in 0..(MAX_HELD_PER_AUTHOR as u64 + 20) {
        let fragment = world.sign(
            Header {
                seq,
                prev,
                ..world.header()
            },
            b"body",
        );
        prev = Some(fragment.id);
        chain.push(fragment);
    }
    for fragment in chain[1..].iter().rev() {
        assert!(matches!(
            world.admit(fragment),
            Verdict::Wait(Missing::Prev(..))
        ));
    }
    let waiting = world.replica.why(&chain[1].id).unwrap().unwrap();
    assert!(matches!(waiting.state, WhyState::WaitingFor { .. }));
    assert_eq!(world.admit(&chain[0]), Verdict::Admit);
    // Those nearest to their turn were kept.
    assert_eq!(world.mesh.ids(&world.replica), MAX_HELD_PER_AUTHOR + 1);
    let rest: Vec<Bytes> = chain.iter().map(Fragment::encode).collect();
    world.replica.admit(world.mesh.nodes[1].key.id(), rest);
    assert_eq!(world.mesh.ids(&world.replica), chain.len());
    world.is_unharmed();
}

#[test]
fn a_fork_is_typed_and_kept_as_evidence() {
    let world = World::new();
    let first = world.sign(world.header(), b"one history");
    let second = world.sign(world.header(), b"another");
    assert_eq!(world.admit(&first), Verdict::Admit);
    assert_eq!(world.admit(&second), Verdict::Fork { other: first.id });
    // What builds on either is beyond the place where they part.
    let header = Header {
        seq: 1,
        prev: Some(second.id),
        ..world.header()
    };
    assert_eq!(
        world.admit(&world.sign(header, b"more")),
        Verdict::Reject(RejectReason::BeyondCut)
    );
    let forks = world.replica.forks();
    assert_eq!(
        (forks.len(), forks[0].ours, forks[0].theirs),
        (1, first.id, second.id)
    );
    // Evidence with a broken signature is none.
    let fresh = World::new();
    assert_eq!(
        fresh.admit(&fresh.sign(fresh.header(), b"one history")),
        Verdict::Admit
    );
    let mut wire = fresh.sign(fresh.header(), b"another").encode().to_vec();
    let last = wire.len() - 10;
    wire[last] ^= 1;
    assert_eq!(
        fresh.admit_wire(wire.into()),
        Verdict::Reject(RejectReason::Signature)
    );
    assert!(fresh.replica.forks().is_empty());
    // It survives a restart, with and without the index.
    for file in ["nothing", "index.redb"] {
        let dir = world._dir.path();
        let copy = tempfile::tempdir().unwrap();
        fs::create_dir(copy.path().join("segments")).unwrap();
        let segment = "segments/00000001.seg";
        fs::copy(dir.join(segment), copy.path().join(segment)).unwrap();
        let _ = fs::remove_file(copy.path().join(file));
        let key = world.mesh.nodes[0].key.clone();
        let replica = Replica::open(copy.path(), key, ReplicaConfig::default()).unwrap();
        assert_eq!(replica.forks(), forks);
    }
    world.is_unharmed();
}

#[test]
fn sizes_and_body_hashes_are_checked_before_anything_else() {
    let world = World::new();
    let too_large = world.admit_wire(vec![0; MAX_WIRE + 1].into());
    let limit = FragmentError::TooLarge {
        size: MAX_WIRE + 1,
        limit: MAX_WIRE,
    };
    assert_eq!(too_large, Verdict::Reject(RejectReason::Malformed(limit)));

    let fragment = world.sign(world.header(), b"body");
    let swapped = Fragment {
        body: Some(Bytes::from_static(b"evil")),
        ..fragment.clone()
    };
    let mismatch = FragmentError::BodyMismatch { id: fragment.id };
    assert_eq!(
        world.admit(&swapped),
        Verdict::Reject(RejectReason::Malformed(mismatch))
    );
    let missing = Fragment {
        body: None,
        ..fragment
    };
    assert!(matches!(
        world.admit(&missing),
        Verdict::Reject(RejectReason::Malformed(_))
    ));

    // A long body must not travel inside, a short one must.
    let long = world.sign(world.header(), &vec![1; MAX_INLINE_BODY + 1]);
    let inline = Fragment {
        body: Some(vec![1; MAX_INLINE_BODY + 1].into()),
        ..long
    };
    assert!(matches!(
        world.admit(&inline),
        Verdict::Reject(RejectReason::Malformed(_))
    ));

    // A header that claims more than a body may have.
    let header = Header {
        body_len: u32::MAX,
        ..world.header()
    };
    let envelope = seal(
        world.mesh.nodes[1].agent.as_ref(),
        DOMAIN,
        &header.to_bytes(),
    );
    let claim = Fragment {
        id: FragmentId::from(Hash::of(&header.to_bytes())),
        header,
        envelope: envelope.into(),
        body: None,
        redaction: None,
    };
    assert!(matches!(
        world.admit(&claim),
        Verdict::Reject(RejectReason::Malformed(_))
    ));
    world.is_unharmed();
}

#[test]
fn other_spellings_of_a_fragment_are_refused() {
    let world = World::new();
    let wire = world.sign(world.header(), b"body").encode();
    for cut in 0..wire.len() {
        let verdict = world.admit_wire(wire.slice(..cut));
        assert!(
            matches!(verdict, Verdict::Reject(RejectReason::Malformed(_))),
            "cut at {cut}"
        );
    }
    let mut longer = wire.to_vec();
    longer.push(0);
    let verdict = world.admit_wire(longer.into());
    assert!(matches!(
        verdict,
        Verdict::Reject(RejectReason::Malformed(_))
    ));
    for byte in 0..wire.len() {
        let mut bytes = wire.to_vec();
        bytes[byte] ^= 1 << (byte % 8);
        let verdict = world.admit_wire(bytes.into());
        assert!(
            matches!(
                verdict,
                Verdict::Reject(_) | Verdict::Wait(Missing::Authority)
            ),
            "byte {byte}: {verdict:?}"
        );
    }
    // The header with a longer spelling of its first number, properly signed.
    let mut header = world.header().to_bytes();
    assert_eq!(header[1], 1);
    header.splice(1..2, [0x18, 1]);
    let envelope = seal(world.mesh.nodes[1].agent.as_ref(), DOMAIN, &header);
    let spelt = Fragment {
        id: FragmentId::from(Hash::of(&header)),
        header: world.header(),
        envelope: envelope.into(),
        body: Some(Bytes::new()),
        redaction: None,
    };
    let not_canonical = RejectReason::Malformed(FragmentError::NotCanonical);
    assert_eq!(world.admit(&spelt), Verdict::Reject(not_canonical));
    world.is_unharmed();
}

#[test]
fn a_body_that_does_not_decrypt_is_stored_served_and_explained() {
    let world = World::new();
    let mut events = world.replica.events();
    let noise = world.sign(world.header(), b"not encrypted at all");
    assert_eq!(world.admit(&noise), Verdict::Admit);
    assert!(matches!(
        events.try_recv(),
        Ok(Event::Stored { own: false, .. })
    ));
    world.replica.flush().unwrap();
    let why = world.replica.why(&noise.id).unwrap().unwrap();
    assert!(
        matches!(why.state, WhyState::Quarantined { .. }),
        "{:?}",
        why.state
    );
    assert_eq!(
        world.mesh.wires_of(&world.replica, &[noise.id]),
        [noise.encode()]
    );

    // A body of a later version, and one in an epoch whose key is not here.
    let header = Header {
        seq: 1,
        prev: Some(noise.id),
        ..world.header()
    };
    let sealed = seal_body(
        &world.mesh.space_key,
        &header.nonce,
        &header.aad(),
        &[2, 1, 1],
    );
    let later = world.sign(header, &sealed);
    assert_eq!(world.admit(&later), Verdict::Admit);
    let header = Header {
        seq: 2,
        prev: Some(later.id),
        epoch: 7,
        ..world.header()
    };
    let unreadable = world.sign(header, b"whatever");
    assert_eq!(world.admit(&unreadable), Verdict::Admit);
    world.replica.flush().unwrap();
    let state = |fragment: &Fragment| world.replica.why(&fragment.id).unwrap().unwrap().state;
    assert!(matches!(state(&later), WhyState::Quarantined { .. }));
    assert_eq!(state(&unreadable), WhyState::Unreadable { epoch: 7 });
    world.is_unharmed();
}

#[test]
fn a_clock_from_the_far_future_does_not_drag_ours_along() {
    let world = World::new();
    let header = Header {
        hlc: Hlc::from_u64(u64::MAX),
        ..world.header()
    };
    let verdict = world.admit(&world.sign(header, b"body"));
    assert!(matches!(verdict, Verdict::Admit | Verdict::Reject(_)));
    let published = world.mesh.publish(0, &world.replica, "now");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    assert!(u128::from(published.hlc.unix_ms()) <= now + u128::from(MAX_HLC_LEAD_MS));
    world.is_unharmed();
}
