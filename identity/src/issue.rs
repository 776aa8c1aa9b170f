//! Making records: what a node signs when it founds, grants, invites, certifies.
//!
//! Every function checks against the [`Authority`] it is handed that the record will have effect,
//! so that a user learns at once what a peer's `resolve` would find.

mod end;
mod key;
mod root;

pub use end::{MAX_CUTS, amend, prove_fork, revoke};
pub use key::{KEY_LIFETIME_MS, KEY_TURN_MS, is_key_turn, key_due, rotate_key};
pub use root::{next_root_hash, rotate_root};

use crate::{
    authority::{Authority, MAX_CERT_DEPTH, wrap_context},
    epoch::{SpaceKey, WrapError, wrap_key},
    id::{InviteId, MeshId, NodeId, PublicKey, RecordId, SpaceId},
    invite::{Invite, InviteEndpoint},
    keys::{AgentKey, NodeKey, RootKey, SecretKey, fill_random},
    record::{
        AgentCert, ForkError, Genesis, Grant, InviteClose, InviteOpen, MAX_PARENTS, NodeWrap,
        RECORD_VERSION, Record, RecordBody, RecordError, SignedRecord, SpaceCreate, SpaceGrant,
        Verbs,
    },
    role::Role,
};

/// Why a record was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// This node belongs to no mesh yet.
    #[error("this node belongs to no mesh")]
    NoMesh,
    /// This node's role does not allow it.
    #[error("this node may not {what}; it takes the role {needed}")]
    NotAllowed {
        /// What was asked.
        what: &'static str,
        /// The role it takes.
        needed: Role,
    },
    /// The space is not known.
    #[error("there is no space `{0}`")]
    UnknownSpace(SpaceId),
    /// This node does not hold the key of a space it would hand on.
    #[error("this node does not hold the key of space `{0}`")]
    NoKey(SpaceId),
    /// The root has signed two histories of the mesh.
    #[error("the root has signed two histories of the mesh, so nothing is administered any more")]
    Halted,
    /// The key is not the one that the current root committed to.
    #[error("this is not the key that was chosen to be the next root")]
    NotNextRoot,
    /// No such revocation or fork stands.
    #[error("there is no such revocation or fork to amend")]
    NothingToAmend,
    /// Two fragments that are shown do not contradict each other.
    #[error("the two fragments prove nothing")]
    Fork(#[from] ForkError),
    /// The certificate would give more than its issuer has.
    #[error("it would give more than the agent that gives it has: {0}")]
    TooWide(&'static str),
    /// The other node's id is no public key.
    #[error("a space key could not be wrapped")]
    Wrap(#[from] WrapError),
    /// The record breaks a rule of its layout, such as the length of a name.
    #[error("the record could not be made")]
    Record(#[from] RecordError),
}

impl IssueError {
    /// Says what the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoMesh => Some("found one with `rhizome init` or join one with `rhizome join`"),
            Self::NotAllowed { .. } => {
                Some("ask an admin of the mesh; `rhizome peers` shows the roles")
            }
            Self::UnknownSpace(_) => Some("list the spaces with `rhizome space list`"),
            Self::NoKey(_) => Some("wait until this node is in sync, or ask another admin"),
            Self::Halted => {
                Some("`rhizome member list` shows both records; found a new mesh to go on")
            }
            Self::NotNextRoot => {
                Some("use the next root key that was kept since the last rotation")
            }
            Self::NothingToAmend => {
                Some("`rhizome member show` lists what stands against a member")
            }
            Self::TooWide(_) => Some("give it fewer spaces and verbs, or less time"),
            Self::Wrap(_) | Self::Fork(_) => None,
            Self::Record(_) => Some("names have 1 to 64 bytes and no control characters"),
        }
    }
}

/// Founds a mesh: its Genesis, and a Grant that makes `node` its first admin.
///
/// # Errors
/// [`IssueError::Record`] if a name is not acceptable.
pub fn found(
    root: &RootKey,
    next_root: &PublicKey,
    node: &NodeId,
    node_name: &str,
    mesh_name: &str,
    now_ms: u64,
) -> Result<Vec<SignedRecord>, IssueError> {
    let mut nonce = [0; 16];
    fill_random(&mut nonce);
    let genesis = Genesis {
        name: mesh_name.to_owned(),
        root: root.public(),
        next_root_hash: next_root_hash(next_root),
        nonce,
    };
    let genesis = sign(
        root.secret(),
        MeshId::from_bytes([0; 32]),
        Vec::new(),
        RecordBody::Genesis(genesis),
        now_ms,
    )?;
    let grant = Grant {
        node: *node,
        node_name: node_name.to_owned(),
        role: Role::Admin,
        spaces: Vec::new(),
        invite: None,
    };
    let mesh = genesis.mesh();
    let grant = sign(
        root.secret(),
        mesh,
        vec![genesis.id()],
        RecordBody::Grant(grant),
        now_ms,
    )?;
    Ok(vec![genesis, grant])
}

/// Makes a space; returns its record and its first key, wrapped in the record to `node` alone.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `node` is an admin of the mesh.
pub fn create_space(
    node: &NodeKey,
    authority: &Authority,
    name: &str,
    now_ms: u64,
) -> Result<(SignedRecord, SpaceKey), IssueError> {
    let mesh = administered(authority)?;
    if !is_mesh_admin(authority, &node.id()) {
        return Err(IssueError::NotAllowed {
            what: "create a space",
            needed: Role::Admin,
        });
    }
    let mut nonce = [0; 16];
    fill_random(&mut nonce);
    let key = SpaceKey::generate();
    let wrapped = wrap_key(&key, 1, &node.id(), &wrap_context(&nonce))?;
    let space = SpaceCreate {
        name: name.to_owned(),
        nonce,
        commitment: key.commitment(),
        keys: vec![NodeWrap {
            node: node.id(),
            key: wrapped,
        }],
    };
    let record = sign(
        node.secret(),
        mesh,
        parents(authority, &node.public(), &[]),
        RecordBody::SpaceCreate(space),
        now_ms,
    )?;
    Ok((record, key))
}

/// What an invite shall say.
#[derive(Debug, Clone)]
pub struct InviteParams {
    /// The role it gives.
    pub role: Role,
    /// The spaces it opens.
    pub spaces: Vec<SpaceId>,
    /// How many nodes it may let in.
    pub uses: u16,
    /// When it ends, in Unix milliseconds.
    pub not_after_ms: u64,
    /// Whether a person approves each newcomer.
    pub approve: bool,
    /// Where it can be redeemed; this node first.
    pub endpoints: Vec<InviteEndpoint>,
}

/// Opens an invite; returns its record and the string's content.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `node` is an admin of the mesh or of all its spaces.
pub fn open_invite(
    node: &NodeKey,
    authority: &Authority,
    params: InviteParams,
    now_ms: u64,
) -> Result<(SignedRecord, Invite), IssueError> {
    let mesh = administered(authority)?;
    let mut spaces = params.spaces;
    spaces.sort_unstable();
    spaces.dedup();
    may_grant(authority, &node.id(), &spaces, params.role, "invite")?;
    let mut seed = zeroize::Zeroizing::new([0; 16]);
    fill_random(&mut *seed);
    let invite = Invite {
        mesh,
        seed,
        role: params.role,
        uses: params.uses,
        not_after_ms: params.not_after_ms,
        endpoints: params.endpoints,
    };
    let open = InviteOpen {
        invite: invite.id(),
        role: params.role,
        spaces,
        uses: params.uses,
        not_after_ms: params.not_after_ms,
        approve: params.approve,
    };
    let needed: Vec<RecordId> = open.spaces.iter().map(|space| (*space).into()).collect();
    let parents = parents(authority, &node.public(), &needed);
    let body = RecordBody::InviteOpen(open);
    Ok((sign(node.secret(), mesh, parents, body, now_ms)?, invite))
}

/// Closes an invite early.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `node` made it or is an admin of the mesh.
pub fn close_invite(
    node: &NodeKey,
    authority: &Authority,
    invite: InviteId,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = administered(authority)?;
    let own = authority
        .invite(&invite)
        .is_some_and(|state| state.issuer == node.id());
    if !own && !is_mesh_admin(authority, &node.id()) {
        return Err(IssueError::NotAllowed {
            what: "close the invite",
            needed: Role::Admin,
        });
    }
    let needed: Vec<RecordId> = authority
        .invite(&invite)
        .map(|state| state.record)
        .into_iter()
        .collect();
    let parents = parents(authority, &node.public(), &needed);
    let body = RecordBody::InviteClose(InviteClose { invite });
    sign(node.secret(), mesh, parents, body, now_ms)
}

/// Grants `to` a role in the mesh and in `spaces`, with every key of each space if it may read.
///
/// `keys` returns the key of a space and epoch, as far as this node holds it.
///
/// # Errors
/// [`IssueError::NotAllowed`], [`IssueError::UnknownSpace`], [`IssueError::NoKey`] if this node
/// lacks a space's newest key.
#[expect(clippy::too_many_arguments, reason = "each is one field of the record")]
pub fn grant(
    node: &NodeKey,
    authority: &Authority,
    to: NodeId,
    name: &str,
    role: Role,
    spaces: &[SpaceId],
    keys: &dyn Fn(&SpaceId, u32) -> Option<SpaceKey>,
    invite: Option<InviteId>,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = administered(authority)?;
    may_grant(authority, &node.id(), spaces, role, "grant")?;
    let mut grants = Vec::with_capacity(spaces.len());
    for space in spaces {
        let info = authority
            .space(space)
            .ok_or(IssueError::UnknownSpace(*space))?;
        let mut wrapped = Vec::new();
        if role.can_read() {
            for epoch in 1..=info.epoch {
                match keys(space, epoch) {
                    Some(key) => wrapped.push(wrap_key(&key, epoch, &to, &info.wrap_context())?),
                    // Old epochs may be beyond this node's own grant; the newest may not.
                    None if epoch < info.epoch => {}
                    None => return Err(IssueError::NoKey(*space)),
                }
            }
        }
        grants.push(SpaceGrant {
            space: *space,
            role,
            keys: wrapped,
        });
    }
    grants.sort_unstable_by_key(|grant| grant.space);
    grants.dedup_by_key(|grant| grant.space);
    let opened = invite
        .and_then(|invite| authority.invite(&invite))
        .map(|state| state.record);
    let needed: Vec<RecordId> = opened
        .into_iter()
        .chain(spaces.iter().map(|space| (*space).into()))
        .collect();
    let parents = parents(authority, &node.public(), &needed);
    let grant = Grant {
        node: to,
        node_name: name.to_owned(),
        role,
        spaces: grants,
        invite,
    };
    sign(
        node.secret(),
        mesh,
        parents,
        RecordBody::Grant(grant),
        now_ms,
    )
}

/// Certifies an agent of this node; the agent's key takes part, so that nobody claims another's.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `node` is a member, [`IssueError::UnknownSpace`].
pub fn certify_agent(
    node: &NodeKey,
    authority: &Authority,
    agent: &AgentKey,
    name: &str,
    spaces: Option<Vec<SpaceId>>,
    not_after_ms: Option<u64>,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = authority.mesh().ok_or(IssueError::NoMesh)?;
    if !authority.is_member(&node.id()) {
        return Err(IssueError::NotAllowed {
            what: "certify an agent",
            needed: Role::Relay,
        });
    }
    let spaces = spaces.map(|mut spaces| {
        spaces.sort_unstable();
        spaces.dedup();
        spaces
    });
    if let Some(unknown) = spaces
        .iter()
        .flatten()
        .find(|space| authority.space(space).is_none())
    {
        return Err(IssueError::UnknownSpace(*unknown));
    }
    let cert = AgentCert {
        agent: agent.id(),
        name: name.to_owned(),
        spaces,
        verbs: Verbs::ALL,
        not_after_ms,
        possession: agent.sign(&possession_message(&mesh, &node.public())),
    };
    let parents = parents(authority, &node.public(), &[]);
    sign(
        node.secret(),
        mesh,
        parents,
        RecordBody::AgentCert(cert),
        now_ms,
    )
}

/// What an agent may do for another one.
#[derive(Debug, Clone)]
pub struct AgentScope {
    /// The spaces it may act in; all of its issuer's if absent.
    pub spaces: Option<Vec<SpaceId>>,
    /// What it may do there.
    pub verbs: Verbs,
    /// Until when, in Unix milliseconds; as long as its issuer if absent.
    pub not_after_ms: Option<u64>,
}

/// Certifies an agent by another one, `by`, for at most what that one may do itself.
///
/// The new agent acts for the same node, and falls with `by` and with whoever certified that one.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `by` may certify others, [`IssueError::TooWide`] if the scope
/// is wider than its own, or four certificates stand between it and the node already.
pub fn certify_sub_agent(
    by: &AgentKey,
    authority: &Authority,
    agent: &AgentKey,
    name: &str,
    scope: AgentScope,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = authority.mesh().ok_or(IssueError::NoMesh)?;
    let info = authority
        .agent(&by.id())
        .filter(|info| info.verbs.includes(Verbs::CERTIFY))
        .ok_or(IssueError::NotAllowed {
            what: "certify an agent",
            needed: Role::Relay,
        })?;
    if info.chain.len() >= MAX_CERT_DEPTH {
        return Err(IssueError::TooWide("its chain of certificates is full"));
    }
    let inherited = || {
        info.spaces
            .as_ref()
            .map(|own| own.iter().copied().collect())
    };
    let mut spaces: Option<Vec<SpaceId>> = scope.spaces.or_else(inherited);
    if let Some(spaces) = &mut spaces {
        spaces.sort_unstable();
        spaces.dedup();
    }
    let is_within = |space: &SpaceId| match &info.spaces {
        Some(own) => own.contains(space),
        None => authority.space(space).is_some(),
    };
    if !spaces.iter().flatten().all(is_within) {
        return Err(IssueError::TooWide("a space"));
    }
    if !info.verbs.includes(scope.verbs) {
        return Err(IssueError::TooWide("a verb"));
    }
    let not_after_ms = scope.not_after_ms.or(info.not_after_ms);
    if info.not_after_ms < not_after_ms && info.not_after_ms.is_some() {
        return Err(IssueError::TooWide("time"));
    }
    let cert = AgentCert {
        agent: agent.id(),
        name: name.to_owned(),
        spaces,
        verbs: scope.verbs,
        not_after_ms,
        possession: agent.sign(&possession_message(&mesh, &by.public())),
    };
    let needed: Vec<RecordId> = info.chain.last().copied().into_iter().collect();
    let parents = parents(authority, &by.public(), &needed);
    let body = RecordBody::AgentCert(cert);
    sign(by.secret(), mesh, parents, body, now_ms)
}

/// Returns what an agent's key signs to agree to be certified by `issuer`.
pub fn possession_message(mesh: &MeshId, issuer: &PublicKey) -> Vec<u8> {
    [
        b"rhizome/agent-possession/1",
        &mesh.as_bytes()[..],
        issuer.as_bytes(),
    ]
    .concat()
}

/// Returns the mesh, if anything can be administered in it.
fn administered(authority: &Authority) -> Result<MeshId, IssueError> {
    if !authority.halted().is_empty() {
        return Err(IssueError::Halted);
    }
    authority.mesh().ok_or(IssueError::NoMesh)
}

fn is_mesh_admin(authority: &Authority, node: &NodeId) -> bool {
    authority
        .member(node)
        .is_some_and(|member| member.role.can_grant())
}

fn may_grant(
    authority: &Authority,
    node: &NodeId,
    spaces: &[SpaceId],
    role: Role,
    what: &'static str,
) -> Result<(), IssueError> {
    if role >= Role::Admin {
        return Err(IssueError::NotAllowed {
            what,
            needed: Role::Owner,
        });
    }
    if let Some(unknown) = spaces.iter().find(|space| authority.space(space).is_none()) {
        return Err(IssueError::UnknownSpace(*unknown));
    }
    let here = |space| authority.role_in(node, space).is_some_and(Role::can_grant);
    let is_allowed =
        is_mesh_admin(authority, node) || (!spaces.is_empty() && spaces.iter().all(here));
    if is_allowed {
        Ok(())
    } else {
        Err(IssueError::NotAllowed {
            what,
            needed: Role::Admin,
        })
    }
}

/// Returns the parents of a record by `signer` that rests on `needed`.
fn parents(authority: &Authority, signer: &PublicKey, needed: &[RecordId]) -> Vec<RecordId> {
    let Some(deepest) = &authority.deepest else {
        return authority.heads().to_vec();
    };
    // More heads than fit: what the record rests on must be among its ancestors all the same.
    // The heads left out are joined by later records.
    let node = NodeId::from_bytes(*signer.as_bytes());
    let own = authority.member(&node).map(|member| member.grant);
    let mut parents: Vec<RecordId> = own.into_iter().chain(needed.iter().copied()).collect();
    parents.extend(deepest);
    let mut seen = std::collections::BTreeSet::new();
    parents.retain(|parent| seen.insert(*parent));
    parents.truncate(MAX_PARENTS);
    parents
}

fn sign(
    key: &SecretKey,
    mesh: MeshId,
    parents: Vec<RecordId>,
    body: RecordBody,
    at_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let record = Record {
        v: RECORD_VERSION,
        mesh,
        parents,
        at_ms,
        body,
    };
    Ok(SignedRecord::sign(key, record)?)
}
