//! The resolution itself.
//!
//! Records are walked in the order (depth, id), so that ancestors come first, but each is judged
//! by its own ancestors alone: a record that only seems older than it is gains nothing, and what
//! is valid does not depend on what else arrived. Two things depend on the whole set, and are
//! settled by rules of their own: revocations, and the limit of an invite.
//!
//! Revocations are settled in three strata, each of which only those before it can affect: the
//! root's, which nobody revokes; those of admins, whom the root alone makes and revokes; those of
//! nodes over their own agents. So three walks find the ones that stand, and a fourth the rest. A
//! stratum without revocations changes nothing for the next, which needs no walk of its own then:
//! mostly there is one in all. Which key is the root when is settled before all of them (`roots`):
//! it depends on nothing else. Where chains are cut decides about no record and comes last (`cuts`).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AgentInfo, Authority, InviteState, MAX_CERT_DEPTH, MAX_RIVALS, NamedKey, SpaceInfo, VoidReason,
};
use crate::{
    epoch::{FIRST_EPOCH, WrappedKey, can_be_given_keys},
    id::{AgentId, InviteId, MeshId, NodeId, PublicKey, RecordId, SpaceId},
    issue::possession_message,
    record::{
        AgentCert, Amend, Forked, Genesis, Grant, InviteOpen, KeyEpoch, RecordBody, Revoke,
        SignedRecord, SpaceCreate, Verbs,
    },
    role::Role,
};

mod cuts;
mod outcome;
mod past;
mod rights;
mod roots;
mod standing;

use past::Past;
use roots::Roots;
use standing::{Revokes, Right, Standing};

type Records = BTreeMap<RecordId, SignedRecord>;

/// Says who may do what, as `records` decide it.
///
/// Pure: the same set gives the same answer. Records whose ancestors are not all in the set, and
/// of several geneses all but the lowest, are left out.
pub fn resolve(records: &Records) -> Authority {
    let genesis = records
        .iter()
        .find_map(|(id, record)| match &record.record().body {
            RecordBody::Genesis(genesis) if genesis.root == record.signer() => Some((*id, genesis)),
            _ => None,
        });
    let Some((id, genesis)) = genesis else {
        return Authority::default();
    };
    let past = Past::of(records, id);
    let roots = Roots::of(records, &past, genesis);
    let mut standing = Revokes::default();
    let mut strata = [Right::Root, Right::Admin, Right::Node].into_iter();
    loop {
        let mut walk = Walk::new(records, &past, &roots, &standing, id);
        walk.run();
        let revokes = strata.find_map(|right| {
            let found = walk.found.by(right);
            (!found.is_empty()).then_some((right, found))
        });
        let Some((right, found)) = revokes else {
            return walk.finish(genesis);
        };
        for (subject, at) in found {
            standing.add(subject, at, right);
        }
    }
}

/// A certificate that was valid when it was made.
struct Cert {
    at: usize,
    info: AgentInfo,
    /// The certificates from the node's own down to this one, by place, with their agents.
    line: Vec<(usize, AgentId)>,
}

struct Space<'a> {
    at: usize,
    creator: NodeId,
    create: &'a SpaceCreate,
    /// The key epochs after the first, by number: place and record.
    epochs: BTreeMap<u32, (usize, &'a KeyEpoch)>,
    /// Those that came second: made at the same time as the one in force under their number.
    rivals: Vec<(usize, &'a KeyEpoch)>,
}

struct Invite<'a> {
    at: usize,
    issuer: PublicKey,
    open: &'a InviteOpen,
    /// Who it let in.
    used_by: BTreeSet<NodeId>,
    closes: Vec<usize>,
}

