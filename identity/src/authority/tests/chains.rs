//! How far chains count: cuts, what raises them, and authors of two histories.

use super::*;

fn cut(mesh: &Mesh, agent: &AgentKey, seq: u64) -> Cut {
    Cut {
        author: agent.id(),
        space: mesh.space,
        seq,
        hash: Hash::of(&seq.to_be_bytes()),
    }
}

fn at(seq: u64) -> Option<(u64, Hash)> {
    Some((seq, Hash::of(&seq.to_be_bytes())))
}

/// A mesh with a writer and its agent.
fn with_writer() -> (Mesh, NodeKey, AgentKey) {
    let mut mesh = Mesh::new();
    let (joiner, agent) = (node(9), AgentKey::from_seed([20; 32]));
    mesh.join(&joiner, None);
    mesh.certify(&joiner, &agent);
    (mesh, joiner, agent)
}

fn reach(mesh: &Mesh, agent: &AgentKey) -> Reach {
    mesh.authority().reach(&agent.id(), &mesh.space)
}

#[test]
fn an_amend_raises_a_cut_if_whoever_made_it_says_so_knowing_it() {
    let (mut mesh, joiner, agent) = with_writer();
    let other = node(12);
    let made = mesh.sign(
        mesh.root.secret(),
        mesh.log.heads(),
        grant(&other, Role::Admin, None),
    );
    mesh.add(made);
    let before = mesh.log.heads();
    let founder = mesh.founder.clone();
    let record = mesh.sign(
        founder.secret(),
        before.clone(),
        revoke(joiner.public(), vec![cut(&mesh, &agent, 4)]),
    );
    let revoked = mesh.add(record);
    let seen = |mesh: &Mesh| mesh.authority().cut(&agent.id(), &mesh.space);
    assert_eq!(seen(&mesh), at(4));
    let higher = amend(revoked, vec![cut(&mesh, &agent, 9)]);
    for (key, parents, reason) in [
        // Another admin than the one who revoked.
        (other.secret(), mesh.log.heads(), VoidReason::NotAllowed),
        // One who pretends not to know what it amends.
        (founder.secret(), before, VoidReason::NothingToAmend),
        (joiner.secret(), mesh.log.heads(), VoidReason::Revoked),
    ] {
        let record = mesh.sign(key, parents, higher.clone());
        let id = mesh.add(record);
        assert_eq!(mesh.void(&id), Some(reason));
        assert_eq!(seen(&mesh), at(4));
    }
    let record = mesh.sign(founder.secret(), mesh.log.heads(), higher);
    mesh.add(record);
    assert_eq!(seen(&mesh), at(9));
    // Two made at the same time: the lower. One lower than the first cut: no Amend.
    let heads = mesh.log.heads();
    for (key, seq) in [(founder.secret(), 20), (mesh.root.secret(), 12)] {
        let record = mesh.sign(
            key,
            heads.clone(),
            amend(revoked, vec![cut(&mesh, &agent, seq)]),
        );
        mesh.log.insert(record).unwrap();
    }
    assert_eq!(seen(&mesh), at(12));
    let records = issue::amend(
        founder.secret(),
        &mesh.authority(),
        revoked,
        &[cut(&mesh, &agent, 2)],
        NOW,
    );
    for record in records.unwrap() {
        mesh.add(record);
    }
    assert_eq!(
        seen(&mesh),
        at(4),
        "what was left at first is left for good"
    );
    assert!(matches!(
        reach(&mesh, &agent),
        Reach::UpTo(Pin { seq: 4, .. })
    ));
}

#[test]
fn an_amend_names_a_chain_that_the_revocation_left_nothing_of() {
    let (mut mesh, joiner, agent) = with_writer();
    let founder = mesh.founder.clone();
    let records = issue::revoke(
        founder.secret(),
        &mesh.authority(),
        joiner.public(),
        vec![],
        "left",
        NOW,
    );
    let revoked = mesh.add(records.unwrap().remove(0));
    assert_eq!(reach(&mesh, &agent), Reach::Nothing);
    let cuts = [cut(&mesh, &agent, 7)];
    let records = issue::amend(founder.secret(), &mesh.authority(), revoked, &cuts, NOW);
    for record in records.unwrap() {
        mesh.add(record);
    }
    assert_eq!(mesh.authority().cut(&agent.id(), &mesh.space), at(7));
    let denied = mesh
        .authority()
        .may_write(&agent.id(), &joiner.id(), &mesh.space, NOW);
    assert_eq!(
        denied.unwrap_err(),
        Denied::Revoked,
        "it writes nothing new"
    );
}

