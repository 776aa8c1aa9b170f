//! One simulated node: the cores of production over a store in memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use rhizome_identity::{AgentId, Authority, Hash, NodeId, RecordLog, SignedRecord, SpaceId};
use rhizome_memory::{
    Admission, DocId, Fragment, FragmentId, Header, Hlc, Kind, Lane, Missing, Verdict,
};
use rhizome_mesh::proto::{
    address_book::AddressBook,
    replication::{Config, ItemOutcome, Replication},
};

use super::{
    founding::{Founding, Keys},
    hostile::Hostility,
    shared::Memo,
    store::{Item, Store},
};

/// A batch whose last write is not durable yet.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) from: NodeId,
    pub(super) lane: Lane,
    pub(super) batch: u64,
    pub(super) outcomes: Vec<ItemOutcome>,
}

/// What a node loses when it crashes.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) replication: Replication,
    pub(super) book: AddressBook,
    pub(super) log: RecordLog,
    /// What `log` resolves to, unless `stale`.
    authority: Arc<Authority>,
    /// Whether `log` has grown since: it is resolved when someone asks, not for every record.
    stale: bool,
    pub(super) admission: Admission,
    /// The next position of the own chain, counting what is still being written.
    next: (u64, Option<FragmentId>),
    /// Fragments admitted but not durable: their successors may be admitted behind them.
    writing: BTreeMap<FragmentId, Fragment>,
    pub(super) batches: BTreeMap<u64, Vec<Batch>>,
    /// When the timer that is set rings.
    pub(super) timer: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) id: NodeId,
    pub(super) agent: AgentId,
    pub(super) neighbours: Vec<u32>,
    pub(super) hostility: Option<Hostility>,
    pub(super) store: Store,
    /// Counts starts, so that what belongs to an earlier life is told apart.
    pub(super) life: u32,
    pub(super) running: Option<Running>,
}

impl SimNode {
    pub(super) fn new(founding: &Founding, index: usize, neighbours: Vec<u32>) -> Self {
        let Keys { node, agent } = &founding.keys[index];
        Self {
            id: node.id(),
            agent: agent.id(),
            neighbours,
            hostility: None,
            store: Store::new(&[Lane::Authority, Lane::Space(founding.space)]),
            life: 0,
            running: None,
        }
    }

    /// Starts from what is on the disk.
    pub(super) fn start(&mut self, seed: u64, config: Config, space: SpaceId, memo: &mut Memo) {
        let mut log = RecordLog::default();
        let mut admission = Admission::new();
        for item in self.store.disk() {
            match item.lane {
                Lane::Authority => {
                    let record = memo
                        .record(&item.bytes)
                        .expect("checked before it was written");
                    log.insert(record).expect("checked before it was written");
                }
                Lane::Space(_) => {
                    let own = memo
                        .fragment(&item.bytes)
                        .expect("checked before it was written");
                    admission.commit(&own);
                }
            }
        }
        let head = admission.head(&self.agent, &space);
        let authority = {
            let ids = self
                .store
                .set(Lane::Authority)
                .expect("every node holds the log");
            memo.authority(ids, &log)
        };
        self.life += 1;
        self.running = Some(Running {
            replication: Replication::new(self.id, seed, config),
            book: AddressBook::new(self.id, seed),
            log,
            authority,
            stale: false,
            admission,
            next: head.map_or((0, None), |(seq, id)| (seq + 1, Some(id))),
            writing: BTreeMap::new(),
            batches: BTreeMap::new(),
            timer: None,
        });
    }

    /// Returns what the log says now; `None` while the node is down.
    pub(super) fn authority(&mut self, memo: &mut Memo) -> Option<Arc<Authority>> {
        let running = self.running.as_mut()?;
        if std::mem::take(&mut running.stale) {
            let ids = self
                .store
                .set(Lane::Authority)
                .expect("every node holds the log");
            running.authority = memo.authority(ids, &running.log);
        }
        Some(Arc::clone(&running.authority))
    }