struct Walk<'a> {
    records: &'a Records,
    past: &'a Past,
    roots: &'a Roots,
    standing: &'a Revokes,
    mesh: MeshId,
    /// Grants that were valid when they were made, in order.
    grants: BTreeMap<NodeId, Vec<(usize, &'a Grant)>>,
    spaces: BTreeMap<SpaceId, Space<'a>>,
    invites: BTreeMap<InviteId, Invite<'a>>,
    certs: BTreeMap<AgentId, Vec<Cert>>,
    found: Revokes,
    /// What raises cuts, by the place of the Revoke or ForkProof it is about.
    amends: BTreeMap<usize, Vec<(usize, &'a Amend)>>,
    forks: BTreeMap<(AgentId, SpaceId), Vec<(usize, Forked)>>,
    void: BTreeMap<RecordId, VoidReason>,
}

impl<'a> Walk<'a> {
    fn new(
        records: &'a Records,
        past: &'a Past,
        roots: &'a Roots,
        standing: &'a Revokes,
        id: RecordId,
    ) -> Walk<'a> {
        Walk {
            records,
            past,
            roots,
            standing,
            mesh: MeshId::from_bytes(*id.as_bytes()),
            grants: BTreeMap::new(),
            spaces: BTreeMap::new(),
            invites: BTreeMap::new(),
            certs: BTreeMap::new(),
            found: Revokes::default(),
            amends: BTreeMap::new(),
            forks: BTreeMap::new(),
            void: BTreeMap::new(),
        }
    }

    fn run(&mut self) {
        let past = self.past;
        for (at, id) in past.order.iter().enumerate() {
            if let Err(reason) = self.take(at, &self.records[id]) {
                self.void.insert(*id, reason);
            }
        }
    }

    fn take(&mut self, at: usize, signed: &'a SignedRecord) -> Result<(), VoidReason> {
        let signer = signed.signer();
        let body = &signed.record().body;
        // A restriction that this version does not know in full still restricts; a permission
        // with a condition that it does not know permits nothing.
        let restricts = matches!(body, RecordBody::Revoke(_) | RecordBody::InviteClose(_));
        if !signed.is_understood() && !restricts {
            return Err(VoidReason::Deferred);
        }
        if takes_an_admin(body) && self.roots.halts(self.past, at) {
            return Err(VoidReason::Halted);
        }
        match body {
            // There is one genesis: its id is the mesh.
            RecordBody::Genesis(_) => Ok(()),
            RecordBody::Grant(grant) => self.grant(at, &signer, grant),
            RecordBody::SpaceCreate(create) => self.space(at, signed, create),
            RecordBody::InviteOpen(open) => self.invite(at, &signer, open),
            RecordBody::InviteClose(close) => {
                let admin = self.is_admin(&signer, Some(at));
                let invite = self.invites.get_mut(&close.invite);
                let invite = invite.filter(|invite| self.past.has(at, invite.at));
                let invite = invite.ok_or(VoidReason::NoSuchInvite)?;
                if !admin && invite.issuer != signer {
                    return Err(VoidReason::NotAllowed);
                }
                invite.closes.push(at);
                Ok(())
            }
            RecordBody::AgentCert(cert) => self.certificate(at, signed, cert),
            RecordBody::Revoke(revoke) => self.revoke(at, &signer, revoke),
            RecordBody::Amend(amend) => self.amend(at, &signer, amend),
            RecordBody::KeyEpoch(epoch) => self.key_epoch(at, &signer, epoch),
            RecordBody::RotateRoot(_) if self.roots.is_rotation(at) => Ok(()),
            RecordBody::RotateRoot(_) => Err(VoidReason::NotAllowed),
            RecordBody::ForkProof(_) => self.fork(at, signed),
            RecordBody::Checkpoint(_) | RecordBody::Unknown(_) => Err(VoidReason::Deferred),
        }
    }

    fn grant(&mut self, at: usize, signer: &PublicKey, grant: &'a Grant) -> Result<(), VoidReason> {
        let roles = grant
            .spaces
            .iter()
            .map(|space| space.role)
            .chain([grant.role]);
        let gives = roles.max().unwrap_or(grant.role);
        // Owner is the root alone; admins are the root's to make.
        if gives >= Role::Owner {
            return Err(VoidReason::NotAllowed);
        }
        if gives.can_grant() && !self.is_root(signer, at) {
            return Err(self.refusal(signer, at));
        }
        self.may_let_in(at, signer, grant.spaces.iter().map(|space| &space.space))?;
        if let Some(invite) = &grant.invite {
            self.redeem(at, signer, invite, gives, grant)?;
        }
        self.grants.entry(grant.node).or_default().push((at, grant));
        let makes_admin = grant.role.can_grant();
        let standing = Standing::Grant { makes_admin };
        let subject = PublicKey::from(grant.node);
        if self.standing.allow(self.past, &subject, at, standing, None) {
            return Ok(());
        }
        // It counted until it was revoked; only one that was never in force is void.
        let counted = self
            .standing
            .of(&subject)
            .iter()
            .all(|(revoke, _)| self.past.has(*revoke, at) || self.past.has(at, *revoke));
        if counted {
            Ok(())
        } else {
            Err(VoidReason::Revoked)
        }
    }

    fn redeem(
        &mut self,
        at: usize,
        signer: &PublicKey,
        id: &InviteId,
        gives: Role,
        grant: &Grant,
    ) -> Result<(), VoidReason> {
        let is_member = self.is_member(&grant.node, Some(at));
        let by_root = self.is_root(signer, at);
        let past = self.past;
        let invite = self
            .invites
            .get_mut(id)
            .filter(|invite| past.has(at, invite.at));
        let invite = invite.ok_or(VoidReason::NoSuchInvite)?;
        let is_open = !invite.closes.iter().any(|close| past.has(at, *close));
        let is_theirs = invite.issuer == *signer || by_root;
        let covers = |space: &SpaceId| invite.open.spaces.binary_search(space).is_ok();
        let is_covered =
            gives <= invite.open.role && grant.spaces.iter().all(|given| covers(&given.space));
        if !is_open || !is_theirs || !is_covered {
            return Err(VoidReason::NoSuchInvite);
        }
        // A use is a node let in: letting the same one in again, after a lost answer, is none.
        if is_member || invite.used_by.contains(&grant.node) {
            return Ok(());
        }
        if invite.used_by.len() >= usize::from(invite.open.uses) {
            return Err(VoidReason::OverLimit);
        }
        invite.used_by.insert(grant.node);
        Ok(())
    }

    fn space(
        &mut self,
        at: usize,
        signed: &SignedRecord,
        create: &'a SpaceCreate,
    ) -> Result<(), VoidReason> {
        let signer = signed.signer();
        // The root is no node, so it could hold no role in its space.
        if self.is_root(&signer, at) || !self.is_admin(&signer, Some(at)) {
            return Err(self.refusal(&signer, at));
        }
        let space = Space {
            at,
            creator: NodeId::from_bytes(*signer.as_bytes()),
            create,
            epochs: BTreeMap::new(),
            rivals: Vec::new(),
        };
        self.spaces
            .insert(SpaceId::from_bytes(*signed.id().as_bytes()), space);
        Ok(())
    }

    fn invite(
        &mut self,
        at: usize,
        signer: &PublicKey,
        open: &'a InviteOpen,
    ) -> Result<(), VoidReason> {
        // The root is kept offline: it lets nobody in by a connection.
        if self.is_root(signer, at) || open.role.can_grant() {
            return Err(VoidReason::NotAllowed);
        }
        self.may_let_in(at, signer, open.spaces.iter())?;
        if self.invites.contains_key(&open.invite) {
            return Err(VoidReason::Taken);
        }
        let invite = Invite {
            at,
            issuer: *signer,
            open,
            used_by: BTreeSet::new(),
            closes: Vec::new(),
        };
        self.invites.insert(open.invite, invite);
        Ok(())
    }

    /// Whether every certificate of the line supports what its agent does at `act`, or today.
    fn is_line_live(&self, cert: &Cert, act: Option<usize>) -> bool {
        let is_live = |(at, agent): &(usize, AgentId)| {
            act.is_none_or(|act| self.past.has(act, *at))
                && self
                    .standing
                    .allow(self.past, &(*agent).into(), *at, Standing::Cert, act)
        };
        // What a node certified falls with the node, and does not rise again when it is let in anew.
        let node = PublicKey::from(cert.info.node);
        let standing = Standing::Grant {
            makes_admin: self.is_admin(&node, act),
        };
        let first = cert.line.first().map_or(cert.at, |(at, _)| *at);
        cert.line.iter().all(is_live)
            && self.is_member(&cert.info.node, act)
            && self.standing.allow(self.past, &node, first, standing, act)
    }

    fn certificate(
        &mut self,
        at: usize,
        signed: &SignedRecord,
        cert: &AgentCert,
    ) -> Result<(), VoidReason> {
        let signer = signed.signer();
        let message = possession_message(&self.mesh, &signer);
        if PublicKey::from(cert.agent)
            .verify(&message, &cert.possession)
            .is_err()
        {
            return Err(VoidReason::NoPossession);
        }
        let spaces: Option<BTreeSet<SpaceId>> = cert
            .spaces
            .as_ref()
            .map(|spaces| spaces.iter().copied().collect());
        let node = NodeId::from_bytes(*signer.as_bytes());
        let (node, mut line) = if self.is_member(&node, Some(at)) {
            (node, Vec::new())
        } else {
            let by = self.certs.get(&AgentId::from_bytes(*signer.as_bytes()));
            let live = by
                .into_iter()
                .flatten()
                .rev()
                .filter(|by| self.is_line_live(by, Some(at)));
            // The newest that covers it; when none does, the newest says why.
            let mut refused = None;
            let mut covering = None;
            for by in live {
                match covers(&by.info, cert, spaces.as_ref(), by.line.len()) {
                    Ok(()) => {
                        covering = Some(by);
                        break;
                    }
                    Err(reason) => refused = refused.or(Some(reason)),
                }
            }
            let refusal = || refused.unwrap_or_else(|| self.refusal(&signer, at));
            let by = covering.ok_or_else(refusal)?;
            (by.info.node, by.line.clone())
        };
        line.push((at, cert.agent));
        let info = AgentInfo {
            id: cert.agent,
            name: cert.name.clone(),
            node,
            spaces,
            not_after_ms: cert.not_after_ms,
            verbs: cert.verbs,
            chain: line.iter().map(|(at, _)| self.past.order[*at]).collect(),
        };
        self.certs
            .entry(cert.agent)
            .or_default()
            .push(Cert { at, info, line });
        Ok(())
    }

    fn revoke(&mut self, at: usize, signer: &PublicKey, revoke: &Revoke) -> Result<(), VoidReason> {
        // What an earlier walk found to stand is not judged by what it has ended itself.
        if self.standing.has(&revoke.subject, at) {
            return Ok(());
        }
        let is_halted = self.roots.halts(self.past, at);
        let right = if self.is_root(signer, at) && !is_halted {
            Right::Root
        } else if self.is_admin(signer, Some(at)) && !is_halted {
            self.may_revoke(at, signer, &revoke.subject)?;
            Right::Admin
        } else {
            let agent = AgentId::from_bytes(*revoke.subject.as_bytes());
            let mut certs = self.certs.get(&agent).into_iter().flatten();
            let is_own = certs.any(|cert| {
                PublicKey::from(cert.info.node) == *signer && self.is_line_live(cert, Some(at))
            });
            if !is_own {
                return Err(if is_halted {
                    VoidReason::Halted
                } else {
                    self.refusal(signer, at)
                });
            }
            Right::Node
        };
        self.found.add(revoke.subject, at, right);
        Ok(())
    }

    /// Whether an admin may revoke `subject`: a member that is no admin, or an agent that is not
    /// another admin's.
    fn may_revoke(
        &self,
        at: usize,
        signer: &PublicKey,
        subject: &PublicKey,
    ) -> Result<(), VoidReason> {
        let node = NodeId::from_bytes(*subject.as_bytes());
        let agent = AgentId::from_bytes(*subject.as_bytes());
        let certs = self.certs.get(&agent).into_iter().flatten();
        let mut hosts = certs
            .filter(|cert| self.past.has(at, cert.at))
            .map(|cert| PublicKey::from(cert.info.node));
        let mut grants = self.grants.get(&node).into_iter().flatten();
        let is_known =
            grants.any(|(grant, _)| self.past.has(at, *grant)) || hosts.clone().next().is_some();
        let is_admins = hosts.any(|host| host != *signer && self.is_admin(&host, Some(at)));
        if !is_known || is_admins || self.is_admin(subject, Some(at)) {
            return Err(VoidReason::NotAllowed);
        }
        Ok(())
    }

    fn key_epoch(
        &mut self,
        at: usize,
        signer: &PublicKey,
        epoch: &'a KeyEpoch,
    ) -> Result<(), VoidReason> {
        if !self.knows_space(&epoch.space, at) {
            return Err(VoidReason::UnknownSpace);
        }
        if !self.administers(signer, &epoch.space, at) {
            return Err(self.refusal(signer, at));
        }
        let past = self.past;
        let space = self
            .spaces
            .get_mut(&epoch.space)
            .ok_or(VoidReason::UnknownSpace)?;
        // Whoever made it may have known a rival alone, which is counted on from all the same.
        let known = space.epochs.values().chain(&space.rivals);
        let last = known
            .filter(|(before, _)| past.has(at, *before))
            .map(|(_, known)| known.epoch)
            .max()
            .unwrap_or(FIRST_EPOCH);
        if last.checked_add(1) != Some(epoch.epoch) {
            return Err(VoidReason::Taken);
        }
        // Of two that fill one number, the first in order holds.
        if space.epochs.contains_key(&epoch.epoch) {
            let rivals = space.rivals.iter();
            let rivals = rivals.filter(|(_, rival)| rival.epoch == epoch.epoch);
            if rivals.count() < MAX_RIVALS {
                space.rivals.push((at, epoch));
            }
            return Err(VoidReason::Taken);
        }
        space.epochs.insert(epoch.epoch, (at, epoch));
        Ok(())
    }
}

