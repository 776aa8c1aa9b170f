//! Rotating the root.

use super::*;

fn next() -> RootKey {
    RootKey::from_seed([3; 32])
}

fn third() -> SecretKey {
    SecretKey::from_seed([4; 32])
}

#[test]
fn the_key_that_was_chosen_in_advance_replaces_the_root() {
    let mut mesh = Mesh::new();
    let before = mesh.log.heads();
    let body = grant(&node(9), Role::Admin, None);
    let seen = mesh.sign(mesh.root.secret(), before.clone(), body);
    mesh.add(seen);
    let rotation = issue::rotate_root(&next(), &third().public(), &mesh.authority(), NOW).unwrap();
    let rotation = mesh.add(rotation);
    assert_eq!(mesh.void(&rotation), None);
    // The thief of the old key dates back what it signs, or signs it now.
    for parents in [before, mesh.log.heads()] {
        for body in [
            grant(&node(10), Role::Admin, None),
            revoke(mesh.founder.public(), vec![]),
        ] {
            let record = mesh.sign(mesh.root.secret(), parents.clone(), body);
            let id = mesh.add(record);
            assert_eq!(mesh.void(&id), Some(VoidReason::Revoked));
        }
    }
    let authority = mesh.authority();
    assert_eq!(authority.root(), Some(next().public()));
    assert!(authority.is_member(&node(9).id()), "what was seen stays");
    assert!(!authority.is_member(&node(10).id()));
    assert!(authority.is_member(&mesh.founder.id()));
    let body = grant(&node(11), Role::Admin, None);
    let record = mesh.sign(next().secret(), mesh.log.heads(), body);
    mesh.add(record);
    assert!(mesh.authority().is_member(&node(11).id()));
    // And so on: the rotation chose the next one.
    let fourth = SecretKey::from_seed([5; 32]).public();
    let third = RootKey::from_seed([4; 32]);
    let again = issue::rotate_root(&third, &fourth, &mesh.authority(), NOW).unwrap();
    mesh.add(again);
    assert_eq!(mesh.authority().root(), Some(third.public()));
}

#[test]
fn nobody_puts_another_key_in_place() {
    let mut mesh = Mesh::new();
    let other = RootKey::from_seed([77; 32]);
    let refused = issue::rotate_root(&other, &third().public(), &mesh.authority(), NOW);
    assert!(matches!(refused, Err(IssueError::NotNextRoot)));
    let same = issue::rotate_root(&next(), &next().public(), &mesh.authority(), NOW);
    assert!(matches!(same, Err(IssueError::NotNextRoot)));
    let stranger = mesh.sign(other.secret(), mesh.log.heads(), rotate(&other, &third()));
    assert!(matches!(
        mesh.log.insert(stranger),
        Err(RecordError::Malformed(_))
    ));
    // Nor does the root of today, which may have been stolen.
    let own = RootKey::from_seed([1; 32]);
    let record = mesh.sign(own.secret(), mesh.log.heads(), rotate(&own, &third()));
    let id = mesh.add(record);
    assert_eq!(mesh.void(&id), Some(VoidReason::NotAllowed));
    assert_eq!(mesh.authority().root(), Some(own.public()));
}

#[test]
fn a_root_of_two_histories_administers_nothing_more() {
    let mut mesh = Mesh::new();
    let agent = AgentKey::from_seed([30; 32]);
    let heads = mesh.log.heads();
    let one = mesh.sign(next().secret(), heads.clone(), rotate(&next(), &third()));
    let other = SecretKey::from_seed([5; 32]);
    let two = mesh.sign(next().secret(), heads.clone(), rotate(&next(), &other));
    let one = mesh.add(one);
    assert!(mesh.authority().halted().is_empty());
    let two = mesh.add(two);
    let mut both = [one, two];
    both.sort_unstable();
    assert_eq!(mesh.authority().halted(), both);
    for id in both {
        assert_eq!(mesh.void(&id), Some(VoidReason::Halted));
    }
    for (key, body) in [
        (
            mesh.founder.secret().clone(),
            grant(&node(9), Role::Reader, None),
        ),
        (next().secret().clone(), grant(&node(9), Role::Admin, None)),
        (
            mesh.root.secret().clone(),
            revoke(mesh.founder.public(), vec![]),
        ),
    ] {
        let record = mesh.sign(&key, mesh.log.heads(), body);
        let id = mesh.add(record);
        assert_eq!(mesh.void(&id), Some(VoidReason::Halted));
    }
    let refused = issue::create_space(&mesh.founder, &mesh.authority(), "x", NOW);
    assert!(matches!(refused, Err(IssueError::Halted)));
    // Work goes on: a node looks after its own agents.
    let founder = mesh.founder.clone();
    let cert = mesh.certify(&founder, &agent);
    assert_eq!(mesh.void(&cert), None);
    let revoked = issue::revoke(
        founder.secret(),
        &mesh.authority(),
        agent.public(),
        vec![],
        "",
        NOW,
    );
    let revoked = mesh.add(revoked.unwrap().remove(0));
    assert_eq!(mesh.void(&revoked), None);
}
