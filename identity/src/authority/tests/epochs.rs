//! New keys of spaces: when they are due, whose turn it is, and what two at once come to.

use std::collections::BTreeSet;

use super::*;
use crate::issue::{KEY_LIFETIME_MS, KEY_TURN_MS, is_key_turn, key_due, rotate_key};

const HOUR: u64 = 60 * 60 * 1000;
/// How often the others are heard.
const TICK: u64 = KEY_TURN_MS / 10;

fn all(log: &RecordLog) -> Vec<SignedRecord> {
    log.ids().filter_map(|id| log.get(id)).cloned().collect()
}

/// Some nodes, each with a log of its own, in virtual time.
struct Lab {
    nodes: Vec<NodeKey>,
    logs: Vec<RecordLog>,
    space: SpaceId,
    /// Who hears whom.
    groups: Vec<Vec<usize>>,
    now: u64,
}

impl Lab {
    /// A founder and `admins` more, all admins of the mesh who read and write in its space.
    fn of(admins: u8) -> Self {
        let mut mesh = Mesh::new();
        let mut nodes = vec![mesh.founder.clone()];
        for seed in 0..admins {
            let node = node(30 + seed);
            mesh.join(&node, None);
            let heads = mesh.log.heads();
            let made = mesh.sign(mesh.root.secret(), heads, grant(&node, Role::Admin, None));
            mesh.add(made);
            nodes.push(node);
        }
        Self {
            logs: nodes.iter().map(|_| mesh.log.clone()).collect(),
            groups: vec![(0..nodes.len()).collect()],
            nodes,
            space: mesh.space,
            now: NOW,
        }
    }

    fn authority(&self, at: usize) -> Authority {
        self.logs[at].resolve()
    }

    fn epoch(&self, at: usize) -> u32 {
        self.authority(at).space(&self.space).unwrap().epoch
    }

    /// Hands every record to everybody who hears its holder.
    fn sync(&mut self) {
        for group in self.groups.clone() {
            let all: Vec<SignedRecord> = group.iter().flat_map(|at| all(&self.logs[*at])).collect();
            for at in group {
                for record in &all {
                    self.logs[at].insert(record.clone()).unwrap();
                }
            }
        }
    }

    /// Lets everybody look whether it is their turn, in an order that changes; returns who acted.
    fn tick(&mut self, ms: u64) -> Vec<usize> {
        self.now += ms;
        let mut acted = Vec::new();
        for at in 0..self.nodes.len() {
            let authority = self.authority(at);
            if is_key_turn(&authority, &self.space, &self.nodes[at].id(), self.now) {
                self.rotate(at);
                acted.push(at);
            }
        }
        self.sync();
        acted
    }

    fn rotate(&mut self, at: usize) {
        let record = rotate_key(&self.nodes[at], &self.authority(at), &self.space, self.now);
        self.logs[at].insert(record.unwrap()).unwrap();
    }

    /// Returns which keys a node holds, by epoch, those in force.
    fn keys(&self, at: usize) -> Vec<(u32, Hash)> {
        let keys = self.authority(at).unwrap_keys(&self.nodes[at]);
        keys.into_iter()
            .map(|(_, epoch, key)| (epoch, key.commitment()))
            .collect()
    }
}

#[test]
fn a_key_of_thirty_days_is_followed_by_one_and_not_by_one_of_each_admin() {
    let mut lab = Lab::of(4);
    let mut made = Vec::new();
    for _ in 0..100 * 24 {
        made.extend(lab.tick(HOUR));
    }
    assert_eq!(made.len(), 3, "a hundred days: {made:?}");
    assert_eq!(lab.epoch(0), 4);
    assert!(lab.authority(0).void().is_empty());
    for at in 1..lab.nodes.len() {
        assert_eq!(lab.keys(at), lab.keys(0));
        assert_eq!(lab.keys(at).len(), 4);
    }
    let authority = lab.authority(0);
    let since = authority.space(&lab.space).unwrap().epoch_at_ms;
    assert_eq!(
        key_due(&authority, &lab.space, since + KEY_LIFETIME_MS - 1),
        None
    );
    let due = since + KEY_LIFETIME_MS;
    assert_eq!(key_due(&authority, &lab.space, due), Some(due));
    // Exactly one of them is the first, and each next one waits one turn more.
    let turn = |node: &NodeKey, at| is_key_turn(&authority, &lab.space, &node.id(), at);
    for after in 0..lab.nodes.len() {
        let at = due + after as u64 * KEY_TURN_MS;
        assert_eq!(
            lab.nodes.iter().filter(|node| turn(node, at)).count(),
            after + 1
        );
    }
    // A key from the future is new.
    assert_eq!(
        key_due(&authority, &lab.space, since - KEY_LIFETIME_MS),
        None
    );
}

