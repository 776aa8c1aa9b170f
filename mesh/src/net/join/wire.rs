//! What joiner and inviter say to each other (`docs/wire.md`, section 6.2).

use minicbor::{Decode, Encode};
use rhizome_identity::{Domain, InviteId, MeshId, NodeId};

use crate::net::Refusal;

/// The version of the join protocol.
pub(super) const VERSION: u8 = 1;
/// The largest request: a signature, a name and a signed address.
pub(super) const MAX_REQUEST: usize = 8 * 1024;
/// The longest name of a node, in bytes.
pub(super) const MAX_NAME: usize = 128;
/// The label under which both sides derive the channel binding from their TLS session.
pub(super) const BINDING_LABEL: &[u8] = b"EXPORTER-rhizome-join-1";
/// What the invite key signs.
pub(super) const DOMAIN: Domain = Domain("rhizome/join/1");

/// Kinds of frames.
pub(super) mod kind {
    /// Joiner to inviter: [`super::Request`].
    pub(in super::super) const REQUEST: u8 = 0;
    /// Inviter to joiner: [`super::Refused`]; the last frame.
    pub(in super::super) const REFUSED: u8 = 1;
    /// Inviter to joiner: authority records, each with a `u32` length before it.
    pub(in super::super) const RECORDS: u8 = 2;
    /// Inviter to joiner: signed addresses of members, as in the sync protocol.
    pub(in super::super) const NODE_INFOS: u8 = 3;
    /// Inviter to joiner: everything is sent.
    pub(in super::super) const WELCOME: u8 = 4;
}

/// Asks for membership.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct Request {
    #[n(0)]
    pub(super) version: u8,
    #[n(1)]
    pub(super) mesh: MeshId,
    #[n(2)]
    pub(super) invite: InviteId,
    /// The invite key's signature over [`proof_message`].
    #[cbor(n(3), with = "minicbor::bytes")]
    pub(super) proof: Vec<u8>,
    #[n(4)]
    pub(super) node_name: String,
    /// The joiner's signed address-book entry; may be empty.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub(super) node_info: Vec<u8>,
}

/// Says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(super) struct Refused {
    #[n(0)]
    pub(super) code: u8,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Unknown => 1,
            Refusal::Expired => 2,
            Refusal::Spent => 3,
            Refusal::Closed => 4,
            Refusal::WrongMesh => 5,
            Refusal::Busy => 6,
            Refusal::Failed => 7,
            Refusal::ApprovalNeeded => 8,
            Refusal::NotIssuer => 9,
        };
        Self { code }
    }
}

impl Refused {
    /// Returns the refusal behind the code; a newer inviter's codes read as a failure.
    pub(super) fn refusal(self) -> Refusal {
        match self.code {
            1 => Refusal::Unknown,
            2 => Refusal::Expired,
            3 => Refusal::Spent,
            4 => Refusal::Closed,
            5 => Refusal::WrongMesh,
            6 => Refusal::Busy,
            8 => Refusal::ApprovalNeeded,
            9 => Refusal::NotIssuer,
            _ => Refusal::Failed,
        }
    }
}

/// Returns what the invite key signs: it names both nodes and this one TLS session, so that
/// whoever relays or records a join can't repeat it elsewhere.
pub(super) fn proof_message(
    mesh: &MeshId,
    invite: &InviteId,
    joiner: &NodeId,
    inviter: &NodeId,
    binding: &[u8; 32],
) -> Vec<u8> {
    let mut message = DOMAIN.0.as_bytes().to_vec();
    message.push(0);
    for part in [
        mesh.as_bytes(),
        invite.as_bytes(),
        joiner.as_bytes(),
        inviter.as_bytes(),
        binding,
    ] {
        message.extend_from_slice(part);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_survives_its_code() {
        for refusal in [
            Refusal::Unknown,
            Refusal::Expired,
            Refusal::Spent,
            Refusal::Closed,
            Refusal::WrongMesh,
            Refusal::Busy,
            Refusal::Failed,
            Refusal::ApprovalNeeded,
            Refusal::NotIssuer,
        ] {
            assert_eq!(Refused::from(refusal).refusal(), refusal);
        }
        assert_eq!(Refused { code: 200 }.refusal(), Refusal::Failed);
    }
}
