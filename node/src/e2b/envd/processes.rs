//! Programs that clients of E2B started, read once here and told to whoever listens.
//!
//! A guest's program has one reader: this node. What it says goes to every client that listens, and
//! is dropped while nobody does, as `envd` has it. A client that goes away ends nothing; a sandbox
//! that sleeps ends the reading, and the next question about the program begins it anew.
//!
//! Which programs there are is asked of the guest, never remembered: so that a copy of a sandbox,
//! one that woke, and one whose node was started again all have theirs. What is kept here beside is
//! what the guest does not know: a program's tag, and its words one by one.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use rhizome_sandbox::channel::{
    ExecError, ExecEvent, ExecHandle, ExecId, ExecInput, ExecRequest, ExecStatus, ExitStatus,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{gone, guest, of_exec, of_sandbox};
use crate::e2b::{
    Door,
    connect::{Code, ConnectError},
    interpreter,
};

/// Pieces of output that wait for one client; then the program waits for it.
const READER_QUEUE: usize = 4;
/// Clients that may listen to one program.
const MAX_READERS: usize = 32;
/// Programs whose tags and words are kept.
const MAX_KNOWN: usize = 4096;
/// Time in which a broken session may come back before its clients are told.
const PATIENCE: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_millis(100);

/// What is run, in E2B's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    pub(super) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

/// What a client said of a program and the guest does not know.
#[derive(Debug, Clone, Default)]
pub(super) struct Meta {
    pub(super) config: Config,
    pub(super) tag: Option<String>,
}

/// Which program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Selector {
    Pid(u32),
    Tag(String),
}

/// What a listener hears.
#[derive(Debug, Clone)]
pub(super) enum Said {
    Stdout(Bytes),
    Stderr(Bytes),
    /// How it ended; nothing comes after it.
    End(ExitStatus),
    /// It is not read any more; nothing comes after it.
    Lost(ConnectError),
}

/// A program that is read.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: ExecId,
    pub(super) pid: u32,
    pub(super) has_terminal: bool,
    pub(super) takes_input: bool,
    input: Mutex<ExecInput>,
    /// Input of several clients is not mixed within a message.
    writing: tokio::sync::Mutex<()>,
    /// `None` once it is not read any more.
    readers: Mutex<Option<Vec<mpsc::Sender<Said>>>>,
}

impl Process {
    /// Listens from now on.
    pub(super) fn listen(&self) -> Result<mpsc::Receiver<Said>, ConnectError> {
        let mut readers = lock(&self.readers);
        let Some(readers) = readers.as_mut() else {
            return Err(no_process());
        };
        readers.retain(|reader| !reader.is_closed());
        if readers.len() >= MAX_READERS {
            return Err(ConnectError::new(
                Code::ResourceExhausted,
                "too many clients listen to this process",
            ));
        }
        let (tx, rx) = mpsc::channel(READER_QUEUE);
        readers.push(tx);
        Ok(rx)
    }

    pub(super) async fn write(&self, bytes: &[u8]) -> Result<(), ConnectError> {
        let _one_at_a_time = self.writing.lock().await;
        let input = self.input();
        let written = input.write_stdin(bytes).await;
        written.map_err(|error| of_exec(&error))
    }

    pub(super) fn input(&self) -> ExecInput {
        lock(&self.input).clone()
    }

    async fn tell(&self, said: Said) {
        let readers = lock(&self.readers).clone().unwrap_or_default();
        for reader in readers {
            // One that went away is forgotten with the next that comes.
            let _ = reader.send(said.clone()).await;
        }
    }

    async fn end(&self, last: Said) {
        let readers = lock(&self.readers).take().unwrap_or_default();
        for reader in readers {
            let _ = reader.send(last.clone()).await;
        }
    }
}

/// Every program that is read, of all sandboxes.
#[derive(Debug, Default)]
pub(super) struct Processes {
    live: Mutex<BTreeMap<(String, ExecId), Arc<Process>>>,
    known: Mutex<VecDeque<(ExecId, Arc<Meta>)>>,
    /// A program is attached once, however many ask for it.
    attaching: tokio::sync::Mutex<()>,
}

