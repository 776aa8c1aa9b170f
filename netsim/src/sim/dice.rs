//! The one source of chance of a run.

use std::time::Duration;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Returns the seed in the variable `SEED`, or `default`.
///
/// # Panics
/// When `SEED` is set to something that is not a number.
pub fn seed_from_env_or(default: u64) -> u64 {
    std::env::var("SEED").map_or(default, |seed| seed.parse().expect("SEED is a number"))
}

#[derive(Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from((u128::from(self.next()) * bound as u128) >> 64).expect("below a usize")
    }

    /// Says yes in `per_mille` of a thousand cases.
    pub(super) fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as usize
    }

    /// Returns a duration from `lo` up to `hi`.
    pub(super) fn between(&mut self, lo: Duration, hi: Duration) -> Duration {
        let span = u64::try_from((hi - lo).as_nanos()).expect("spans are short");
        let nanos = (u128::from(self.next()) * u128::from(span.max(1))) >> 64;
        lo + Duration::from_nanos(u64::try_from(nanos).expect("below a u64"))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
