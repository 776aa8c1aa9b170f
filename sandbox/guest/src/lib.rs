//! What a node and its guest say to each other.
//!
//! [`wire`] holds the frames and messages of the guest channel; both sides use it. The agent
//! itself, PID 1 of a microVM and its `rhizome` command, is the binary of this crate.
//! The bytes are described in `docs/guest-protocol.md`.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzz;
pub mod wire;
pub mod xattr;
