//! The number of a program in its guest.

use std::{fmt, str::FromStr};

use super::{Decoder, Encoder, Payload, WireError};

/// The number of a program: drawn by the host, the same in every session.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecId([u8; 8]);

impl ExecId {
    /// Returns the id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Returns the id's bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is no [`ExecId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseExecIdError;

impl fmt::Display for ParseExecIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a command is 16 hexadecimal digits")
    }
}

impl std::error::Error for ParseExecIdError {}

impl FromStr for ExecId {
    type Err = ParseExecIdError;

    fn from_str(text: &str) -> Result<Self, ParseExecIdError> {
        let lower_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 16 || !text.as_bytes().iter().all(lower_hex) {
            return Err(ParseExecIdError);
        }
        let number = u64::from_str_radix(text, 16).map_err(|_| ParseExecIdError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl Payload for ExecId {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.0);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self(from.array()?))
    }
}
