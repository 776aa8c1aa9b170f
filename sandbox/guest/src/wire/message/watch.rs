//! Changes in a directory of the guest.

use super::{MAX_PATH, Payload, files::path};
use crate::wire::{Decoder, Encoder, WireError};

/// A directory to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Whether the directories in it are watched too, now and when they come.
    pub recursive: bool,
}

impl Payload for Watch {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u8(self.recursive.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            recursive: from.flag("recursive")?,
        })
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchOp {
    /// It is new here, made or moved.
    Created,
    /// Its contents changed; said when a writer closes it, or with its first write.
    Changed,
    /// Its mode, owner or times changed.
    Touched,
    /// It is gone from here, removed or moved away.
    Removed,
    /// Some changes are not told: look again.
    Overflow,
    /// It was moved away; told of a `WatchMoves` alone, others hear that it was removed.
    Moved,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub op: WatchOp,
    /// Whether to a directory.
    pub directory: bool,
    /// To what, below the directory that is watched; empty for that itself.
    pub path: Vec<u8>,
}

impl Payload for WatchEvent {
    fn encode(&self, out: &mut Encoder) {
        out.u8(match self.op {
            WatchOp::Created => 1,
            WatchOp::Changed => 2,
            WatchOp::Touched => 3,
            WatchOp::Removed => 4,
            WatchOp::Overflow => 5,
            WatchOp::Moved => 6,
        });
        out.u8(self.directory.into());
        out.bytes(&self.path);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let op = match from.u8()? {
            1 => WatchOp::Created,
            2 => WatchOp::Changed,
            3 => WatchOp::Touched,
            4 => WatchOp::Removed,
            5 => WatchOp::Overflow,
            6 => WatchOp::Moved,
            _ => return Err(WireError::Invalid { field: "op" }),
        };
        Ok(Self {
            op,
            directory: from.flag("directory")?,
            path: from.os_bytes(MAX_PATH, "path")?,
        })
    }
}

impl WatchEvent {
    /// Reads all changes of one WATCH_EVENTS frame.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut from = Decoder::new(payload);
        let mut events = Vec::new();
        while !from.is_empty() {
            events.push(Self::decode(&mut from)?);
        }
        Ok(events)
    }
}
