use proptest::prelude::*;

use super::*;
use crate::{
    epoch::SpaceKey,
    invite::{InviteEndpoint, RedeemError, check_redeem},
    issue::{self, InviteParams, IssueError},
    keys::{AgentKey, NodeKey, RootKey, SecretKey},
    record::{
        AgentCert, Amend, Cut, FRAGMENT_DOMAIN, ForkProof, Grant, RecordBody, RecordError, Revoke,
        RotateRoot, SignedRecord, SpaceGrant, Verbs,
    },
};

mod ancestry;
mod chains;
mod epochs;
mod model;
mod roots;

const NOW: u64 = 1_000_000;

/// A mesh whose log is at hand: a root, a founder, whoever joins.
struct Mesh {
    root: RootKey,
    founder: NodeKey,
    log: RecordLog,
    space: SpaceId,
    space_key: SpaceKey,
}

impl Mesh {
    fn new() -> Self {
        let (root, founder) = (RootKey::from_seed([1; 32]), NodeKey::from_seed([2; 32]));
        let next = SecretKey::from_seed([3; 32]).public();
        let mut log = RecordLog::default();
        for record in issue::found(&root, &next, &founder.id(), "laptop", "lab", NOW).unwrap() {
            log.insert(record).unwrap();
        }
        let (record, space_key) =
            issue::create_space(&founder, &log.resolve(), "findings", NOW).unwrap();
        let space = SpaceId::from_bytes(*record.id().as_bytes());
        log.insert(record).unwrap();
        Self {
            root,
            founder,
            log,
            space,
            space_key,
        }
    }

    fn authority(&self) -> Authority {
        self.log.resolve()
    }

    fn add(&mut self, record: SignedRecord) -> RecordId {
        let id = record.id();
        assert!(matches!(
            self.log.insert(record).unwrap(),
            Inserted::New { .. }
        ));
        id
    }

    fn invite(&mut self, uses: u16) -> InviteId {
        let params = InviteParams {
            role: Role::Writer,
            spaces: vec![self.space],
            uses,
            not_after_ms: NOW + 1000,
            approve: false,
            endpoints: vec![InviteEndpoint {
                node: self.founder.id(),
                addrs: vec![],
                relays: vec![],
            }],
        };
        let (record, invite) =
            issue::open_invite(&self.founder, &self.authority(), params, NOW).unwrap();
        self.add(record);
        invite.id()
    }

    fn join(&mut self, node: &NodeKey, invite: Option<InviteId>) -> RecordId {
        let key = self.space_key.clone();
        let record = issue::grant(
            &self.founder,
            &self.authority(),
            node.id(),
            "node",
            Role::Writer,
            &[self.space],
            &|_, epoch| (epoch == 1).then(|| key.clone()),
            invite,
            NOW,
        );
        self.add(record.unwrap())
    }

    fn sign(&self, key: &SecretKey, parents: Vec<RecordId>, body: RecordBody) -> SignedRecord {
        let mesh = self.authority().mesh().unwrap();
        let record = crate::record::Record {
            v: 1,
            mesh,
            parents,
            at_ms: NOW,
            body,
        };
        SignedRecord::sign(key, record).unwrap()
    }

    fn certify(&mut self, node: &NodeKey, agent: &AgentKey) -> RecordId {
        let cert = issue::certify_agent(node, &self.authority(), agent, "agent", None, None, NOW);
        self.add(cert.unwrap())
    }

    fn void(&self, id: &RecordId) -> Option<VoidReason> {
        self.authority()
            .void()
            .iter()
            .find(|(void, _)| void == id)
            .map(|(_, reason)| *reason)
    }
}

fn node(seed: u8) -> NodeKey {
    NodeKey::from_seed([seed; 32])
}

fn grant(to: &NodeKey, role: Role, space: Option<SpaceId>) -> RecordBody {
    let spaces = space.map(|space| SpaceGrant {
        space,
        role,
        keys: vec![],
    });
    RecordBody::Grant(Grant {
        node: to.id(),
        node_name: "x".into(),
        role,
        spaces: spaces.into_iter().collect(),
        invite: None,
    })
}

