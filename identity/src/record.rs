//! The records of the authority log, and their signed form.
//!
//! A record's payload is one deterministic CBOR map; its id is the BLAKE3 hash of its
//! signer and that payload.
//! Kinds and fields that this version does not know are kept byte for byte, replicated and
//! listed as deferred, so that a newer node's decisions survive an older node.

use std::{
    cmp::Ordering,
    sync::{Arc, OnceLock},
};

use crate::{
    cbor::CborError,
    envelope::{self, Domain, EnvelopeError},
    id::{MeshId, PublicKey, RecordId},
    keys::SecretKey,
};

mod body;
pub(crate) mod codec;
mod fork;
#[cfg(test)]
mod tests;

pub use body::{
    AgentCert, Amend, Checkpoint, Cut, ForkProof, Genesis, Grant, InviteClose, InviteOpen,
    KeyEpoch, NodeWrap, RecordBody, Revoke, RotateRoot, SpaceCreate, SpaceGrant, UnknownBody,
    Verbs,
};
pub use fork::{FRAGMENT_DOMAIN, ForkError, Forked, MAX_FRAGMENT_ENVELOPE};

/// The largest signed record, in bytes.
pub const MAX_RECORD_BYTES: usize = 64 * 1024;
/// The most parents of one record.
pub const MAX_PARENTS: usize = 16;
/// The longest name of a mesh, node, space or agent, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The version of the record layout written here.
pub const RECORD_VERSION: u8 = 1;
/// What a record's signature is bound to.
pub const RECORD_DOMAIN: Domain = Domain("rhizome/record/1");

/// Why bytes are not a record, or a record cannot enter a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The envelope around it is broken or its signature is wrong.
    #[error("the record's envelope is not acceptable")]
    Envelope(#[from] EnvelopeError),
    /// The payload is not the deterministic CBOR of a record.
    #[error("the record's payload is not acceptable")]
    Cbor(#[from] CborError),
    /// The layout is of a version from which this one can keep nothing.
    #[error("record version {0} is not known here")]
    Version(u64),
    /// A rule of the layout is broken.
    #[error("the record breaks a rule: {0}")]
    Malformed(&'static str),
    /// It belongs to another mesh than the log.
    #[error("the record belongs to mesh {found}, this log to {expected}", found = found.fmt_short(), expected = expected.fmt_short())]
    WrongMesh {
        /// The mesh of the log.
        expected: MeshId,
        /// The mesh of the record.
        found: MeshId,
    },
    /// The log holds as many records as it may.
    #[error("the authority log is full at {limit} records")]
    Full {
        /// How many it may hold.
        limit: usize,
    },
}

/// One decision about who may do what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The layout version, [`RECORD_VERSION`].
    pub v: u8,
    /// The mesh; all zero in a Genesis, whose own hash is the mesh.
    pub mesh: MeshId,
    /// The heads of the log its issuer knew: ascending, at most [`MAX_PARENTS`]; none in a Genesis.
    pub parents: Vec<RecordId>,
    /// When the issuer's clock says it was made, in Unix milliseconds; for display only.
    pub at_ms: u64,
    /// What it decides.
    pub body: RecordBody,
}

/// A record whose bytes parsed and whose signature was checked; cheap to clone.
#[derive(Debug, Clone)]
pub struct SignedRecord(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: RecordId,
    signer: PublicKey,
    record: Record,
    understood: bool,
    bytes: Vec<u8>,
    /// What a ForkProof shows; its signatures are checked once, when somebody asks.
    forked: OnceLock<Option<Forked>>,
}

impl SignedRecord {
    /// Parses a signed record and checks its signature.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being a record; see [`RecordError`].
    pub fn parse(bytes: &[u8]) -> Result<SignedRecord, RecordError> {
        let sealed = envelope::parse(bytes, MAX_RECORD_BYTES)?;
        let (record, understood) = codec::decode(sealed.payload)?;
        sealed.verify(RECORD_DOMAIN)?;
        Ok(SignedRecord(Arc::new(Inner {
            id: id_of(&sealed.signer, sealed.payload),
            signer: sealed.signer,
            record,
            understood,
            bytes: bytes.to_vec(),
            forked: OnceLock::new(),
        })))
    }

    /// Signs `record`; the parents are sorted and freed of repetition first.
    ///
    /// # Errors
    /// [`RecordError::Malformed`] when the record breaks a rule of the layout, and
    /// [`EnvelopeError::TooLarge`] inside when it would exceed [`MAX_RECORD_BYTES`].
    pub fn sign(key: &SecretKey, mut record: Record) -> Result<SignedRecord, RecordError> {
        record.parents.sort_unstable();
        record.parents.dedup();
        codec::check(&record)?;
        let payload = codec::encode(&record);
        let bytes = envelope::seal(key, RECORD_DOMAIN, &payload);
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(RecordError::Envelope(EnvelopeError::TooLarge {
                size: bytes.len(),
                limit: MAX_RECORD_BYTES,
            }));
        }
        Ok(SignedRecord(Arc::new(Inner {
            id: id_of(&key.public(), &payload),
            signer: key.public(),
            record,
            understood: true,
            bytes,
            forked: OnceLock::new(),
        })))
    }

    /// Returns the record's id.
    pub fn id(&self) -> RecordId {
        self.0.id
    }

    /// Returns whose signature it carries.
    pub fn signer(&self) -> PublicKey {
        self.0.signer
    }

    /// Returns the record.
    pub fn record(&self) -> &Record {
        &self.0.record
    }

    /// Returns what travels and is stored.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Whether every field is known to this version.
    pub fn is_understood(&self) -> bool {
        self.0.understood
    }

    /// Returns what the record proves, if it is a ForkProof that holds.
    pub fn forked(&self) -> Option<Forked> {
        let check = || match &self.0.record.body {
            RecordBody::ForkProof(proof) => proof.check().ok(),
            _ => None,
        };
        *self.0.forked.get_or_init(check)
    }

    /// Returns the mesh the record belongs to; a Genesis names it by its own hash.
    pub fn mesh(&self) -> MeshId {
        match self.0.record.body {
            RecordBody::Genesis(_) => MeshId::from_bytes(*self.0.id.as_bytes()),
            _ => self.0.record.mesh,
        }
    }
}

/// Returns the id of a record: BLAKE3 of its signer and its payload.
///
/// The signer is part of it: else anyone could sign a copy of another's payload and take its place.
fn id_of(signer: &PublicKey, payload: &[u8]) -> RecordId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(signer.as_bytes()).update(payload);
    RecordId::from_bytes(*hasher.finalize().as_bytes())
}

impl PartialEq for SignedRecord {
    fn eq(&self, other: &SignedRecord) -> bool {
        self.0.bytes == other.0.bytes
    }
}

impl Eq for SignedRecord {}

impl PartialOrd for SignedRecord {
    fn partial_cmp(&self, other: &SignedRecord) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SignedRecord {
    fn cmp(&self, other: &SignedRecord) -> Ordering {
        (self.0.id, &self.0.bytes).cmp(&(other.0.id, &other.0.bytes))
    }
}

/// Returns whether `name` may name a mesh, node, space or agent: 1 to 64 bytes, no control
/// characters, no space at either end.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.trim() == name
        && !name.chars().any(char::is_control)
}
