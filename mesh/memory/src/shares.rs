//! Fair shares: how much one author, one node or one space may write before others go first.
//!
//! Whoever writes more than their share is put off, in two steps: what is over the share is stored
//! after what is not and is not forwarded by gossip; what is over a multiple of it is refused, and
//! may be offered again once there is room. Authority records have no share: they travel, and are
//! stored, by themselves.
//!
//! Room comes back with the time that fragments claim, as far as this node's clock has come, or with
//! the time that really passes, whichever is more. So a newcomer that catches up with years of
//! work puts nobody off, however fast it comes, a clock that runs ahead gains nothing, and nobody
//! waits for longer than the share says. Pure: the caller brings the time.

use std::collections::BTreeMap;

use rhizome_identity::{AgentId, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

use crate::Header;

/// A day in milliseconds, over which bytes are counted.
const DAY_MS: u64 = 24 * 3600 * 1000;
/// A minute in milliseconds, over which fragments are counted.
const MINUTE_MS: u64 = 60 * 1000;
/// How many of one kind are counted at the same time; who wrote nothing for long goes first.
pub const MAX_COUNTED: usize = 16_384;

/// What one author, one node or one space may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Bytes a day, bodies included, also those that travel as blobs.
    pub bytes_a_day: u64,
    /// Fragments a minute.
    pub fragments_a_minute: u64,
}

/// The shares that a node grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ShareLimits {
    /// Each author's, over all spaces.
    pub author: Limit,
    /// Each node's, over all its authors.
    pub node: Limit,
    /// Each space's, over all its authors.
    pub space: Limit,
    /// How many times a share is used before more is refused; at least 1.
    pub refuse_at: u64,
}

impl Default for ShareLimits {
    /// Far above what agents write that think in between: a thousand fragments a second.
    fn default() -> Self {
        let author = Limit {
            bytes_a_day: 1 << 30,
            fragments_a_minute: 60_000,
        };
        let times = |factor| Limit {
            bytes_a_day: author.bytes_a_day * factor,
            fragments_a_minute: author.fragments_a_minute * factor,
        };
        Self {
            author,
            node: times(4),
            space: times(16),
            refuse_at: 8,
        }
    }
}

/// Whose share it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Sharer {
    /// An author's.
    Author(AgentId),
    /// A node's.
    Node(NodeId),
    /// A space's.
    Space(SpaceId),
}

impl Sharer {
    /// Returns the word for what it is.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Author(_) => "author",
            Self::Node(_) => "node",
            Self::Space(_) => "space",
        }
    }
}

impl std::fmt::Display for Sharer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Author(id) => write!(f, "author {id}"),
            Self::Node(id) => write!(f, "node {id}"),
            Self::Space(id) => write!(f, "space {id}"),
        }
    }
}

/// How a fragment stands to the shares it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Within all of them.
    Within,
    /// Over one: stored and sent on after others.
    Over(Sharer),
    /// Over a multiple of one: refused for now.
    Spent(Spent),
}

impl Share {
    /// Puts off what would be within the shares, because of what it follows.
    #[must_use]
    pub fn at_least(self, over: Sharer) -> Self {
        match self {
            Self::Within => Self::Over(over),
            other => other,
        }
    }
}

/// A share that is used up several times over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// Whose it is.
    pub whose: Sharer,
    /// When there is room for the next one, in milliseconds from now.
    pub retry_ms: u64,
}

/// How one share stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareUse {
    /// Whose it is.
    pub whose: Sharer,
    /// What is used of it in thousandths, the larger part of bytes and fragments.
    pub used_per_mille: u64,
    /// Bytes taken in since the start.
    pub bytes: u64,
    /// Fragments taken in since the start.
    pub fragments: u64,
    /// Those of them that were over the share.
    pub over: u64,
    /// Fragments refused since the start, each time they were offered.
    pub refused: u64,
}

impl ShareUse {
    /// Returns what is used in percent, rounded up.
    #[must_use]
    pub const fn used_percent(&self) -> u64 {
        self.used_per_mille.div_ceil(10)
    }
}

/// What everybody has used of their shares.
#[derive(Debug, Clone)]
pub struct Shares {
    limits: ShareLimits,
    meters: BTreeMap<Sharer, Meter>,
    /// How many meters of each kind there are, by [`Sharer::kind`].
    counted: BTreeMap<&'static str, usize>,
}

