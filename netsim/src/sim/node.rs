//! One simulated node: the cores of production over a store in memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use rhizome_identity::{AgentId, Authority, Hash, NodeId, SpaceId};
use rhizome_memory::{
    Admission, DocId, FORK_TURN, ForkWatch, Fragment, FragmentId, Header, HlcClock, Kind, Lane,
    Missing, Verdict,
};
use rhizome_mesh::proto::{
    address_book::AddressBook,
    replication::{Config, Input, ItemOutcome, Output, Replication},
};

use super::{
    arena::{Arena, Content, ItemIndex},
    founding::Founding,
    hostile::{self, Hostility},
    store::{Held, Store},
    views,
};

/// What the clock of a node that is right says when the run begins, in Unix milliseconds.
const EPOCH_MS: i64 = 1_800_000_000_000;

/// A batch whose last write is not durable yet.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) from: NodeId,
    pub(super) lane: Lane,
    pub(super) batch: u64,
    pub(super) outcomes: Vec<ItemOutcome>,
}

impl From<Batch> for Input {
    fn from(batch: Batch) -> Self {
        Self::AdmitDone {
            from: batch.from,
            lane: batch.lane,
            batch: batch.batch,
            outcomes: batch.outcomes,
        }
    }
}

/// What a node loses when it crashes.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) replication: Replication,
    pub(super) book: AddressBook,
    pub(super) authority: Arc<Authority>,
    pub(super) admission: Admission,
    clock: HlcClock,
    /// The next position of the own chain, counting what is still being written.
    next: (u64, Option<FragmentId>),
    /// Admitted but not durable, by its place: its successor may be admitted behind it.
    writing: BTreeMap<(AgentId, u64), FragmentId>,
    pub(super) batches: BTreeMap<u64, Vec<Batch>>,
    /// Fragments of one place each, that nobody has shown to the mesh yet.
    pub(super) watch: ForkWatch<(FragmentId, FragmentId)>,
    /// When the timer that is set rings.
    pub(super) timer: Option<Duration>,
}

/// What became of items that were offered.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    pub(super) outcomes: Vec<ItemOutcome>,
    /// What is being written now.
    pub(super) taken: Vec<ItemIndex>,
    /// When all of that is durable.
    pub(super) mark: Option<u64>,
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) id: NodeId,
    pub(super) agent: AgentId,
    pub(super) neighbours: Vec<u32>,
    pub(super) hostility: Option<Hostility>,
    /// How far its clock is off.
    pub(super) skew_ms: i64,
    /// Whether it has an invite and is not a member yet.
    pub(super) is_joining: bool,
    pub(super) store: Store,
    /// Counts starts, so that what belongs to an earlier life is told apart.
    pub(super) life: u32,
    pub(super) running: Option<Box<Running>>,
    /// How many acknowledged fragments of honest nodes it holds.
    pub(super) acked_here: usize,
    /// Live connections that one of its ends gave up, this node's among them.
    pub(super) evictions: u32,
}

