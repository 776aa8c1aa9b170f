//! Protocol cores: pure state machines, the very code of production and of the simulator.
//!
//! A core takes inputs and the time, returns outputs, and never awaits, reads a clock, draws
//! unseeded randomness or touches a socket (`docs/sync.md`).
//!
//! - [`reconcile`]: what two sets differ in, in few bytes and round trips
//! - [`replication`]: sessions with every peer, transfers, acknowledgements, anti-entropy
//! - [`address_book`]: whom to dial, and when again
//! - [`relays`]: which relays to use, and when to leave one

pub mod address_book;
pub mod reconcile;
pub mod relays;
pub mod replication;
mod rng;

use std::time::Duration;

/// Time since the core was started, from a clock that never goes back.
pub type Mono = Duration;
