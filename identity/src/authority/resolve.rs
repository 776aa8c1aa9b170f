//! The resolution itself.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AgentInfo, Authority, InviteState, MAX_CERT_DEPTH, Member, SpaceInfo, VoidReason,
};
use crate::{
    id::{AgentId, MeshId, NodeId, PublicKey, RecordId, SpaceId},
    issue::possession_message,
    record::{
        AgentCert, Genesis, Grant, InviteOpen, KeyEpoch, RecordBody, Revoke, SignedRecord,
        SpaceCreate, Verbs,
    },
    role::Role,
};

type Records = BTreeMap<RecordId, SignedRecord>;

/// Says who may do what, as `records` decide it.
///
/// Pure: the same set gives the same answer. Records whose parents are not in the set, and of
/// several geneses all but the lowest, are left out.
pub fn resolve(records: &Records) -> Authority {
    let genesis = records.iter().find_map(|(id, record)| match &record.record().body {
        RecordBody::Genesis(genesis) if genesis.root == record.signer() => Some((*id, genesis)),
        _ => None,
    });
    let Some((id, genesis)) = genesis else { return Authority::default() };
    let order = Order::of(records, id);
    // Which revocations stand is settled first: those of the root, whom nobody revokes; then those
    // of admins, whom the root alone revokes. Nobody else's count, so this ends.
    let nothing = Revokes::default();
    let mut of_root = Walk::new(records, &order, &nothing, id, genesis).run();
    of_root.keep_signed_by(records, &genesis.root);
    let standing = Walk::new(records, &order, &of_root, id, genesis).run();
    let mut walk = Walk::new(records, &order, &standing, id, genesis);
    walk.run();
    let mut authority = walk.finish();
    authority.known = records.keys().copied().collect();
    authority
}

/// The records that can be resolved, in the order they take effect.
struct Order {
    sequence: Vec<RecordId>,
}

impl Order {
    fn of(records: &Records, genesis: RecordId) -> Self {
        let mut children: BTreeMap<RecordId, Vec<RecordId>> = BTreeMap::new();
        let mut missing: BTreeMap<RecordId, usize> = BTreeMap::new();
        for (id, record) in records {
            let parents = &record.record().parents;
            missing.insert(*id, parents.len());
            for parent in parents {
                children.entry(*parent).or_default().push(*id);
            }
        }
        let mut depths: BTreeMap<RecordId, u32> = BTreeMap::from([(genesis, 0)]);
        let mut ready = vec![genesis];
        let mut sequence = Vec::new();
        while let Some(id) = ready.pop() {
            let depth = depths[&id];
            sequence.push((depth, id));
            for child in children.get(&id).into_iter().flatten() {
                let deepest = depths.entry(*child).or_default();
                *deepest = (*deepest).max(depth + 1);
                let left = missing.get_mut(child).expect("every record was counted");
                *left -= 1;
                if *left == 0 {
                    ready.push(*child);
                }
            }
        }
        sequence.sort_unstable();
        Self { sequence: sequence.into_iter().map(|(_, id)| id).collect() }
    }
}

/// A revocation that stands.
struct Standing {
    id: RecordId,
    /// What the revoker had seen.
    past: BTreeSet<RecordId>,
    /// What was decided in knowledge of it.
    future: BTreeSet<RecordId>,
}

/// The revocations that stand, by subject.
#[derive(Default)]
struct Revokes(BTreeMap<PublicKey, Vec<Standing>>);

impl Revokes {
    fn add(&mut self, records: &Records, order: &Order, id: RecordId, subject: PublicKey) {
        let mut past = BTreeSet::new();
        let mut open: Vec<RecordId> = records[&id].record().parents.clone();
        while let Some(parent) = open.pop() {
            if past.insert(parent) {
                open.extend(records.get(&parent).into_iter().flat_map(|r| r.record().parents.iter()));
            }
        }
        let mut future = BTreeSet::from([id]);
        for later in &order.sequence {
            if records[later].record().parents.iter().any(|parent| future.contains(parent)) {
                future.insert(*later);
            }
        }
        self.0.entry(subject).or_default().push(Standing { id, past, future });
    }

