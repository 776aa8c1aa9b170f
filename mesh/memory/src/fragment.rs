//! The immutable, signed unit that replicates (layout: `docs/wire.md`, section 4).

use bytes::Bytes;
use minicbor::{Decoder, Encoder, data::Type};
use rhizome_identity::{
    AgentId, AgentKey, Domain, EnvelopeError, FRAGMENT_DOMAIN, Hash, MAX_FRAGMENT_ENVELOPE, MeshId,
    NodeId, RecordId, Sealed, SpaceId, envelope,
};

use crate::{DocId, FragmentId, Hlc, Kind};

/// The header version this build writes and accepts.
pub const FRAGMENT_VERSION: u8 = 1;
/// The longest body carried inside a fragment, in bytes of ciphertext; a longer one is a blob.
pub const MAX_INLINE_BODY: usize = 64 * 1024;
/// The longest body of all, in bytes of ciphertext.
pub const MAX_BODY: usize = 16 * 1024 * 1024;
/// The longest encoded fragment, in bytes.
pub const MAX_WIRE: usize = 80 * 1024;
/// The longest envelope (header and signature), in bytes.
pub const MAX_ENVELOPE: usize = MAX_FRAGMENT_ENVELOPE;
/// How many authority heads a header may name.
pub const MAX_AUTH_HEADS: usize = 8;
/// How many fragments a header may depend on.
pub const MAX_DEPS: usize = 32;

/// What an agent signs when it signs a fragment.
pub(crate) const DOMAIN: Domain = FRAGMENT_DOMAIN;

/// The header's fields that are authenticated together with the body; the two left out describe
/// the ciphertext and cannot be known before it exists.
const AAD_FIELDS: u64 = 15;
const HEADER_FIELDS: u64 = 17;

/// Everything about a fragment but its body; readable by every node that stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// [`FRAGMENT_VERSION`].
    pub version: u8,
    /// The mesh this was written in.
    pub mesh: MeshId,
    /// The space it belongs to.
    pub space: SpaceId,
    /// Who wrote and signed it.
    pub author: AgentId,
    /// The node it was written on.
    pub node: NodeId,
    /// Its position in the author's chain in this space, from 0.
    pub seq: u64,
    /// The fragment before it in that chain; none at `seq` 0.
    pub prev: Option<FragmentId>,
    /// The authority records the author's node knew, sorted; at most [`MAX_AUTH_HEADS`].
    pub auth_heads: Vec<RecordId>,
    /// The fragments whose changes this one builds on; at most [`MAX_DEPS`].
    pub deps: Vec<FragmentId>,
    /// When it was written, for ranking and display.
    pub hlc: Hlc,
    /// What the document is about.
    pub kind: Kind,
    /// The document that the body changes.
    pub doc: DocId,
    /// The runtime it was written in.
    pub fingerprint: Hash,
    /// The key epoch of the space that encrypts the body.
    pub epoch: u32,
    /// The body's nonce.
    pub nonce: [u8; 24],
    /// BLAKE3 of the body's ciphertext.
    pub body_hash: Hash,
    /// Length of the body's ciphertext, in bytes.
    pub body_len: u32,
}

