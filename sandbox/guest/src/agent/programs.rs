//! Programs: started for the host, kept for whoever asks next.
//!
//! A program belongs to the agent, not to the session that started it. Its thread ([`run`])
//! takes its output into its [`log`] and its end into its state; a stream that is attached to it
//! ([`reader`]) sends what is there. When a session is lost the program goes on, and the next
//! session attaches where the last one stopped. A program that nobody asked to keep is killed
//! when its reader lets go of it, or when nobody has attached it for a while.

mod log;
mod prepare;
mod reader;
mod run;

use std::{
    collections::BTreeMap,
    fs::File,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rhizome_guest::wire::{
    Exec, ExecEntry, ExecId, ExecSignal, Exit, FailureCode, Frame, Keep, Kind, MAX_PAYLOAD,
    Payload, PtySize,
};
use rustix::process::{Pid, Signal};

use super::{
    Agent,
    failure::{self, Failed},
    groups::Group,
    host, lock,
    reaper::{Bell, Child},
    stream::Stream,
};
use log::Log;
use prepare::Started;

pub(crate) use reader::attach;

/// Programs that may run at once.
const MAX_RUNNING: usize = 64;
/// Programs that have ended and are remembered.
const MAX_ENDED: usize = 256;
/// Of these, programs whose end a reader has seen. They are kept in case it was lost on its way.
const MAX_SEEN: usize = 64;
/// How long an end is remembered, in uptime.
const ENDED_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of output that ended programs may hold together, the newest first.
const MAX_ENDED_BYTES: u64 = 64 * 1024 * 1024;
/// Longest command line that is told, in bytes.
const MAX_COMMAND: usize = 1024;

/// Every program of this guest that runs, or whose end is remembered.
pub(crate) struct Programs {
    all: Mutex<BTreeMap<ExecId, Arc<Program>>>,
    /// How long a program that is not kept may be without a reader.
    grace: Duration,
}

/// One program.
pub(super) struct Program {
    id: ExecId,
    command: String,
    user: String,
    started: Instant,
    started_ms: u64,
    child: Arc<Child>,
    /// Its control group, until it has ended: then it may be another's.
    group: Mutex<Option<Group>>,
    /// Our end of its terminal.
    terminal: Option<File>,
    /// Where its input goes, until that is closed.
    input: Mutex<Option<Arc<File>>>,
    /// Rings for ever once it has ended.
    over: Bell,
    keep: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    log: Log,
    reader: Option<Reader>,
    /// Since when there is none.
    alone_since: Instant,
    /// Number of the last reader.
    readers: u64,
    /// The program's thread waits for its reader to make room.
    wants_room: bool,
    end: Option<End>,
}

/// Who reads a program now.
struct Reader {
    number: u64,
    position: u64,
}

#[derive(Clone, Copy)]
struct End {
    exit: Exit,
    at: Instant,
    /// A reader was told.
    seen: bool,
}

impl Programs {
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            all: Mutex::default(),
            grace,
        }
    }

    /// Programs that run now.
    pub(crate) fn running(&self) -> usize {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        all.iter().filter(|program| program.end().is_none()).count()
    }

    fn find(&self, id: ExecId) -> Result<Arc<Program>, Failed> {
        let found = lock(&self.all).get(&id).cloned();
        found.ok_or_else(|| Failed::new(FailureCode::NoSuchExec, "no such program"))
    }

    /// Forgets the oldest ends, beyond what the bounds keep.
    fn prune(&self) {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        let mut ended: Vec<_> = all
            .into_iter()
            .filter_map(|program| Some((program.end()?, program)))
            .collect();
        ended.sort_by_key(|(end, _)| std::cmp::Reverse(end.at));
        let (mut seen, mut kept, mut bytes) = (0, 0, 0);
        for (end, program) in ended {
            kept += 1;
            seen += usize::from(end.seen);
            let forget =
                kept > MAX_ENDED || (end.seen && seen > MAX_SEEN) || end.at.elapsed() > ENDED_KEPT;
            if forget {
                lock(&self.all).remove(&program.id);
                continue;
            }
            let mut state = lock(&program.state);
            if bytes + state.log.len() > MAX_ENDED_BYTES && state.reader.is_none() {
                let end = state.log.end();
                state.log.drop_before(end);
                state.log.settle();
            }
            bytes += state.log.len();
        }
    }
}

