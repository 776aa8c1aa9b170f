//! The records a node holds, and those that wait for their parents.

use std::collections::{BTreeMap, BTreeSet};

use super::{Authority, resolve};
use crate::{
    id::{Hash, MeshId, PublicKey, RecordId},
    issue::next_root_hash,
    record::{RecordBody, RecordError, SignedRecord},
};

/// How many records a log holds, about 8 MiB of them.
pub const MAX_RECORDS: usize = 16_384;
/// How many records may wait for their parents.
pub const MAX_WAITING: usize = 1_024;

/// What became of a record that was inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// It is in the log, and so are those that waited for it, in this order.
    New {
        /// The others.
        freed: Vec<RecordId>,
    },
    /// It was there, or waiting, already.
    Duplicate,
    /// It waits for its parents.
    Waiting,
}

/// A set of records that is closed under parents, and a bounded waiting room beside it.
#[derive(Debug, Clone, Default)]
pub struct RecordLog {
    mesh: Option<MeshId>,
    records: BTreeMap<RecordId, SignedRecord>,
    heads: BTreeSet<RecordId>,
    /// Everyone a record has ever let sign: the root, nodes, agents. Revocation does not shrink it.
    signers: BTreeSet<PublicKey>,
    /// The hashes of the root keys that were chosen in advance.
    next_roots: BTreeSet<Hash>,
    waiting: BTreeMap<RecordId, SignedRecord>,
}

impl RecordLog {
    /// Makes an empty log of one mesh, so that nobody can give it another's genesis.
    pub fn for_mesh(mesh: MeshId) -> RecordLog {
        RecordLog {
            mesh: Some(mesh),
            ..RecordLog::default()
        }
    }

    /// Returns the mesh of the log, once it is known.
    pub fn mesh(&self) -> Option<MeshId> {
        self.mesh
    }

    /// Puts a record into the log, and with it those that waited for it.
    ///
    /// # Errors
    /// [`RecordError::WrongMesh`] for another mesh, [`RecordError::Malformed`] if its signer was
    /// never let in, [`RecordError::Full`] if there is no room.
    pub fn insert(&mut self, record: SignedRecord) -> Result<Inserted, RecordError> {
        let id = record.id();
        if self.records.contains_key(&id) || self.waiting.contains_key(&id) {
            return Ok(Inserted::Duplicate);
        }
        if let Some(expected) = self.mesh.filter(|mesh| *mesh != record.mesh()) {
            return Err(RecordError::WrongMesh {
                expected,
                found: record.mesh(),
            });
        }
        if !self.has_parents_of(&record) {
            if self.waiting.len() >= MAX_WAITING {
                return Err(RecordError::Full { limit: MAX_WAITING });
            }
            self.waiting.insert(id, record);
            return Ok(Inserted::Waiting);
        }
        self.place(record)?;
        Ok(Inserted::New { freed: self.free() })
    }

    /// Moves in what waited and can be placed now, parents first.
    fn free(&mut self) -> Vec<RecordId> {
        let mut freed = Vec::new();
        loop {
            let ready = self
                .waiting
                .values()
                .find(|record| self.has_parents_of(record));
            let Some(record) = ready.cloned() else {
                return freed;
            };
            let id = record.id();
            self.waiting.remove(&id);
            // One that turns out to be of another mesh or of nobody is dropped.
            if self.place(record).is_ok() {
                freed.push(id);
            }
        }
    }

    fn has_parents_of(&self, record: &SignedRecord) -> bool {
        let parents = &record.record().parents;
        let is_genesis = matches!(record.record().body, RecordBody::Genesis(_));
        is_genesis
            || parents
                .iter()
                .all(|parent| self.records.contains_key(parent))
    }

    fn place(&mut self, record: SignedRecord) -> Result<(), RecordError> {
        if self.records.len() >= MAX_RECORDS {
            return Err(RecordError::Full { limit: MAX_RECORDS });
        }
        if let Some(expected) = self.mesh.filter(|mesh| *mesh != record.mesh()) {
            return Err(RecordError::WrongMesh {
                expected,
                found: record.mesh(),
            });
        }
        match &record.record().body {
            RecordBody::Genesis(genesis) => {
                if genesis.root != record.signer() {
                    return Err(RecordError::Malformed(
                        "a genesis is signed by the root it names",
                    ));
                }
                self.mesh = Some(record.mesh());
            }
            RecordBody::RotateRoot(_)
                if self.next_roots.contains(&next_root_hash(&record.signer())) => {}
            _ if !self.signers.contains(&record.signer()) => {
                return Err(RecordError::Malformed("its signer was never let in"));
            }
            _ => {}
        }
        match &record.record().body {
            RecordBody::Genesis(genesis) => {
                self.next_roots.insert(genesis.next_root_hash);
                self.signers.insert(genesis.root);
            }
            RecordBody::Grant(grant) => drop(self.signers.insert(grant.node.into())),
            RecordBody::AgentCert(cert) => drop(self.signers.insert(cert.agent.into())),
            RecordBody::RotateRoot(rotate)
                if self.next_roots.contains(&next_root_hash(&record.signer())) =>
            {
                self.next_roots.insert(rotate.next_root_hash);
                self.signers.insert(record.signer());
            }
            _ => {}
        }
        for parent in &record.record().parents {
            self.heads.remove(parent);
        }
        self.heads.insert(record.id());
        self.records.insert(record.id(), record);
        Ok(())
    }

    /// Returns a record of the log; those that wait are not of it.
    pub fn get(&self, id: &RecordId) -> Option<&SignedRecord> {
        self.records.get(id)
    }

    /// Whether the log has the record.
    pub fn contains(&self, id: &RecordId) -> bool {
        self.records.contains_key(id)
    }

    /// Returns the ids of the log, ascending.
    pub fn ids(&self) -> impl Iterator<Item = &RecordId> {
        self.records.keys()
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the records that no other names as parent, ascending.
    pub fn heads(&self) -> Vec<RecordId> {
        self.heads.iter().copied().collect()
    }

    /// Returns what the waiting records wait for.
    pub fn missing_parents(&self) -> BTreeSet<RecordId> {
        let parents = self
            .waiting
            .values()
            .flat_map(|record| &record.record().parents);
        let is_missing = |id: &RecordId| !self.contains(id) && !self.waiting.contains_key(id);
        parents.copied().filter(is_missing).collect()
    }

    /// Resolves the log.
    pub fn resolve(&self) -> Authority {
        resolve(&self.records)
    }

    /// Resolves what these records and their ancestors say: what was known to whoever named them.
    /// `None` if one of them is not here.
    pub fn resolve_at(&self, heads: &[RecordId]) -> Option<Authority> {
        let mut past: BTreeMap<RecordId, SignedRecord> = BTreeMap::new();
        let mut todo = heads.to_vec();
        while let Some(id) = todo.pop() {
            if past.contains_key(&id) {
                continue;
            }
            let record = self.records.get(&id)?;
            todo.extend(&record.record().parents);
            past.insert(id, record.clone());
        }
        Some(resolve(&past))
    }
}