impl Header {
    /// Returns the canonical bytes: what is signed, and what the id is the hash of.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(384 + 34 * (self.auth_heads.len() + self.deps.len()));
        self.write_prefix(&mut bytes, HEADER_FIELDS);
        let mut e = Encoder::new(&mut bytes);
        e.encode(self.body_hash)
            .and_then(|e| e.u32(self.body_len))
            .expect("a vector takes every byte");
        bytes
    }

    /// Returns the associated data of the body: this header without the two fields about the body.
    #[must_use]
    pub fn aad(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(352 + 34 * (self.auth_heads.len() + self.deps.len()));
        self.write_prefix(&mut bytes, AAD_FIELDS);
        bytes
    }

    /// Reads canonical bytes.
    ///
    /// # Errors
    /// Says what is wrong when the bytes are not exactly what [`Self::to_bytes`] would write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FragmentError> {
        let header = read_header(&mut Decoder::new(bytes))?;
        header.check_shape()?;
        // Two encodings of one header would be two ids for one meaning.
        if header.to_bytes() != bytes {
            return Err(FragmentError::NotCanonical);
        }
        Ok(header)
    }

    /// Returns whether the body is too long to travel inside the fragment.
    #[must_use]
    pub const fn body_is_blob(&self) -> bool {
        self.body_len as usize > MAX_INLINE_BODY
    }

    fn write_prefix(&self, bytes: &mut Vec<u8>, fields: u64) {
        let mut e = Encoder::new(bytes);
        self.try_write_prefix(&mut e, fields)
            .expect("a vector takes every byte");
    }

    fn try_write_prefix<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        fields: u64,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.array(fields)?.u8(self.version)?;
        e.encode(self.mesh)?
            .encode(self.space)?
            .encode(self.author)?
            .encode(self.node)?
            .u64(self.seq)?;
        match &self.prev {
            Some(prev) => e.encode(prev)?,
            None => e.null()?,
        };
        e.array(self.auth_heads.len() as u64)?;
        for head in &self.auth_heads {
            e.encode(head)?;
        }
        e.array(self.deps.len() as u64)?;
        for dep in &self.deps {
            e.encode(dep)?;
        }
        e.encode(self.hlc)?
            .encode(self.kind)?
            .encode(self.doc)?
            .encode(self.fingerprint)?;
        e.u32(self.epoch)?.bytes(&self.nonce)?.ok()
    }

    fn check_shape(&self) -> Result<(), FragmentError> {
        if self.version != FRAGMENT_VERSION {
            return Err(FragmentError::Version {
                version: self.version,
            });
        }
        if self.body_len as usize > MAX_BODY {
            return Err(FragmentError::TooLarge {
                size: self.body_len as usize,
                limit: MAX_BODY,
            });
        }
        if (self.seq == 0) != self.prev.is_none() {
            return Err(FragmentError::Malformed(
                "only the first fragment of a chain has no predecessor",
            ));
        }
        if !self.auth_heads.is_sorted_by(|a, b| a < b) {
            return Err(FragmentError::Malformed(
                "the authority heads are not sorted, or one is there twice",
            ));
        }
        Ok(())
    }
}

/// A fragment as it is stored and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// The hash of the canonical header.
    pub id: FragmentId,
    /// The header inside `envelope`.
    pub header: Header,
    /// The signed header, byte for byte.
    pub envelope: Bytes,
    /// The ciphertext, unless it is a blob or was redacted.
    pub body: Option<Bytes>,
    /// The signed header of the redaction that took the body, byte for byte, where the wire form
    /// carries one.
    pub redaction: Option<Bytes>,
}

/// A fragment that lacks nothing but its signature: its id is known, so the next of its chain can
/// follow it while it is being signed.
#[derive(Debug)]
pub(crate) struct Unsigned {
    pub(crate) id: FragmentId,
    pub(crate) header: Header,
    payload: Vec<u8>,
    body: Bytes,
}

impl Unsigned {
    /// Completes a header with what describes `body`.
    ///
    /// # Errors
    /// [`FragmentError`] if header or body break a bound of the format.
    pub(crate) fn new(mut header: Header, body: Bytes) -> Result<Self, FragmentError> {
        header.body_hash = Hash::of(&body);
        header.body_len = u32::try_from(body.len()).map_err(|_| FragmentError::TooLarge {
            size: body.len(),
            limit: MAX_BODY,
        })?;
        header.check_shape()?;
        if header.auth_heads.len() > MAX_AUTH_HEADS || header.deps.len() > MAX_DEPS {
            return Err(FragmentError::Malformed(
                "too many authority heads or dependencies",
            ));
        }
        let payload = header.to_bytes();
        Ok(Self {
            id: FragmentId::from(Hash::of(&payload)),
            header,
            payload,
            body,
        })
    }

    /// Returns the body, if it is too long to travel inside the fragment.
    pub(crate) fn blob(&self) -> Option<Bytes> {
        self.header.body_is_blob().then(|| self.body.clone())
    }

    /// Signs it.
    pub(crate) fn sign(self, key: &AgentKey) -> Fragment {
        let envelope = Bytes::from(envelope::seal(key.as_ref(), DOMAIN, &self.payload));
        let body = (!self.header.body_is_blob()).then_some(self.body);
        Fragment {
            id: self.id,
            header: self.header,
            envelope,
            body,
            redaction: None,
        }
    }
}

impl Fragment {
    /// Completes a header with what describes `body`, and signs it.
    ///
    /// # Errors
    /// [`FragmentError`] if header or body break a bound of the format.
    pub fn sign(key: &AgentKey, header: Header, body: Bytes) -> Result<Self, FragmentError> {
        Ok(Unsigned::new(header, body)?.sign(key))
    }

