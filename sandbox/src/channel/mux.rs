//! Streams over one connection, with credit.
//!
//! Three tasks own the connection: one reads frames and hands them to their streams without
//! ever waiting, one writes, one pings. A stream may queue no more than its window, because the
//! guest may not send more: whoever reads a stream slowly holds up that stream alone.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rhizome_guest::wire::{
    Credit, Frame, FrameDecoder, Kind, MAX_WINDOW, Payload, WINDOW, WireError, cost,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{ChannelError, ChannelLimits};

mod stream;
mod tasks;

pub(super) use stream::{Sender, Stream};

/// Frames waiting to be written: 4 MiB at most, so that a ping is not far behind them.
const SEND_QUEUE_FRAMES: usize = 64;
/// Pings and credits waiting to be written; they go first.
const URGENT_QUEUE_FRAMES: usize = 256;
/// Frames without credit that one stream may receive: its start, its metadata, its end.
const MAX_PLAIN_FRAMES: u32 = 4;
/// Frames of no consequence (late, or repeated) that a guest may send beyond what explains them.
const STRAY_BUDGET: u64 = 1 << 20;

/// What a stream is for, and so which frames it may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Exec,
    Attach,
    ExecList,
    Read,
    List,
    Write,
    Watch,
    Act,
    Ask,
    Connect,
    Volume,
    VolumeScan,
    Door,
    Net,
}

impl Purpose {
    fn takes(self, kind: Kind) -> bool {
        match self {
            Self::Exec => {
                matches!(
                    kind,
                    Kind::Started | Kind::Stdout | Kind::Stderr | Kind::Exit
                )
            }
            Self::Attach => {
                matches!(
                    kind,
                    Kind::Attached | Kind::Stdout | Kind::Stderr | Kind::Exit
                )
            }
            Self::ExecList => matches!(kind, Kind::ExecEntries | Kind::Done),
            Self::Read => matches!(kind, Kind::FileMeta | Kind::FileData | Kind::FileEnd),
            Self::List => matches!(kind, Kind::FileEntries | Kind::Done),
            Self::Write => kind == Kind::Done,
            Self::Watch => matches!(kind, Kind::Started | Kind::WatchEvents),
            Self::Act => matches!(kind, Kind::FileFacts | Kind::Done),
            Self::Ask => matches!(
                kind,
                Kind::FileMeta | Kind::InfoReply | Kind::Quiesced | Kind::Done
            ),
            Self::VolumeScan => matches!(kind, Kind::VolumeEntries | Kind::Done),
            Self::Connect | Self::Volume => {
                matches!(kind, Kind::Connected | Kind::StreamData | Kind::StreamEof)
            }
            Self::Door => matches!(kind, Kind::StreamData | Kind::StreamEof),
            Self::Net => matches!(kind, Kind::Started | Kind::StreamData | Kind::StreamEof),
        }
    }

    /// Whether `kind` is the last frame of such a stream.
    fn ends_with(self, kind: Kind) -> bool {
        match kind {
            Kind::Failed | Kind::StreamReset | Kind::Exit | Kind::Done | Kind::FileEnd => true,
            Kind::FileMeta | Kind::InfoReply | Kind::Quiesced => self == Self::Ask,
            _ => false,
        }
    }
}

/// What both ends of the channel share.
pub(super) struct Shared {
    streams: Mutex<Streams>,
    pings: Mutex<Pings>,
    outgoing: mpsc::Sender<Frame>,
    urgent: mpsc::Sender<Frame>,
    cancel: CancellationToken,
    reason: OnceLock<ChannelError>,
    pub(super) limits: ChannelLimits,
    started: Instant,
    /// Milliseconds from `started` to the last answered ping.
    answered: AtomicU64,
}

#[derive(Default)]
struct Streams {
    open: BTreeMap<u32, Slot>,
    requests: usize,
    connects: usize,
    doors: usize,
    next: u32,
    last_door: u32,
    stray: u64,
    closed: bool,
}

struct Slot {
    purpose: Purpose,
    incoming: mpsc::UnboundedSender<Frame>,
    /// Credit that the guest still has.
    allowance: u32,
    plain: u32,
    credit: Arc<Semaphore>,
}

