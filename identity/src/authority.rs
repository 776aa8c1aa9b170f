//! Who may do what: a pure function of a set of signed records.
//!
//! [`RecordLog`] collects records as they arrive; [`resolve`] turns any set of them into an
//! [`Authority`], the same for the same set, whatever the order of arrival. Clocks decide nothing.
//!
//! Each record is judged by its own ancestors, so that one that is dated back gains nothing. Only
//! the root grants or revokes admins, so two admins cannot revoke each other. A Revoke voids what
//! its subject did that the revoker had not seen, and every Grant to that subject that does not
//! have the Revoke among its ancestors: among concurrent records Revoke beats Grant. Of concurrent
//! Grants to one node the lower role counts, except that no admin lowers what the root gave.
//!
//! A record may also say how far a chain of fragments counts ([`Reach`]): a Revoke by its cuts, a
//! ForkProof by the place where its author signed two histories. An Amend raises either.

mod chains;
mod epochs;
mod log;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use chains::{Frozen, Pin, Reach, Revocation};
pub use epochs::HeldKeys;
pub(crate) use epochs::{MAX_RIVALS, NamedKey, RIVAL_EPOCHS};
pub use log::{Inserted, MAX_RECORDS, MAX_WAITING, RecordLog};
pub use resolve::resolve;

use crate::{
    epoch::WrappedKey,
    id::{AgentId, Hash, InviteId, MeshId, NodeId, PublicKey, RecordId, SpaceId},
    role::Role,
};

/// How many certificates may stand between a node and an agent.
pub const MAX_CERT_DEPTH: usize = 4;

/// A node that belongs to the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its role in the mesh.
    pub role: Role,
    /// Its role in each space it was granted.
    pub spaces: BTreeMap<SpaceId, Role>,
    /// The Grant that made it what it is.
    pub grant: RecordId,
    /// When its first Grant says it was made; for display.
    pub since_ms: u64,
}

/// A space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Its id.
    pub id: SpaceId,
    /// Its name, which need not be unique.
    pub name: String,
    /// The newest key epoch.
    pub epoch: u32,
    /// When its key was made, by the clock of who made it.
    pub epoch_at_ms: u64,
    /// Since when the newest key is not what it has to be, by the clocks of those who caused it: one
    /// has it who may not read, one who may read lacks it, or it has a rival.
    pub stale_since_ms: Option<u64>,
    /// The node that made it.
    pub created_by: NodeId,
    /// When it was made; for display.
    pub at_ms: u64,
    pub(crate) nonce: [u8; 16],
    /// By number, the one in force first.
    pub(crate) keys: BTreeMap<u32, Vec<NamedKey>>,
}

/// An agent with a valid certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentInfo {
    /// The agent.
    pub id: AgentId,
    /// Its name.
    pub name: String,
    /// The node it acts for.
    pub node: NodeId,
    /// The spaces it may act in; all of its node's if absent.
    pub spaces: Option<BTreeSet<SpaceId>>,
    /// Until when it may act, in Unix milliseconds.
    pub not_after_ms: Option<u64>,
    /// What it may do.
    pub verbs: crate::record::Verbs,
    /// Its certificates, the node's first.
    pub chain: Vec<RecordId>,
}

/// An invite as the log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InviteState {
    /// The invite.
    pub id: InviteId,
    /// The record that opened it.
    pub record: RecordId,
    /// The role it gives.
    pub role: Role,
    /// The spaces it opens.
    pub spaces: Vec<SpaceId>,
    /// How many nodes it may let in.
    pub uses: u16,
    /// How many it has.
    pub used: u16,
    /// When it ends, in Unix milliseconds.
    pub not_after_ms: u64,
    /// The node that made it.
    pub issuer: NodeId,
    /// Whether it was closed early.
    pub closed: bool,
    /// Whether a person approves each newcomer.
    pub approve: bool,
}

/// Why an agent may do what it does: the records that say so, from the genesis on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Genesis, the node's Grant, the agent's certificates.
    pub chain: Vec<RecordId>,
}

/// Why an agent may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// No valid certificate names the agent; one may still arrive.
    #[error("no certificate of the agent is known")]
    UnknownAgent,
    /// The agent acts for another node.
    #[error("the agent is certified by another node")]
    NotCertifiedBy,
    /// The agent's node is no member.
    #[error("the agent's node is not a member")]
    NotMember,
    /// The node may not write in the space.
    #[error("the agent's node may not write in the space")]
    RoleTooLow,
    /// The agent's certificate leaves the space out.
    #[error("the agent's certificate does not include the space")]
    SpaceNotGranted,
    /// The certificate has ended.
    #[error("the agent's certificate has expired")]
    Expired,
    /// The agent or its node was revoked.
    #[error("the agent or its node was revoked")]
    Revoked,
    /// The agent signed two histories: it may not go on in this space.
    #[error("the agent signed two histories in this space and is frozen there")]
    Frozen,
}

