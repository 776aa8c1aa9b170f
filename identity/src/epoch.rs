//! Space keys: one per space and epoch, wrapped to each member's node, encrypting every body.
//!
//! Bodies are XChaCha20-Poly1305 with a random 24-byte nonce and the fragment's header as
//! associated data. Keys are wrapped with HPKE (RFC 9180, base mode, X25519-HKDF-SHA256,
//! ChaCha20-Poly1305); the X25519 key of a node is the Montgomery form of its ed25519 key, so a
//! node has one identity and no second key to certify.

use chacha20poly1305::{
    XChaCha20Poly1305, XNonce,
    aead::{Aead, KeyInit, Payload},
};
use hpke::{
    Deserializable, OpModeR, OpModeS, Serializable, aead::ChaCha20Poly1305, kdf::HkdfSha256,
    kem::X25519HkdfSha256,
};
use minicbor::{Decode, Encode};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{
    id::NodeId,
    keys::{NodeKey, fill_random},
};

type Kem = X25519HkdfSha256;

/// The number of a space's first key.
pub const FIRST_EPOCH: u32 = 1;
/// The bytes encryption adds to a body.
pub const BODY_OVERHEAD: usize = 16;
/// What a wrap is for, as HPKE's `info`.
const WRAP_INFO: &[u8] = b"rhizome/space-key/1";

/// The key of one epoch of one space.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SpaceKey([u8; 32]);

impl SpaceKey {
    /// Makes a key from the operating system's randomness.
    pub fn generate() -> SpaceKey {
        let mut key = SpaceKey([0; 32]);
        fill_random(&mut key.0);
        key
    }

    /// Derives a secret for another purpose; what is derived for one says nothing of the others.
    ///
    /// `context` is a constant of the purpose, as of BLAKE3's key derivation.
    pub fn derive(&self, context: &'static str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }

    /// Returns a hash that says which key it is without giving it away.
    pub fn commitment(&self) -> crate::id::Hash {
        crate::id::Hash::keyed("rhizome 2026-11-30 space key commitment", &self.0)
    }

    /// Returns the 32 secret bytes.
    pub fn secret_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0)
    }

    /// Wraps 32 secret bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> SpaceKey {
        SpaceKey(bytes)
    }
}

impl std::fmt::Debug for SpaceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SpaceKey(..)")
    }
}

/// Why a body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// Key, nonce, header or ciphertext is not the one it was encrypted with.
    #[error("the body does not decrypt with this key and header")]
    Mismatch,
}

/// Returns a random nonce; 24 bytes are enough to draw one for every body.
pub fn random_nonce() -> [u8; 24] {
    let mut nonce = [0; 24];
    fill_random(&mut nonce);
    nonce
}

/// Encrypts `plain`, binding it to `aad`.
pub fn seal_body(key: &SpaceKey, nonce: &[u8; 24], aad: &[u8], plain: &[u8]) -> Vec<u8> {
    let cipher = XChaCha20Poly1305::new(&key.0.into());
    let sealed = cipher.encrypt(&XNonce::from(*nonce), Payload { msg: plain, aad });
    sealed.expect("a body is far below the cipher's limit of 256 GiB")
}

/// Decrypts what [`seal_body`] made.
///
/// # Errors
/// [`BodyError::Mismatch`] if anything is not as it was.
pub fn open_body(
    key: &SpaceKey,
    nonce: &[u8; 24],
    aad: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, BodyError> {
    let cipher = XChaCha20Poly1305::new(&key.0.into());
    let opened = cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad });
    opened.map_err(|_| BodyError::Mismatch)
}

/// A space key that one node can open.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct WrappedKey {
    /// The epoch the key is of.
    #[n(0)]
    pub epoch: u32,
    /// HPKE's encapsulated key.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub enc: [u8; 32],
    /// The key, encrypted, and its tag.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub sealed: [u8; 48],
}

/// Why a wrapped key cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrapError {
    /// The node id is no public key.
    #[error("node `{}` is no public key", .0.fmt_short())]
    BadNode(NodeId),
    /// The key was wrapped to another node, for another context, or is damaged.
    #[error("the space key was not wrapped to this node, or is damaged")]
    Mismatch,
}

/// Wraps `key` so that only `to` can open it, and only for the same `context`.
///
/// # Errors
/// [`WrapError::BadNode`] if `to` is no ed25519 public key.
pub fn wrap_key(
    key: &SpaceKey,
    epoch: u32,
    to: &NodeId,
    context: &[u8],
) -> Result<WrappedKey, WrapError> {
    let bad = |_| WrapError::BadNode(*to);
    let public = crate::id::PublicKey::from(*to)
        .verifying_key()
        .map_err(bad)?;
    let public = <Kem as hpke::Kem>::PublicKey::from_bytes(public.to_montgomery().as_bytes());
    let public = public.map_err(|_| WrapError::BadNode(*to))?;
    let (enc, sealed) = hpke::single_shot_seal::<ChaCha20Poly1305, HkdfSha256, Kem>(
        &OpModeS::Base,
        &public,
        WRAP_INFO,
        &key.0,
        &wrap_aad(epoch, context),
    )
    .map_err(|_| WrapError::BadNode(*to))?;
    Ok(WrappedKey {
        epoch,
        enc: enc.to_bytes().into(),
        sealed: sealed.try_into().map_err(|_| WrapError::Mismatch)?,
    })
}