#[derive(Default)]
struct Pings {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("reason", &self.reason.get())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Starts the tasks of a connection whose greeting is over.
    pub(super) fn start<R, W>(
        reader: R,
        writer: W,
        decoder: FrameDecoder,
        boot: [u8; 16],
        limits: ChannelLimits,
        doors: mpsc::Sender<Stream>,
    ) -> Arc<Self>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (outgoing, outgoing_rx) = mpsc::channel(SEND_QUEUE_FRAMES);
        let (urgent, urgent_rx) = mpsc::channel(URGENT_QUEUE_FRAMES);
        let shared = Arc::new(Self {
            streams: Mutex::new(Streams {
                next: 1,
                ..Streams::default()
            }),
            pings: Mutex::default(),
            outgoing,
            urgent,
            cancel: CancellationToken::new(),
            reason: OnceLock::new(),
            limits,
            started: Instant::now(),
            answered: AtomicU64::new(0),
        });
        tokio::spawn(tasks::read(
            Arc::clone(&shared),
            reader,
            decoder,
            boot,
            doors,
        ));
        tokio::spawn(tasks::write(
            Arc::clone(&shared),
            writer,
            outgoing_rx,
            urgent_rx,
        ));
        tokio::spawn(tasks::keep_alive(Arc::clone(&shared)));
        shared
    }

    /// Ends the channel; the first reason stays.
    pub(super) fn close(&self, reason: ChannelError) {
        if self.reason.set(reason).is_ok() {
            tracing::debug!(reason = ?self.reason.get(), "guest channel closed");
        }
        self.cancel.cancel();
        let open = {
            let mut streams = lock(&self.streams);
            streams.closed = true;
            std::mem::take(&mut streams.open)
        };
        for slot in open.into_values() {
            slot.credit.close();
        }
        lock(&self.pings).waiting.clear();
    }

    /// Returns why the channel ended.
    pub(super) fn reason(&self) -> ChannelError {
        self.reason.get().cloned().unwrap_or(ChannelError::Closed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.cancel.is_cancelled()
    }

    pub(super) async fn closed(&self) -> ChannelError {
        self.cancel.cancelled().await;
        self.reason()
    }

    /// Opens a stream with the frame that `first` makes of its number.
    pub(super) async fn open(
        self: &Arc<Self>,
        purpose: Purpose,
        kind: Kind,
        payload: Vec<u8>,
    ) -> Result<Stream, ChannelError> {
        let stream = {
            let mut streams = lock(&self.streams);
            if streams.closed {
                return Err(self.reason());
            }
            let (open, limit) = match purpose {
                Purpose::Connect | Purpose::Volume => (streams.connects, self.limits.max_connects),
                _ => (streams.requests, self.limits.max_requests),
            };
            if open >= limit {
                return Err(ChannelError::Busy { limit });
            }
            let id = streams.next;
            streams.next = id.checked_add(2).ok_or(ChannelError::Busy { limit })?;
            match purpose {
                Purpose::Connect | Purpose::Volume => streams.connects += 1,
                _ => streams.requests += 1,
            }
            streams.insert(self, id, purpose)
        };
        self.send(Frame {
            kind,
            stream: stream.id,
            payload,
        })
        .await?;
        Ok(stream)
    }

    /// Queues a frame, in order with others of its stream.
    async fn send(&self, frame: Frame) -> Result<(), ChannelError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(self.reason()),
            sent = self.outgoing.send(frame) => sent.map_err(|_| self.reason()),
        }
    }

    /// Pings the guest and returns how long its answer took.
    pub(super) async fn ping(&self) -> Result<Duration, ChannelError> {
        let begun = Instant::now();
        let (number, answer) = {
            let mut pings = lock(&self.pings);
            pings.next += 1;
            let (tx, rx) = oneshot::channel();
            let number = pings.next;
            pings.waiting.insert(number, tx);
            (number, rx)
        };
        let frame = Frame {
            kind: Kind::Ping,
            stream: 0,
            payload: number.to_le_bytes().to_vec(),
        };
        let sent = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(self.reason()),
            sent = self.urgent.send(frame) => sent.map_err(|_| self.reason()),
        };
        let answered = match sent {
            Ok(()) => tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(self.reason()),
                answer = answer => answer.map_err(|_| self.reason()),
            },
            Err(error) => Err(error),
        };
        lock(&self.pings).waiting.remove(&number);
        answered.map(|()| begun.elapsed())
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes one frame of the guest. Never waits.
    fn receive(
        self: &Arc<Self>,
        frame: Frame,
        boot: [u8; 16],
        doors: &mpsc::Sender<Stream>,
    ) -> Result<(), ChannelError> {
        if frame.kind.is_data() && frame.payload.is_empty() {
            return Err(misbehaved("a data frame is empty"));
        }
        match frame.kind {
            Kind::Hello => {
                let hello: rhizome_guest::wire::Hello = decode(&frame)?;
                if hello.boot != boot {
                    return Err(ChannelError::Restarted);
                }
                self.stray(&frame)
            }
            Kind::Ready => self.stray(&frame),
            Kind::Pong => {
                let number = <[u8; 8]>::try_from(frame.payload.as_slice())
                    .map_err(|_| misbehaved("a pong is not the ping's"))?;
                let waiting = lock(&self.pings)
                    .waiting
                    .remove(&u64::from_le_bytes(number));
                match waiting {
                    Some(waiting) => {
                        self.answered.store(self.since_start(), Ordering::Relaxed);
                        // Nobody waits any more: fine.
                        let _ = waiting.send(());
                        Ok(())
                    }
                    None => self.stray(&frame),
                }
            }
            Kind::StreamOpen => self.open_door(&frame, doors),
            _ => self.dispatch(frame),
        }
    }

    fn open_door(
        self: &Arc<Self>,
        frame: &Frame,
        doors: &mpsc::Sender<Stream>,
    ) -> Result<(), ChannelError> {
        let id = frame.stream;
        let opened = {
            let mut streams = lock(&self.streams);
            if id == 0 || id % 2 == 1 || id <= streams.last_door {
                return Err(misbehaved("a door stream has a number it may not have"));
            }
            streams.last_door = id;
            if streams.closed || streams.doors >= self.limits.max_door_streams {
                None
            } else {
                streams.doors += 1;
                Some(streams.insert(self, id, Purpose::Door))
            }
        };
        let refused = match opened {
            // If the node takes no more connections, dropping the stream resets it.
            Some(stream) => doors.try_send(stream).is_err(),
            None => {
                self.reset(id);
                true
            }
        };
        if refused { self.stray(frame) } else { Ok(()) }
    }

    fn dispatch(&self, frame: Frame) -> Result<(), ChannelError> {
        let mut streams = lock(&self.streams);
        let Some(slot) = streams.open.get_mut(&frame.stream) else {
            let known = match frame.stream {
                0 => false,
                id if id % 2 == 1 => id < streams.next,
                id => id <= streams.last_door,
            };
            drop(streams);
            // Frames may cross our end of a stream on their way.
            return if known {
                self.stray(&frame)
            } else {
                Err(misbehaved("a frame belongs to a stream that never was"))
            };
        };
        if frame.kind == Kind::Credit {
            let credit: Credit = decode(&frame)?;
            let bytes = credit.bytes as usize;
            if bytes > MAX_WINDOW as usize
                || slot.credit.available_permits() + bytes > MAX_WINDOW as usize
            {
                return Err(misbehaved("a stream was given more credit than may be"));
            }
            slot.credit.add_permits(bytes);
            drop(streams);
            return if bytes == 0 {
                self.stray(&frame)
            } else {
                Ok(())
            };
        }
        let ends = slot.purpose.ends_with(frame.kind);
        if !slot.purpose.takes(frame.kind)
            && !matches!(frame.kind, Kind::Failed | Kind::StreamReset)
        {
            return Err(misbehaved("a frame does not belong on its stream"));
        }
        if frame.kind.is_data() {
            slot.allowance = slot
                .allowance
                .checked_sub(cost(frame.payload.len()))
                .ok_or(misbehaved("data came without credit"))?;
        } else {
            slot.plain += 1;
            if slot.plain > MAX_PLAIN_FRAMES {
                return Err(misbehaved("a stream repeats itself"));
            }
        }
        let id = frame.stream;
        // Whoever dropped the receiver has ended the stream.
        let _ = slot.incoming.send(frame);
        if ends {
            streams.remove(id);
        }
        Ok(())
    }

    /// Counts a frame of no consequence; too many of them are an attack.
    fn stray(&self, frame: &Frame) -> Result<(), ChannelError> {
        let mut streams = lock(&self.streams);
        streams.stray += u64::from(cost(frame.payload.len()));
        let budget = STRAY_BUDGET
            + (u64::from(streams.next) + u64::from(streams.last_door)) * u64::from(WINDOW);
        if streams.stray > budget {
            return Err(misbehaved("it floods us with frames of no consequence"));
        }
        Ok(())
    }

    fn reset(&self, id: u32) {
        let frame = Frame::empty(Kind::StreamReset, id);
        // Dropped if the guest reads so slowly that even these pile up; then pings end it soon.
        let _ = self.urgent.try_send(frame);
    }

    fn grant(&self, id: u32, bytes: u32) {
        {
            let mut streams = lock(&self.streams);
            let Some(slot) = streams.open.get_mut(&id) else {
                return;
            };
            slot.allowance = slot.allowance.saturating_add(bytes);
        }
        let frame = Frame::new(Kind::Credit, id, &Credit { bytes });
        if let Err(mpsc::error::TrySendError::Full(frame)) = self.urgent.try_send(frame) {
            let urgent = self.urgent.clone();
            tokio::spawn(async move { urgent.send(frame).await });
        }
    }
}

