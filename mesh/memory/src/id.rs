//! Names of fragments, documents and lanes.

use std::{fmt, str::FromStr};

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use rhizome_identity::{Hash, SpaceId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A string that is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id: expected 64 hexadecimal digits")]
pub struct ParseMemoryIdError(String);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps 32 raw bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Returns the raw bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Returns the first ten hexadecimal digits, for logs and tables.
            #[must_use]
            pub fn fmt_short(&self) -> String {
                let mut text = self.to_string();
                text.truncate(10);
                text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.fmt_short())
            }
        }

        impl FromStr for $name {
            type Err = ParseMemoryIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hex(text).map(Self).ok_or_else(|| ParseMemoryIdError(text.chars().take(80).collect()))
            }
        }

        impl<C> Encode<C> for $name {
            fn encode<W: encode::Write>(
                &self,
                e: &mut Encoder<W>,
                _: &mut C,
            ) -> Result<(), encode::Error<W::Error>> {
                e.bytes(&self.0)?.ok()
            }
        }

        impl<'b, C> Decode<'b, C> for $name {
            fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
                let at = d.position();
                let bytes = d.bytes()?;
                bytes.try_into().map(Self).map_err(|_| decode::Error::message("an id has 32 bytes").at(at))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }

        impl From<$name> for Hash {
            fn from(id: $name) -> Self {
                Self::from_bytes(id.0)
            }
        }

        impl From<Hash> for $name {
            fn from(hash: Hash) -> Self {
                Self(*hash.as_bytes())
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

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).expect("two hexadecimal digits fit a byte");
    }
    Some(bytes)
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
