//! Sync: one session per peer, and the task that owns the reconciliation core.
//!
//! A session is one bidirectional stream of frames on a connection of its own. Both sides say
//! hello first; then reconciliation, addresses and acknowledgements share the stream
//! (`docs/wire.md`, section 6.3). [`Replication`] decides everything about reconciliation and
//! sees neither sockets nor clocks; this module feeds it and carries out what it says.

mod session;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use iroh::{
    endpoint::Connection,
    protocol::{AcceptError, ProtocolHandler},
};
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{IdSet, Lane, Replica, now_ms};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, error, trace};

use crate::{
    net::{
        acks::{self, Acks},
        book::Book,
        connections::{Close, Protocol},
        endpoint::{DialError, Net, SYNC_ALPN},
        peers::Peers,
    },
    proto::replication::{Config, Holdings, Input, Output, Replication},
};

pub(crate) use session::{decode_infos, encode_infos};

/// Inputs that wait for the core; a session that finds it full stops reading its stream.
const INBOX: usize = 256;
/// Inputs that one turn of the core takes.
const TURN: usize = 64;
/// Frames queued for one peer; a peer that leaves so many unread is disconnected.
const SEND_QUEUE_FRAMES: usize = 128;
/// Batches that wait to be admitted; beyond it, frames of peers wait.
const ADMIT_QUEUE: usize = 16;
/// How long a dial and the hello that follows it may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a frame carries.
pub(crate) mod kind {
    /// Version, mesh and address of the sender; the first frame on each side.
    pub(crate) const HELLO: u8 = 0;
    /// A frame of the reconciliation core.
    pub(crate) const RECONCILE: u8 = 1;
    /// Signed addresses of members.
    pub(crate) const NODE_INFOS: u8 = 2;
    /// Ids of fragments whose durability the sender waits for.
    pub(crate) const ASK: u8 = 3;
    /// Ids of fragments that are durable at the sender.
    pub(crate) const HELD: u8 = 4;
}

/// What the core's task is told.
#[derive(Debug)]
enum Inbound {
    Up(NodeId, u64),
    Down(NodeId, u64),
    Frame(NodeId, u64, Bytes),
    Stored { lane: Lane, id: Hash, own: bool },
}

/// The sending half of a session.
#[derive(Debug, Clone)]
struct Handle {
    id: u64,
    frames: mpsc::Sender<(u8, Bytes)>,
    connection: Connection,
}

#[derive(Debug)]
struct Shared {
    net: Net,
    replica: Replica,
    book: Book,
    peers: Arc<Peers>,
    acks: Arc<Acks>,
    inbox: mpsc::Sender<Inbound>,
    sessions: Mutex<BTreeMap<NodeId, Handle>>,
    next_session: AtomicU64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A handle to the sync sessions.
#[derive(Clone)]
pub(crate) struct Sync {
    shared: Arc<Shared>,
}

impl fmt::Debug for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sync").finish_non_exhaustive()
    }
}

/// What [`Sync::run`] consumes.
pub(crate) struct SyncTask {
    inbox: mpsc::Receiver<Inbound>,
}