    fn keep_signed_by(&mut self, records: &Records, signer: &PublicKey) {
        for standing in self.0.values_mut() {
            standing.retain(|revoke| records[&revoke.id].signer() == *signer);
        }
        self.0.retain(|_, standing| !standing.is_empty());
    }

    fn of(&self, subject: &PublicKey) -> &[Standing] {
        self.0.get(subject).map_or(&[], Vec::as_slice)
    }

    /// Whether a Grant or certificate to `subject` was known to, or made in knowledge of, all that
    /// stands against it; a concurrent one is not.
    fn allow_renewal(&self, subject: &PublicKey, id: &RecordId) -> bool {
        let knows = |revoke: &Standing| revoke.past.contains(id) || revoke.future.contains(id);
        self.of(subject).iter().all(knows)
    }

    /// Whether what `signer` decided in `id` was seen by all its revokers, or made after a renewal.
    fn allow_act(&self, signer: &PublicKey, id: &RecordId, renewed: bool) -> bool {
        let stands = |revoke: &Standing| {
            revoke.past.contains(id) || (renewed && revoke.future.contains(id) && revoke.id != *id)
        };
        self.of(signer).iter().all(stands)
    }
}

struct Walk<'a> {
    records: &'a Records,
    order: &'a Order,
    revokes: &'a Revokes,
    root: PublicKey,
    out: Authority,
    found: Revokes,
}

impl<'a> Walk<'a> {
    fn new(
        records: &'a Records,
        order: &'a Order,
        revokes: &'a Revokes,
        id: RecordId,
        genesis: &Genesis,
    ) -> Self {
        let out = Authority {
            mesh: Some(MeshId::from_bytes(*id.as_bytes())),
            name: genesis.name.clone(),
            root: Some(genesis.root),
            ..Authority::default()
        };
        Self { records, order, revokes, root: genesis.root, out, found: Revokes::default() }
    }

    fn run(&mut self) -> Revokes {
        for id in &self.order.sequence {
            if let Err(reason) = self.take(id) {
                self.out.void.push((*id, reason));
            }
        }
        std::mem::take(&mut self.found)
    }

    fn finish(mut self) -> Authority {
        let resolved: BTreeSet<&RecordId> = self.order.sequence.iter().collect();
        let mut heads: BTreeSet<RecordId> = resolved.iter().map(|id| **id).collect();
        for id in resolved {
            for parent in &self.records[id].record().parents {
                heads.remove(parent);
            }
        }
        self.out.heads = heads.into_iter().collect();
        for revoked in self.revokes.0.keys() {
            let node = NodeId::from_bytes(*revoked.as_bytes());
            let agent = AgentId::from_bytes(*revoked.as_bytes());
            if !self.out.members.contains_key(&node) && !self.out.agents.contains_key(&agent) {
                self.out.revoked.insert(*revoked);
            }
        }
        // An agent falls with its node.
        let members = &self.out.members;
        self.out.agents.retain(|_, agent| members.contains_key(&agent.node));
        self.out.void.sort_unstable_by_key(|(id, _)| *id);
        self.out
    }

    fn take(&mut self, id: &RecordId) -> Result<(), VoidReason> {
        let records = self.records;
        let signed = &records[id];
        let (signer, record) = (signed.signer(), signed.record());
        if !matches!(record.body, RecordBody::Genesis(_)) {
            let renewed = self.role_of(&signer).is_some() || self.agent_of(&signer).is_some();
            if !self.revokes.allow_act(&signer, id, renewed) {
                return Err(VoidReason::Revoked);
            }
        }
        match &record.body {
            // There is one genesis: its hash is the mesh.
            RecordBody::Genesis(_) => Ok(()),
            RecordBody::Grant(grant) => self.grant(id, &signer, record.at_ms, grant),
            RecordBody::SpaceCreate(space) => self.space(id, &signer, record.at_ms, space),
            RecordBody::InviteOpen(invite) => self.invite(&signer, invite),
            RecordBody::InviteClose(close) => {
                let may = self.may_administer(&signer);
                let invite = self.out.invites.get_mut(&close.invite).ok_or(VoidReason::NoSuchInvite)?;
                if !may && PublicKey::from(invite.issuer) != signer {
                    return Err(VoidReason::NotAllowed);
                }
                invite.closed = true;
                Ok(())
            }
            RecordBody::AgentCert(cert) => self.certificate(id, &signer, cert),
            RecordBody::Revoke(revoke) => self.revoke(id, &signer, revoke),
            RecordBody::KeyEpoch(epoch) => self.key_epoch(&signer, epoch),
            _ => Err(VoidReason::Deferred),
        }
    }

