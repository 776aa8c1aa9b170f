//! The key of a store's packs, and what is derived from it.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::ChunkId;

/// Length of a nonce, in bytes.
pub(super) const NONCE_BYTES: usize = 24;
/// Length of the authentication tag, in bytes.
pub(super) const TAG_BYTES: usize = 16;

/// What packs are sealed with: one per space, derived from the space's key.
///
/// Sealing, naming and nonces each use a key of their own, derived from this one.
// The cipher is put together from `chacha20` and `ring` because `chacha20poly1305` is generic all
// the way down: in builds for development it is compiled here, unoptimised, at 6 MiB/s.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct StoreKey {
    naming: [u8; 32],
    sealing: [u8; 32],
    nonces: [u8; 32],
    tag: [u8; 16],
}

impl StoreKey {
    /// Takes 32 secret bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let derive = |what: &str| blake3::derive_key(what, &*bytes);
        let [tag, _] = halves(derive("rhizome 2026-11-30 chunks: key tag"));
        Self {
            naming: derive("rhizome 2026-11-30 chunks: names"),
            sealing: derive("rhizome 2026-11-30 chunks: sealing"),
            nonces: derive("rhizome 2026-11-30 chunks: nonces"),
            tag,
        }
    }

    /// Returns the name that a chunk of these bytes has under this key.
    #[must_use]
    pub fn chunk_id(&self, bytes: &[u8]) -> ChunkId {
        ChunkId::from_bytes(*blake3::keyed_hash(&self.naming, bytes).as_bytes())
    }

    /// Tells packs of one key from those of another; gives nothing of the key away.
    pub(super) fn tag(&self) -> &[u8; 16] {
        &self.tag
    }

    /// Seals `plain`; the result is the nonce, the ciphertext and the tag.
    ///
    /// The nonce is a keyed hash of everything that is sealed or bound: two different messages
    /// never share one, also when another version of the compressor packs the same chunk into
    /// other bytes, and the same message seals to the same bytes.
    pub(super) fn seal(&self, bound: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&(bound.len() as u64).to_le_bytes());
        hasher.update(bound);
        hasher.update(plain);
        let mut nonce = [0; NONCE_BYTES];
        hasher.finalize_xof().fill(&mut nonce);
        let mut out = Vec::with_capacity(NONCE_BYTES + plain.len() + TAG_BYTES);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let (key, nonce) = self.cipher(&nonce);
        let tag = key
            .seal_in_place_separate_tag(nonce, Aad::from(bound), &mut out[NONCE_BYTES..])
            .expect("what is sealed is far below the cipher's limit of 256 GiB");
        out.extend_from_slice(tag.as_ref());
        out
    }

    /// Opens what [`Self::seal`] made, or returns `None` if any bit differs.
    pub(super) fn open(&self, bound: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let mut out = sealed.to_vec();
        let (key, nonce) = self.cipher(nonce);
        let len = key
            .open_in_place(nonce, Aad::from(bound), &mut out)
            .ok()?
            .len();
        out.truncate(len);
        Some(out)
    }

    /// XChaCha20-Poly1305 is ChaCha20-Poly1305 under a key that HChaCha20 makes of the key and
    /// the first 16 bytes of the nonce (draft-irtf-cfrg-xchacha-03, section 2.3).
    fn cipher(&self, nonce: &[u8; NONCE_BYTES]) -> (LessSafeKey, Nonce) {
        let (first, last) = nonce.split_at(16);
        let first: [u8; 16] = first.try_into().expect("16 of 24 bytes");
        let key = chacha20::hchacha::<chacha20::R20>(&self.sealing.into(), &first.into());
        let key = Zeroizing::new(<[u8; 32]>::from(key));
        let mut short = [0; 12];
        short[4..].copy_from_slice(last);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key).expect("a key has 32 bytes");
        (LessSafeKey::new(key), Nonce::assume_unique_for_key(short))
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey(..)")
    }
}

fn halves(bytes: [u8; 32]) -> [[u8; 16]; 2] {
    let (a, b) = bytes.split_at(16);
    [a, b].map(|half| half.try_into().expect("half of 32 is 16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_own_key_and_binding_alone() {
        let (key, other) = ([1; 32], [2; 32]).map_pair(StoreKey::from_bytes);
        let sealed = key.seal(b"bound", b"plain");
        assert_eq!(sealed.len(), 5 + NONCE_BYTES + TAG_BYTES);
        assert_eq!(key.open(b"bound", &sealed).unwrap(), b"plain");
        assert_eq!(key.open(b"other", &sealed), None);
        assert_eq!(other.open(b"bound", &sealed), None);
        for len in 0..sealed.len() {
            assert_eq!(key.open(b"bound", &sealed[..len]), None);
        }
        for at in 0..sealed.len() {
            let mut flipped = sealed.clone();
            flipped[at] ^= 1;
            assert_eq!(key.open(b"bound", &flipped), None);
        }
        // The same message seals the same; another one has another nonce.
        assert_eq!(key.seal(b"bound", b"plain"), sealed);
        assert_ne!(
            key.seal(b"bound", b"plaim")[..NONCE_BYTES],
            sealed[..NONCE_BYTES]
        );
        assert_ne!(key.chunk_id(b"x"), other.chunk_id(b"x"));
        assert_ne!(key.tag(), other.tag());
        assert_eq!(format!("{key:?}"), "StoreKey(..)");
    }

    #[test]
    fn it_is_xchacha20_poly1305() {
        use chacha20poly1305::{
            XChaCha20Poly1305, XNonce,
            aead::{Aead, KeyInit, Payload},
        };
        let key = StoreKey::from_bytes([1; 32]);
        let sealed = key.seal(b"bound", b"plain");
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>().unwrap();
        let payload = Payload {
            msg: sealed,
            aad: b"bound",
        };
        let cipher = XChaCha20Poly1305::new(&key.sealing.into());
        let opened = cipher.decrypt(&XNonce::from(*nonce), payload).unwrap();
        assert_eq!(opened, b"plain");
    }

    trait MapPair<T> {
        fn map_pair<U>(self, f: impl Fn(T) -> U) -> (U, U);
    }

    impl<T> MapPair<T> for (T, T) {
        fn map_pair<U>(self, f: impl Fn(T) -> U) -> (U, U) {
            (f(self.0), f(self.1))
        }
    }
}
