//! The two halves of a stream, as whoever uses it holds them, and the credit both keep.

use std::sync::Arc;

use rhizome_guest::wire::{
    FRAME_COST, Frame, Kind, MAGIC, MAX_PAYLOAD, WINDOW, contains_magic, cost,
};
use tokio::sync::{Semaphore, mpsc};

use super::{Shared, lock, misbehaved};
use crate::channel::ChannelError;

/// Credit is given back in pieces of at least this much, unless nothing is queued.
const GRANT_STEP: u32 = WINDOW / 4;

/// One stream, as seen by who uses it. Dropping it ends it on both sides.
pub(in crate::channel) struct Stream {
    pub(in crate::channel) id: u32,
    pub(in crate::channel) shared: Arc<Shared>,
    incoming: mpsc::UnboundedReceiver<Frame>,
    credit: Arc<Semaphore>,
    /// Credit used up by frames taken and not yet given back.
    taken: u32,
    ended: bool,
}

/// The sending half of a stream; as many as wanted.
#[derive(Clone)]
pub(in crate::channel) struct Sender {
    id: u32,
    shared: Arc<Shared>,
    credit: Arc<Semaphore>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        id: u32,
        shared: Arc<Shared>,
        incoming: mpsc::UnboundedReceiver<Frame>,
        credit: Arc<Semaphore>,
    ) -> Self {
        Self {
            id,
            shared,
            incoming,
            credit,
            taken: 0,
            ended: false,
        }
    }

    /// Returns the next frame; `None` after the last one.
    ///
    /// # Errors
    /// The channel's end, if it came before the stream's.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(in crate::channel) async fn next(&mut self) -> Result<Option<Frame>, ChannelError> {
        self.give_back();
        let frame = self.incoming.recv().await;
        let Some(frame) = frame else {
            return if self.ended || !self.shared.is_closed() {
                Ok(None)
            } else {
                Err(self.shared.reason())
            };
        };
        if frame.kind.is_data() {
            self.taken += cost(frame.payload.len());
        } else if matches!(
            frame.kind,
            Kind::Failed | Kind::StreamReset | Kind::Exit | Kind::Done | Kind::FileEnd
        ) {
            self.ended = true;
        }
        Ok(Some(frame))
    }

    /// Returns the next frame of a stream that must have one.
    pub(in crate::channel) async fn expect(&mut self) -> Result<Frame, ChannelError> {
        self.next()
            .await?
            .ok_or(misbehaved("a stream ended without an end"))
    }

    /// Whoever asks for the next frame is done with the last one.
    fn give_back(&mut self) {
        if self.taken >= GRANT_STEP || (self.taken > 0 && self.incoming.is_empty()) {
            self.shared.grant(self.id, self.taken);
            self.taken = 0;
        }
    }

    /// Forgets a stream that both sides have ended. A reset would overtake what is queued.
    pub(in crate::channel) fn finish(self) {
        lock(&self.shared.streams).remove(self.id);
    }

    pub(in crate::channel) fn sender(&self) -> Sender {
        Sender {
            id: self.id,
            shared: Arc::clone(&self.shared),
            credit: Arc::clone(&self.credit),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let was_open = lock(&self.shared.streams).remove(self.id);
        if was_open {
            self.shared.reset(self.id);
        }
    }
}

impl Sender {
    /// Returns the channel that the stream runs on.
    pub(in crate::channel) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends `data` as it has credit; returns when the last frame of it is queued.
    pub(in crate::channel) async fn data(
        &self,
        kind: Kind,
        data: &[u8],
    ) -> Result<(), ChannelError> {
        for piece in pieces(data) {
            let permit = self.credit.acquire_many(cost(piece.len())).await;
            permit.map_err(|_| self.lost())?.forget();
            self.plain(kind, piece.to_vec()).await?;
        }
        Ok(())
    }

    /// Sends a frame that needs no credit.
    pub(in crate::channel) async fn plain(
        &self,
        kind: Kind,
        payload: Vec<u8>,
    ) -> Result<(), ChannelError> {
        if self.credit.is_closed() {
            return Err(self.lost());
        }
        self.shared
            .send(Frame {
                kind,
                stream: self.id,
                payload,
            })
            .await
    }

    /// Returns why nothing can be sent any more: `Closed` if only this stream ended.
    fn lost(&self) -> ChannelError {
        if self.shared.is_closed() {
            self.shared.reason()
        } else {
            ChannelError::Closed
        }
    }
}

/// Cuts data into payloads, none of which holds the magic of a greeting.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A frame costs at most half a window, so that one can travel while one is worked on.
    const PIECE: usize = (WINDOW / 2 - FRAME_COST) as usize;
    const { assert!(PIECE >= MAX_PAYLOAD) };
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let mut len = data.len().min(MAX_PAYLOAD);
        while contains_magic(&data[..len]) {
            len = magic_cut(&data[..len]);
        }
        let (piece, rest) = data.split_at(len);
        data = rest;
        Some(piece)
    })
}

fn magic_cut(data: &[u8]) -> usize {
    data.windows(MAGIC.len())
        .position(|window| window == MAGIC)
        .map_or(data.len(), |at| at + MAGIC.len() / 2)
}
