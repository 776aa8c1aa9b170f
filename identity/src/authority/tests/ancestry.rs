//! What a record's ancestors let it do, whatever its maker pretends about when it was made.

use super::*;
use crate::record::{InviteOpen, KeyEpoch, Record, SpaceCreate};

fn genesis(mesh: &Mesh) -> Vec<RecordId> {
    vec![RecordId::from(mesh.authority().mesh().unwrap())]
}

#[test]
fn a_signer_whose_ancestors_do_not_let_it_in_decides_nothing() {
    let mut mesh = Mesh::new();
    let old = genesis(&mesh);
    // The founder is an admin, but not as far as the parents of this record go.
    let body = grant(&node(9), Role::Reader, None);
    let record = mesh.sign(mesh.founder.secret(), old, body);
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::NotAllowed));
    assert!(
        !mesh.authority().heads().contains(&id),
        "nothing should rest on it"
    );
    let agent = AgentKey::from_seed([30; 32]);
    let possession = agent.sign(&issue::possession_message(
        &mesh.authority().mesh().unwrap(),
        &mesh.founder.public(),
    ));
    let body = RecordBody::AgentCert(AgentCert {
        agent: agent.id(),
        name: "a".into(),
        spaces: None,
        verbs: Verbs::ALL,
        not_after_ms: None,
        possession,
    });
    let record = mesh.sign(mesh.founder.secret(), genesis(&mesh), body);
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::NotAllowed));
    assert!(mesh.authority().agent(&agent.id()).is_none());
}

#[test]
fn an_admin_cannot_lower_an_admin_by_dating_back() {
    let mut mesh = Mesh::new();
    let admin = node(9);
    let before = mesh.log.heads();
    mesh.join(&admin, None);
    let record = mesh.sign(
        mesh.root.secret(),
        mesh.log.heads(),
        grant(&admin, Role::Admin, Some(mesh.space)),
    );
    mesh.add(record);
    for heads in [before, mesh.log.heads()] {
        let body = grant(&admin, Role::Relay, Some(mesh.space));
        let record = mesh.sign(mesh.founder.secret(), heads.clone(), body);
        mesh.add(record);
        let record = mesh.sign(mesh.founder.secret(), heads, revoke(admin.public(), vec![]));
        mesh.add(record);
        let authority = mesh.authority();
        assert_eq!(authority.member(&admin.id()).unwrap().role, Role::Admin);
        assert_eq!(
            authority.role_in(&admin.id(), &mesh.space),
            Some(Role::Admin)
        );
    }
    // The root can.
    let body = grant(&admin, Role::Reader, Some(mesh.space));
    let record = mesh.sign(mesh.root.secret(), mesh.log.heads(), body);
    mesh.add(record);
    assert_eq!(
        mesh.authority().member(&admin.id()).unwrap().role,
        Role::Reader
    );
}

#[test]
fn of_concurrent_grants_the_lower_role_counts_until_a_later_one() {
    let mut mesh = Mesh::new();
    let heads = mesh.log.heads();
    for role in [Role::Reader, Role::Writer] {
        let body = grant(&node(9), role, Some(mesh.space));
        let record = mesh.sign(mesh.founder.secret(), heads.clone(), body);
        mesh.add(record);
    }
    assert_eq!(
        mesh.authority().member(&node(9).id()).unwrap().role,
        Role::Reader
    );
    assert_eq!(
        mesh.authority().role_in(&node(9).id(), &mesh.space),
        Some(Role::Reader)
    );
    mesh.join(&node(9), None);
    assert_eq!(
        mesh.authority().role_in(&node(9).id(), &mesh.space),
        Some(Role::Writer)
    );
}

