//! What the index says about one record.

use rhizome_identity::{AgentId, Hash, SpaceId};

use crate::{
    Fragment, FragmentId, Kind,
    store::{Loc, RecordKind},
};

/// What the index says about one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) arrival: u64,
    pub(crate) loc: Loc,
    /// The id of a fragment or an authority record, or the hash of a body.
    pub(crate) id: Hash,
    pub(crate) kind: RowKind,
}

/// What the record is, with what has to be known of it before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowKind {
    Fragment {
        space: SpaceId,
        author: AgentId,
        seq: u64,
        prev: Option<FragmentId>,
        /// The hash of the body if it is a blob.
        blob: Option<Hash>,
        /// Whether it was written on this node.
        own: bool,
        /// Whether it is a redaction, or came with one: opening reads it.
        redacts: bool,
    },
    Authority,
    Body,
    Evidence {
        space: SpaceId,
        author: AgentId,
        /// The fragment here that it contradicts.
        other: FragmentId,
    },
}

impl RowKind {
    /// Returns whether the record is looked up by its id.
    pub(crate) fn has_id(&self) -> bool {
        matches!(self, Self::Fragment { .. } | Self::Authority)
    }
}

impl Row {
    /// Describes a stored fragment.
    pub(crate) fn of_fragment(arrival: u64, loc: Loc, fragment: &Fragment, own: bool) -> Self {
        let header = &fragment.header;
        let kind = RowKind::Fragment {
            space: header.space,
            author: header.author,
            seq: header.seq,
            prev: header.prev,
            blob: header.body_is_blob().then_some(header.body_hash),
            own,
            redacts: header.kind == Kind::Redaction || fragment.redaction.is_some(),
        };
        Self {
            arrival,
            loc,
            id: fragment.id.into(),
            kind,
        }
    }

    /// Returns the row's bytes; the arrival is the key and not in them.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(192);
        bytes.push(self.record_kind() as u8);
        bytes.extend_from_slice(&self.loc.segment.to_be_bytes());
        bytes.extend_from_slice(&self.loc.offset.to_be_bytes());
        bytes.extend_from_slice(&self.loc.len.to_be_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        match &self.kind {
            RowKind::Fragment {
                space,
                author,
                seq,
                prev,
                blob,
                own,
                redacts,
            } => {
                bytes.push(u8::from(*own) | u8::from(*redacts) << 1);
                bytes.extend_from_slice(space.as_bytes());
                bytes.extend_from_slice(author.as_bytes());
                bytes.extend_from_slice(&seq.to_be_bytes());
                put_option(&mut bytes, prev.as_ref().map(FragmentId::as_bytes));
                put_option(&mut bytes, blob.as_ref().map(Hash::as_bytes));
            }
            RowKind::Evidence {
                space,
                author,
                other,
            } => {
                bytes.extend_from_slice(space.as_bytes());
                bytes.extend_from_slice(author.as_bytes());
                bytes.extend_from_slice(other.as_bytes());
            }
            RowKind::Authority | RowKind::Body => {}
        }
        bytes
    }

    /// Reads the row under `arrival`; `None` if it is damaged.
    pub(crate) fn read(arrival: u64, bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let number = take(&mut rest)?;
        let [number] = number;
        let segment = u32::from_be_bytes(take(&mut rest)?);
        let offset = u64::from_be_bytes(take(&mut rest)?);
        let len = u32::from_be_bytes(take(&mut rest)?);
        let id = Hash::from_bytes(take(&mut rest)?);
        let kind = match number {
            1 => {
                let [marks] = take(&mut rest)?;
                RowKind::Fragment {
                    own: marks & 1 != 0,
                    redacts: marks & 2 != 0,
                    space: SpaceId::from_bytes(take(&mut rest)?),
                    author: AgentId::from_bytes(take(&mut rest)?),
                    seq: u64::from_be_bytes(take(&mut rest)?),
                    prev: take_option(&mut rest)?.map(FragmentId::from_bytes),
                    blob: take_option(&mut rest)?.map(Hash::from_bytes),
                }
            }
            2 => RowKind::Authority,
            3 => RowKind::Body,
            4 => RowKind::Evidence {
                space: SpaceId::from_bytes(take(&mut rest)?),
                author: AgentId::from_bytes(take(&mut rest)?),
                other: FragmentId::from_bytes(take(&mut rest)?),
            },
            _ => return None,
        };
        let row = Self {
            arrival,
            loc: Loc {
                segment,
                offset,
                len,
            },
            id,
            kind,
        };
        rest.is_empty().then_some(row)
    }

    fn record_kind(&self) -> RecordKind {
        match self.kind {
            RowKind::Fragment { .. } => RecordKind::Fragment,
            RowKind::Authority => RecordKind::Authority,
            RowKind::Body => RecordKind::Body,
            RowKind::Evidence { .. } => RecordKind::Evidence,
        }
    }
}

fn put_option(bytes: &mut Vec<u8>, value: Option<&[u8; 32]>) {
    bytes.push(u8::from(value.is_some()));
    bytes.extend_from_slice(value.map_or(&[], |value| value));
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn take_option(rest: &mut &[u8]) -> Option<Option<[u8; 32]>> {
    match take::<1>(rest)? {
        [0] => Some(None),
        [1] => take(rest).map(Some),
        _ => None,
    }
}
