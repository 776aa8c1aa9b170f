//! Signed envelopes: COSE_Sign1 (RFC 9052), EdDSA, over deterministic CBOR.
//!
//! Only one shape exists, so an envelope is parsed by comparing bytes: tag 18, a protected header
//! with algorithm and key id, an empty unprotected header, the payload, the signature. The
//! [`Domain`] is the external associated data: a signature made for one purpose verifies for no
//! other (`docs/wire.md`, section 1).
//!
//! Deviation: signatures are checked by the cofactored equation of RFC 8032, section 5.1.7, after
//! small-order keys and points are refused, rather than by the cofactorless one of `verify_strict`.
//! Only the cofactored equation has a batch form that always agrees with the single form; else a
//! signer could craft a fragment that some nodes admit and others refuse, and set honest peers
//! against each other.

use std::fmt;

use ed25519_dalek::VerifyingKey;

use crate::{id::PublicKey, keys::SecretKey};

mod verify;

/// What a signature is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Domain(pub &'static str);

/// Everything before the key id: tag 18, an array of four, the protected header up to its last value.
const PREFIX: [u8; 10] = [0xd2, 0x84, 0x58, 0x26, 0xa2, 0x01, 0x27, 0x04, 0x58, 0x20];
/// The protected header as the signature covers it starts here within an envelope.
const PROTECTED_START: usize = 2;
const KID_START: usize = PREFIX.len();
const KID_END: usize = KID_START + 32;
/// The head of the signature: a byte string of 64.
const SIGNATURE_HEAD: [u8; 2] = [0x58, 0x40];
/// The bytes an envelope adds to its payload, at most.
pub const MAX_OVERHEAD: usize = KID_END + 1 + 5 + 2 + 64;

/// Why bytes are not a valid envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The envelope is larger than the caller takes.
    #[error("envelope of {size} bytes; at most {limit} are taken")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The bytes are not an envelope of the one shape there is.
    #[error("not a COSE_Sign1 envelope")]
    Malformed,
    /// The key id is no ed25519 public key, or a weak one.
    #[error("the signer `{}` is no public key", .0.fmt_short())]
    BadKey(PublicKey),
    /// The signature is not the signer's.
    #[error("the signature is not that of `{}`", .0.fmt_short())]
    BadSignature(PublicKey),
}

/// Signs `payload` for `domain` and returns the envelope.
pub fn seal(key: &SecretKey, domain: Domain, payload: &[u8]) -> Vec<u8> {
    let mut envelope = Vec::with_capacity(payload.len() + MAX_OVERHEAD);
    envelope.extend_from_slice(&PREFIX);
    envelope.extend_from_slice(key.public().as_bytes());
    envelope.push(0xa0);
    push_bytes_head(&mut envelope, payload.len());
    envelope.extend_from_slice(payload);
    let signature = key.sign(&to_be_signed(
        &envelope[PROTECTED_START..KID_END],
        domain,
        payload,
    ));
    envelope.extend_from_slice(&SIGNATURE_HEAD);
    envelope.extend_from_slice(&signature);
    envelope
}

/// An envelope that has been taken apart; its signature is not checked yet.
#[derive(Clone, Copy)]
pub struct Sealed<'a> {
    /// Whose signature it claims to carry.
    pub signer: PublicKey,
    /// What is signed.
    pub payload: &'a [u8],
    /// The signature.
    pub signature: [u8; 64],
    protected: &'a [u8],
}