impl Processes {
    /// Starts a program and listens to it from its first byte.
    pub(super) async fn start(
        &self,
        door: &Arc<Door>,
        sandbox: &str,
        request: ExecRequest,
        meta: Meta,
    ) -> Result<(Arc<Process>, mpsc::Receiver<Said>), ConnectError> {
        let found = door.node.find_sandbox(sandbox).map_err(|_| gone())?;
        let sandboxes = door.node.sandboxes().map_err(super::of_api)?;
        let (pty, stdin) = (request.pty.is_some(), request.stdin);
        let handle = sandboxes
            .exec(&found.id, request)
            .await
            .map_err(|error| of_sandbox(&error))?;
        let pid = match pid_of(door, sandbox, handle.id()).await {
            Ok(pid) => pid,
            Err(error) => {
                // Nobody could ever name it.
                let _ = handle.kill().await;
                return Err(error);
            }
        };
        self.remember(handle.id(), meta);
        let process = self.insert(sandbox, pid, (pty, stdin || pty), &handle);
        let listener = process.listen()?;
        tokio::spawn(read(
            Arc::clone(door),
            sandbox.to_owned(),
            Arc::clone(&process),
            handle,
        ));
        Ok((process, listener))
    }

    /// Returns a running program of a sandbox, which is read from now on if it was not, and a
    /// listener of what it says from now on.
    pub(super) async fn find(
        &self,
        door: &Arc<Door>,
        sandbox: &str,
        which: &Selector,
    ) -> Result<(Arc<Process>, mpsc::Receiver<Said>), ConnectError> {
        if let Some(found) = self.reading(sandbox, which)
            && let Ok(listener) = found.listen()
        {
            return Ok((found, listener));
        }
        let _one_at_a_time = self.attaching.lock().await;
        let status = self.running(door, sandbox, which).await?;
        // Somebody else may have begun meanwhile.
        let live = lock(&self.live)
            .get(&(sandbox.to_owned(), status.id))
            .cloned();
        if let Some(live) = live
            && let Ok(listener) = live.listen()
        {
            return Ok((live, listener));
        }
        let handle = guest(door, sandbox)
            .await?
            .attach(status.id, u64::MAX)
            .await
            .map_err(|error| of_exec(&error))?;
        let can = (handle.attached().pty, handle.attached().stdin);
        let process = self.insert(sandbox, status.pid, (can.0, can.0 || can.1), &handle);
        let listener = process.listen()?;
        tokio::spawn(read(
            Arc::clone(door),
            sandbox.to_owned(),
            Arc::clone(&process),
            handle,
        ));
        Ok((process, listener))
    }

    /// Returns what the guest says of a running program, without reading it.
    pub(super) async fn running(
        &self,
        door: &Door,
        sandbox: &str,
        which: &Selector,
    ) -> Result<ExecStatus, ConnectError> {
        let all = self.list(door, sandbox).await?;
        let is = |(status, meta): &(ExecStatus, Arc<Meta>)| match which {
            Selector::Pid(pid) => status.pid == *pid,
            Selector::Tag(tag) => meta.tag.as_ref() == Some(tag),
        };
        let found = all.into_iter().find(is);
        found.map(|(status, _)| status).ok_or_else(no_process)
    }

    /// Lists the running programs of a sandbox, the newest first.
    pub(super) async fn list(
        &self,
        door: &Door,
        sandbox: &str,
    ) -> Result<Vec<(ExecStatus, Arc<Meta>)>, ConnectError> {
        let all = guest(door, sandbox).await?.execs().await;
        let all = all.map_err(|error| of_exec(&error))?;
        let known = lock(&self.known);
        let told = all
            .into_iter()
            // The interpreter's own are no processes of the client's.
            .filter(|status| status.exit.is_none() && !interpreter::is_own(&status.command))
            .map(|status| {
                let meta = known.iter().rev().find(|(id, _)| *id == status.id);
                let meta = meta.map_or_else(|| said_by(&status), |(_, meta)| Arc::clone(meta));
                (status, meta)
            });
        Ok(told.collect())
    }

    fn reading(&self, sandbox: &str, which: &Selector) -> Option<Arc<Process>> {
        let live = lock(&self.live);
        let mut here = live.iter().filter(|((of, _), _)| of == sandbox);
        let found = match which {
            Selector::Pid(pid) => here.find(|(_, process)| process.pid == *pid),
            Selector::Tag(tag) => here.find(|((_, id), _)| {
                let known = lock(&self.known);
                let meta = known.iter().rev().find(|(known, _)| known == id);
                meta.is_some_and(|(_, meta)| meta.tag.as_ref() == Some(tag))
            }),
        };
        found.map(|(_, process)| Arc::clone(process))
    }

