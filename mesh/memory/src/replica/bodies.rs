//! Bodies too long to travel inside their fragment: files named by the hash of their ciphertext.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rhizome_identity::Hash;

use super::{
    error::ReplicaError,
    journal::{Entry, Item},
    state::Inner,
};
use crate::{LogError, StorePoint};

/// The directory of the bodies.
pub(super) const DIR: &str = "bodies";

impl Inner {
    pub(super) fn put_body(&self, hash: Hash, body: &Bytes) -> Result<(), ReplicaError> {
        let wanting = self.state().wanted.get(&hash).cloned();
        let mut wanting = wanting.ok_or(ReplicaError::UnwantedBody(hash))?;
        if Hash::of(body) != hash {
            return Err(ReplicaError::BodyMismatch(hash));
        }
        self.write_body(&hash, body).map_err(ReplicaError::Body)?;
        // The view hears of it through a record of its own, so that a restart does not miss it.
        let wire = Bytes::copy_from_slice(hash.as_bytes());
        let tickets = self
            .journal
            .submit(vec![Entry::new(Item::Body(hash), wire)]);
        for ticket in tickets {
            self.journal
                .wait(self, &ticket)
                .map_err(ReplicaError::Storage)?;
        }
        // It may have been redacted while it came.
        wanting.retain(|id| self.state().redactions.names(id));
        self.applier.redact(wanting);
        Ok(())
    }

    /// Writes a body's file; durable on return.
    pub(super) fn write_body(&self, hash: &Hash, body: &[u8]) -> io::Result<()> {
        let (name, partial) = (name(hash), partial(hash));
        if self.disk.exists(&name) {
            return Ok(());
        }
        let written = self.disk.open(&partial).and_then(|file| {
            file.truncate(0)?;
            file.write_at(0, body)?;
            file.sync()?;
            self.disk.rename(&partial, &name)?;
            self.disk.sync_dir(DIR)
        });
        if written.is_err() {
            let _ = self.disk.remove(&partial);
        }
        written
    }

    /// Writes the bodies of a batch that have files of their own; durable on return.
    pub(super) fn write_files(&self, batch: &[Entry]) -> Result<(), LogError> {
        for (hash, body) in files(batch) {
            if let Err(source) = self.write_body(&hash, body) {
                let error = LogError::Write(Arc::new(source));
                self.remove_files(batch, &error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the bodies of a batch back that was not written for this reason.
    pub(super) fn remove_files(&self, batch: &[Entry], why: &LogError) {
        // After a failed sync nobody knows whether the fragments are there.
        if !matches!(why, LogError::Sync(_)) {
            for (hash, _) in files(batch) {
                let _ = self.disk.remove(&name(&hash));
            }
        }
    }

    /// Reads a body's file; `None` if it is not there or not what its name says.
    pub(super) fn read_body(&self, hash: &Hash) -> Option<Bytes> {
        let body = self.disk.read(&name(hash)).ok()?;
        (Hash::of(&body) == *hash).then(|| Bytes::from(body))
    }

    /// Returns what of the store belongs to this moment: everything that was acknowledged.
    pub(super) fn point(&self) -> io::Result<StorePoint> {
        let segments = self.log.point()?;
        // A body is whole and durable before anything names it, and is never changed.
        let mut files = self.disk.list(DIR)?;
        let is_body = |file: &String| {
            file.parse()
                .is_ok_and(|hash: Hash| hash.to_string() == *file)
        };
        files.retain(is_body);
        let bodies = files.iter().map(|file| format!("{DIR}/{file}")).collect();
        Ok(StorePoint { segments, bodies })
    }

    pub(super) fn has_body(&self, hash: &Hash) -> bool {
        self.disk.exists(&name(hash))
    }

    pub(super) fn body_path(&self, hash: Hash) -> Option<PathBuf> {
        self.has_body(&hash).then(|| self.dir.join(name(&hash)))
    }
}

pub(super) fn name(hash: &Hash) -> String {
    format!("{DIR}/{hash}")
}

/// The name of a body's file until it is whole.
pub(super) fn partial(hash: &Hash) -> String {
    format!("{}.part", name(hash))
}

/// Returns the bodies of a batch that have files of their own and were made here.
fn files(batch: &[Entry]) -> impl Iterator<Item = (Hash, &Bytes)> {
    batch.iter().filter_map(|entry| match &entry.item {
        Item::Fragment {
            fragment,
            file: Some(body),
            ..
        } => Some((fragment.header.body_hash, body)),
        _ => None,
    })
}