#[test]
fn what_a_revoked_agent_certified_falls_with_it_and_its_chain_is_cut() {
    let mut mesh = Mesh::new();
    let joiner = node(9);
    mesh.join(&joiner, None);
    let (upper, lower) = (AgentKey::from_seed([20; 32]), AgentKey::from_seed([21; 32]));
    mesh.certify(&joiner, &upper);
    let mesh_id = mesh.authority().mesh().unwrap();
    let body = RecordBody::AgentCert(AgentCert {
        agent: lower.id(),
        name: "lower".into(),
        spaces: None,
        verbs: Verbs::ALL,
        not_after_ms: None,
        possession: lower.sign(&issue::possession_message(&mesh_id, &upper.public())),
    });
    let record = mesh.sign(upper.secret(), mesh.log.heads(), body);
    mesh.add(record);
    let may = |mesh: &Mesh, agent: &AgentKey| {
        mesh.authority()
            .may_write(&agent.id(), &joiner.id(), &mesh.space, NOW)
    };
    assert!(may(&mesh, &lower).is_ok());
    let cut = |agent: &AgentKey, seq| Cut {
        author: agent.id(),
        space: mesh.space,
        seq,
        hash: Hash::of(b"last"),
    };
    let by_node = revoke(upper.public(), vec![cut(&upper, 7), cut(&lower, 3)]);
    let by_root = revoke(joiner.public(), vec![cut(&upper, 5)]);
    let record = mesh.sign(joiner.secret(), mesh.log.heads(), by_node);
    mesh.add(record);
    assert_eq!(may(&mesh, &upper).unwrap_err(), Denied::Revoked);
    assert_eq!(may(&mesh, &lower).unwrap_err(), Denied::Revoked);
    assert_eq!(
        mesh.authority().cut(&lower.id(), &mesh.space),
        Some((3, Hash::of(b"last")))
    );
    let record = mesh.sign(mesh.root.secret(), mesh.log.heads(), by_root);
    mesh.add(record);
    assert_eq!(
        mesh.authority().cut(&upper.id(), &mesh.space),
        Some((5, Hash::of(b"last")))
    );
    // The second revocation leaves nothing of a chain that it does not name.
    assert_eq!(mesh.authority().cut(&lower.id(), &mesh.space), None);
    // Letting the node in again does not revive what it had certified.
    mesh.join(&joiner, None);
    assert!(mesh.authority().is_member(&joiner.id()));
    assert_eq!(may(&mesh, &upper).unwrap_err(), Denied::Revoked);
    let fresh = AgentKey::from_seed([22; 32]);
    mesh.certify(&joiner, &fresh);
    assert!(may(&mesh, &fresh).is_ok());
}

#[test]
fn an_admin_may_not_revoke_another_admins_agent() {
    let mut mesh = Mesh::new();
    let admin = node(9);
    let record = mesh.sign(
        mesh.root.secret(),
        mesh.log.heads(),
        grant(&admin, Role::Admin, None),
    );
    mesh.add(record);
    let agent = AgentKey::from_seed([20; 32]);
    let founder = mesh.founder.clone();
    mesh.certify(&founder, &agent);
    let record = mesh.sign(
        admin.secret(),
        mesh.log.heads(),
        revoke(agent.public(), vec![]),
    );
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::NotAllowed));
    assert!(mesh.authority().agent(&agent.id()).is_some());
}

#[test]
fn concurrent_grants_by_one_invite_are_counted_by_depth_then_id() {
    let mut mesh = Mesh::new();
    let invite = mesh.invite(2);
    let heads = mesh.log.heads();
    let mut ids = Vec::new();
    for seed in 40..45 {
        let RecordBody::Grant(mut body) = grant(&node(seed), Role::Writer, Some(mesh.space)) else {
            unreachable!()
        };
        body.invite = Some(invite);
        let record = mesh.sign(
            mesh.founder.secret(),
            heads.clone(),
            RecordBody::Grant(body),
        );
        ids.push(mesh.add(record));
    }
    ids.sort_unstable();
    let authority = mesh.authority();
    for (place, id) in ids.iter().enumerate() {
        let expected = (place >= 2).then_some(VoidReason::OverLimit);
        assert_eq!(mesh.void(id), expected);
    }
    assert_eq!(authority.invite(&invite).unwrap().used, 2);
    // One that was let in is let in again without a further use.
    let RecordBody::Grant(again) = mesh.log.get(&ids[0]).unwrap().record().body.clone() else {
        panic!("a grant")
    };
    let record = mesh.sign(
        mesh.founder.secret(),
        mesh.log.heads(),
        RecordBody::Grant(again),
    );
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), None);
}

