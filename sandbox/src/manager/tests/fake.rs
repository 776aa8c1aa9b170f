//! A driver without machines: a monitor is a process that sleeps, a guest a task that answers.
//!
//! What it keeps is what the real ones keep: the process outlives the daemon, the guest's memory
//! (one number) goes into a snapshot and comes out of it, a paused guest answers nobody.

use std::{
    collections::BTreeMap,
    os::unix::fs::FileExt,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::future::{BoxFuture, FutureExt};
use rhizome_guest::wire::{
    Exec, Exit, Failure, FailureCode, Frame, FrameDecoder, Hello, Kind, Payload, Quiesced, Ready,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Accel,
    driver::{
        Capabilities, DriverError, GuestRam, Monitor, SavedState, Tether, Vm, VmRequest, VmmDriver,
        process_start,
    },
};

/// A driver whose guests live in this process; clones share them, as a host would.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fake {
    guests: Arc<Mutex<BTreeMap<u32, Arc<Guest>>>>,
    /// What the next starts and saves do: fail, if set.
    pub(crate) broken: Arc<Mutex<Option<&'static str>>>,
}

/// What a guest is, seen from outside.
#[derive(Debug)]
pub(crate) struct Guest {
    /// What it holds in memory.
    pub(crate) value: AtomicU64,
    /// Whether its programs are held.
    pub(crate) held: AtomicU64,
    /// How often it was told that it was resumed.
    pub(crate) resumed: AtomicU64,
    paused: watch::Sender<bool>,
    streams: mpsc::UnboundedSender<UnixStream>,
    ended: watch::Receiver<Option<String>>,
    pid: u32,
    memory_mib: u32,
}

impl Fake {
    pub(crate) fn guest(&self, pid: u32) -> Arc<Guest> {
        Arc::clone(&self.guests.lock().unwrap()[&pid])
    }

    /// Monitors that run.
    pub(crate) fn running(&self) -> usize {
        let guests = self.guests.lock().unwrap();
        guests
            .values()
            .filter(|g| g.ended.borrow().is_none())
            .count()
    }

    fn fails(&self, what: &'static str) -> Result<(), DriverError> {
        if *self.broken.lock().unwrap() == Some(what) {
            return Err(DriverError::Host { what });
        }
        Ok(())
    }

    fn launch(&self, request: &VmRequest, value: u64, paused: bool) -> Result<Vm, DriverError> {
        let mut child = tokio::process::Command::new("sleep")
            .arg("100000")
            .current_dir(&request.dir)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        let (told, ended) = watch::channel(None);
        tokio::spawn(async move {
            let status = child.wait().await.unwrap();
            told.send_replace(Some(status.to_string()));
        });
        let (streams, incoming) = mpsc::unbounded_channel();
        let guest = Arc::new(Guest {
            value: AtomicU64::new(value),
            held: AtomicU64::new(u64::from(paused)),
            resumed: AtomicU64::new(0),
            paused: watch::Sender::new(paused),
            streams,
            ended,
            pid,
            memory_mib: request.memory_mib,
        });
        self.guests.lock().unwrap().insert(pid, Arc::clone(&guest));
        tokio::spawn(live(Arc::clone(&guest), incoming));
        Ok(self.vm(guest))
    }

    fn vm(&self, guest: Arc<Guest>) -> Vm {
        let tether = Tether {
            kill: CancellationToken::new(),
            release: CancellationToken::new(),
        };
        let (kill, release) = (tether.kill.clone(), tether.release.clone());
        let pid = guest.pid;
        tokio::spawn(async move {
            tokio::select! {
                () = release.cancelled() => {}
                () = kill.cancelled() => super::kill(pid),
            }
        });
        Vm::new(
            pid,
            process_start(pid).unwrap_or_default(),
            guest.ended.clone(),
            tether,
            Box::new(Handle {
                guest,
                fake: self.clone(),
            }),
        )
    }
}

impl VmmDriver for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async { Ok("fake 1".to_owned()) }.boxed()
    }

    fn cpu_model(&self, _: Accel) -> &'static str {
        "fake"
    }

    fn machine(&self, _: Accel) -> String {
        "fake".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            snapshot: true,
            fork: true,
            reattach: true,
            copy_on_write: false,
            disks_behind: false,
        }
    }

    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            self.fails("start")?;
            self.launch(request, 0, false)
        }
        .boxed()
    }

    fn restore<'a>(
        &'a self,
        request: &'a VmRequest,
        saved: &'a SavedState,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            self.fails("restore")?;
            let mut value = [0; 8];
            saved.ram.file().read_exact_at(&mut value, 0).unwrap();
            self.launch(request, u64::from_le_bytes(value), true)
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        _: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async move {
            self.fails("attach")?;
            match process_start(pid) {
                Some(found) if found == started => Ok(self.vm(self.guest(pid))),
                _ => Err(DriverError::Gone { pid }),
            }
        }
        .boxed()
    }
}

#[derive(Debug)]
struct Handle {
    guest: Arc<Guest>,
    fake: Fake,
}

