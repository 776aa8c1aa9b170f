//! Every run of three nodes and five operations, in every order of doing and of telling.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use stateright::{Checker, Model, Property};

use super::*;

/// What each node knows, and which operations were done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    known: [BTreeSet<RecordId>; 3],
    done: [bool; 5],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Somebody does an operation, by all that its node knows.
    Do(usize),
    /// The first node tells the second all that it knows.
    Tell(usize, usize),
}

/// Who does something, and what, given what is known there; `None` while it makes no sense.
type Make = Box<dyn Fn(&Authority) -> Option<(SecretKey, RecordBody)> + Send + Sync>;

struct Meshes {
    /// The records that all know from the start.
    base: BTreeSet<RecordId>,
    mesh: MeshId,
    /// At which node each operation is done.
    operations: [(usize, Make); 5],
    /// All records of all runs: what a node makes depends on what it knows.
    made: Mutex<BTreeMap<RecordId, SignedRecord>>,
    resolved: Mutex<BTreeMap<BTreeSet<RecordId>, Arc<Authority>>>,
}

impl Meshes {
    /// A founder, an admin and a writer with an agent.
    fn new(operations: impl FnOnce(&Mesh) -> [(usize, Make); 5]) -> Self {
        let mut mesh = Mesh::new();
        let made = mesh.sign(
            mesh.root.secret(),
            mesh.log.heads(),
            grant(&admin(), Role::Admin, None),
        );
        mesh.add(made);
        mesh.join(&writer(), None);
        mesh.certify(&writer(), &agent());
        let records = mesh
            .log
            .ids()
            .map(|id| (*id, mesh.log.get(id).unwrap().clone()));
        Self {
            base: mesh.log.ids().copied().collect(),
            mesh: mesh.authority().mesh().unwrap(),
            operations: operations(&mesh),
            made: Mutex::new(records.collect()),
            resolved: Mutex::default(),
        }
    }

    fn record(&self, id: &RecordId) -> SignedRecord {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made[id].clone()
    }

    /// Resolves a set, put together in two orders: both have to say the same.
    fn authority(&self, known: &BTreeSet<RecordId>) -> Arc<Authority> {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = resolved.get(known) {
            return Arc::clone(authority);
        }
        let (mut one, mut other) = (RecordLog::default(), RecordLog::default());
        for id in known {
            one.insert(self.record(id)).unwrap();
        }
        for id in known.iter().rev() {
            other.insert(self.record(id)).unwrap();
            other.insert(self.record(id)).unwrap();
        }
        assert!(one.ids().eq(known) && other.ids().eq(known));
        assert_eq!(one.resolve(), other.resolve());
        let authority = Arc::new(one.resolve());
        resolved.insert(known.clone(), Arc::clone(&authority));
        authority
    }

    fn descends(&self, id: &RecordId, from: &RecordId) -> bool {
        let parents = self.record(id).record().parents.clone();
        parents.contains(from) || parents.iter().any(|parent| self.descends(parent, from))
    }

    fn each(&self, state: &State, holds: impl Fn(&Authority, &BTreeSet<RecordId>) -> bool) -> bool {
        let mut all = state.known.iter();
        all.all(|known| holds(&self.authority(known), known))
    }

    /// What somebody may do rests on records that count.
    fn rests_on_nothing_void(&self, state: &State) -> bool {
        self.each(state, |authority, _| {
            let is_void = |id: &RecordId| authority.void().iter().any(|(void, _)| void == id);
            let members = authority.members().map(|member| member.grant);
            let agents = authority.agents().flat_map(|agent| agent.chain.clone());
            let invites = authority.invites().map(|invite| invite.record);
            let frozen = authority.all_frozen().map(|(.., frozen)| frozen.proof);
            let mut all = members.chain(agents).chain(invites).chain(frozen);
            !all.any(|id| is_void(&id))
        })
    }

    /// Nobody is back after a revocation but by who knew of it.
    fn stays_revoked(&self, state: &State) -> bool {
        self.each(state, |authority, known| {
            authority.revocations().all(|revocation| {
                let node = NodeId::from_bytes(*revocation.subject.as_bytes());
                let agent = AgentId::from_bytes(*revocation.subject.as_bytes());
                let given = known.iter().filter(|id| {
                    let record = self.record(id);
                    match &record.record().body {
                        RecordBody::Grant(grant) => grant.node == node,
                        RecordBody::AgentCert(cert) => cert.agent == agent,
                        _ => false,
                    }
                });
                let is_out = !authority.is_member(&node) && authority.agent(&agent).is_none();
                let mut given = given.into_iter();
                // The root's admins are the root's to end.
                let is_above = !revocation.by_root
                    && authority
                        .member(&node)
                        .is_some_and(|member| member.role == Role::Admin);
                is_out || is_above || given.any(|id| self.descends(id, &revocation.record))
            })
        })
    }

    /// A revoked author writes nothing, and what counts of it is what was left.
    fn reaches_no_further(&self, state: &State) -> bool {
        self.each(state, |authority, _| {
            let (agent, node) = (agent().id(), writer().id());
            let is_out = authority.is_revoked(&agent.into()) || authority.is_revoked(&node.into());
            authority.spaces().all(|space| {
                let reach = authority.reach(&agent, &space.id);
                let writes = authority.may_write(&agent, &node, &space.id, NOW).is_ok();
                match reach {
                    Reach::Whole => !is_out,
                    Reach::UpTo(_) | Reach::Nothing => !writes,
                }
            })
        })
    }
}

