//! What a memory is about.

use std::{fmt, str::FromStr};

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Serialize};

/// The kind of a document, visible in the header of its fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// Something seen.
    Observation = 1,
    /// Something tried, whether it worked or not.
    Attempt = 2,
    /// A choice made, and why.
    Decision = 3,
    /// Something that went wrong.
    Error = 4,
    /// What mended an error.
    Fix = 5,
    /// Something that holds.
    Fact = 6,
    /// How someone likes it.
    Preference = 7,
    /// What to do, or not to.
    Rule = 8,
    /// What came of something recalled.
    Outcome = 9,
    /// Something made, by reference.
    Artifact = 10,
    /// The working context of one task.
    Context = 32,
    /// What a sandbox can be resumed from, and who runs it; kept by nodes.
    Snapshot = 33,
    /// A version of a volume; kept by nodes.
    Volume = 34,
    /// What a runtime is made of, named by its fingerprint; kept by nodes.
    Runtime = 35,
    /// A file of text that several edit, by its path.
    File = 36,
    /// How often one agent said what another memory says already; kept by nodes.
    Confirmation = 40,
    /// Takes the bodies of other fragments for good; its header names them.
    Redaction = 41,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 17] = [
        Self::Observation,
        Self::Attempt,
        Self::Decision,
        Self::Error,
        Self::Fix,
        Self::Fact,
        Self::Preference,
        Self::Rule,
        Self::Outcome,
        Self::Artifact,
        Self::Context,
        Self::Snapshot,
        Self::Volume,
        Self::Runtime,
        Self::File,
        Self::Confirmation,
        Self::Redaction,
    ];

    /// Returns whether this is a node's record rather than something learned.
    ///
    /// Such a document is found by who asks for its kind, and by nobody else.
    #[must_use]
    pub const fn is_record(self) -> bool {
        matches!(
            self,
            Self::Snapshot | Self::Volume | Self::Runtime | Self::Confirmation | Self::Redaction
        )
    }

    /// Returns the number that stands for this kind in a header.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the kind that `number` stands for.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the lower-case word for this kind.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observation => "observation",
            Self::Attempt => "attempt",
            Self::Decision => "decision",
            Self::Error => "error",
            Self::Fix => "fix",
            Self::Fact => "fact",
            Self::Preference => "preference",
            Self::Rule => "rule",
            Self::Outcome => "outcome",
            Self::Artifact => "artifact",
            Self::Context => "context",
            Self::Snapshot => "snapshot",
            Self::Volume => "volume",
            Self::Runtime => "runtime",
            Self::File => "file",
            Self::Confirmation => "confirmation",
            Self::Redaction => "redaction",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that names no kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no kind of memory")]
pub struct ParseKindError(String);

impl ParseKindError {
    /// Says what to write instead.
    #[must_use]
    pub fn hint(&self) -> String {
        let words: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("use one of: {}", words.join(", "))
    }
}

impl FromStr for Kind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| ParseKindError(text.chars().take(40).collect()))
    }
}

impl<C> Encode<C> for Kind {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.u8(self.number())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Kind {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let at = d.position();
        Self::from_number(d.u8()?).ok_or_else(|| decode::Error::message("unknown kind").at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_word_and_one_number() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
            assert_eq!(Kind::from_number(kind.number()), Some(kind));
        }
        assert!("Fix".parse::<Kind>().unwrap_err().hint().contains("fix"));
    }
}
