//! What a segment still holds, and where a torn tail begins.
//!
//! A batch is written only after the one before it was synced. So any valid record of a batch, or
//! a commit record, proves that every earlier batch was durable: damage there is damage, and is
//! skipped. Only the last batch of the last segment may be unfinished; if it is, what follows its
//! first bad byte was never acknowledged and is cut off, even if valid records of the same batch
//! lie behind it (a disk may write pages in any order).

use super::{
    Damage,
    record::{HEAD, Head, Loc, RecordKind, SEGMENT_HEAD, StoreKey},
};

/// A valid record found in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) loc: Loc,
    pub(crate) head: Head,
}

impl Found {
    /// Returns where the payload lies in the segment.
    pub(crate) fn payload(&self) -> std::ops::Range<usize> {
        let start = usize::try_from(self.loc.offset).expect("a segment fits memory") + HEAD;
        start..start + self.loc.len as usize
    }
}

/// What a segment holds.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<Found>,
    pub(crate) damage: Vec<Damage>,
    /// Where the segment ends once its torn tail is cut.
    pub(crate) end: u64,
    /// Bytes cut as torn.
    pub(crate) torn: u64,
    /// Where the last batch begins if nothing proves that it was synced.
    pub(crate) unconfirmed_from: Option<u64>,
    /// Where a commit record was to be and is not, with the batch it was to confirm; to be written
    /// again, or the region would look like damage from the next batch on.
    pub(crate) unwritten: Option<(u64, u64, u64)>,
    /// The greatest batch number seen.
    pub(crate) batch: u64,
}

/// Reads the records of a segment from `from` on.
///
/// `batch` is the greatest batch number known before; `is_last` says whether the segment may have
/// a torn tail.
pub(crate) fn scan(
    key: &StoreKey,
    number: u32,
    bytes: &[u8],
    from: u64,
    batch: u64,
    is_last: bool,
) -> Scan {
    let mut at = usize::try_from(from)
        .expect("a segment fits memory")
        .max(SEGMENT_HEAD);
    let mut records = Vec::new();
    let mut holes: Vec<(usize, usize, usize)> = Vec::new();
    while at < bytes.len() {
        if let Some((head, payload)) = key.read(&bytes[at..]) {
            let len = u32::try_from(payload.len()).expect("a payload is bounded");
            records.push(Found {
                loc: Loc {
                    segment: number,
                    offset: at as u64,
                    len,
                },
                head,
            });
            at += HEAD + payload.len();
        } else {
            let next = key.resync(bytes, at + 1).unwrap_or(bytes.len());
            holes.push((records.len(), at, next));
            at = next;
        }
    }
    let mut scan = Scan {
        end: bytes.len() as u64,
        batch,
        ..Scan::default()
    };
    let confirmed = confirmed(&records, batch);
    for (before, from, to) in holes {
        let (prev, next) = (
            before.checked_sub(1).map(|at| &records[at]),
            records.get(before),
        );
        if is_last && is_commit_alone(prev, next, confirmed) {
            let batch = next.map_or(0, |next| next.head.batch - 1);
            scan.unwritten = Some((from as u64, to as u64, batch));
            continue;
        }
        if is_last && is_torn(next, confirmed) {
            scan.end = from as u64;
            scan.torn = (bytes.len() - from) as u64;
            records.truncate(before);
            break;
        }
        scan.damage.push(Damage {
            segment: number,
            from: from as u64,
            to: to as u64,
        });
    }
    for found in &records {
        scan.batch = scan.batch.max(found.head.batch);
    }
    if is_last {
        let unconfirmed =
            |found: &&Found| found.head.kind != RecordKind::Commit && found.head.batch > confirmed;
        scan.unconfirmed_from = records
            .iter()
            .find(unconfirmed)
            .map(|found| found.loc.offset);
    }
    scan.records = records;
    scan
}

/// Returns the greatest batch that is proven to have been synced.
fn confirmed(records: &[Found], batch: u64) -> u64 {
    let proven = |found: &Found| match found.head.kind {
        RecordKind::Commit => found.head.batch,
        _ => found.head.batch.saturating_sub(1),
    };
    records.iter().map(proven).max().unwrap_or(0).max(batch)
}

/// Returns whether a region without a valid record, followed by `next`, may be part of a batch
/// that was never acknowledged.
fn is_torn(next: Option<&Found>, confirmed: u64) -> bool {
    match next {
        None => true,
        Some(found) => {
            found.head.kind != RecordKind::Commit
                && found.head.index > 0
                && found.head.batch > confirmed
        }
    }
}

/// Returns whether a region without a valid record, between `prev` and `next`, can only have held
/// the commit record between two batches, of which the second was never acknowledged. Nothing was
/// in it that the two do not say.
fn is_commit_alone(prev: Option<&Found>, next: Option<&Found>, confirmed: u64) -> bool {
    let (Some(prev), Some(next)) = (prev, next) else {
        return false;
    };
    next.head.batch > confirmed
        && next.head.index == 0
        && next.head.batch == prev.head.batch + 1
        && prev.head.last
}