#[test]
fn when_the_first_is_away_the_next_does_it() {
    let mut lab = Lab::of(3);
    let authority = lab.authority(0);
    let due = authority.space(&lab.space).unwrap().epoch_at_ms + KEY_LIFETIME_MS;
    let first = (0..4).find(|at| is_key_turn(&authority, &lab.space, &lab.nodes[*at].id(), due));
    let away = first.unwrap();
    lab.groups = vec![(0..4).filter(|at| *at != away).collect()];
    lab.now = due;
    // It is away, which is not the same as being still: nothing of it is heard.
    let rest: Vec<NodeKey> = lab.nodes.clone();
    let mut made = 0;
    for _ in 0..4 {
        lab.now += KEY_TURN_MS;
        for at in (0..4).filter(|at| *at != away) {
            if is_key_turn(&lab.authority(at), &lab.space, &rest[at].id(), lab.now) {
                lab.rotate(at);
                made += 1;
                lab.sync();
            }
        }
    }
    assert_eq!(made, 1);
}

#[test]
fn two_at_once_come_to_one_key_and_nothing_is_lost() {
    let mut lab = Lab::of(3);
    lab.groups = vec![vec![0, 1], vec![2, 3]];
    lab.now += KEY_LIFETIME_MS;
    // Twice on one side, once on the other.
    lab.rotate(0);
    lab.sync();
    lab.rotate(2);
    lab.sync();
    lab.now += HOUR;
    lab.rotate(1);
    lab.sync();
    assert_ne!(lab.keys(0), lab.keys(2));
    let sealed: BTreeSet<(u32, Hash)> = [0, 2].iter().flat_map(|at| lab.keys(*at)).collect();
    lab.groups = vec![vec![0, 1, 2, 3]];
    lab.sync();
    for at in 0..4 {
        assert_eq!(
            lab.authority(at).space(&lab.space),
            lab.authority(0).space(&lab.space)
        );
    }
    let mut made = 0;
    for _ in 0..60 {
        made += lab.tick(TICK).len();
    }
    assert!(made <= 1, "{made}");
    // One key is in force everywhere, and everybody opens all that was sealed on either side.
    let newcomer = node(50);
    for at in 0..4 {
        assert_eq!(lab.keys(at), lab.keys(0));
        let held = lab.authority(at).held_keys(&lab.nodes[at]);
        let mut all: BTreeSet<(u32, Hash)> = BTreeSet::new();
        all.extend(
            held.current
                .iter()
                .map(|((_, epoch), key)| (*epoch, key.commitment())),
        );
        for ((_, epoch), keys) in &held.rivals {
            all.extend(keys.iter().map(|key| (*epoch, key.commitment())));
        }
        assert!(all.is_superset(&sealed), "{at}: {all:?} {sealed:?}");
    }
    // Who comes later is handed the keys in force, and finds the others behind them.
    let authority = lab.authority(0);
    let held = authority.held_keys(&lab.nodes[0]);
    let keys = |space: &SpaceId, epoch| held.current.get(&(*space, epoch)).cloned();
    let granted = issue::grant(
        &lab.nodes[0],
        &authority,
        newcomer.id(),
        "new",
        Role::Reader,
        &[lab.space],
        &keys,
        None,
        lab.now,
    );
    lab.logs[0].insert(granted.unwrap()).unwrap();
    let found = lab.authority(0).held_keys(&newcomer);
    assert_eq!(found.current.len(), held.current.len());
    let rivals = |held: &HeldKeys| held.rivals.values().map(Vec::len).sum::<usize>();
    assert_eq!(rivals(&found), rivals(&held));
    assert!(rivals(&found) >= 1);
    assert_eq!(
        key_due(&lab.authority(0), &lab.space, lab.now),
        None,
        "nothing is left to do"
    );
}

