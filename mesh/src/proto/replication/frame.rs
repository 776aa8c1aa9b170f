//! Frames of the replication protocol (layout: `docs/sync.md`, "Frames").

use bytes::Bytes;
use rhizome_identity::{Hash, SpaceId};
use rhizome_memory::Lane;

use crate::proto::reconcile::{ReconcileError, Salt};

/// The longest frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;
/// The version this build speaks, and the oldest it still understands.
pub(super) const VERSION: u8 = 1;
pub(super) const OLDEST_VERSION: u8 = 1;
/// Most spaces in a hello.
pub(super) const MAX_SPACES: usize = 4096;
/// Most items in one batch.
pub(super) const MAX_BATCH_ITEMS: usize = 1024;
/// Most ids in one frame that names ids.
pub(super) const MAX_FRAME_IDS: usize = 1024;
/// What is left of a frame for reconciliation parts.
pub(super) const MAX_PARTS_BYTES: usize = MAX_FRAME_BYTES - 128;
/// What is left of a frame for items, each with four bytes of length.
pub(super) const MAX_ITEMS_BYTES: usize = MAX_FRAME_BYTES - 128;

const HELLO: u8 = 1;
const RANGES: u8 = 2;
const ITEMS: u8 = 3;
const ACK: u8 = 4;
const HAVE: u8 = 5;
const GET: u8 = 6;
const STORED: u8 = 7;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than [`MAX_FRAME_BYTES`].
    #[error("a frame of {0} bytes; at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(usize),
    /// The bytes end in the middle of something.
    #[error("the frame ends too early")]
    Truncated,
    /// There are bytes behind the end.
    #[error("bytes behind the end of the frame")]
    Trailing,
    /// A kind of frame that this version does not know.
    #[error("unknown kind of frame {0}")]
    UnknownKind(u8),
    /// More entries than allowed, or none.
    #[error("{0} entries in one frame")]
    BadCount(usize),
    /// A flag has a value that this version does not know.
    #[error("unknown flag {0}")]
    UnknownFlag(u8),
    /// The parts of a reconciliation message are malformed.
    #[error("malformed reconciliation message")]
    Parts(#[from] ReconcileError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Hello),
    Ranges(Ranges),
    Items {
        lane: Lane,
        batch: u64,
        items: Vec<Bytes>,
    },
    Ack {
        batch: u64,
        stored: Vec<bool>,
    },
    Have {
        lane: Lane,
        ids: Vec<Hash>,
    },
    Get {
        lane: Lane,
        ids: Vec<Hash>,
    },
    Stored {
        lane: Lane,
        ids: Vec<Hash>,
    },
}

/// Who is speaking, and which spaces it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u8,
    pub(super) oldest: u8,
    /// Drawn at start: a peer that restarted is told from one that repeats itself.
    pub(super) instance: u64,
    /// Counts the sender's hellos to this peer.
    pub(super) number: u32,
    /// The number of the last hello the sender has seen; 0 for none.
    pub(super) heard: u32,
    pub(super) spaces: Vec<SpaceId>,
}

/// A reconciliation message, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    pub(super) lane: Lane,
    pub(super) salt: Salt,
    pub(super) role: RangesRole,
    /// The question asked or answered; 0 when nothing is asked.
    pub(super) question: u32,
    /// Which piece of the answer this is, and of how many.
    pub(super) index: u8,
    pub(super) count: u8,
    /// Encoded parts.
    pub(super) parts: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangesRole {
    /// The first question of a session.
    Open = 0,
    /// A further question.
    Ask = 1,
    /// A piece of an answer.
    Answer = 2,
    /// Wants, to which no answer is due.
    Tell = 3,
}

