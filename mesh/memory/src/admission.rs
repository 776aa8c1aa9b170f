//! Which fragments a node takes in: pure, so that a simulator runs it by the thousand.
//!
//! [`Admission::check`] looks at the cheap things first and changes nothing. The caller then
//! verifies the signatures of what is left ([`check_signatures`], many at once), makes what was
//! admitted durable and reports that with [`Admission::commit`], or hands what has to wait to
//! [`Admission::hold`]. What comes back from either is checked again.

mod verdict;

use std::collections::{BTreeMap, VecDeque};

use rhizome_identity::{AgentId, Authority, Denied, Hash, Reach, SpaceId, verify_batch};

pub use self::verdict::{Missing, RejectReason, Verdict};
use crate::{
    Fragment, FragmentId,
    chain::{Chain, Position, is_within},
    fragment::DOMAIN,
    store::{Row, RowKind},
};

/// How many fragments of one author may wait for an earlier one.
pub const MAX_HELD_PER_AUTHOR: usize = 256;
/// How many fragments may wait for an earlier one in all.
pub const MAX_HELD: usize = 4096;
/// How many bytes may wait in all, bodies included.
pub const MAX_HELD_BYTES: usize = 32 * 1024 * 1024;
/// How many fragments may wait for authority records; the oldest makes room.
pub const MAX_AWAITING_AUTHORITY: usize = 512;
/// How many of those may be of one author.
pub const MAX_AWAITING_AUTHORITY_PER_AUTHOR: usize = 64;

/// A committed fragment by its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) author: AgentId,
    pub(crate) space: SpaceId,
    pub(crate) seq: u64,
    pub(crate) id: FragmentId,
    pub(crate) prev: Option<FragmentId>,
}

impl Link {
    /// Returns the place of a stored fragment; `None` if the row is of something else.
    pub(crate) fn of_row(row: &Row) -> Option<Self> {
        match &row.kind {
            RowKind::Fragment {
                space,
                author,
                seq,
                prev,
                ..
            } => Some(Self {
                author: *author,
                space: *space,
                seq: *seq,
                id: row.id.into(),
                prev: *prev,
            }),
            _ => None,
        }
    }
}

/// The chains of every author in every space, and the fragments that wait to join one.
#[derive(Debug, Default, Clone)]
pub struct Admission {
    chains: BTreeMap<(SpaceId, AgentId), Chain>,
    /// How many held fragments each author has; authors without any are not in it.
    held_by: BTreeMap<AgentId, usize>,
    held: usize,
    held_bytes: usize,
    awaiting_authority: VecDeque<Fragment>,
}

impl Admission {
    /// Returns an admission that knows no fragment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks everything but the signature, the cheap things first.
    #[must_use]
    pub fn check(&self, authority: &Authority, fragment: &Fragment) -> Verdict {
        let header = &fragment.header;
        match authority.mesh() {
            None => return Verdict::Wait(Missing::Authority),
            Some(mesh) if mesh != header.mesh => return Verdict::Reject(RejectReason::WrongMesh),
            Some(_) => {}
        }
        let position = match self.chain(&header.author, &header.space) {
            Some(chain) => chain.position(fragment.id, header.seq, header.prev),
            None if header.seq == 0 => Position::Next,
            None => Position::Gap,
        };
        if position == Position::Taken {
            return Verdict::Duplicate;
        }
        if authority.space(&header.space).is_none() {
            return if knows_heads(authority, fragment) {
                Verdict::Reject(RejectReason::UnknownSpace)
            } else {
                Verdict::Wait(Missing::Space)
            };
        }
        if let Some(verdict) = refusal(authority, fragment) {
            return verdict;
        }
        match (position, header.prev) {
            (Position::Fork(other), _) => Verdict::Fork { other },
            (Position::Gap, Some(prev)) => {
                Verdict::Wait(Missing::Prev(prev, header.seq.saturating_sub(1)))
            }
            _ => Verdict::Admit,
        }
    }

