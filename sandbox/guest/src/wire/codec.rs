use std::fmt;

/// Why bytes are not a frame or a message.
// Written by hand: `thiserror` is a proc macro (see Cargo.toml).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// A frame says that it is longer than any may be.
    FrameTooLong {
        /// The length it claims.
        len: u32,
    },
    /// No frame has this kind.
    UnknownKind {
        /// The kind it claims.
        kind: u8,
    },
    /// A message ends before its last field.
    Truncated,
    /// A message goes on after its last field.
    Trailing {
        /// Bytes left over.
        bytes: usize,
    },
    /// A field holds what it may not hold.
    Invalid {
        /// The field.
        field: &'static str,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FrameTooLong { len } => write!(f, "a frame claims a payload of {len} bytes"),
            Self::UnknownKind { kind } => write!(f, "a frame claims the unknown kind {kind:#04x}"),
            Self::Truncated => f.write_str("a message ends before its last field"),
            Self::Trailing { bytes } => write!(f, "a message is followed by {bytes} stray bytes"),
            Self::Invalid { field } => write!(f, "a message has an invalid `{field}`"),
        }
    }
}

impl std::error::Error for WireError {}

/// Writes the fields of a message.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Returns the bytes written.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Writes a 16-bit number.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a 32-bit number.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a 64-bit number.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes whose number the reader knows.
    pub fn array(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes bytes with their length before them.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Writes the length of a list or string. What doesn't fit a frame is refused where the
    /// frame is made, so a saturated length never goes out.
    pub fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX));
    }
}

/// Reads the fields of a message.
#[derive(Debug)]
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// Reads from `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Ends the message.
    ///
    /// # Errors
    /// [`WireError::Trailing`] if bytes are left.
    pub fn finish(self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing {
                bytes: self.0.len(),
            })
        }
    }

    /// Whether all bytes are read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if fewer are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    /// Reads all that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Reads exactly `N` bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(WireError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a 16-bit number.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a 32-bit number.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a 64-bit number.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a truth value.
    ///
    /// # Errors
    /// [`WireError::Invalid`] for anything but 0 and 1.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid { field }),
        }
    }

    /// Reads bytes with their length before them, at most `max`.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if the length is above `max`, [`WireError::Truncated`].
    pub fn bytes(&mut self, max: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(WireError::Invalid { field });
        }
        self.take(len)
    }

    /// Reads UTF-8 text with its length before it, at most `max` bytes.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if it is too long or not UTF-8, [`WireError::Truncated`].
    pub fn text(&mut self, max: usize, field: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes(max, field)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| WireError::Invalid { field })
    }

    /// Reads bytes that a system call will take: no NUL in them.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if they are too long or hold a NUL, [`WireError::Truncated`].
    pub fn os_bytes(&mut self, max: usize, field: &'static str) -> Result<Vec<u8>, WireError> {
        let bytes = self.bytes(max, field)?;
        if bytes.contains(&0) {
            return Err(WireError::Invalid { field });
        }
        Ok(bytes.to_vec())
    }

    /// Reads the number of items in a list, each at least `each` bytes long.
    ///
    /// # Errors
    /// [`WireError::Invalid`] if so many can't be in what is left.
    pub fn count(&mut self, each: usize, field: &'static str) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        if count > self.0.len() / each.max(1) {
            return Err(WireError::Invalid { field });
        }
        Ok(count)
    }
}
