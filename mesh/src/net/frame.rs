//! Length-prefixed frames on a QUIC stream.
//!
//! `length: u32 big-endian | kind: u8 | payload`, where `length` counts kind and payload. A
//! length above the limit ends the session before a byte of the frame is read.

use bytes::{Bytes, BytesMut};
use iroh::endpoint::{ReadExactError, RecvStream, SendStream, WriteError};

/// The largest frame of any protocol of ours: a reconciliation frame of 256 KiB and its kind.
pub(crate) const MAX_FRAME: usize = 256 * 1024 + 1;

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FrameError {
    /// The stream ended between two frames.
    #[error("the stream has ended")]
    Ended,
    /// The stream ended or failed inside a frame.
    #[error("the stream broke off")]
    Broken(#[source] ReadExactError),
    /// The frame is empty or longer than allowed.
    #[error("a frame of {length} bytes; at most {limit} are allowed")]
    Length { length: usize, limit: usize },
    /// The stream took no more bytes.
    #[error("cannot write")]
    Write(#[from] WriteError),
    /// The other side did not send in time.
    #[error("no frame in time")]
    TimedOut,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) payload: Bytes,
}

/// Reads one frame of at most `limit` bytes.
///
/// # Cancel safety
/// None: a dropped future may have eaten part of a frame.
pub(crate) async fn read(stream: &mut RecvStream, limit: usize) -> Result<Frame, FrameError> {
    let mut prefix = [0; 4];
    match stream.read_exact(&mut prefix).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Err(FrameError::Ended),
        Err(error) => return Err(FrameError::Broken(error)),
    }
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if length == 0 || length > limit {
        return Err(FrameError::Length { length, limit });
    }
    // Grow as bytes arrive, so that a length alone reserves no memory.
    let mut frame = BytesMut::with_capacity(length.min(16 * 1024));
    while frame.len() < length {
        let start = frame.len();
        let step = (length - start).min(64 * 1024);
        frame.resize(start + step, 0);
        stream
            .read_exact(&mut frame[start..])
            .await
            .map_err(FrameError::Broken)?;
    }
    let mut payload = frame.freeze();
    let kind = payload.split_to(1)[0];
    Ok(Frame { kind, payload })
}

/// Writes one frame.
///
/// # Cancel safety
/// None: a dropped future may have written part of a frame.
pub(crate) async fn write(
    stream: &mut SendStream,
    kind: u8,
    payload: &Bytes,
) -> Result<(), FrameError> {
    let length = u32::try_from(payload.len() + 1).expect("frames are far below 4 GiB");
    let mut head = BytesMut::with_capacity(5);
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&[kind]);
    // Both parts in one call, so that a small frame leaves in one packet.
    let mut parts = [head.freeze(), payload.clone()];
    stream.write_all_chunks(&mut parts).await?;
    Ok(())
}
