//! What a key may do at a place of the walk, by what the walk has found valid so far.
//!
//! Each question has an `act`: the place whose ancestors answer it, or `None` for all there is.

use super::{
    Walk,
    standing::{Right, Standing},
};
use crate::{
    authority::VoidReason,
    id::{NodeId, PublicKey, SpaceId},
    record::Grant,
    role::Role,
};

impl<'a> Walk<'a> {
    /// Whether `key` was the root for what it signed at `act`.
    pub(super) fn is_root(&self, key: &PublicKey, act: usize) -> bool {
        self.roots.is_root(self.past, key, Some(act))
    }

    /// Whether the root signed the record at `at`.
    pub(super) fn is_by_root(&self, at: usize) -> bool {
        self.is_root(&self.records[&self.past.order[at]].signer(), at)
    }

    /// Returns the Grants to `node` that support what it does at `act`, or today, in order.
    pub(super) fn live(
        &self,
        node: &NodeId,
        act: Option<usize>,
    ) -> impl DoubleEndedIterator<Item = (usize, &'a Grant)> {
        let grants = self.grants.get(node).map_or(&[][..], Vec::as_slice);
        let subject = PublicKey::from(*node);
        grants.iter().copied().filter(move |(at, grant)| {
            let makes_admin = grant.role.can_grant() && self.is_by_root(*at);
            act.is_none_or(|act| self.past.has(act, *at))
                && self.standing.allow(
                    self.past,
                    &subject,
                    *at,
                    Standing::Grant { makes_admin },
                    act,
                )
        })
    }

    /// Returns the lowest of the roles that no later one replaces.
    fn lowest(&self, roles: impl DoubleEndedIterator<Item = (usize, Role)>) -> Option<Role> {
        let mut latest: Vec<usize> = Vec::new();
        let mut lowest = None;
        for (at, role) in roles.rev() {
            if !latest.iter().any(|later| self.past.has(*later, at)) {
                latest.push(at);
                lowest = Some(lowest.map_or(role, |lowest: Role| lowest.min(role)));
            }
        }
        lowest
    }

    /// Returns the role that the decisions `(place, role, by the root)` give together.
    ///
    /// What the root made an admin, no admin unmakes.
    pub(super) fn role(&self, given: &[(usize, Role, bool)]) -> Option<Role> {
        let by_root = given.iter().filter(|(_, _, root)| *root);
        let by_root = self.lowest(by_root.map(|(at, role, _)| (*at, *role)));
        if by_root.is_some_and(Role::can_grant) {
            return by_root;
        }
        self.lowest(given.iter().map(|(at, role, _)| (*at, *role)))
    }

    /// Whether `key` is the root, or what the root made an admin of the mesh.
    pub(super) fn is_admin(&self, key: &PublicKey, act: Option<usize>) -> bool {
        if self.roots.is_root(self.past, key, act) {
            return true;
        }
        let node = NodeId::from_bytes(*key.as_bytes());
        let by_root = self.live(&node, act).filter(|(at, _)| self.is_by_root(*at));
        self.lowest(by_root.map(|(at, grant)| (at, grant.role)))
            .is_some_and(Role::can_grant)
    }

    pub(super) fn is_member(&self, node: &NodeId, act: Option<usize>) -> bool {
        self.live(node, act).next().is_some()
    }

    /// Returns the role of a member in a space.
    pub(super) fn role_in(
        &self,
        node: &NodeId,
        space: &SpaceId,
        act: Option<usize>,
    ) -> Option<Role> {
        let mut given = Vec::new();
        let mut is_member = false;
        for (at, grant) in self.live(node, act) {
            is_member = true;
            let named = grant.spaces.iter().find(|given| given.space == *space);
            given.extend(named.map(|named| (at, named.role, self.is_by_root(at))));
        }
        let made = self.spaces.get(space).filter(|made| made.creator == *node);
        if let Some(made) = made.filter(|made| act.is_none_or(|act| self.past.has(act, made.at))) {
            // As good as the root's word: making a space takes an admin, and the space is new.
            given.push((made.at, Role::Admin, true));
            given.sort_unstable_by_key(|(at, ..)| *at);
        }
        if is_member { self.role(&given) } else { None }
    }

    /// Whether `key` may hand out roles in `space`.
    pub(super) fn administers(&self, key: &PublicKey, space: &SpaceId, act: usize) -> bool {
        let node = NodeId::from_bytes(*key.as_bytes());
        self.is_admin(key, Some(act))
            || self
                .role_in(&node, space, Some(act))
                .is_some_and(Role::can_grant)
    }

    pub(super) fn knows_space(&self, space: &SpaceId, act: usize) -> bool {
        self.spaces
            .get(space)
            .is_some_and(|made| self.past.has(act, made.at))
    }

    /// Whether `signer` may let nodes into `spaces`, or into the mesh alone when there are none.
    pub(super) fn may_let_in<'s>(
        &self,
        act: usize,
        signer: &PublicKey,
        mut spaces: impl ExactSizeIterator<Item = &'s SpaceId> + Clone,
    ) -> Result<(), VoidReason> {
        if !spaces.clone().all(|space| self.knows_space(space, act)) {
            return Err(VoidReason::UnknownSpace);
        }
        let is_allowed = self.is_admin(signer, Some(act))
            || (spaces.len() > 0 && spaces.all(|space| self.administers(signer, space, act)));
        if is_allowed {
            Ok(())
        } else {
            Err(self.refusal(signer, act))
        }
    }

    /// Says why a signer without the right to something lacks it.
    pub(super) fn refusal(&self, signer: &PublicKey, act: usize) -> VoidReason {
        let unseen = |(revoke, _): &(usize, Right)| !self.past.has(*revoke, act);
        let is_former_root = self.roots.has_been(signer) && !self.is_root(signer, act);
        if is_former_root || self.standing.of(signer).iter().any(unseen) {
            VoidReason::Revoked
        } else {
            VoidReason::NotAllowed
        }
    }
}
