//! What is redacted depends on what is here, not on the order in which it came.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use rhizome_identity::{Hash, issue, record::Cut};

use super::*;
use crate::{FRAGMENT_VERSION, Hlc};

#[expect(
    clippy::duplicate_mod,
    reason = "the tests of the replica have a mesh of their own as well"
)]
#[path = "../../tests/support/mesh.rs"]
mod mesh;

use mesh::Mesh;

/// Makes a fragment of node `by` at `seq` of its chain; what comes before it is made up.
fn fragment(
    mesh: &Mesh,
    by: usize,
    seq: u64,
    kind: Kind,
    doc: u8,
    deps: Vec<FragmentId>,
) -> Fragment {
    let author = &mesh.nodes[by];
    let authority = mesh.authority();
    let header = Header {
        version: FRAGMENT_VERSION,
        mesh: authority.mesh().unwrap(),
        space: mesh.space,
        author: author.agent.id(),
        node: author.key.id(),
        seq,
        prev: (seq > 0).then(|| FragmentId::from_bytes([9; 32])),
        auth_heads: authority.heads().to_vec(),
        deps,
        hlc: Hlc::default(),
        kind,
        doc: DocId::from_bytes([doc; 32]),
        fingerprint: Hash::of(b"runtime"),
        epoch: 1,
        nonce: [0; 24],
        body_hash: Hash::of(b""),
        body_len: 0,
    };
    Fragment::sign(&author.agent, header, Bytes::from_static(b"ciphertext")).unwrap()
}

/// Who redacts, at which place of its chain, which document, and which of the fragments.
#[derive(Debug, Clone)]
struct Said {
    by: usize,
    seq: u64,
    doc: u8,
    targets: Vec<usize>,
}