    /// Keeps a fragment whose verdict was [`Verdict::Wait`] until what it waits for arrives.
    ///
    /// Call it only once the signature was verified, or anyone fills an author's room. Returns
    /// false if there is no room: the fragment has to be offered again.
    pub fn hold(&mut self, fragment: Fragment, missing: Missing) -> bool {
        match missing {
            Missing::Prev(..) => self.hold_in_chain(fragment),
            Missing::Authority | Missing::Space => self.hold_for_authority(fragment),
        }
    }

    /// Takes an admitted fragment into its chain, once it is durable.
    ///
    /// Returns the held fragments that follow upon it, in their order: check and commit them one
    /// after the other. Their signatures were verified before.
    pub fn commit(&mut self, fragment: &Fragment) -> Vec<Fragment> {
        let header = &fragment.header;
        let chain = self
            .chains
            .entry((header.space, header.author))
            .or_default();
        chain.push(fragment.id, header.seq, header.prev);
        let head = chain.head();
        let passed: Vec<u64> = chain
            .held()
            .range(..chain.len())
            .map(|(seq, _)| *seq)
            .collect();
        for seq in passed {
            self.take_held(header.space, header.author, seq);
        }
        let mut freed: Vec<Fragment> = Vec::new();
        let mut next = head;
        while let Some((seq, id)) = next
            && let Some(held) = self.take_held(header.space, header.author, seq + 1)
            && held.header.prev == Some(id)
        {
            next = Some((seq + 1, held.id));
            freed.push(held);
        }
        freed
    }

    /// Returns the fragments that waited for authority records; call it when new ones have come.
    pub fn authority_changed(&mut self) -> Vec<Fragment> {
        self.awaiting_authority.drain(..).collect()
    }

    /// Notes a fragment that was committed in an earlier life; call it in the order of arrival.
    pub fn restore(
        &mut self,
        author: AgentId,
        space: SpaceId,
        seq: u64,
        id: FragmentId,
        prev: Option<FragmentId>,
    ) {
        self.chains
            .entry((space, author))
            .or_default()
            .push(id, seq, prev);
    }

    /// Notes a fragment that was committed in an earlier life and whose bytes are lost: its
    /// position is taken, and the same fragment is admitted again when it is offered.
    pub fn restore_lost(
        &mut self,
        author: AgentId,
        space: SpaceId,
        seq: u64,
        id: FragmentId,
        prev: Option<FragmentId>,
    ) {
        self.chains
            .entry((space, author))
            .or_default()
            .push_lost(id, seq, prev);
    }

    /// Notes that the bytes of a committed fragment are lost; see [`Self::restore_lost`].
    pub fn lose(&mut self, author: AgentId, space: SpaceId, seq: u64) {
        if let Some(chain) = self.chains.get_mut(&(space, author)) {
            chain.lose(seq);
        }
    }

    /// Returns whether this fragment has its place in its chain, and its bytes are lost.
    pub(crate) fn has_lost(
        &self,
        author: &AgentId,
        space: &SpaceId,
        seq: u64,
        id: FragmentId,
    ) -> bool {
        self.chain(author, space)
            .is_some_and(|chain| chain.id_at(seq) == Some(id) && !chain.contains(id, seq))
    }

    /// Returns whether this very fragment is in its chain.
    #[must_use]
    pub fn contains(&self, fragment: &Fragment) -> bool {
        self.chain(&fragment.header.author, &fragment.header.space)
            .is_some_and(|chain| chain.contains(fragment.id, fragment.header.seq))
    }

    /// Returns position and id of the last fragment of a chain.
    #[must_use]
    pub fn head(&self, author: &AgentId, space: &SpaceId) -> Option<(u64, FragmentId)> {
        self.chain(author, space)?.head()
    }

    /// Returns the first position that is missing in a chain of which later ones are here.
    #[must_use]
    pub fn gap(&self, author: &AgentId, space: &SpaceId) -> Option<u64> {
        self.chain(author, space)?.gap()
    }