#[test]
fn a_grant_gives_no_more_than_its_invite_nor_after_its_end() {
    let mut mesh = Mesh::new();
    let open = InviteOpen {
        invite: InviteId::from_bytes([5; 32]),
        role: Role::Reader,
        spaces: vec![],
        uses: 9,
        not_after_ms: NOW,
        approve: false,
    };
    let record = mesh.sign(
        mesh.founder.secret(),
        mesh.log.heads(),
        RecordBody::InviteOpen(open.clone()),
    );
    mesh.add(record);
    let by_invite = |role, space| {
        let RecordBody::Grant(mut body) = grant(&node(50), role, space) else {
            unreachable!()
        };
        body.invite = Some(open.invite);
        RecordBody::Grant(body)
    };
    let wide = by_invite(Role::Writer, None);
    let elsewhere = by_invite(Role::Reader, Some(mesh.space));
    for body in [wide, elsewhere] {
        let record = mesh.sign(mesh.founder.secret(), mesh.log.heads(), body);
        let id = mesh.add(record);
        assert_eq!(mesh.void(&id), Some(VoidReason::NoSuchInvite));
    }
    let before = mesh.log.heads();
    let close = issue::close_invite(&mesh.founder, &mesh.authority(), open.invite, NOW).unwrap();
    mesh.add(close);
    let late = mesh.sign(
        mesh.founder.secret(),
        mesh.log.heads(),
        by_invite(Role::Reader, None),
    );
    let late = mesh.add(late);
    assert_eq!(mesh.void(&late), Some(VoidReason::NoSuchInvite));
    // An admin who had not seen it closed could not know; the newcomer stays.
    let unaware = mesh.sign(mesh.founder.secret(), before, by_invite(Role::Reader, None));
    let unaware = mesh.add(unaware);
    assert_eq!(mesh.void(&unaware), None);
}

#[test]
fn a_new_key_reaches_its_readers_and_the_log_names_which_it_is() {
    let mut mesh = Mesh::new();
    let joiner = node(9);
    mesh.join(&joiner, None);
    let info = mesh.authority().space(&mesh.space).unwrap().clone();
    let key = SpaceKey::generate();
    let wrap = |key: &SpaceKey, epoch| {
        let to = joiner.id();
        let key = crate::epoch::wrap_key(key, epoch, &to, &info.wrap_context()).unwrap();
        crate::record::NodeWrap { node: to, key }
    };
    let epoch = |epoch, wraps| {
        RecordBody::KeyEpoch(KeyEpoch {
            space: mesh.space,
            epoch,
            commitment: key.commitment(),
            wraps,
            previous: None,
        })
    };
    // The first wrap is of another key than the record commits to; the second is good.
    let bodies = [
        epoch(2, vec![wrap(&SpaceKey::generate(), 2), wrap(&key, 2)]),
        epoch(2, vec![]),
        epoch(4, vec![]),
    ];
    let voids = [None, Some(VoidReason::Taken), Some(VoidReason::Taken)];
    for (body, void) in bodies.into_iter().zip(voids) {
        let record = mesh.sign(mesh.founder.secret(), mesh.log.heads(), body);
        let id = mesh.add(record);
        assert_eq!(mesh.void(&id), void);
    }
    let authority = mesh.authority();
    assert_eq!(authority.space(&mesh.space).unwrap().epoch, 2);
    let keys = authority.unwrap_keys(&joiner);
    let found: Vec<_> = keys
        .iter()
        .map(|(_, epoch, key)| (*epoch, key.commitment()))
        .collect();
    assert_eq!(
        found,
        [(1, mesh.space_key.commitment()), (2, key.commitment())]
    );
}

