//! What runs for one host, and how much of it may run at once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use rhizome_guest::wire::{Failure, FailureCode, Frame, Kind, Payload, PtySize, Signal};

use super::{
    Agent, acts, connect, failure, files, host, lock, net,
    outbox::Outbox,
    programs, sleep,
    stream::{Cause, Stream},
    volume, watch,
};

/// Programs that the host may read at once; running ones have a bound of their own.
const MAX_EXECS: usize = 96;
/// Questions and orders that may be open at once.
const MAX_ASKS: usize = 32;
/// File requests that may be open at once.
const MAX_FILES: usize = 32;
/// Directories that may be watched at once.
const MAX_WATCHES: usize = 16;
/// Connections of the host that may be open at once.
const MAX_CONNECTS: usize = 128;
/// Volumes that may be served at once, and asked about.
const MAX_VOLUMES: usize = 48;
/// Connections to the door that may be open at once.
const MAX_DOORS: usize = 32;
/// Streams of packets: the one there is, and the one that takes its place.
const MAX_NETS: usize = 2;

/// The open streams, by number.
type Streams = BTreeMap<u32, (Family, Arc<Stream>)>;

/// What runs for one host, from its greeting to its end.
pub(crate) struct Session {
    pub(crate) nonce: [u8; 16],
    number: u64,
    outbox: Arc<Outbox>,
    /// `None` once it has ended.
    streams: Mutex<Option<Streams>>,
    last_door: AtomicU32,
}

/// What streams are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Exec,
    Ask,
    Files,
    Watch,
    Connect,
    Volume,
    Door,
    Net,
}

impl Family {
    fn limit(self) -> usize {
        match self {
            Self::Exec => MAX_EXECS,
            Self::Ask => MAX_ASKS,
            Self::Files => MAX_FILES,
            Self::Watch => MAX_WATCHES,
            Self::Connect => MAX_CONNECTS,
            Self::Volume => MAX_VOLUMES,
            Self::Door => MAX_DOORS,
            Self::Net => MAX_NETS,
        }
    }
}

impl Session {
    pub(crate) fn new(nonce: [u8; 16], outbox: Arc<Outbox>) -> Self {
        let number = outbox.begin();
        Self {
            nonce,
            number,
            outbox,
            streams: Mutex::new(Some(Streams::new())),
            last_door: AtomicU32::new(0),
        }
    }

    pub(crate) fn urgent<P: Payload>(&self, kind: Kind, stream: u32, message: &P) -> bool {
        self.outbox
            .urgent(self.number, Frame::new(kind, stream, message))
    }

    pub(crate) fn ordered(&self, frame: Frame) -> bool {
        self.outbox.ordered(self.number, frame)
    }