    fn role_of(&self, signer: &PublicKey) -> Option<Role> {
        if *signer == self.root {
            return Some(Role::Owner);
        }
        let node = NodeId::from_bytes(*signer.as_bytes());
        self.out.members.get(&node).map(|member| member.role)
    }

    fn agent_of(&self, signer: &PublicKey) -> Option<&AgentInfo> {
        self.out.agents.get(&AgentId::from_bytes(*signer.as_bytes()))
    }

    fn may_administer(&self, signer: &PublicKey) -> bool {
        self.role_of(signer).is_some_and(Role::can_grant)
    }

    /// Whether `signer` may hand out roles in `space`.
    fn may_administer_space(&self, signer: &PublicKey, space: &SpaceId) -> bool {
        let node = NodeId::from_bytes(*signer.as_bytes());
        let here = || self.out.role_in(&node, space).is_some_and(Role::can_grant);
        self.may_administer(signer) || here()
    }

    fn grant(
        &mut self,
        id: &RecordId,
        signer: &PublicKey,
        at_ms: u64,
        grant: &Grant,
    ) -> Result<(), VoidReason> {
        let by_root = *signer == self.root;
        let held = self.out.members.get(&grant.node).cloned();
        let gives = grant.spaces.iter().map(|space| space.role).chain([grant.role]).max();
        let gives = gives.unwrap_or(grant.role);
        // Owner is the root alone; admins are the root's to make, and to unmake.
        let touches_admin = gives >= Role::Admin || held.as_ref().is_some_and(|member| member.role >= Role::Admin);
        if gives >= Role::Owner || (touches_admin && !by_root) {
            return Err(VoidReason::NotAllowed);
        }
        let mut spaces = grant.spaces.iter().map(|space| &space.space);
        let covers = |space| self.may_administer_space(signer, space);
        let is_allowed = self.may_administer(signer)
            || (!grant.spaces.is_empty() && grant.role <= Role::Writer && spaces.all(covers));
        if !is_allowed {
            return Err(VoidReason::NotAllowed);
        }
        if !grant.spaces.iter().all(|space| self.out.spaces.contains_key(&space.space)) {
            return Err(VoidReason::UnknownSpace);
        }
        if !self.revokes.allow_renewal(&grant.node.into(), id) {
            return Err(VoidReason::Revoked);
        }
        if let Some(invite) = &grant.invite {
            self.redeem(signer, invite, gives, grant)?;
        }
        let earlier = held.map(|member| (member.grant, member.since_ms, member.role, member.spaces));
        let (since_ms, mut role, mut roles) = match earlier {
            None => (at_ms, grant.role, BTreeMap::new()),
            Some((before, since_ms, held, roles)) => {
                let concurrent = !self.is_ancestor(&before, id);
                (since_ms, if concurrent { held.min(grant.role) } else { grant.role }, roles)
            }
        };
        role = role.min(Role::Admin);
        for space in &grant.spaces {
            roles.insert(space.space, space.role);
            let keys = self.out.keys.entry(grant.node).or_default();
            for key in space.keys.iter().filter(|_| space.role.can_read()) {
                keys.entry((space.space, key.epoch)).or_insert_with(|| key.clone());
            }
        }
        let member = Member {
            node: grant.node,
            name: grant.node_name.clone(),
            role,
            spaces: roles,
            grant: *id,
            since_ms,
        };
        self.out.members.insert(grant.node, member);
        Ok(())
    }

