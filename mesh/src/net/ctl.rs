//! Control: byte streams between members, for what nodes ask of each other.
//!
//! A stream is one bidirectional QUIC stream of a connection of its own protocol; what is said on
//! it is the business of whoever opens and takes it (`docs/wire.md`, section 6.5). Only members
//! get this far: the endpoint's hook has seen to that, and a node that ceases to be one loses its
//! connections. Flow control is QUIC's; what one peer may have open at once is bounded here.

mod stream;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use iroh::{
    endpoint::{Connection, VarInt},
    protocol::{AcceptError, ProtocolHandler},
};
use rhizome_identity::NodeId;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace};

pub use self::stream::CtlStream;
use crate::net::{
    CtlError,
    connections::{Close, Membership},
    endpoint::{CTL_ALPN, DialError, Net},
    ids::node_of_endpoint,
};

/// How long opening a stream may take, a dial included.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);
/// Streams of one peer that are open here at once; what comes on top waits.
const MAX_STREAMS_PER_PEER: u32 = 32;
/// Streams of all peers that are open here at once.
const MAX_STREAMS: usize = 256;
/// Connections that one peer may hold; one does, more come of a restart or of a broken path.
const MAX_CONNECTIONS_PER_PEER: usize = 4;
/// Streams that wait to be taken by the node; then their connections wait.
const STREAM_QUEUE: usize = 16;
/// What a peer may have sent and we not read yet, over all streams of a connection: 8 MiB.
const RECEIVE_WINDOW: u32 = 8 * 1024 * 1024;
/// A connection that carried no stream for this long is closed: its keep-alives cost something.
const IDLE: Duration = Duration::from_secs(30);

/// A handle to the control streams.
#[derive(Debug, Clone)]
pub(crate) struct Ctl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    net: Net,
    members: Members,
    incoming: mpsc::Sender<CtlStream>,
    /// Until the node takes it.
    queue: Mutex<Option<mpsc::Receiver<CtlStream>>>,
    all: Arc<Semaphore>,
    guests: Mutex<BTreeMap<NodeId, Guest>>,
    lines: Mutex<BTreeMap<NodeId, Arc<Line>>>,
    used: Notify,
}

/// A membership test that can be printed.
#[derive(Clone)]
struct Members(Membership);

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Membership")
    }
}

/// What one peer has open here.
#[derive(Debug)]
struct Guest {
    streams: Arc<Semaphore>,
    connections: usize,
}

/// The way to one peer; one dial at a time.
#[derive(Debug, Default)]
struct Line {
    connection: tokio::sync::Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    connection: Connection,
    /// Cloned by every stream, so that its count says whether one is open.
    users: Arc<()>,
    last_used: Instant,
}

impl Ctl {
    /// Prepares control; [`Self::run`] closes what is idle, the acceptor hands in connections.
    pub(crate) fn new(net: Net, members: Membership) -> Self {
        let (incoming, queue) = mpsc::channel(STREAM_QUEUE);
        Self {
            shared: Arc::new(Shared {
                net,
                members: Members(members),
                incoming,
                queue: Mutex::new(Some(queue)),
                all: Arc::new(Semaphore::new(MAX_STREAMS)),
                guests: Mutex::default(),
                lines: Mutex::default(),
                used: Notify::new(),
            }),
        }
    }

    /// Returns where the peers' streams arrive; the first caller gets it.
    pub(crate) fn take_streams(&self) -> Option<mpsc::Receiver<CtlStream>> {
        lock(&self.shared.queue).take()
    }

    /// Opens a stream to `peer`, dialling it if need be.
    pub(crate) async fn open(&self, peer: NodeId) -> Result<CtlStream, CtlError> {
        if !(self.shared.members.0)(&peer) || peer == self.shared.net.me() {
            return Err(CtlError::NotAMember { node: peer });
        }
        match tokio::time::timeout(OPEN_TIMEOUT, self.open_patiently(peer)).await {
            Ok(opened) => opened,
            Err(_) => Err(CtlError::TimedOut {
                node: peer,
                waited: OPEN_TIMEOUT,
            }),
        }
    }

    async fn open_patiently(&self, peer: NodeId) -> Result<CtlStream, CtlError> {
        let line = Arc::clone(lock(&self.shared.lines).entry(peer).or_default());
        let mut last = None;
        // A connection that broke since its last use is found out by the first try.
        for _ in 0..2 {
            let (connection, user) = line.connection(&self.shared.net, peer).await?;
            self.shared.used.notify_one();
            match connection.open_bi().await {
                Ok((send, recv)) => return Ok(CtlStream::dialled(peer, send, recv, user)),
                Err(error) => {
                    line.forget(&connection).await;
                    last = Some(error);
                }
            }
        }
        let source = last.expect("the loop ran, and returns unless it failed");
        Err(CtlError::Closed {
            node: peer,
            source: source.into(),
        })
    }