impl Shares {
    /// Returns shares of which nothing is used.
    #[must_use]
    pub fn new(limits: ShareLimits) -> Self {
        Self {
            limits,
            meters: BTreeMap::new(),
            counted: BTreeMap::new(),
        }
    }

    /// Returns what the shares are.
    #[must_use]
    pub fn limits(&self) -> &ShareLimits {
        &self.limits
    }

    /// Takes the room that a fragment needs, unless a share is spent; `now_ms` is this node's time.
    ///
    /// Call it only for what is signed by whom it names, or anyone uses up another's share.
    pub fn take(&mut self, header: &Header, now_ms: u64) -> Share {
        let at = Moment {
            claimed_ms: header.hlc.unix_ms().min(now_ms),
            now_ms,
        };
        let cost = cost_of(header);
        let sharers = sharers(header);
        let limits = self.limits;
        let mut share = Share::Within;
        for whose in sharers {
            let limit = limits.of(&whose);
            let meter = self.meter(whose, at);
            if let Some(retry_ms) = meter.wait(limit, cost, limits.refuse_at) {
                meter.refused += 1;
                return Share::Spent(Spent { whose, retry_ms });
            }
            if share == Share::Within && meter.wait(limit, cost, 1).is_some() {
                share = Share::Over(whose);
            }
        }
        for whose in sharers {
            self.meter(whose, at).add(cost, share != Share::Within);
        }
        share
    }

    /// Returns how the shares stand, those that are used most first.
    #[must_use]
    pub fn report(&self) -> Vec<ShareUse> {
        let mut uses: Vec<ShareUse> = self
            .meters
            .iter()
            .map(|(whose, meter)| meter.told(*whose, self.limits.of(whose)))
            .collect();
        uses.sort_by_key(|share| (std::cmp::Reverse(share.used_per_mille), share.whose));
        uses
    }

    /// Returns a meter as it is at a moment.
    fn meter(&mut self, whose: Sharer, at: Moment) -> &mut Meter {
        let limit = self.limits.of(&whose);
        if !self.meters.contains_key(&whose) {
            self.make_room(whose, at);
            *self.counted.entry(whose.kind()).or_default() += 1;
        }
        let meter = self.meters.entry(whose).or_insert_with(|| Meter::new(at));
        meter.drain(limit, at);
        meter
    }

    /// Forgets an eighth of a kind when there are too many of it: those whose share is free again,
    /// or who have written nothing for longest.
    fn make_room(&mut self, newcomer: Sharer, at: Moment) {
        let kind = newcomer.kind();
        if self.counted.get(kind).copied().unwrap_or(0) < MAX_COUNTED {
            return;
        }
        let limit = self.limits.of(&newcomer);
        let alike = self.meters.iter_mut();
        let alike = alike.filter(|(whose, _)| whose.kind() == kind);
        let mut last: Vec<(bool, u64, Sharer)> = alike
            .map(|(whose, meter)| {
                // Nothing is claimed here: real time alone gives room.
                let claimed_ms = meter.at.claimed_ms;
                meter.drain(limit, Moment { claimed_ms, ..at });
                (!meter.is_empty(), meter.written_ms, *whose)
            })
            .collect();
        last.sort_unstable();
        last.truncate(MAX_COUNTED / 8);
        for (_, _, whose) in &last {
            self.meters.remove(whose);
        }
        *self.counted.entry(kind).or_default() -= last.len();
    }
}

impl ShareLimits {
    /// Whether everybody may write something.
    #[must_use]
    pub fn grants_all(&self) -> bool {
        let limits = [self.author, self.node, self.space];
        let some = |limit: &Limit| limit.bytes_a_day > 0 && limit.fragments_a_minute > 0;
        limits.iter().all(some) && self.refuse_at > 0
    }

    fn of(&self, whose: &Sharer) -> Limit {
        match whose {
            Sharer::Author(_) => self.author,
            Sharer::Node(_) => self.node,
            Sharer::Space(_) => self.space,
        }
    }
}

fn sharers(header: &Header) -> [Sharer; 3] {
    [
        Sharer::Author(header.author),
        Sharer::Node(header.node),
        Sharer::Space(header.space),
    ]
}

