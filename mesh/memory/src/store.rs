//! Segment files, which are the truth, and the index beside them, which is a convenience.
//!
//! Layout: `docs/wire.md`, section 5. Why it is this way: `docs/adr/0003-segments-are-the-truth.md`.
//!
//! - [`record`]: one record in a segment, and how to find the next one behind damage
//! - [`recover`]: what a segment still holds, and where a torn tail begins
//! - [`log`]: appends batches of records, one sync each, and reads them back
//! - [`redo`]: overwrites records in place
//! - [`index`]: where each record is, remembered across restarts and rebuilt when in doubt
//! - [`audit`]: reads segments that are no store, those of a backup

mod audit;
mod index;
mod log;
pub(crate) mod record;
mod recover;
mod redo;
#[cfg(test)]
mod tests;

use std::io;

#[cfg(test)]
pub(crate) use self::log::name as segment_name;
pub use self::{
    audit::{AuditError, StoreAudit, StoreCounts, StorePoint},
    log::LogError,
};
pub(crate) use self::{
    index::{Index, Reach, Row, RowKind},
    log::{Log, NewRecord, SEGMENT_BYTES, finish_overwriting, is_there},
    record::{Loc, RecordKind, StoreKey, Tip},
};

/// The file of a store that says where it is: one that says anything else is a copy, which publishes
/// nothing before it was compared with a peer.
pub const PLACE: &str = "replica.place";

/// What opening a store found, beyond what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// How many segment files there are.
    pub segments: u32,
    /// How many records were read to bring the index up to date.
    pub replayed: u64,
    /// Whether the index was missing, damaged or not of these segments, and was built anew.
    pub index_rebuilt: bool,
    /// Bytes of an unfinished write cut from the end of the last segment. Nothing acknowledged was
    /// in them.
    pub torn_bytes: u64,
    /// The damaged regions that were skipped. What was in them is fetched from peers again.
    pub damage: Vec<Damage>,
    /// Fragments of this node that are known to have been in a damaged region.
    pub lost: Vec<crate::FragmentId>,
}

impl RecoveryReport {
    /// Returns whether nothing at all was wrong.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.torn_bytes == 0 && self.damage.is_empty() && self.lost.is_empty()
    }
}

/// A region of a segment that holds no valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The segment's number.
    pub segment: u32,
    /// Where the region begins, in bytes.
    pub from: u64,
    /// Where the next valid record begins, or the segment ends.
    pub to: u64,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("cannot use `{file}`")]
    Io {
        /// The file, relative to the store.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The segments were written with another node's key.
    #[error("segment `{file}` was written by node `{found}`, not by `{expected}`")]
    OtherNode {
        /// The segment.
        file: String,
        /// The node that wrote it.
        found: rhizome_identity::NodeId,
        /// The node that opens it.
        expected: rhizome_identity::NodeId,
    },
    /// The segment was written by a later version.
    #[error(
        "segment `{file}` has format {version}; this node reads format {}",
        record::FORMAT
    )]
    Format {
        /// The segment.
        file: String,
        /// The format it has.
        version: u8,
    },
}

impl StoreError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space on this disk".into()
            }
            Self::Io { .. } => "check the permissions and the health of this disk".into(),
            Self::OtherNode { .. } => "open it with the node key it was written with".into(),
            Self::Format { .. } => {
                "use the version of the program that wrote it, or a later one".into()
            }
        }
    }
}
