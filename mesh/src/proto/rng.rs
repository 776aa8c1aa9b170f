//! The randomness of the cores: a stream that its seed determines.

use std::{fmt, time::Duration};

use rhizome_identity::NodeId;

/// A seeded generator; unpredictable to peers as long as the seed is.
pub(super) struct Rng(blake3::OutputReader);

impl Rng {
    pub(super) fn new(context: &'static str, me: &NodeId, seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(me.as_bytes()).update(&seed.to_le_bytes());
        Self(hasher.finalize_xof())
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes);
        bytes
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * bound as u128;
        usize::try_from(wide >> 64).expect("a number below a usize")
    }

    /// Returns `around` moved by up to a fifth either way.
    pub(super) fn jitter(&mut self, around: Duration) -> Duration {
        let permille = 800 + u32::try_from(self.below(401)).expect("at most 400");
        around * permille / 1000
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rng").finish_non_exhaustive()
    }
}