#[test]
fn more_heads_than_fit_still_carry_the_signers_own_grant() {
    let mut mesh = Mesh::new();
    let heads = mesh.log.heads();
    for seed in 100..130 {
        let body = grant(&node(seed), Role::Writer, None);
        let record = mesh.sign(mesh.founder.secret(), heads.clone(), body);
        mesh.add(record);
    }
    let agent = AgentKey::from_seed([20; 32]);
    let id = mesh.certify(&node(129), &agent);
    assert_eq!(mesh.void(&id), None);
    let id = mesh.join(&node(130), None);
    assert_eq!(mesh.void(&id), None);
}

#[test]
fn kinds_and_fields_of_later_versions_are_kept_and_listed() {
    let mut mesh = Mesh::new();
    let later = RecordBody::Unknown(crate::record::UnknownBody {
        kind: 99,
        raw: vec![0xa1, 0x00, 0x01],
    });
    let record = mesh.sign(mesh.founder.secret(), mesh.log.heads(), later);
    let parsed = SignedRecord::parse(record.bytes()).unwrap();
    assert!(!parsed.is_understood());
    assert_eq!(parsed.bytes(), record.bytes());
    let id = mesh.add(parsed);
    assert_eq!(mesh.void(&id), Some(VoidReason::Deferred));
    assert!(
        mesh.authority().heads().contains(&id),
        "others may rest on it"
    );
    // A known kind with a field more: the map of the SpaceCreate body grows by one.
    let plain = mesh.sign(
        mesh.founder.secret(),
        mesh.log.heads(),
        RecordBody::SpaceCreate(SpaceCreate {
            name: "s".into(),
            nonce: [0; 16],
            commitment: Hash::of(b""),
            keys: vec![],
        }),
    );
    let sealed = crate::envelope::parse(plain.bytes(), 4096).unwrap();
    let mut payload = sealed.payload.to_vec();
    let body = payload.iter().rposition(|byte| *byte == 0xa4).unwrap();
    payload[body] = 0xa5;
    payload.extend_from_slice(&[0x18, 0x63, 0xf5]);
    let bytes = crate::envelope::seal(
        mesh.founder.secret(),
        crate::record::RECORD_DOMAIN,
        &payload,
    );
    let parsed = SignedRecord::parse(&bytes).unwrap();
    assert!(!parsed.is_understood() && parsed.bytes() == bytes);
    let id = mesh.add(parsed);
    assert_eq!(mesh.void(&id), Some(VoidReason::Deferred));
}

/// Builds a log from numbers: who signs what over which parents.
fn random_log(steps: &[(u8, u8, u8, u8)]) -> (Mesh, Vec<SignedRecord>) {
    let mut mesh = Mesh::new();
    mesh.join(&node(9), None);
    let made = mesh.sign(
        mesh.root.secret(),
        mesh.log.heads(),
        grant(&node(10), Role::Admin, None),
    );
    mesh.add(made);
    let mesh_id = mesh.authority().mesh().unwrap();
    let mut records: Vec<SignedRecord> = mesh
        .log
        .ids()
        .map(|id| mesh.log.get(id).unwrap().clone())
        .collect();
    let roles = [Role::Relay, Role::Reader, Role::Writer, Role::Admin];
    for (who, what, whom, over) in steps {
        let signer = match who % 6 {
            0 => mesh.root.secret().clone(),
            1 => mesh.founder.secret().clone(),
            n @ 2..=4 => node(7 + n).secret().clone(),
            _ => SecretKey::from_seed([30 + whom % 3; 32]),
        };
        let subject = node(9 + whom % 4);
        let agent = AgentKey::from_seed([30 + (whom / 4) % 3; 32]);
        let space = (whom % 2 == 0).then_some(mesh.space);
        let cut = |seq: u8| Cut {
            author: agent.id(),
            space: mesh.space,
            seq: seq.into(),
            hash: Hash::of(&[seq]),
        };
        let next = RootKey::from_seed([3; 32]);
        let (signer, body) = match what % 10 {
            0 | 1 => (
                signer,
                grant(&subject, roles[usize::from(whom / 4 % 4)], space),
            ),
            2 => (signer, revoke(subject.public(), vec![cut(whom % 5)])),
            3 => (signer, revoke(agent.public(), vec![cut(whom % 7)])),
            4 => {
                let about = records[usize::from(*over) % records.len()].id();
                (signer, amend(about, vec![cut(whom % 11)]))
            }
            5 => {
                let (proof, _) = forked(
                    &mesh,
                    &agent,
                    (whom % 3).into(),
                    [0, 1 + u32::from(whom % 2)],
                );
                (signer, RecordBody::ForkProof(proof))
            }
            6 if whom % 4 == 0 => {
                let after = SecretKey::from_seed([90 + whom / 4 % 2; 32]);
                (next.secret().clone(), rotate(&next, &after))
            }
            _ => (
                signer.clone(),
                RecordBody::AgentCert(AgentCert {
                    agent: agent.id(),
                    name: "a".into(),
                    spaces: space.map(|space| vec![space]),
                    verbs: Verbs::ALL,
                    not_after_ms: None,
                    possession: agent.sign(&issue::possession_message(&mesh_id, &signer.public())),
                }),
            ),
        };
        let count = records.len();
        let parents = [
            usize::from(*over) % count,
            usize::from(over / 16) % count,
            count - 1,
        ];
        let take = if over % 3 == 0 { 1 } else { 3 };
        let parents = parents[..take].iter().map(|at| records[*at].id()).collect();
        let record = Record {
            v: 1,
            mesh: mesh_id,
            parents,
            at_ms: NOW,
            body,
        };
        records.push(SignedRecord::sign(&signer, record).unwrap());
    }
    (mesh, records)
}

