//! What a hostile member does.

use std::{fmt, str::FromStr};

use bytes::Bytes;

/// How a node is hostile; everything else it does as an honest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Hostility {
    /// Sends frames of random bytes.
    Garbage,
    /// Serves items whose signatures are broken.
    BrokenSignatures,
    /// Publishes a chain whose first fragment it keeps to itself.
    WithheldPredecessor,
    /// Repeats every frame it sends, many times.
    Flood,
    /// Signs two histories and shows each to a part of its peers.
    Fork,
    /// Names what it holds and hands out nothing of it but its own.
    Hollow,
    /// With others of its kind surrounds one node, takes in everything and passes on nothing.
    Eclipse,
    /// Publishes bodies that are made to hurt whoever opens them.
    Poison,
    /// Dates what it publishes ten years back, and goes on when it was revoked.
    BackDate,
}

/// All kinds, with the names that scenario files use.
const NAMES: [(Hostility, &str); 9] = [
    (Hostility::Garbage, "garbage"),
    (Hostility::BrokenSignatures, "broken-signatures"),
    (Hostility::WithheldPredecessor, "withheld-predecessor"),
    (Hostility::Flood, "flood"),
    (Hostility::Fork, "fork"),
    (Hostility::Hollow, "hollow"),
    (Hostility::Eclipse, "eclipse"),
    (Hostility::Poison, "poison"),
    (Hostility::BackDate, "back-date"),
];

impl Hostility {
    /// Returns every kind.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(kind, _)| *kind)
    }
}

impl fmt::Display for Hostility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(kind, _)| kind == self);
        f.pad(named.map_or("unnamed", |(_, name)| name))
    }
}

/// A name that no kind of hostility has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such hostility; there are garbage, broken-signatures, withheld-predecessor, flood, fork, hollow, eclipse, poison, back-date"
)]
pub struct UnknownHostility;

impl FromStr for Hostility {
    type Err = UnknownHostility;

    fn from_str(name: &str) -> Result<Self, UnknownHostility> {
        let named = NAMES.iter().find(|(_, known)| *known == name);
        named.map(|(kind, _)| *kind).ok_or(UnknownHostility)
    }
}

/// Breaks the signature of an encoded fragment and nothing else.
///
/// The wire form is the envelope, which ends with the signature, and then the body; the
/// signature is the only byte string of 64 bytes, so its head is found from behind.
pub(super) fn broken(item: &Bytes) -> Bytes {
    let mut bytes = item.to_vec();
    let head = bytes.windows(2).rposition(|pair| pair == [0x58, 64]);
    // Whatever is flipped, the item is not what its author signed.
    let at = head.map_or(bytes.len() / 2, |head| head + 10);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1;
    }
    bytes.into()
}

/// Returns what a body becomes that is to hurt whoever opens it: by turns one that claims to hold
/// far more than it does, one with a byte changed, and one that ends too early.
pub(super) fn poisoned(body: &Bytes, seq: u64) -> Bytes {
    let mut bytes = body.to_vec();
    match seq % 3 {
        0 => {
            bytes = vec![0x85, 0x6f, 0x4a, 0x83, 0, 0, 0, 0, 1];
            bytes.extend([0xff; 9]);
            bytes.extend(seq.to_le_bytes());
            bytes.extend([0x7f; 101]);
        }
        1 => {
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 0x55;
            }
        }
        _ => bytes.truncate(bytes.len() / 2),
    }
    bytes.into()
}

/// Returns a moment ten years before `wall_ms`.
pub(super) fn back_dated(wall_ms: u64) -> u64 {
    const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;
    wall_ms.saturating_sub(TEN_YEARS_MS)
}
