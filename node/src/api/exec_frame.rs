//! The frames of a running command: `rhizome-exec/1`, spoken by both sides after the upgrade.
//!
//! ```text
//! +------+----------------+---------+
//! | kind | length, BE u32 | payload |
//! +------+----------------+---------+
//! ```
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 0 stdin | client | bytes for the command |
//! | 1 stdin end | client | none |
//! | 2 signal | client | signal number, BE i32 |
//! | 3 resize | client | rows and columns of the terminal, BE u16 each |
//! | 4 detach | client | none; the command is kept, and the connection ends |
//! | 16 stdout | daemon | bytes |
//! | 17 stderr | daemon | bytes |
//! | 19 attached | daemon | [`ExecAttached`] as JSON; the first frame of a command that is attached |
//! | 18 end | daemon | [`ExecEnd`] as JSON; the last frame |
//!
//! A connection that closes before frame 18 means that the daemon is gone.
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

use serde::de::DeserializeOwned;

use crate::api::types::sandbox::{ExecAttached, ExecEnd, Pty};

/// The protocol's name in the `Upgrade` header.
pub const PROTOCOL: &str = "rhizome-exec/1";

/// The largest payload of a frame, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

const HEADER_BYTES: usize = 5;
const STDIN: u8 = 0;
const STDIN_END: u8 = 1;
const SIGNAL: u8 = 2;
const RESIZE: u8 = 3;
const DETACH: u8 = 4;
const STDOUT: u8 = 16;
const STDERR: u8 = 17;
const END: u8 = 18;
const ATTACHED: u8 = 19;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes for the command's standard input.
    Stdin(Bytes),
    /// No more input.
    StdinEnd,
    /// A signal for the command.
    Signal(i32),
    /// The size of its terminal.
    Resize(Pty),
    /// It is to be kept, and the client goes.
    Detach,
    /// What an attached command has to show.
    Attached(ExecAttached),
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// How it ended.
    End(ExecEnd),
}

/// Why the other side cannot be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The connection failed.
    #[error("the exec connection failed")]
    Io(#[from] io::Error),
    /// A frame is larger than allowed.
    #[error("exec frame of {0} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")]
    TooLarge(usize),
    /// A frame's kind or payload makes no sense.
    #[error("malformed exec frame of kind {0}")]
    Malformed(u8),
}

/// Turns bytes into frames and back, for `tokio_util::codec::Framed`.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameCodec;

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = FrameError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if source.len() < HEADER_BYTES {
            return Ok(None);
        }
        let kind = source[0];
        let length = u32::from_be_bytes([source[1], source[2], source[3], source[4]]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if source.len() < HEADER_BYTES + length {
            source.reserve(HEADER_BYTES + length - source.len());
            return Ok(None);
        }
        source.advance(HEADER_BYTES);
        let payload = source.split_to(length).freeze();
        let frame = match kind {
            STDIN => Frame::Stdin(payload),
            STDIN_END if payload.is_empty() => Frame::StdinEnd,
            SIGNAL => {
                let number = payload[..]
                    .try_into()
                    .map_err(|_| FrameError::Malformed(kind))?;
                Frame::Signal(i32::from_be_bytes(number))
            }
            RESIZE => {
                let size: [u8; 4] = payload[..]
                    .try_into()
                    .map_err(|_| FrameError::Malformed(kind))?;
                Frame::Resize(Pty {
                    rows: u16::from_be_bytes([size[0], size[1]]),
                    columns: u16::from_be_bytes([size[2], size[3]]),
                })
            }
            DETACH if payload.is_empty() => Frame::Detach,
            STDOUT => Frame::Stdout(payload),
            STDERR => Frame::Stderr(payload),
            END => Frame::End(json(kind, &payload)?),
            ATTACHED => Frame::Attached(json(kind, &payload)?),
            other => return Err(FrameError::Malformed(other)),
        };
        Ok(Some(frame))
    }
}

fn json<T: DeserializeOwned>(kind: u8, payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|_| FrameError::Malformed(kind))
}

impl Encoder<Frame> for FrameCodec {
    type Error = FrameError;

