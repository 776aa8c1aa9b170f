//! The authority log, as the replica stores it.
//!
//! A record is stored once all its parents are; until then it waits in memory, bounded, and is
//! fetched again if it had to make room. So the stored log is always closed under its parents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::PoisonError,
};

use bytes::Bytes;
use rhizome_identity::{MeshId, NodeId, RecordBody, RecordError, RecordId, SignedRecord};

use super::{
    error::ReplicaError,
    journal::{Entry, Item},
    request::RecordOutcome,
    state::Inner,
};
use crate::LogError;

/// How many records may wait for their parents.
const MAX_WAITING: usize = 1024;
/// How many bytes may wait.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;

/// Records whose parents are not here yet.
#[derive(Debug, Default)]
pub(super) struct WaitingRecords {
    records: BTreeMap<RecordId, SignedRecord>,
    bytes: usize,
}

impl WaitingRecords {
    fn insert(&mut self, record: SignedRecord) -> bool {
        if self.records.contains_key(&record.id()) {
            return true;
        }
        let size = record.bytes().len();
        if self.records.len() >= MAX_WAITING || self.bytes + size > MAX_WAITING_BYTES {
            return false;
        }
        self.bytes += size;
        self.records.insert(record.id(), record);
        true
    }

    /// Takes out the records all of whose parents are in `known`, adding them to it, parents first.
    fn take_ready(&mut self, known: &mut impl FnMut(&RecordId) -> bool) -> Vec<SignedRecord> {
        let mut ready: Vec<SignedRecord> = Vec::new();
        let mut taken = BTreeSet::new();
        loop {
            let mut is_known = |parent: &RecordId| taken.contains(parent) || known(parent);
            let next: Vec<RecordId> = self
                .records
                .iter()
                .filter(|(_, record)| record.record().parents.iter().all(&mut is_known))
                .map(|(id, _)| *id)
                .collect();
            if next.is_empty() {
                return ready;
            }
            for id in next {
                let record = self.records.remove(&id).expect("it was found above");
                self.bytes -= record.bytes().len();
                taken.insert(id);
                ready.push(record);
            }
        }
    }
}

impl Inner {
    pub(super) fn append_records(&self, records: Vec<SignedRecord>) -> Result<(), ReplicaError> {
        {
            let _one = self
                .recording
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut mesh = self.mesh();
            let mut taken = BTreeSet::new();
            let mut new = Vec::new();
            for record in records {
                check_mesh(&mut mesh, &record).map_err(ReplicaError::Record)?;
                let id = record.id();
                let state = self.state();
                if state.records.contains(&id) || taken.contains(&id) {
                    continue;
                }
                for parent in &record.record().parents {
                    if !taken.contains(parent) && !state.records.contains(parent) {
                        return Err(ReplicaError::UnknownParent(*parent));
                    }
                }
                taken.insert(id);
                drop(state);
                new.push(record);
            }
            self.store_records(new).map_err(ReplicaError::Storage)?;
        }
        self.admit_rechecked();
        Ok(())
    }

    pub(super) fn admit_records(
        &self,
        _from: Option<NodeId>,
        records: &[Bytes],
    ) -> Vec<RecordOutcome> {
        let mut outcomes = Vec::with_capacity(records.len());
        {
            let mut waiting = self
                .recording
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut mesh = self.mesh();
            let mut ids = Vec::with_capacity(records.len());
            // A Genesis may come last in a batch, and says which mesh the others have to be of.
            let mut parsed: Vec<_> = records
                .iter()
                .map(|bytes| SignedRecord::parse(bytes))
                .collect();
            let genesis = parsed.iter().flatten().find(|record| is_genesis(record));
            mesh = mesh.or(genesis.map(SignedRecord::mesh));
            for record in parsed.drain(..) {
                let checked = record.and_then(|record| {
                    check_mesh(&mut mesh, &record)?;
                    Ok(record)
                });
                ids.push(checked.as_ref().ok().map(SignedRecord::id));
                outcomes.push(match checked {
                    Err(error) => RecordOutcome::Rejected(error),
                    Ok(record) => {
                        if self.state().records.contains(&record.id()) {
                            RecordOutcome::Duplicate
                        } else if waiting.insert(record) {
                            RecordOutcome::Waiting
                        } else {
                            RecordOutcome::Refused
                        }
                    }
                });
            }
            let ready = waiting.take_ready(&mut |parent| self.state().records.contains(parent));
            let is_stored = self.store_records(ready.clone()).is_ok();
            let ready: BTreeSet<RecordId> = ready.iter().map(SignedRecord::id).collect();
            for (outcome, id) in outcomes.iter_mut().zip(ids) {
                if matches!(outcome, RecordOutcome::Waiting)
                    && id.is_some_and(|id| ready.contains(&id))
                {
                    *outcome = if is_stored {
                        RecordOutcome::Stored
                    } else {
                        RecordOutcome::Refused
                    };
                }
            }
        }
        self.show_forks();
        self.admit_rechecked();
        outcomes
    }

    fn mesh(&self) -> Option<MeshId> {
        self.rights().authority.mesh()
    }

    fn store_records(&self, records: Vec<SignedRecord>) -> Result<(), LogError> {
        let entry = |record: SignedRecord| {
            let wire = Bytes::copy_from_slice(record.bytes());
            Entry::new(Item::Record(record), wire)
        };
        let entries = records.into_iter().map(entry).collect();
        let tickets = self.journal.submit(entries);
        for ticket in tickets {
            self.journal.wait(self, &ticket)?;
        }
        Ok(())
    }
}

fn is_genesis(record: &SignedRecord) -> bool {
    matches!(record.record().body, RecordBody::Genesis(_))
}

/// Checks that a record is of `mesh`; the first Genesis decides which mesh that is.
fn check_mesh(mesh: &mut Option<MeshId>, record: &SignedRecord) -> Result<(), RecordError> {
    let found = record.mesh();
    match *mesh {
        None if is_genesis(record) => {
            *mesh = Some(found);
            Ok(())
        }
        None => Ok(()),
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(RecordError::WrongMesh { expected, found }),
    }
}