#[test]
fn more_cuts_than_fit_one_record_are_named_beside_it() {
    let (mut mesh, joiner, agent) = with_writer();
    let mut cuts: Vec<Cut> = (0..issue::MAX_CUTS as u64 + 30)
        .map(|n| Cut {
            space: SpaceId::from_bytes(*Hash::of(&n.to_be_bytes()).as_bytes()),
            ..cut(&mesh, &agent, n)
        })
        .collect();
    cuts.push(cut(&mesh, &agent, 3));
    let founder = mesh.founder.clone();
    let records = issue::revoke(
        founder.secret(),
        &mesh.authority(),
        joiner.public(),
        cuts.clone(),
        "",
        NOW,
    );
    let records = records.unwrap();
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!(mesh.void(&record.id()), None);
        mesh.add(record);
    }
    let authority = mesh.authority();
    for cut in cuts {
        let left = authority.cut(&cut.author, &cut.space);
        assert_eq!(left, Some((cut.seq, cut.hash)));
    }
}

#[test]
fn a_revocation_that_was_overcome_takes_nothing_from_what_came_after() {
    let (mut mesh, joiner, _) = with_writer();
    let founder = mesh.founder.clone();
    let record = mesh.sign(
        founder.secret(),
        mesh.log.heads(),
        revoke(joiner.public(), vec![]),
    );
    mesh.add(record);
    mesh.join(&joiner, None);
    let fresh = AgentKey::from_seed([22; 32]);
    mesh.certify(&joiner, &fresh);
    assert_eq!(reach(&mesh, &fresh), Reach::Whole);
    let record = mesh.sign(
        founder.secret(),
        mesh.log.heads(),
        revoke(joiner.public(), vec![cut(&mesh, &fresh, 6)]),
    );
    mesh.add(record);
    assert_eq!(mesh.authority().cut(&fresh.id(), &mesh.space), at(6));
}

#[test]
fn two_histories_freeze_their_author_where_they_part() {
    let (mut mesh, joiner, agent) = with_writer();
    let (proof, ids) = forked(&mesh, &agent, 5, [1, 2]);
    let record = issue::prove_fork(&joiner, &mesh.authority(), proof.clone(), NOW).unwrap();
    let shown = mesh.add(record);
    assert_eq!(mesh.void(&shown), None);
    let prev = Some(Hash::of(&5_u64.to_be_bytes()));
    let pin = |seq, hash, prev| Reach::UpTo(Pin { seq, hash, prev });
    assert_eq!(reach(&mesh, &agent), pin(5, ids[0], prev));
    let denied = mesh
        .authority()
        .may_write(&agent.id(), &joiner.id(), &mesh.space, NOW);
    assert_eq!(denied.unwrap_err(), Denied::Frozen);
    // A third history, and one that parts earlier: the lowest place, and there the lower hash.
    let (third, more) = forked(&mesh, &agent, 5, [2, 3]);
    let lowest = ids[0].min(more[0]);
    let record = mesh.sign(
        joiner.secret(),
        mesh.log.heads(),
        RecordBody::ForkProof(third),
    );
    mesh.add(record);
    assert_eq!(reach(&mesh, &agent), pin(5, lowest, prev));
    let (earlier, first) = forked(&mesh, &agent, 0, [8, 9]);
    let record = issue::prove_fork(&mesh.founder, &mesh.authority(), earlier, NOW).unwrap();
    mesh.add(record);
    assert_eq!(reach(&mesh, &agent), pin(0, first[0], None));
    // An admin says which is meant, and that stays, whatever else is shown.
    let chosen = Cut {
        hash: ids[1],
        ..cut(&mesh, &agent, 5)
    };
    let founder = mesh.founder.clone();
    for key in [joiner.secret(), founder.secret()] {
        let body = amend(shown, vec![chosen.clone()]);
        let record = mesh.sign(key, mesh.log.heads(), body);
        let id = mesh.add(record);
        let is_admin = key.public() == founder.public();
        let reason = (!is_admin).then_some(VoidReason::NotAllowed);
        assert_eq!(mesh.void(&id), reason);
    }
    assert_eq!(reach(&mesh, &agent), pin(5, ids[1], None));
    let (late, _) = forked(&mesh, &agent, 2, [4, 5]);
    let record = issue::prove_fork(&joiner, &mesh.authority(), late, NOW).unwrap();
    mesh.add(record);
    assert_eq!(reach(&mesh, &agent), pin(5, ids[1], None));
}

#[test]
fn what_a_revocation_left_cannot_be_taken_back_by_the_key() {
    let (mut mesh, joiner, agent) = with_writer();
    let founder = mesh.founder.clone();
    let record = mesh.sign(
        founder.secret(),
        mesh.log.heads(),
        revoke(joiner.public(), vec![cut(&mesh, &agent, 9)]),
    );
    mesh.add(record);
    // Whoever holds the key now says something else where it had spoken before.
    let (proof, _) = forked(&mesh, &agent, 3, [1, 2]);
    let record = issue::prove_fork(&founder, &mesh.authority(), proof, NOW).unwrap();
    mesh.add(record);
    assert_eq!(mesh.authority().cut(&agent.id(), &mesh.space), at(9));
    assert!(matches!(
        reach(&mesh, &agent),
        Reach::UpTo(Pin { seq: 9, .. })
    ));
    assert!(mesh.authority().frozen(&agent.id(), &mesh.space).is_some());
}

