//! Deterministic CBOR (RFC 8949, section 4.2.1), the only encoding that is signed or hashed here.
//!
//! Allowed are integers, byte and text strings, arrays, maps with ascending integer or text keys,
//! booleans, null and tags; everything in its shortest form and of definite length.
//! Floating-point numbers have no use in what we sign and are refused.

use minicbor::{Decode, Encode};

/// How deep arrays, maps and tags may nest.
pub const MAX_DEPTH: usize = 16;

/// Why bytes are not the deterministic CBOR expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CborError {
    /// The bytes end within an item.
    #[error("the data ends within an item")]
    Truncated,
    /// Bytes follow the item.
    #[error("bytes follow the item")]
    Trailing,
    /// An item is not in the one form that is deterministic.
    #[error("the encoding is not deterministic at byte {at}: {rule}")]
    NotCanonical {
        /// Where.
        at: usize,
        /// What it breaks.
        rule: &'static str,
    },
    /// The item is not of the type expected.
    #[error("the data does not have the expected shape")]
    Shape(#[from] minicbor::decode::Error),
}

/// Encodes `value` deterministically.
///
/// The derived encoders of `minicbor` write shortest forms and ascending keys; a hand-written
/// one must do the same.
pub fn encode_canonical<T: Encode<()>>(value: &T) -> Vec<u8> {
    minicbor::to_vec(value).expect("writing to memory does not fail")
}

/// Decodes bytes that must be exactly what [`encode_canonical`] would write for the result.
///
/// # Errors
/// See [`CborError`].
pub fn decode_canonical<'b, T>(bytes: &'b [u8]) -> Result<T, CborError>
where
    T: Decode<'b, ()> + Encode<()>,
{
    check_canonical(bytes)?;
    let value: T = minicbor::decode(bytes)?;
    if encode_canonical(&value) == bytes {
        Ok(value)
    } else {
        Err(CborError::NotCanonical {
            at: 0,
            rule: "another encoding of the same value is the right one",
        })
    }
}

/// Checks that `bytes` are one deterministic item and nothing else, whatever it means.
///
/// # Errors
/// See [`CborError`].
pub fn check_canonical(bytes: &[u8]) -> Result<(), CborError> {
    let mut walk = Walk { bytes, at: 0 };
    walk.item(0)?;
    if walk.at == bytes.len() {
        Ok(())
    } else {
        Err(CborError::Trailing)
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn refuse<T>(&self, at: usize, rule: &'static str) -> Result<T, CborError> {
        Err(CborError::NotCanonical { at, rule })
    }

    fn take(&mut self, count: u64) -> Result<&[u8], CborError> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left => {
                let start = self.at;
                self.at += count;
                Ok(&self.bytes[start..self.at])
            }
            _ => Err(CborError::Truncated),
        }
    }

    /// Reads an initial byte and its argument.
    fn head(&mut self) -> Result<(u8, u64), CborError> {
        let at = self.at;
        let first = self.take(1)?[0];
        let info = first & 0x1f;
        let (argument, least) = match info {
            0..=23 => (u64::from(info), 0),
            24..=27 => {
                let width = 1 << (info - 24);
                let argument = self
                    .take(width)?
                    .iter()
                    .fold(0, |value, byte| value << 8 | u64::from(*byte));
                let least = match info {
                    24 => 24,
                    25 => 1 << 8,
                    26 => 1 << 16,
                    _ => 1 << 32,
                };
                (argument, least)
            }
            _ => return self.refuse(at, "lengths are definite"),
        };
        // Above five bits, type 7 holds floating-point and odd simple values, refused by the caller.
        if argument < least && first >> 5 != 7 {
            return self.refuse(at, "numbers and lengths take their shortest form");
        }
        Ok((first >> 5, argument))
    }

    fn item(&mut self, depth: usize) -> Result<(), CborError> {
        let at = self.at;
        if depth > MAX_DEPTH {
            return self.refuse(at, "items nest at most 16 deep");
        }
        match self.head()? {
            (0 | 1, _) => {}
            (2, length) => {
                self.take(length)?;
            }
            (3, length) => {
                if std::str::from_utf8(self.take(length)?).is_err() {
                    return self.refuse(at, "text is UTF-8");
                }
            }
            // A count beyond the bytes that are left fails at the first item missing.
            (4, count) => {
                for _ in 0..count {
                    self.item(depth + 1)?;
                }
            }
            (5, count) => {
                let mut last: Option<(usize, usize)> = None;
                for _ in 0..count {
                    let start = self.at;
                    if !matches!(self.bytes.get(start).map(|byte| byte >> 5), Some(0 | 1 | 3)) {
                        return self.refuse(start, "keys are integers or text");
                    }
                    self.item(depth + 1)?;
                    let key = (start, self.at);
                    if let Some((from, to)) = last
                        && self.bytes[from..to] >= self.bytes[key.0..key.1]
                    {
                        return self.refuse(start, "keys ascend, each once");
                    }
                    last = Some(key);
                    self.item(depth + 1)?;
                }
            }
            (6, _) => self.item(depth + 1)?,
            (7, 20..=22) if self.at == at + 1 => {}
            _ => return self.refuse(at, "only booleans and null are simple values"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(bytes: &[u8]) -> &'static str {
        match check_canonical(bytes) {
            Err(CborError::NotCanonical { rule, .. }) => rule,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_way_to_write_a_thing_twice_is_refused() {
        assert!(check_canonical(&[0xa2, 0x01, 0x02, 0x20, 0xf6]).is_ok());
        assert!(rule(&[0x18, 0x17]).contains("shortest"));
        assert!(rule(&[0x58, 0x01, 0x00]).contains("shortest"));
        assert!(rule(&[0x9f, 0xff]).contains("definite"));
        assert!(rule(&[0xa2, 0x02, 0x00, 0x01, 0x00]).contains("ascend"));
        assert!(rule(&[0xa2, 0x01, 0x00, 0x01, 0x00]).contains("ascend"));
        assert!(rule(&[0xa1, 0x80, 0x00]).contains("keys are"));
        assert!(rule(&[0xfb, 0, 0, 0, 0, 0, 0, 0, 0]).contains("simple"));
        assert!(rule(&[0xf8, 0x18]).contains("simple") || rule(&[0xf8, 0x18]).contains("shortest"));
        assert!(rule(&[0x61, 0xff]).contains("UTF-8"));
        assert!(rule(&[0x81; 40]).contains("deep"));
        assert!(matches!(
            check_canonical(&[0x01, 0x01]),
            Err(CborError::Trailing)
        ));
        assert!(matches!(check_canonical(&[]), Err(CborError::Truncated)));
        let huge = [0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(check_canonical(&huge), Err(CborError::Truncated)));
    }
}
