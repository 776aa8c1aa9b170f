//! 32-byte ids and public keys, each a type of its own so that none is taken for another.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Why a string is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 64 hexadecimal digits; found {found} characters{}", if *.found == 64 { ", one of them not a digit" } else { "" })]
pub struct ParseIdError {
    /// How many characters the string had.
    pub found: usize,
}

fn parse_hex(text: &str) -> Result<[u8; 32], ParseIdError> {
    let error = ParseIdError {
        found: text.chars().count(),
    };
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(error);
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16).ok_or(error)?;
        let low = char::from(pair[1]).to_digit(16).ok_or(error)?;
        *byte = u8::try_from(high << 4 | low).expect("two hex digits fit a byte");
    }
    Ok(bytes)
}

/// Spells bytes as lower-case hexadecimal digits, two each.
fn hex<'a>(bytes: &[u8], digits: &'a mut [u8; 64]) -> &'a str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(digits.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(&digits[..bytes.len() * 2]).expect("digits are ASCII")
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The number of bytes of an id.
            pub const LEN: usize = 32;

            /// Wraps 32 bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Returns the 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Returns the first ten hexadecimal digits, for people and logs.
            pub fn fmt_short(&self) -> String {
                hex(&self.0[..5], &mut [0; 64]).to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(hex(&self.0, &mut [0; 64]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.fmt_short())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for [u8; 32] {
            fn from(id: $name) -> [u8; 32] {
                id.0
            }
        }

        impl<C> minicbor::Encode<C> for $name {
            fn encode<W: minicbor::encode::Write>(
                &self,
                e: &mut minicbor::Encoder<W>,
                _: &mut C,
            ) -> Result<(), minicbor::encode::Error<W::Error>> {
                e.bytes(&self.0)?.ok()
            }
        }

        impl<'b, C> minicbor::Decode<'b, C> for $name {
            fn decode(
                d: &mut minicbor::Decoder<'b>,
                _: &mut C,
            ) -> Result<Self, minicbor::decode::Error> {
                let bytes = d.bytes()?;
                bytes.try_into().map(Self).map_err(|_| {
                    minicbor::decode::Error::message(concat!(stringify!($name), " is 32 bytes"))
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(hex(&self.0, &mut [0; 64]))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Hex;
                impl de::Visitor<'_> for Hex {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("64 hexadecimal digits")
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Hex)
            }
        }
    };
}

id_type! {
    /// A BLAKE3 hash.
    Hash
}
id_type! {
    /// A mesh: the BLAKE3 hash of the payload of its Genesis record.
    MeshId
}
id_type! {
    /// A node: its ed25519 public key, which is also its endpoint id on the network.
    NodeId
}
id_type! {
    /// An agent: its ed25519 public key.
    AgentId
}
id_type! {
    /// A space: the id of the SpaceCreate record that made it.
    SpaceId
}
id_type! {
    /// A record of the authority log: the BLAKE3 hash of its payload.
    RecordId
}
id_type! {
    /// An invite: the ed25519 public key whose secret the invite string carries.
    InviteId
}
id_type! {
    /// Any ed25519 public key that signs: of a root, a node, an agent or an invite.
    PublicKey
}

impl Hash {
    /// Returns the BLAKE3 hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// Returns 32 bytes that depend on `bytes` and on what they are for.
    ///
    /// `context` is a fixed string of the program (BLAKE3 `derive_key`), never data.
    pub fn keyed(context: &'static str, bytes: &[u8]) -> Hash {
        Hash(blake3::derive_key(context, bytes))
    }
}

macro_rules! same_bytes {
    ($($from:ident => $to:ident),* $(,)?) => {$(
        impl From<$from> for $to {
            fn from(id: $from) -> $to {
                $to(id.0)
            }
        }
    )*};
}

same_bytes! {
    NodeId => PublicKey,
    AgentId => PublicKey,
    InviteId => PublicKey,
    RecordId => Hash,
    MeshId => Hash,
    SpaceId => Hash,
    MeshId => RecordId,
    SpaceId => RecordId,
}