    /// Closes connections that nobody uses, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let busy = !lock(&self.shared.lines).is_empty();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // With nothing to watch over there is no timer either.
                () = self.shared.used.notified(), if !busy => {}
                () = tokio::time::sleep(IDLE), if busy => self.close_idle().await,
            }
        }
    }

    async fn close_idle(&self) {
        let lines: Vec<_> = {
            let lines = lock(&self.shared.lines);
            lines
                .iter()
                .map(|(peer, line)| (*peer, Arc::clone(line)))
                .collect()
        };
        for (peer, line) in lines {
            // A line that is locked is being dialled, so it is in use.
            let Ok(mut held) = line.connection.try_lock() else {
                continue;
            };
            if held.as_ref().is_some_and(|held| !held.is_idle()) {
                continue;
            }
            if let Some(idle) = held.take() {
                trace!(peer = %peer.fmt_short(), "closing an idle control connection");
                Close::Done.apply(&idle.connection);
            }
            let mut lines = lock(&self.shared.lines);
            // Ours and the table's: whoever else has one is about to dial.
            if Arc::strong_count(&line) == 2 {
                lines.remove(&peer);
            }
        }
    }

    /// Counts one more connection of `peer`; `None` when it has too many.
    fn admit(&self, peer: NodeId) -> Option<Admitted> {
        let mut guests = lock(&self.shared.guests);
        let guest = guests.entry(peer).or_insert_with(|| Guest {
            streams: Arc::new(Semaphore::new(MAX_STREAMS_PER_PEER as usize)),
            connections: 0,
        });
        if guest.connections >= MAX_CONNECTIONS_PER_PEER {
            return None;
        }
        guest.connections += 1;
        Some(Admitted {
            shared: Arc::clone(&self.shared),
            peer,
            streams: Arc::clone(&guest.streams),
        })
    }
}

impl Line {
    /// Returns an open connection, dialled if there is none, and a mark of its use.
    async fn connection(&self, net: &Net, peer: NodeId) -> Result<(Connection, Arc<()>), CtlError> {
        let mut held = self.connection.lock().await;
        if let Some(held) = held
            .as_mut()
            .filter(|held| held.connection.close_reason().is_none())
        {
            held.last_used = Instant::now();
            return Ok((held.connection.clone(), Arc::clone(&held.users)));
        }
        let dialled = net.connect(&peer, CTL_ALPN, OPEN_TIMEOUT).await;
        let connection = dialled.map_err(|error| match error {
            DialError::TimedOut(waited) => CtlError::TimedOut { node: peer, waited },
            error => CtlError::Unreachable {
                node: peer,
                source: error.into(),
            },
        })?;
        // The other side opens its streams on a connection of its own.
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(0));
        connection.set_max_concurrent_uni_streams(VarInt::from_u32(0));
        let users = Arc::new(());
        *held = Some(Held {
            connection: connection.clone(),
            users: Arc::clone(&users),
            last_used: Instant::now(),
        });
        Ok((connection, users))
    }

    async fn forget(&self, broken: &Connection) {
        let mut held = self.connection.lock().await;
        let same = |held: &Held| held.connection.stable_id() == broken.stable_id();
        if held.as_ref().is_some_and(same) {
            *held = None;
        }
    }
}

impl Held {
    fn is_idle(&self) -> bool {
        self.connection.close_reason().is_some()
            || (Arc::strong_count(&self.users) == 1 && self.last_used.elapsed() >= IDLE)
    }
}

/// The place of one connection of a peer; dropped, it is free again.
struct Admitted {
    shared: Arc<Shared>,
    peer: NodeId,
    streams: Arc<Semaphore>,
}

impl Admitted {
    /// Waits for room for one more stream of this peer.
    async fn permit(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let own = Arc::clone(&self.streams).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.shared.all).acquire_owned().await.ok()?;
        Some([own, all])
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut guests = lock(&self.shared.guests);
        if let Some(guest) = guests.get_mut(&self.peer) {
            guest.connections -= 1;
            // Its streams may still be open; then the semaphore has to be found again.
            let idle = guest.streams.available_permits() == MAX_STREAMS_PER_PEER as usize;
            if guest.connections == 0 && idle {
                guests.remove(&self.peer);
            }
        }
    }
}

impl ProtocolHandler for Ctl {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let peer = node_of_endpoint(&connection.remote_id());
        let Some(admitted) = self.admit(peer) else {
            debug!(peer = %peer.fmt_short(), "too many control connections");
            Close::Busy.apply(&connection);
            return Ok(());
        };
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(MAX_STREAMS_PER_PEER));
        connection.set_max_concurrent_uni_streams(VarInt::from_u32(0));
        connection.set_receive_window(VarInt::from_u32(RECEIVE_WINDOW));
        while let Ok((send, recv)) = connection.accept_bi().await {
            let Some(permits) = admitted.permit().await else {
                break;
            };
            let stream = CtlStream::accepted(peer, send, recv, permits);
            if self.shared.incoming.send(stream).await.is_err() {
                // The node takes no streams: nothing will ever answer this peer.
                Close::Done.apply(&connection);
                break;
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No section below a lock can leave its table half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