/// Starts a program and stays as its first reader.
pub(crate) fn exec(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    match start(agent, frame) {
        Ok(program) => reader::stay(agent, stream, &program, None),
        Err(Failed(failure)) => {
            stream.send(Kind::Failed, &failure);
        }
    }
}

fn start(agent: &Arc<Agent>, frame: &Frame) -> Result<Arc<Program>, Failed> {
    let request: Exec = frame.message()?;
    let programs = &agent.programs;
    programs.prune();
    if lock(&programs.all).contains_key(&request.id) {
        return Err(Failed::new(FailureCode::AlreadyExists, "its id is taken"));
    }
    if programs.running() >= MAX_RUNNING {
        return Err(Failed::new(FailureCode::TooMany, "too much runs at once"));
    }
    let prepared = prepare::prepare(agent, &request)?;
    let group = agent.groups.make();
    let started = match prepared.start(agent, group.as_ref()) {
        Ok(started) => started,
        Err(failed) => {
            if let Some(group) = group {
                agent.groups.leave(group);
            }
            return Err(failed);
        }
    };
    // From here on the program runs: whatever happens, it is seen to its end.
    let Started {
        child,
        terminal,
        stdin,
        outputs,
        user,
    } = started;
    let mut taken = Vec::new();
    if let Some(terminal) = &terminal {
        taken.push(run::Output::new(Kind::Stdout, terminal.try_clone()));
    }
    for (kind, pipe) in [Kind::Stdout, Kind::Stderr]
        .into_iter()
        .zip(outputs.into_iter().flatten())
    {
        taken.push(run::Output::of(kind, pipe));
    }
    let outputs = taken;
    let input = match &terminal {
        Some(terminal) => terminal.try_clone().ok(),
        None => stdin.map(File::from),
    };
    if let Some(input) = &input {
        // Whoever writes to it must also see the end of its stream.
        rustix::io::ioctl_fionbio(input, true).map_err(std::io::Error::from)?;
    }
    let now = Instant::now();
    let program = Arc::new(Program {
        id: request.id,
        command: command_line(&request.argv),
        user,
        started: now,
        started_ms: host::unix_ms(),
        child,
        group: Mutex::new(group),
        terminal,
        input: Mutex::new(input.map(Arc::new)),
        over: Bell::new()?,
        keep: AtomicBool::new(request.keep),
        state: Mutex::new(State {
            log: Log::default(),
            reader: None,
            alone_since: now,
            readers: 0,
            wants_room: false,
            end: None,
        }),
        changed: Condvar::new(),
    });
    lock(&programs.all).insert(request.id, Arc::clone(&program));
    let limit = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
    let running = {
        let (held, program) = (Arc::clone(agent), Arc::clone(&program));
        agent.workers.run("program", move || {
            run::run(&held, &program, outputs, limit);
        })
    };
    if let Err(error) = running {
        program.kill(agent);
        lock(&programs.all).remove(&request.id);
        return Err(Failed::new(FailureCode::TooMany, error));
    }
    Ok(program)
}

/// Tells of every program.
pub(crate) fn list(agent: &Arc<Agent>, stream: &Arc<Stream>) {
    agent.programs.prune();
    let all: Vec<_> = lock(&agent.programs.all).values().cloned().collect();
    let mut entries = Vec::new();
    for program in all {
        let entry = program.entry().to_payload();
        // An entry is never cut.
        if entries.len() + entry.len() > MAX_PAYLOAD / 2 {
            if !stream.send_whole(Kind::ExecEntries, &entries) {
                return;
            }
            entries.clear();
        }
        entries.extend_from_slice(&entry);
    }
    if stream.send_whole(Kind::ExecEntries, &entries) {
        stream.send_empty(Kind::Done);
    }
}