#[test]
fn who_is_revoked_does_not_have_the_key_that_follows_even_if_one_was_made_meanwhile() {
    let mut lab = Lab::of(2);
    let (leaver, space) = (node(60), lab.space);
    let held = lab.authority(0).held_keys(&lab.nodes[0]);
    let keys = |space: &SpaceId, epoch| held.current.get(&(*space, epoch)).cloned();
    let founder = lab.nodes[0].clone();
    let authority = lab.authority(0);
    let (to, spaces) = (leaver.id(), [space]);
    let made = issue::grant(
        &founder,
        &authority,
        to,
        "x",
        Role::Writer,
        &spaces,
        &keys,
        None,
        NOW,
    );
    lab.logs[0].insert(made.unwrap()).unwrap();
    lab.sync();
    assert_eq!(key_due(&lab.authority(0), &space, NOW), None);
    // One admin ends it and makes a key; another, who has not heard of it, makes one for all.
    lab.groups = vec![vec![0], vec![1, 2]];
    lab.now += HOUR;
    let ended = issue::revoke(
        founder.secret(),
        &lab.authority(0),
        to.into(),
        vec![],
        "",
        lab.now,
    );
    for record in ended.unwrap() {
        lab.logs[0].insert(record).unwrap();
    }
    lab.rotate(0);
    lab.rotate(1);
    lab.sync();
    let of_leaver = |lab: &Lab, at: usize| {
        let keys = lab.authority(at).unwrap_keys(&leaver);
        keys.into_iter()
            .map(|(_, _, key)| key.commitment())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(of_leaver(&lab, 1).len(), 2, "it was handed the second one");
    lab.groups = vec![vec![0, 1, 2]];
    lab.sync();
    let mut made = 0;
    for _ in 0..40 {
        made += lab.tick(TICK).len();
    }
    assert_eq!(made, 1, "a key that it cannot have, once");
    let newest = *lab.keys(0).last().unwrap();
    assert_eq!(newest.0, 3);
    // By any way: what it was handed, and what lies behind that.
    let mut known = Vec::new();
    for wrapped in all(&lab.logs[1]) {
        if let RecordBody::KeyEpoch(made) = &wrapped.record().body {
            let context = lab.authority(0).space(&space).unwrap().wrap_context();
            for wrap in &made.wraps {
                known.extend(crate::epoch::unwrap_key(&leaver, &wrap.key, &context).ok());
            }
        }
    }
    assert_eq!(known.len(), 1);
    assert!(known.iter().all(|key| key.commitment() != newest.1));
    assert_eq!(key_due(&lab.authority(0), &space, lab.now), None);
}

#[test]
fn who_was_let_in_while_a_key_was_made_gets_the_next_one_and_all_before() {
    let mut lab = Lab::of(1);
    let (newcomer, space) = (node(61), lab.space);
    lab.groups = vec![vec![0], vec![1]];
    lab.rotate(1);
    let held = lab.authority(0).held_keys(&lab.nodes[0]);
    let keys = |space: &SpaceId, epoch| held.current.get(&(*space, epoch)).cloned();
    let (founder, authority) = (lab.nodes[0].clone(), lab.authority(0));
    let (to, spaces) = (newcomer.id(), [space]);
    let made = issue::grant(
        &founder,
        &authority,
        to,
        "x",
        Role::Reader,
        &spaces,
        &keys,
        None,
        NOW,
    );
    lab.logs[0].insert(made.unwrap()).unwrap();
    lab.groups = vec![vec![0, 1]];
    lab.sync();
    let epochs = |lab: &Lab| {
        let keys = lab.authority(0).unwrap_keys(&newcomer);
        keys.iter().map(|(_, epoch, _)| *epoch).collect::<Vec<_>>()
    };
    assert_eq!(epochs(&lab), [1]);
    let made: usize = (0..30).map(|_| lab.tick(TICK).len()).sum();
    assert_eq!(made, 1);
    assert_eq!(epochs(&lab), [1, 2, 3]);
}

#[test]
fn a_member_whose_id_is_no_key_keeps_nobody_from_theirs() {
    let mut lab = Lab::of(0);
    let nobody = NodeId::from_bytes([2; 32]);
    let heads = lab.logs[0].heads();
    let body = RecordBody::Grant(Grant {
        node: nobody,
        node_name: "nobody".into(),
        role: Role::Reader,
        spaces: vec![SpaceGrant {
            space: lab.space,
            role: Role::Reader,
            keys: vec![],
        }],
        invite: None,
    });
    let record = crate::record::Record {
        v: 1,
        mesh: lab.authority(0).mesh().unwrap(),
        parents: heads,
        at_ms: NOW,
        body,
    };
    let signed = SignedRecord::sign(lab.nodes[0].secret(), record).unwrap();
    lab.logs[0].insert(signed).unwrap();
    assert!(lab.authority(0).is_member(&nobody));
    assert_eq!(key_due(&lab.authority(0), &lab.space, NOW), None);
    lab.rotate(0);
    assert_eq!(lab.epoch(0), 2);
}