/// Returns the bytes that a fragment uses, with about as many as header and signature take.
fn cost_of(header: &Header) -> u64 {
    const ENVELOPE: u64 = 512;
    ENVELOPE + u64::from(header.body_len)
}

/// When a fragment says that it was written, and when it came.
#[derive(Debug, Clone, Copy)]
struct Moment {
    claimed_ms: u64,
    now_ms: u64,
}

/// Two leaking buckets and what went through them.
#[derive(Debug, Clone)]
struct Meter {
    /// The latest of both.
    at: Moment,
    /// When the last fragment came.
    written_ms: u64,
    bytes: Bucket,
    fragments: Bucket,
    taken_bytes: u64,
    taken: u64,
    over: u64,
    refused: u64,
}

impl Meter {
    fn new(at: Moment) -> Self {
        Self {
            at,
            written_ms: at.now_ms,
            bytes: Bucket(0),
            fragments: Bucket(0),
            taken_bytes: 0,
            taken: 0,
            over: 0,
            refused: 0,
        }
    }

    fn drain(&mut self, limit: Limit, at: Moment) {
        let claimed = at.claimed_ms.saturating_sub(self.at.claimed_ms);
        let passed = claimed.max(at.now_ms.saturating_sub(self.at.now_ms));
        self.at.claimed_ms = self.at.claimed_ms.max(at.claimed_ms);
        self.at.now_ms = self.at.now_ms.max(at.now_ms);
        self.bytes.drain(limit.bytes_a_day, passed);
        self.fragments.drain(limit.fragments_a_minute, passed);
    }

    /// Returns how long to wait until `cost` fits into `times` the limit; `None` if it does.
    fn wait(&self, limit: Limit, cost: u64, times: u64) -> Option<u64> {
        let bytes = self.bytes.wait(limit.bytes_a_day, cost, DAY_MS, times);
        let fragments = self
            .fragments
            .wait(limit.fragments_a_minute, 1, MINUTE_MS, times);
        bytes.max(fragments)
    }

    fn add(&mut self, cost: u64, is_over: bool) {
        self.written_ms = self.at.now_ms;
        self.bytes.add(cost, DAY_MS);
        self.fragments.add(1, MINUTE_MS);
        self.taken_bytes = self.taken_bytes.saturating_add(cost);
        self.taken += 1;
        self.over += u64::from(is_over);
    }

    fn is_empty(&self) -> bool {
        self.bytes.0 == 0 && self.fragments.0 == 0
    }

    fn told(&self, whose: Sharer, limit: Limit) -> ShareUse {
        let bytes = self.bytes.per_mille(limit.bytes_a_day, DAY_MS);
        let fragments = self
            .fragments
            .per_mille(limit.fragments_a_minute, MINUTE_MS);
        ShareUse {
            whose,
            used_per_mille: bytes.max(fragments),
            bytes: self.taken_bytes,
            fragments: self.taken,
            over: self.over,
            refused: self.refused,
        }
    }
}

/// What is used of a limit over a window, in units times the window's milliseconds: so much of the
/// limit leaks out in each millisecond that nothing is rounded.
#[derive(Debug, Clone, Copy)]
struct Bucket(u128);

impl Bucket {
    fn drain(&mut self, limit: u64, passed_ms: u64) {
        self.0 = self
            .0
            .saturating_sub(u128::from(limit) * u128::from(passed_ms));
    }

    fn add(&mut self, units: u64, window_ms: u64) {
        self.0 += u128::from(units) * u128::from(window_ms);
    }

    fn wait(&self, limit: u64, units: u64, window_ms: u64, times: u64) -> Option<u64> {
        let room = u128::from(limit) * u128::from(window_ms) * u128::from(times.max(1));
        // What is larger than the whole limit has its turn when nothing else is used.
        let wanted = self.0 + (u128::from(units) * u128::from(window_ms)).min(room);
        let excess = wanted.checked_sub(room).filter(|excess| *excess > 0)?;
        Some(u64::try_from(excess.div_ceil(u128::from(limit.max(1)))).unwrap_or(u64::MAX))
    }

    fn per_mille(&self, limit: u64, window_ms: u64) -> u64 {
        let all = u128::from(limit.max(1)) * u128::from(window_ms);
        u64::try_from(self.0.saturating_mul(1000) / all).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