/// Answers EXEC_SIGNAL and KEEP.
pub(crate) fn ask(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    let asked = || -> Result<(), Failed> {
        if frame.kind == Kind::Keep {
            let Keep { id, keep } = frame.message()?;
            let program = agent.programs.find(id)?;
            program.keep.store(keep, Ordering::Relaxed);
            program.child.bell.ring();
        } else {
            let ExecSignal { id, number } = frame.message()?;
            agent.programs.find(id)?.signal(agent, number);
        }
        Ok(())
    };
    match asked() {
        Ok(()) => stream.send_empty(Kind::Done),
        Err(Failed(failure)) => stream.send(Kind::Failed, &failure),
    };
}

impl Program {
    fn end(&self) -> Option<End> {
        lock(&self.state).end
    }

    /// Signals its process group; SIGKILL reaches all that it started.
    pub(super) fn signal(&self, agent: &Agent, number: i32) {
        match Signal::from_named_raw(number) {
            Some(Signal::KILL) => self.kill(agent),
            Some(signal) => agent.reaper.signal(&self.child, signal),
            None => {}
        }
    }

    /// Kills it and all that it started.
    fn kill(&self, agent: &Agent) {
        if self.end().is_some() {
            return;
        }
        // Held meanwhile, so that it is not another's before it is killed.
        if lock(&self.group)
            .as_ref()
            .is_some_and(|group| group.kill().is_ok())
        {
            return;
        }
        // Found while their parents live, and killed after the group: a parent that saw its
        // child's death first could end with a code of its own.
        let below = descendants(self.child.pid);
        agent.reaper.signal(&self.child, Signal::KILL);
        for pid in below {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    pub(super) fn resize(&self, size: PtySize) {
        if let Some(terminal) = &self.terminal {
            // A terminal whose program has ended has no size that matters.
            let _ = prepare::resize(terminal, size);
        }
    }

    fn entry(&self) -> ExecEntry {
        let state = lock(&self.state);
        let until = state.end.map_or_else(Instant::now, |end| end.at);
        let ran = until.saturating_duration_since(self.started);
        ExecEntry {
            id: self.id,
            command: self.command.clone(),
            user: self.user.clone(),
            pid: self.child.pid.as_raw_nonzero().get().unsigned_abs(),
            started_ms: self.started_ms,
            ran_ms: u64::try_from(ran.as_millis()).unwrap_or(u64::MAX),
            exit: state.end.map(|end| end.exit),
            keep: self.keep.load(Ordering::Relaxed),
            pty: self.terminal.is_some(),
            attached: state.reader.is_some(),
            dropped: state.log.base(),
            position: state.log.end(),
        }
    }
}

/// Returns all processes below `root`, as far as their parents live.
fn descendants(root: Pid) -> Vec<Pid> {
    let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name before may hold anything, spaces and parentheses too.
            let (_, rest) = stat.rsplit_once(") ")?;
            Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        let children = parents
            .iter()
            .filter(|(pid, of)| *of == parent && !found.contains(pid));
        let children: Vec<_> = children.map(|(pid, _)| *pid).collect();
        found.extend(children);
        at += 1;
    }
    found
        .into_iter()
        .skip(1)
        .filter_map(Pid::from_raw)
        .collect()
}

/// Returns arguments as a shell would take them, cut where they are long.
fn command_line(argv: &[Vec<u8>]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+=./:,@%".contains(&byte);
    let mut line = String::new();
    for word in argv {
        if !line.is_empty() {
            line.push(' ');
        }
        let text = String::from_utf8_lossy(word);
        if !word.is_empty() && word.iter().copied().all(plain) {
            line.push_str(&text);
        } else {
            line.push_str(&format!("'{}'", text.replace('\'', "'\\''")));
        }
        if line.len() > MAX_COMMAND {
            break;
        }
    }
    line
}

/// What the host is told when something can't be had.
fn refuse(stream: &Stream, code: FailureCode, message: &str) {
    stream.send(Kind::Failed, &failure::of(code, message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted() {
        let argv = [&b"sh"[..], b"-c", b"echo 'it''s'", b""].map(<[u8]>::to_vec);
        assert_eq!(
            command_line(&argv),
            "sh -c 'echo '\\''it'\\'''\\''s'\\''' ''"
        );
    }
}
