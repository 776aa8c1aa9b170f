//! Names of chunks and packs: 32-byte hashes that must not be mixed up.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A text is no hash of 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 hexadecimal digits")]
#[non_exhaustive]
pub struct ParseHashError;

macro_rules! hash_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps a hash.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Returns the hash.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = ParseHashError;

            fn from_str(text: &str) -> Result<Self, ParseHashError> {
                parse(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

hash_name! {
    /// The name of a chunk: BLAKE3 of its bytes, keyed, so that it says nothing to whoever has
    /// no key, and the same bytes have different names under different keys.
    ChunkId
}

hash_name! {
    /// The name of a pack or an object: BLAKE3 of its file.
    PackId
}

fn parse(text: &str) -> Result<[u8; 32], ParseHashError> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(ParseHashError);
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

/// Lower case alone: a name has one spelling.
fn digit(digit: u8) -> Result<u8, ParseHashError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(ParseHashError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let id = PackId::from_bytes(std::array::from_fn(|at| u8::try_from(at).unwrap() * 7));
        assert_eq!(id.to_string().parse(), Ok(id));
        let upper = id.to_string().to_uppercase();
        for wrong in [
            &upper,
            "",
            "00",
            &format!("{id}0"),
            &"g".repeat(64),
            &"é".repeat(32),
        ] {
            assert_eq!(wrong.parse::<PackId>(), Err(ParseHashError));
        }
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<PackId>(&json).unwrap(), id);
    }
}
