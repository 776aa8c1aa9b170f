//! A node's signed address-book entry.
#![allow(unused_variables, missing_docs)]
use std::net::SocketAddr;
use crate::{envelope::EnvelopeError, id::NodeId, keys::NodeKey};
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo { pub node: NodeId, pub name: String, pub addrs: Vec<SocketAddr>, pub seq_ms: u64, pub version: String }
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeInfoError { #[error("broken envelope")] Envelope(#[from] EnvelopeError), #[error("malformed: {0}")] Malformed(&'static str) }
impl NodeInfo {
    pub fn sign(&self, key: &NodeKey) -> Result<Vec<u8>, NodeInfoError> { todo!() }
    pub fn parse(bytes: &[u8]) -> Result<NodeInfo, NodeInfoError> { todo!() }
}