impl Frame {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Hello(hello) => {
                out.extend([HELLO, hello.version, hello.oldest]);
                out.extend(hello.instance.to_le_bytes());
                out.extend(hello.number.to_le_bytes());
                out.extend(hello.heard.to_le_bytes());
                put_count(hello.spaces.len(), &mut out);
                for space in &hello.spaces {
                    out.extend(space.as_bytes());
                }
            }
            Self::Ranges(ranges) => {
                out.reserve(ranges.parts.len() + 32);
                out.push(RANGES);
                put_lane(ranges.lane, &mut out);
                out.extend(ranges.salt);
                out.push(ranges.role as u8);
                out.extend(ranges.question.to_le_bytes());
                out.extend([ranges.index, ranges.count]);
                out.extend_from_slice(&ranges.parts);
            }
            Self::Items { lane, batch, items } => {
                out.reserve(items.iter().map(|item| item.len() + 4).sum());
                out.push(ITEMS);
                put_lane(*lane, &mut out);
                out.extend(batch.to_le_bytes());
                put_count(items.len(), &mut out);
                for item in items {
                    put_count(item.len(), &mut out);
                    out.extend_from_slice(item);
                }
            }
            Self::Ack { batch, stored } => {
                out.push(ACK);
                out.extend(batch.to_le_bytes());
                put_count(stored.len(), &mut out);
                out.extend(stored.iter().map(|stored| u8::from(*stored)));
            }
            Self::Have { lane, ids } => put_ids(HAVE, *lane, ids, &mut out),
            Self::Get { lane, ids } => put_ids(GET, *lane, ids, &mut out),
            Self::Stored { lane, ids } => put_ids(STORED, *lane, ids, &mut out),
        }
        out.into()
    }

    /// Reads all of `bytes`; items share its memory.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(bytes.len()));
        }
        let mut reader = Reader(bytes.clone());
        let frame = match reader.byte()? {
            HELLO => Self::Hello(Hello {
                version: reader.byte()?,
                oldest: reader.byte()?,
                instance: u64::from_le_bytes(reader.array()?),
                number: u32::from_le_bytes(reader.array()?),
                heard: u32::from_le_bytes(reader.array()?),
                spaces: reader
                    .hashes(MAX_SPACES)?
                    .into_iter()
                    .map(|space| SpaceId::from_bytes(*space.as_bytes()))
                    .collect(),
            }),
            RANGES => Self::Ranges(Ranges {
                lane: reader.lane()?,
                salt: reader.array()?,
                role: match reader.byte()? {
                    0 => RangesRole::Open,
                    1 => RangesRole::Ask,
                    2 => RangesRole::Answer,
                    3 => RangesRole::Tell,
                    other => return Err(FrameError::UnknownFlag(other)),
                },
                question: u32::from_le_bytes(reader.array()?),
                index: reader.byte()?,
                count: reader.byte()?,
                parts: reader.rest(),
            }),
            ITEMS => {
                let lane = reader.lane()?;
                let batch = u64::from_le_bytes(reader.array()?);
                let count = reader.count(MAX_BATCH_ITEMS)?;
                // Each item takes four bytes at least, so a hostile count reserves little.
                let mut items = Vec::with_capacity(count.min(reader.0.len() / 4));
                for _ in 0..count {
                    let len = reader.count(MAX_FRAME_BYTES)?;
                    items.push(reader.take(len)?);
                }
                Self::Items { lane, batch, items }
            }
            ACK => {
                let batch = u64::from_le_bytes(reader.array()?);
                let count = reader.count(MAX_BATCH_ITEMS)?;
                let stored = reader.take(count)?;
                let stored = stored.iter().map(|flag| match flag {
                    0 => Ok(false),
                    1 => Ok(true),
                    other => Err(FrameError::UnknownFlag(*other)),
                });
                let stored = stored.collect::<Result<_, _>>()?;
                Self::Ack { batch, stored }
            }
            HAVE => Self::Have {
                lane: reader.lane()?,
                ids: reader.hashes(MAX_FRAME_IDS)?,
            },
            GET => Self::Get {
                lane: reader.lane()?,
                ids: reader.hashes(MAX_FRAME_IDS)?,
            },
            STORED => Self::Stored {
                lane: reader.lane()?,
                ids: reader.hashes(MAX_FRAME_IDS)?,
            },
            other => return Err(FrameError::UnknownKind(other)),
        };
        if reader.0.is_empty() {
            Ok(frame)
        } else {
            Err(FrameError::Trailing)
        }
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("counts are bounded by the frame");
    out.extend(count.to_le_bytes());
}

