//! Opening: from whatever the disk holds to a running replica.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions, TryLockError},
    io,
    path::Path,
    sync::{Arc, RwLock},
    thread,
};

use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, NodeId, NodeKey, SignedRecord, SpaceId};
use tracing::warn;

use super::{
    Replica, Running, bodies,
    error::OpenError,
    journal::read_evidence,
    known::Known,
    request::ReplicaConfig,
    restored::Copy,
    state::{Inner, Rights, State},
};
use crate::{
    ForkWatch, Fragment, FragmentError, Hlc, HlcClock, IdSet, Lane, View,
    disk::{Disk, RealDisk},
    now_ms,
    store::{
        Index, Loc, Log, Reach, RecordKind, RecoveryReport, Row, RowKind, StoreKey, Tip,
        finish_overwriting, is_there,
    },
};

const LOCK: &str = "replica.lock";
const INDEX: &str = "index.redb";
const VIEW: &str = "view";

/// What the segments and the index said.
pub(super) struct Restored {
    pub(super) state: State,
    pub(super) clock: HlcClock,
    pub(super) sets: BTreeMap<Lane, Arc<RwLock<IdSet>>>,
}

impl Replica {
    pub(super) fn open_real(
        dir: &Path,
        node: NodeKey,
        config: ReplicaConfig,
    ) -> Result<Self, OpenError> {
        let directory = |source| OpenError::Directory {
            path: dir.to_owned(),
            source,
        };
        let disk = RealDisk::new(dir).map_err(directory)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join(LOCK))
            .map_err(directory)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(directory(source)),
        }
        let copy = Copy::look(dir, &lock).map_err(directory)?;
        if copy.is_suspect {
            warn!(
                "this store was put back from a copy; nothing is published in a space before it was \
                 compared with a peer"
            );
        }
        Self::open_on(Arc::new(disk), dir, node, config, Some((lock, copy)))
    }

    /// Opens the replica whose segments and bodies are on `disk` and whose index and view, which
    /// can be derived again, are in `dir`.
    pub(super) fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        node: NodeKey,
        config: ReplicaConfig,
        lock: Option<(fs::File, Copy)>,
    ) -> Result<Self, OpenError> {
        let directory = |source| OpenError::Directory {
            path: dir.to_owned(),
            source,
        };
        let store = |source| OpenError::Store {
            path: dir.to_owned(),
            source,
        };
        let key = StoreKey::new(&node);
        disk.create_dir(bodies::DIR).map_err(directory)?;

        finish_overwriting(&*disk, &key).map_err(store)?;
        let mut known = Known::default();
        let (index, reach) = Index::open(&dir.join(INDEX), |row| known.take(row));
        let reach = reach.filter(|reach| is_there(&*disk, &key, reach.place, known.last()));
        let mut report = RecoveryReport::default();
        let reach = reach.unwrap_or_else(|| {
            known = Known::default();
            index.reset();
            report.index_rebuilt = true;
            Reach::default()
        });
        let mut tail = Tail::new(node.id(), reach.hlc);
        let log = Log::open(
            Arc::clone(&disk),
            key,
            config.segment_bytes,
            reach.place,
            &mut report,
            |found, payload| tail.read(found.head.kind, found.head.arrival, found.loc, payload),
        )
        .map_err(store)?;
        // A store that was never written to has no index to lose.
        report.index_rebuilt &= report.segments > 0;
        let Tail {
            mut rows,
            tips,
            clock,
            ..
        } = tail;
        rows.sort_by_key(|row| row.arrival);
        for row in rows {
            known.take(&row);
            index.insert(row);
        }
        let watch = ForkWatch::new(node.id(), config.fork_turn);
        let mut restored = known.restore(&*disk, &log, &index, &tips, &mut report, (clock, watch));

        let view = open_view(dir, log.place().arrival)?;
        let (lock, copy) = lock.unzip();
        let is_new_view = view.watermark() == 0;
        let mut rights = Rights::clone(&restored.state.rights);
        rights.keys = rights.authority.held_keys(&node);
        let keys = rights.epochs();
        let contested = rights.keys.rivals.clone();
        restored.state.rights = Arc::new(rights);
        let inner = Inner::new(
            node,
            dir.to_owned(),
            disk,
            log,
            index,
            report,
            view,
            restored,
            config.shares,
            lock,
            copy.unwrap_or_default(),
        );
        if is_new_view {
            // Everything is read once more anyway, with all the keys there are.
            inner.note_settled_keys(&keys);
        } else {
            let settled = Inner::settled_keys(dir);
            inner.applier.rescan(
                keys.into_iter()
                    .filter(|key| !settled.contains(key) || contested.contains_key(key))
                    .collect(),
            );
        }
        let unsettled = inner.restore_cuts();
        if !unsettled.is_empty() {
            inner.applier.recut(unsettled);
        }
        let redacted = inner.restore_redactions();
        inner.applier.redact(redacted);
        if inner.recovery.replayed > 0 {
            inner.flush_index();
        }
        let inner = Arc::new(inner);
        let applier = thread::Builder::new().name("rhizome-view".into()).spawn({
            let inner = Arc::clone(&inner);
            move || inner.applier.run(&inner)
        });
        let applier = Some(applier.map_err(directory)?);
        Ok(Self(Arc::new(Running { inner, applier })))
    }
}