/// Opens what [`wrap_key`] made.
///
/// # Errors
/// [`WrapError::Mismatch`] for another node, context or epoch.
pub fn unwrap_key(
    node: &NodeKey,
    wrapped: &WrappedKey,
    context: &[u8],
) -> Result<SpaceKey, WrapError> {
    let scalar = Zeroizing::new(node.secret().signing_key().to_scalar_bytes());
    let secret = <Kem as hpke::Kem>::PrivateKey::from_bytes(&*scalar);
    let secret = secret.map_err(|_| WrapError::Mismatch)?;
    let enc = <Kem as hpke::Kem>::EncappedKey::from_bytes(&wrapped.enc);
    let enc = enc.map_err(|_| WrapError::Mismatch)?;
    let opened = hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
        &OpModeR::Base,
        &secret,
        &enc,
        WRAP_INFO,
        &wrapped.sealed,
        &wrap_aad(wrapped.epoch, context),
    );
    let opened = Zeroizing::new(opened.map_err(|_| WrapError::Mismatch)?);
    let key: [u8; 32] = opened
        .as_slice()
        .try_into()
        .map_err(|_| WrapError::Mismatch)?;
    Ok(SpaceKey(key))
}

/// Whether [`wrap_key`] can wrap anything to this node.
pub(crate) fn can_be_given_keys(node: &NodeId) -> bool {
    crate::id::PublicKey::from(*node).verifying_key().is_ok()
}

/// Seals keys of earlier epochs under the key of `epoch`, so that whoever has that one reads
/// what came before.
pub(crate) fn seal_previous(
    key: &SpaceKey,
    epoch: u32,
    context: &[u8],
    before: &[SpaceKey],
) -> Vec<u8> {
    let nonce = random_nonce();
    let plain: Vec<u8> = before.iter().flat_map(|key| key.0).collect();
    let plain = Zeroizing::new(plain);
    let sealed = seal_body(key, &nonce, &previous_aad(epoch, context), &plain);
    [&nonce[..], &sealed].concat()
}

/// Opens what [`seal_previous`] made; what is none holds no keys.
pub(crate) fn open_previous(
    key: &SpaceKey,
    epoch: u32,
    context: &[u8],
    sealed: &[u8],
) -> Vec<SpaceKey> {
    let Some((nonce, sealed)) = sealed.split_first_chunk::<24>() else {
        return Vec::new();
    };
    let Ok(plain) = open_body(key, nonce, &previous_aad(epoch, context), sealed) else {
        return Vec::new();
    };
    let plain = Zeroizing::new(plain);
    let (keys, _) = plain.as_chunks::<32>();
    keys.iter().map(|bytes| SpaceKey(*bytes)).collect()
}

fn previous_aad(epoch: u32, context: &[u8]) -> Vec<u8> {
    [b"rhizome/previous-key/1", &epoch.to_be_bytes()[..], context].concat()
}

fn wrap_aad(epoch: u32, context: &[u8]) -> Vec<u8> {
    [&epoch.to_be_bytes(), context].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_opens_with_its_own_key_nonce_and_header_alone() {
        let key = SpaceKey::generate();
        let nonce = random_nonce();
        let sealed = seal_body(&key, &nonce, b"header", b"a change");
        assert_eq!(sealed.len(), b"a change".len() + BODY_OVERHEAD);
        assert_eq!(
            open_body(&key, &nonce, b"header", &sealed),
            Ok(b"a change".to_vec())
        );
        let others = [
            open_body(&SpaceKey::generate(), &nonce, b"header", &sealed),
            open_body(&key, &random_nonce(), b"header", &sealed),
            open_body(&key, &nonce, b"another", &sealed),
            open_body(&key, &nonce, b"header", &sealed[1..]),
            open_body(&key, &nonce, b"header", b""),
        ];
        assert!(
            others
                .iter()
                .all(|other| *other == Err(BodyError::Mismatch))
        );
    }

    #[test]
    fn a_wrapped_key_opens_at_its_node_alone() {
        let (node, other) = (NodeKey::generate(), NodeKey::generate());
        let key = SpaceKey::generate();
        let wrapped = wrap_key(&key, 3, &node.id(), b"mesh").unwrap();
        assert_eq!(unwrap_key(&node, &wrapped, b"mesh").unwrap().0, key.0);
        assert_eq!(
            unwrap_key(&other, &wrapped, b"mesh").unwrap_err(),
            WrapError::Mismatch
        );
        assert_eq!(
            unwrap_key(&node, &wrapped, b"other").unwrap_err(),
            WrapError::Mismatch
        );
        let moved = WrappedKey {
            epoch: 4,
            ..wrapped
        };
        assert_eq!(
            unwrap_key(&node, &moved, b"mesh").unwrap_err(),
            WrapError::Mismatch
        );
    }

    #[test]
    fn a_node_that_is_no_point_gets_no_key() {
        let nobody = NodeId::from_bytes([2; 32]);
        let result = wrap_key(&SpaceKey::generate(), 0, &nobody, b"");
        assert_eq!(result.unwrap_err(), WrapError::BadNode(nobody));
    }
}