    /// Returns the last fragment that counts of every author in a space, in the order of their ids.
    pub fn heads(&self, space: &SpaceId) -> impl Iterator<Item = (AgentId, u64, FragmentId)> + '_ {
        let first = (*space, AgentId::from_bytes([0; 32]));
        let last = (*space, AgentId::from_bytes([0xff; 32]));
        self.chains
            .range(first..=last)
            .filter_map(|((_, author), chain)| {
                let (seq, id) = chain.valid_head()?;
                Some((*author, seq, id))
            })
    }

    /// Returns a hash over the heads of a space: equal where the same fragments are.
    #[must_use]
    pub fn heads_hash(&self, space: &SpaceId) -> Hash {
        let mut bytes = Vec::new();
        for (author, seq, id) in self.heads(space) {
            bytes.extend_from_slice(author.as_bytes());
            bytes.extend_from_slice(&seq.to_be_bytes());
            bytes.extend_from_slice(id.as_bytes());
        }
        Hash::keyed("rhizome space heads 1", &bytes)
    }

    /// Returns how many fragments are held, whatever they wait for.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held + self.awaiting_authority.len()
    }

    /// Returns a held fragment and what it waits for.
    #[must_use]
    pub fn held_fragment(&self, id: &FragmentId) -> Option<(Fragment, Missing)> {
        let mut in_chains = self.chains.values().flat_map(|chain| chain.held().values());
        if let Some(fragment) = in_chains.find(|fragment| fragment.id == *id) {
            let prev = fragment.header.prev?;
            return Some((
                fragment.clone(),
                Missing::Prev(prev, fragment.header.seq - 1),
            ));
        }
        let mut awaiting = self.awaiting_authority.iter();
        let found = awaiting.find(|fragment| fragment.id == *id)?;
        Some((found.clone(), Missing::Authority))
    }

    /// Sets how far every chain counts, as the authority log says it now; returns the chains of
    /// which something else counts than before.
    pub fn authority_pins(&mut self, authority: &Authority) -> Vec<(SpaceId, AgentId)> {
        for (author, space) in authority.pinned() {
            self.chains.entry((*space, *author)).or_default();
        }
        let mut changed = Vec::new();
        let mut contradicted = Vec::new();
        for ((space, author), chain) in &mut self.chains {
            let reach = authority.reach(author, space);
            if reach == chain.reach() {
                continue;
            }
            chain.set_reach(reach);
            let held = chain.contradicted().into_iter();
            contradicted.extend(held.map(|seq| (*space, *author, seq)));
            changed.push((*space, *author));
        }
        self.drop_held(contradicted);
        changed
    }

    /// Learns from a fragment, whose signature need not be checked, which one comes before it in a
    /// pinned history; returns whether something left the chain because it contradicts that.
    ///
    /// Of a batch, show the latest first.
    pub fn learn(&mut self, fragment: &Fragment) -> bool {
        let header = &fragment.header;
        let (author, space) = (header.author, header.space);
        let Some(chain) = self.chains.get_mut(&(space, author)) else {
            return false;
        };
        if chain.reach() == Reach::Whole {
            return false;
        }
        let gone = chain.learn(fragment.id, header.seq, header.prev);
        let contradicted = chain.contradicted();
        let of_chain = contradicted.into_iter().map(|seq| (space, author, seq));
        self.drop_held(of_chain.collect());
        !gone.is_empty()
    }

    /// Returns whether this fragment is in its chain and counts.
    #[must_use]
    pub fn counts(&self, author: &AgentId, space: &SpaceId, seq: u64, id: FragmentId) -> bool {
        self.chain(author, space)
            .is_some_and(|chain| chain.counts(id, seq))
    }

    /// Returns all fragments that are here and count, with their spaces.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (SpaceId, FragmentId)> + '_ {
        self.chains.iter().flat_map(|((space, _), chain)| {
            let space = *space;
            chain.counted().map(move |id| (space, id))
        })
    }

    /// Returns the chains that do not count as a whole.
    pub fn curtailed(&self) -> impl Iterator<Item = (SpaceId, AgentId)> + '_ {
        self.chains
            .iter()
            .filter(|(_, chain)| chain.reach() != Reach::Whole)
            .map(|(key, _)| *key)
    }

    /// Returns a hash over the chains of a space that do not count as a whole, and how far they do.
    #[must_use]
    pub fn curtailment(&self, space: &SpaceId) -> Hash {
        let mut bytes = Vec::new();
        for ((of, author), chain) in &self.chains {
            if of == space && chain.reach() != Reach::Whole {
                bytes.extend_from_slice(author.as_bytes());
                if let Reach::UpTo(pin) = chain.reach() {
                    bytes.extend_from_slice(&pin.seq.to_be_bytes());
                    bytes.extend_from_slice(pin.hash.as_bytes());
                }
            }
        }
        Hash::keyed("rhizome space curtailment 1", &bytes)
    }

    /// Puts the chains together anew from what was committed in an earlier life, once the pins are
    /// known: of an author of two histories the one that leads to the pin.
    pub(crate) fn restore_pinned(&mut self, links: &[Link]) {
        let mut links: Vec<&Link> = links.iter().collect();
        links.sort_by_key(|link| (link.space, link.author, link.seq));
        // From the pin down, then from the bottom up.
        for link in links.iter().rev() {
            if let Some(chain) = self.chains.get_mut(&(link.space, link.author)) {
                chain.learn(link.id, link.seq, link.prev);
            }
        }
        for link in links {
            // What is lost stays so: that it was stored once is no news.
            if let Some(chain) = self.chains.get_mut(&(link.space, link.author))
                && chain.id_at(link.seq) != Some(link.id)
                && chain.position(link.id, link.seq, link.prev) == Position::Next
            {
                chain.push(link.id, link.seq, link.prev);
            }
        }
    }

    /// Returns position and id of the last fragment of a chain that counts.
    #[must_use]
    pub fn valid_head(&self, author: &AgentId, space: &SpaceId) -> Option<(u64, FragmentId)> {
        self.chain(author, space)?.valid_head()
    }

    /// Returns every chain of an author: the space, and the last fragment that counts, or with
    /// `also_aside` the last that is here.
    pub fn tips_of(
        &self,
        author: AgentId,
        also_aside: bool,
    ) -> impl Iterator<Item = (SpaceId, u64, FragmentId)> + '_ {
        let of_author = self.chains.iter().filter(move |((_, of), _)| *of == author);
        of_author.filter_map(move |((space, _), chain)| {
            let tip = if also_aside {
                chain.head()
            } else {
                chain.valid_head()
            };
            tip.map(|(seq, id)| (*space, seq, id))
        })
    }

    fn drop_held(&mut self, held: Vec<(SpaceId, AgentId, u64)>) {
        for (space, author, seq) in held {
            self.take_held(space, author, seq);
        }
    }

    /// Returns what stands at a position, as far as that is known; there may be a gap before it.
    pub(crate) fn id_at(&self, author: &AgentId, space: &SpaceId, seq: u64) -> Option<FragmentId> {
        self.chain(author, space)?.id_at(seq)
    }

    fn chain(&self, author: &AgentId, space: &SpaceId) -> Option<&Chain> {
        self.chains.get(&(*space, *author))
    }

    fn hold_in_chain(&mut self, fragment: Fragment) -> bool {
        let (space, author, seq) = (
            fragment.header.space,
            fragment.header.author,
            fragment.header.seq,
        );
        if let Some(chain) = self.chains.get(&(space, author))
            && chain.held().contains_key(&seq)
        {
            return chain.held()[&seq].id == fragment.id;
        }
        if self
            .held_by
            .get(&author)
            .is_some_and(|held| *held >= MAX_HELD_PER_AUTHOR)
            && !self.evict(author, Some((space, seq)))
        {
            return false;
        }
        let size = size_of_fragment(&fragment);
        while self.held >= MAX_HELD || self.held_bytes + size > MAX_HELD_BYTES {
            // The author with the most makes room, so that one cannot starve the others.
            let Some((most, count)) = self.largest_holder() else {
                return false;
            };
            let own = self.held_by.get(&author).copied().unwrap_or(0);
            if most == author || count <= own + 1 || !self.evict(most, None) {
                return false;
            }
        }
        *self.held_by.entry(author).or_default() += 1;
        self.held += 1;
        self.held_bytes += size;
        self.chains
            .entry((space, author))
            .or_default()
            .held_mut()
            .insert(seq, fragment);
        true
    }

    fn hold_for_authority(&mut self, fragment: Fragment) -> bool {
        let author = fragment.header.author;
        if self
            .awaiting_authority
            .iter()
            .any(|other| other.id == fragment.id)
        {
            return true;
        }
        let same = self
            .awaiting_authority
            .iter()
            .filter(|other| other.header.author == author);
        if same.count() >= MAX_AWAITING_AUTHORITY_PER_AUTHOR {
            return false;
        }
        if self.awaiting_authority.len() >= MAX_AWAITING_AUTHORITY {
            self.awaiting_authority.pop_front();
        }
        self.awaiting_authority.push_back(fragment);
        true
    }

    /// Drops the held fragment of `author` that is furthest from its turn; with `newcomer`, only
    /// if it is further away than that one.
    fn evict(&mut self, author: AgentId, newcomer: Option<(SpaceId, u64)>) -> bool {
        let furthest = self
            .chains
            .iter()
            .filter(|((_, of), _)| *of == author)
            .filter_map(|((space, _), chain)| {
                let (seq, _) = chain.held().last_key_value()?;
                Some((seq - chain.len(), *space, *seq))
            })
            .max();
        let Some((distance, space, seq)) = furthest else {
            return false;
        };
        if let Some((new_space, new_seq)) = newcomer {
            let len = self.chain(&author, &new_space).map_or(0, Chain::len);
            if new_seq.saturating_sub(len) >= distance {
                return false;
            }
        }
        self.take_held(space, author, seq).is_some()
    }

    fn take_held(&mut self, space: SpaceId, author: AgentId, seq: u64) -> Option<Fragment> {
        let fragment = self
            .chains
            .get_mut(&(space, author))?
            .held_mut()
            .remove(&seq)?;
        self.held -= 1;
        self.held_bytes -= size_of_fragment(&fragment);
        if let Some(count) = self.held_by.get_mut(&author) {
            *count -= 1;
            if *count == 0 {
                self.held_by.remove(&author);
            }
        }
        Some(fragment)
    }

    fn largest_holder(&self) -> Option<(AgentId, usize)> {
        self.held_by
            .iter()
            .map(|(author, count)| (*author, *count))
            .max_by_key(|(_, count)| *count)
    }
}