fn revoke(subject: PublicKey, cuts: Vec<Cut>) -> RecordBody {
    RecordBody::Revoke(Revoke {
        subject,
        cuts,
        reason: "lost".into(),
    })
}

fn amend(revoke: RecordId, cuts: Vec<Cut>) -> RecordBody {
    RecordBody::Amend(Amend { revoke, cuts })
}

fn rotate(root: &RootKey, next: &SecretKey) -> RecordBody {
    RecordBody::RotateRoot(RotateRoot {
        root: root.public(),
        next_root_hash: issue::next_root_hash(&next.public()),
    })
}

/// The envelope of a fragment, as far as anybody looks at it here; `says` makes it one of its own.
fn fragment(
    mesh: MeshId,
    agent: &AgentKey,
    space: SpaceId,
    seq: u64,
    prev: Option<Hash>,
    says: u32,
) -> (Vec<u8>, Hash) {
    let mut payload = Vec::new();
    let mut e = minicbor::Encoder::new(&mut payload);
    e.array(8).unwrap().u8(1).unwrap();
    e.encode(mesh).unwrap().encode(space).unwrap();
    e.encode(agent.id()).unwrap();
    e.encode(NodeId::from_bytes([0; 32])).unwrap();
    e.u64(seq).unwrap();
    match prev {
        Some(prev) => e.encode(prev).unwrap(),
        None => e.null().unwrap(),
    };
    e.u32(says).unwrap();
    let envelope = crate::envelope::seal(agent.secret(), FRAGMENT_DOMAIN, &payload);
    (envelope, Hash::of(&payload))
}

/// A proof that `agent` said two things at `seq`, and their ids, the lower first.
fn forked(mesh: &Mesh, agent: &AgentKey, seq: u64, says: [u32; 2]) -> (ForkProof, [Hash; 2]) {
    let mesh_id = mesh.authority().mesh().unwrap();
    let prev = (seq > 0).then(|| Hash::of(&seq.to_be_bytes()));
    let [a, b] = says.map(|says| fragment(mesh_id, agent, mesh.space, seq, prev, says));
    let proof = ForkProof { a: a.0, b: b.0 };
    (proof, [a.1.min(b.1), a.1.max(b.1)])
}

#[test]
fn a_founder_is_admin_and_reads_its_space() {
    let mesh = Mesh::new();
    let authority = mesh.authority();
    assert_eq!(authority.name(), "lab");
    assert_eq!(
        authority.member(&mesh.founder.id()).unwrap().role,
        Role::Admin
    );
    assert_eq!(
        authority.role_in(&mesh.founder.id(), &mesh.space),
        Some(Role::Admin)
    );
    assert_eq!(authority.space_named("findings").unwrap().id, mesh.space);
    assert_eq!(
        authority.space_named("x"),
        Err(SpaceLookupError::Unknown("x".into()))
    );
    let (space, epoch, wrapped) = authority
        .wrapped_keys_for(&mesh.founder.id())
        .next()
        .unwrap();
    assert_eq!((space, epoch), (mesh.space, 1));
    let key = authority
        .unwrap_space_key(&mesh.founder, &space, wrapped)
        .unwrap();
    assert_eq!(key.commitment(), mesh.space_key.commitment());
    assert!(authority.void().is_empty());
}

#[test]
fn a_newcomer_by_invite_reads_and_its_agent_writes() {
    let mut mesh = Mesh::new();
    let invite = mesh.invite(1);
    let joiner = node(9);
    assert_eq!(
        check_redeem(&mesh.authority(), &invite, NOW).unwrap().used,
        0
    );
    let granted = mesh.join(&joiner, Some(invite));
    let agent = AgentKey::from_seed([10; 32]);
    let cert = mesh.certify(&joiner, &agent);
    let authority = mesh.authority();
    let (space, _, wrapped) = authority.wrapped_keys_for(&joiner.id()).next().unwrap();
    authority
        .unwrap_space_key(&joiner, &space, wrapped)
        .unwrap();
    let proof = authority
        .may_write(&agent.id(), &joiner.id(), &mesh.space, NOW)
        .unwrap();
    assert_eq!(proof.chain[1..], [granted, cert]);
    let elsewhere = authority.may_write(&agent.id(), &mesh.founder.id(), &mesh.space, NOW);
    assert_eq!(elsewhere.unwrap_err(), Denied::NotCertifiedBy);
    let stranger = AgentKey::from_seed([11; 32]).id();
    let denied = authority.may_write(&stranger, &joiner.id(), &mesh.space, NOW);
    assert_eq!(denied.unwrap_err(), Denied::UnknownAgent);
}

