//! The hybrid logical clock: ranks and displays, decides nothing.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Serialize};

/// How far ahead of our own clock a foreign one may pull us, in milliseconds.
pub const MAX_HLC_LEAD_MS: u64 = 10 * 60 * 1000;

const COUNTER_BITS: u32 = 16;

/// A moment: Unix milliseconds in the upper 48 bits, a counter in the lower 16.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hlc(u64);

impl Hlc {
    /// Returns the first moment of a millisecond.
    #[must_use]
    pub const fn from_ms(unix_ms: u64) -> Self {
        Self(unix_ms << COUNTER_BITS)
    }

    /// Wraps the packed form.
    #[must_use]
    pub const fn from_u64(packed: u64) -> Self {
        Self(packed)
    }

    /// Returns the packed form.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the Unix milliseconds.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// Returns the counter within the millisecond.
    #[must_use]
    pub const fn counter(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// Returns this moment, or the latest one a reader at `now_ms` should rank by.
    ///
    /// A writer whose clock runs ahead, by accident or to look newest, gains ten minutes at most.
    #[must_use]
    pub fn clamped(self, now_ms: u64) -> Self {
        self.min(Self::from_ms(now_ms.saturating_add(MAX_HLC_LEAD_MS)))
    }
}

impl fmt::Debug for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hlc({}ms+{})", self.unix_ms(), self.counter())
    }
}

impl<C> Encode<C> for Hlc {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.u64(self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Hlc {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        d.u64().map(Self)
    }
}

/// Hands out moments that only grow, on one node.
#[derive(Debug, Default, Clone)]
pub struct HlcClock {
    last: Hlc,
}

impl HlcClock {
    /// Starts after `last`, the greatest moment this node has stored.
    #[must_use]
    pub const fn starting_after(last: Hlc) -> Self {
        Self { last }
    }

    /// Returns the next moment; greater than every one before it, whatever the wall clock did.
    pub fn tick(&mut self, now_ms: u64) -> Hlc {
        self.last = Hlc(self.last.0.saturating_add(1)).max(Hlc::from_ms(now_ms));
        self.last
    }

    /// Takes note of a foreign moment, so that what we write next ranks after what we have read.
    ///
    /// One more than [`MAX_HLC_LEAD_MS`] ahead of our clock is ignored: it would drag us along.
    pub fn observe(&mut self, now_ms: u64, foreign: Hlc) {
        if foreign == foreign.clamped(now_ms) {
            self.last = self.last.max(foreign);
        }
    }

    /// Returns the last moment handed out or observed.
    #[must_use]
    pub const fn last(&self) -> Hlc {
        self.last
    }
}

/// Reads this machine's wall clock, in Unix milliseconds; 0 if it stands before 1970.
///
/// For the shells: cores are handed the time.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_grow_even_when_the_wall_clock_goes_back() {
        let mut clock = HlcClock::default();
        let first = clock.tick(1_000_000);
        let second = clock.tick(10);
        let third = clock.tick(1_000_000);
        assert!(first < second && second < third);
    }

    #[test]
    fn a_foreign_clock_pulls_us_ten_minutes_at_most() {
        let mut clock = HlcClock::default();
        let now = 1_000_000_000;
        clock.observe(now, Hlc::from_ms(now + MAX_HLC_LEAD_MS));
        assert_eq!(clock.last().unix_ms(), now + MAX_HLC_LEAD_MS);
        clock.observe(now, Hlc::from_ms(now + MAX_HLC_LEAD_MS + 1));
        clock.observe(now, Hlc::from_u64(u64::MAX));
        assert_eq!(clock.tick(now).unix_ms(), now + MAX_HLC_LEAD_MS);
    }
}