    /// Signs the next fragment of the own chain and hands it to the disk.
    pub(super) fn publish(
        &mut self,
        founding: &Founding,
        index: usize,
        now: Duration,
        memo: &mut Memo,
    ) -> Option<(u64, FragmentId, u64)> {
        self.authority(memo)?;
        let running = self.running.as_mut()?;
        let (seq, prev) = running.next;
        let mut auth_heads = running.authority.heads().to_vec();
        auth_heads.truncate(8);
        let header = Header {
            version: rhizome_memory::FRAGMENT_VERSION,
            mesh: founding.mesh,
            space: founding.space,
            author: self.agent,
            node: self.id,
            seq,
            prev,
            auth_heads,
            deps: Vec::new(),
            hlc: Hlc::from_ms(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            kind: Kind::Observation,
            doc: DocId::from_bytes(*Hash::of(&seq.to_le_bytes()).as_bytes()),
            fingerprint: Hash::of(b"simulated"),
            epoch: 1,
            nonce: [0; 24],
            body_hash: Hash::of(b""),
            body_len: 0,
        };
        let body = Bytes::from(format!("{} says {seq} at {now:?}", self.id));
        let signed = Fragment::sign(&founding.keys[index].agent, header, body).expect("in bounds");
        let bytes = signed.encode();
        let fragment = memo.fragment(&bytes).expect("signed by the author");
        let id = fragment.id;
        running.next = (seq + 1, Some(id));
        running.writing.insert(id, fragment);
        let lane = Lane::Space(founding.space);
        let mark = self.store.write(Item {
            lane,
            id: hash_of(id),
            bytes,
            own: true,
        });
        Some((seq, id, mark))
    }

    /// Hands an own record to the disk.
    pub(super) fn record(&mut self, record: &SignedRecord) -> u64 {
        let bytes = Bytes::copy_from_slice(record.bytes());
        let id = Hash::from_bytes(*record.id().as_bytes());
        self.store.write(Item {
            lane: Lane::Authority,
            id,
            bytes,
            own: true,
        })
    }

    /// Checks foreign items; what passes is handed to the disk.
    ///
    /// Returns what becomes of each, and the mark at which all of it is durable, if anything was
    /// written.
    pub(super) fn admit(
        &mut self,
        lane: Lane,
        items: &[Bytes],
        memo: &mut Memo,
    ) -> (Vec<ItemOutcome>, Option<u64>) {
        let mut mark = None;
        let outcomes = items
            .iter()
            .map(|bytes| match lane {
                Lane::Authority => self.admit_record(bytes, memo, &mut mark),
                Lane::Space(space) => match memo.fragment(bytes) {
                    Some(fragment) if fragment.header.space == space => {
                        self.admit_fragment(fragment, bytes.clone(), memo, &mut mark)
                    }
                    _ => ItemOutcome::Refused,
                },
            })
            .collect();
        (outcomes, mark)
    }

    fn admit_record(
        &mut self,
        bytes: &Bytes,
        memo: &mut Memo,
        mark: &mut Option<u64>,
    ) -> ItemOutcome {
        let Some(record) = memo.record(bytes) else {
            return ItemOutcome::Refused;
        };
        let Some(running) = &self.running else {
            return ItemOutcome::Refused;
        };
        let id = Hash::from_bytes(*record.id().as_bytes());
        if self.store.holds(&id) || self.store.is_writing(&id) {
            return ItemOutcome::Known;
        }
        let there = |parent: &rhizome_identity::RecordId| {
            let id = Hash::from_bytes(*parent.as_bytes());
            running.log.contains(parent) || self.store.is_writing(&id)
        };
        if !record.record().parents.iter().all(there) {
            return ItemOutcome::Waiting;
        }
        let item = Item {
            lane: Lane::Authority,
            id,
            bytes: bytes.clone(),
            own: false,
        };
        *mark = Some(self.store.write(item));
        ItemOutcome::Stored
    }

    fn admit_fragment(
        &mut self,
        fragment: Fragment,
        bytes: Bytes,
        memo: &mut Memo,
        mark: &mut Option<u64>,
    ) -> ItemOutcome {
        let Some(authority) = self.authority(memo) else {
            return ItemOutcome::Refused;
        };
        let Some(running) = self.running.as_mut() else {
            return ItemOutcome::Refused;
        };
        let id = fragment.id;
        if running.writing.contains_key(&id) {
            return ItemOutcome::Known;
        }
        match running.admission.check(&authority, &fragment) {
            Verdict::Admit => {}
            // Behind one that is being written: as good as admitted, and durable after it.
            Verdict::Wait(Missing::Prev(prev, _)) if running.writing.contains_key(&prev) => {}
            Verdict::Duplicate => return ItemOutcome::Known,
            Verdict::Wait(missing) => {
                running.admission.hold(fragment, missing);
                return ItemOutcome::Waiting;
            }
            _ => return ItemOutcome::Refused,
        }
        let lane = Lane::Space(fragment.header.space);
        running.writing.insert(id, fragment);
        *mark = Some(self.store.write(Item {
            lane,
            id: hash_of(id),
            bytes,
            own: false,
        }));
        ItemOutcome::Stored
    }

    /// Takes what became durable into log and chains; returns the mark of what was freed by it
    /// and is being written now.
    pub(super) fn durable(&mut self, items: &[Item], memo: &mut Memo) -> Option<u64> {
        let running = self.running.as_mut()?;
        let mut freed = Vec::new();
        let mut authority_changed = false;
        for item in items {
            match item.lane {
                Lane::Authority => {
                    if let Some(record) = memo.record(&item.bytes) {
                        authority_changed |= running.log.insert(record).is_ok();
                    }
                }
                Lane::Space(_) => {
                    let id = FragmentId::from_bytes(*item.id.as_bytes());
                    if let Some(fragment) = running.writing.remove(&id) {
                        freed.extend(running.admission.commit(&fragment));
                    }
                }
            }
        }
        if authority_changed {
            running.stale = true;
            freed.extend(running.admission.authority_changed());
        }
        let mut mark = None;
        for fragment in freed {
            let bytes = fragment.encode();
            self.admit_fragment(fragment, bytes, memo, &mut mark);
        }
        mark
    }

    /// Stops at once; of what was not synced only the first `torn` writes are on the disk.
    pub(super) fn crash(&mut self, torn: usize) {
        self.store.crash(torn);
        self.running = None;
        self.life += 1;
    }
}

pub(super) fn hash_of(id: FragmentId) -> Hash {
    Hash::from_bytes(*id.as_bytes())
}