impl Model for Meshes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let known = [(); 3].map(|()| self.base.clone());
        vec![State {
            known,
            done: [false; 5],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let open = (0..5).filter(|operation| !state.done[*operation]);
        actions.extend(open.map(Action::Do));
        for from in 0..3 {
            let others = (0..3).filter(|to| !state.known[from].is_subset(&state.known[*to]));
            actions.extend(others.map(|to| Action::Tell(from, to)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tell(from, to) => {
                let told = state.known[from].clone();
                state.known[to].extend(told);
            }
            Action::Do(operation) => {
                let (at, make) = &self.operations[operation];
                let authority = self.authority(&state.known[*at]);
                let (key, body) = make(&authority)?;
                let record = crate::record::Record {
                    v: 1,
                    mesh: self.mesh,
                    parents: authority.heads().to_vec(),
                    at_ms: NOW,
                    body,
                };
                let record = SignedRecord::sign(&key, record).unwrap();
                state.known[*at].insert(record.id());
                state.done[operation] = true;
                let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
                made.insert(record.id(), record);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing void gives a right", Self::rests_on_nothing_void),
            Property::always("who was revoked stays so", Self::stays_revoked),
            Property::always("a cut is the end", Self::reaches_no_further),
            Property::sometimes("all is done and known to all", |_, state: &State| {
                let [one, two, three] = &state.known;
                state.done == [true; 5] && one == two && two == three
            }),
        ]
    }
}

fn admin() -> NodeKey {
    node(9)
}

fn writer() -> NodeKey {
    node(10)
}

fn agent() -> AgentKey {
    AgentKey::from_seed([20; 32])
}

fn always(key: &SecretKey, body: RecordBody) -> Make {
    let key = key.clone();
    Box::new(move |_| Some((key.clone(), body.clone())))
}

/// Amends the first thing that `target` finds.
fn amending(
    key: &SecretKey,
    cut: &Cut,
    target: impl Fn(&Authority) -> Option<RecordId> + Send + Sync + 'static,
) -> Make {
    let (key, cut) = (key.clone(), cut.clone());
    Box::new(move |authority| Some((key.clone(), amend(target(authority)?, vec![cut.clone()]))))
}

fn cut(mesh: &Mesh, seq: u64) -> Cut {
    Cut {
        author: agent().id(),
        space: mesh.space,
        seq,
        hash: Hash::of(&seq.to_be_bytes()),
    }
}

fn check(meshes: Meshes) {
    let checker = meshes.checker().spawn_bfs().join();
    assert!(checker.unique_state_count() > 500);
    checker.assert_properties();
}

#[test]
fn admins_who_are_revoked_while_they_decide() {
    check(Meshes::new(|mesh| {
        let founder = mesh.founder.secret();
        let sub = AgentKey::from_seed([21; 32]);
        let message =
            issue::possession_message(&mesh.authority().mesh().unwrap(), &writer().public());
        let cert = AgentCert {
            agent: sub.id(),
            name: "other".into(),
            spaces: None,
            verbs: Verbs::ALL,
            not_after_ms: None,
            possession: sub.sign(&message),
        };
        [
            (
                0,
                always(mesh.root.secret(), revoke(admin().public(), vec![])),
            ),
            (
                1,
                always(
                    admin().secret(),
                    revoke(writer().public(), vec![cut(mesh, 5)]),
                ),
            ),
            (
                1,
                always(
                    admin().secret(),
                    grant(&node(11), Role::Writer, Some(mesh.space)),
                ),
            ),
            (
                0,
                always(founder, grant(&writer(), Role::Writer, Some(mesh.space))),
            ),
            (2, always(writer().secret(), RecordBody::AgentCert(cert))),
        ]
    }));
}

#[test]
fn cuts_and_forks_that_are_amended_while_others_revoke() {
    check(Meshes::new(|mesh| {
        let (proof, ids) = forked(mesh, &agent(), 5, [1, 2]);
        let chosen = Cut {
            hash: ids[1],
            ..cut(mesh, 5)
        };
        let revocation = |authority: &Authority| {
            let subject = writer().public();
            let mut found = authority.revocations_of(&subject);
            found.next().map(|revocation| revocation.record)
        };
        let space = mesh.space;
        let shown = move |authority: &Authority| {
            let frozen = authority.frozen(&agent().id(), &space);
            frozen.map(|frozen| frozen.proof)
        };
        [
            (2, always(writer().secret(), RecordBody::ForkProof(proof))),
            (0, amending(mesh.founder.secret(), &chosen, shown)),
            (
                1,
                always(
                    admin().secret(),
                    revoke(writer().public(), vec![cut(mesh, 3)]),
                ),
            ),
            (1, amending(admin().secret(), &cut(mesh, 8), revocation)),
            (
                0,
                always(mesh.root.secret(), revoke(admin().public(), vec![])),
            ),
        ]
    }));
}

#[test]
fn a_root_that_is_rotated_while_the_old_one_goes_on() {
    check(Meshes::new(|mesh| {
        let next = RootKey::from_seed([3; 32]);
        let rotation = rotate(&next, &SecretKey::from_seed([4; 32]));
        let other = rotate(&next, &SecretKey::from_seed([5; 32]));
        [
            (0, always(next.secret(), rotation)),
            (
                1,
                always(mesh.root.secret(), grant(&node(11), Role::Admin, None)),
            ),
            (
                2,
                always(mesh.root.secret(), revoke(admin().public(), vec![])),
            ),
            (1, always(next.secret(), other)),
            (
                2,
                always(writer().secret(), revoke(agent().public(), vec![])),
            ),
        ]
    }));
}
