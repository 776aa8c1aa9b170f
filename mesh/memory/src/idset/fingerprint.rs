//! What a range of ids adds up to.

use std::{
    ops::{Add, Sub},
    sync::LazyLock,
};

use rhizome_identity::Hash;

/// Keys the hash of every id, so that sums of this set say nothing about any other use of BLAKE3.
static ID_KEY: LazyLock<[u8; 32]> =
    LazyLock::new(|| blake3::derive_key("rhizome 2026-11 id set fingerprint", b""));

/// The number of ids in a range and the sum, modulo 2^256, of their keyed BLAKE3 hashes.
///
/// Sums form a group: a range is the difference of two prefixes, whatever the tree looks like.
/// The ids themselves are never summed; whoever can choose ids can't choose their keyed hashes.
/// XOR would be forgeable by linear algebra over a few hundred ids; finding equal sums modulo
/// 2^256 needs a generalised birthday attack over tens of thousands of signed items that all
/// sit in one compared range, and ranges are cut anew in every session (`docs/sync.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    count: u64,
    /// Little-endian limbs.
    sum: [u64; 4],
}

impl Fingerprint {
    /// The fingerprint of nothing.
    pub const EMPTY: Self = Self {
        count: 0,
        sum: [0; 4],
    };

    /// Returns the fingerprint of one id.
    pub fn of(id: &Hash) -> Self {
        let hash = blake3::keyed_hash(&ID_KEY, id.as_bytes());
        let mut sum = [0; 4];
        for (limb, bytes) in sum.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *limb = u64::from_le_bytes(bytes.try_into().expect("chunks are eight bytes"));
        }
        Self { count: 1, sum }
    }

    /// Returns the number of ids.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn count_usize(&self) -> usize {
        usize::try_from(self.count).expect("a set in memory has fewer ids than addresses")
    }

    /// Returns count and sum as 40 bytes, for hashing.
    pub fn to_bytes(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        for (out, limb) in bytes[8..].chunks_exact_mut(8).zip(self.sum) {
            out.copy_from_slice(&limb.to_le_bytes());
        }
        bytes
    }

    /// Returns a digest that two peers compare, bound to `key`.
    pub fn digest(&self, key: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(key, &self.to_bytes()).as_bytes()
    }
}

impl Add for Fingerprint {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let mut sum = [0; 4];
        let mut carry = false;
        for (out, (a, b)) in sum.iter_mut().zip(self.sum.into_iter().zip(other.sum)) {
            let (partial, over_a) = a.overflowing_add(b);
            let (limb, over_b) = partial.overflowing_add(u64::from(carry));
            *out = limb;
            carry = over_a || over_b;
        }
        Self {
            count: self.count.wrapping_add(other.count),
            sum,
        }
    }
}

impl Sub for Fingerprint {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let mut sum = [0; 4];
        let mut borrow = false;
        for (out, (a, b)) in sum.iter_mut().zip(self.sum.into_iter().zip(other.sum)) {
            let (partial, under_a) = a.overflowing_sub(b);
            let (limb, under_b) = partial.overflowing_sub(u64::from(borrow));
            *out = limb;
            borrow = under_a || under_b;
        }
        Self {
            count: self.count.wrapping_sub(other.count),
            sum,
        }
    }
}

impl std::iter::Sum for Fingerprint {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::EMPTY, Add::add)
    }
}