/// Whether a record decides over others than its signer's own agents.
///
/// A node goes on certifying and ending its own agents whatever becomes of the root. A Revoke is
/// looked at more closely, by whose right it was made.
fn takes_an_admin(body: &RecordBody) -> bool {
    match body {
        RecordBody::Grant(_)
        | RecordBody::SpaceCreate(_)
        | RecordBody::InviteOpen(_)
        | RecordBody::InviteClose(_)
        | RecordBody::Amend(_)
        | RecordBody::KeyEpoch(_)
        | RecordBody::RotateRoot(_) => true,
        RecordBody::Genesis(_)
        | RecordBody::AgentCert(_)
        | RecordBody::Revoke(_)
        | RecordBody::ForkProof(_)
        | RecordBody::Checkpoint(_)
        | RecordBody::Unknown(_) => false,
    }
}

/// Checks that a certificate gives no more than its issuer's.
fn covers(
    by: &AgentInfo,
    cert: &AgentCert,
    spaces: Option<&BTreeSet<SpaceId>>,
    depth: usize,
) -> Result<(), VoidReason> {
    if !by.verbs.includes(Verbs::CERTIFY) {
        return Err(VoidReason::NotAllowed);
    }
    if depth >= MAX_CERT_DEPTH {
        return Err(VoidReason::TooDeep);
    }
    let within = match (&by.spaces, spaces) {
        (None, _) => true,
        (Some(has), Some(wants)) => wants.is_subset(has),
        (Some(_), None) => false,
    };
    let in_time = match (by.not_after_ms, cert.not_after_ms) {
        (None, _) => true,
        (Some(has), Some(wants)) => wants <= has,
        (Some(_), None) => false,
    };
    if within && in_time && by.verbs.includes(cert.verbs) {
        Ok(())
    } else {
        Err(VoidReason::TooWide)
    }
}