/// What was read of the segments behind the index.
struct Tail {
    node: NodeId,
    rows: Vec<Row>,
    tips: BTreeMap<(SpaceId, AgentId), Tip>,
    clock: HlcClock,
}

impl Tail {
    fn new(node: NodeId, hlc: Hlc) -> Self {
        let clock = HlcClock::starting_after(hlc);
        Self {
            node,
            rows: Vec::new(),
            tips: BTreeMap::new(),
            clock,
        }
    }

    fn read(&mut self, kind: RecordKind, arrival: u64, loc: Loc, payload: &[u8]) {
        let row = match kind {
            RecordKind::Fragment => self.fragment(arrival, loc, Fragment::decode(&copy(payload))),
            RecordKind::Stripped => {
                self.fragment(arrival, loc, Fragment::decode_stripped(&copy(payload)))
            }
            RecordKind::Authority => SignedRecord::parse(payload).ok().map(|record| {
                let id = Hash::from_bytes(*record.id().as_bytes());
                Row {
                    arrival,
                    loc,
                    id,
                    kind: RowKind::Authority,
                }
            }),
            RecordKind::Body => <[u8; 32]>::try_from(payload).ok().map(|hash| {
                let id = Hash::from_bytes(hash);
                Row {
                    arrival,
                    loc,
                    id,
                    kind: RowKind::Body,
                }
            }),
            RecordKind::Evidence => read_evidence(payload).map(|(other, fragment)| {
                let (space, author) = (fragment.header.space, fragment.header.author);
                let kind = RowKind::Evidence {
                    space,
                    author,
                    other,
                };
                Row {
                    arrival,
                    loc,
                    id: fragment.id.into(),
                    kind,
                }
            }),
            RecordKind::Filler => return,
            RecordKind::Commit => {
                let tips = Tip::read_all(payload).into_iter();
                self.tips
                    .extend(tips.map(|tip| ((tip.space, tip.author), tip)));
                return;
            }
        };
        match row {
            Some(row) => self.rows.push(row),
            None => warn!(
                arrival,
                ?kind,
                "a stored record cannot be read by this version"
            ),
        }
    }

    fn fragment(
        &mut self,
        arrival: u64,
        loc: Loc,
        read: Result<Fragment, FragmentError>,
    ) -> Option<Row> {
        let fragment = read.ok()?;
        let own = fragment.header.node == self.node;
        if own {
            self.clock = HlcClock::starting_after(self.clock.last().max(fragment.header.hlc));
        } else {
            self.clock.observe(now_ms(), fragment.header.hlc);
        }
        Some(Row::of_fragment(arrival, loc, &fragment, own))
    }
}

fn copy(payload: &[u8]) -> Bytes {
    Bytes::copy_from_slice(payload)
}

fn open_view(dir: &Path, arrival: u64) -> Result<View, OpenError> {
    let path = dir.join(VIEW);
    let failed = |source| OpenError::View {
        path: path.clone(),
        source,
    };
    let view = View::open(&path).map_err(failed)?;
    if view.watermark() <= arrival {
        return Ok(view);
    }
    // It has seen what the segments no longer hold, a backup's for one: it is of another past.
    warn!("the view is ahead of the store and is derived anew");
    drop(view);
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(OpenError::Directory { path, source })
        }
        _ => View::open(&path).map_err(failed),
    }
}
