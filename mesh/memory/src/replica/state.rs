//! What a replica knows while it runs, and what changes when a batch has become durable.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Instant,
};

use bytes::Bytes;
use rhizome_identity::{
    AgentId, Authority, Hash, HeldKeys, NodeId, NodeKey, PublicKey, RecordLog, SpaceId, SpaceKey,
};
use tokio::sync::broadcast;
use tracing::warn;

use super::{
    applier::{Applier, Work},
    journal::{Entry, Item, Journal},
    records::WaitingRecords,
    request::Fork,
    restored::Copy,
};
use crate::{
    Admission, Event, ForkWatch, Fragment, FragmentId, HlcClock, IdSet, Lane, Reader, ShareLimits,
    Shares, View,
    disk::Disk,
    document::DocKey,
    now_ms,
    redaction::{Notice, Redactions},
    store::{Index, Log, LogError, Reach, RecordKind, RecoveryReport, Row, RowKind, Tip},
};

/// How many own fragments are kept in memory until they are sent on; each is at most 64 KiB.
const FRESH_WIRES: usize = 64;

/// Everything the clones of a replica share.
pub(super) struct Inner {
    pub(super) node: NodeId,
    pub(super) key: NodeKey,
    pub(super) dir: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) log: Log,
    pub(super) index: Index,
    /// How far the index may be written: everything up to it is durable and has its row.
    pub(super) reach: Mutex<Reach>,
    pub(super) recovery: RecoveryReport,
    pub(super) journal: Journal,
    pub(super) applier: Applier,
    pub(super) view: View,
    /// Reads the view without its lock, so that readers and publishers need not wait for each other.
    reader: Reader,
    pub(super) events: broadcast::Sender<Event>,
    /// Own fragments that became durable last, for whoever sends them on at once.
    fresh_wires: Mutex<VecDeque<(Hash, Bytes)>>,
    pub(super) sets: RwLock<BTreeMap<Lane, Arc<RwLock<IdSet>>>>,
    pub(super) chains: Mutex<BTreeMap<(SpaceId, AgentId), Chain>>,
    /// One batch of foreign records at a time, so that none is judged by a state that is passing.
    pub(super) recording: Mutex<WaitingRecords>,
    /// One batch of foreign fragments at a time, so that none is stored twice.
    pub(super) admitting: Mutex<()>,
    /// What everybody has used of their shares.
    shares: Mutex<Shares>,
    state: Mutex<State>,
    /// Agents and nodes that this node's owner does not trust.
    pub(super) distrusted: RwLock<BTreeSet<PublicKey>>,
    /// What publishing has to know, so that it need not wait for a commit.
    rights: RwLock<Arc<Rights>>,
    clock: Mutex<HlcClock>,
    /// What was redacted and may still be in the files of the view.
    purging: Mutex<BTreeMap<FragmentId, DocKey>>,
    /// What turns are counted from.
    pub(super) opened: Instant,
    /// Whether this store was put back from a copy.
    pub(super) copy: Mutex<Copy>,
    /// Keeps the directory locked.
    pub(super) _lock: Option<File>,
}

/// Who may do what, and the space keys of this node.
#[derive(Clone)]
pub(super) struct Rights {
    pub(super) authority: Arc<Authority>,
    pub(super) keys: HeldKeys,
}

impl Rights {
    /// Returns the keys of an epoch that are here, the one in force first.
    pub(super) fn keys_of(&self, space: &SpaceId, epoch: u32) -> impl Iterator<Item = &SpaceKey> {
        let at = (*space, epoch);
        let rivals = self.keys.rivals.get(&at).into_iter().flatten();
        self.keys.current.get(&at).into_iter().chain(rivals)
    }

    /// Returns every epoch of which a key is here.
    pub(super) fn epochs(&self) -> BTreeSet<(SpaceId, u32)> {
        let current = self.keys.current.keys();
        current.chain(self.keys.rivals.keys()).copied().collect()
    }
}

