//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `fuzz/` and `tests/fuzz.rs` both
//! drive them (`docs/howto/fuzz.md`); nothing else should.

use crate::{
    AgentKey, Domain, Hash, Invite, InviteEndpoint, MeshId, NodeId, NodeInfo, NodeKey, Role,
    RootKey, SignedRecord, cbor, envelope, issue,
    keyfile::{self, KeyKind},
    keys::SecretKey,
    record, resolve,
};

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("envelope", envelope, envelopes),
    ("cbor", canonical, payloads),
    ("record", record, records),
    ("record_payload", record_payload, payloads),
    ("invite", invite, invites),
    ("node_info", node_info, node_infos),
    ("key_file", key_file, key_files),
];

const DOMAIN: Domain = Domain("rhizome/fuzz/1");
const MAX: usize = 64 * 1024;

/// What is parsed as an envelope has one spelling, and its signature can be asked after.
pub fn envelope(bytes: &[u8]) {
    let Ok(sealed) = envelope::parse(bytes, MAX) else {
        return;
    };
    let mut again = envelope::seal(&SecretKey::from_seed([1; 32]), DOMAIN, sealed.payload);
    let end = again.len() - 64;
    again[10..42].copy_from_slice(sealed.signer.as_bytes());
    again[end..].copy_from_slice(&sealed.signature);
    assert_eq!(again, bytes, "a second spelling of an envelope");
    let alone = sealed.verify(DOMAIN).is_ok();
    let batch = envelope::verify_batch(&[(sealed, DOMAIN)]).is_ok();
    assert_eq!(alone, batch, "batch and single verification disagree");
}

/// The check of canonical form ends, whatever the bytes claim.
pub fn canonical(bytes: &[u8]) {
    let _ = cbor::check_canonical(bytes);
}

/// A record that parses is spelled as it came.
pub fn record(bytes: &[u8]) {
    if let Ok(record) = SignedRecord::parse(bytes) {
        assert_eq!(record.bytes(), bytes);
        let _ = record.mesh();
    }
}

/// The inside of a record, without the signature that a fuzzer cannot make.
pub fn record_payload(bytes: &[u8]) {
    let Ok((record, understood)) = record::codec::decode(bytes) else {
        return;
    };
    let again = record::codec::encode(&record);
    if understood {
        assert_eq!(again, bytes, "a second spelling of a record");
    } else {
        let (kept, _) = record::codec::decode(&again).expect("what we write we can read");
        assert_eq!(kept, record);
    }
}

/// An invite that parses says the same when it is written again.
pub fn invite(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Invite>() {
        Ok(invite) => {
            let again: Invite = invite.to_string().parse().expect("our own spelling");
            assert_eq!(again, invite);
            let _ = invite.check_expiry(0);
        }
        Err(error) => assert!(!error.hint().is_empty()),
    }
}

/// An address-book entry is its node's own.
pub fn node_info(bytes: &[u8]) {
    if let Ok(info) = NodeInfo::parse(bytes) {
        let sealed = envelope::parse(bytes, MAX).expect("it was just parsed");
        assert_eq!(sealed.signer.as_bytes(), info.node.as_bytes());
    }
}

/// A key file is read back only as it was written.
pub fn key_file(bytes: &[u8]) {
    for kind in [KeyKind::Node, KeyKind::Agent, KeyKind::Root] {
        if let Some(key) = keyfile::read(bytes, kind) {
            assert_eq!(keyfile::spell(kind, &key).as_bytes(), bytes);
        }
    }
}

fn log() -> Vec<SignedRecord> {
    let root = RootKey::from_seed([1; 32]);
    let next = RootKey::from_seed([2; 32]);
    let node = NodeKey::from_seed([3; 32]);
    let agent = AgentKey::from_seed([4; 32]);
    let mut log = issue::found(&root, &next.public(), &node.id(), "laptop", "lab", 1_000)
        .expect("a founding works");
    let resolved =
        |log: &[SignedRecord]| resolve(&log.iter().map(|one| (one.id(), one.clone())).collect());
    let authority = resolved(&log);
    let (space, _) =
        issue::create_space(&node, &authority, "findings", 2_000).expect("the founder may");
    log.push(space);
    let authority = resolved(&log);
    let certificate = issue::certify_agent(&node, &authority, &agent, "mender", None, None, 3_000)
        .expect("the founder may");
    log.push(certificate);
    log
}

fn envelopes() -> Vec<Vec<u8>> {
    [0, 23, 24, 300]
        .map(|length| envelope::seal(&SecretKey::from_seed([9; 32]), DOMAIN, &vec![7; length]))
        .to_vec()
}

fn records() -> Vec<Vec<u8>> {
    log().iter().map(|record| record.bytes().to_vec()).collect()
}

fn payloads() -> Vec<Vec<u8>> {
    log()
        .iter()
        .map(|record| record::codec::encode(record.record()))
        .collect()
}

fn invites() -> Vec<Vec<u8>> {
    let invite = Invite {
        mesh: MeshId::from_bytes([7; 32]),
        seed: zeroize::Zeroizing::new([9; 16]),
        role: Role::Writer,
        uses: 2,
        not_after_ms: 1_796_083_199_000,
        endpoints: vec![InviteEndpoint {
            node: NodeId::from_bytes([3; 32]),
            addrs: vec![
                "10.77.1.1:4570".parse().expect("an address"),
                "[::1]:4580".parse().expect("an address"),
            ],
            relays: vec!["http://10.77.1.1:4583/".to_owned()],
        }],
    };
    vec![invite.to_string().into_bytes()]
}

fn node_infos() -> Vec<Vec<u8>> {
    let key = NodeKey::from_seed([3; 32]);
    let info = NodeInfo {
        node: key.id(),
        name: "cloud".to_owned(),
        addrs: vec!["10.0.0.2:4580".parse().expect("an address")],
        seq_ms: 42,
        version: "0.1.0".to_owned(),
        relay: None,
        via: Vec::new(),
    };
    let relay = NodeInfo {
        relay: Some("http://10.0.0.2:4583/".to_owned()),
        via: vec!["https://relay.example.org/".to_owned()],
        ..info.clone()
    };
    [info, relay]
        .map(|info| info.sign(&key).expect("a short entry"))
        .to_vec()
}

fn key_files() -> Vec<Vec<u8>> {
    // A made-up seed: nothing is signed with it.
    let key = SecretKey::from_seed(*Hash::of(b"fuzz").as_bytes());
    [KeyKind::Node, KeyKind::Agent, KeyKind::Root]
        .map(|kind| keyfile::spell(kind, &key).as_bytes().to_vec())
        .to_vec()
}