fn as_map(records: &[SignedRecord]) -> BTreeMap<RecordId, SignedRecord> {
    records
        .iter()
        .map(|record| (record.id(), record.clone()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_log_obeys_the_root(steps in proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 1..24)) {
        let (mesh, records) = random_log(&steps);
        let authority = resolve(&as_map(&records));
        let roots = [mesh.root.public(), SecretKey::from_seed([3; 32]).public()];
        let by_root = |node: &NodeId, min: Role| records.iter().any(|record| {
            roots.contains(&record.signer())
                && matches!(&record.record().body, RecordBody::Grant(grant)
                    if grant.node == *node && grant.role >= min)
        });
        for member in authority.members() {
            prop_assert!(member.role <= Role::Admin);
            prop_assert!(!member.role.can_grant() || by_root(&member.node, Role::Admin));
            prop_assert!(authority.knows(&member.grant));
        }
        for agent in authority.agents() {
            prop_assert!(authority.is_member(&agent.node));
            prop_assert!(agent.chain.len() <= MAX_CERT_DEPTH);
        }
    }

    #[test]
    fn a_permission_changes_nothing_for_what_does_not_descend_from_it(
        steps in proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 2..24),
        drop in any::<prop::sample::Index>(),
    ) {
        let (_, records) = random_log(&steps);
        let dropped = &records[drop.index(records.len())];
        // A rotation ends the key before it, so it is one of the restrictions.
        let is_permission =
            !matches!(&dropped.record().body, RecordBody::Revoke(_) | RecordBody::RotateRoot(_));
        let named = records.iter().any(|record| record.record().parents.contains(&dropped.id()));
        prop_assume!(is_permission && !named);
        let all = resolve(&as_map(&records));
        let fewer: Vec<_> =
            records.iter().filter(|record| record.id() != dropped.id()).cloned().collect();
        let fewer = resolve(&as_map(&fewer));
        let others: Vec<_> =
            all.void().iter().filter(|(id, _)| *id != dropped.id()).copied().collect();
        prop_assert_eq!(&others[..], fewer.void());
    }

    #[test]
    fn any_order_gives_the_same(
        steps in proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 1..24),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        let (_, records) = random_log(&steps);
        let mut shuffled = BTreeMap::new();
        for index in order {
            let record = &records[index.index(records.len())];
            shuffled.insert(record.id(), SignedRecord::parse(record.bytes()).unwrap());
        }
        shuffled.extend(as_map(&records).into_iter().rev());
        prop_assert_eq!(resolve(&shuffled), resolve(&as_map(&records)));
    }
}