impl Monitor for Handle {
    fn connect(&self) -> BoxFuture<'_, Result<UnixStream, DriverError>> {
        async {
            let (near, far) = UnixStream::pair().unwrap();
            let gone = || DriverError::Gone {
                pid: self.guest.pid,
            };
            self.guest.streams.send(far).map_err(|_| gone())?;
            Ok(near)
        }
        .boxed()
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            self.fake.fails("pause")?;
            self.guest.paused.send_replace(true);
            Ok(())
        }
        .boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), DriverError>> {
        async {
            self.guest.paused.send_replace(false);
            Ok(())
        }
        .boxed()
    }

    fn save_device<'a>(&'a self, to: &'a Path) -> BoxFuture<'a, Result<(), DriverError>> {
        async move {
            self.fake.fails("save")?;
            assert!(*self.guest.paused.borrow(), "only a paused guest is saved");
            std::fs::write(to, b"devices").unwrap();
            Ok(())
        }
        .boxed()
    }

    fn status(&self) -> BoxFuture<'_, Option<String>> {
        async {
            let paused = *self.guest.paused.borrow();
            Some(if paused { "paused" } else { "running" }.to_owned())
        }
        .boxed()
    }

    fn ram(&self) -> Result<GuestRam, DriverError> {
        let ram = GuestRam::create(self.guest.memory_mib).unwrap();
        let value = self.guest.value.load(Ordering::SeqCst);
        ram.file().write_all_at(&value.to_le_bytes(), 0).unwrap();
        Ok(ram)
    }
}

/// The guest's life: it answers one host at a time, and nobody while it is paused.
async fn live(guest: Arc<Guest>, mut incoming: mpsc::UnboundedReceiver<UnixStream>) {
    let mut ended = guest.ended.clone();
    let mut paused = guest.paused.subscribe();
    let mut current: Option<(UnixStream, FrameDecoder)> = None;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        runs(&mut paused).await;
        tokio::select! {
            () = async { drop(ended.wait_for(Option::is_some).await) } => return,
            stream = incoming.recv() => {
                let Some(stream) = stream else { return };
                current = Some((stream, FrameDecoder::watching()));
            }
            _ = paused.changed() => {}
            read = async {
                match &mut current {
                    Some((stream, _)) => stream.read(&mut buffer).await,
                    None => std::future::pending().await,
                }
            } => {
                let Ok(len @ 1..) = read else {
                    current = None;
                    continue;
                };
                let (mut stream, mut decoder) = current.take().unwrap();
                decoder.extend(&buffer[..len]);
                let mut alive = true;
                while let Some(frame) = decoder.next_frame().unwrap() {
                    runs(&mut paused).await;
                    for answer in answers(&guest, &frame) {
                        let mut bytes = Vec::new();
                        answer.encode(&mut bytes).unwrap();
                        alive &= stream.write_all(&bytes).await.is_ok();
                    }
                }
                current = alive.then_some((stream, decoder));
            }
        }
    }
}

async fn runs(paused: &mut watch::Receiver<bool>) {
    drop(paused.wait_for(|paused| !*paused).await);
}

fn answers(guest: &Guest, frame: &Frame) -> Vec<Frame> {
    let done = || vec![Frame::empty(Kind::Done, frame.stream)];
    match frame.kind {
        Kind::Hello => {
            let hello: Hello = frame.message().unwrap();
            let answer = Hello {
                boot: [7; 16],
                ..hello
            };
            vec![
                Frame::new(Kind::Hello, 0, &answer),
                Frame::new(Kind::Ready, 0, &Ready::default()),
            ]
        }
        Kind::Ping => vec![Frame {
            kind: Kind::Pong,
            ..frame.clone()
        }],
        Kind::Quiesce => {
            guest.held.store(1, Ordering::SeqCst);
            vec![Frame::new(
                Kind::Quiesced,
                frame.stream,
                &Quiesced::default(),
            )]
        }
        Kind::Thaw => {
            guest.held.store(0, Ordering::SeqCst);
            done()
        }
        Kind::Resumed => {
            guest.held.store(0, Ordering::SeqCst);
            guest.resumed.fetch_add(1, Ordering::SeqCst);
            done()
        }
        Kind::Shutdown => {
            super::kill(guest.pid);
            done()
        }
        Kind::Exec => exec(guest, frame),
        // It has no device: packets never come.
        Kind::NetOpen => vec![Frame::empty(Kind::Started, frame.stream)],
        Kind::SetTime | Kind::Reseed => done(),
        Kind::Pong | Kind::Credit => Vec::new(),
        _ => vec![Frame::new(
            Kind::Failed,
            frame.stream,
            &Failure {
                code: FailureCode::Unsupported,
                message: "a fake does not do that".to_owned(),
            },
        )],
    }
}

/// `set N` writes to memory, `get` says what is there.
fn exec(guest: &Guest, frame: &Frame) -> Vec<Frame> {
    let exec: Exec = frame.message().unwrap();
    let words: Vec<_> = exec
        .argv
        .iter()
        .map(|w| String::from_utf8_lossy(w))
        .collect();
    let mut out = vec![Frame::empty(Kind::Started, frame.stream)];
    if words[0] == "set" {
        guest
            .value
            .store(words[1].parse().unwrap(), Ordering::SeqCst);
    }
    if words[0] == "get" {
        let value = guest.value.load(Ordering::SeqCst).to_string();
        out.push(Frame {
            kind: Kind::Stdout,
            stream: frame.stream,
            payload: value.into_bytes(),
        });
    }
    out.push(Frame {
        kind: Kind::Exit,
        stream: frame.stream,
        payload: Exit::Code(0).to_payload(),
    });
    out
}
