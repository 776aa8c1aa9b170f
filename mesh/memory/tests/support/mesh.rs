//! A mesh for tests: nodes with one agent each, and a space that all of them may write.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its share; what a test prepares has to work"
)]

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use rhizome_identity::{
    AgentKey, Authority, Hash, NodeKey, RecordLog, Role, RootKey, SignedRecord, SpaceId, SpaceKey,
    Verbs,
    issue::{self, AgentScope},
};
use rhizome_memory::{
    CheckpointRequest, ContextPatch, Draft, FragmentId, Kind, Lane, PublishError, PublishRequest,
    Published, Replica, ReplicaConfig,
};

pub(crate) struct Node {
    pub(crate) key: NodeKey,
    pub(crate) agent: AgentKey,
}

pub(crate) struct Mesh {
    pub(crate) nodes: Vec<Node>,
    pub(crate) space: SpaceId,
    pub(crate) space_key: SpaceKey,
    pub(crate) log: RecordLog,
    pub(crate) records: Vec<SignedRecord>,
}

impl Mesh {
    /// Founds a mesh of `nodes` nodes, from the same seed the same keys.
    pub(crate) fn of(nodes: u8) -> Self {
        let nodes: Vec<Node> = (0..nodes)
            .map(|n| Node {
                key: NodeKey::from_seed([n + 1; 32]),
                agent: AgentKey::from_seed([n + 101; 32]),
            })
            .collect();
        let root = RootKey::from_seed([250; 32]);
        let next = RootKey::from_seed([251; 32]).public();
        let founder = &nodes[0].key;
        let founded = issue::found(&root, &next, &founder.id(), "node0", "mesh", 1).unwrap();
        let mut log = RecordLog::default();
        let mut records = Vec::new();
        let mut add = |log: &mut RecordLog, record: SignedRecord| -> Authority {
            log.insert(record.clone()).unwrap();
            records.push(record);
            log.resolve()
        };
        let mut authority = Authority::default();
        for record in founded {
            authority = add(&mut log, record);
        }
        let (record, space_key) = issue::create_space(founder, &authority, "lab", 2).unwrap();
        let space = SpaceId::from_bytes(*record.id().as_bytes());
        authority = add(&mut log, record);
        for (n, node) in nodes.iter().enumerate() {
            if n > 0 {
                let keys = |_: &SpaceId, _| Some(space_key.clone());
                let record = issue::grant(
                    founder,
                    &authority,
                    node.key.id(),
                    &format!("node{n}"),
                    Role::Writer,
                    &[space],
                    &keys,
                    None,
                    3,
                );
                authority = add(&mut log, record.unwrap());
            }
            let name = format!("agent{n}");
            let cert =
                issue::certify_agent(&node.key, &authority, &node.agent, &name, None, None, 4);
            authority = add(&mut log, cert.unwrap());
        }
        Self {
            nodes,
            space,
            space_key,
            log,
            records,
        }
    }

    /// Founds a mesh of one node with `agents` agents, each behind the same node key.
    pub(crate) fn with_agents(agents: usize) -> Self {
        let mut mesh = Self::of(1);
        for n in 1..agents {
            let seed = u8::try_from(n).unwrap() + 101;
            let node = Node {
                key: mesh.nodes[0].key.clone(),
                agent: AgentKey::from_seed([seed; 32]),
            };
            let authority = mesh.authority();
            let name = format!("agent{n}");
            let cert =
                issue::certify_agent(&node.key, &authority, &node.agent, &name, None, None, 4);
            let cert = cert.unwrap();
            mesh.log.insert(cert.clone()).unwrap();
            mesh.records.push(cert);
            mesh.nodes.push(node);
        }
        mesh
    }

    /// Has the agent of a node certify another one, which takes its place: one certificate more
    /// stands between it and the node.
    pub(crate) fn delegate(&mut self, node: usize, seed: u8) {
        let agent = AgentKey::from_seed([seed; 32]);
        let scope = AgentScope {
            spaces: None,
            verbs: Verbs::ALL,
            not_after_ms: None,
        };
        let by = &self.nodes[node].agent;
        let authority = self.authority();
        let cert = issue::certify_sub_agent(by, &authority, &agent, "sub-agent", scope, 6);
        let cert = cert.unwrap();
        self.log.insert(cert.clone()).unwrap();
        self.records.push(cert);
        self.nodes[node].agent = agent;
    }

    /// Lets one more node in, which comes last.
    pub(crate) fn join(&mut self, seed: u8) {
        self.join_as(seed, Role::Writer);
    }

