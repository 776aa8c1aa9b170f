//! The channel between a node and its guest.
//!
//! [`GuestChannel`] runs programs, moves files and takes the guest's connections over one byte
//! stream, the virtio-serial port of the virtual machine (bytes: `docs/guest-protocol.md`).
//!
//! The guest is hostile. Whatever it sends yields an error for one request, or ends the channel
//! with a [`ChannelError`] that says which rule was broken; what it may make us hold is bounded
//! by the credit that it has. When the channel ends, all that runs on it ends at once with an
//! error that carries the reason.

mod acts;
mod connect;
mod door;
mod error;
mod exec;
mod files;
mod greeting;
mod limits;
mod mux;
mod programs;
mod sleep;
mod volumes;
mod watch;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rhizome_guest::wire::{
    Act, FLAG_ACTS, FLAG_MACHINE_ID, Failure, Info, Kind, NetOpen, Payload, Reseed, SetTime,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    sync::mpsc,
};

pub use acts::PathFacts;
pub use door::DoorStream;
pub(crate) use error::printable;
pub use error::{ChannelError, ExecError, FileError, ForwardError, QuiesceError};
pub use exec::{ExecEvent, ExecHandle, ExecInput, ExecOutput, ExecRequest, ExitStatus};
pub use files::FileReader;
pub use limits::ChannelLimits;
pub use programs::ExecStatus;
pub use rhizome_guest::wire::{Attached, ExecId, FailureCode, ParseExecIdError, PtySize, Ready};
pub use sleep::{Quiesce, Quiesced, Resume};
pub use watch::{DirChange, DirWatch, WatchOp};

use crate::{DirEntry, FileStat};
use mux::{Purpose, Shared};

/// Returns the guest agent: a static executable, `/init` of a microVM and its `rhizome` command.
#[must_use]
pub fn guest_binary() -> &'static [u8] {
    include_bytes!(env!("RHIZOME_GUEST_BINARY"))
}

/// A session with the agent of one guest. Clones share it; when the last one is dropped, or
/// [`Self::close`]d, it ends. Programs that were started over it wait for the next one; those
/// that are not kept wait a minute.
#[derive(Debug, Clone)]
pub struct GuestChannel {
    owner: Arc<Owner>,
}

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    ready: Ready,
    /// Whether the guest's agent takes acts on paths and tells moves.
    takes_acts: bool,
    /// Whether it can be told its machine's number.
    takes_machine: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close(ChannelError::Closed);
    }
}

/// What a guest says it is. Its own words: true only as far as the guest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestInfo {
    /// Version of the agent.
    pub agent: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture.
    pub arch: String,
    /// Model of the processor.
    pub cpu: String,
    /// Host name.
    pub hostname: String,
    /// Processors.
    pub cpus: u32,
    /// Memory in all, in bytes.
    pub memory_total: u64,
    /// Memory that can still be had, in bytes.
    pub memory_available: u64,
    /// Milliseconds since the kernel's start.
    pub uptime_ms: u64,
    /// Programs running for us.
    pub execs: u32,
}

impl GuestChannel {
    /// Connects to the socket of a virtual machine and waits until its agent is ready.
    ///
    /// It may be called as soon as something listens there; the greeting is repeated until the
    /// guest has booted. The receiver yields the connections that programs in the guest open to
    /// their node; when it is dropped, such connections are refused.
    ///
    /// # Errors
    /// [`ChannelError::Connect`], and those of [`Self::start`].
    pub async fn connect(
        path: &Path,
        limits: ChannelLimits,
    ) -> Result<(Self, mpsc::Receiver<DoorStream>), ChannelError> {
        let stream = UnixStream::connect(path)
            .await
            .map_err(|source| ChannelError::Connect {
                path: path.to_owned(),
                source: Arc::new(source),
            })?;
        Self::start(stream, limits).await
    }

