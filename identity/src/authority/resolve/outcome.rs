//! From what was valid to what is so today.

use super::*;
use crate::authority::Member;
use crate::record::MAX_PARENTS;

impl<'a> Walk<'a> {
    pub(super) fn finish(self, genesis: &Genesis) -> Authority {
        let members = self.members();
        let (agents, fallen) = self.agents(&members);
        let mut revoked = self.revoked(&members, &agents);
        revoked.extend(fallen.into_iter().map(PublicKey::from));
        let cuts = self.cuts(&revoked);
        let halted = self.roots.fork().iter().map(|at| self.past.order[*at]);
        let (heads, deepest) = self.heads();
        Authority {
            mesh: Some(self.mesh),
            name: genesis.name.clone(),
            root: Some(self.roots.current()),
            next_root: Some(self.roots.next()),
            halted: halted.collect(),
            heads,
            deepest,
            known: self.past.order.iter().copied().collect(),
            spaces: self.spaces(),
            keys: self.keys(&members),
            invites: self.invites(),
            frozen: self.frozen(),
            authors: self.authors(),
            revocations: self.revocations(),
            members,
            agents,
            cuts,
            revoked,
            void: self.void.into_iter().collect(),
        }
    }

    fn at_ms(&self, at: usize) -> u64 {
        self.records[&self.past.order[at]].record().at_ms
    }

    fn members(&self) -> BTreeMap<NodeId, Member> {
        let mut members = BTreeMap::new();
        for node in self.grants.keys() {
            let live: Vec<(usize, &Grant)> = self.live(node, None).collect();
            let (Some((first, _)), Some((last, newest))) = (live.first(), live.last()) else {
                continue;
            };
            let given: Vec<_> = live
                .iter()
                .map(|(at, grant)| (*at, grant.role, self.is_by_root(*at)))
                .collect();
            let Some(role) = self.role(&given) else {
                continue;
            };
            let named = live
                .iter()
                .flat_map(|(_, grant)| grant.spaces.iter().map(|at| at.space));
            let made = self.spaces.iter().filter(|(_, made)| made.creator == *node);
            let spaces: BTreeSet<SpaceId> = named.chain(made.map(|(id, _)| *id)).collect();
            let spaces = spaces
                .into_iter()
                .filter_map(|space| Some((space, self.role_in(node, &space, None)?)))
                .collect();
            // The newest that gives just this role is the one to name.
            let naming = given.iter().rev().find(|(_, given, _)| *given == role);
            let grant = naming.map_or(*last, |(at, ..)| *at);
            let member = Member {
                node: *node,
                name: newest.node_name.clone(),
                role,
                spaces,
                grant: self.past.order[grant],
                since_ms: self.at_ms(*first),
            };
            members.insert(*node, member);
        }
        members
    }

    /// Returns the certificates in force, and the agents that have none left.
    fn agents(
        &self,
        members: &BTreeMap<NodeId, Member>,
    ) -> (BTreeMap<AgentId, Vec<AgentInfo>>, Vec<AgentId>) {
        let mut agents = BTreeMap::new();
        let mut fallen = Vec::new();
        for (agent, certs) in &self.certs {
            let is_live = |cert: &&Cert| {
                members.contains_key(&cert.info.node) && self.is_line_live(cert, None)
            };
            let live: Vec<AgentInfo> = certs
                .iter()
                .filter(is_live)
                .map(|cert| cert.info.clone())
                .collect();
            if live.is_empty() {
                fallen.push(*agent);
            } else {
                agents.insert(*agent, live);
            }
        }
        (agents, fallen)
    }

    /// Returns the subjects of revocations that nothing has overcome since.
    fn revoked(
        &self,
        members: &BTreeMap<NodeId, Member>,
        agents: &BTreeMap<AgentId, Vec<AgentInfo>>,
    ) -> BTreeSet<PublicKey> {
        let subjects = self.standing.subjects().map(|(subject, _)| *subject);
        let is_out = |subject: &PublicKey| {
            !self.roots.has_been(subject)
                && !members.contains_key(&NodeId::from_bytes(*subject.as_bytes()))
                && !agents.contains_key(&AgentId::from_bytes(*subject.as_bytes()))
        };
        subjects.filter(is_out).collect()
    }

