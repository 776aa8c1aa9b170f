//! The node's end of a volume: questions over a stream that may be replaced.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use rhizome_guest::wire::{Kind, VolumeAnswer, VolumeAsk, VolumeEntry, VolumeFramer, VolumeReply};

use super::{super::lock, super::stream::Stream, tree::Source};

/// How long a read waits for a node that is gone; it may come back after the guest slept.
const WAIT: Duration = Duration::from_secs(600);

/// Asks the node.
#[derive(Default)]
pub(super) struct Remote {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stream: Option<Arc<Stream>>,
    last_tag: u64,
    waiting: BTreeMap<u64, Sender<VolumeReply>>,
    ended: bool,
}

impl Remote {
    /// Asks over this stream from now on.
    pub(super) fn bind(&self, stream: &Arc<Stream>) {
        let mut state = lock(&self.state);
        state.stream = Some(Arc::clone(stream));
        // They were asked elsewhere; each asks again.
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Nobody will answer any more.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        state.waiting.clear();
        let stream = state.stream.take();
        drop(state);
        self.changed.notify_all();
        if let Some(stream) = stream {
            stream.send_empty(Kind::StreamEof);
            stream.close_input();
        }
    }

    /// Takes answers until the stream ends.
    pub(super) fn serve(&self, stream: &Arc<Stream>) {
        let mut framer = VolumeFramer::default();
        'stream: while let Some(frame) = stream.next() {
            if frame.kind != Kind::StreamData {
                break;
            }
            framer.extend(&frame.payload);
            loop {
                match framer.message::<VolumeAnswer>() {
                    Ok(Some(VolumeAnswer { tag, answer })) => {
                        let waiting = lock(&self.state).waiting.remove(&tag);
                        if let Some(waiting) = waiting {
                            // Whoever asked may have given up.
                            let _ = waiting.send(answer);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => break 'stream,
                }
            }
        }
        let mut state = lock(&self.state);
        if state
            .stream
            .as_ref()
            .is_some_and(|bound| Arc::ptr_eq(bound, stream))
        {
            state.stream = None;
            state.waiting.clear();
        }
    }

    /// Says something that has no answer.
    pub(super) fn tell(&self, what: &VolumeAsk) {
        let stream = lock(&self.state).stream.clone();
        if let Some(stream) = stream {
            stream.send_whole(Kind::StreamData, &VolumeFramer::frame(what));
        }
    }

    fn ask(&self, what: &dyn Fn(u64) -> VolumeAsk) -> io::Result<VolumeReply> {
        let until = Instant::now() + WAIT;
        loop {
            let (stream, tag, answer) = {
                let mut state = lock(&self.state);
                let stream = loop {
                    if state.ended {
                        return Err(io::ErrorKind::NotConnected.into());
                    }
                    if let Some(stream) = &state.stream {
                        break Arc::clone(stream);
                    }
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                };
                state.last_tag += 1;
                let tag = state.last_tag;
                let (tx, answer) = channel();
                state.waiting.insert(tag, tx);
                (stream, tag, answer)
            };
            let sent = stream.send_whole(Kind::StreamData, &VolumeFramer::frame(&what(tag)));
            // A stream that ends drops what waits on it.
            match answer.recv() {
                Ok(VolumeReply::NotFound) => return Err(io::ErrorKind::NotFound.into()),
                Ok(VolumeReply::Failed) => return Err(io::Error::other("the node cannot read it")),
                Ok(reply) => return Ok(reply),
                Err(_) if !sent => self.lose(&stream),
                Err(_) => {}
            }
        }
    }

    fn lose(&self, stream: &Arc<Stream>) {
        let mut state = lock(&self.state);
        if state
            .stream
            .as_ref()
            .is_some_and(|bound| Arc::ptr_eq(bound, stream))
        {
            state.stream = None;
        }
    }
}

impl Source for Remote {
    fn list(&self, path: &[u8]) -> io::Result<Vec<VolumeEntry>> {
        let mut all: Vec<VolumeEntry> = Vec::new();
        loop {
            let after = all
                .last()
                .map(|entry| entry.path.clone())
                .unwrap_or_default();
            let reply = self.ask(&|tag| VolumeAsk::List {
                tag,
                path: path.to_vec(),
                after: after.clone(),
            })?;
            let VolumeReply::Entries(entries, more) = reply else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let done = !more || entries.is_empty();
            all.extend(entries);
            if done {
                return Ok(all);
            }
        }
    }

    fn read(&self, path: &[u8], offset: u64, len: u32) -> io::Result<Vec<u8>> {
        let reply = self.ask(&|tag| VolumeAsk::Read {
            tag,
            path: path.to_vec(),
            offset,
            len,
        })?;
        match reply {
            VolumeReply::Data(bytes) => Ok(bytes),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
