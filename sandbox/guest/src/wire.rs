//! Frames and messages of the guest channel.
//!
//! A frame is `u32 length | u8 kind | u32 stream | payload`, integers little-endian, the payload
//! at most [`MAX_PAYLOAD`] bytes. [`FrameDecoder`] finds the frames in a byte stream, also after
//! one side was replaced in mid-frame; [`Payload`] is one message inside a frame.
//!
//! Nothing here trusts its input: every length is checked against what is there before anything
//! is allocated for it.

mod clip;
mod codec;
mod exec_id;
mod frame;
mod message;

pub use clip::clip;
pub use codec::{Decoder, Encoder, WireError};
pub use exec_id::{ExecId, ParseExecIdError};
pub use frame::{Frame, FrameDecoder, Kind, contains_magic};
pub use message::{
    Act, Attach, Attached, Connect, Credit, Entry, Exec, ExecEntry, ExecSignal, Exit, Facts,
    Failure, FailureCode, FileAct, FileEnd, FileKind, FileRead, FileWrite, Hello, Info, Keep,
    MAX_VOLUME_MESSAGE, MAX_VOLUME_READ, MakeDir, NetOpen, PathOnly, Payload, PtySize, Quiesce,
    Quiesced, Ready, Remove, Reseed, Resumed, SetTime, Signal, Stat, VolumeAnswer, VolumeAsk,
    VolumeClose, VolumeEntry, VolumeFramer, VolumeKind, VolumeOpen, VolumeReply, VolumeScan, Watch,
    WatchEvent, WatchOp,
};

/// Version of this protocol; both sides must have the same.
pub const PROTOCOL_VERSION: u16 = 2;
/// In a guest's greeting: it takes [`Kind::FileAct`] and [`Kind::WatchMoves`]. A guest that runs
/// on from a snapshot of before has an agent without them.
pub const FLAG_ACTS: u32 = 1;
/// In a guest's greeting: [`Resumed`] may carry the machine's number.
pub const FLAG_MACHINE_ID: u32 = 2;
/// Largest payload of a frame, in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// Bytes of a frame before its payload.
pub const HEADER_LEN: usize = 9;
/// First bytes of a HELLO. Senders cut their data so that it appears nowhere else.
pub const MAGIC: [u8; 16] = *b"\xf7RHZ\x00ch\xffannel\x00\xf7\x0a";
/// Credit that each direction of a stream has when it opens, in bytes of [`cost`].
pub const WINDOW: u32 = 256 * 1024;
/// Credit that a direction may hold at most.
pub const MAX_WINDOW: u32 = 4 * 1024 * 1024;
/// What a data frame costs beside its payload, so that tiny frames have a bound too.
pub const FRAME_COST: u32 = 64;
/// TCP port of the door inside the guest.
pub const DOOR_PORT: u16 = 4580;
/// Name of the virtio port.
pub const PORT_NAME: &str = "rhizome";

/// Returns the credit that a data frame with `len` bytes of payload uses up.
pub fn cost(len: usize) -> u32 {
    u32::try_from(len.min(MAX_PAYLOAD)).expect("a payload length fits") + FRAME_COST
}

#[cfg(test)]
mod tests;
