//! A node's entry in the address book, signed by the node itself.

use std::net::{IpAddr, SocketAddr};

use minicbor::{Decode, Encode};

use crate::{
    cbor::{self, CborError},
    envelope::{self, Domain, EnvelopeError},
    id::NodeId,
    keys::NodeKey,
    record::is_name,
    relay_url::is_relay_url,
};

/// What the signature of an entry is bound to.
pub const NODE_INFO_DOMAIN: Domain = Domain("rhizome/node-info/1");
/// The most addresses in an entry.
pub const MAX_ADDRS: usize = 16;
/// The largest entry, in bytes.
pub const MAX_BYTES: usize = 2 * 1024;
/// The most relays through which an entry says that its node can be reached.
pub const MAX_VIA: usize = 2;
const MAX_VERSION_BYTES: usize = 64;

/// Where a node says it can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its addresses, at most [`MAX_ADDRS`].
    pub addrs: Vec<SocketAddr>,
    /// When it said so, in Unix milliseconds by its own clock; of two entries the later counts.
    pub seq_ms: u64,
    /// The version of the software it runs.
    pub version: String,
    /// The URL of the relay that it serves for the mesh, if it does; see [`is_relay_url`].
    pub relay: Option<String>,
    /// The URLs of the relays through which it can be reached, at most [`MAX_VIA`].
    pub via: Vec<String>,
}

