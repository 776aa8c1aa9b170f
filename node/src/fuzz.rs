//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `tests/fuzz.rs` drives them
//! (`docs/howto/fuzz.md`); nothing else should.

use crate::e2b::connect;

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("connect_frames", connect::fuzz, connect::samples)];