impl SimNode {
    pub(super) fn new(founding: &Founding, index: usize, store: Store) -> Self {
        let keys = &founding.keys[index];
        Self {
            id: keys.node.id(),
            agent: keys.agent.id(),
            neighbours: Vec::new(),
            hostility: None,
            skew_ms: 0,
            is_joining: false,
            store,
            life: 0,
            running: None,
            acked_here: 0,
            evictions: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Returns what its wall clock says.
    pub(super) fn wall_ms(&self, now: Duration) -> u64 {
        let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let wall = EPOCH_MS.saturating_add(now).saturating_add(self.skew_ms);
        u64::try_from(wall).unwrap_or(0)
    }

    /// Starts from what is on the disk.
    pub(super) fn start(&mut self, seed: u64, config: Config, space: SpaceId, arena: &mut Arena) {
        let authority = arena.authority(&self.store);
        let admission = self.admission_of_disk(&authority, arena);
        let head = admission.head(&self.agent, &space);
        self.life += 1;
        self.running = Some(Box::new(Running {
            replication: Replication::new(self.id, seed, config),
            book: AddressBook::new(self.id, seed),
            authority,
            admission,
            clock: HlcClock::default(),
            next: head.map_or((0, None), |(seq, id)| (seq + 1, Some(id))),
            writing: BTreeMap::new(),
            batches: BTreeMap::new(),
            watch: ForkWatch::new(self.id, FORK_TURN),
            timer: None,
        }));
    }

    /// Puts the chains together from what is on the disk: of an author of two histories the one that
    /// the log pins.
    fn admission_of_disk(&self, authority: &Authority, arena: &Arena) -> Admission {
        let mut admission = Admission::new();
        let disk = self.store.beyond_ground().iter();
        let fragments: Vec<&Fragment> = disk.filter_map(|i| arena.item(*i).fragment()).collect();
        admission.authority_pins(authority);
        // From the pin down, then from the bottom up.
        for fragment in fragments.iter().rev() {
            admission.learn(fragment);
        }
        for fragment in fragments {
            let verdict = admission.check(authority, fragment);
            // What waits in memory waits for nothing that is on the disk.
            if verdict == Verdict::Admit || fragment.header.author == self.agent {
                let _ = admission.commit(fragment);
            }
        }
        admission
    }

    /// Lets the replication core work; returns what is to be done. A node that is down does nothing.
    pub(super) fn replicate(
        &mut self,
        arena: &Arena,
        work: impl FnOnce(&mut Replication, &Held<'_>) -> Vec<Output>,
    ) -> Vec<Output> {
        let Some(running) = self.running.as_mut() else {
            return Vec::new();
        };
        let held = Held {
            store: &self.store,
            arena,
            authority: &running.authority,
        };
        work(&mut running.replication, &held)
    }

    /// Signs a fragment for a place of its chain; `variant` tells those of one place apart.
    fn signed(
        &mut self,
        founding: &Founding,
        index: usize,
        now: Duration,
        place: (u64, Option<FragmentId>),
        variant: u32,
    ) -> Option<Fragment> {
        let mut wall = self.wall_ms(now);
        if self.hostility == Some(Hostility::BackDate) {
            wall = hostile::back_dated(wall);
        }
        let (id, agent, hostility) = (self.id, self.agent, self.hostility);
        let running = self.running.as_mut()?;
        let mut auth_heads = running.authority.heads().to_vec();
        auth_heads.truncate(rhizome_memory::MAX_AUTH_HEADS);
        let (seq, prev) = place;
        let hlc = running.clock.tick(wall);
        let text = format!("{id} says {seq} at {now:?}, {variant}");
        let mut header = Header {
            version: rhizome_memory::FRAGMENT_VERSION,
            mesh: founding.mesh,
            space: founding.space,
            author: agent,
            node: id,
            seq,
            prev,
            auth_heads,
            deps: Vec::new(),
            hlc,
            kind: Kind::Observation,
            doc: DocId::from_bytes(*Hash::of(&seq.to_le_bytes()).as_bytes()),
            fingerprint: Hash::of(b"simulated"),
            epoch: 1,
            nonce: [0; 24],
            body_hash: Hash::of(b""),
            body_len: 0,
        };
        let mut body = Bytes::from(text);
        if founding.has_documents {
            body = views::composed(&mut header, &body);
        }
        if hostility == Some(Hostility::Poison) {
            body = hostile::poisoned(&body, seq);
        }
        let key = &founding.keys[index].agent;
        Some(Fragment::sign(key, header, body).expect("in bounds"))
    }

    /// Signs the next fragment of the own chain and hands it to the disk.
    pub(super) fn publish(
        &mut self,
        founding: &Founding,
        index: usize,
        now: Duration,
        arena: &mut Arena,
    ) -> Option<(FragmentId, u64)> {
        let place = self.running.as_ref()?.next;
        let fragment = self.signed(founding, index, now, place, 0)?;
        let item = arena.take_in(Lane::Space(founding.space), &fragment.encode())?;
        let running = self.running.as_mut()?;
        running.next = (place.0 + 1, Some(fragment.id));
        running.writing.insert((self.agent, place.0), fragment.id);
        Some((fragment.id, self.store.write(item, true)))
    }

    /// Signs another fragment for the place of the last one: what a member that forks does.
    pub(super) fn fork(
        &mut self,
        founding: &Founding,
        index: usize,
        now: Duration,
        at: (u64, Option<FragmentId>),
        arena: &mut Arena,
    ) -> Option<(FragmentId, ItemIndex)> {
        let fragment = self.signed(founding, index, now, at, 1)?;
        let item = arena.take_in(Lane::Space(founding.space), &fragment.encode())?;
        Some((fragment.id, item))
    }

    /// Checks foreign items; what passes is handed to the disk.
    pub(super) fn admit(
        &mut self,
        now: Duration,
        lane: Lane,
        items: &[Bytes],
        arena: &mut Arena,
    ) -> Admitted {
        let mut admitted = Admitted::default();
        for wire in items {
            let outcome = match arena.take_in(lane, wire) {
                Some(item) => self.admit_item(now, item, arena, &mut admitted),
                None => ItemOutcome::Refused,
            };
            admitted.outcomes.push(outcome);
        }
        admitted
    }

    /// Checks one item whose form and signature are right.
    pub(super) fn admit_item(
        &mut self,
        now: Duration,
        item: ItemIndex,
        arena: &Arena,
        admitted: &mut Admitted,
    ) -> ItemOutcome {
        if self.store.holds(item) || self.store.is_writing(item) {
            return ItemOutcome::Known;
        }
        let outcome = match &arena.item(item).content {
            Content::Record(record) => {
                let there = |parent: &rhizome_identity::RecordId| {
                    let parent = arena.find(&Hash::from_bytes(*parent.as_bytes()));
                    parent.is_some_and(|parent| {
                        self.store.holds(parent) || self.store.is_writing(parent)
                    })
                };
                let is_ready = record.record().parents.iter().all(there);
                if is_ready {
                    ItemOutcome::Stored
                } else {
                    ItemOutcome::Waiting
                }
            }
            Content::Fragment(fragment) => self.judge(now, fragment, arena),
        };
        if outcome == ItemOutcome::Stored {
            admitted.mark = Some(self.store.write(item, false));
            admitted.taken.push(item);
        }
        outcome
    }

    fn judge(&mut self, now: Duration, fragment: &Fragment, arena: &Arena) -> ItemOutcome {
        let wall = self.wall_ms(now);
        let Some(running) = self.running.as_mut() else {
            return ItemOutcome::Refused;
        };
        let header = &fragment.header;
        let place = (header.author, header.seq);
        if running.admission.learn(fragment) {
            recut(
                &mut self.store,
                &running.admission,
                (header.space, header.author),
                arena,
            );
        }
        if let Some(other) = running.writing.get(&place) {
            return if *other == fragment.id {
                ItemOutcome::Known
            } else {
                ItemOutcome::Declined
            };
        }
        let before = header.seq.checked_sub(1);
        let before = before.and_then(|seq| running.writing.get(&(header.author, seq)));
        match running.admission.check(&running.authority, fragment) {
            Verdict::Admit => {}
            // Behind one that is being written: as good as admitted, and durable after it.
            Verdict::Wait(Missing::Prev(prev, _)) if before == Some(&prev) => {}
            Verdict::Duplicate => return ItemOutcome::Known,
            Verdict::Fork { other } => {
                let authority = &running.authority;
                let is_shown = authority.frozen(&header.author, &header.space).is_some();
                let held = arena.find(&hash_of(other));
                let held = held.and_then(|item| arena.item(item).fragment());
                if !is_shown && held.is_some_and(|held| held.header.seq == header.seq) {
                    let chain = (header.space, header.author);
                    let (members, pair) = (authority.members().count(), (fragment.id, other));
                    running.watch.note(chain, header.seq, members, now, pair);
                }
                return ItemOutcome::Declined;
            }
            Verdict::Wait(missing) => {
                running.admission.hold(fragment.clone(), missing);
                return ItemOutcome::Waiting;
            }
            verdict => return ItemOutcome::from(&verdict),
        }
        running.clock.observe(wall, header.hlc);
        running.writing.insert(place, fragment.id);
        ItemOutcome::Stored
    }

    /// Takes what became durable into authority and chains; returns what was freed by it and is
    /// being written now.
    pub(super) fn durable(
        &mut self,
        now: Duration,
        items: &[ItemIndex],
        arena: &mut Arena,
    ) -> Admitted {
        let mut admitted = Admitted::default();
        let Some(running) = self.running.as_mut() else {
            return admitted;
        };
        let mut freed = Vec::new();
        let mut has_records = false;
        for item in items {
            match &arena.item(*item).content {
                Content::Record(_) => has_records = true,
                Content::Fragment(fragment) => {
                    let place = (fragment.header.author, fragment.header.seq);
                    running.writing.remove(&place);
                    freed.extend(running.admission.commit(fragment));
                    let (author, space, seq) = (
                        &fragment.header.author,
                        &fragment.header.space,
                        fragment.header.seq,
                    );
                    // A cut may have come while it was on its way to the disk.
                    if !running.admission.counts(author, space, seq, fragment.id) {
                        self.store.hide(&arena.item(*item).id);
                    }
                }
            }
        }
        if has_records {
            running.authority = arena.authority(&self.store);
            for chain in running.admission.authority_pins(&running.authority) {
                recut(&mut self.store, &running.admission, chain, arena);
            }
            freed.extend(running.admission.authority_changed());
        }
        for fragment in freed {
            let id = Hash::from_bytes(*fragment.id.as_bytes());
            let item = arena.find(&id).expect("held after it was taken in");
            self.admit_item(now, item, arena, &mut admitted);
        }
        admitted
    }

    /// Stops at once; of what was not synced only the first `torn` writes are on the disk.
    pub(super) fn crash(&mut self, torn: usize, arena: &Arena) -> Vec<ItemIndex> {
        self.running = None;
        self.life += 1;
        self.store.crash(torn, arena)
    }
}

/// Shows peers of a chain what counts of it now.
fn recut(
    store: &mut Store,
    admission: &Admission,
    (space, author): (SpaceId, AgentId),
    arena: &Arena,
) {
    store.recut(author, arena, |fragment| {
        admission.counts(&author, &space, fragment.header.seq, fragment.id)
    });
}

pub(super) fn hash_of(id: FragmentId) -> Hash {
    Hash::from_bytes(*id.as_bytes())
}