/// Verifies the signatures of many fragments at once; the answers are in the order of `fragments`.
#[must_use]
pub fn check_signatures<'a>(fragments: impl IntoIterator<Item = &'a Fragment>) -> Vec<bool> {
    let mut valid = Vec::new();
    let mut places = Vec::new();
    let mut items = Vec::new();
    for (place, fragment) in fragments.into_iter().enumerate() {
        let sealed = fragment.sealed();
        valid.push(sealed.is_ok());
        if let Ok(sealed) = sealed {
            places.push(place);
            items.push((sealed, DOMAIN));
        }
    }
    if let Err(culprits) = verify_batch(&items) {
        for culprit in culprits {
            valid[places[culprit]] = false;
        }
    }
    valid
}

/// Returns what keeps the author from writing this fragment, if anything does.
pub(crate) fn refusal(authority: &Authority, fragment: &Fragment) -> Option<Verdict> {
    let header = &fragment.header;
    let reach = authority.reach(&header.author, &header.space);
    if !is_within(reach, fragment.id, header.seq) && reach != Reach::Nothing {
        return Some(Verdict::Reject(RejectReason::BeyondCut));
    }
    let is_pinned = matches!(reach, Reach::UpTo(_));
    let at_ms = header.hlc.unix_ms();
    match authority.may_write(&header.author, &header.node, &header.space, at_ms) {
        Ok(_) => None,
        // The chain up to a cut stays valid for good, whatever the author lost since.
        Err(Denied::Revoked | Denied::Frozen | Denied::UnknownAgent) if is_pinned => None,
        Err(denied) if knows_heads(authority, fragment) => {
            Some(Verdict::Reject(RejectReason::Denied(denied)))
        }
        Err(_) => Some(Verdict::Wait(Missing::Authority)),
    }
}

/// Returns whether we know every authority record that the author's node knew.
fn knows_heads(authority: &Authority, fragment: &Fragment) -> bool {
    fragment
        .header
        .auth_heads
        .iter()
        .all(|head| authority.knows(head))
}

fn size_of_fragment(fragment: &Fragment) -> usize {
    let rest = [&fragment.body, &fragment.redaction].into_iter().flatten();
    fragment.envelope.len() + rest.map(bytes::Bytes::len).sum::<usize>()
}
