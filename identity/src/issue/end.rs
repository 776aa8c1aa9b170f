//! Ending what somebody may do, and deciding what stays of what they said.

use super::{IssueError, administered, is_mesh_admin, parents, sign};
use crate::{
    authority::Authority,
    id::{AgentId, NodeId, PublicKey, RecordId},
    keys::{NodeKey, SecretKey},
    record::{Amend, Cut, ForkProof, RecordBody, Revoke, SignedRecord},
    role::Role,
};

/// How many cuts one record names; more are named by Amends beside it.
pub const MAX_CUTS: usize = 400;

/// Ends what `subject`, an agent or a node, may do. What `cuts` name of its chains stays valid, with
/// all before it; of what they do not name, nothing.
///
/// `signer` is a node's key or the root's. The first record is the Revoke; further ones follow if
/// it has no room for all the cuts.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless it is an agent that the signer certified, or the signer is the
/// root, or an admin of the mesh and `subject` is neither another one nor another one's agent.
pub fn revoke(
    signer: &SecretKey,
    authority: &Authority,
    subject: PublicKey,
    mut cuts: Vec<Cut>,
    reason: &str,
    now_ms: u64,
) -> Result<Vec<SignedRecord>, IssueError> {
    let mesh = authority.mesh().ok_or(IssueError::NoMesh)?;
    let key = signer.public();
    let node = NodeId::from_bytes(*key.as_bytes());
    let agent = authority.agent(&AgentId::from_bytes(*subject.as_bytes()));
    let member = NodeId::from_bytes(*subject.as_bytes());
    let host = agent.map_or(member, |agent| agent.node);
    let is_own = agent.is_some() && host == node;
    if !is_own {
        administered(authority)?;
        // No admin ends another one, nor itself; nor what another one has certified.
        let is_other_admins = (agent.is_none() || host != node) && is_mesh_admin(authority, &host);
        let by_admin = is_mesh_admin(authority, &node) && !is_other_admins;
        let by_root = authority.root() == Some(key);
        if !by_admin && !by_root {
            let needed = if is_other_admins {
                Role::Owner
            } else {
                Role::Admin
            };
            return Err(IssueError::NotAllowed {
                what: "revoke it",
                needed,
            });
        }
    }
    // The revocation is made in knowledge of what it ends.
    let needed: Vec<RecordId> = match agent {
        Some(agent) => agent.chain.last().copied().into_iter().collect(),
        None => authority
            .member(&member)
            .map(|member| member.grant)
            .into_iter()
            .collect(),
    };
    let more = cuts.split_off(cuts.len().min(MAX_CUTS));
    let body = RecordBody::Revoke(Revoke {
        subject,
        cuts,
        reason: reason.to_owned(),
    });
    let parents = parents(authority, &key, &needed);
    let revoke = sign(signer, mesh, parents, body, now_ms)?;
    let id = revoke.id();
    let mut records = vec![revoke];
    for cuts in more.chunks(MAX_CUTS) {
        let body = RecordBody::Amend(Amend {
            revoke: id,
            cuts: cuts.to_vec(),
        });
        records.push(sign(signer, mesh, vec![id], body, now_ms)?);
    }
    Ok(records)
}

/// Raises the cuts of a revocation, or says which of two histories is meant: `target` is a Revoke
/// that stands, or the ForkProof that froze a chain.
///
/// # Errors
/// [`IssueError::NothingToAmend`] if there is no such record; [`IssueError::NotAllowed`] unless the
/// signer is the root, or the one who revoked and still may, or for a fork any admin of the mesh.
pub fn amend(
    signer: &SecretKey,
    authority: &Authority,
    target: RecordId,
    cuts: &[Cut],
    now_ms: u64,
) -> Result<Vec<SignedRecord>, IssueError> {
    let mesh = administered(authority)?;
    let key = signer.public();
    let node = NodeId::from_bytes(*key.as_bytes());
    let by_root = authority.root() == Some(key);
    let revocation = authority
        .revocations()
        .find(|revocation| revocation.record == target);
    let is_fork = authority
        .all_frozen()
        .any(|(_, _, frozen)| frozen.proof == target);
    let (is_allowed, needed) = match revocation {
        Some(revocation) => {
            let is_theirs = revocation.by == key && authority.is_member(&node);
            (by_root || is_theirs, Role::Owner)
        }
        None if is_fork => (by_root || is_mesh_admin(authority, &node), Role::Admin),
        None => return Err(IssueError::NothingToAmend),
    };
    if !is_allowed {
        return Err(IssueError::NotAllowed {
            what: "amend it",
            needed,
        });
    }
    let mut records: Vec<SignedRecord> = Vec::new();
    for cuts in cuts.chunks(MAX_CUTS) {
        let parents = match records.last() {
            Some(last) => vec![last.id()],
            None => parents(authority, &key, &[target]),
        };
        let body = RecordBody::Amend(Amend {
            revoke: target,
            cuts: cuts.to_vec(),
        });
        records.push(sign(signer, mesh, parents, body, now_ms)?);
    }
    Ok(records)
}

/// Shows that an author signed two fragments for one place, by their envelopes.
///
/// # Errors
/// [`IssueError::Fork`] if they prove nothing, [`IssueError::NotAllowed`] unless `node` is a member.
pub fn prove_fork(
    node: &NodeKey,
    authority: &Authority,
    proof: ForkProof,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = authority.mesh().ok_or(IssueError::NoMesh)?;
    if !authority.is_member(&node.id()) {
        return Err(IssueError::NotAllowed {
            what: "show a fork",
            needed: Role::Relay,
        });
    }
    let forked = proof.check()?;
    if forked.mesh != mesh {
        return Err(IssueError::Fork(crate::record::ForkError::NoContradiction));
    }
    let parents = parents(authority, &node.public(), &[]);
    let body = RecordBody::ForkProof(proof);
    sign(node.secret(), mesh, parents, body, now_ms)
}