/// Why a name is no space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceLookupError {
    /// No space has the name.
    #[error("there is no space named `{0}`")]
    Unknown(String),
    /// Several have.
    #[error("several spaces are named `{0}`")]
    Ambiguous(String),
}

impl SpaceLookupError {
    /// Says what the reader can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "list the spaces with `rhizome space list`",
            Self::Ambiguous(_) => "name it by its id; list them with `rhizome space list`",
        }
    }
}

/// Why a record has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VoidReason {
    /// Its signer may not decide this.
    #[error("its signer may not decide this")]
    NotAllowed,
    /// Its signer, or the node it is about, was revoked.
    #[error("a revocation stands against it")]
    Revoked,
    /// The space it names is not known.
    #[error("it names a space that does not exist")]
    UnknownSpace,
    /// The invite it names is unknown, closed, or gives less.
    #[error("its invite does not cover it")]
    NoSuchInvite,
    /// Its invite has let in as many as it may.
    #[error("its invite was used up")]
    OverLimit,
    /// The certificate gives more than its issuer has.
    #[error("it gives more than its issuer has")]
    TooWide,
    /// The certificate is the fifth in its chain, or deeper.
    #[error("its chain of certificates is longer than {MAX_CERT_DEPTH}")]
    TooDeep,
    /// The agent's own key did not take part.
    #[error("the agent's key did not agree to it")]
    NoPossession,
    /// Another record has decided this already.
    #[error("it was decided already")]
    Taken,
    /// It shows no contradiction.
    #[error("the two fragments that it shows do not contradict each other")]
    NotProven,
    /// It amends nothing that it could know of and that counts.
    #[error("what it amends does not count, or is none of its ancestors")]
    NothingToAmend,
    /// The root has signed two rotations.
    #[error("the root has signed two histories of the mesh; nothing is administered since")]
    Halted,
    /// This version does not act on such records yet; they are kept and replicated.
    #[error("this version does not act on it")]
    Deferred,
}

/// Who may do what, as one set of records says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authority {
    pub(crate) mesh: Option<MeshId>,
    pub(crate) name: String,
    pub(crate) root: Option<PublicKey>,
    pub(crate) next_root: Option<Hash>,
    pub(crate) halted: Vec<RecordId>,
    pub(crate) heads: Vec<RecordId>,
    /// The deepest of the heads, when there are more than a record may name.
    pub(crate) deepest: Option<Vec<RecordId>>,
    pub(crate) known: BTreeSet<RecordId>,
    pub(crate) members: BTreeMap<NodeId, Member>,
    pub(crate) spaces: BTreeMap<SpaceId, SpaceInfo>,
    /// Every certificate in force of each agent, oldest first.
    pub(crate) agents: BTreeMap<AgentId, Vec<AgentInfo>>,
    pub(crate) invites: BTreeMap<InviteId, InviteState>,
    /// All that were wrapped to each: one of them may be bad, another good.
    pub(crate) keys: BTreeMap<NodeId, Vec<(SpaceId, u32, WrappedKey)>>,
    pub(crate) cuts: BTreeMap<(AgentId, SpaceId), (u64, Hash)>,
    pub(crate) frozen: BTreeMap<(AgentId, SpaceId), Frozen>,
    pub(crate) revocations: Vec<Revocation>,
    /// Everyone who was ever certified, with the keys through which it was.
    pub(crate) authors: BTreeMap<AgentId, (String, BTreeSet<PublicKey>)>,
    pub(crate) revoked: BTreeSet<PublicKey>,
    pub(crate) void: Vec<(RecordId, VoidReason)>,
}

impl Authority {
    /// Returns the mesh, if the set has its genesis.
    pub fn mesh(&self) -> Option<MeshId> {
        self.mesh
    }

    /// Returns the mesh's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the root key.
    pub fn root(&self) -> Option<PublicKey> {
        self.root
    }

    /// Returns what the next root key has to hash to ([`crate::issue::next_root_hash`]).
    pub fn next_root(&self) -> Option<Hash> {
        self.next_root
    }

    /// Returns the rotations by which the root made two histories of the mesh; none, mostly. While
    /// there are any, nothing that takes an admin has effect.
    pub fn halted(&self) -> &[RecordId] {
        &self.halted
    }

    /// Returns the records in effect from which no other such record descends, ascending.
    pub fn heads(&self) -> &[RecordId] {
        &self.heads
    }

    /// Whether the record is here, together with all its ancestors.
    pub fn knows(&self, record: &RecordId) -> bool {
        self.known.contains(record)
    }

