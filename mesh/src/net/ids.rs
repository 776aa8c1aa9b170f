//! One ed25519 key, three spellings: [`NodeId`], iroh's `EndpointId`, libp2p's `PeerId`.

use iroh::EndpointId;
use libp2p::{Multiaddr, PeerId, identity, multiaddr::Protocol};

use rhizome_identity::NodeId;

/// Returns the node that an iroh endpoint id names.
pub(crate) fn node_of_endpoint(id: &EndpointId) -> NodeId {
    NodeId::from_bytes(*id.as_bytes())
}

/// Returns the endpoint id of `node`, or `None` when its bytes are not a point of the curve.
pub(crate) fn endpoint_of_node(node: &NodeId) -> Option<EndpointId> {
    EndpointId::from_bytes(node.as_bytes()).ok()
}

/// Returns the libp2p peer id of `node`, or `None` when its bytes are not a point of the curve.
pub(crate) fn peer_of_node(node: &NodeId) -> Option<PeerId> {
    let key = identity::ed25519::PublicKey::try_from_bytes(node.as_bytes()).ok()?;
    Some(PeerId::from_public_key(&identity::PublicKey::from(key)))
}

/// Returns the node behind a libp2p peer id; `None` for anything but an inlined ed25519 key.
pub(crate) fn node_of_peer(peer: &PeerId) -> Option<NodeId> {
    let multihash = peer.as_ref();
    if multihash.code() != 0 {
        return None;
    }
    let key = identity::PublicKey::try_decode_protobuf(multihash.digest()).ok()?;
    Some(NodeId::from_bytes(key.try_into_ed25519().ok()?.to_bytes()))
}

/// Returns `/p2p/<peer>`: addresses are iroh's business, so libp2p sees none.
pub(crate) fn multiaddr_of_peer(peer: PeerId) -> Multiaddr {
    Multiaddr::empty().with(Protocol::P2p(peer))
}

/// Returns the peer that a bare `/p2p/<peer>` address names.
pub(crate) fn peer_of_multiaddr(addr: &Multiaddr) -> Option<PeerId> {
    let mut parts = addr.iter();
    match (parts.next(), parts.next()) {
        (Some(Protocol::P2p(peer)), None) => Some(peer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_spellings_round_trip() {
        let secret = iroh::SecretKey::from_bytes(&[7; 32]);
        let node = node_of_endpoint(&secret.public());
        assert_eq!(endpoint_of_node(&node), Some(secret.public()));
        let peer = peer_of_node(&node).unwrap();
        assert_eq!(node_of_peer(&peer), Some(node));
        assert_eq!(peer_of_multiaddr(&multiaddr_of_peer(peer)), Some(peer));
    }

    #[test]
    fn other_keys_and_addresses_are_refused() {
        assert_eq!(node_of_peer(&PeerId::random()), None);
        let routed: Multiaddr = "/ip4/127.0.0.1/udp/1".parse().unwrap();
        assert_eq!(peer_of_multiaddr(&routed), None);
    }
}
