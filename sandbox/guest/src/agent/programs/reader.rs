//! A stream that reads a program: its output and end to the host, the host's input to it.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Instant,
};

use rhizome_guest::wire::{Attach, Attached, Exit, FailureCode, Frame, Kind};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Program, Reader, refuse};
use crate::agent::{
    Agent,
    failure::Failed,
    lock,
    reaper::Bell,
    spawn,
    stream::{Cause, Stream},
};

/// What a terminal takes for the end of input at the beginning of a line: ^D.
const END_OF_INPUT: u8 = 4;

/// Answers ATTACH, and stays until the stream or the program ends.
pub(crate) fn attach(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    let found = frame
        .message()
        .map_err(Failed::from)
        .and_then(|Attach { id, from }| Ok((agent.programs.find(id)?, from)));
    match found {
        Ok((program, from)) => stay(agent, stream, &program, Some(from)),
        Err(Failed(failure)) => {
            stream.send(Kind::Failed, &failure);
        }
    }
}

/// What there is for a reader.
enum Next {
    Data(Kind),
    End(Exit),
    /// Another reader came, or this one was let go.
    Over,
    Broken(io::Error),
}

/// Reads a program until the stream or the program ends: from its start, or from a position.
pub(super) fn stay(
    agent: &Arc<Agent>,
    stream: &Arc<Stream>,
    program: &Arc<Program>,
    from: Option<u64>,
) {
    let stop = match Bell::new() {
        Ok(stop) => Arc::new(stop),
        Err(error) => return refuse(stream, FailureCode::TooMany, &error.to_string()),
    };
    let (number, attached) = program.claim(from.unwrap_or(0));
    let _ = stream.program.set(Arc::clone(program));
    {
        let (agent, program, stop) = (Arc::clone(agent), Arc::clone(program), Arc::clone(&stop));
        stream.on_reset(move |cause| {
            stop.ring();
            if program.release(number) && cause == Cause::Host && !program.is_kept() {
                program.kill(&agent);
            }
        });
    }
    let said = match from {
        None => stream.send_empty(Kind::Started),
        Some(_) => stream.send(Kind::Attached, &attached),
    };
    let input = attached.stdin.then(|| {
        let (stream, program, stop) = (Arc::clone(stream), Arc::clone(program), Arc::clone(&stop));
        spawn("input", move || take_input(&stream, &program, &stop))
    });
    if said {
        send_output(stream, program, number, attached.position);
    }
    program.release(number);
    stop.ring();
    stream.close_input();
    if let Some(Ok(input)) = input {
        // One that panicked has written all that it will.
        let _ = input.join();
    }
}

fn send_output(stream: &Stream, program: &Program, number: u64, mut position: u64) {
    let mut piece = Vec::new();
    loop {
        match program.next(number, position, &mut piece) {
            Next::Data(kind) => {
                if !stream.send_data(kind, &piece) {
                    return;
                }
                position += piece.len() as u64;
                program.advance(number, position);
            }
            Next::End(exit) => {
                if stream.send(Kind::Exit, &exit) {
                    program.seen();
                }
                return;
            }
            Next::Over => return refuse(stream, FailureCode::TakenOver, "it is read elsewhere"),
            Next::Broken(error) => return refuse(stream, FailureCode::Io, &error.to_string()),
        }
    }
}

impl Program {
    /// Makes its caller the reader; whoever was it before is not any more.
    fn claim(&self, from: u64) -> (u64, Attached) {
        let stdin = lock(&self.input).is_some();
        let mut state = lock(&self.state);
        state.readers += 1;
        let number = state.readers;
        let wanted = from.min(state.log.end());
        let position = wanted.max(state.log.base());
        state.reader = Some(Reader { number, position });
        let attached = Attached {
            position,
            gap: position - wanted,
            pty: self.terminal.is_some(),
            stdin,
        };
        drop(state);
        self.changed.notify_all();
        self.child.bell.ring();
        (number, attached)
    }

    /// Returns whether the reader was the one.
    fn release(&self, number: u64) -> bool {
        let mut state = lock(&self.state);
        let mine = state
            .reader
            .as_ref()
            .is_some_and(|reader| reader.number == number);
        if mine {
            state.reader = None;
            state.alone_since = Instant::now();
        }
        drop(state);
        self.changed.notify_all();
        self.child.bell.ring();
        mine
    }

    fn is_kept(&self) -> bool {
        self.keep.load(Ordering::Relaxed)
    }

    /// Waits for what comes at `position`.
    fn next(&self, number: u64, position: u64, piece: &mut Vec<u8>) -> Next {
        let mut state = lock(&self.state);
        loop {
            if state
                .reader
                .as_ref()
                .is_none_or(|reader| reader.number != number)
            {
                return Next::Over;
            }
            match state.log.read(position, piece) {
                Ok(Some(kind)) => return Next::Data(kind),
                Ok(None) => {}
                Err(error) => return Next::Broken(error),
            }
            if let Some(end) = state.end {
                return Next::End(end.exit);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn advance(&self, number: u64, position: u64) {
        let mut state = lock(&self.state);
        if let Some(reader) = &mut state.reader
            && reader.number == number
        {
            reader.position = position;
        }
        let ring = std::mem::take(&mut state.wants_room);
        drop(state);
        if ring {
            self.child.bell.ring();
        }
    }

    fn seen(&self) {
        if let Some(end) = &mut lock(&self.state).end {
            end.seen = true;
        }
    }
}

/// Writes what the host sends to the program's input.
fn take_input(stream: &Stream, program: &Program, stop: &Bell) {
    while let Some(frame) = stream.next() {
        let input = lock(&program.input).clone();
        let Some(input) = input else {
            // It takes no more; drop what comes, so that the host is not left waiting.
            continue;
        };
        if frame.kind == Kind::Stdin {
            match write_all(&input, &frame.payload, program, stop) {
                Ok(true) => {}
                Ok(false) => return,
                // The program closed its input, and runs on.
                Err(_) => drop(lock(&program.input).take()),
            }
        } else if program.terminal.is_some() {
            // A terminal does not end, but it can say so.
            if write_all(&input, &[END_OF_INPUT], program, stop).is_err() {
                return;
            }
        } else {
            drop(lock(&program.input).take());
        }
    }
}

/// Returns whether all was written; not if the program or the stream ended before.
fn write_all(
    mut input: &File,
    mut data: &[u8],
    program: &Program,
    stop: &Bell,
) -> io::Result<bool> {
    while !data.is_empty() {
        match input.write(data) {
            Ok(len) => data = &data[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [
                    PollFd::from_borrowed_fd(input.as_fd(), PollFlags::OUT),
                    PollFd::new(&program.over, PollFlags::IN),
                    PollFd::new(stop, PollFlags::IN),
                ];
                match poll(&mut fds, None) {
                    Ok(_) if fds[1..].iter().any(|fd| !fd.revents().is_empty()) => {
                        return Ok(false);
                    }
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