#[test]
fn an_invite_ends_by_use_by_time_and_by_hand() {
    let mut mesh = Mesh::new();
    let invite = mesh.invite(1);
    let expired = check_redeem(&mesh.authority(), &invite, NOW + 1001).unwrap_err();
    assert_eq!(
        expired,
        RedeemError::Expired {
            not_after_ms: NOW + 1000
        }
    );
    mesh.join(&node(9), Some(invite));
    let spent = check_redeem(&mesh.authority(), &invite, NOW).unwrap_err();
    assert_eq!(spent, RedeemError::Spent { uses: 1 });
    let second = mesh.join(&node(10), Some(invite));
    assert_eq!(mesh.void(&second), Some(VoidReason::OverLimit));
    assert!(!mesh.authority().is_member(&node(10).id()));
    let other = mesh.invite(1);
    let close = issue::close_invite(&mesh.founder, &mesh.authority(), other, NOW).unwrap();
    mesh.add(close);
    assert_eq!(
        check_redeem(&mesh.authority(), &other, NOW).unwrap_err(),
        RedeemError::Closed
    );
    let unknown = InviteId::from_bytes([5; 32]);
    assert_eq!(
        check_redeem(&mesh.authority(), &unknown, NOW).unwrap_err(),
        RedeemError::Unknown
    );
}

#[test]
fn only_the_root_makes_admins_and_only_admins_let_in() {
    let mut mesh = Mesh::new();
    let (writer, friend) = (node(9), node(10));
    mesh.join(&writer, None);
    let heads = mesh.log.heads();
    let by_writer = mesh.sign(
        writer.secret(),
        heads.clone(),
        grant(&friend, Role::Reader, None),
    );
    let by_writer = mesh.add(by_writer);
    assert_eq!(mesh.void(&by_writer), Some(VoidReason::NotAllowed));
    let admin = mesh.sign(
        mesh.founder.secret(),
        heads.clone(),
        grant(&friend, Role::Admin, None),
    );
    let admin = mesh.add(admin);
    assert_eq!(mesh.void(&admin), Some(VoidReason::NotAllowed));
    let by_root = mesh.sign(
        mesh.root.secret(),
        heads.clone(),
        grant(&friend, Role::Admin, None),
    );
    mesh.add(by_root);
    assert_eq!(
        mesh.authority().member(&friend.id()).unwrap().role,
        Role::Admin
    );
    let owner = mesh.sign(mesh.root.secret(), heads, grant(&friend, Role::Owner, None));
    let owner = mesh.add(owner);
    assert_eq!(mesh.void(&owner), Some(VoidReason::NotAllowed));
    let refused = issue::create_space(&writer, &mesh.authority(), "mine", NOW);
    assert!(matches!(refused, Err(IssueError::NotAllowed { .. })));
}

#[test]
fn a_stranger_cannot_even_fill_the_log() {
    let mut mesh = Mesh::new();
    let stranger = node(66);
    let heads = mesh.log.heads();
    let record = mesh.sign(
        stranger.secret(),
        heads,
        grant(&stranger, Role::Admin, None),
    );
    assert!(matches!(
        mesh.log.insert(record),
        Err(RecordError::Malformed(_))
    ));
    let next = SecretKey::from_seed([3; 32]).public();
    let other_root = RootKey::from_seed([77; 32]);
    for record in issue::found(&other_root, &next, &stranger.id(), "x", "other", NOW).unwrap() {
        assert!(matches!(
            mesh.log.insert(record),
            Err(RecordError::WrongMesh { .. })
        ));
    }
}