/// What decides about the next item.
pub(super) struct State {
    pub(super) records: RecordLog,
    pub(super) rights: Arc<Rights>,
    pub(super) admission: Admission,
    pub(super) forks: BTreeMap<(SpaceId, AgentId), Fork>,
    /// Bodies that are not here, with the fragments that name them.
    pub(super) wanted: BTreeMap<Hash, BTreeSet<FragmentId>>,
    /// Fragments that waited for authority records which may be here now.
    pub(super) recheck: Vec<Fragment>,
    /// Whether some chain does not count as a whole.
    pub(super) is_curtailed: bool,
    /// Fragments that do not count and that others which do count build on.
    pub(super) carried: BTreeSet<FragmentId>,
    /// Fragments that contradict one that is here, to be shown to the mesh.
    pub(super) watch: ForkWatch<(Fragment, FragmentId)>,
    /// The redactions that are here.
    pub(super) redactions: Redactions,
}

/// The lock under which an author's chain goes on; empty until it was looked up.
pub(super) type Chain = Arc<Mutex<Option<ChainTip>>>;

/// Where an author's chain goes on: beyond what is durable, while writes are under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainTip {
    pub(super) generation: u64,
    pub(super) next_seq: u64,
    pub(super) prev: Option<FragmentId>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("node", &self.node)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Inner {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part that opening made"
    )]
    pub(super) fn new(
        key: NodeKey,
        dir: PathBuf,
        disk: Arc<dyn Disk>,
        log: Log,
        index: Index,
        recovery: RecoveryReport,
        view: View,
        restored: super::open::Restored,
        shares: ShareLimits,
        lock: Option<File>,
        copy: Copy,
    ) -> Self {
        let reach = Reach {
            place: log.place(),
            hlc: restored.clock.last(),
        };
        let applier = Applier::new(view.watermark(), reach.place.arrival);
        Self {
            node: key.id(),
            key,
            dir,
            disk,
            log,
            index,
            reach: Mutex::new(reach),
            recovery,
            journal: Journal::default(),
            applier,
            reader: view.reader(),
            view,
            events: broadcast::Sender::new(crate::EVENT_BACKLOG),
            fresh_wires: Mutex::default(),
            sets: RwLock::new(restored.sets),
            chains: Mutex::default(),
            recording: Mutex::default(),
            admitting: Mutex::default(),
            distrusted: RwLock::default(),
            rights: RwLock::new(Arc::clone(&restored.state.rights)),
            shares: Mutex::new(Shares::new(shares)),
            state: Mutex::new(restored.state),
            clock: Mutex::new(restored.clock),
            purging: Mutex::default(),
            opened: Instant::now(),
            copy: Mutex::new(copy),
            _lock: lock,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn purging(&self) -> MutexGuard<'_, BTreeMap<FragmentId, DocKey>> {
        self.purging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns who may do what, and the space keys.
    pub(super) fn rights(&self) -> Arc<Rights> {
        Arc::clone(&self.rights.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn clock(&self) -> MutexGuard<'_, HlcClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a reader of what the view knows now.
    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes the wire form of an own fragment that became durable moments ago.
    pub(super) fn take_fresh_wire(&self, id: &Hash) -> Option<Bytes> {
        let mut wires = self.fresh_wires();
        let place = wires.iter().position(|(fresh, _)| fresh == id)?;
        wires.remove(place).map(|(_, wire)| wire)
    }

    /// Lets go of own fragments that nobody shall be sent any more.
    pub(super) fn forget_fresh_wires<'a>(&self, ids: impl Iterator<Item = &'a FragmentId>) {
        let gone: BTreeSet<Hash> = ids.map(|id| Hash::from(*id)).collect();
        self.fresh_wires().retain(|(id, _)| !gone.contains(id));
    }

    fn keep_fresh_wire(&self, id: Hash, wire: &Bytes) {
        let mut wires = self.fresh_wires();
        if wires.len() == FRESH_WIRES {
            wires.pop_front();
        }
        wires.push_back((id, wire.clone()));
    }

    fn fresh_wires(&self) -> MutexGuard<'_, VecDeque<(Hash, Bytes)>> {
        self.fresh_wires
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lock under which an author's chain goes on.
    pub(super) fn chain(&self, space: SpaceId, author: AgentId) -> Chain {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(chains.entry((space, author)).or_default())
    }

    pub(super) fn id_set(&self, lane: Lane) -> Arc<RwLock<IdSet>> {
        if let Some(set) = self
            .sets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&lane)
        {
            return Arc::clone(set);
        }
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sets.entry(lane).or_default())
    }

    pub(super) fn set_contains(&self, lane: Lane, id: &Hash) -> bool {
        let set = self.id_set(lane);
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        set.contains(id)
    }

    pub(super) fn set_insert(&self, lane: Lane, id: &Hash) {
        let set = self.id_set(lane);
        set.write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(*id);
    }

    /// Writes and syncs a batch, and lets everyone know what is durable now.
    ///
    /// Called by the leader of the journal alone, so batches come one after the other.
    pub(super) fn commit(&self, batch: &[Entry]) -> Result<Vec<u64>, LogError> {
        let records: Vec<_> = batch.iter().map(Entry::record).collect();
        // A body first: a fragment that is here has its body here.
        self.write_files(batch)?;
        let places = self
            .log
            .append(&records, own_tips(batch))
            .inspect_err(|error| self.remove_files(batch, error))?;
        let mut events = Vec::with_capacity(batch.len());
        let mut works = Vec::with_capacity(batch.len());
        let now_ms = now_ms();
        let mut state = self.state();
        let mut is_new_authority = false;
        let mut redacted: BTreeSet<FragmentId> = BTreeSet::new();
        for (entry, (arrival, loc)) in batch.iter().zip(&places) {
            let arrival = *arrival;
            match &entry.item {
                Item::Fragment {
                    fragment,
                    own,
                    change,
                    ..
                } => {
                    self.index
                        .insert(Row::of_fragment(arrival, *loc, fragment, *own));
                    let lane = Lane::Space(fragment.header.space);
                    self.set_insert(lane, &fragment.id.into());
                    entry.ticket.set_freed(state.admission.commit(fragment));
                    let header = &fragment.header;
                    if let Some(notice) = Notice::of(fragment) {
                        redacted.extend(state.note_redaction(notice));
                    } else if state.redactions.names(&fragment.id) {
                        redacted.insert(fragment.id);
                    }
                    if state.is_curtailed {
                        let (author, space) = (&header.author, &header.space);
                        if !state
                            .admission
                            .counts(author, space, header.seq, fragment.id)
                        {
                            state.carried.insert(fragment.id);
                        }
                        if self.builds_on_outside(&state, &header.deps) {
                            self.applier.recut(BTreeSet::from([header.space]));
                        }
                    }
                    if *own && change.is_none() {
                        self.copy().refetched += 1;
                        self.applier.hold_composing_until(arrival);
                    }
                    if *own {
                        self.keep_fresh_wire(fragment.id.into(), &entry.wire);
                    } else {
                        self.clock().observe(now_ms, fragment.header.hlc);
                    }
                    events.push(Event::Stored {
                        lane,
                        id: fragment.id.into(),
                        own: *own,
                        arrival,
                    });
                    if header.body_is_blob()
                        && fragment.redaction.is_none()
                        && change.is_none()
                        && !self.has_body(&fragment.header.body_hash)
                    {
                        let body = fragment.header.body_hash;
                        state.wanted.entry(body).or_default().insert(fragment.id);
                        events.push(Event::BodyWanted(body));
                    }
                    let work = Work::Fragment {
                        fragment: Arc::clone(fragment),
                        change: change.clone(),
                    };
                    works.push((arrival, work));
                }
                Item::Record(record) => {
                    let id = Hash::from_bytes(*record.id().as_bytes());
                    self.index.insert(Row {
                        arrival,
                        loc: *loc,
                        id,
                        kind: RowKind::Authority,
                    });
                    if let Err(error) = state.records.insert(record.clone()) {
                        // It was checked before it was written; it is tried again on opening.
                        warn!(%error, "a stored record does not enter the authority log");
                        continue;
                    }
                    is_new_authority = true;
                    self.set_insert(Lane::Authority, &id);
                    events.push(Event::Stored {
                        lane: Lane::Authority,
                        id,
                        // Own records are pushed at once: peers refuse a newcomer until they know
                        // of its Grant.
                        own: record.signer() == PublicKey::from(self.node),
                        arrival,
                    });
                    works.push((arrival, Work::Nothing));
                }
                Item::Body(body) => {
                    let row = Row {
                        arrival,
                        loc: *loc,
                        id: *body,
                        kind: RowKind::Body,
                    };
                    self.index.insert(row);
                    let fragments = state.wanted.remove(body).unwrap_or_default();
                    events.push(Event::BodyStored(*body));
                    works.push((arrival, Work::Body(fragments.into_iter().collect())));
                }
                Item::Evidence { fragment, other } => {
                    let header = &fragment.header;
                    let (space, author) = (header.space, header.author);
                    let kind = RowKind::Evidence {
                        space,
                        author,
                        other: *other,
                    };
                    self.index.insert(Row {
                        arrival,
                        loc: *loc,
                        id: fragment.id.into(),
                        kind,
                    });
                    let fork = Fork {
                        space,
                        author,
                        ours: *other,
                        theirs: fragment.id,
                    };
                    state.forks.entry((space, author)).or_insert(fork);
                    works.push((arrival, Work::Nothing));
                }
            }
        }
        if is_new_authority {
            let rescans = self.reauthorise(&mut state);
            self.applier.rescan(rescans);
            events.push(Event::AuthorityChanged);
        }
        let reach = Reach {
            place: self.log.place(),
            hlc: self.clock().last(),
        };
        *self.reach.lock().unwrap_or_else(PoisonError::into_inner) = reach;
        drop(state);
        self.applier.push(works, reach.place.arrival);
        // Behind what has just come, which may be among them.
        self.applier.redact(redacted);
        for event in events {
            // Without a listener there is nobody to tell.
            let _ = self.events.send(event);
        }
        Ok(places.into_iter().map(|(arrival, _)| arrival).collect())
    }

    /// Works out anew who may do what; returns the keys that were not here before.
    pub(super) fn reauthorise(&self, state: &mut State) -> Vec<(SpaceId, u32)> {
        let authority = Arc::new(state.records.resolve());
        let before = Arc::clone(&state.rights);
        let mut keys = authority.held_keys(&self.key);
        // A key that was here stays, also once it was taken from us: what it opens was read.
        for (space, epoch) in before.epochs() {
            for key in before.keys_of(&space, epoch) {
                let at = (space, epoch);
                if authority.is_current_key(&space, epoch, key) {
                    keys.current.entry(at).or_insert_with(|| key.clone());
                    continue;
                }
                let rivals = keys.rivals.entry(at).or_default();
                if rivals
                    .iter()
                    .all(|known| known.commitment() != key.commitment())
                {
                    rivals.push(key.clone());
                }
            }
        }
        state.rights = Arc::new(Rights {
            authority: Arc::clone(&authority),
            keys,
        });
        *self.rights.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&state.rights);
        let freed = state.admission.authority_changed();
        state.recheck.extend(freed);
        let recut = state.admission.authority_pins(&authority);
        if !recut.is_empty() {
            state.is_curtailed = state.admission.curtailed().next().is_some();
            // Who composes must not build on what is about to go.
            let spaces: BTreeSet<SpaceId> = recut.into_iter().map(|(space, _)| space).collect();
            self.applier.recut(spaces);
        }
        let redacted = state.reassess();
        self.applier.redact(redacted);
        let is_new = |(space, epoch): &(SpaceId, u32)| {
            let known = |key: &SpaceKey| {
                let mut before = before.keys_of(space, *epoch);
                before.any(|known| known.commitment() == key.commitment())
            };
            !state.rights.keys_of(space, *epoch).all(known)
        };
        state.rights.epochs().into_iter().filter(is_new).collect()
    }

    /// Notes that a stored item cannot be read back: it leaves its set, so that it is fetched from
    /// a peer again, and its position in its chain stays taken.
    pub(super) fn note_lost(&self, row: &Row) {
        warn!(id = %row.id, segment = row.loc.segment, offset = row.loc.offset,
            "a record is damaged; it will be fetched from a peer");
        self.lose(row);
    }

    /// Reads the record of a stored item back; `None` if it is not here, or damaged.
    pub(super) fn read_record(&self, row: &Row) -> Option<(RecordKind, Bytes)> {
        match self.log.read(row.loc) {
            Some((head, payload)) if head.arrival == row.arrival => Some((head.kind, payload)),
            _ => {
                self.note_lost(row);
                None
            }
        }
    }
}

/// Returns where the chains written here stand after a batch.
fn own_tips(batch: &[Entry]) -> Vec<Tip> {
    let mut tips = BTreeMap::new();
    for entry in batch {
        if let Item::Fragment {
            fragment,
            own: true,
            ..
        } = &entry.item
        {
            let header = &fragment.header;
            let tip = Tip {
                space: header.space,
                author: header.author,
                seq: header.seq,
                id: fragment.id,
                prev: header.prev,
            };
            tips.insert((header.space, header.author), tip);
        }
    }
    tips.into_values().collect()
}
