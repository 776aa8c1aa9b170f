//! What a proof of two histories shows, checked without anything else at hand.
//!
//! The two envelopes are those of fragments. What a fragment says beyond its place in its author's
//! chain is of no interest here, so only the fields up to the one before it are read
//! (`docs/wire.md`, section 4); what the signatures cover is all of it.

use minicbor::{Decoder, data::Type};

use super::ForkProof;
use crate::{
    cbor,
    envelope::{self, Domain, EnvelopeError},
    id::{AgentId, Hash, MeshId, NodeId, SpaceId},
};

/// What the signature of a fragment is bound to.
pub const FRAGMENT_DOMAIN: Domain = Domain("rhizome/fragment/1");
/// The longest envelope of a fragment, in bytes.
pub const MAX_FRAGMENT_ENVELOPE: usize = 4 * 1024;
/// The version of the fragments whose places can be read here.
const VERSION: u8 = 1;

/// Two fragments that one author signed for one place of its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked {
    /// The mesh they were written in.
    pub mesh: MeshId,
    /// Whose chain it is.
    pub author: AgentId,
    /// The space of the chain.
    pub space: SpaceId,
    /// The place.
    pub seq: u64,
    /// The ids of the two, the lower first: that one counts until somebody decides otherwise.
    pub ids: [Hash; 2],
    /// The fragment before the lower one; none at the first place.
    pub prev: Option<Hash>,
}

/// Why a proof shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// One of the envelopes is broken, or not signed by whom it names.
    #[error("one of the two fragments is not signed")]
    Envelope(#[from] EnvelopeError),
    /// One of them is no fragment that this version reads.
    #[error("one of the two is no fragment of a known version")]
    Unreadable,
    /// They do not contradict each other.
    #[error("the two fragments are of different places, or the same")]
    NoContradiction,
}

struct Place {
    mesh: MeshId,
    space: SpaceId,
    author: AgentId,
    seq: u64,
    prev: Option<Hash>,
}

impl ForkProof {
    /// Checks the proof: both signatures, and that the two take one place of one chain.
    ///
    /// # Errors
    /// [`ForkError`] says what is missing.
    pub fn check(&self) -> Result<Forked, ForkError> {
        let (mut lower, mut upper) = (read(&self.a)?, read(&self.b)?);
        if upper.1 < lower.1 {
            std::mem::swap(&mut lower, &mut upper);
        }
        let (
            Place {
                mesh,
                space,
                author,
                seq,
                prev,
            },
            id,
        ) = lower;
        let is_one = (mesh, space, author, seq)
            == (upper.0.mesh, upper.0.space, upper.0.author, upper.0.seq);
        if !is_one || id == upper.1 {
            return Err(ForkError::NoContradiction);
        }
        Ok(Forked {
            mesh,
            author,
            space,
            seq,
            ids: [id, upper.1],
            prev,
        })
    }
}

/// Reads the place of a fragment and checks its signature; returns its id as well.
fn read(bytes: &[u8]) -> Result<(Place, Hash), ForkError> {
    let sealed = envelope::parse(bytes, MAX_FRAGMENT_ENVELOPE)?;
    cbor::check_canonical(sealed.payload).map_err(|_| ForkError::Unreadable)?;
    let place = place(sealed.payload).map_err(|_| ForkError::Unreadable)?;
    let place = place.ok_or(ForkError::Unreadable)?;
    if sealed.signer.as_bytes() != place.author.as_bytes() {
        return Err(ForkError::Unreadable);
    }
    sealed.verify(FRAGMENT_DOMAIN)?;
    Ok((place, Hash::of(sealed.payload)))
}

fn place(payload: &[u8]) -> Result<Option<Place>, minicbor::decode::Error> {
    let mut d = Decoder::new(payload);
    let is_fragment = d.array()?.is_some_and(|fields| fields >= 7) && d.u8()? == VERSION;
    if !is_fragment {
        return Ok(None);
    }
    let (mesh, space, author) = (d.decode()?, d.decode()?, d.decode()?);
    let _node: NodeId = d.decode()?;
    let seq = d.u64()?;
    // The first of a chain has none before it, every other one has.
    let prev: Option<Hash> = match d.datatype()? {
        Type::Null => None,
        _ => Some(d.decode()?),
    };
    Ok((prev.is_some() == (seq > 0)).then_some(Place {
        mesh,
        space,
        author,
        seq,
        prev,
    }))
}
