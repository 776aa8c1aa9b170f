//! Frames on their way to the host: who goes first, and who waits for a turn.

use std::{
    collections::VecDeque,
    io::Write,
    sync::{Condvar, Mutex, PoisonError},
};

use rhizome_guest::wire::Frame;

use super::lock;

/// Frames that go first, before those who make them have to wait.
const MAX_URGENT: usize = 1024;

/// What waits to be written to the host.
///
/// Every stream has at most one frame here, so the queue is short and turns go round: a stream
/// with much to say waits for all others between any two frames of its own.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    /// Greetings, pongs, credit, answers.
    urgent: VecDeque<Frame>,
    ordered: VecDeque<Frame>,
    session: u64,
    closed: bool,
}

impl Outbox {
    /// Begins a session: frames of the one before are dropped, now and later.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        state.session += 1;
        state.urgent.clear();
        state.ordered.clear();
        self.emptied.notify_all();
        state.session
    }

    /// Queues a frame that goes before others. Returns whether its session still is.
    pub(crate) fn urgent(&self, session: u64, frame: Frame) -> bool {
        let mut state = lock(&self.state);
        while state.is_live(session) && state.urgent.len() >= MAX_URGENT {
            state = self
                .emptied
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if !state.is_live(session) {
            return false;
        }
        state.urgent.push_back(frame);
        self.filled.notify_one();
        true
    }

    /// Queues a frame behind those of its stream and of all others; waits for its turn.
    /// Returns whether its session still is.
    pub(crate) fn ordered(&self, session: u64, frame: Frame) -> bool {
        let mut state = lock(&self.state);
        while state.is_live(session)
            && state
                .ordered
                .iter()
                .any(|queued| queued.stream == frame.stream)
        {
            state = self
                .emptied
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if !state.is_live(session) {
            return false;
        }
        state.ordered.push_back(frame);
        self.filled.notify_one();
        true
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Writes what comes, until the connection ends.
    pub(crate) fn write_to(&self, mut writer: impl Write) {
        let mut bytes = Vec::new();
        while let Some(frame) = self.take() {
            bytes.clear();
            // Only a mistake of ours makes a frame too long; without it the stream is stuck,
            // with it all are.
            if frame.encode(&mut bytes).is_err() {
                continue;
            }
            if writer
                .write_all(&bytes)
                .and_then(|()| writer.flush())
                .is_err()
            {
                self.close();
                return;
            }
        }
    }

    fn take(&self) -> Option<Frame> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let next = state
                .urgent
                .pop_front()
                .or_else(|| state.ordered.pop_front());
            if let Some(frame) = next {
                self.emptied.notify_all();
                return Some(frame);
            }
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn is_live(&self, session: u64) -> bool {
        !self.closed && self.session == session
    }
}

#[cfg(test)]
mod tests {
    use rhizome_guest::wire::Kind;

    use super::*;

    #[test]
    fn urgent_frames_go_first_and_streams_take_turns() {
        let outbox = Outbox::default();
        let session = outbox.begin();
        for stream in [1, 3, 5] {
            assert!(outbox.ordered(session, Frame::empty(Kind::Stdout, stream)));
        }
        assert!(outbox.urgent(session, Frame::empty(Kind::Pong, 0)));
        let order: Vec<u32> = (0..4)
            .filter_map(|_| outbox.take())
            .map(|f| f.stream)
            .collect();
        assert_eq!(order, [0, 1, 3, 5]);
    }

    #[test]
    fn frames_of_an_ended_session_are_dropped() {
        let outbox = Outbox::default();
        let old = outbox.begin();
        assert!(outbox.ordered(old, Frame::empty(Kind::Stdout, 1)));
        let new = outbox.begin();
        assert!(!outbox.ordered(old, Frame::empty(Kind::Stdout, 1)));
        assert!(!outbox.urgent(old, Frame::empty(Kind::Pong, 0)));
        assert!(outbox.urgent(new, Frame::empty(Kind::Ready, 0)));
        assert_eq!(outbox.take().map(|frame| frame.kind), Some(Kind::Ready));
    }
}
