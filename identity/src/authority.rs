//! Who may do what, resolved from the set of signed records.
#![allow(unused_variables, missing_docs)]
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    epoch::WrappedKey,
    id::{AgentId, Hash, InviteId, MeshId, NodeId, PublicKey, RecordId, SpaceId},
    record::{RecordError, SignedRecord},
    role::Role,
};

#[derive(Debug, Clone)]
pub struct Member { pub node: NodeId, pub name: String, pub role: Role, pub spaces: BTreeMap<SpaceId, Role>, pub grant: RecordId, pub since_ms: u64 }
#[derive(Debug, Clone)]
pub struct SpaceInfo { pub id: SpaceId, pub name: String, pub epoch: u32, pub created_by: NodeId, pub at_ms: u64 }
#[derive(Debug, Clone)]
pub struct AgentInfo { pub id: AgentId, pub name: String, pub node: NodeId, pub spaces: Option<BTreeSet<SpaceId>>, pub not_after_ms: Option<u64>, pub chain: Vec<RecordId> }
#[derive(Debug, Clone)]
pub struct InviteState { pub id: InviteId, pub role: Role, pub spaces: Vec<SpaceId>, pub uses: u16, pub used: u16, pub not_after_ms: u64, pub issuer: NodeId, pub closed: bool }
#[derive(Debug, Clone)]
pub struct Proof { pub chain: Vec<RecordId> }
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    #[error("unknown agent")] UnknownAgent,
    #[error("not certified by that node")] NotCertifiedBy,
    #[error("not a member")] NotMember,
    #[error("role too low")] RoleTooLow,
    #[error("space not granted")] SpaceNotGranted,
    #[error("expired")] Expired,
    #[error("revoked")] Revoked,
}
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceLookupError { #[error("no space is named `{0}`")] Unknown(String), #[error("several spaces are named `{0}`")] Ambiguous(String) }
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VoidReason { #[error("not allowed")] NotAllowed }
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted { New { freed: Vec<RecordId> }, Duplicate, Waiting }

#[derive(Debug, Clone, Default)]
pub struct RecordLog { records: BTreeMap<RecordId, SignedRecord> }
impl RecordLog {
    pub fn insert(&mut self, record: SignedRecord) -> Result<Inserted, RecordError> { todo!() }
    pub fn get(&self, id: &RecordId) -> Option<&SignedRecord> { self.records.get(id) }
    pub fn contains(&self, id: &RecordId) -> bool { self.records.contains_key(id) }
    pub fn ids(&self) -> impl Iterator<Item = &RecordId> { self.records.keys() }
    pub fn len(&self) -> usize { self.records.len() }
    pub fn is_empty(&self) -> bool { self.records.is_empty() }
    pub fn heads(&self) -> Vec<RecordId> { todo!() }
    pub fn missing_parents(&self) -> BTreeSet<RecordId> { todo!() }
    pub fn resolve(&self) -> Authority { resolve(&self.records) }
}
pub fn resolve(records: &BTreeMap<RecordId, SignedRecord>) -> Authority { todo!() }

#[derive(Debug, Clone, Default)]
pub struct Authority {}
impl Authority {
    pub fn mesh(&self) -> Option<MeshId> { todo!() }
    pub fn name(&self) -> &str { todo!() }
    pub fn root(&self) -> Option<PublicKey> { todo!() }
    pub fn heads(&self) -> &[RecordId] { todo!() }
    pub fn members(&self) -> impl Iterator<Item = &Member> { std::iter::empty() }
    pub fn member(&self, node: &NodeId) -> Option<&Member> { todo!() }
    pub fn is_member(&self, node: &NodeId) -> bool { todo!() }
    pub fn spaces(&self) -> impl Iterator<Item = &SpaceInfo> { std::iter::empty() }
    pub fn space(&self, space: &SpaceId) -> Option<&SpaceInfo> { todo!() }
    pub fn space_named(&self, name: &str) -> Result<&SpaceInfo, SpaceLookupError> { todo!() }
    pub fn role_in(&self, node: &NodeId, space: &SpaceId) -> Option<Role> { todo!() }
    pub fn agents(&self) -> impl Iterator<Item = &AgentInfo> { std::iter::empty() }
    pub fn agent(&self, agent: &AgentId) -> Option<&AgentInfo> { todo!() }
    pub fn may_write(&self, agent: &AgentId, node: &NodeId, space: &SpaceId, at_ms: u64) -> Result<Proof, Denied> { todo!() }
    pub fn cut(&self, agent: &AgentId, space: &SpaceId) -> Option<(u64, Hash)> { todo!() }
    pub fn invite(&self, invite: &InviteId) -> Option<&InviteState> { todo!() }
    pub fn invites(&self) -> impl Iterator<Item = &InviteState> { std::iter::empty() }
    pub fn wrapped_keys_for(&self, node: &NodeId) -> impl Iterator<Item = (SpaceId, u32, &WrappedKey)> { std::iter::empty() }
    pub fn void(&self) -> &[(RecordId, VoidReason)] { todo!() }
}