#[test]
fn certificates_narrow_and_end_after_four() {
    let mut mesh = Mesh::new();
    let issuer = mesh.founder.clone();
    let agents: Vec<AgentKey> = (20..26)
        .map(|seed| AgentKey::from_seed([seed; 32]))
        .collect();
    let mesh_id = mesh.authority().mesh().unwrap();
    let cert = |agent: &AgentKey, issuer: &SecretKey, spaces, verbs| {
        let possession = agent.sign(&issue::possession_message(&mesh_id, &issuer.public()));
        let name = "a".into();
        RecordBody::AgentCert(AgentCert {
            agent: agent.id(),
            name,
            spaces,
            verbs,
            not_after_ms: Some(NOW + 5),
            possession,
        })
    };
    let only = Some(vec![mesh.space]);
    let mut signer = issuer.secret().clone();
    for (depth, agent) in agents.iter().enumerate() {
        let body = cert(agent, &signer, only.clone(), Verbs::ALL);
        let record = mesh.sign(&signer, mesh.log.heads(), body);
        let id = mesh.add(record);
        match depth {
            0..4 => assert_eq!(mesh.void(&id), None, "{depth}"),
            4 => assert_eq!(mesh.void(&id), Some(VoidReason::TooDeep)),
            _ => assert_eq!(mesh.void(&id), Some(VoidReason::NotAllowed)),
        }
        signer = agent.secret().clone();
    }
    let wide = AgentKey::from_seed([40; 32]);
    let body = cert(&wide, agents[0].secret(), None, Verbs::ALL);
    let record = mesh.sign(agents[0].secret(), mesh.log.heads(), body);
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::TooWide));
    let authority = mesh.authority();
    assert_eq!(authority.agent(&agents[3].id()).unwrap().chain.len(), 4);
    let founder = mesh.founder.id();
    assert!(
        authority
            .may_write(&agents[3].id(), &founder, &mesh.space, NOW + 5)
            .is_ok()
    );
    let late = authority.may_write(&agents[3].id(), &founder, &mesh.space, NOW + 6);
    assert_eq!(late.unwrap_err(), Denied::Expired);
}

#[test]
fn nobody_certifies_a_key_they_lack() {
    let mut mesh = Mesh::new();
    let joiner = node(9);
    mesh.join(&joiner, None);
    let agent = AgentKey::from_seed([20; 32]);
    let founder = mesh.founder.clone();
    let honest = mesh.certify(&founder, &agent);
    // The possession of the honest certificate, claimed by another issuer.
    let RecordBody::AgentCert(stolen) = mesh.log.get(&honest).unwrap().record().body.clone() else {
        panic!("a certificate")
    };
    let record = mesh.sign(
        joiner.secret(),
        mesh.log.heads(),
        RecordBody::AgentCert(stolen),
    );
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::NoPossession));
}

#[test]
fn a_revocation_beats_what_its_subject_did_unseen() {
    let mut mesh = Mesh::new();
    let admin = node(9);
    let heads = mesh.log.heads();
    let made = mesh.sign(mesh.root.secret(), heads, grant(&admin, Role::Admin, None));
    mesh.add(made);
    let seen = mesh.sign(
        admin.secret(),
        mesh.log.heads(),
        grant(&node(10), Role::Reader, None),
    );
    mesh.add(seen);
    let before = mesh.log.heads();
    let cut = Cut {
        author: AgentId::from_bytes([1; 32]),
        space: mesh.space,
        seq: 4,
        hash: Hash::of(b"four"),
    };
    let revoked = mesh.sign(
        mesh.root.secret(),
        before.clone(),
        revoke(admin.public(), vec![cut.clone()]),
    );
    // Made at the same time, so not seen by the root: neither the guest nor the counter-strike counts.
    let unseen = mesh.sign(
        admin.secret(),
        before.clone(),
        grant(&node(11), Role::Reader, None),
    );
    let strike = mesh.sign(
        admin.secret(),
        before.clone(),
        revoke(node(10).public(), vec![]),
    );
    let (unseen, strike) = (mesh.add(unseen), mesh.add(strike));
    mesh.add(revoked);
    let authority = mesh.authority();
    assert!(authority.is_member(&node(10).id()));
    assert!(!authority.is_member(&node(11).id()) && !authority.is_member(&admin.id()));
    assert_eq!(mesh.void(&unseen), Some(VoidReason::Revoked));
    assert_eq!(mesh.void(&strike), Some(VoidReason::Revoked));
    assert_eq!(authority.cut(&cut.author, &mesh.space), Some((4, cut.hash)));
    let denied = authority.may_write(&cut.author, &admin.id(), &mesh.space, NOW);
    assert_eq!(denied.unwrap_err(), Denied::Revoked);
    // A concurrent renewal does not undo it; one made in knowledge of it does.
    let blind = mesh.sign(
        mesh.root.secret(),
        before,
        grant(&admin, Role::Reader, None),
    );
    let blind = mesh.add(blind);
    assert_eq!(mesh.void(&blind), Some(VoidReason::Revoked));
    let again = mesh.sign(
        mesh.root.secret(),
        mesh.log.heads(),
        grant(&admin, Role::Reader, None),
    );
    mesh.add(again);
    assert_eq!(
        mesh.authority().member(&admin.id()).unwrap().role,
        Role::Reader
    );
}