    /// Opens a stream to the host for a connection of the door.
    pub(crate) fn open_door(self: &Arc<Self>) -> Option<Arc<Stream>> {
        let id = self
            .last_door
            .fetch_add(2, Ordering::Relaxed)
            .checked_add(2)?;
        let stream = self.open(id, Family::Door)?;
        stream.send_empty(Kind::StreamOpen).then_some(stream)
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget(&self, id: u32) {
        if let Some(streams) = lock(&self.streams).as_mut() {
            streams.remove(&id);
        }
    }

    /// Ends all streams, now and later.
    pub(crate) fn end(&self) {
        let streams = lock(&self.streams).take();
        for (_, stream) in streams.unwrap_or_default().into_values() {
            stream.reset(Cause::Session);
        }
    }

    /// Takes one frame of the host; waits for nothing but room for short answers.
    pub(crate) fn receive(self: &Arc<Self>, agent: &Arc<Agent>, frame: Frame) {
        let id = frame.stream;
        match frame.kind {
            Kind::Ping => {
                let pong = Frame {
                    kind: Kind::Pong,
                    ..frame
                };
                self.outbox.urgent(self.number, pong);
            }
            Kind::Info => {
                self.urgent(Kind::InfoReply, id, &host::info(agent.programs.running()));
            }
            Kind::SetTime => {
                self.answer(id, frame.message().map_or_else(malformed, host::set_time))
            }
            Kind::Reseed => {
                self.answer(
                    id,
                    frame
                        .message()
                        .map_or_else(malformed, |seed| host::reseed(&seed)),
                );
            }
            Kind::Shutdown => {
                self.ordered(Frame::empty(Kind::Done, id));
                host::shut_down(agent);
            }
            Kind::Exec => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Exec, frame, move |stream, frame| {
                    programs::exec(&held, stream, frame);
                });
            }
            Kind::NetOpen => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Net, frame, move |stream, frame| {
                    net::run(&held, stream, frame);
                });
            }
            Kind::Attach => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Exec, frame, move |stream, frame| {
                    programs::attach(&held, stream, frame);
                });
            }
            Kind::ExecList => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Ask, frame, move |stream, _| {
                    programs::list(&held, stream);
                });
            }
            Kind::ExecSignal | Kind::Keep => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Ask, frame, move |stream, frame| {
                    programs::ask(&held, stream, frame);
                });
            }
            Kind::Quiesce | Kind::Thaw | Kind::Resumed => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Ask, frame, move |stream, frame| {
                    sleep::answer(&held, stream, frame);
                });
            }
            Kind::Watch | Kind::WatchMoves => self.run(agent, Family::Watch, frame, watch::run),
            Kind::Connect => self.run(agent, Family::Connect, frame, connect::run),
            Kind::VolumeOpen | Kind::VolumeScan | Kind::VolumeClose => {
                let held = Arc::clone(agent);
                self.run(agent, Family::Volume, frame, move |stream, frame| {
                    volume::answer(&held, stream, frame);
                });
            }
            Kind::FileStat
            | Kind::FileList
            | Kind::FileRead
            | Kind::FileWrite
            | Kind::FileMakeDir
            | Kind::FileRemove => self.run(agent, Family::Files, frame, files::run),
            Kind::FileAct => self.run(agent, Family::Files, frame, acts::run),
            Kind::StreamReset => {
                let stream = lock(&self.streams).as_mut().and_then(|all| all.remove(&id));
                if let Some((_, stream)) = stream {
                    stream.reset(Cause::Host);
                }
            }
            Kind::Signal => {
                let stream = self.stream(id);
                let program = stream.as_ref().and_then(|stream| stream.program.get());
                if let (Some(program), Ok(Signal { number })) = (program, frame.message()) {
                    program.signal(agent, number);
                }
            }
            Kind::Resize => {
                let stream = self.stream(id);
                let program = stream.as_ref().and_then(|stream| stream.program.get());
                if let (Some(program), Ok::<PtySize, _>(size)) = (program, frame.message()) {
                    program.resize(size);
                }
            }
            Kind::Stdin
            | Kind::StdinEof
            | Kind::FileData
            | Kind::FileEnd
            | Kind::StreamData
            | Kind::StreamEof
            | Kind::Credit => {
                if let Some(stream) = self.stream(id) {
                    stream.receive(frame);
                }
            }
            // Ours to send, or of a later version.
            _ => {}
        }
    }

    /// Runs a request on a stream and a thread of its own.
    fn run(
        self: &Arc<Self>,
        agent: &Agent,
        family: Family,
        frame: Frame,
        body: impl FnOnce(&Arc<Stream>, &Frame) + Send + 'static,
    ) {
        let id = frame.stream;
        if id.is_multiple_of(2) || self.stream(id).is_some() {
            return;
        }
        let Some(stream) = self.open(id, family) else {
            return self.answer(
                id,
                Err(failure::of(FailureCode::TooMany, "too much runs at once")),
            );
        };
        let session = Arc::clone(self);
        let spawned = agent.workers.run("request", move || {
            body(&stream, &frame);
            session.forget(id);
        });
        if let Err(error) = spawned {
            self.forget(id);
            self.answer(id, Err(failure::of(FailureCode::TooMany, error)));
        }
    }

    fn answer(&self, id: u32, result: Result<(), Failure>) {
        match result {
            Ok(()) => self
                .outbox
                .urgent(self.number, Frame::empty(Kind::Done, id)),
            Err(failure) => self.urgent(Kind::Failed, id, &failure),
        };
    }

    fn stream(&self, id: u32) -> Option<Arc<Stream>> {
        let streams = lock(&self.streams);
        streams
            .as_ref()?
            .get(&id)
            .map(|(_, stream)| Arc::clone(stream))
    }

    fn open(self: &Arc<Self>, id: u32, family: Family) -> Option<Arc<Stream>> {
        let mut streams = lock(&self.streams);
        let streams = streams.as_mut()?;
        if count(streams, family) >= family.limit() {
            return None;
        }
        let stream = Stream::new(id, Arc::clone(self));
        streams.insert(id, (family, Arc::clone(&stream)));
        Some(stream)
    }
}

fn count(streams: &Streams, family: Family) -> usize {
    streams.values().filter(|(of, _)| *of == family).count()
}

fn malformed(error: rhizome_guest::wire::WireError) -> Result<(), Failure> {
    Err(failure::of(FailureCode::Invalid, error))
}
