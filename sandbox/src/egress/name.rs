//! Domain names and the patterns that rules match them with.

use std::{fmt, str::FromStr};

/// Longest name in its text form, in bytes (RFC 1035, section 2.3.4, less the root's dot).
const MAX_NAME: usize = 253;
/// Longest label, in bytes.
const MAX_LABEL: usize = 63;

/// A domain name in the one form that names are compared in: ASCII, lower case, without the
/// root's dot. It is never an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(String);

/// Why a text is no domain name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing, or nothing between two dots.
    #[error("a part of the name is empty")]
    Empty,
    /// More than 253 bytes, or a label of more than 63.
    #[error("the name is too long")]
    TooLong,
    /// A character that host names do not have.
    #[error("the name has a character that no host name has")]
    Character,
    /// The last label is a number, so that some programs take the name for an address.
    #[error("the name could be taken for an address")]
    Numeric,
    /// Not valid by the rules of international names (UTS 46).
    #[error("the name is not valid by the rules for international names")]
    International,
}

impl DomainName {
    /// Reads a name as it comes over the wire, in a DNS question, a TLS greeting or a `Host`:
    /// ASCII only, case ignored, one dot at the end allowed.
    ///
    /// # Errors
    /// Any [`NameError`] but [`NameError::International`].
    pub fn from_wire(text: &[u8]) -> Result<Self, NameError> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        if text.len() > MAX_NAME {
            return Err(NameError::TooLong);
        }
        let mut last_is_number = false;
        for label in text.split(|&byte| byte == b'.') {
            check_label(label)?;
            last_is_number = is_number(label);
        }
        if last_is_number {
            return Err(NameError::Numeric);
        }
        let name = text
            .iter()
            .map(|byte| char::from(byte.to_ascii_lowercase()));
        Ok(Self(name.collect()))
    }

    /// Returns the name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_below(&self, parent: &Self) -> bool {
        self.0
            .strip_suffix(&parent.0)
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }
}

/// Whether a resolver of old would read this last label as a part of an address.
fn is_number(label: &[u8]) -> bool {
    let hex = label.strip_prefix(b"0x").or(label.strip_prefix(b"0X"));
    hex.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        || label.iter().all(u8::is_ascii_digit)
}

fn check_label(label: &[u8]) -> Result<(), NameError> {
    // Underscores are in no host name by the book, and in many by use.
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match label {
        [] => Err(NameError::Empty),
        label if label.len() > MAX_LABEL => Err(NameError::TooLong),
        label if !label.iter().all(plain) => Err(NameError::Character),
        [b'-', ..] | [.., b'-'] => Err(NameError::Character),
        _ => Ok(()),
    }
}

impl FromStr for DomainName {
    type Err = NameError;

    /// Reads a name as people write it; `Bücher.example` becomes `xn--bcher-kva.example`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_ascii() {
            return Self::from_wire(text.as_bytes());
        }
        // It may grow by a constant factor only, but there is no need to find out.
        if text.len() > 4 * MAX_NAME {
            return Err(NameError::TooLong);
        }
        let ascii = idna::domain_to_ascii(text).map_err(|_| NameError::International)?;
        Self::from_wire(ascii.as_bytes())
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What names a rule is about.
///
/// `example.org` is that name alone. `*.example.org` is every name below it, however deep, and
/// not `example.org` itself: who means both writes both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamePattern {
    /// One name.
    Exact(DomainName),
    /// All names below one.
    Below(DomainName),
}

impl NamePattern {
    /// Whether the pattern covers `name`.
    #[must_use]
    pub fn covers(&self, name: &DomainName) -> bool {
        match self {
            Self::Exact(own) => own == name,
            Self::Below(parent) => name.is_below(parent),
        }
    }
}

impl FromStr for NamePattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.strip_prefix("*.") {
            Some(parent) => parent.parse().map(Self::Below),
            None => text.parse().map(Self::Exact),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        for (text, name) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("_dmarc.example.org", "_dmarc.example.org"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example.", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("例え.jp", "xn--r8jz45g.jp"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(text.parse::<DomainName>().unwrap().as_str(), name, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("{}.example", "a".repeat(64));
        for (text, error) in [
            ("", NameError::Empty),
            (".", NameError::Empty),
            ("a..b", NameError::Empty),
            (".a", NameError::Empty),
            ("a.b..", NameError::Empty),
            ("10.0.0.1", NameError::Numeric),
            ("2130706433", NameError::Numeric),
            ("0x7f.0x1", NameError::Numeric),
            ("0x", NameError::Numeric),
            ("a b", NameError::Character),
            ("a/b", NameError::Character),
            ("*.example.org", NameError::Character),
            ("-a.example", NameError::Character),
            ("[::1]", NameError::Character),
            (&long, NameError::TooLong),
            (&"a.".repeat(128), NameError::TooLong),
        ] {
            assert_eq!(text.parse::<DomainName>(), Err(error), "{text}");
        }
        assert_eq!(
            DomainName::from_wire("bücher.example".as_bytes()),
            Err(NameError::Character)
        );
    }

    #[test]
    fn a_wildcard_covers_all_below_and_not_itself() {
        let pattern: NamePattern = "*.Example.org.".parse().unwrap();
        assert_eq!(pattern.to_string(), "*.example.org");
        for (name, covered) in [
            ("a.example.org", true),
            ("a.b.example.org", true),
            ("example.org", false),
            ("badexample.org", false),
            ("example.org.evil.net", false),
            ("org", false),
        ] {
            assert_eq!(pattern.covers(&name.parse().unwrap()), covered, "{name}");
        }
        assert!("*.".parse::<NamePattern>().is_err());
        assert!("*".parse::<NamePattern>().is_err());
        assert!("a.*.org".parse::<NamePattern>().is_err());
        assert!("*.*.org".parse::<NamePattern>().is_err());
    }
}
