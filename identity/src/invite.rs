//! The invite string.
#![allow(unused_variables, missing_docs)]
use std::{fmt, net::SocketAddr, str::FromStr};
use zeroize::Zeroizing;
use crate::{authority::{Authority, InviteState}, id::{InviteId, MeshId, NodeId}, keys::SecretKey, role::Role};
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InviteEndpoint { pub node: NodeId, pub addrs: Vec<SocketAddr> }
#[derive(Clone)]
pub struct Invite { pub mesh: MeshId, pub seed: Zeroizing<[u8; 16]>, pub role: Role, pub uses: u16, pub not_after_ms: u64, pub endpoints: Vec<InviteEndpoint> }
impl fmt::Debug for Invite { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("Invite(..)") } }
impl Invite {
    pub fn key(&self) -> SecretKey { todo!() }
    pub fn id(&self) -> InviteId { todo!() }
}
impl fmt::Display for Invite { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { todo!() } }
impl FromStr for Invite { type Err = InviteError; fn from_str(text: &str) -> Result<Self, InviteError> { todo!() } }
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InviteError {
    #[error("not an invite")] NotAnInvite,
    #[error("the invite is truncated")] Truncated,
    #[error("the invite is mistyped")] Mistyped,
    #[error("invite version {0} is not known here")] Version(u8),
    #[error("the invite has expired")] Expired { not_after_ms: u64 },
}
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemError {
    #[error("unknown invite")] Unknown,
    #[error("the invite has expired")] Expired { not_after_ms: u64 },
    #[error("the invite is spent")] Spent { uses: u16 },
    #[error("the invite is closed")] Closed,
}
pub fn check_redeem<'a>(authority: &'a Authority, invite: &InviteId, now_ms: u64) -> Result<&'a InviteState, RedeemError> { todo!() }
