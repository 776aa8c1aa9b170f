//! One record of a segment: a head of 44 bytes and a payload.
//!
//! The checksum is BLAKE3 under a key that only this node knows, cut to 16 bytes, and so are the
//! four bytes that mark a record's start. A CRC would catch a flipped bit as well, but peers choose
//! what is in a payload: one of them could write a whole record into a body, with its CRC, and wait
//! for damage in front of it to have it read as ours. Under a key that is not possible, and looking
//! for the next start costs one comparison per byte even in a body made to slow it down.

use rhizome_identity::{AgentId, NodeId, NodeKey, SpaceId};

use crate::FragmentId;

/// The format of a segment.
pub(crate) const FORMAT: u8 = 1;
/// The longest payload, in bytes.
pub(crate) const MAX_PAYLOAD: usize = 128 * 1024;
/// The length of a record's head, in bytes.
pub(crate) const HEAD: usize = 44;
/// The length of a segment's head, in bytes.
pub(crate) const SEGMENT_HEAD: usize = 64;
const SEGMENT_MAGIC: &[u8; 7] = b"RHZSEG\n";
const CHECKED: usize = 28;
/// Set on the last record of a batch.
const LAST: u8 = 1;
/// The length of a checksum, in bytes.
pub(super) const CHECKSUM: usize = 16;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A fragment in its wire form.
    Fragment = 1,
    /// An authority record, signed.
    Authority = 2,
    /// The hash of a body that has arrived in its file.
    Body = 3,
    /// A fragment that contradicts one stored before: proof that its author signed two histories.
    Evidence = 4,
    /// The batch before this is durable; names where the chains written here stood then.
    Commit = 5,
    /// Takes the place of a commit record that the power took.
    Filler = 6,
    /// A fragment whose body was taken from it, in a record as long as before.
    Stripped = 7,
}

impl RecordKind {
    fn from_number(number: u8) -> Option<Self> {
        [
            Self::Fragment,
            Self::Authority,
            Self::Body,
            Self::Evidence,
            Self::Commit,
            Self::Filler,
            Self::Stripped,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Loc {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Length of the payload, in bytes.
    pub(crate) len: u32,
}

/// The fields of a record's head that mean something to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: RecordKind,
    pub(crate) len: u32,
    /// Position within its batch.
    pub(crate) index: u16,
    /// Whether it is the last of its batch.
    pub(crate) last: bool,
    /// The batch it was synced with; a commit record carries the batch it confirms.
    pub(crate) batch: u64,
    /// The order of arrival on this node; 0 for a commit record and what takes its place.
    pub(crate) arrival: u64,
}

/// What marks and checks the records of one node.
#[derive(Clone)]
pub(crate) struct StoreKey {
    node: NodeId,
    checksum: [u8; 32],
    magic: [u8; 4],
}

impl std::fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreKey(of {})", self.node.fmt_short())
    }
}

impl StoreKey {
    pub(crate) fn new(node: &NodeKey) -> Self {
        let secret = node.secret_bytes();
        let magic = blake3::derive_key("rhizome segment magic 1", secret.as_slice());
        Self {
            node: node.id(),
            checksum: blake3::derive_key("rhizome segment checksum 1", secret.as_slice()),
            magic: [magic[0], magic[1], magic[2], magic[3]],
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Appends a record to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>, head: Head, payload: &[u8]) {
        debug_assert_eq!(payload.len(), head.len as usize);
        let start = out.len();
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&head.len.to_be_bytes());
        out.push(head.kind as u8);
        out.push(if head.last { LAST } else { 0 });
        out.extend_from_slice(&head.index.to_be_bytes());
        out.extend_from_slice(&head.batch.to_be_bytes());
        out.extend_from_slice(&head.arrival.to_be_bytes());
        let checksum = self.checksum(&out[start..start + CHECKED], payload);
        out.extend_from_slice(&checksum);
        out.extend_from_slice(payload);
    }

