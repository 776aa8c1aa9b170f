//! What a record can decide, kind by kind, in its final layout.

use minicbor::{Decode, Encode};

use crate::{
    epoch::WrappedKey,
    id::{AgentId, Hash, InviteId, NodeId, PublicKey, RecordId, SpaceId},
    role::Role,
};

/// What a record decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordBody {
    /// Founds the mesh.
    Genesis(Genesis),
    /// Makes a node a member, or changes what it may do.
    Grant(Grant),
    /// Makes a space.
    SpaceCreate(SpaceCreate),
    /// Lets newcomers in by an invite.
    InviteOpen(InviteOpen),
    /// Ends an invite early.
    InviteClose(InviteClose),
    /// Lets an agent act for a node.
    AgentCert(AgentCert),
    /// Ends what a node or an agent may do.
    Revoke(Revoke),
    /// Raises the cuts of a revocation.
    Amend(Amend),
    /// Gives a space a new key.
    KeyEpoch(KeyEpoch),
    /// Replaces the root by the key that Genesis committed to.
    RotateRoot(RotateRoot),
    /// Shows that an author signed two fragments in one place of its chain.
    ForkProof(ForkProof),
    /// Vouches for a compacted state of a space.
    Checkpoint(Checkpoint),
    /// A kind of a later version, kept as it is.
    Unknown(UnknownBody),
}

impl RecordBody {
    /// Returns the word for the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            RecordBody::Genesis(_) => "genesis",
            RecordBody::Grant(_) => "grant",
            RecordBody::SpaceCreate(_) => "space-create",
            RecordBody::InviteOpen(_) => "invite-open",
            RecordBody::InviteClose(_) => "invite-close",
            RecordBody::AgentCert(_) => "agent-cert",
            RecordBody::Revoke(_) => "revoke",
            RecordBody::Amend(_) => "amend",
            RecordBody::KeyEpoch(_) => "key-epoch",
            RecordBody::RotateRoot(_) => "rotate-root",
            RecordBody::ForkProof(_) => "fork-proof",
            RecordBody::Checkpoint(_) => "checkpoint",
            RecordBody::Unknown(_) => "unknown",
        }
    }
}

/// Founds the mesh; signed by the root it names.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Genesis {
    /// The mesh's name.
    #[n(0)]
    pub name: String,
    /// The root key.
    #[n(1)]
    pub root: PublicKey,
    /// The hash of the next root key ([`crate::issue::next_root_hash`]).
    #[n(2)]
    pub next_root_hash: Hash,
    /// Randomness that makes the mesh id unique.
    #[cbor(n(3), with = "minicbor::bytes")]
    pub nonce: [u8; 16],
}

/// A role in one space, with the space's keys for a node that may read.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SpaceGrant {
    /// The space.
    #[n(0)]
    pub space: SpaceId,
    /// The role in it.
    #[n(1)]
    pub role: Role,
    /// The space's keys, wrapped to the node.
    #[n(2)]
    pub keys: Vec<WrappedKey>,
}

/// Makes a node a member, or changes what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Grant {
    /// The node.
    #[n(0)]
    pub node: NodeId,
    /// Its name.
    #[n(1)]
    pub node_name: String,
    /// Its role in the mesh.
    #[n(2)]
    pub role: Role,
    /// Its roles in spaces, ascending by space; spaces not named stay as they were.
    #[n(3)]
    pub spaces: Vec<SpaceGrant>,
    /// The invite it came by.
    #[n(4)]
    pub invite: Option<InviteId>,
}

/// A space key wrapped to one node.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct NodeWrap {
    /// The node that can unwrap it.
    #[n(0)]
    pub node: NodeId,
    /// The wrapped key.
    #[n(1)]
    pub key: WrappedKey,
}

/// Makes a space; its issuer becomes the space's admin.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SpaceCreate {
    /// The space's name.
    #[n(0)]
    pub name: String,
    /// Randomness that makes the space id unique and that every wrap of its keys is bound to.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub nonce: [u8; 16],
    /// Which key is that of epoch 1 ([`crate::SpaceKey::commitment`]).
    #[n(2)]
    pub commitment: Hash,
    /// The key of epoch 1, wrapped to the nodes that may read from the start.
    #[n(3)]
    pub keys: Vec<NodeWrap>,
}

/// Lets newcomers in by an invite.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct InviteOpen {
    /// The invite: its public key.
    #[n(0)]
    pub invite: InviteId,
    /// The role that it gives, in the mesh and in its spaces, at most.
    #[n(1)]
    pub role: Role,
    /// The spaces that it opens, ascending.
    #[n(2)]
    pub spaces: Vec<SpaceId>,
    /// How many nodes it may let in.
    #[n(3)]
    pub uses: u16,
    /// When it ends, in Unix milliseconds; looked at once, by the node that admits.
    #[n(4)]
    pub not_after_ms: u64,
    /// Whether a person approves each newcomer.
    #[n(5)]
    pub approve: bool,
}

/// Ends an invite early: Grants made after it by this invite are void.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct InviteClose {
    /// The invite.
    #[n(0)]
    pub invite: InviteId,
}

/// What a certificate lets an agent do: a set of bits, unknown ones kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Verbs(#[n(0)] pub u32);

