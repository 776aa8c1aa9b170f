//! Bodies too long to travel inside their fragment: files named by the hash of their ciphertext.

use std::{io, path::PathBuf};

use bytes::Bytes;
use rhizome_identity::Hash;

use super::{
    error::ReplicaError,
    journal::{Entry, Item},
    state::Inner,
};

/// The directory of the bodies.
pub(super) const DIR: &str = "bodies";

impl Inner {
    pub(super) fn put_body(&self, hash: Hash, body: &Bytes) -> Result<(), ReplicaError> {
        if !self.state().wanted.contains_key(&hash) {
            return Err(ReplicaError::UnwantedBody(hash));
        }
        if Hash::of(body) != hash {
            return Err(ReplicaError::BodyMismatch(hash));
        }
        self.write_body(&hash, body).map_err(ReplicaError::Body)?;
        // The view hears of it through a record of its own, so that a restart does not miss it.
        let wire = Bytes::copy_from_slice(hash.as_bytes());
        let tickets = self
            .journal
            .submit(vec![Entry::new(Item::Body(hash), wire)], None)
            .expect("a body has no position that could be void");
        for ticket in tickets {
            self.journal
                .wait(self, &ticket)
                .map_err(ReplicaError::Storage)?;
        }
        Ok(())
    }

    /// Writes a body's file; durable on return.
    pub(super) fn write_body(&self, hash: &Hash, body: &[u8]) -> io::Result<()> {
        let (name, partial) = (name(hash), format!("{}.part", name(hash)));
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

    /// Reads a body's file; `None` if it is not there or not what its name says.
    pub(super) fn read_body(&self, hash: &Hash) -> Option<Bytes> {
        let body = self.disk.read(&name(hash)).ok()?;
        (Hash::of(&body) == *hash).then(|| Bytes::from(body))
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