    /// Lets one more node in with this role.
    pub(crate) fn join_as(&mut self, seed: u8, role: Role) {
        let node = Node {
            key: NodeKey::from_seed([seed; 32]),
            agent: AgentKey::from_seed([seed.wrapping_add(100); 32]),
        };
        let space_key = self.space_key.clone();
        let keys = |_: &SpaceId, _| Some(space_key.clone());
        let record = issue::grant(
            &self.nodes[0].key,
            &self.authority(),
            node.key.id(),
            "joiner",
            role,
            &[self.space],
            &keys,
            None,
            5,
        );
        let record = record.unwrap();
        self.log.insert(record.clone()).unwrap();
        self.records.push(record);
        self.nodes.push(node);
    }

    pub(crate) fn authority(&self) -> Authority {
        self.log.resolve()
    }

    pub(crate) fn lane(&self) -> Lane {
        Lane::Space(self.space)
    }

    /// Opens the replica of a node, with the authority log in it; it shows forks as it finds them.
    pub(crate) fn open(&self, node: usize, dir: &Path) -> Replica {
        let config = ReplicaConfig::default().with_fork_turn(Duration::ZERO);
        self.open_with(node, dir, config)
    }

    pub(crate) fn open_with(&self, node: usize, dir: &Path, config: ReplicaConfig) -> Replica {
        let replica = Replica::open(dir, self.nodes[node].key.clone(), config).unwrap();
        replica.append_records(self.records.clone()).unwrap();
        replica
    }

    pub(crate) fn publish(&self, node: usize, replica: &Replica, title: &str) -> Published {
        self.try_publish(node, replica, title).unwrap()
    }

    pub(crate) fn try_publish(
        &self,
        node: usize,
        replica: &Replica,
        title: &str,
    ) -> Result<Published, PublishError> {
        self.try_publish_draft(
            node,
            replica,
            Draft::new(Kind::Fact, title, "found in a test"),
        )
    }

    pub(crate) fn try_publish_draft(
        &self,
        node: usize,
        replica: &Replica,
        draft: Draft,
    ) -> Result<Published, PublishError> {
        let request = PublishRequest {
            space: self.space,
            draft,
            fingerprint: Hash::of(b"runtime"),
        };
        replica.publish(&self.nodes[node].agent, request)
    }

    pub(crate) fn checkpoint(
        &self,
        node: usize,
        replica: &Replica,
        patch: ContextPatch,
    ) -> Published {
        let request = CheckpointRequest {
            space: self.space,
            task: "mend the parser".into(),
            patch,
            fingerprint: Hash::of(b"runtime"),
        };
        replica
            .checkpoint(&self.nodes[node].agent, request)
            .unwrap()
    }

    /// Returns the wire form of published fragments, in the order given.
    pub(crate) fn wires(&self, replica: &Replica, published: &[Published]) -> Vec<Bytes> {
        let ids: Vec<Hash> = published
            .iter()
            .map(|published| published.id.into())
            .collect();
        let wires = replica.wires(self.lane(), &ids, usize::MAX);
        assert_eq!(wires.len(), ids.len());
        wires
    }

    pub(crate) fn wires_of(&self, replica: &Replica, ids: &[FragmentId]) -> Vec<Bytes> {
        let ids: Vec<Hash> = ids.iter().map(|id| Hash::from(*id)).collect();
        replica.wires(self.lane(), &ids, usize::MAX)
    }

    /// Gives `to` all that `from` has and it lacks: records first, then fragments, the last first.
    pub(crate) fn sync(&self, from: &Replica, to: &Replica) {
        for lane in [Lane::Authority, self.lane()] {
            from.flush().unwrap();
            to.flush().unwrap();
            let mut ids: Vec<Hash> = {
                let set = from.id_set(lane);
                let set = set.read().unwrap();
                set.iter().copied().collect()
            };
            {
                let set = to.id_set(lane);
                let set = set.read().unwrap();
                ids.retain(|id| !set.contains(id));
            }
            ids.reverse();
            let wires = from.wires(lane, &ids, usize::MAX);
            if lane == Lane::Authority {
                to.admit_records(Some(from.node()), wires);
            } else {
                to.admit(from.node(), wires);
            }
        }
        to.flush().unwrap();
    }

    pub(crate) fn ids(&self, replica: &Replica) -> usize {
        Arc::clone(&replica.id_set(self.lane()))
            .read()
            .unwrap()
            .len()
    }
}
