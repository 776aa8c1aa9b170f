//! One stream with its credit, between the thread that reads frames and those that work.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
};

use rhizome_guest::wire::{
    Credit, FRAME_COST, Frame, Kind, MAX_PAYLOAD, MAX_WINDOW, Payload, WINDOW, cost,
};

use super::{lock, programs::Program, session::Session};

/// Credit goes back in pieces of at least this much, unless nothing is queued.
const GRANT_STEP: u32 = WINDOW / 4;

/// One stream of a session, shared by the thread that reads from the host and its own.
pub(crate) struct Stream {
    pub(crate) id: u32,
    pub(crate) session: Arc<Session>,
    /// The program that it reads, once it does.
    pub(super) program: OnceLock<Arc<Program>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    incoming: VecDeque<Frame>,
    /// Credit that the host still has.
    allowance: u32,
    /// Credit used by frames taken and not yet given back.
    taken: u32,
    /// Credit that we still have.
    credit: u32,
    /// No more comes in.
    input_closed: bool,
    /// Why it was ended before its time.
    reset: Option<Cause>,
    on_reset: Option<Box<dyn FnOnce(Cause) + Send>>,
}

/// Why a stream was ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The host has no more use for it.
    Host,
    /// Its session has ended; the host may come again.
    Session,
}

impl Stream {
    pub(crate) fn new(id: u32, session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            id,
            session,
            program: OnceLock::new(),
            state: Mutex::new(State {
                incoming: VecDeque::new(),
                allowance: WINDOW,
                taken: 0,
                credit: WINDOW,
                input_closed: false,
                reset: None,
                on_reset: None,
            }),
            changed: Condvar::new(),
        })
    }

    /// Does `action` when the stream is reset, or now if it was.
    pub(crate) fn on_reset(&self, action: impl FnOnce(Cause) + Send + 'static) {
        let mut state = lock(&self.state);
        if let Some(cause) = state.reset {
            drop(state);
            action(cause);
        } else {
            state.on_reset = Some(Box::new(action));
        }
    }

    /// Takes a frame from the host; never waits.
    pub(crate) fn receive(&self, frame: Frame) {
        let mut state = lock(&self.state);
        if frame.kind == Kind::Credit {
            if let Ok(Credit { bytes }) = frame.message() {
                state.credit = state.credit.saturating_add(bytes).min(MAX_WINDOW);
            }
        } else if !state.input_closed {
            if frame.kind.is_data() {
                let Some(left) = state.allowance.checked_sub(cost(frame.payload.len())) else {
                    // The host doesn't; if it did, memory would have no bound.
                    drop(state);
                    return self.reset(Cause::Session);
                };
                state.allowance = left;
            }
            state.incoming.push_back(frame);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the next frame of the host; `None` when no more will come.
    pub(crate) fn next(&self) -> Option<Frame> {
        let mut state = lock(&self.state);
        loop {
            if state.reset.is_some() || state.input_closed {
                return None;
            }
            // Whoever asks for the next frame is done with the last one.
            if state.taken >= GRANT_STEP || (state.taken > 0 && state.incoming.is_empty()) {
                let bytes = std::mem::take(&mut state.taken);
                state.allowance += bytes;
                drop(state);
                self.session
                    .urgent(Kind::Credit, self.id, &Credit { bytes });
                state = lock(&self.state);
                continue;
            }
            if let Some(frame) = state.incoming.pop_front() {
                if frame.kind.is_data() {
                    state.taken += cost(frame.payload.len());
                }
                return Some(frame);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes and ends whoever waits for the host's frames.
    pub(crate) fn close_input(&self) {
        let mut state = lock(&self.state);
        state.input_closed = true;
        state.incoming.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Sends data as there is credit. Returns whether the stream still is.
    pub(crate) fn send_data(&self, kind: Kind, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            let Some(len) = self.reserve(1, data.len()) else {
                return false;
            };
            let (piece, rest) = data.split_at(len);
            data = rest;
            let frame = Frame {
                kind,
                stream: self.id,
                payload: piece.to_vec(),
            };
            if !self.session.ordered(frame) {
                return false;
            }
        }
        true
    }

    /// Sends data as one frame, once there is credit for that. It must be far smaller than the
    /// window. Returns whether the stream still is.
    pub(crate) fn send_whole(&self, kind: Kind, data: &[u8]) -> bool {
        if data.is_empty() {
            return !self.is_reset();
        }
        if self.reserve(data.len(), data.len()).is_none() {
            return false;
        }
        self.session.ordered(Frame {
            kind,
            stream: self.id,
            payload: data.to_vec(),
        })
    }

    /// Sends a frame that needs no credit, behind the data before it.
    pub(crate) fn send<P: Payload>(&self, kind: Kind, message: &P) -> bool {
        self.session.ordered(Frame::new(kind, self.id, message))
    }

    /// Like [`Self::send`], without a message.
    pub(crate) fn send_empty(&self, kind: Kind) -> bool {
        self.session.ordered(Frame::empty(kind, self.id))
    }

    /// Ends the stream at once.
    pub(crate) fn reset(&self, cause: Cause) {
        let mut state = lock(&self.state);
        state.reset.get_or_insert(cause);
        state.incoming.clear();
        let action = state.on_reset.take();
        drop(state);
        self.changed.notify_all();
        if let Some(action) = action {
            action(cause);
        }
    }

    pub(crate) fn is_reset(&self) -> bool {
        lock(&self.state).reset.is_some()
    }

    /// Waits for credit for `least` bytes and takes what `wanted` bytes need, or less.
    fn reserve(&self, least: usize, wanted: usize) -> Option<usize> {
        let mut state = lock(&self.state);
        loop {
            if state.reset.is_some() {
                return None;
            }
            if state.credit as usize >= FRAME_COST as usize + least {
                let len = wanted
                    .min(MAX_PAYLOAD)
                    .min((state.credit - FRAME_COST) as usize);
                state.credit -= cost(len);
                return Some(len);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