impl Streams {
    fn insert(&mut self, shared: &Arc<Shared>, id: u32, purpose: Purpose) -> Stream {
        // The window and `MAX_PLAIN_FRAMES` are its bound: what comes beyond them ends the channel.
        let (tx, rx) = mpsc::unbounded_channel();
        let credit = Arc::new(Semaphore::new(WINDOW as usize));
        self.open.insert(
            id,
            Slot {
                purpose,
                incoming: tx,
                allowance: WINDOW,
                plain: 0,
                credit: Arc::clone(&credit),
            },
        );
        Stream::new(id, Arc::clone(shared), rx, credit)
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(slot) = self.open.remove(&id) else {
            return false;
        };
        slot.credit.close();
        match slot.purpose {
            Purpose::Door => self.doors -= 1,
            Purpose::Connect | Purpose::Volume => self.connects -= 1,
            _ => self.requests -= 1,
        }
        true
    }
}

/// Decodes the message of a frame.
pub(super) fn decode<P: Payload>(frame: &Frame) -> Result<P, ChannelError> {
    frame.message().map_err(malformed)
}

pub(super) fn malformed(source: WireError) -> ChannelError {
    ChannelError::Malformed { source }
}

pub(super) fn misbehaved(what: &'static str) -> ChannelError {
    ChannelError::Misbehaved { what }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each section leaves the state whole, so a panic elsewhere in it does no harm here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
