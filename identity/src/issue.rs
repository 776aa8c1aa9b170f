//! Making records.
#![allow(unused_variables, missing_docs)]
use crate::{
    authority::Authority, epoch::SpaceKey, id::{AgentId, InviteId, NodeId, PublicKey, SpaceId}, invite::{Invite, InviteEndpoint},
    keys::{AgentKey, NodeKey, RootKey}, record::SignedRecord, role::Role,
};
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError { #[error("not allowed")] NotAllowed }
#[derive(Debug, Clone)]
pub struct InviteParams { pub role: Role, pub spaces: Vec<SpaceId>, pub uses: u16, pub not_after_ms: u64, pub approve: bool, pub endpoints: Vec<InviteEndpoint> }
pub fn found(root: &RootKey, next_root: &PublicKey, node: &NodeId, node_name: &str, mesh_name: &str, now_ms: u64) -> Result<Vec<SignedRecord>, IssueError> { todo!() }
pub fn create_space(node: &NodeKey, authority: &Authority, name: &str, now_ms: u64) -> Result<(SignedRecord, SpaceKey), IssueError> { todo!() }
pub fn open_invite(node: &NodeKey, authority: &Authority, params: InviteParams, now_ms: u64) -> Result<(SignedRecord, Invite), IssueError> { todo!() }
#[allow(clippy::too_many_arguments)]
pub fn grant(node: &NodeKey, authority: &Authority, to: NodeId, name: &str, role: Role, spaces: &[SpaceId], keys: &dyn Fn(&SpaceId, u32) -> Option<SpaceKey>, invite: Option<InviteId>, now_ms: u64) -> Result<SignedRecord, IssueError> { todo!() }
pub fn certify_agent(node: &NodeKey, authority: &Authority, agent: &AgentKey, name: &str, spaces: Option<Vec<SpaceId>>, not_after_ms: Option<u64>, now_ms: u64) -> Result<SignedRecord, IssueError> { todo!() }