impl fmt::Debug for Sealed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("signer", &self.signer)
            .field("payload_len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// Takes an envelope of at most `max` bytes apart.
///
/// # Errors
/// [`EnvelopeError::TooLarge`] or [`EnvelopeError::Malformed`]; other encodings of the same
/// envelope and anything that follows it are refused.
pub fn parse(bytes: &[u8], max: usize) -> Result<Sealed<'_>, EnvelopeError> {
    if bytes.len() > max {
        return Err(EnvelopeError::TooLarge {
            size: bytes.len(),
            limit: max,
        });
    }
    let rest = bytes
        .strip_prefix(&PREFIX)
        .ok_or(EnvelopeError::Malformed)?;
    let (kid, rest) = rest
        .split_first_chunk::<32>()
        .ok_or(EnvelopeError::Malformed)?;
    let rest = rest.strip_prefix(&[0xa0]).ok_or(EnvelopeError::Malformed)?;
    let (length, rest) = split_bytes_head(rest).ok_or(EnvelopeError::Malformed)?;
    let (payload, rest) = rest
        .split_at_checked(length)
        .ok_or(EnvelopeError::Malformed)?;
    let rest = rest
        .strip_prefix(&SIGNATURE_HEAD)
        .ok_or(EnvelopeError::Malformed)?;
    let signature = <[u8; 64]>::try_from(rest).map_err(|_| EnvelopeError::Malformed)?;
    Ok(Sealed {
        signer: PublicKey::from_bytes(*kid),
        payload,
        signature,
        protected: &bytes[PROTECTED_START..KID_END],
    })
}

impl Sealed<'_> {
    /// Checks the signature.
    ///
    /// # Errors
    /// [`EnvelopeError::BadKey`] or [`EnvelopeError::BadSignature`].
    pub fn verify(&self, domain: Domain) -> Result<(), EnvelopeError> {
        self.signer
            .verify(&self.signed_bytes(domain), &self.signature)
    }

    /// Returns the bytes the signature covers: COSE's Sig_structure.
    pub fn signed_bytes(&self, domain: Domain) -> Vec<u8> {
        to_be_signed(self.protected, domain, self.payload)
    }
}

impl PublicKey {
    /// Checks that `signature` over `message` is this key's (RFC 8032, cofactored).
    ///
    /// # Errors
    /// [`EnvelopeError::BadKey`] or [`EnvelopeError::BadSignature`].
    pub fn verify(&self, message: &[u8], signature: &[u8; 64]) -> Result<(), EnvelopeError> {
        verify::verify_one(self, message, signature)
    }

    pub(crate) fn verifying_key(&self) -> Result<VerifyingKey, EnvelopeError> {
        let key = VerifyingKey::from_bytes(self.as_bytes());
        let key = key.map_err(|_| EnvelopeError::BadKey(*self))?;
        if key.is_weak() {
            Err(EnvelopeError::BadKey(*self))
        } else {
            Ok(key)
        }
    }
}

/// Checks many signatures at about half the cost of one after the other, or less where few
/// signers made them.
///
/// # Errors
/// The indices of those that [`Sealed::verify`] refuses, in order, each checked alone.
pub fn verify_batch(items: &[(Sealed<'_>, Domain)]) -> Result<(), Vec<usize>> {
    verify::verify_many(items)
}

/// Returns `["Signature1", protected, domain, payload]` in CBOR (RFC 9052, section 4.4).
fn to_be_signed(protected: &[u8], domain: Domain, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + domain.0.len() + protected.len() + 24);
    bytes.extend_from_slice(b"\x84\x6aSignature1");
    // `protected` is taken from the envelope with the head of its byte string.
    bytes.extend_from_slice(protected);
    push_bytes_head(&mut bytes, domain.0.len());
    bytes.extend_from_slice(domain.0.as_bytes());
    push_bytes_head(&mut bytes, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

/// Appends the head of a CBOR byte string of `length` bytes, in its shortest form.
fn push_bytes_head(into: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("nothing of 4 GiB is ever signed");
    let wide = length.to_be_bytes();
    match length {
        0..24 => into.push(0x40 | wide[3]),
        24..0x100 => into.extend_from_slice(&[0x58, wide[3]]),
        0x100..0x1_0000 => into.extend_from_slice(&[0x59, wide[2], wide[3]]),
        _ => {
            into.push(0x5a);
            into.extend_from_slice(&wide);
        }
    }
}

/// Reads what [`push_bytes_head`] writes; `None` for any other head, longer forms included.
fn split_bytes_head(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (head, rest) = bytes.split_first()?;
    let (length, least, rest) = match head {
        0x40..=0x57 => (usize::from(head & 0x1f), 0, rest),
        0x58 => (usize::from(*rest.first()?), 24, &rest[1..]),
        0x59 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), 0x100, rest)
        }
        0x5a => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            (
                usize::try_from(u32::from_be_bytes(*length)).ok()?,
                0x1_0000,
                rest,
            )
        }
        _ => return None,
    };
    (length >= least).then_some((length, rest))
}

