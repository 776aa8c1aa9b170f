//! The signature equation, for one and for many.

use std::collections::BTreeMap;

use curve25519_dalek::{
    constants::ED25519_BASEPOINT_POINT,
    edwards::{CompressedEdwardsY, EdwardsPoint},
    scalar::Scalar,
    traits::{IsIdentity, VartimeMultiscalarMul},
};
use sha2::{Digest, Sha512};

use super::{Domain, EnvelopeError, Sealed};
use crate::id::PublicKey;

/// Below this many, single checks cost less than a batch.
const LEAST_BATCH: usize = 3;

/// One signature, taken apart.
struct Parts {
    /// The commitment point and its encoding.
    r: EdwardsPoint,
    r_bytes: [u8; 32],
    /// The response.
    s: Scalar,
    /// The challenge.
    k: Scalar,
}

/// Decodes a point in its one encoding, and refuses the eight of small order.
fn decode_point(bytes: &[u8; 32]) -> Option<EdwardsPoint> {
    // A y of the field prime 2^255 - 19 or more would be a second encoding of the same point; a
    // zero x with a sign bit, the other such case, is of small order.
    let beyond_prime = bytes[0] >= 0xed
        && bytes[1..31].iter().all(|byte| *byte == 0xff)
        && bytes[31] & 0x7f == 0x7f;
    if beyond_prime {
        return None;
    }
    let point = CompressedEdwardsY(*bytes).decompress()?;
    (!point.is_small_order()).then_some(point)
}

fn take_apart(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> Option<Parts> {
    let (r_bytes, s_bytes) = signature.split_at(32);
    let s_bytes: [u8; 32] = s_bytes.try_into().ok()?;
    let r_bytes: [u8; 32] = r_bytes.try_into().ok()?;
    // A response of the group order or more would be a second form of the same signature.
    let s = Option::from(Scalar::from_canonical_bytes(s_bytes))?;
    let r = decode_point(&r_bytes)?;
    let hash = Sha512::new()
        .chain_update(r_bytes.as_slice())
        .chain_update(key.as_bytes().as_slice())
        .chain_update(message)
        .finalize();
    let wide: [u8; 64] = hash.as_slice().try_into().ok()?;
    let k = Scalar::from_bytes_mod_order_wide(&wide);
    Some(Parts { r, r_bytes, s, k })
}

fn holds(point: &EdwardsPoint, parts: &Parts) -> bool {
    let expected = EdwardsPoint::vartime_double_scalar_mul_basepoint(&parts.k, &-point, &parts.s);
    (expected - parts.r).mul_by_cofactor().is_identity()
}

pub(super) fn verify_one(
    key: &PublicKey,
    message: &[u8],
    signature: &[u8; 64],
) -> Result<(), EnvelopeError> {
    let point = decode_point(key.as_bytes()).ok_or(EnvelopeError::BadKey(*key))?;
    match take_apart(key, message, signature) {
        Some(parts) if holds(&point, &parts) => Ok(()),
        _ => Err(EnvelopeError::BadSignature(*key)),
    }
}

pub(super) fn verify_many(items: &[(Sealed<'_>, Domain)]) -> Result<(), Vec<usize>> {
    let mut keys: BTreeMap<PublicKey, Option<EdwardsPoint>> = BTreeMap::new();
    let mut bad = Vec::new();
    let mut parts = Vec::with_capacity(items.len());
    for (at, (sealed, domain)) in items.iter().enumerate() {
        let point = *keys
            .entry(sealed.signer)
            .or_insert_with(|| decode_point(sealed.signer.as_bytes()));
        let taken = take_apart(
            &sealed.signer,
            &sealed.signed_bytes(*domain),
            &sealed.signature,
        );
        match (point, taken) {
            (Some(point), Some(taken)) => parts.push((at, sealed.signer, point, taken)),
            _ => bad.push(at),
        }
    }
    if parts.len() < LEAST_BATCH || !batch_holds(&parts) {
        bad.extend(
            parts
                .iter()
                .filter(|(_, _, point, taken)| !holds(point, taken))
                .map(|(at, ..)| at),
        );
    }
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort_unstable();
    Err(bad)
}

/// Checks `8 * (sum z r + sum z k a - (sum z s) b) = 0` for unpredictable 128-bit factors `z`.
fn batch_holds(parts: &[(usize, PublicKey, EdwardsPoint, Parts)]) -> bool {
    // The factors depend on every signature and key (the challenge covers key, message and
    // commitment), so that no one can choose a signature to fit its factor.
    let mut hasher = blake3::Hasher::new_derive_key("rhizome 2026 batch verification factors");
    for (_, _, _, part) in parts {
        hasher.update(part.k.as_bytes());
        hasher.update(part.s.as_bytes());
        hasher.update(&part.r_bytes);
    }
    let mut random = hasher.finalize_xof();
    let mut base = Scalar::ZERO;
    // One term for each key, however many signatures it made: authors repeat in a batch.
    let mut by_key: BTreeMap<PublicKey, (Scalar, EdwardsPoint)> = BTreeMap::new();
    let mut scalars = Vec::with_capacity(parts.len() + 2);
    let mut points = Vec::with_capacity(parts.len() + 2);
    for (_, key, point, part) in parts {
        let mut factor = [0; 16];
        random.fill(&mut factor);
        let factor = Scalar::from(u128::from_le_bytes(factor));
        base -= factor * part.s;
        by_key.entry(*key).or_insert((Scalar::ZERO, *point)).0 += factor * part.k;
        scalars.push(factor);
        points.push(part.r);
    }
    for (scalar, point) in by_key.into_values() {
        scalars.push(scalar);
        points.push(point);
    }
    scalars.push(base);
    points.push(ED25519_BASEPOINT_POINT);
    EdwardsPoint::vartime_multiscalar_mul(&scalars, &points)
        .mul_by_cofactor()
        .is_identity()
}
