//! The mesh that a run starts with; the same seed gives the same keys and records.

use rhizome_identity::{
    AgentKey, Authority, Hash, MeshId, NodeKey, Record, RecordBody, RecordLog, Role, RootKey,
    SecretKey, SignedRecord, SpaceId, issue,
    record::{Genesis, Grant, RECORD_VERSION, SpaceCreate, SpaceGrant},
};

/// Keys of a node and of its agent.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) node: NodeKey,
    pub(super) agent: AgentKey,
}

/// What every node knows before it first connects.
#[derive(Debug)]
pub(super) struct Founding {
    pub(super) mesh: MeshId,
    pub(super) space: SpaceId,
    pub(super) records: Vec<SignedRecord>,
    pub(super) keys: Vec<Keys>,
}

impl Founding {
    /// Founds a mesh with one space that all nodes may write.
    ///
    /// The records are made by hand where those of [`issue`] draw a nonce from the system.
    pub(super) fn new(seed: u64, nodes: usize) -> Self {
        let key =
            |what: &str, n: usize| *Hash::of(format!("{seed} {what} {n}").as_bytes()).as_bytes();
        let keys: Vec<Keys> = (0..nodes)
            .map(|n| Keys {
                node: NodeKey::from_seed(key("node", n)),
                agent: AgentKey::from_seed(key("agent", n)),
            })
            .collect();
        let root = RootKey::from_seed(key("root", 0));
        let next = RootKey::from_seed(key("root", 1)).public();
        let nobody = MeshId::from_bytes([0; 32]);
        let genesis = Genesis {
            name: "simulated".to_owned(),
            root: root.public(),
            next_root_hash: issue::next_root_hash(&next),
            nonce: [1; 16],
        };
        let mut log = Log {
            log: RecordLog::default(),
            records: Vec::new(),
            mesh: nobody,
        };
        let genesis = log.add(root.secret(), RecordBody::Genesis(genesis));
        log.mesh = genesis.mesh();
        let grant = |node: &NodeKey, n: usize, role, spaces| {
            RecordBody::Grant(Grant {
                node: node.id(),
                node_name: format!("node{n}"),
                role,
                spaces,
                invite: None,
            })
        };
        log.add(
            root.secret(),
            grant(&keys[0].node, 0, Role::Admin, Vec::new()),
        );
        let create = SpaceCreate {
            name: "lab".to_owned(),
            nonce: [2; 16],
            commitment: Hash::of(b"no key"),
            keys: Vec::new(),
        };
        let created = log.add(keys[0].node.secret(), RecordBody::SpaceCreate(create));
        let space = SpaceId::from_bytes(*created.id().as_bytes());
        for (n, member) in keys.iter().enumerate().skip(1) {
            let spaces = vec![SpaceGrant {
                space,
                role: Role::Writer,
                keys: Vec::new(),
            }];
            log.add(
                keys[0].node.secret(),
                grant(&member.node, n, Role::Writer, spaces),
            );
        }
        Self {
            mesh: log.mesh,
            space,
            records: log.records,
            keys,
        }
    }

    /// Certifies the agent of one node, as that node would.
    pub(super) fn certificate(&self, node: usize, authority: &Authority) -> SignedRecord {
        let Keys { node: key, agent } = &self.keys[node];
        issue::certify_agent(
            key,
            authority,
            agent,
            &format!("agent{node}"),
            None,
            None,
            1,
        )
        .expect("members may certify agents")
    }
}

struct Log {
    log: RecordLog,
    records: Vec<SignedRecord>,
    mesh: MeshId,
}

impl Log {
    fn add(&mut self, key: &SecretKey, body: RecordBody) -> SignedRecord {
        let parents = self
            .records
            .last()
            .map(SignedRecord::id)
            .into_iter()
            .collect();
        let record = Record {
            v: RECORD_VERSION,
            mesh: self.mesh,
            parents,
            at_ms: 1,
            body,
        };
        let record = SignedRecord::sign(key, record).expect("founding records are well formed");
        self.log
            .insert(record.clone())
            .expect("founding records are in order");
        self.records.push(record.clone());
        record
    }
}
