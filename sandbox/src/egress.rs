//! The network boundary of a guest: its packets end here, and what may leave is decided here.
//!
//! A guest has no network card. A TUN device takes its packets to its agent, and the agent brings
//! them here over a stream of the guest channel ([`GuestChannel::open_net`]). A stack of our own
//! ends every connection; the [`Policy`] of the sandbox says which ones go on outside, by names
//! that the guest looked up with our resolver. Everything else ends here, and is told: to the
//! program by an error at once, to the agent as a [`Denial`], to the node as an [`EgressEvent`].
//! `docs/network.md` has the whole picture.
//!
//! Bytes of a guest are hostile. The stack sees only packets that [`packet`] has read, of
//! connections that were let through; every table and queue has a bound.
//!
//! [`GuestChannel::open_net`]: crate::channel::GuestChannel::open_net

mod address;
mod boundaries;
mod boundary;
mod carry;
mod denial;
mod dns;
mod gateway;
mod hello;
mod http;
mod name;
mod outside;
mod packet;
mod policy;
mod resolved;
mod rule;
mod secrets;
mod stack;
mod store;

use std::net::Ipv4Addr;

pub use boundaries::{Boundaries, EgressConfig, EgressError};
pub use boundary::{EgressEvent, EgressUsage};
pub use denial::{Attempt, Denial};
pub use name::{DomainName, NameError, NamePattern};
pub use outside::{HostNetwork, LookupError, Outside};
pub use policy::{Carry, Decision, Denied, MAX_RULES, Otherwise, Policy, PolicyError, Request};
pub use rule::{Rule, RuleError};
pub use secrets::{Authority, AuthorityError, Secret, SecretError, SecretParts};
pub use store::{SecretStore, SecretStoreError};

/// The node's end of the guest's network: its resolver, and the way to everything else.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 107, 0, 1);
/// The guest's end.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 107, 0, 2);
/// Bits of the network that both are in.
pub const PREFIX: u8 = 24;
/// Longest packet, in bytes. Nothing but memory lies between the two ends, and each packet costs.
pub const MTU: u16 = 16 * 1024;