    fn encode(&mut self, frame: Frame, into: &mut BytesMut) -> Result<(), FrameError> {
        let (kind, payload) = match frame {
            Frame::Stdin(bytes) => (STDIN, bytes),
            Frame::StdinEnd => (STDIN_END, Bytes::new()),
            Frame::Signal(number) => (SIGNAL, Bytes::copy_from_slice(&number.to_be_bytes())),
            Frame::Resize(Pty { rows, columns }) => {
                let size = [rows.to_be_bytes(), columns.to_be_bytes()].concat();
                (RESIZE, Bytes::from(size))
            }
            Frame::Detach => (DETACH, Bytes::new()),
            Frame::Stdout(bytes) => (STDOUT, bytes),
            Frame::Stderr(bytes) => (STDERR, bytes),
            Frame::End(end) => {
                let json = serde_json::to_vec(&end).map_err(|_| FrameError::Malformed(END))?;
                (END, Bytes::from(json))
            }
            Frame::Attached(attached) => {
                let json =
                    serde_json::to_vec(&attached).map_err(|_| FrameError::Malformed(ATTACHED))?;
                (ATTACHED, Bytes::from(json))
            }
        };
        // Streams longer than a frame are cut, so a caller may pass whatever it has read.
        let mut rest = payload;
        loop {
            let part = rest.split_to(rest.len().min(MAX_PAYLOAD_BYTES));
            if matches!(kind, END | ATTACHED) && !rest.is_empty() {
                return Err(FrameError::TooLarge(part.len() + rest.len()));
            }
            into.reserve(HEADER_BYTES + part.len());
            into.put_u8(kind);
            into.put_u32(u32::try_from(part.len()).expect("a part is at most 64 KiB"));
            into.put_slice(&part);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_round_trip_and_any_split() {
        let frames = vec![
            Frame::Stdin(Bytes::from_static(b"in")),
            Frame::StdinEnd,
            Frame::Signal(-15),
            Frame::Resize(Pty {
                rows: 24,
                columns: 300,
            }),
            Frame::Detach,
            Frame::Attached(ExecAttached {
                id: "0011223344556677".to_owned(),
                position: 5,
                gap: 2,
                pty: true,
                stdin: false,
            }),
            Frame::Stdout(Bytes::new()),
            Frame::Stderr(Bytes::from_static(b"err")),
            Frame::End(ExecEnd::Code(7)),
        ];
        let mut wire = BytesMut::new();
        for frame in &frames {
            FrameCodec.encode(frame.clone(), &mut wire).unwrap();
        }
        let mut source = BytesMut::new();
        let mut seen = Vec::new();
        for byte in wire {
            source.put_u8(byte);
            while let Some(frame) = FrameCodec.decode(&mut source).unwrap() {
                seen.push(frame);
            }
        }
        assert_eq!(seen, frames);
    }

    #[test]
    fn long_output_is_cut_into_frames() {
        let mut wire = BytesMut::new();
        let long = Bytes::from(vec![7; MAX_PAYLOAD_BYTES * 2 + 1]);
        FrameCodec
            .encode(Frame::Stdout(long.clone()), &mut wire)
            .unwrap();
        let mut joined = Vec::new();
        while let Some(frame) = FrameCodec.decode(&mut wire).unwrap() {
            let Frame::Stdout(part) = frame else {
                panic!("{frame:?}")
            };
            joined.extend_from_slice(&part);
        }
        assert_eq!(joined, long);
    }

    #[test]
    fn foreign_frames_are_refused() {
        let too_large = [0, 0xff, 0xff, 0xff, 0xff];
        let result = FrameCodec.decode(&mut BytesMut::from(&too_large[..]));
        assert!(matches!(result, Err(FrameError::TooLarge(_))));
        for (kind, payload) in [
            (1, vec![1]),
            (2, vec![1, 2]),
            (3, vec![0, 1, 2]),
            (4, vec![1]),
            (5, vec![]),
            (19, b"{}".to_vec()),
            (18, b"{".to_vec()),
        ] {
            let mut wire = BytesMut::from(&[kind][..]);
            let length = u32::try_from(payload.len()).unwrap();
            wire.extend_from_slice(&length.to_be_bytes());
            wire.extend_from_slice(&payload);
            let result = FrameCodec.decode(&mut wire);
            assert!(
                matches!(result, Err(FrameError::Malformed(k)) if k == kind),
                "{kind}"
            );
        }
    }
}