/// Why bytes are not an acceptable entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeInfoError {
    /// The envelope is broken or its signature is wrong.
    #[error("the address book entry's envelope is not acceptable")]
    Envelope(#[from] EnvelopeError),
    /// The content is not the deterministic CBOR of an entry.
    #[error("the address book entry is malformed")]
    Cbor(#[from] CborError),
    /// A rule is broken.
    #[error("the address book entry breaks a rule: {0}")]
    Malformed(&'static str),
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Layout {
    #[n(0)]
    name: String,
    #[n(1)]
    addrs: Vec<Addr>,
    #[n(2)]
    seq_ms: u64,
    #[n(3)]
    version: String,
    // Left out by a node that knows of no relay, so that its entry is the one of earlier versions.
    #[n(4)]
    relay: Option<String>,
    #[n(5)]
    via: Option<Vec<String>>,
}

#[derive(Encode, Decode)]
struct Addr {
    #[cbor(n(0), with = "minicbor::bytes")]
    ip: Vec<u8>,
    #[n(1)]
    port: u16,
}

impl NodeInfo {
    /// Signs the entry.
    ///
    /// # Errors
    /// [`NodeInfoError::Malformed`] if it breaks a rule, or `key` is another node's.
    pub fn sign(&self, key: &NodeKey) -> Result<Vec<u8>, NodeInfoError> {
        self.check()?;
        if key.id() != self.node {
            return Err(NodeInfoError::Malformed("a node speaks for itself alone"));
        }
        let addrs = self.addrs.iter().map(|addr| Addr {
            ip: match addr.ip() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            },
            port: addr.port(),
        });
        let layout = Layout {
            name: self.name.clone(),
            addrs: addrs.collect(),
            seq_ms: self.seq_ms,
            version: self.version.clone(),
            relay: self.relay.clone(),
            via: Some(self.via.clone()).filter(|via| !via.is_empty()),
        };
        Ok(envelope::seal(
            key.secret(),
            NODE_INFO_DOMAIN,
            &cbor::encode_canonical(&layout),
        ))
    }

    /// Parses an entry and checks its signature; the node is whoever signed it.
    ///
    /// # Errors
    /// [`NodeInfoError`] says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<NodeInfo, NodeInfoError> {
        let sealed = envelope::parse(bytes, MAX_BYTES)?;
        let layout: Layout = cbor::decode_canonical(sealed.payload)?;
        let mut addrs = Vec::with_capacity(layout.addrs.len().min(MAX_ADDRS));
        for addr in &layout.addrs {
            let ip = match addr.ip.len() {
                4 => <[u8; 4]>::try_from(&addr.ip[..]).map(IpAddr::from).ok(),
                16 => <[u8; 16]>::try_from(&addr.ip[..]).map(IpAddr::from).ok(),
                _ => None,
            };
            let ip = ip.ok_or(NodeInfoError::Malformed("an address has 4 or 16 bytes"))?;
            addrs.push(SocketAddr::new(ip, addr.port));
        }
        let info = NodeInfo {
            node: NodeId::from_bytes(*sealed.signer.as_bytes()),
            name: layout.name,
            addrs,
            seq_ms: layout.seq_ms,
            version: layout.version,
            relay: layout.relay,
            via: layout.via.unwrap_or_default(),
        };
        info.check()?;
        sealed.verify(NODE_INFO_DOMAIN)?;
        Ok(info)
    }

    fn check(&self) -> Result<(), NodeInfoError> {
        if !is_name(&self.name) {
            return Err(NodeInfoError::Malformed(
                "a name is 1 to 64 bytes without control characters",
            ));
        }
        if self.addrs.len() > MAX_ADDRS {
            return Err(NodeInfoError::Malformed("at most 16 addresses"));
        }
        if self.version.len() > MAX_VERSION_BYTES || self.version.chars().any(char::is_control) {
            return Err(NodeInfoError::Malformed("a version is at most 64 bytes"));
        }
        if self.via.len() > MAX_VIA {
            return Err(NodeInfoError::Malformed("at most 2 relays lead to a node"));
        }
        if !self
            .relay
            .iter()
            .chain(&self.via)
            .all(|url| is_relay_url(url))
        {
            return Err(NodeInfoError::Malformed(
                "a relay is an http or https URL of at most 128 bytes",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(key: &NodeKey) -> NodeInfo {
        NodeInfo {
            node: key.id(),
            name: "cloud".into(),
            addrs: vec![
                "10.0.0.2:4580".parse().unwrap(),
                "[2001:db8::1]:4580".parse().unwrap(),
            ],
            seq_ms: 42,
            version: "0.1.0".into(),
            relay: Some("http://10.0.0.2:4583/".into()),
            via: vec!["https://relay.example.org/".into()],
        }
    }

    #[test]
    fn an_entry_is_its_nodes_own() {
        let key = NodeKey::generate();
        let info = info(&key);
        let bytes = info.sign(&key).unwrap();
        assert_eq!(NodeInfo::parse(&bytes).unwrap(), info);
        assert!(info.sign(&NodeKey::generate()).is_err());
        for position in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[position] ^= 1;
            assert!(NodeInfo::parse(&bad).is_err(), "byte {position}");
        }
    }

    #[test]
    fn an_entry_is_bounded() {
        let key = NodeKey::generate();
        let mut many = info(&key);
        many.addrs = vec!["10.0.0.2:1".parse().unwrap(); MAX_ADDRS + 1];
        assert!(many.sign(&key).is_err());
        let mut name = info(&key);
        name.name = "a\x1b[2J".into();
        assert!(name.sign(&key).is_err());
        let mut via = info(&key);
        via.via = vec!["http://10.0.0.2:1/".into(); MAX_VIA + 1];
        assert!(via.sign(&key).is_err());
        let mut relay = info(&key);
        relay.relay = Some("ftp://10.0.0.2/".into());
        assert!(relay.sign(&key).is_err());
    }

    #[test]
    fn an_entry_without_relays_is_that_of_earlier_versions() {
        let key = NodeKey::generate();
        let mut plain = info(&key);
        (plain.relay, plain.via) = (None, Vec::new());
        let bytes = plain.sign(&key).unwrap();
        let sealed = envelope::parse(&bytes, MAX_BYTES).unwrap();
        assert_eq!(sealed.payload[0], 0xa4, "a map of four");
        assert_eq!(NodeInfo::parse(&bytes).unwrap(), plain);
    }
}