impl Verbs {
    /// Read memory.
    pub const READ: Verbs = Verbs(1);
    /// Publish memory.
    pub const WRITE: Verbs = Verbs(2);
    /// Run sandboxes.
    pub const RUN: Verbs = Verbs(4);
    /// Certify other agents.
    pub const CERTIFY: Verbs = Verbs(8);
    /// All that this version knows.
    pub const ALL: Verbs = Verbs(15);

    /// Whether all of `other` is included.
    pub fn includes(self, other: Verbs) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Lets an agent act for a node; signed by the node, or by an agent that it certified.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct AgentCert {
    /// The agent.
    #[n(0)]
    pub agent: AgentId,
    /// Its name.
    #[n(1)]
    pub name: String,
    /// The spaces it may act in, ascending; all of its issuer's when absent.
    #[n(2)]
    pub spaces: Option<Vec<SpaceId>>,
    /// What it may do.
    #[n(3)]
    pub verbs: Verbs,
    /// Until when, in Unix milliseconds.
    #[n(4)]
    pub not_after_ms: Option<u64>,
    /// The agent key's own signature over mesh and issuer: nobody certifies a key they lack,
    /// so nobody can claim another's agent.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub possession: [u8; 64],
}

/// The last fragment of an author in a space that stays valid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(map)]
pub struct Cut {
    /// The author.
    #[n(0)]
    pub author: AgentId,
    /// The space.
    #[n(1)]
    pub space: SpaceId,
    /// The sequence number of that fragment.
    #[n(2)]
    pub seq: u64,
    /// The fragment's id.
    #[n(3)]
    pub hash: Hash,
}

/// Ends what a node or an agent may do; what its cuts name stays valid.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Revoke {
    /// The node or agent.
    #[n(0)]
    pub subject: PublicKey,
    /// Where each chain is cut; nothing of a chain that is not named stays valid.
    #[n(1)]
    pub cuts: Vec<Cut>,
    /// Why, for people.
    #[n(2)]
    pub reason: String,
}

/// Raises the cuts of a revocation; by the same revoker or the root, later.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Amend {
    /// The Revoke.
    #[n(0)]
    pub revoke: RecordId,
    /// The new cuts.
    #[n(1)]
    pub cuts: Vec<Cut>,
}

/// Gives a space a new key.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct KeyEpoch {
    /// The space.
    #[n(0)]
    pub space: SpaceId,
    /// The epoch's number, one more than the last.
    #[n(1)]
    pub epoch: u32,
    /// Which key it is ([`crate::SpaceKey::commitment`]).
    #[n(2)]
    pub commitment: Hash,
    /// The key, wrapped to each reader.
    #[n(3)]
    pub wraps: Vec<NodeWrap>,
    /// The previous key sealed under this one, so that newcomers may read what came before.
    #[cbor(n(4), with = "optional_bytes", has_nil)]
    pub previous: Option<Vec<u8>>,
}

/// Replaces the root; signed by the new root, to which the last one committed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct RotateRoot {
    /// The new root key.
    #[n(0)]
    pub root: PublicKey,
    /// The hash of the root key after it.
    #[n(1)]
    pub next_root_hash: Hash,
}

/// Shows that an author signed two fragments in one place of its chain.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ForkProof {
    /// The envelope of one fragment.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub a: Vec<u8>,
    /// The envelope of the other.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub b: Vec<u8>,
}

/// Vouches for a compacted state of a space.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Checkpoint {
    /// The space.
    #[n(0)]
    pub space: SpaceId,
    /// The fingerprint of the covered fragments.
    #[n(1)]
    pub covered: Hash,
    /// How many they are.
    #[n(2)]
    pub count: u64,
    /// The heads of the authority log that it was made under.
    #[n(3)]
    pub heads: Vec<RecordId>,
    /// The last covered fragment of each author.
    #[n(4)]
    pub authors: Vec<Cut>,
    /// The snapshot's hash.
    #[n(5)]
    pub snapshot: Hash,
    /// The hash of the view that it gives.
    #[n(6)]
    pub view: Hash,
    /// Which rules made it.
    #[n(7)]
    pub rules: String,
}

/// The body of a kind of a later version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBody {
    /// The kind's number.
    pub kind: u64,
    /// The body's CBOR.
    pub raw: Vec<u8>,
}

/// Bytes that may be absent, as a CBOR byte string.
mod optional_bytes {
    use minicbor::{Decoder, Encoder};

    pub(super) fn encode<C, W: minicbor::encode::Write>(
        value: &Option<Vec<u8>>,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        match value {
            Some(bytes) => e.bytes(bytes)?.ok(),
            None => e.null()?.ok(),
        }
    }

    pub(super) fn decode<C>(
        d: &mut Decoder<'_>,
        _: &mut C,
    ) -> Result<Option<Vec<u8>>, minicbor::decode::Error> {
        Ok(Some(d.bytes()?.to_vec()))
    }

    pub(super) fn is_nil(value: &Option<Vec<u8>>) -> bool {
        value.is_none()
    }

    pub(super) fn nil() -> Option<Option<Vec<u8>>> {
        Some(None)
    }
}