    fn redeem(
        &mut self,
        signer: &PublicKey,
        invite: &crate::id::InviteId,
        gives: Role,
        grant: &Grant,
    ) -> Result<(), VoidReason> {
        let known = self.out.members.contains_key(&grant.node);
        let state = self.out.invites.get_mut(invite).ok_or(VoidReason::NoSuchInvite)?;
        let covers = |space: &SpaceId| state.spaces.binary_search(space).is_ok();
        let by_issuer = PublicKey::from(state.issuer) == *signer || *signer == self.root;
        let is_covered = gives <= state.role && grant.spaces.iter().all(|space| covers(&space.space));
        if state.closed || !by_issuer || !is_covered {
            return Err(VoidReason::NoSuchInvite);
        }
        if known {
            return Ok(());
        }
        if state.used >= state.uses {
            return Err(VoidReason::OverLimit);
        }
        state.used += 1;
        Ok(())
    }

    fn is_ancestor(&self, ancestor: &RecordId, of: &RecordId) -> bool {
        let mut seen = BTreeSet::new();
        let mut open: Vec<RecordId> = self.records[of].record().parents.clone();
        while let Some(id) = open.pop() {
            if id == *ancestor {
                return true;
            }
            if seen.insert(id) {
                open.extend(self.records.get(&id).into_iter().flat_map(|r| r.record().parents.iter()));
            }
        }
        false
    }

    fn space(
        &mut self,
        id: &RecordId,
        signer: &PublicKey,
        at_ms: u64,
        space: &SpaceCreate,
    ) -> Result<(), VoidReason> {
        let node = NodeId::from_bytes(*signer.as_bytes());
        if !self.may_administer(signer) || *signer == self.root {
            return Err(VoidReason::NotAllowed);
        }
        let space_id = SpaceId::from_bytes(*id.as_bytes());
        let info = SpaceInfo {
            id: space_id,
            name: space.name.clone(),
            epoch: 1,
            created_by: node,
            at_ms,
            nonce: space.nonce,
            commitments: BTreeMap::from([(1, space.commitment)]),
        };
        self.out.spaces.insert(space_id, info);
        if let Some(member) = self.out.members.get_mut(&node) {
            member.spaces.insert(space_id, Role::Admin);
        }
        for wrap in &space.keys {
            let keys = self.out.keys.entry(wrap.node).or_default();
            keys.entry((space_id, wrap.key.epoch)).or_insert_with(|| wrap.key.clone());
        }
        Ok(())
    }

    fn invite(&mut self, signer: &PublicKey, invite: &InviteOpen) -> Result<(), VoidReason> {
        let covers = |space| self.may_administer_space(signer, space);
        let is_allowed = self.may_administer(signer)
            || (!invite.spaces.is_empty() && invite.spaces.iter().all(covers));
        if !is_allowed || *signer == self.root || invite.role >= Role::Owner {
            return Err(VoidReason::NotAllowed);
        }
        if !invite.spaces.iter().all(|space| self.out.spaces.contains_key(space)) {
            return Err(VoidReason::UnknownSpace);
        }
        if self.out.invites.contains_key(&invite.invite) {
            return Err(VoidReason::Taken);
        }
        let state = InviteState {
            id: invite.invite,
            role: invite.role,
            spaces: invite.spaces.clone(),
            uses: invite.uses,
            used: 0,
            not_after_ms: invite.not_after_ms,
            issuer: NodeId::from_bytes(*signer.as_bytes()),
            closed: false,
            approve: invite.approve,
        };
        self.out.invites.insert(invite.invite, state);
        Ok(())
    }