    fn spaces(&self) -> BTreeMap<SpaceId, SpaceInfo> {
        let info = |(id, space): (&SpaceId, &Space<'a>)| {
            let later = space
                .epochs
                .iter()
                .map(|(number, (_, epoch))| (*number, epoch.commitment));
            let commitments: BTreeMap<u32, Hash> = later
                .chain([(FIRST_EPOCH, space.create.commitment)])
                .collect();
            let info = SpaceInfo {
                id: *id,
                name: space.create.name.clone(),
                epoch: commitments
                    .last_key_value()
                    .map_or(FIRST_EPOCH, |(epoch, _)| *epoch),
                created_by: space.creator,
                at_ms: self.at_ms(space.at),
                nonce: space.create.nonce,
                commitments,
            };
            (*id, info)
        };
        self.spaces.iter().map(info).collect()
    }

    fn keys(
        &self,
        members: &BTreeMap<NodeId, Member>,
    ) -> BTreeMap<NodeId, Vec<(SpaceId, u32, WrappedKey)>> {
        let mut keys: BTreeMap<NodeId, Vec<(SpaceId, u32, WrappedKey)>> = BTreeMap::new();
        let mut add = |node: &NodeId, space: SpaceId, key: &WrappedKey| {
            let role = members
                .get(node)
                .and_then(|member| member.spaces.get(&space));
            if role.is_some_and(|role| role.can_read()) {
                keys.entry(*node)
                    .or_default()
                    .push((space, key.epoch, key.clone()));
            }
        };
        for (id, space) in &self.spaces {
            for wrap in &space.create.keys {
                add(&wrap.node, *id, &wrap.key);
            }
            for (_, epoch) in space.epochs.values() {
                for wrap in &epoch.wraps {
                    add(&wrap.node, *id, &wrap.key);
                }
            }
        }
        for node in members.keys() {
            for (_, grant) in self.live(node, None) {
                for space in &grant.spaces {
                    for key in &space.keys {
                        add(node, space.space, key);
                    }
                }
            }
        }
        keys
    }

    fn invites(&self) -> BTreeMap<InviteId, InviteState> {
        let state = |(id, invite): (&InviteId, &Invite<'a>)| {
            let state = InviteState {
                id: *id,
                record: self.past.order[invite.at],
                role: invite.open.role,
                spaces: invite.open.spaces.clone(),
                uses: invite.open.uses,
                used: u16::try_from(invite.used_by.len()).unwrap_or(u16::MAX),
                not_after_ms: invite.open.not_after_ms,
                issuer: NodeId::from_bytes(*invite.issuer.as_bytes()),
                closed: !invite.closes.is_empty(),
                approve: invite.open.approve,
            };
            (*id, state)
        };
        self.invites.iter().map(state).collect()
    }

    /// Returns the heads, and the deepest of them when they are more than a record may name.
    ///
    /// What is void is left out: it rests on nothing, and nothing should rest on it.
    fn heads(&self) -> (Vec<RecordId>, Option<Vec<RecordId>>) {
        let is_void = |id: &RecordId| {
            self.void
                .get(id)
                .is_some_and(|reason| *reason != VoidReason::Deferred)
        };
        let mut has_child = vec![false; self.past.order.len()];
        // Descendants come later: walking back, one that leads only to what is void stays a head.
        let mut heads = Vec::new();
        for (at, id) in self.past.order.iter().enumerate().rev() {
            let counts = !is_void(id) || has_child[at];
            if !counts {
                continue;
            }
            if !has_child[at] {
                heads.push((self.past.depths[at], *id));
            }
            for parent in &self.records[id].record().parents {
                if let Some(parent) = self.past.place(parent) {
                    has_child[parent] = true;
                }
            }
        }
        heads.sort_unstable_by(|a, b| b.cmp(a));
        let deepest = (heads.len() > MAX_PARENTS)
            .then(|| heads.iter().take(MAX_PARENTS).map(|(_, id)| *id).collect());
        let mut heads: Vec<RecordId> = heads.into_iter().map(|(_, id)| id).collect();
        heads.sort_unstable();
        (heads, deepest)
    }
}
