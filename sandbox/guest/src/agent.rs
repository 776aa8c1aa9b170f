//! Serves the host over one byte stream.
//!
//! One thread reads frames and hands each to its stream without waiting for it; one thread
//! writes, taking from each stream in turn; every stream has threads of its own, which wait for
//! credit, for their process or for their socket, and so hold up nobody else.

mod acts;
mod connect;
mod door;
mod failure;
mod files;
mod groups;
mod host;
mod identity;
mod net;
mod outbox;
mod port;
mod programs;
mod reaper;
mod session;
mod sleep;
mod stream;
mod users;
mod volume;
mod vsock;
mod watch;
mod workers;

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rhizome_guest::wire::{
    DOOR_PORT, FLAG_ACTS, FLAG_MACHINE_ID, FrameDecoder, Hello, Kind, PROTOCOL_VERSION, Ready,
};
use rustix::rand::{GetRandomFlags, getrandom};

pub(crate) use groups::Groups;
pub(crate) use host::{power_off, uptime_ms};
pub(crate) use identity::{Identity, MACHINE_ID};
pub(crate) use port::VirtioPort;
pub(crate) use sleep::Sleep;
pub(crate) use volume::DISK as VOLUME_DISK;
pub(crate) use vsock::VsockPort;

use outbox::Outbox;
use programs::Programs;
use reaper::Reaper;
use session::Session;
use volume::Volumes;
use workers::Workers;

/// Stack of each thread, in bytes; buffers live on the heap.
const STACK_BYTES: usize = 256 * 1024;
/// Bytes read from the host at once.
const READ_BYTES: usize = 128 * 1024;

/// What to do when the host asks the guest to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnShutdown {
    /// Power off the machine.
    PowerOff,
    /// End this process.
    Exit,
}

/// How long a program that is not kept may be without a reader, in uptime.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

/// What an agent is made of that depends on where it runs.
pub(crate) struct Setup {
    pub(crate) on_shutdown: OnShutdown,
    pub(crate) door: io::Result<TcpListener>,
    pub(crate) ready: Ready,
    pub(crate) groups: Groups,
    pub(crate) sleep: Sleep,
    pub(crate) identity: Identity,
    /// How long a program that is not kept may be without a reader.
    pub(crate) grace: Duration,
}

/// The agent, whatever session it has or has not.
pub(crate) struct Agent {
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) on_shutdown: OnShutdown,
    pub(crate) programs: Programs,
    pub(crate) groups: Groups,
    pub(crate) sleep: Sleep,
    pub(crate) identity: Identity,
    pub(crate) volumes: Volumes,
    /// Where the door listens, for `RHIZOME_URL`.
    pub(crate) door_port: u16,
    boot: [u8; 16],
    ready: Ready,
    current: Mutex<Option<Arc<Session>>>,
}

