//! Secret keys: zeroised when dropped, printed by their public half alone.

use std::fmt;

use ed25519_dalek::{Signer, SigningKey};
use zeroize::Zeroizing;

use crate::id::{AgentId, NodeId, PublicKey};

/// An ed25519 secret key of any signer.
///
/// The memory is overwritten when the key is dropped.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Makes a key from the operating system's randomness.
    ///
    /// # Panics
    /// If the operating system has no randomness to give: no key made then could be trusted.
    pub fn generate() -> SecretKey {
        let mut seed = Zeroizing::new([0; 32]);
        fill_random(&mut *seed);
        SecretKey(SigningKey::from_bytes(&seed))
    }

    /// Returns the key of a 32-byte seed (RFC 8032).
    pub fn from_seed(seed: [u8; 32]) -> SecretKey {
        let seed = Zeroizing::new(seed);
        SecretKey(SigningKey::from_bytes(&seed))
    }

    /// Returns the seed; whoever has it is the signer.
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicKey {
        PublicKey::from_bytes(self.0.verifying_key().to_bytes())
    }

    /// Signs `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }

    pub(crate) fn signing_key(&self) -> &SigningKey {
        &self.0
    }
}

impl Clone for SecretKey {
    fn clone(&self) -> SecretKey {
        SecretKey(self.0.clone())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public().fmt_short())
    }
}

macro_rules! key_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(SecretKey);

        impl $name {
            /// Makes a key from the operating system's randomness.
            pub fn generate() -> $name {
                $name(SecretKey::generate())
            }

            /// Returns the key of a 32-byte seed.
            pub fn from_seed(seed: [u8; 32]) -> $name {
                $name(SecretKey::from_seed(seed))
            }

            /// Returns the key as a signer.
            pub fn secret(&self) -> &SecretKey {
                &self.0
            }

            /// Returns the public half.
            pub fn public(&self) -> PublicKey {
                self.0.public()
            }

            /// Signs `message`.
            pub fn sign(&self, message: &[u8]) -> [u8; 64] {
                self.0.sign(message)
            }

            /// Returns the 32 secret bytes.
            pub fn secret_bytes(&self) -> Zeroizing<[u8; 32]> {
                self.0.seed()
            }
        }

        impl From<SecretKey> for $name {
            fn from(key: SecretKey) -> $name {
                $name(key)
            }
        }

        impl AsRef<SecretKey> for $name {
            fn as_ref(&self) -> &SecretKey {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}(of {})", stringify!($name), self.public().fmt_short())
            }
        }
    };
}

key_type! {
    /// The key of a node: one per machine, never copied.
    NodeKey
}
key_type! {
    /// The key of an agent; it stays with the daemon and never enters a sandbox.
    AgentKey
}
key_type! {
    /// The root key of a mesh, needed to grant and revoke admins alone; keep it offline.
    RootKey
}

impl NodeKey {
    /// Returns the node's id.
    pub fn id(&self) -> NodeId {
        NodeId::from_bytes(*self.public().as_bytes())
    }
}

impl AgentKey {
    /// Returns the agent's id.
    pub fn id(&self) -> AgentId {
        AgentId::from_bytes(*self.public().as_bytes())
    }
}

/// Fills `bytes` with the operating system's randomness.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system provides randomness");
}