fn put_lane(lane: Lane, out: &mut Vec<u8>) {
    match lane {
        Lane::Authority => out.push(0),
        Lane::Space(space) => {
            out.push(1);
            out.extend(space.as_bytes());
        }
    }
}

fn put_ids(kind: u8, lane: Lane, ids: &[Hash], out: &mut Vec<u8>) {
    out.push(kind);
    put_lane(lane, out);
    put_count(ids.len(), out);
    for id in ids {
        out.extend(id.as_bytes());
    }
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, len: usize) -> Result<Bytes, FrameError> {
        if len > self.0.len() {
            return Err(FrameError::Truncated);
        }
        Ok(self.0.split_to(len))
    }

    fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let taken = self.take(N)?;
        Ok(taken[..].try_into().expect("as many bytes as asked for"))
    }

    fn byte(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn count(&mut self, max: usize) -> Result<usize, FrameError> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        if count > max {
            Err(FrameError::BadCount(count))
        } else {
            Ok(count)
        }
    }

    fn lane(&mut self) -> Result<Lane, FrameError> {
        match self.byte()? {
            0 => Ok(Lane::Authority),
            1 => Ok(Lane::Space(SpaceId::from_bytes(self.array()?))),
            other => Err(FrameError::UnknownFlag(other)),
        }
    }

    fn hashes(&mut self, max: usize) -> Result<Vec<Hash>, FrameError> {
        let count = self.count(max)?;
        let taken = self.take(32 * count)?;
        let hash = |bytes: &[u8]| Hash::from_bytes(bytes.try_into().expect("thirty-two bytes"));
        Ok(taken.chunks_exact(32).map(hash).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_ack_has_no_third_answer() {
        // Found by fuzzing: any byte but 1 was taken for "not durable".
        let ack = Frame::Ack {
            batch: 9,
            stored: vec![true, false],
        };
        let mut bytes = ack.encode().to_vec();
        *bytes.last_mut().unwrap() = 0x7d;
        let refused = Frame::decode(&bytes.into());
        assert_eq!(refused, Err(FrameError::UnknownFlag(0x7d)));
    }

    #[test]
    fn frames_survive_the_wire() {
        let space = SpaceId::from_bytes([3; 32]);
        let lane = Lane::Space(space);
        let ids = vec![Hash::of(b"a"), Hash::of(b"b")];
        let frames = [
            Frame::Hello(Hello {
                version: 1,
                oldest: 1,
                instance: 7,
                number: 2,
                heard: 1,
                spaces: vec![space],
            }),
            Frame::Ranges(Ranges {
                lane: Lane::Authority,
                salt: [9; 16],
                role: RangesRole::Answer,
                question: 4,
                index: 1,
                count: 2,
                parts: Bytes::from_static(b"parts"),
            }),
            Frame::Items {
                lane,
                batch: 5,
                items: vec![Bytes::from_static(b"x"), Bytes::new()],
            },
            Frame::Ack {
                batch: 5,
                stored: vec![true, false],
            },
            Frame::Have {
                lane,
                ids: ids.clone(),
            },
            Frame::Get {
                lane,
                ids: ids.clone(),
            },
            Frame::Stored { lane, ids },
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes).as_ref(), Ok(&frame));
            for end in 0..bytes.len() {
                let cut = Frame::decode(&bytes.slice(..end));
                // Only the parts of a reconciliation message have no length of their own.
                assert!(
                    cut.is_err() || matches!(cut, Ok(Frame::Ranges(_))),
                    "cut at {end}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_a_frame(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u8..9) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = Frame::decode(&bytes.into());
        }
    }
}
