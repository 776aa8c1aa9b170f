//! Names of fragments, documents and lanes.

use std::{fmt, str::FromStr};

use minicbor::{Decode, Encode};
use rhizome_identity::{ParseIdError, SpaceId};
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize,
        )]
        #[cbor(transparent)]
        #[serde(transparent)]
        pub struct $name(#[n(0)] rhizome_identity::Hash);

        impl $name {
            /// Wraps 32 raw bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(rhizome_identity::Hash::from_bytes(bytes))
            }

            /// Returns the raw bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                self.0.as_bytes()
            }

            /// Returns the first ten hexadecimal digits, for logs and tables.
            #[must_use]
            pub fn fmt_short(&self) -> String {
                self.0.fmt_short()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.fmt_short())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl From<$name> for rhizome_identity::Hash {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl From<rhizome_identity::Hash> for $name {
            fn from(hash: rhizome_identity::Hash) -> Self {
                Self(hash)
            }
        }
    };
}

id! {
    /// The BLAKE3 hash of a fragment's canonical header.
    ///
    /// The header names the body's hash, so the id covers header and ciphertext.
    FragmentId
}

id! {
    /// A document inside a space: a memory or a working context.
    DocId
}

/// What is reconciled on its own: the authority log, or one space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The records that say who may do what; replicated to everyone, before anything else.
    Authority,
    /// The fragments of one space.
    Space(SpaceId),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_refuses_what_is_not_one() {
        let id = FragmentId::from_bytes([0xa7; 32]);
        assert_eq!(id.to_string().parse::<FragmentId>().unwrap(), id);
        assert_eq!(id.fmt_short(), "a7a7a7a7a7");
        assert!("a7".parse::<FragmentId>().is_err());
        assert!("zz".repeat(32).parse::<FragmentId>().is_err());
        assert!("é".repeat(32).parse::<FragmentId>().is_err());
    }
}
