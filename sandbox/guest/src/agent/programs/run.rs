//! The thread of a program: its output, its time, its end.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rhizome_guest::wire::{Exit, Kind, MAX_PAYLOAD};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{End, Program};
use crate::{
    agent::{Agent, lock},
    sys,
};

/// What is still read after a program's end: more than pipes hold. What it left running in the
/// background may write for ever.
const MAX_AFTER_END: usize = 1024 * 1024;
/// Output after which a program counts as one that says much.
const STREAM_BYTES: usize = 64 * 1024;
/// What is read of one output before the other has its turn.
const TURN_BYTES: usize = MAX_PAYLOAD;

/// A pipe or terminal that a program writes to.
pub(super) struct Output {
    kind: Kind,
    /// `None` once it has ended.
    file: Option<File>,
}

impl Output {
    pub(super) fn of(kind: Kind, pipe: OwnedFd) -> Self {
        Self::new(kind, Ok(File::from(pipe)))
    }

    pub(super) fn new(kind: Kind, file: io::Result<File>) -> Self {
        let file = file
            .ok()
            .filter(|file| rustix::io::ioctl_fionbio(file, true).is_ok());
        Self { kind, file }
    }
}

/// What one look at an output found.
#[derive(PartialEq, Eq)]
enum Found {
    Data(usize),
    Nothing,
    End,
}

/// Sees a program to its end.
pub(super) fn run(
    agent: &Agent,
    program: &Arc<Program>,
    mut outputs: Vec<Output>,
    limit: Option<Duration>,
) {
    // A limit beyond what the clock can hold is none.
    let deadline = limit.and_then(|limit| program.started.checked_add(limit));
    let mut buffer = vec![0; TURN_BYTES];
    let (mut killed, mut timed_out) = (false, false);
    let mut after_end = 0;
    let mut streams = false;
    let mut said = 0;
    loop {
        // Hushed before anything is looked at, so that no ring is lost.
        program.child.bell.hush();
        let ended = program.child.exit().is_some();
        let now = Instant::now();
        let abandoned = program.abandoned_at(agent.programs.grace);
        if !ended && !killed {
            timed_out = deadline.is_some_and(|deadline| deadline <= now);
            if timed_out || abandoned.is_some_and(|at| at <= now) {
                program.kill(agent);
                killed = true;
            }
        }
        let room = program.room();
        let mut busy = false;
        if room > 0 {
            for output in &mut outputs {
                // Two outputs share the room that there is.
                let wanted = (room / 2).clamp(1, buffer.len());
                match take(output, &mut buffer[..wanted]) {
                    Found::Data(len) => {
                        program.append(output.kind, &buffer[..len]);
                        said += len;
                        after_end += if ended { len } else { 0 };
                        busy = true;
                    }
                    Found::Nothing => {}
                    Found::End => output.file = None,
                }
            }
            if ended && (!busy || after_end >= MAX_AFTER_END) {
                break;
            }
        }
        if said >= STREAM_BYTES && !streams {
            // It is taken in large pieces then, instead of in those that it is written in, each
            // of which would be handed through three threads.
            streams = true;
            sys::give_way(true);
        }
        if busy {
            continue;
        }
        let next = if ended || killed {
            None
        } else {
            soonest(deadline, abandoned)
        };
        wait(program, &outputs, room > 0, next);
    }
    if streams {
        // The next to use this thread has little to say again.
        sys::give_way(false);
    }
    drop(outputs);
    let exit = match program.child.exit() {
        _ if timed_out => Exit::TimedOut,
        Some(exit) => exit,
        None => Exit::Code(-1),
    };
    program.over.ring();
    lock(&program.input).take();
    let group = lock(&program.group).take();
    if let Some(group) = group {
        agent.groups.leave(group);
    }
    let mut state = lock(&program.state);
    state.end = Some(End {
        exit,
        at: Instant::now(),
        seen: false,
    });
    state.log.settle();
    drop(state);
    program.changed.notify_all();
}

fn take(output: &mut Output, buffer: &mut [u8]) -> Found {
    let Some(file) = &mut output.file else {
        return Found::Nothing;
    };
    loop {
        return match file.read(buffer) {
            Ok(0) => Found::End,
            Ok(len) => Found::Data(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Found::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A terminal that no process holds any more says EIO.
            Err(_) => Found::End,
        };
    }
}

fn soonest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Waits for output that there is room for, for the bell, or for `until`.
fn wait(program: &Program, outputs: &[Output], room: bool, until: Option<Instant>) {
    let mut fds = vec![PollFd::new(&program.child.bell, PollFlags::IN)];
    if room {
        let files = outputs.iter().filter_map(|output| output.file.as_ref());
        fds.extend(files.map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)));
    }
    let left = until.map(|until| {
        // Rounded up, so that the time is over when the wait is.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    // Interrupted, or out of time: the caller looks at everything anyway.
    let _ = poll(&mut fds, left.as_ref());
}

impl Program {
    /// When it is killed for want of a reader, unless one comes.
    fn abandoned_at(&self, grace: Duration) -> Option<Instant> {
        if self.keep.load(Ordering::Relaxed) {
            return None;
        }
        let state = lock(&self.state);
        match state.reader {
            Some(_) => None,
            None => state.alone_since.checked_add(grace),
        }
    }

    /// How much output can be taken now.
    fn room(&self) -> usize {
        let mut state = lock(&self.state);
        let room = match &state.reader {
            Some(reader) => state.log.room(reader.position),
            None => usize::MAX,
        };
        state.wants_room = room == 0;
        room
    }

    fn append(&self, kind: Kind, data: &[u8]) {
        let mut state = lock(&self.state);
        let reader = state.reader.as_ref().map(|reader| reader.position);
        state.log.append(kind, data, reader);
        drop(state);
        self.changed.notify_all();
    }
}