#[test]
fn a_proof_has_to_prove() {
    let (mut mesh, joiner, agent) = with_writer();
    let (good, _) = forked(&mesh, &agent, 5, [1, 2]);
    let (elsewhere, _) = forked(&mesh, &agent, 6, [1, 2]);
    let (stranger, _) = forked(&mesh, &AgentKey::from_seed([99; 32]), 5, [1, 2]);
    let same = ForkProof {
        b: good.a.clone(),
        ..good.clone()
    };
    let of_two_places = ForkProof {
        b: elsewhere.a,
        ..good.clone()
    };
    let of_two_authors = ForkProof {
        b: stranger.a,
        ..good.clone()
    };
    let mut broken = good.clone();
    *broken.b.last_mut().unwrap() ^= 1;
    let empty = ForkProof {
        a: vec![],
        b: vec![],
    };
    for proof in [same, of_two_places, of_two_authors, broken, empty] {
        let refused = issue::prove_fork(&joiner, &mesh.authority(), proof.clone(), NOW);
        assert!(matches!(refused, Err(IssueError::Fork(_))));
        let record = mesh.sign(
            joiner.secret(),
            mesh.log.heads(),
            RecordBody::ForkProof(proof),
        );
        let id = mesh.add(record);
        assert_eq!(mesh.void(&id), Some(VoidReason::NotProven));
        assert_eq!(reach(&mesh, &agent), Reach::Whole);
    }
}

#[test]
fn an_agent_certifies_others_for_less_and_falls_with_them() {
    let (mut mesh, joiner, agent) = with_writer();
    let scope = |spaces, not_after_ms| issue::AgentScope {
        spaces,
        verbs: Verbs(3),
        not_after_ms,
    };
    let mut by = agent.clone();
    let mut line = Vec::new();
    for depth in 0..4_u8 {
        let next = AgentKey::from_seed([40 + depth; 32]);
        let scope = issue::AgentScope {
            verbs: Verbs::ALL,
            ..scope(None, Some(NOW + 100 - u64::from(depth)))
        };
        let cert = issue::certify_sub_agent(&by, &mesh.authority(), &next, "sub", scope, NOW);
        if depth == 3 {
            assert!(matches!(cert, Err(IssueError::TooWide(_))));
            break;
        }
        let id = mesh.add(cert.unwrap());
        assert_eq!(mesh.void(&id), None);
        line.push(next.clone());
        by = next;
    }
    let authority = mesh.authority();
    let longer = scope(None, Some(NOW + 1_000));
    let elsewhere = scope(Some(vec![SpaceId::from_bytes([9; 32])]), None);
    for scope in [longer, elsewhere] {
        let sub = AgentKey::from_seed([50; 32]);
        let refused = issue::certify_sub_agent(&line[0], &authority, &sub, "x", scope, NOW);
        assert!(matches!(refused, Err(IssueError::TooWide(_))));
    }
    let last = line.last().unwrap();
    let may = |mesh: &Mesh| {
        mesh.authority()
            .may_write(&last.id(), &joiner.id(), &mesh.space, NOW)
    };
    assert_eq!(may(&mesh).unwrap().chain.len(), 2 + 4);
    let records = issue::revoke(
        joiner.secret(),
        &mesh.authority(),
        line[0].public(),
        vec![cut(&mesh, last, 2)],
        "",
        NOW,
    );
    mesh.add(records.unwrap().remove(0));
    assert_eq!(may(&mesh).unwrap_err(), Denied::Revoked);
    assert_eq!(mesh.authority().cut(&last.id(), &mesh.space), at(2));
    assert!(mesh.authority().is_member(&joiner.id()), "the node stays");
    assert!(mesh.authority().agent(&agent.id()).is_some());
}

#[test]
fn a_key_that_follows_a_revocation_is_not_for_whom_it_ended() {
    let (mut mesh, joiner, agent) = with_writer();
    let other = node(12);
    mesh.join(&other, None);
    let founder = mesh.founder.clone();
    assert_eq!(
        mesh.authority().authors_through(&joiner.public()),
        [agent.id()]
    );
    let records = issue::revoke(
        founder.secret(),
        &mesh.authority(),
        joiner.public(),
        vec![],
        "",
        NOW,
    );
    mesh.add(records.unwrap().remove(0));
    assert_eq!(mesh.authority().author_name(&agent.id()), Some("agent"));
    let refused = issue::rotate_key(&other, &mesh.authority(), &mesh.space, NOW);
    assert!(matches!(refused, Err(IssueError::NotAllowed { .. })));
    let record = issue::rotate_key(&founder, &mesh.authority(), &mesh.space, NOW).unwrap();
    mesh.add(record);
    let authority = mesh.authority();
    assert_eq!(authority.space(&mesh.space).unwrap().epoch, 2);
    let epochs = |node: &NodeKey| {
        let keys = authority.unwrap_keys(node);
        keys.iter().map(|(_, epoch, _)| *epoch).collect::<Vec<_>>()
    };
    assert_eq!(epochs(&founder), [1, 2]);
    assert_eq!(epochs(&other), [1, 2]);
    assert!(epochs(&joiner).is_empty());
}