impl Sync {
    /// Prepares sync; [`Self::run`] drives it.
    pub(crate) fn new(
        net: Net,
        replica: Replica,
        book: Book,
        peers: Arc<Peers>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> (Self, SyncTask) {
        let (inbox_in, inbox) = mpsc::channel(INBOX);
        let shared = Shared {
            net,
            replica,
            book,
            peers,
            acks: Arc::default(),
            inbox: inbox_in,
            sessions: Mutex::default(),
            next_session: AtomicU64::new(0),
            tasks,
            stop,
        };
        (
            Self {
                shared: Arc::new(shared),
            },
            SyncTask { inbox },
        )
    }

    /// Returns who waits for whose acknowledgement.
    pub(crate) fn acks(&self) -> &Acks {
        &self.shared.acks
    }

    /// Returns the peers with a live session.
    pub(crate) fn connected(&self) -> Vec<NodeId> {
        self.sessions().keys().copied().collect()
    }

    /// Returns whether there is a live session with `peer`.
    pub(crate) fn is_connected(&self, peer: &NodeId) -> bool {
        self.sessions().contains_key(peer)
    }

    /// Whether this node is a member of its mesh.
    pub(crate) fn is_member(&self) -> bool {
        let replica = &self.shared.replica;
        replica.authority().is_member(&replica.node())
    }

    /// Tells the core that an item has become durable here.
    pub(crate) async fn stored(&self, lane: Lane, id: Hash, own: bool) {
        let told = self.shared.inbox.send(Inbound::Stored { lane, id, own });
        if told.await.is_err() {
            trace!("sync has stopped");
        }
    }

    /// Queues a frame for `peer`; a peer whose queue is full is disconnected.
    pub(crate) fn send(&self, peer: &NodeId, kind: u8, payload: Bytes) {
        let Some(handle) = self.sessions().get(peer).cloned() else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = handle.frames.try_send((kind, payload)) {
            debug!(peer = %peer.fmt_short(), "peer does not read its frames");
            Close::TooSlow.apply(&handle.connection);
        }
    }

    /// Queues a frame for every connected peer but `except`.
    pub(crate) fn send_all(&self, kind: u8, payload: &Bytes, except: Option<&NodeId>) {
        for peer in self.connected() {
            if Some(&peer) != except {
                self.send(&peer, kind, payload.clone());
            }
        }
    }

    /// Asks every connected peer to say when it holds `ids`.
    pub(crate) fn ask(&self, ids: &[Hash]) {
        for ids in ids.chunks(acks::MAX_IDS) {
            self.send_all(kind::ASK, &acks::encode(ids).into(), None);
        }
    }

    /// Dials `peer` and opens a session; returns when both sides have said hello.
    pub(crate) async fn dial(&self, peer: NodeId) -> Result<(), DialError> {
        if self.is_connected(&peer) {
            return Ok(());
        }
        let started = Instant::now();
        let net = &self.shared.net;
        let connection = net.connect(&peer, SYNC_ALPN, DIAL_TIMEOUT).await?;
        if !net.connections.claim(Protocol::Sync, &connection) {
            // The session that won is as good as ours.
            return Ok(());
        }
        let left = DIAL_TIMEOUT.saturating_sub(started.elapsed());
        let opened = session::open(self, connection, session::Side::Dialled);
        match tokio::time::timeout(left, opened).await {
            Ok(Ok(session)) => {
                self.shared.tasks.spawn(session.run());
                Ok(())
            }
            Ok(Err(error)) => Err(DialError::Failed(std::io::Error::other(error))),
            Err(_) => Err(DialError::TimedOut(DIAL_TIMEOUT)),
        }
    }

    /// Drives the core until the token given to [`Self::new`] is cancelled.
    pub(crate) async fn run(self, task: SyncTask, seed: u64) {
        let shared = Arc::clone(&self.shared);
        // What waits here is past being overtaken, so next to nothing does.
        let (admits, admit_queue) = mpsc::channel(1);
        // One batch is admitted at a time; a second slot lets the worker go on to the next.
        let (admitted_in, mut admitted) = mpsc::channel(2);
        let worker = tokio::spawn(admit_all(shared.replica.clone(), admit_queue, admitted_in));
        let mut inbox = task.inbox;
        let mut core = Core::new(&shared.replica, seed);
        let mut backlog = VecDeque::new();
        let mut restarts = 0;
        loop {
            let mut turn = Vec::new();
            let deadline = core.deadline();
            tokio::select! {
                biased; // Stopping, then our own work, then timers, then work from peers.
                () = shared.stop.cancelled() => break,
                Some(done) = admitted.recv() => turn.push(Turn::Admitted(done)),
                permit = admits.reserve(), if !backlog.is_empty() => {
                    let Ok(permit) = permit else { break };
                    permit.send(backlog.pop_front().expect("the guard saw a batch"));
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => {}
                Some(input) = inbox.recv(), if backlog.len() < ADMIT_QUEUE => {
                    turn.push(Turn::Inbound(input));
                }
            }
            while turn.len() < TURN && backlog.len() < ADMIT_QUEUE {
                let Ok(input) = inbox.try_recv() else { break };
                turn.push(Turn::Inbound(input));
            }
            // The core reads item bodies from disk, so its turns run on a blocking thread.
            let ran = tokio::task::spawn_blocking(move || {
                let outputs = core.turn(turn);
                (core, outputs)
            });
            let outputs = match ran.await {
                Ok((back, outputs)) => {
                    core = back;
                    outputs
                }
                Err(failed) if failed.is_panic() => {
                    // Our bug, whoever provoked it. A core holds nothing that reconciliation
                    // does not find again, so a fresh one and fresh sessions carry on.
                    error!("the reconciliation core failed; all sessions start anew");
                    restarts += 1;
                    core = Core::new(&shared.replica, seed.wrapping_add(restarts));
                    backlog.clear();
                    for handle in self.sessions().values() {
                        Close::Done.apply(&handle.connection);
                    }
                    continue;
                }
                // The runtime is going down.
                Err(_) => break,
            };
            for output in outputs {
                self.carry_out(output, &mut backlog);
            }
        }
        drop(admits);
        drop(admitted);
        if worker.await.is_err() {
            debug!("the admission worker was cancelled");
        }
    }

    fn carry_out(&self, output: Output, backlog: &mut VecDeque<Batch>) {
        match output {
            Output::Send { to, frame } => self.send(&to, kind::RECONCILE, frame),
            Output::Admit {
                from,
                lane,
                batch,
                items,
            } => {
                // Records overtake fragments, not each other.
                let records = backlog.iter().take_while(|of| of.lane == Lane::Authority);
                let place = match lane {
                    Lane::Authority => records.count(),
                    Lane::Space(_) => backlog.len(),
                };
                let batch = Batch {
                    from,
                    lane,
                    batch,
                    items,
                };
                backlog.insert(place, batch);
            }
            Output::Misbehaved { peer, what } => {
                debug!(peer = %peer.fmt_short(), what, "peer broke the sync protocol");
                if let Some(handle) = self.sessions().get(&peer) {
                    Close::Misbehaved.apply(&handle.connection);
                }
            }
            Output::Replica { peer, id, .. } => self.shared.acks.held(peer, &[id]),
            Output::Incompatible { peer, version } => {
                debug!(peer = %peer.fmt_short(), version, "peer speaks another version");
                if let Some(handle) = self.sessions().get(&peer) {
                    Close::Misbehaved.apply(&handle.connection);
                }
            }
            Output::InSync { peer, lane, .. } => {
                trace!(peer = %peer.fmt_short(), ?lane, "in sync");
                self.shared.peers.in_sync(peer, lane, now_ms());
                self.note_compared(lane);
            }
        }
    }

    /// Tells a store that was put back from a copy that it is whole again.
    fn note_compared(&self, lane: Lane) {
        let replica = &self.shared.replica;
        if let Lane::Space(space) = lane
            && replica.is_unconfirmed_copy()
        {
            let replica = replica.clone();
            tokio::task::spawn_blocking(move || replica.note_compared(space));
        }
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<NodeId, Handle>> {
        // Insertions and removals are single calls; nothing is left half done.
        self.shared
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProtocolHandler for Sync {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        if !self
            .shared
            .net
            .connections
            .claim(Protocol::Sync, &connection)
        {
            return Ok(());
        }
        let opened = session::open(self, connection.clone(), session::Side::Accepted);
        match tokio::time::timeout(DIAL_TIMEOUT, opened).await {
            Ok(Ok(session)) => session.run().await,
            Ok(Err(error)) => {
                debug!(peer = %connection.remote_id().fmt_short(), %error, "no hello");
                Close::Misbehaved.apply(&connection);
            }
            Err(_) => Close::TooSlow.apply(&connection),
        }
        Ok(())
    }
}

/// The core with what it sees of the world.
struct Core {
    replication: Replication,
    held: Held,
    started: Instant,
    /// The session that each peer's frames are taken from.
    current: BTreeMap<NodeId, u64>,
}

enum Turn {
    Inbound(Inbound),
    Admitted(Input),
}

impl Core {
    fn new(replica: &Replica, seed: u64) -> Box<Self> {
        Box::new(Self {
            replication: Replication::new(replica.node(), seed, Config::default()),
            held: Held(replica.clone()),
            started: Instant::now(),
            current: BTreeMap::new(),
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn deadline(&self) -> Instant {
        let far = Duration::from_secs(3600);
        let due = self.replication.next_deadline();
        due.map_or_else(|| Instant::now() + far, |due| self.started + due)
    }

    fn turn(&mut self, turn: Vec<Turn>) -> Vec<Output> {
        let mut outputs = Vec::new();
        let now = self.now();
        if self
            .replication
            .next_deadline()
            .is_some_and(|due| due <= now)
        {
            outputs.extend(self.replication.handle_timeout(now, &self.held));
        }
        for step in turn {
            let inputs = match step {
                Turn::Admitted(input) => vec![input],
                Turn::Inbound(inbound) => self.inputs(inbound),
            };
            for input in inputs {
                outputs.extend(self.replication.handle(now, input, &self.held));
            }
        }
        outputs
    }

    /// Turns session events into inputs: a new session replaces the old one of its peer, and
    /// what a replaced session still says counts for nothing.
    fn inputs(&mut self, inbound: Inbound) -> Vec<Input> {
        match inbound {
            Inbound::Up(peer, session) => {
                let replaced = self.current.insert(peer, session).is_some();
                let down = replaced.then_some(Input::PeerDown(peer));
                down.into_iter().chain([Input::PeerUp(peer)]).collect()
            }
            Inbound::Down(peer, session) => {
                if self.current.get(&peer) != Some(&session) {
                    return Vec::new();
                }
                self.current.remove(&peer);
                vec![Input::PeerDown(peer)]
            }
            Inbound::Frame(from, session, frame) => {
                let current = self.current.get(&from) == Some(&session);
                current
                    .then_some(Input::Frame { from, frame })
                    .into_iter()
                    .collect()
            }
            Inbound::Stored { lane, id, own } => vec![Input::Stored { lane, id, own }],
        }
    }
}

/// A batch that the core wants admitted.
struct Batch {
    from: NodeId,
    lane: Lane,
    /// The core's number for it.
    batch: u64,
    items: Vec<Bytes>,
}

async fn admit_all(
    replica: Replica,
    mut queue: mpsc::Receiver<Batch>,
    admitted: mpsc::Sender<Input>,
) {
    while let Some(batch) = queue.recv().await {
        let replica = replica.clone();
        let verdicts = tokio::task::spawn_blocking(move || session::admit(&replica, batch)).await;
        let Ok(done) = verdicts else {
            debug!("an admission was cancelled");
            continue;
        };
        if admitted.send(done).await.is_err() {
            break;
        }
    }
}

/// The replica as the reconciliation core sees it.
struct Held(Replica);

impl Holdings for Held {
    fn lanes(&self) -> Vec<Lane> {
        self.0.lanes()
    }

    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R> {
        if !self.0.lanes().contains(&lane) {
            return None;
        }
        let set = self.0.id_set(lane);
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        Some(f(&set))
    }

    fn items(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        self.0.wires(lane, ids, max_bytes)
    }

    fn causal_order(&self, lane: Lane, ids: &mut Vec<Hash>) {
        // What an item builds on was admitted before it.
        let mut placed: Vec<(u64, Hash)> = ids
            .iter()
            .filter_map(|id| Some((self.0.arrival(lane, id)?, *id)))
            .collect();
        placed.sort_unstable();
        *ids = placed.into_iter().map(|(_, id)| id).collect();
    }

    fn may_sync(&self, peer: &NodeId, lane: Lane) -> bool {
        match lane {
            Lane::Authority => true,
            Lane::Space(space) => self.0.authority().role_in(peer, &space).is_some(),
        }
    }
}

/// Returns every item of `lane`, what others build on first; blocks on the disk.
pub(crate) fn all_items(replica: &Replica, lane: Lane) -> Vec<Bytes> {
    let mut ids: Vec<Hash> = {
        let set = replica.id_set(lane);
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        set.iter().copied().collect()
    };
    // Whoever takes them in keeps only so many that wait for a parent.
    ids.sort_by_cached_key(|id| replica.arrival(lane, id));
    replica.wires(lane, &ids, usize::MAX)
}

fn next_session(shared: &Shared) -> u64 {
    shared.next_session.fetch_add(1, Ordering::Relaxed)
}