#[test]
fn records_out_of_order_wait_for_their_parents() {
    let mut mesh = Mesh::new();
    mesh.join(&node(9), None);
    let mut records: Vec<_> = mesh
        .log
        .ids()
        .map(|id| mesh.log.get(id).unwrap().clone())
        .collect();
    // Deepest first: the one without descendants, then what it names.
    records.sort_by_key(|record| {
        let body = &record.record().body;
        std::cmp::Reverse(
            ["genesis", "grant", "space-create"]
                .iter()
                .position(|kind| *kind == body.kind()),
        )
    });
    let mut log = RecordLog::default();
    let genesis = records.pop().unwrap();
    for record in records {
        assert_eq!(log.insert(record).unwrap(), Inserted::Waiting);
    }
    assert!(!log.missing_parents().is_empty());
    let Inserted::New { freed } = log.insert(genesis).unwrap() else {
        panic!("new")
    };
    assert_eq!(freed.len(), 3);
    assert_eq!(log.heads(), mesh.log.heads());
    assert!(log.missing_parents().is_empty());
}

/// A log with a bit of everything, its branches concurrent.
fn busy() -> Mesh {
    let mut mesh = Mesh::new();
    let admin = node(9);
    let base = mesh.log.heads();
    for seed in 10..14 {
        let body = grant(&node(seed), Role::Writer, Some(mesh.space));
        let record = mesh.sign(mesh.founder.secret(), base.clone(), body);
        mesh.add(record);
    }
    let made = mesh.sign(
        mesh.root.secret(),
        base.clone(),
        grant(&admin, Role::Admin, None),
    );
    mesh.add(made);
    let heads = mesh.log.heads();
    let founder = mesh.founder.secret().clone();
    for (key, body) in [
        (admin.secret(), revoke(node(10).public(), vec![])),
        (&founder, grant(&node(10), Role::Reader, Some(mesh.space))),
        (admin.secret(), grant(&node(15), Role::Relay, None)),
        (mesh.root.clone().secret(), revoke(admin.public(), vec![])),
        (node(11).secret(), grant(&node(16), Role::Relay, None)),
    ] {
        let record = mesh.sign(key, heads.clone(), body);
        mesh.add(record);
    }
    let agent = AgentKey::from_seed([30; 32]);
    mesh.certify(&node(12), &agent);
    mesh
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn resolution_ignores_order_and_repetition(order in proptest::collection::vec(any::<prop::sample::Index>(), 40)) {
        let mesh = busy();
        let all: Vec<_> = mesh.log.ids().map(|id| mesh.log.get(id).unwrap().clone()).collect();
        let mut log = RecordLog::default();
        for index in order {
            let _ = log.insert(all[index.index(all.len())].clone());
        }
        for record in &all {
            let _ = log.insert(record.clone());
            let _ = log.insert(record.clone());
        }
        prop_assert_eq!(log.len(), all.len());
        let (one, two) = (mesh.authority(), log.resolve());
        prop_assert_eq!(&one, &two);
        let void: Vec<_> = one.void().iter().map(|(id, _)| *id).collect();
        prop_assert!(one.heads().iter().all(|head| !void.contains(head)));
    }
}
