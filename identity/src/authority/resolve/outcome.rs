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
            spaces: self.spaces(&members),
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

    fn spaces(&self, members: &BTreeMap<NodeId, Member>) -> BTreeMap<SpaceId, SpaceInfo> {
        let info = |(id, space): (&SpaceId, &Space<'a>)| {
            let first = NamedKey {
                commitment: space.create.commitment,
                previous: None,
            };
            let mut keys = BTreeMap::from([(FIRST_EPOCH, vec![first])]);
            // Rivals behind those in force.
            for (_, epoch) in space.epochs.values().chain(&space.rivals) {
                keys.entry(epoch.epoch).or_default().push(NamedKey {
                    commitment: epoch.commitment,
                    previous: epoch.previous.clone(),
                });
            }
            let newest = space.epochs.last_key_value();
            let info = SpaceInfo {
                id: *id,
                name: space.create.name.clone(),
                epoch: newest.map_or(FIRST_EPOCH, |(epoch, _)| *epoch),
                epoch_at_ms: self.at_ms(newest.map_or(space.at, |(_, (at, _))| *at)),
                stale_since_ms: self.stale_since(id, space, members),
                created_by: space.creator,
                at_ms: self.at_ms(space.at),
                nonce: space.create.nonce,
                keys,
            };
            (*id, info)
        };
        self.spaces.iter().map(info).collect()
    }

    /// Returns since when the newest key of a space is not held by just those who may read there,
    /// or has a rival.
    fn stale_since(
        &self,
        id: &SpaceId,
        space: &Space<'a>,
        members: &BTreeMap<NodeId, Member>,
    ) -> Option<u64> {
        let newest = space.epochs.last_key_value();
        let (epoch, at, wraps) = match newest {
            Some((epoch, (at, made))) => (*epoch, *at, &made.wraps),
            None => (FIRST_EPOCH, space.at, &space.create.keys),
        };
        let granted = self.grants.iter().filter(|(_, grants)| {
            let spaces = grants.iter().flat_map(|(_, grant)| &grant.spaces);
            let mut keys = spaces
                .filter(|granted| granted.space == *id)
                .flat_map(|granted| &granted.keys);
            keys.any(|key| key.epoch == epoch)
        });
        let holders: BTreeSet<NodeId> = wraps
            .iter()
            .map(|wrap| wrap.node)
            .chain(granted.map(|(node, _)| *node))
            .collect();
        let may_read = |member: &&Member| {
            let role = member.spaces.get(id);
            role.is_some_and(|role| role.can_read()) && can_be_given_keys(&member.node)
        };
        let readers: BTreeSet<NodeId> = members
            .values()
            .filter(may_read)
            .map(|one| one.node)
            .collect();
        // The newest key holds those that its maker knew of; the others would be lost to whoever
        // comes later.
        let rivals = space.rivals.iter();
        let rivals = rivals.filter(|(rival, _)| !self.past.has(at, *rival));
        // What changed them: a grant, or a revocation.
        let differ = holders.symmetric_difference(&readers).flat_map(|node| {
            let grants = self.grants.get(node).into_iter().flatten();
            let revokes = self.standing.of(&(*node).into()).iter();
            let places = grants.map(|(at, _)| *at);
            places.chain(revokes.map(|(at, _)| *at))
        });
        let is_stale = holders != readers;
        let causes = rivals.map(|(at, _)| *at).chain(differ);
        let last = causes.map(|at| self.at_ms(at)).max();
        match last {
            Some(since) => Some(since.max(self.at_ms(at))),
            None => is_stale.then(|| self.at_ms(at)),
        }
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
            for (_, epoch) in space.epochs.values().chain(&space.rivals) {
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
    /// What is void is left out: it rests on nothing, and nothing should rest on it. A rival of a
    /// key is not: the next key holds it.
    fn heads(&self) -> (Vec<RecordId>, Option<Vec<RecordId>>) {
        let is_void = |id: &RecordId| {
            self.void
                .get(id)
                .is_some_and(|reason| *reason != VoidReason::Deferred)
        };
        let rivals = self.spaces.values().flat_map(|space| &space.rivals);
        let rivals: BTreeSet<usize> = rivals.map(|(at, _)| *at).collect();
        let mut has_child = vec![false; self.past.order.len()];
        // Descendants come later: walking back, one that leads only to what is void stays a head.
        let mut heads = Vec::new();
        for (at, id) in self.past.order.iter().enumerate().rev() {
            let counts = !is_void(id) || has_child[at] || rivals.contains(&at);
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