    fn certificate(
        &mut self,
        id: &RecordId,
        signer: &PublicKey,
        cert: &AgentCert,
    ) -> Result<(), VoidReason> {
        let mesh = self.out.mesh.expect("a walk has a mesh");
        let message = possession_message(&mesh, signer);
        if PublicKey::from(cert.agent).verify(&message, &cert.possession).is_err() {
            return Err(VoidReason::NoPossession);
        }
        if !self.revokes.allow_renewal(&cert.agent.into(), id) {
            return Err(VoidReason::Revoked);
        }
        let node = NodeId::from_bytes(*signer.as_bytes());
        let wanted: Option<BTreeSet<SpaceId>> = cert.spaces.as_ref().map(|s| s.iter().copied().collect());
        let (node, mut chain) = if self.out.members.contains_key(&node) {
            (node, Vec::new())
        } else {
            let issuer = self.agent_of(signer).ok_or(VoidReason::NotAllowed)?;
            if !issuer.verbs.includes(Verbs::CERTIFY) {
                return Err(VoidReason::NotAllowed);
            }
            if issuer.chain.len() >= MAX_CERT_DEPTH {
                return Err(VoidReason::TooDeep);
            }
            let within = match (&issuer.spaces, &wanted) {
                (None, _) => true,
                (Some(has), Some(wants)) => wants.is_subset(has),
                (Some(_), None) => false,
            };
            let in_time = match (issuer.not_after_ms, cert.not_after_ms) {
                (None, _) => true,
                (Some(has), Some(wants)) => wants <= has,
                (Some(_), None) => false,
            };
            if !within || !in_time || !issuer.verbs.includes(cert.verbs) {
                return Err(VoidReason::TooWide);
            }
            (issuer.node, issuer.chain.clone())
        };
        // A node may renew a certificate; nobody may take over another's agent.
        if self.out.agents.get(&cert.agent).is_some_and(|held| held.node != node) {
            return Err(VoidReason::Taken);
        }
        chain.push(*id);
        let info = AgentInfo {
            id: cert.agent,
            name: cert.name.clone(),
            node,
            spaces: wanted,
            not_after_ms: cert.not_after_ms,
            verbs: cert.verbs,
            chain,
        };
        self.out.agents.insert(cert.agent, info);
        Ok(())
    }

    fn revoke(&mut self, id: &RecordId, signer: &PublicKey, revoke: &Revoke) -> Result<(), VoidReason> {
        let subject_node = NodeId::from_bytes(*revoke.subject.as_bytes());
        let subject_role = self.out.members.get(&subject_node).map(|member| member.role);
        let own_agent = self
            .agent_of(&revoke.subject)
            .is_some_and(|agent| PublicKey::from(agent.node) == *signer);
        let is_allowed = match subject_role {
            Some(role) if role >= Role::Admin => *signer == self.root,
            _ => self.may_administer(signer) || own_agent,
        };
        if !is_allowed {
            return Err(VoidReason::NotAllowed);
        }
        self.found.add(self.records, self.order, *id, revoke.subject);
        self.out.members.remove(&subject_node);
        self.out.keys.remove(&subject_node);
        self.out.agents.remove(&AgentId::from_bytes(*revoke.subject.as_bytes()));
        for cut in &revoke.cuts {
            let place = self.out.cuts.entry((cut.author, cut.space)).or_insert((cut.seq, cut.hash));
            // Of several revocations the lowest cut counts; of equal ones the lower hash.
            *place = (*place).min((cut.seq, cut.hash));
        }
        Ok(())
    }

    fn key_epoch(&mut self, signer: &PublicKey, epoch: &KeyEpoch) -> Result<(), VoidReason> {
        if !self.may_administer_space(signer, &epoch.space) {
            return Err(VoidReason::NotAllowed);
        }
        let space = self.out.spaces.get_mut(&epoch.space).ok_or(VoidReason::UnknownSpace)?;
        if epoch.epoch != space.epoch + 1 {
            return Err(VoidReason::Taken);
        }
        space.epoch = epoch.epoch;
        space.commitments.insert(epoch.epoch, epoch.commitment);
        for wrap in epoch.wraps.iter().filter(|wrap| wrap.key.epoch == epoch.epoch) {
            let keys = self.out.keys.entry(wrap.node).or_default();
            keys.insert((epoch.space, epoch.epoch), wrap.key.clone());
        }
        Ok(())
    }
}