    fn insert(
        &self,
        sandbox: &str,
        pid: u32,
        (has_terminal, takes_input): (bool, bool),
        handle: &ExecHandle,
    ) -> Arc<Process> {
        let process = Arc::new(Process {
            id: handle.id(),
            pid,
            has_terminal,
            takes_input,
            input: Mutex::new(handle.input()),
            writing: tokio::sync::Mutex::new(()),
            readers: Mutex::new(Some(Vec::new())),
        });
        let key = (sandbox.to_owned(), process.id);
        lock(&self.live).insert(key, Arc::clone(&process));
        process
    }

    fn remember(&self, id: ExecId, meta: Meta) {
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            known.pop_front();
        }
        known.push_back((id, Arc::new(meta)));
    }

    fn forget(&self, sandbox: &str, process: &Arc<Process>, ended: bool) {
        let key = (sandbox.to_owned(), process.id);
        let mut live = lock(&self.live);
        if live
            .get(&key)
            .is_some_and(|found| Arc::ptr_eq(found, process))
        {
            live.remove(&key);
        }
        drop(live);
        if ended {
            lock(&self.known).retain(|(id, _)| *id != process.id);
        }
    }
}

/// Reads a program to its end and tells what it says.
async fn read(door: Arc<Door>, sandbox: String, process: Arc<Process>, mut handle: ExecHandle) {
    let stop = door.node.stop.clone();
    let mut position = handle.attached().position;
    let last = loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => {
                // The program goes on; the next daemon's clients find it.
                handle.leave();
                break Said::Lost(ConnectError::new(Code::Unavailable, "the node stops"));
            }
            event = handle.events.recv() => event,
        };
        match event {
            Some(Ok(ExecEvent::Stdout(bytes))) => {
                position += bytes.len() as u64;
                process.tell(Said::Stdout(bytes)).await;
            }
            Some(Ok(ExecEvent::Stderr(bytes))) => {
                position += bytes.len() as u64;
                process.tell(Said::Stderr(bytes)).await;
            }
            Some(Ok(ExecEvent::Exit(status))) => break Said::End(status),
            Some(Err(error @ ExecError::TakenOver)) => break Said::Lost(of_exec(&error)),
            Some(Err(_)) | None => match again(&door, &sandbox, process.id, position).await {
                Some(next) => {
                    *lock(&process.input) = next.input();
                    handle = next;
                }
                None => break Said::Lost(gone()),
            },
        }
    };
    let ended = matches!(last, Said::End(_));
    door.envd.processes.forget(&sandbox, &process, ended);
    process.end(last).await;
}

/// Goes on reading after a session that broke, if the sandbox itself is still there.
async fn again(door: &Door, sandbox: &str, id: ExecId, from: u64) -> Option<ExecHandle> {
    let attach = async {
        loop {
            let guest = guest(door, sandbox).await.ok()?;
            match guest.attach(id, from).await {
                Ok(handle) => return Some(handle),
                Err(ExecError::SandboxGone { .. }) => tokio::time::sleep(RETRY).await,
                Err(_) => return None,
            }
        }
    };
    tokio::time::timeout(PATIENCE, attach).await.ok().flatten()
}

/// Asks the guest under which number a program runs there.
async fn pid_of(door: &Door, sandbox: &str, id: ExecId) -> Result<u32, ConnectError> {
    let all = guest(door, sandbox).await?.execs().await;
    let all = all.map_err(|error| of_exec(&error))?;
    let found = all.into_iter().find(|status| status.id == id);
    found.map(|status| status.pid).ok_or_else(no_process)
}

/// What the guest says of a program that no client told us of.
fn said_by(status: &ExecStatus) -> Arc<Meta> {
    Arc::new(Meta {
        config: Config {
            cmd: status.command.clone(),
            ..Config::default()
        },
        tag: None,
    })
}

pub(super) fn no_process() -> ConnectError {
    ConnectError::not_found("no such process runs in the sandbox")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