    /// Whether the node or agent was revoked and not let in again, or fell with its issuer.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.revoked.contains(key)
    }

    /// Returns the members, by id.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns a member.
    pub fn member(&self, node: &NodeId) -> Option<&Member> {
        self.members.get(node)
    }

    /// Whether `node` belongs to the mesh.
    pub fn is_member(&self, node: &NodeId) -> bool {
        self.members.contains_key(node)
    }

    /// Returns the spaces, by id.
    pub fn spaces(&self) -> impl Iterator<Item = &SpaceInfo> {
        self.spaces.values()
    }

    /// Returns a space.
    pub fn space(&self, space: &SpaceId) -> Option<&SpaceInfo> {
        self.spaces.get(space)
    }

    /// Returns the one space with this name.
    ///
    /// # Errors
    /// [`SpaceLookupError`] if there is none, or more than one.
    pub fn space_named(&self, name: &str) -> Result<&SpaceInfo, SpaceLookupError> {
        let mut found = self.spaces.values().filter(|space| space.name == name);
        match (found.next(), found.next()) {
            (Some(space), None) => Ok(space),
            (None, _) => Err(SpaceLookupError::Unknown(name.to_owned())),
            (Some(_), Some(_)) => Err(SpaceLookupError::Ambiguous(name.to_owned())),
        }
    }

    /// Returns the role of `node` in `space`.
    pub fn role_in(&self, node: &NodeId, space: &SpaceId) -> Option<Role> {
        self.members.get(node)?.spaces.get(space).copied()
    }

    /// Returns the agents with a valid certificate, by id, each by its newest.
    pub fn agents(&self) -> impl Iterator<Item = &AgentInfo> {
        self.agents.values().filter_map(|certs| certs.last())
    }

    /// Returns an agent by its newest certificate.
    pub fn agent(&self, agent: &AgentId) -> Option<&AgentInfo> {
        self.agents.get(agent)?.last()
    }

    /// Whether `agent` on `node` may publish in `space` something it dates `at_ms`.
    ///
    /// # Errors
    /// [`Denied`] says why not. [`Denied::UnknownAgent`] and [`Denied::NotMember`] may heal when
    /// more records arrive.
    pub fn may_write(
        &self,
        agent: &AgentId,
        node: &NodeId,
        space: &SpaceId,
        at_ms: u64,
    ) -> Result<Proof, Denied> {
        let is_revoked = |key: PublicKey| self.revoked.contains(&key);
        if is_revoked((*agent).into()) || is_revoked((*node).into()) {
            return Err(Denied::Revoked);
        }
        let certs = self.agents.get(agent).ok_or(Denied::UnknownAgent)?;
        let mut denied = Denied::NotCertifiedBy;
        // The newest certificate speaks first; an older one may still allow it.
        for cert in certs.iter().rev().filter(|cert| cert.node == *node) {
            match self.cert_allows(cert, space, at_ms) {
                Ok(_) if self.frozen.contains_key(&(*agent, *space)) => {
                    return Err(Denied::Frozen);
                }
                Ok(proof) => return Ok(proof),
                Err(why) if denied == Denied::NotCertifiedBy => denied = why,
                Err(_) => {}
            }
        }
        Err(denied)
    }

    fn cert_allows(&self, cert: &AgentInfo, space: &SpaceId, at_ms: u64) -> Result<Proof, Denied> {
        let member = self.members.get(&cert.node).ok_or(Denied::NotMember)?;
        if !member
            .spaces
            .get(space)
            .is_some_and(|role| role.can_write())
        {
            return Err(Denied::RoleTooLow);
        }
        let writes = cert.verbs.includes(crate::record::Verbs::WRITE);
        if !writes
            || cert
                .spaces
                .as_ref()
                .is_some_and(|spaces| !spaces.contains(space))
        {
            return Err(Denied::SpaceNotGranted);
        }
        if cert.not_after_ms.is_some_and(|end| at_ms > end) {
            return Err(Denied::Expired);
        }
        let genesis = self.mesh.map(RecordId::from);
        let chain = genesis
            .into_iter()
            .chain([member.grant])
            .chain(cert.chain.iter().copied());
        Ok(Proof {
            chain: chain.collect(),
        })
    }

    /// Returns an invite.
    pub fn invite(&self, invite: &InviteId) -> Option<&InviteState> {
        self.invites.get(invite)
    }

    /// Returns the invites, by id.
    pub fn invites(&self) -> impl Iterator<Item = &InviteState> {
        self.invites.values()
    }

    /// Returns the records that have no effect, and why, by id.
    pub fn void(&self) -> &[(RecordId, VoidReason)] {
        &self.void
    }
}

impl SpaceInfo {
    /// Returns what every wrap of this space's keys is bound to.
    pub fn wrap_context(&self) -> Vec<u8> {
        wrap_context(&self.nonce)
    }
}

/// Returns what every wrap of the keys of a space with this nonce is bound to.
pub(crate) fn wrap_context(nonce: &[u8; 16]) -> Vec<u8> {
    [b"space/", &nonce[..]].concat()
}
