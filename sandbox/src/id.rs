//! The name of one sandbox.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Length of a [`SandboxId`] in text.
const TEXT_LEN: usize = 26;
/// RFC 4648 base32 in lower case: no character that a file system or shell treats specially.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Sixteen random bytes, shown as 26 lower-case base32 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId([u8; 16]);

impl SandboxId {
    /// Draws a fresh id.
    pub(crate) fn random() -> Result<Self, rustix::io::Errno> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(
                &mut bytes[filled..],
                rustix::rand::GetRandomFlags::empty(),
            )?;
        }
        Ok(Self(bytes))
    }

    /// Returns the id with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the first eight characters: enough for people, not for programs.
    pub fn fmt_short(&self) -> String {
        self.to_string().split_at(8).0.to_owned()
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bits in 26 groups of five, the last padded with two zero bits.
        let number = u128::from_be_bytes(self.0);
        for group in 0..TEXT_LEN {
            let shift = 123_i32 - 5 * i32::try_from(group).expect("group is below 26");
            let five = if shift >= 0 {
                number >> shift
            } else {
                number << -shift
            } & 31;
            let index = usize::try_from(five).expect("five bits fit");
            write!(f, "{}", char::from(ALPHABET[index]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxId({})", self.fmt_short())
    }
}

/// Why a text is not a sandbox id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a sandbox id (26 characters of a-z and 2-7)")]
pub struct ParseSandboxIdError {
    text: String,
}

impl FromStr for SandboxId {
    type Err = ParseSandboxIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseSandboxIdError {
            text: text.chars().take(64).collect(),
        };
        if text.len() != TEXT_LEN {
            return Err(error());
        }
        let mut number = 0_u128;
        for (index, byte) in text.bytes().enumerate() {
            let digit = ALPHABET.iter().position(|&c| c == byte).ok_or_else(error)? as u128;
            if index < TEXT_LEN - 1 {
                number = number << 5 | digit;
            } else {
                // The last character carries three bits; others would be a second spelling.
                if digit & 3 != 0 {
                    return Err(error());
                }
                number = number << 3 | digit >> 2;
            }
        }
        Ok(Self(number.to_be_bytes()))
    }
}

impl Serialize for SandboxId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SandboxId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        for bytes in [[0; 16], [0xff; 16], *b"0123456789abcdef"] {
            let id = SandboxId::from_bytes(bytes);
            let text = id.to_string();
            assert_eq!(text.len(), TEXT_LEN);
            assert_eq!(text.parse::<SandboxId>(), Ok(id));
        }
    }

    #[test]
    fn a_second_spelling_is_refused() {
        let text = SandboxId::from_bytes([0; 16]).to_string();
        let twin = format!("{}b", &text[..25]);
        assert!(twin.parse::<SandboxId>().is_err());
        assert!(text.to_uppercase().parse::<SandboxId>().is_err());
        assert!("../../etc".parse::<SandboxId>().is_err());
    }

    #[test]
    fn ids_are_random() {
        assert_ne!(SandboxId::random(), SandboxId::random());
    }
}