impl Agent {
    /// Starts what does not depend on a session: the reaper and the door.
    pub(crate) fn start(setup: Setup) -> io::Result<Arc<Self>> {
        let Setup {
            on_shutdown,
            door,
            mut ready,
            groups,
            sleep,
            identity,
            grace,
        } = setup;
        let mut boot = [0; 16];
        getrandom(&mut boot, GetRandomFlags::empty())?;
        let door_port = match &door {
            Ok(door) => door.local_addr()?.port(),
            Err(error) => {
                ready
                    .warnings
                    .push(format!("the door does not open: {error}"));
                DOOR_PORT
            }
        };
        let agent = Arc::new(Self {
            reaper: Reaper::start()?,
            workers: Arc::default(),
            on_shutdown,
            programs: Programs::new(grace),
            groups,
            sleep,
            identity,
            volumes: Volumes::default(),
            door_port,
            boot,
            ready,
            current: Mutex::default(),
        });
        if let Ok(door) = door {
            let agent = Arc::clone(&agent);
            spawn("door", move || door::listen(&agent, &door))?;
        }
        Ok(agent)
    }

    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        lock(&self.current).clone()
    }

    /// Serves one connection until its end.
    pub(crate) fn serve(
        self: &Arc<Self>,
        mut reader: impl Read,
        writer: impl Write + Send + 'static,
    ) {
        let outbox = Arc::new(Outbox::default());
        let writing = {
            let outbox = Arc::clone(&outbox);
            spawn("write", move || outbox.write_to(writer))
        };
        let Ok(writing) = writing else { return };
        let mut decoder = FrameDecoder::watching();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => decoder.extend(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            }
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) if frame.kind == Kind::Hello => {
                        if let Ok(hello) = frame.message() {
                            self.greet(&outbox, &hello);
                        }
                    }
                    Ok(Some(frame)) => {
                        if let Some(session) = self.session() {
                            session.receive(self, frame);
                        }
                    }
                    Ok(None) => break,
                    // Our host doesn't do this; one that was replaced in mid-frame may seem to.
                    Err(_) => decoder.lose_sync(),
                }
            }
        }
        self.end_session();
        outbox.close();
        // On a virtio port it may be stuck until the next host comes, which is when we go on.
        let _ = writing.join();
    }

    fn greet(&self, outbox: &Arc<Outbox>, hello: &Hello) {
        let same = self
            .session()
            .filter(|session| session.nonce == hello.nonce);
        let session = same.unwrap_or_else(|| {
            self.end_session();
            let session = Arc::new(Session::new(hello.nonce, Arc::clone(outbox)));
            *lock(&self.current) = Some(Arc::clone(&session));
            session
        });
        let answer = Hello {
            version: PROTOCOL_VERSION,
            nonce: hello.nonce,
            boot: self.boot,
            flags: FLAG_ACTS | FLAG_MACHINE_ID,
        };
        session.urgent(Kind::Hello, 0, &answer);
        if hello.version == PROTOCOL_VERSION {
            session.urgent(Kind::Ready, 0, &self.ready);
        }
    }

    /// Ends the streams of the host that is gone; its programs wait for the next one.
    fn end_session(&self) {
        let ended = lock(&self.current).take();
        if let Some(session) = ended {
            session.end();
        }
    }
}

/// Runs the agent as an ordinary process:
/// `serve (--fd 0 | --socket PATH) [--door ADDRESS] [--grace-ms N] [--run-dir DIR]`.
pub(crate) fn serve_here(args: &[OsString]) -> ExitCode {
    match try_serve_here(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do if standard error is closed.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_serve_here(args: &[OsString]) -> io::Result<()> {
    let (mut stdin, mut socket, mut door) = (false, None, "127.0.0.1:0".to_owned());
    let (mut grace, mut run_dir) = (GRACE, None);
    for pair in args.chunks(2) {
        let value = pair.get(1).and_then(|word| word.to_str());
        match (pair[0].to_str(), value) {
            // Descriptors above the standard ones can't be taken over safely.
            (Some("--fd"), Some("0")) => stdin = true,
            (Some("--socket"), Some(path)) => socket = Some(path.to_owned()),
            (Some("--door"), Some(address)) => door = address.to_owned(),
            (Some("--grace-ms"), Some(millis)) => {
                grace = Duration::from_millis(millis.parse().map_err(io::Error::other)?);
            }
            (Some("--run-dir"), Some(dir)) => run_dir = Some(PathBuf::from(dir)),
            _ => {
                return Err(io::Error::other(
                    "serve (--fd 0 | --socket PATH) [--door ADDRESS] [--grace-ms N] [--run-dir DIR]",
                ));
            }
        }
    }
    // As PID 1 does, take in the orphans of the programs run here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let door = TcpListener::bind(&door);
    let agent = Agent::start(Setup {
        on_shutdown: OnShutdown::Exit,
        door,
        ready: Ready::default(),
        groups: Groups::none(),
        sleep: Sleep::of_process(run_dir),
        identity: Identity::default(),
        grace,
    })?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "door {}", agent.door_port)?;
    stdout.flush()?;
    drop(stdout);
    if stdin {
        // Programs must not inherit it: the host would not see our end.
        let fd: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let stream = std::os::unix::net::UnixStream::from(fd);
        let writer = stream.try_clone()?;
        agent.serve(stream, writer);
        return Ok(());
    }
    let path = socket.ok_or_else(|| io::Error::other("--fd or --socket is needed"))?;
    for stream in UnixListener::bind(path)?.incoming() {
        let stream = stream?;
        let writer = stream.try_clone()?;
        agent.serve(stream, writer);
    }
    Ok(())
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(body)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // PID 1 goes on whatever one thread ran into; every section leaves its state whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
