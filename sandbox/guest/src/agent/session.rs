//! What runs for one host, and how much of it may run at once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use rhizome_guest::wire::{Failure, FailureCode, Frame, Kind, Payload, Signal};

use super::{
    Agent, exec, failure, files, host, lock, net, outbox::Outbox, spawn, stream::Stream,
};

/// Programs that may run for the host at once.
const MAX_EXECS: usize = 64;
/// File requests that may be open at once.
const MAX_FILES: usize = 32;
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
    Files,
    Door,
    Net,
}

impl Family {
    fn limit(self) -> usize {
        match self {
            Self::Exec => MAX_EXECS,
            Self::Files => MAX_FILES,
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

    /// Programs that run now.
    pub(crate) fn execs(&self) -> usize {
        lock(&self.streams)
            .as_ref()
            .map_or(0, |streams| count(streams, Family::Exec))
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
            stream.reset();
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
                self.urgent(Kind::InfoReply, id, &host::info(self.execs()));
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
                host::shut_down(agent.on_shutdown);
            }
            Kind::Exec => {
                let agent = Arc::clone(agent);
                self.run(Family::Exec, frame, move |stream, frame| {
                    exec::run(&agent, stream, frame);
                });
            }
            Kind::NetOpen => {
                let how = agent.on_shutdown;
                self.run(Family::Net, frame, move |stream, frame| {
                    net::run(how, stream, frame);
                });
            }
            Kind::FileStat
            | Kind::FileList
            | Kind::FileRead
            | Kind::FileWrite
            | Kind::FileMakeDir
            | Kind::FileRemove => self.run(Family::Files, frame, files::run),
            Kind::StreamReset => {
                let stream = lock(&self.streams).as_mut().and_then(|all| all.remove(&id));
                if let Some((_, stream)) = stream {
                    stream.reset();
                }
            }
            Kind::Signal => {
                if let (Some(stream), Ok(Signal { number })) = (self.stream(id), frame.message()) {
                    exec::signal(agent, &stream, number);
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
        let spawned = spawn("request", move || {
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
