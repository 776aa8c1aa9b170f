//! Work that many nodes would do alike, done once.
//!
//! What passed a check once is remembered by its hash: a thousand nodes verify a fragment once.
//! What fails is checked anew by every node, so the path that rejects always runs for real.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use rhizome_identity::{Authority, Hash, RecordLog, SignedRecord};
use rhizome_memory::{Fragment, IdSet, check_signatures};

#[derive(Debug, Default)]
pub(super) struct Memo {
    fragments: BTreeMap<Hash, Fragment>,
    records: BTreeMap<Hash, SignedRecord>,
    authorities: BTreeMap<[u8; 40], Arc<Authority>>,
    pub(super) rejected: u64,
}

impl Memo {
    /// Returns the fragment, its form and signature checked.
    pub(super) fn fragment(&mut self, wire: &Bytes) -> Option<Fragment> {
        let hash = Hash::of(wire);
        if let Some(known) = self.fragments.get(&hash) {
            return Some(known.clone());
        }
        let fragment = Fragment::decode(wire)
            .ok()
            .filter(|f| check_signatures([f])[0]);
        match &fragment {
            Some(good) => drop(self.fragments.insert(hash, good.clone())),
            None => self.rejected += 1,
        }
        fragment
    }

    /// Returns the record, its form and signature checked.
    pub(super) fn record(&mut self, bytes: &Bytes) -> Option<SignedRecord> {
        let hash = Hash::of(bytes);
        if let Some(known) = self.records.get(&hash) {
            return Some(known.clone());
        }
        let record = SignedRecord::parse(bytes).ok();
        match &record {
            Some(good) => drop(self.records.insert(hash, good.clone())),
            None => self.rejected += 1,
        }
        record
    }

    /// Returns what the log resolves to; `ids` are those of its records.
    ///
    /// The same set gives the same answer, which is what makes one answer do for all nodes.
    pub(super) fn authority(&mut self, ids: &IdSet, log: &RecordLog) -> Arc<Authority> {
        let set = ids.fingerprint().to_bytes();
        let resolved = self.authorities.entry(set);
        Arc::clone(resolved.or_insert_with(|| Arc::new(log.resolve())))
    }
}