    /// Reads the wire form; everything is checked but the signature and the author's right to write.
    ///
    /// # Errors
    /// [`FragmentError`] names the first thing found wrong; the cheap checks come first.
    pub fn decode(wire: &Bytes) -> Result<Self, FragmentError> {
        if wire.len() > MAX_WIRE {
            return Err(FragmentError::TooLarge {
                size: wire.len(),
                limit: MAX_WIRE,
            });
        }
        let Parts {
            envelope,
            body,
            redaction,
        } = split_wire(wire)?;
        let (id, header) = read_envelope(&envelope)?;
        match (&body, header.body_is_blob()) {
            _ if redaction.is_some() => {
                if header.kind == Kind::Redaction {
                    return Err(FragmentError::Malformed("a redaction cannot be redacted"));
                }
            }
            (Some(_), true) => {
                return Err(FragmentError::Malformed("a body this long travels apart"));
            }
            (None, false) => return Err(FragmentError::Malformed("the body is missing")),
            (None, true) => {}
            (Some(body), false) => {
                if body.len() != header.body_len as usize || Hash::of(body) != header.body_hash {
                    return Err(FragmentError::BodyMismatch { id });
                }
            }
        }
        Ok(Self {
            id,
            header,
            envelope,
            body,
            redaction,
        })
    }

    /// Returns the wire form.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let rest = [&self.body, &self.redaction].into_iter().flatten();
        let rest_len: usize = rest.map(Bytes::len).sum();
        let mut wire = Vec::with_capacity(self.envelope.len() + rest_len + 16);
        let mut e = Encoder::new(&mut wire);
        let written = e
            .array(if self.redaction.is_some() { 3 } else { 2 })
            .and_then(|e| e.bytes(&self.envelope))
            .and_then(|e| match &self.body {
                Some(body) => e.bytes(body),
                None => e.null(),
            })
            .and_then(|e| match &self.redaction {
                Some(redaction) => e.bytes(redaction),
                None => Ok(e),
            });
        written.expect("a vector takes every byte");
        Bytes::from(wire)
    }

    /// Returns the same fragment without its body, which `redaction` took.
    pub(crate) fn without_body(mut self, redaction: Bytes) -> Self {
        self.body = None;
        self.redaction = Some(redaction);
        self
    }

    /// Returns whether the body is gone for good, as far as the fragment itself says.
    pub(crate) fn is_bare(&self) -> bool {
        self.redaction.is_some() || (self.body.is_none() && !self.header.body_is_blob())
    }

    /// Returns what is stored of a fragment without its body; zeroes may follow.
    pub(crate) fn stripped(&self) -> Bytes {
        let bare = Self {
            body: None,
            redaction: None,
            ..self.clone()
        };
        bare.encode()
    }

    /// Reads what [`Self::stripped`] wrote.
    ///
    /// # Errors
    /// [`FragmentError`] if the record is not that.
    pub(crate) fn decode_stripped(record: &Bytes) -> Result<Self, FragmentError> {
        const SHAPE: FragmentError = FragmentError::Malformed("expected an envelope and zeroes");
        let mut d = Decoder::new(record);
        if d.array().map_err(|_| SHAPE)? != Some(2) {
            return Err(SHAPE);
        }
        let envelope = record.slice_ref(d.bytes().map_err(|_| SHAPE)?);
        d.null().map_err(|_| SHAPE)?;
        if record[d.position()..].iter().any(|byte| *byte != 0) {
            return Err(SHAPE);
        }
        let (id, header) = read_envelope(&envelope)?;
        Ok(Self {
            id,
            header,
            envelope,
            body: None,
            redaction: None,
        })
    }

    /// Returns the same fragment with memory of its own, not that of the frame it came in.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            id: self.id,
            header: self.header.clone(),
            envelope: Bytes::copy_from_slice(&self.envelope),
            body: self.body.as_ref().map(|body| Bytes::copy_from_slice(body)),
            redaction: self
                .redaction
                .as_ref()
                .map(|redaction| Bytes::copy_from_slice(redaction)),
        }
    }

    /// Returns the parsed envelope, for the check of its signature.
    pub(crate) fn sealed(&self) -> Result<Sealed<'_>, EnvelopeError> {
        envelope::parse(&self.envelope, MAX_ENVELOPE)
    }
}