fn said() -> impl Strategy<Value = Said> {
    let targets = prop::collection::btree_set(0_usize..6, 0..4);
    (0_usize..3, 5_u64..9, 0_u8..2, targets).prop_map(|(by, seq, doc, targets)| Said {
        by,
        seq,
        doc,
        targets: targets.into_iter().collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_same_redactions_take_the_same_whatever_came_first_and_however_often(
        said in prop::collection::vec(said(), 1..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mesh = Mesh::of(3);
        let authority = mesh.authority();
        let admission = Admission::new();
        // Six fragments: of each node one in either document.
        let targets: Vec<Fragment> = (0..6_u8)
            .map(|n| fragment(&mesh, usize::from(n) % 3, u64::from(n) / 3, Kind::Fact, n / 3, Vec::new()))
            .collect();
        let notices: Vec<Notice> = said
            .iter()
            .map(|said| {
                let deps = said.targets.iter().map(|at| targets[*at].id).collect();
                let fragment = fragment(&mesh, said.by, said.seq, Kind::Redaction, said.doc, deps);
                Notice::of(&fragment).unwrap()
            })
            .collect();
        let taken = |redactions: &Redactions| -> Vec<Option<FragmentId>> {
            let by = |target: &Fragment| redactions.of(&target.id, &target.header);
            targets.iter().map(|target| by(target).map(|notice| notice.id)).collect()
        };
        let mut once = Redactions::default();
        for notice in &notices {
            once.note(notice.clone());
        }
        once.reassess(&mesh.log, &authority, &admission);
        let mut anyhow = Redactions::default();
        let mut concerned = BTreeSet::new();
        for at in &order {
            anyhow.note(at.get(&notices).clone());
            concerned.extend(anyhow.reassess(&mesh.log, &authority, &admission));
        }
        for notice in notices.iter().rev() {
            anyhow.note(notice.clone());
            concerned.extend(anyhow.reassess(&mesh.log, &authority, &admission));
        }
        prop_assert_eq!(taken(&once), taken(&anyhow));
        for (at, (target, by)) in targets.iter().zip(taken(&once)).enumerate() {
            // Node 0 founded the mesh and administers its space.
            let takes = |said: &&Said| {
                said.targets.contains(&at)
                    && usize::from(said.doc) == at / 3
                    && (said.by == 0 || said.by == at % 3)
            };
            prop_assert_eq!(by.is_some(), said.iter().any(|said| takes(&said)));
            prop_assert!(by.is_none() || concerned.contains(&target.id), "who is to act on it hears of it");
        }
    }
}

#[test]
fn a_redaction_has_to_name_what_comes_without_a_body() {
    let mesh = Mesh::of(2);
    let target = fragment(&mesh, 1, 0, Kind::Fact, 1, Vec::new());
    let other = fragment(&mesh, 1, 1, Kind::Fact, 1, Vec::new());
    let redaction = fragment(&mesh, 1, 2, Kind::Redaction, 1, vec![target.id]);
    let read =
        |signed: &Fragment, of: &Fragment| Notice::read(&signed.envelope, &of.id, &of.header);
    assert!(read(&redaction, &target).unwrap().is_signed());
    assert!(read(&redaction, &other).is_err());
    assert!(read(&other, &target).is_err(), "no redaction");
    // Nor can one redaction be redacted by another.
    let second = fragment(&mesh, 1, 3, Kind::Redaction, 1, vec![redaction.id]);
    assert!(read(&second, &redaction).is_err());
    let bare = redaction.clone().without_body(second.envelope.clone());
    assert!(Fragment::decode(&bare.encode()).is_err());
}

#[test]
fn the_wire_form_without_a_body_is_read_back_and_canonical() {
    let mesh = Mesh::of(1);
    let target = fragment(&mesh, 0, 0, Kind::Fact, 1, Vec::new());
    let redaction = fragment(&mesh, 0, 1, Kind::Redaction, 1, vec![target.id]);
    let bare = target.clone().without_body(redaction.envelope.clone());
    let wire = bare.encode();
    assert_eq!(wire[0], 0x83, "three parts");
    assert_eq!(Fragment::decode(&wire).unwrap(), bare);
    assert_eq!(Fragment::decode(&wire).unwrap().id, target.id);
    for cut in 1..wire.len() {
        assert!(Fragment::decode(&wire.slice(..cut)).is_err(), "{cut} bytes");
    }
    // Without what redacts it, a missing body is a fault of whoever sends it.
    assert!(Fragment::decode(&target.stripped()).is_err());
    let mut record = target.stripped().to_vec();
    record.resize(target.encode().len(), 0);
    let read = Fragment::decode_stripped(&Bytes::from(record.clone())).unwrap();
    assert_eq!((read.id, read.body.is_none()), (target.id, true));
    record.push(1);
    assert!(Fragment::decode_stripped(&Bytes::from(record)).is_err());
}

#[test]
fn what_a_revocation_cuts_off_redacts_nothing_also_after_its_author_came_back() {
    let mut mesh = Mesh::of(2);
    let target = fragment(&mesh, 1, 0, Kind::Fact, 1, Vec::new());
    let early = fragment(&mesh, 1, 1, Kind::Redaction, 1, vec![target.id]);
    let late = fragment(&mesh, 1, 4, Kind::Redaction, 1, vec![target.id]);
    let cut = Cut {
        author: mesh.nodes[1].agent.id(),
        space: mesh.space,
        seq: 1,
        hash: early.id.into(),
    };
    let founder = mesh.nodes[0].key.clone();
    let subject = mesh.nodes[1].key.public();
    let records = issue::revoke(
        founder.secret(),
        &mesh.authority(),
        subject,
        vec![cut],
        "left",
        9,
    )
    .unwrap();
    for record in records {
        mesh.log.insert(record).unwrap();
    }
    let by = |redaction: &Fragment| {
        let mut redactions = Redactions::default();
        redactions.note(Notice::of(redaction).unwrap());
        redactions.reassess(&mesh.log, &mesh.authority(), &Admission::new());
        redactions.of(&target.id, &target.header).is_some()
    };
    assert!(by(&early), "what was said before stays said");
    assert!(!by(&late));
}
