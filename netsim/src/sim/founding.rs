//! The mesh that a run starts with; the same seed gives the same keys and records.

use rhizome_identity::{
    AgentKey, Authority, ForkProof, Hash, MeshId, NodeKey, Record, RecordBody, RecordId, Role,
    RootKey, SecretKey, SignedRecord, SpaceId, issue,
    record::{
        AgentCert, Cut, Genesis, Grant, MAX_PARENTS, RECORD_VERSION, Revoke, SpaceCreate,
        SpaceGrant, Verbs,
    },
};

/// How many nodes are admins of the mesh, the founder among them.
pub(super) const ADMINS: usize = 3;

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
    /// Whether bodies are changes of documents; otherwise they are any bytes.
    pub(super) has_documents: bool,
}

impl Founding {
    /// Founds a mesh with one space.
    ///
    /// The first `members` of `nodes` are in it, and may write; the first `writers` of them have an
    /// agent that does; the others have an invite.
    pub(super) fn new(seed: u64, nodes: usize, members: usize, writers: usize) -> Self {
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
        let genesis = Genesis {
            name: "simulated".to_owned(),
            root: root.public(),
            next_root_hash: issue::next_root_hash(&next),
            nonce: [1; 16],
        };
        let mut log = Log {
            records: Vec::new(),
            mesh: MeshId::from_bytes([0; 32]),
        };
        let genesis = log.add(root.secret(), RecordBody::Genesis(genesis));
        log.mesh = genesis.mesh();
        let founder = &keys[0].node;
        log.add(root.secret(), grant(founder, 0, Role::Admin, Vec::new()));
        let create = SpaceCreate {
            name: "lab".to_owned(),
            nonce: [2; 16],
            commitment: Hash::of(b"no key"),
            keys: Vec::new(),
        };
        let created = log.add(founder.secret(), RecordBody::SpaceCreate(create));
        let space = SpaceId::from_bytes(*created.id().as_bytes());
        for (n, member) in keys.iter().enumerate().take(members).skip(1) {
            let (role, signer) = if n < ADMINS {
                (Role::Admin, root.secret())
            } else {
                (Role::Writer, founder.secret())
            };
            log.add(
                signer,
                grant(&member.node, n, role, in_space(space, Role::Writer)),
            );
        }
        for (n, member) in keys.iter().enumerate().take(members.min(writers)) {
            let certificate = certificate(log.mesh, member, n);
            log.add(member.node.secret(), certificate);
        }
        Self {
            mesh: log.mesh,
            space,
            records: log.records,
            keys,
            has_documents: false,
        }
    }

    /// Makes a newcomer a member, as the admin `by` does who redeems its invite.
    pub(super) fn grant(&self, by: usize, newcomer: usize, authority: &Authority) -> SignedRecord {
        let spaces = in_space(self.space, Role::Writer);
        let body = grant(&self.keys[newcomer].node, newcomer, Role::Writer, spaces);
        self.sign(by, authority, body)
    }

    /// Certifies the agent of one node, as that node does.
    pub(super) fn certificate(&self, node: usize, authority: &Authority) -> SignedRecord {
        let body = certificate(self.mesh, &self.keys[node], node);
        self.sign(node, authority, body)
    }

    /// Revokes a node with its agent, as the admin `by` does; of the agent's chain what comes
    /// after `last` falls, or all of it.
    pub(super) fn revocation(
        &self,
        by: usize,
        subject: usize,
        last: Option<(u64, Hash)>,
        authority: &Authority,
    ) -> SignedRecord {
        let Keys { node, agent } = &self.keys[subject];
        let cut = last.map(|(seq, hash)| Cut {
            author: agent.id(),
            space: self.space,
            seq,
            hash,
        });
        let body = RecordBody::Revoke(Revoke {
            subject: node.public(),
            cuts: cut.into_iter().collect(),
            reason: "simulated".to_owned(),
        });
        self.sign(by, authority, body)
    }

    /// Shows that an author signed two fragments for one place, if they prove that.
    pub(super) fn prove_fork(
        &self,
        by: usize,
        authority: &Authority,
        proof: ForkProof,
    ) -> Option<SignedRecord> {
        issue::prove_fork(&self.keys[by].node, authority, proof, 1).ok()
    }

    fn sign(&self, by: usize, authority: &Authority, body: RecordBody) -> SignedRecord {
        let mut parents = authority.heads().to_vec();
        parents.truncate(MAX_PARENTS);
        sign(self.keys[by].node.secret(), self.mesh, parents, body)
    }
}

fn in_space(space: SpaceId, role: Role) -> Vec<SpaceGrant> {
    vec![SpaceGrant {
        space,
        role,
        keys: Vec::new(),
    }]
}

fn grant(node: &NodeKey, n: usize, role: Role, spaces: Vec<SpaceGrant>) -> RecordBody {
    RecordBody::Grant(Grant {
        node: node.id(),
        node_name: format!("node{n}"),
        role,
        spaces,
        invite: None,
    })
}

/// Made by hand, like all records here: those of [`issue`] ask an authority, which for thousands
/// of founding records would be resolved anew for each.
fn certificate(mesh: MeshId, keys: &Keys, n: usize) -> RecordBody {
    let message = issue::possession_message(&mesh, &keys.node.public());
    RecordBody::AgentCert(AgentCert {
        agent: keys.agent.id(),
        name: format!("agent{n}"),
        spaces: None,
        verbs: Verbs::ALL,
        not_after_ms: None,
        possession: keys.agent.sign(&message),
    })
}

fn sign(key: &SecretKey, mesh: MeshId, parents: Vec<RecordId>, body: RecordBody) -> SignedRecord {
    let record = Record {
        v: RECORD_VERSION,
        mesh,
        parents,
        at_ms: 1,
        body,
    };
    SignedRecord::sign(key, record).expect("records of the simulator are well formed")
}

struct Log {
    records: Vec<SignedRecord>,
    mesh: MeshId,
}

impl Log {
    fn add(&mut self, key: &SecretKey, body: RecordBody) -> SignedRecord {
        let parents = self.records.last().map(SignedRecord::id);
        let record = sign(key, self.mesh, parents.into_iter().collect(), body);
        self.records.push(record.clone());
        record
    }
}