/// Why bytes are not a fragment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// Larger than the format allows; both sizes in bytes.
    #[error("fragment is {size} bytes; at most {limit} are accepted")]
    TooLarge {
        /// The size found.
        size: usize,
        /// The limit it breaks.
        limit: usize,
    },
    /// Written by another version of the format.
    #[error("fragment has version {version}; this node reads version {FRAGMENT_VERSION}")]
    Version {
        /// The version found.
        version: u8,
    },
    /// The signed envelope cannot be read.
    #[error("fragment has no valid envelope")]
    Envelope(#[source] EnvelopeError),
    /// Not what the format describes.
    #[error("fragment is malformed: {0}")]
    Malformed(&'static str),
    /// The same meaning, spelled in other bytes than the one canonical form.
    #[error("fragment is not in canonical form")]
    NotCanonical,
    /// The header names another author than the key that signed it.
    #[error("fragment names `{author}` as its author but another key signed it")]
    ForgedAuthor {
        /// The author it names.
        author: AgentId,
    },
    /// The body is not the one that the header describes.
    #[error("the body of fragment `{id}` is not the one its header names")]
    BodyMismatch {
        /// The fragment.
        id: FragmentId,
    },
}

/// The parts of a wire form.
struct Parts {
    envelope: Bytes,
    body: Option<Bytes>,
    redaction: Option<Bytes>,
}

/// Reads a signed header; everything is checked but the signature.
pub(crate) fn read_envelope(envelope: &Bytes) -> Result<(FragmentId, Header), FragmentError> {
    let sealed = envelope::parse(envelope, MAX_ENVELOPE).map_err(FragmentError::Envelope)?;
    let header = Header::from_bytes(sealed.payload)?;
    if sealed.signer.as_bytes() != header.author.as_bytes() {
        return Err(FragmentError::ForgedAuthor {
            author: header.author,
        });
    }
    Ok((FragmentId::from(Hash::of(sealed.payload)), header))
}

fn split_wire(wire: &Bytes) -> Result<Parts, FragmentError> {
    const SHAPE: FragmentError =
        FragmentError::Malformed("expected an envelope, a body, and what redacts it, if anything");
    let mut d = Decoder::new(wire);
    let parts = d.array().map_err(|_| SHAPE)?.ok_or(SHAPE)?;
    if !matches!(parts, 2 | 3) {
        return Err(SHAPE);
    }
    let envelope = wire.slice_ref(d.bytes().map_err(|_| SHAPE)?);
    let body = match d.datatype().map_err(|_| SHAPE)? {
        Type::Null => d.null().map(|()| None).map_err(|_| SHAPE)?,
        _ => Some(wire.slice_ref(d.bytes().map_err(|_| SHAPE)?)),
    };
    let redaction = match parts {
        3 if body.is_none() => Some(wire.slice_ref(d.bytes().map_err(|_| SHAPE)?)),
        3 => return Err(SHAPE),
        _ => None,
    };
    // Only one length of each head is canonical, so the total length settles it.
    let len = |part: &Bytes| head_len(part.len()) + part.len();
    let expected =
        1 + len(&envelope) + body.as_ref().map_or(1, len) + redaction.as_ref().map_or(0, len);
    if d.position() != wire.len() || wire.len() != expected {
        return Err(FragmentError::NotCanonical);
    }
    Ok(Parts {
        envelope,
        body,
        redaction,
    })
}

/// Returns how many bytes the shortest CBOR head of a byte string takes.
const fn head_len(len: usize) -> usize {
    match len {
        0..24 => 1,
        24..0x100 => 2,
        0x100..0x1_0000 => 3,
        _ => 5,
    }
}

fn read_header(d: &mut Decoder<'_>) -> Result<Header, FragmentError> {
    let malformed = |_| FragmentError::Malformed("a header field cannot be read");
    if d.array().map_err(malformed)? != Some(HEADER_FIELDS) {
        return Err(FragmentError::Malformed("a header has 17 fields"));
    }
    let version = d.u8().map_err(malformed)?;
    if version != FRAGMENT_VERSION {
        return Err(FragmentError::Version { version });
    }
    let mut read = || -> Result<Header, minicbor::decode::Error> {
        Ok(Header {
            version,
            mesh: d.decode()?,
            space: d.decode()?,
            author: d.decode()?,
            node: d.decode()?,
            seq: d.u64()?,
            prev: match d.datatype()? {
                Type::Null => d.null().map(|()| None)?,
                _ => Some(d.decode()?),
            },
            auth_heads: read_list(d, MAX_AUTH_HEADS)?,
            deps: read_list(d, MAX_DEPS)?,
            hlc: d.decode()?,
            kind: d.decode()?,
            doc: d.decode()?,
            fingerprint: d.decode()?,
            epoch: d.u32()?,
            nonce: d
                .bytes()?
                .try_into()
                .map_err(|_| minicbor::decode::Error::message("nonce"))?,
            body_hash: d.decode()?,
            body_len: d.u32()?,
        })
    };
    read().map_err(malformed)
}

fn read_list<'b, T: minicbor::Decode<'b, ()>>(
    d: &mut Decoder<'b>,
    max: usize,
) -> Result<Vec<T>, minicbor::decode::Error> {
    let too_long = || minicbor::decode::Error::message("a list is too long");
    let len = d
        .array()?
        .and_then(|len| usize::try_from(len).ok())
        .ok_or_else(too_long)?;
    if len > max {
        return Err(too_long());
    }
    (0..len).map(|_| d.decode()).collect()
}