    /// Reads the record at the start of `bytes`; `None` if there is no valid one.
    pub(crate) fn read<'a>(&self, bytes: &'a [u8]) -> Option<(Head, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        if head[..4] != self.magic {
            return None;
        }
        let number = |range: std::ops::Range<usize>| {
            head[range]
                .iter()
                .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let len = u32::try_from(number(4..8)).ok()?;
        if len as usize > MAX_PAYLOAD || head[9] & !LAST != 0 {
            return None;
        }
        let payload = rest.get(..len as usize)?;
        if head[CHECKED..] != self.checksum(&head[..CHECKED], payload) {
            return None;
        }
        let head = Head {
            kind: RecordKind::from_number(head[8])?,
            len,
            index: u16::try_from(number(10..12)).ok()?,
            last: head[9] == LAST,
            batch: number(12..20),
            arrival: number(20..28),
        };
        Some((head, payload))
    }

    /// Returns where the next valid record begins in `bytes`, from `from` on.
    pub(crate) fn resync(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let rest = bytes.get(from..)?;
        rest.windows(self.magic.len())
            .enumerate()
            .filter(|(_, window)| *window == self.magic)
            .map(|(at, _)| from + at)
            .find(|at| self.read(&bytes[*at..]).is_some())
    }

    /// Returns the head of a segment.
    pub(crate) fn segment_head(&self, number: u32, format: u8) -> [u8; SEGMENT_HEAD] {
        let mut head = [0; SEGMENT_HEAD];
        head[..7].copy_from_slice(SEGMENT_MAGIC);
        head[7] = format;
        head[8..12].copy_from_slice(&number.to_be_bytes());
        head[12..44].copy_from_slice(self.node.as_bytes());
        let checksum = self.checksum(&head[..44], &[]);
        head[44..60].copy_from_slice(&checksum);
        head
    }

    /// Reads the head of a segment.
    pub(crate) fn read_segment_head(&self, bytes: &[u8], number: u32) -> SegmentHead {
        let Some(head) = bytes.get(..SEGMENT_HEAD) else {
            return SegmentHead::Damaged;
        };
        let format = head[7];
        if head == self.segment_head(number, format) {
            return if format == FORMAT {
                SegmentHead::Ours
            } else {
                SegmentHead::Format(format)
            };
        }
        // Another node's check cannot be made, but what it marks cannot be read as ours either.
        if head[..7] == *SEGMENT_MAGIC && head[8..12] == number.to_be_bytes() {
            let node = NodeId::from_bytes(head[12..44].try_into().expect("32 bytes"));
            if node != self.node && self.resync(bytes, SEGMENT_HEAD).is_none() {
                return SegmentHead::OtherNode(node);
            }
        }
        SegmentHead::Damaged
    }

    pub(super) fn checksum(&self, head: &[u8], payload: &[u8]) -> [u8; CHECKSUM] {
        let mut hasher = blake3::Hasher::new_keyed(&self.checksum);
        hasher.update(head);
        hasher.update(payload);
        let hash = hasher.finalize();
        hash.as_bytes()[..CHECKSUM]
            .try_into()
            .expect("a hash is longer than that")
    }
}

/// What the head of a segment says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SegmentHead {
    Ours,
    Damaged,
    OtherNode(NodeId),
    Format(u8),
}

/// Where a chain written on this node stood at the end of a batch.
///
/// It stands in the commit record, away from the fragment it names: damage to one of them leaves
/// the other, so that a position is not given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tip {
    pub(crate) space: SpaceId,
    pub(crate) author: AgentId,
    pub(crate) seq: u64,
    pub(crate) id: FragmentId,
    pub(crate) prev: Option<FragmentId>,
}

impl Tip {
    const LEN: usize = 32 + 32 + 8 + 32 + 32;
    /// How many tips fit one commit record.
    pub(crate) const MAX: usize = MAX_PAYLOAD / Self::LEN;

    pub(crate) fn write_all(tips: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(tips.len() * Self::LEN);
        for tip in tips {
            bytes.extend_from_slice(tip.space.as_bytes());
            bytes.extend_from_slice(tip.author.as_bytes());
            bytes.extend_from_slice(&tip.seq.to_be_bytes());
            bytes.extend_from_slice(tip.id.as_bytes());
            // Only the first of a chain has no predecessor, and its position says so.
            bytes.extend_from_slice(tip.prev.unwrap_or(tip.id).as_bytes());
        }
        bytes
    }

    pub(crate) fn read_all(bytes: &[u8]) -> Vec<Self> {
        let id = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).expect("32 bytes");
        bytes
            .chunks_exact(Self::LEN)
            .map(|tip| {
                let seq = u64::from_be_bytes(tip[64..72].try_into().expect("8 bytes"));
                Self {
                    space: SpaceId::from_bytes(id(&tip[..32])),
                    author: AgentId::from_bytes(id(&tip[32..64])),
                    seq,
                    id: FragmentId::from_bytes(id(&tip[72..104])),
                    prev: (seq > 0).then(|| FragmentId::from_bytes(id(&tip[104..136]))),
                }
            })
            .collect()
    }
}
