//! Reading segments that are nobody's store: those of a backup, one after another.
//!
//! Nothing is written and nothing is kept but the authority log, so a store of any size is looked
//! at in the memory of one segment.

use bytes::Bytes;
use rhizome_identity::{MeshId, NodeId, NodeKey, RecordLog, SignedRecord};
use serde::{Deserialize, Serialize};

use super::{
    StoreError,
    log::name,
    record::{RecordKind, SEGMENT_HEAD, SegmentHead, StoreKey},
    recover,
};
use crate::{Fragment, check_signatures};

/// How many fragments are verified at once.
const BATCH: usize = 256;

/// What segments hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreCounts {
    /// Segment files.
    pub segments: u64,
    /// Fragments, those included that count nowhere.
    pub fragments: u64,
    /// Authority records.
    pub records: u64,
    /// Proofs of authors with two histories.
    pub evidence: u64,
    /// Regions that hold no valid record: the store was damaged there.
    pub damaged: u64,
    /// The number of the last arrival.
    pub last_arrival: u64,
}

/// What of a store belongs to one moment: all that was acknowledged before is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorePoint {
    /// The segments in their order, relative to the store, each with the length that counts.
    pub segments: Vec<(String, u64)>,
    /// The bodies that have files of their own, named by their hashes.
    pub bodies: Vec<String>,
}

/// Reads segments in their order.
#[derive(Debug)]
pub struct StoreAudit {
    key: StoreKey,
    node: NodeId,
    verifies: bool,
    last: u32,
    batch: u64,
    counts: StoreCounts,
    records: RecordLog,
}

/// Why segments are not those of a sound store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The file's name is not that of the segment that has to follow.
    #[error("`{file}` does not follow upon segment {last}")]
    Order {
        /// The file.
        file: String,
        /// The number of the one before it.
        last: u32,
    },
    /// It is another node's, or of another format.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What a record holds is not what it has to be.
    #[error("arrival {arrival} in `{file}` is no {what} that its author signed")]
    Signature {
        /// The segment.
        file: String,
        /// Which record.
        arrival: u64,
        /// What it was to be.
        what: &'static str,
    },
}

impl StoreAudit {
    /// Begins to read the segments of the node with this key; `verifies` says whether every
    /// signature is checked as well as every checksum.
    #[must_use]
    pub fn new(node: &NodeKey, verifies: bool) -> Self {
        Self {
            key: StoreKey::new(node),
            node: node.id(),
            verifies,
            last: 0,
            batch: 0,
            counts: StoreCounts::default(),
            records: RecordLog::default(),
        }
    }

    /// Reads the next segment; `file` is its name relative to the store.
    ///
    /// # Errors
    /// [`AuditError`]. Damage is none: it is counted.
    pub fn segment(&mut self, file: &str, bytes: &[u8]) -> Result<(), AuditError> {
        let number = number_of(file).filter(|number| *number > self.last);
        let number = number.ok_or_else(|| AuditError::Order {
            file: file.to_owned(),
            last: self.last,
        })?;
        self.last = number;
        self.counts.segments += 1;
        match self.key.read_segment_head(bytes, number) {
            SegmentHead::Ours => {}
            SegmentHead::OtherNode(found) => {
                let (file, expected) = (file.to_owned(), self.node);
                let error = StoreError::OtherNode {
                    file,
                    found,
                    expected,
                };
                return Err(error.into());
            }
            SegmentHead::Format(version) => {
                let file = file.to_owned();
                return Err(StoreError::Format { file, version }.into());
            }
            SegmentHead::Damaged => self.counts.damaged += 1,
        }
        let from = SEGMENT_HEAD as u64;
        let scan = recover::scan(&self.key, number, bytes, from, self.batch, false);
        self.batch = scan.batch;
        self.counts.damaged += scan.damage.len() as u64;
        let mut waiting = Vec::new();
        for found in &scan.records {
            let arrival = found.head.arrival;
            self.counts.last_arrival = self.counts.last_arrival.max(arrival);
            let payload = &bytes[found.payload()];
            match found.head.kind {
                kind @ (RecordKind::Fragment | RecordKind::Stripped) => {
                    self.counts.fragments += 1;
                    waiting.push((arrival, kind, payload));
                }
                RecordKind::Authority => {
                    self.counts.records += 1;
                    self.record(file, arrival, payload)?;
                }
                RecordKind::Evidence => self.counts.evidence += 1,
                RecordKind::Body | RecordKind::Commit | RecordKind::Filler => {}
            }
            if waiting.len() == BATCH {
                self.verify(file, &waiting)?;
                waiting.clear();
            }
        }
        self.verify(file, &waiting)
    }

    /// Returns what was read so far.
    #[must_use]
    pub fn counts(&self) -> &StoreCounts {
        &self.counts
    }

    /// Returns the mesh, its name and how many members it has, by the records that were read.
    #[must_use]
    pub fn mesh(&self) -> Option<(MeshId, String, usize)> {
        let authority = self.records.resolve();
        let mesh = authority.mesh()?;
        Some((
            mesh,
            authority.name().to_owned(),
            authority.members().count(),
        ))
    }

    fn record(&mut self, file: &str, arrival: u64, payload: &[u8]) -> Result<(), AuditError> {
        let record = SignedRecord::parse(payload)
            .ok()
            .and_then(|record| self.records.insert(record).ok());
        match record {
            Some(_) => Ok(()),
            None => Err(AuditError::Signature {
                file: file.to_owned(),
                arrival,
                what: "authority record",
            }),
        }
    }

    fn verify(&self, file: &str, waiting: &[(u64, RecordKind, &[u8])]) -> Result<(), AuditError> {
        if !self.verifies {
            return Ok(());
        }
        let bad = |arrival| AuditError::Signature {
            file: file.to_owned(),
            arrival,
            what: "fragment",
        };
        let mut fragments = Vec::with_capacity(waiting.len());
        for (arrival, kind, payload) in waiting {
            let payload = Bytes::copy_from_slice(payload);
            let fragment = match kind {
                RecordKind::Stripped => Fragment::decode_stripped(&payload),
                _ => Fragment::decode(&payload),
            };
            fragments.push(fragment.map_err(|_| bad(*arrival))?);
        }
        let valid = check_signatures(&fragments);
        let culprit = valid.iter().position(|valid| !valid);
        culprit.map_or(Ok(()), |at| Err(bad(waiting[at].0)))
    }
}

/// Returns the number of the segment that `file` names, if it is spelled as one is.
fn number_of(file: &str) -> Option<u32> {
    let stem = file.rsplit('/').next()?.strip_suffix(".seg")?;
    let number = stem.parse().ok()?;
    (name(number) == file).then_some(number)
}