    /// Greets the agent at the other end of `stream` and waits until it is ready.
    ///
    /// # Errors
    /// [`ChannelError::NotReady`] after `limits.hello_deadline`, [`ChannelError::Version`],
    /// [`ChannelError::Gone`], and whatever else a hostile guest earns.
    pub async fn start<S>(
        stream: S,
        limits: ChannelLimits,
    ) -> Result<(Self, mpsc::Receiver<DoorStream>), ChannelError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let greeted = greeting::greet(&mut reader, &mut writer, limits.hello_deadline).await?;
        let backlog = limits.max_door_streams.max(1);
        let (opened_tx, opened) = mpsc::channel(backlog);
        let (doors_tx, doors) = mpsc::channel(1);
        let shared = Shared::start(
            reader,
            writer,
            greeted.decoder,
            greeted.boot,
            limits,
            opened_tx,
        );
        tokio::spawn(door::accept(opened, doors_tx));
        Ok((
            Self {
                owner: Arc::new(Owner {
                    shared,
                    ready: greeted.ready,
                    takes_acts: greeted.flags & FLAG_ACTS != 0,
                    takes_machine: greeted.flags & FLAG_MACHINE_ID != 0,
                }),
            },
            doors,
        ))
    }

    /// Returns what the guest said when it became ready.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.owner.ready
    }

    /// Runs a program; returns once it runs.
    ///
    /// # Errors
    /// Any [`ExecError`] but [`ExecError::Ended`].
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecHandle, ExecError> {
        exec::exec(&self.owner.shared, request).await
    }

    /// Returns every program that the guest runs or remembers, the newest first.
    ///
    /// # Errors
    /// [`ExecError::SandboxGone`], [`ExecError::Busy`].
    pub async fn execs(&self) -> Result<Vec<ExecStatus>, ExecError> {
        programs::list(&self.owner.shared).await
    }

    /// Becomes the reader of a program, also of one that has ended or that another channel
    /// started; whoever read it before gets [`ExecError::TakenOver`].
    ///
    /// `from` is how many bytes of output, of both kinds together, are known already: 0 for all
    /// that the guest still has, `u64::MAX` for none of that.
    ///
    /// # Errors
    /// [`ExecError::NoSuchExec`], [`ExecError::SandboxGone`], [`ExecError::Busy`].
    pub async fn attach(&self, id: ExecId, from: u64) -> Result<ExecHandle, ExecError> {
        programs::attach(&self.owner.shared, id, from).await
    }

    /// Signals a program's process group without attaching it; SIGKILL ends all that it started.
    ///
    /// # Errors
    /// [`ExecError::NoSuchExec`], [`ExecError::Invalid`], [`ExecError::SandboxGone`].
    pub async fn signal_exec(&self, id: ExecId, number: i32) -> Result<(), ExecError> {
        programs::signal(&self.owner.shared, id, number).await
    }

    /// Says whether a program runs on when nobody reads it any more.
    ///
    /// # Errors
    /// [`ExecError::NoSuchExec`], [`ExecError::SandboxGone`].
    pub async fn keep_exec(&self, id: ExecId, keep: bool) -> Result<(), ExecError> {
        programs::keep(&self.owner.shared, id, keep).await
    }

    /// Connects to a TCP port on the guest's loopback device.
    ///
    /// # Errors
    /// Any [`ForwardError`].
    pub async fn forward(&self, port: u16) -> Result<DoorStream, ForwardError> {
        connect::connect(&self.owner.shared, port).await
    }

    /// Watches a directory; with `recursive` also those in it, now and when they come.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn watch_dir(&self, path: &str, recursive: bool) -> Result<DirWatch, FileError> {
        watch::watch(&self.owner.shared, path, recursive).await
    }

    /// Makes the guest fit to be copied: its hook runs, its programs stop, its disks are written
    /// out and take no more. [`Self::thaw`] lets it go on; [`Self::resumed`] lets a copy go on.
    ///
    /// # Errors
    /// Any [`QuiesceError`]; the guest then runs as before.
    pub async fn quiesce(&self, how: Quiesce) -> Result<Quiesced, QuiesceError> {
        sleep::quiesce(&self.owner.shared, how).await
    }

    /// Undoes [`Self::quiesce`]; a guest that is not at rest is fine.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn thaw(&self) -> Result<(), ChannelError> {
        self.tell(Kind::Thaw, Vec::new()).await
    }

    /// Tells the guest that it runs again from a copy. It sets its clock, takes the randomness
    /// and its new name, counts its generation up, and then lets its programs go on.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn resumed(&self, mut resume: Resume) -> Result<(), ChannelError> {
        if !self.owner.takes_machine {
            // It runs on from a snapshot of before, and has no place for it.
            resume.machine = None;
        }
        self.tell(Kind::Resumed, sleep::resumed(resume)?).await
    }

    /// Opens a file to read; links are followed.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn read_file(&self, path: &str) -> Result<FileReader, FileError> {
        files::read(&self.owner.shared, path, 0).await
    }

    /// As [`Self::read_file`], without the first `from` bytes: what a broken transfer has already.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn read_file_from(&self, path: &str, from: u64) -> Result<FileReader, FileError> {
        files::read(&self.owner.shared, path, from).await
    }

    /// Writes a file and returns its size. It appears under its name, with `mode`, once it is
    /// whole; what stood there before stays until then. `parents` makes missing directories.
    ///
    /// # Errors
    /// Any [`FileError`].
    ///
    /// # Cancel safety
    /// A dropped future leaves no file.
    pub async fn write_file(
        &self,
        path: &str,
        mode: u32,
        parents: bool,
        source: impl AsyncRead + Unpin,
    ) -> Result<u64, FileError> {
        files::write(&self.owner.shared, path, mode, parents, source).await
    }

    /// Returns what a path names; links are not followed.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn stat(&self, path: &str) -> Result<FileStat, FileError> {
        files::stat(&self.owner.shared, path).await
    }

    /// Returns the entries of a directory, sorted by name.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn list(&self, path: &str) -> Result<Vec<DirEntry>, FileError> {
        files::list(&self.owner.shared, path).await
    }

    /// Makes a directory; with `parents` also those above it, and an existing one is fine.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn make_dir(&self, path: &str, mode: u32, parents: bool) -> Result<(), FileError> {
        files::make_dir(&self.owner.shared, path, mode, parents).await
    }

    /// Removes a file, a link, or a directory: an empty one, or with `recursive` all in it.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), FileError> {
        files::remove(&self.owner.shared, path, recursive).await
    }

    /// As [`Self::watch_dir`], but what is moved away is told as [`WatchOp::Moved`].
    ///
    /// # Errors
    /// Any [`FileError`]; [`FileError::OldGuest`] of an agent that cannot.
    pub async fn watch_moves(&self, path: &str, recursive: bool) -> Result<DirWatch, FileError> {
        self.need_acts(path)?;
        watch::watch_moves(&self.owner.shared, path, recursive).await
    }

    /// Tells all there is to know of a path. `user` is whose home relative paths begin in.
    ///
    /// # Errors
    /// Any [`FileError`]; [`FileError::OldGuest`] of an agent that cannot.
    pub async fn look(&self, user: &str, path: &str) -> Result<PathFacts, FileError> {
        self.need_acts(path)?;
        acts::one(&self.owner.shared, user, path, Act::Look).await
    }

    /// Lists a directory and what is in those below it, `depth` deep: depth first, each directory
    /// in the order of its names.
    ///
    /// # Errors
    /// As [`Self::look`]; [`FileError::TooManyEntries`].
    pub async fn look_below(
        &self,
        user: &str,
        path: &str,
        depth: u32,
    ) -> Result<Vec<PathFacts>, FileError> {
        self.need_acts(path)?;
        acts::many(&self.owner.shared, user, path, Act::List { depth }).await
    }

    /// Makes a directory, and those above it, that belong to `user`.
    ///
    /// # Errors
    /// As [`Self::look`]; the guest's `AlreadyExists` if it is there.
    pub async fn make_dir_of(&self, user: &str, path: &str) -> Result<PathFacts, FileError> {
        self.need_acts(path)?;
        acts::one(&self.owner.shared, user, path, Act::MakeDir).await
    }

    /// Moves a file or directory, in place of what was there; directories above it are made.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn rename(&self, user: &str, from: &str, to: &str) -> Result<PathFacts, FileError> {
        self.need_acts(from)?;
        let act = Act::Move {
            to: acts::path(to)?,
        };
        acts::one(&self.owner.shared, user, from, act).await
    }

    /// Removes a file, or a directory with all in it.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn remove_all(&self, user: &str, path: &str) -> Result<(), FileError> {
        self.need_acts(path)?;
        acts::many(&self.owner.shared, user, path, Act::Remove).await?;
        Ok(())
    }

    /// Writes a file that belongs to `user`, whole or not at all; directories above it are made.
    /// Its mode is that of the file which was there, or 0644; `attributes`, sorted by their names,
    /// are all that it has then.
    ///
    /// # Errors
    /// As [`Self::look`] and [`Self::write_file`].
    ///
    /// # Cancel safety
    /// A dropped future leaves no file.
    pub async fn write_file_of(
        &self,
        user: &str,
        path: &str,
        attributes: Vec<(Vec<u8>, Vec<u8>)>,
        source: impl AsyncRead + Unpin,
    ) -> Result<PathFacts, FileError> {
        self.need_acts(path)?;
        acts::write(&self.owner.shared, user, path, attributes, source).await
    }

    fn need_acts(&self, path: &str) -> Result<(), FileError> {
        match self.owner.takes_acts {
            true => Ok(()),
            false => Err(FileError::OldGuest {
                path: path.to_owned(),
            }),
        }
    }

    /// Asks the guest to mount a volume; it asks for what is in it over the stream
    /// ([`crate::volume::attach`] answers).
    pub(crate) async fn open_volume(
        &self,
        open: &rhizome_guest::wire::VolumeOpen,
    ) -> Result<DoorStream, FileError> {
        volumes::open(&self.owner.shared, open).await
    }

    /// Returns what was changed in a volume, as the guest says: only its amount is checked.
    pub(crate) async fn scan_volume(
        &self,
        volume: [u8; 16],
        shown: &str,
    ) -> Result<Vec<rhizome_guest::wire::VolumeEntry>, FileError> {
        volumes::scan(&self.owner.shared, volume, shown).await
    }

    /// Opens a file that was changed in a volume.
    pub(crate) async fn read_volume(
        &self,
        volume: &[u8; 16],
        path: &[u8],
    ) -> Result<FileReader, FileError> {
        volumes::read(&self.owner.shared, volume, path).await
    }

    /// Detaches a volume; what was changed in it is gone.
    pub(crate) async fn close_volume(
        &self,
        volume: [u8; 16],
        force: bool,
        shown: &str,
    ) -> Result<(), FileError> {
        volumes::close(&self.owner.shared, volume, force, shown).await
    }

    /// Pings the agent and returns how long the answer took.
    ///
    /// # Errors
    /// The channel's end.
    pub async fn ping(&self) -> Result<Duration, ChannelError> {
        self.owner.shared.ping().await
    }

    /// Asks the guest what it is.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn info(&self) -> Result<GuestInfo, ChannelError> {
        let frame = self.ask(Kind::Info, Vec::new()).await?;
        if frame.kind != Kind::InfoReply {
            return Err(self.misbehaved("a question has another's answer"));
        }
        let info: Info = mux::decode(&frame)?;
        Ok(GuestInfo {
            agent: error::printable(&info.agent),
            kernel: error::printable(&info.kernel),
            arch: error::printable(&info.arch),
            cpu: error::printable(&info.cpu),
            hostname: error::printable(&info.hostname),
            cpus: info.cpus,
            memory_total: info.memory_total,
            memory_available: info.memory_available,
            uptime_ms: info.uptime_ms,
            execs: info.execs,
        })
    }

    /// Sets the guest's clock.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn set_time(&self, now: SystemTime) -> Result<(), ChannelError> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        self.tell(Kind::SetTime, SetTime { unix_ns }.to_payload())
            .await
    }

    /// Mixes `seed` into the guest's randomness, so that two guests from one snapshot differ.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn reseed(&self, seed: [u8; 32]) -> Result<(), ChannelError> {
        self.tell(Kind::Reseed, Reseed { seed }.to_payload()).await
    }

    /// Asks the guest to end: it ends all programs, syncs its disks and powers off. Returns when
    /// it has begun to; wait for the virtual machine's end.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn shutdown(&self) -> Result<(), ChannelError> {
        match self.tell(Kind::Shutdown, Vec::new()).await {
            // It was faster than its answer.
            Err(ChannelError::Gone) => Ok(()),
            result => result,
        }
    }

    /// Opens the guest's network device and returns its packets, each behind its length in two
    /// bytes, little-endian, both ways. A stream that was opened before ends.
    ///
    /// # Errors
    /// The channel's end, [`ChannelError::Failed`], [`ChannelError::Busy`].
    pub async fn open_net(&self, setup: &NetOpen) -> Result<DoorStream, ChannelError> {
        let shared = &self.owner.shared;
        let mut stream = shared
            .open(Purpose::Net, Kind::NetOpen, setup.to_payload())
            .await?;
        let frame = stream.expect().await?;
        match frame.kind {
            Kind::Started => {
                let (near, far) = DoorStream::pair();
                tokio::spawn(door::carry(stream, far));
                Ok(near)
            }
            Kind::Failed => {
                let failure: Failure = mux::decode(&frame)?;
                Err(ChannelError::Failed {
                    message: error::printable(&failure.message),
                })
            }
            _ => Err(self.misbehaved("a request has another's answer")),
        }
    }

    /// Waits for the channel's end and returns the reason.
    pub async fn closed(&self) -> ChannelError {
        self.owner.shared.closed().await
    }

    /// Whether both are the same session.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }

    /// Whether the channel has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.owner.shared.is_closed()
    }

    /// Ends the channel and all that runs on it.
    pub fn close(&self) {
        self.owner.shared.close(ChannelError::Closed);
    }

    async fn ask(
        &self,
        kind: Kind,
        payload: Vec<u8>,
    ) -> Result<rhizome_guest::wire::Frame, ChannelError> {
        let mut stream = self.owner.shared.open(Purpose::Ask, kind, payload).await?;
        let frame = stream.expect().await?;
        if frame.kind == Kind::Failed {
            let failure: Failure = mux::decode(&frame)?;
            return Err(ChannelError::Failed {
                message: error::printable(&failure.message),
            });
        }
        Ok(frame)
    }

    async fn tell(&self, kind: Kind, payload: Vec<u8>) -> Result<(), ChannelError> {
        let frame = self.ask(kind, payload).await?;
        if frame.kind == Kind::Done {
            Ok(())
        } else {
            Err(self.misbehaved("a request has another's answer"))
        }
    }

    fn misbehaved(&self, what: &'static str) -> ChannelError {
        let error = mux::misbehaved(what);
        self.owner.shared.close(error.clone());
        error
    }
}