#[cfg(test)]
mod tests {
    use coset::{CoseSign1, TaggedCborSerializable, iana};
    use proptest::prelude::*;

    use super::*;

    const DOMAIN: Domain = Domain("rhizome/test/1");

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed([seed; 32])
    }

    #[test]
    fn coset_reads_and_verifies_our_envelopes() {
        for length in [0, 1, 23, 24, 255, 256, 65_535, 65_536] {
            let payload = vec![7; length];
            let ours = seal(&key(1), DOMAIN, &payload);
            let theirs = CoseSign1::from_tagged_slice(&ours).unwrap();
            assert_eq!(theirs.payload.as_deref(), Some(&payload[..]));
            let algorithm = coset::RegisteredLabelWithPrivate::Assigned(iana::Algorithm::EdDSA);
            assert_eq!(theirs.protected.header.alg, Some(algorithm));
            assert_eq!(theirs.protected.header.key_id, key(1).public().as_bytes());
            let verified = theirs.verify_signature(DOMAIN.0.as_bytes(), |signature, signed| {
                key(1)
                    .public()
                    .verify(signed, signature.try_into().unwrap())
            });
            assert_eq!(verified, Ok(()));
        }
    }

    #[test]
    fn a_signature_is_for_one_domain_only() {
        let envelope = seal(&key(1), DOMAIN, b"payload");
        let sealed = parse(&envelope, 1000).unwrap();
        assert_eq!(sealed.verify(DOMAIN), Ok(()));
        let elsewhere = sealed.verify(Domain("rhizome/other/1"));
        assert_eq!(elsewhere, Err(EnvelopeError::BadSignature(key(1).public())));
    }

    #[test]
    fn the_limit_is_checked_first() {
        let envelope = seal(&key(1), DOMAIN, &[0; 100]);
        let size = envelope.len();
        assert_eq!(
            parse(&envelope, 50).unwrap_err(),
            EnvelopeError::TooLarge { size, limit: 50 }
        );
    }

    #[test]
    fn every_mutation_of_one_byte_is_refused() {
        let envelope = seal(&key(1), DOMAIN, b"what is signed");
        for position in 0..envelope.len() {
            for flip in [1_u8, 0x80, 0xff] {
                let mut bytes = envelope.clone();
                bytes[position] ^= flip;
                let refused = match parse(&bytes, 1000) {
                    Ok(sealed) => sealed.verify(DOMAIN).is_err(),
                    Err(_) => true,
                };
                assert!(refused, "byte {position} ^ {flip:#x}");
            }
        }
        for length in 0..envelope.len() {
            assert!(parse(&envelope[..length], 1000).is_err());
        }
        assert!(parse(&[&envelope[..], &[0]].concat(), 1000).is_err());
    }

    #[test]
    fn a_longer_form_of_the_same_length_is_refused() {
        let mut envelope = seal(&key(1), DOMAIN, b"short");
        // 0x45 (a byte string of 5) becomes 0x58 0x05.
        assert_eq!(envelope[KID_END + 1], 0x45);
        envelope.splice(KID_END + 1..KID_END + 2, [0x58, 0x05]);
        assert_eq!(
            parse(&envelope, 1000).unwrap_err(),
            EnvelopeError::Malformed
        );
    }

    #[test]
    fn a_weak_key_signs_nothing() {
        // The identity point: any signature equation holds for it.
        let mut weak = [0; 32];
        weak[0] = 1;
        let key = PublicKey::from_bytes(weak);
        assert_eq!(key.verify(b"x", &[0; 64]), Err(EnvelopeError::BadKey(key)));
    }

    #[test]
    fn a_batch_names_its_culprits() {
        let envelopes: Vec<Vec<u8>> = (0..20_u8)
            .map(|n| seal(&key(n % 3 + 1), DOMAIN, &[n]))
            .collect();
        let mut items: Vec<_> = envelopes
            .iter()
            .map(|bytes| (parse(bytes, 1000).unwrap(), DOMAIN))
            .collect();
        assert_eq!(verify_batch(&items), Ok(()));
        items[4].0.signature[10] ^= 1;
        items[17].0.signer = key(9).public();
        assert_eq!(verify_batch(&items), Err(vec![4, 17]));
        assert_eq!(verify_batch(&[]), Ok(()));
    }

    /// What a signer can make who knows the equation: a commitment with a part of small order.
    fn crafted(seed: u8, payload: &[u8]) -> Vec<u8> {
        use curve25519_dalek::{
            constants::{ED25519_BASEPOINT_POINT, EIGHT_TORSION},
            scalar::Scalar,
        };
        use sha2::{Digest, Sha512};
        let honest = seal(&key(seed), DOMAIN, payload);
        let message = parse(&honest, 1000).unwrap().signed_bytes(DOMAIN);
        let nonce = Scalar::from(u64::from(seed) + 77);
        let r = (ED25519_BASEPOINT_POINT * nonce + EIGHT_TORSION[1]).compress();
        let hash = Sha512::new()
            .chain_update(r.as_bytes())
            .chain_update(key(seed).public().as_bytes())
            .chain_update(&message)
            .finalize();
        let wide: [u8; 64] = hash.as_slice().try_into().unwrap();
        let secret = key(seed).signing_key().to_scalar();
        let s = nonce + Scalar::from_bytes_mod_order_wide(&wide) * secret;
        let mut envelope = honest;
        let start = envelope.len() - 64;
        envelope[start..start + 32].copy_from_slice(r.as_bytes());
        envelope[start + 32..].copy_from_slice(s.as_bytes());
        envelope
    }

    #[test]
    fn a_batch_and_a_single_check_always_agree() {
        for round in 0..32_u8 {
            let mut envelopes = vec![crafted(1, &[round])];
            envelopes.extend((2..6).map(|seed| seal(&key(seed), DOMAIN, &[round])));
            let items: Vec<_> = envelopes
                .iter()
                .map(|bytes| (parse(bytes, 1000).unwrap(), DOMAIN))
                .collect();
            assert_eq!(items[0].0.verify(DOMAIN), Ok(()));
            assert_eq!(verify_batch(&items), Ok(()));
        }
    }

    #[test]
    fn second_forms_of_a_signature_are_refused() {
        let envelope = seal(&key(1), DOMAIN, b"x");
        let sealed = parse(&envelope, 1000).unwrap();
        // s plus the group order is the same number in another form.
        let order = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9,
            0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10_u8,
        ];
        let mut other = sealed;
        let mut carry = 0;
        for (byte, more) in other.signature[32..].iter_mut().zip(order) {
            let sum = u16::from(*byte) + u16::from(more) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        assert!(other.verify(DOMAIN).is_err());
        // Commitments of small order, in their right and in a second encoding.
        for first in [[1_u8; 1], [0xee]] {
            let mut r = if first == [1] { [0; 32] } else { [0xff; 32] };
            r[0] = first[0];
            r[31] &= 0x7f;
            let mut weak = sealed;
            weak.signature[..32].copy_from_slice(&r);
            assert!(weak.verify(DOMAIN).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_parsed(payload in proptest::collection::vec(any::<u8>(), 0..600)) {
            let envelope = seal(&key(3), DOMAIN, &payload);
            prop_assert!(envelope.len() <= payload.len() + MAX_OVERHEAD);
            let sealed = parse(&envelope, usize::MAX).unwrap();
            prop_assert_eq!(sealed.payload, &payload[..]);
            prop_assert_eq!(sealed.signer, key(3).public());
            prop_assert_eq!(sealed.verify(DOMAIN), Ok(()));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, 300);
            let _ = parse(&[&PREFIX[..], &bytes].concat(), 400);
        }
    }
}
