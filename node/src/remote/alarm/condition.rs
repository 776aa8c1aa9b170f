//! What a sandbox that sleeps waits for, as people write it, and as its record carries it.

use rhizome_identity::Hash;
use rhizome_memory::{DocId, FragmentId, RecallError, StandingQuery};
use serde::{Deserialize, Serialize};

use super::when::{WhenError, parse_time};

/// Most conditions of one sandbox; whichever comes first wakes it.
pub(crate) const MAX_CONDITIONS: usize = 8;
/// Longest standing query, in bytes.
const MAX_QUERY_BYTES: usize = 512;
/// Longest field of a record that conditions or a cause are read from, in bytes.
const MAX_FIELD_BYTES: usize = 8 * 1024;
/// Digits of a webhook's token.
const TOKEN_DIGITS: usize = 64;
/// What a token is hashed for.
const OF_A_TOKEN: &str = "rhizome wake token 1";

/// One thing that wakes a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "lowercase")]
pub(crate) enum Condition {
    /// A time, by the clock of whoever wakes it.
    Time {
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// A memory of its spaces that is published after it went to sleep.
    Memory {
        /// The words that the memory has, all of them.
        query: String,
    },
    /// A request with a token that only whoever put it to sleep was told.
    Webhook {
        /// The token's hash.
        token: Hash,
    },
    /// Something that this release does not know; it waits for it in vain here.
    #[serde(other)]
    Unknown,
}

/// What woke a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "lowercase")]
pub(crate) enum Cause {
    /// Somebody asked for it.
    Asked,
    /// Its time came.
    Time {
        /// When it was to wake, in Unix milliseconds.
        at_ms: u64,
    },
    /// A memory came.
    Memory {
        /// What it waited for.
        query: String,
        /// The fragment that has it.
        fragment: FragmentId,
        /// The document that the fragment belongs to.
        doc: DocId,
        /// What it says, in a line.
        title: String,
    },
    /// Somebody sent something to its webhook.
    Webhook {
        /// How many bytes.
        bytes: u64,
    },
    /// Something that this release does not know.
    #[serde(other)]
    Unknown,
}

/// What is asked for with `--wake-on`, before it has a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    Time { at_ms: u64 },
    Memory { query: String },
    Webhook,
}

/// Why something is no condition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WakeOnError {
    /// It begins with none of the words.
    #[error("`{0}` is nothing that a sandbox can wait for")]
    Unknown(String),
    /// The time cannot be read, or has passed.
    #[error("`{text}` is no time to wake at")]
    Time {
        /// What was said.
        text: String,
        /// What is wrong about it.
        source: WhenError,
    },
    /// The query has no words, or too many.
    #[error("`{text}` is nothing that a memory could be held against")]
    Query {
        /// What was said.
        text: String,
        /// What is wrong about it.
        source: RecallError,
    },
    /// The query is too long; both in bytes.
    #[error("the query is {size} bytes; at most {MAX_QUERY_BYTES} are kept with a sandbox")]
    LongQuery {
        /// Its size.
        size: usize,
    },
    /// There are too many.
    #[error("{0} conditions; a sandbox waits for at most {MAX_CONDITIONS}")]
    TooMany(usize),
    /// A second webhook.
    #[error("a sandbox has one webhook")]
    TwoWebhooks,
}

impl WakeOnError {
    /// Says what to write instead.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Unknown(_) => {
                "write `time=2h`, `time=2026-12-24T08:00:00Z`, `memory=<words>` or `webhook`".into()
            }
            Self::Time { source, .. } => source.hint(),
            Self::Query { .. } => "give words that the memory must have, all of them".into(),
            Self::LongQuery { .. } => "wait for the words that matter".into(),
            Self::TooMany(_) => "whichever comes first wakes it: leave out the later ones".into(),
            Self::TwoWebhooks => "write `webhook` once".into(),
        }
    }
}

impl Word {
    /// Reads `time=…`, `memory=…` or `webhook`.
    pub(crate) fn parse(text: &str, now_ms: u64) -> Result<Self, WakeOnError> {
        let clipped = |text: &str| text.chars().take(80).collect::<String>();
        if text == "webhook" {
            return Ok(Self::Webhook);
        }
        match text.split_once('=') {
            Some(("time", when)) => {
                let at_ms = parse_time(when, now_ms).map_err(|source| WakeOnError::Time {
                    text: clipped(when),
                    source,
                })?;
                Ok(Self::Time { at_ms })
            }
            Some(("memory", query)) => {
                let size = query.len();
                if size > MAX_QUERY_BYTES {
                    return Err(WakeOnError::LongQuery { size });
                }
                StandingQuery::new(query).map_err(|source| WakeOnError::Query {
                    text: clipped(query),
                    source,
                })?;
                let query = query.to_owned();
                Ok(Self::Memory { query })
            }
            _ => Err(WakeOnError::Unknown(clipped(text))),
        }
    }

    /// Reads several, in the order in which they were written, each once.
    pub(crate) fn parse_all(texts: &[String], now_ms: u64) -> Result<Vec<Self>, WakeOnError> {
        if texts.len() > MAX_CONDITIONS {
            return Err(WakeOnError::TooMany(texts.len()));
        }
        let mut words = Vec::new();
        for text in texts {
            let word = Self::parse(text, now_ms)?;
            match (word == Self::Webhook, words.contains(&word)) {
                (true, true) => return Err(WakeOnError::TwoWebhooks),
                (false, true) => {}
                (_, false) => words.push(word),
            }
        }
        Ok(words)
    }

    /// Returns the conditions, with the hash of `token` where a webhook is among them.
    pub(crate) fn conditions(words: Vec<Self>, token: &str) -> Vec<Condition> {
        let condition = |word| match word {
            Self::Time { at_ms } => Condition::Time { at_ms },
            Self::Memory { query } => Condition::Memory { query },
            Self::Webhook => Condition::Webhook {
                token: hash_of(token),
            },
        };
        words.into_iter().map(condition).collect()
    }
}

impl Condition {
    fn is_sound(&self) -> bool {
        match self {
            Self::Memory { query } => {
                query.len() <= MAX_QUERY_BYTES && StandingQuery::new(query).is_ok()
            }
            Self::Time { .. } | Self::Webhook { .. } | Self::Unknown => true,
        }
    }
}

/// Returns what stands for a token in a record, which many can read.
pub(crate) fn hash_of(token: &str) -> Hash {
    Hash::keyed(OF_A_TOKEN, token.as_bytes())
}

/// Returns whether a path could end in a token.
pub(crate) fn is_token(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == TOKEN_DIGITS && text.bytes().all(is_digit)
}

/// Writes conditions as the field of a record.
pub(crate) fn to_field(conditions: &[Condition]) -> String {
    serde_json::to_string(conditions).expect("conditions are plain")
}

/// Reads the field of a record; `None` if it is not what a node would write.
pub(crate) fn from_field(text: &str) -> Option<Vec<Condition>> {
    if text.len() > MAX_FIELD_BYTES {
        return None;
    }
    let conditions: Vec<Condition> = serde_json::from_str(text).ok()?;
    let sound = conditions.len() <= MAX_CONDITIONS && conditions.iter().all(Condition::is_sound);
    sound.then_some(conditions)
}

/// Reads a cause from the field of a record.
pub(crate) fn cause_from_field(text: &str) -> Option<Cause> {
    let short = text.len() <= MAX_FIELD_BYTES;
    short.then(|| serde_json::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn conditions_are_read_and_survive_a_record() {
        let texts = ["time=2h", "memory=build green", "webhook", "time=2h"].map(String::from);
        let words = Word::parse_all(&texts, NOW).unwrap();
        assert_eq!(words.len(), 3, "said twice is said once");
        let conditions = Word::conditions(words, "secret");
        assert_eq!(
            conditions[0],
            Condition::Time {
                at_ms: NOW + 7_200_000
            }
        );
        let field = to_field(&conditions);
        assert!(!field.contains("secret"), "{field}");
        assert_eq!(from_field(&field), Some(conditions));
    }

    #[test]
    fn what_is_no_condition_says_why() {
        let refused = |text: &str| Word::parse(text, NOW).unwrap_err();
        assert!(matches!(refused("rain"), WakeOnError::Unknown(_)));
        assert!(matches!(refused("webhook=1"), WakeOnError::Unknown(_)));
        assert!(matches!(refused("time=soon"), WakeOnError::Time { .. }));
        assert!(matches!(refused("memory="), WakeOnError::Query { .. }));
        assert!(matches!(
            refused("memory=the of"),
            WakeOnError::Query { .. }
        ));
        let long = format!("memory={}", "word ".repeat(200));
        assert!(matches!(refused(&long), WakeOnError::LongQuery { .. }));
        assert!(!refused("rain").hint().is_empty());
        let twice = ["webhook", "webhook"].map(String::from);
        let refused = Word::parse_all(&twice, NOW);
        assert!(matches!(refused, Err(WakeOnError::TwoWebhooks)));
        let many = vec!["webhook".to_owned(); MAX_CONDITIONS + 1];
        let refused = Word::parse_all(&many, NOW);
        assert!(matches!(refused, Err(WakeOnError::TooMany(9))));
    }

    #[test]
    fn a_field_that_no_node_writes_is_refused_and_a_later_ones_is_kept() {
        let later = r#"[{"on":"moon","phase":"full"},{"on":"time","at_ms":5}]"#;
        let read = from_field(later).unwrap();
        assert_eq!(read, [Condition::Unknown, Condition::Time { at_ms: 5 }]);
        let many = to_field(&vec![Condition::Time { at_ms: 1 }; MAX_CONDITIONS + 1]);
        let long = to_field(&[Condition::Memory {
            query: "w ".repeat(400),
        }]);
        let huge = format!("[{}]", " ".repeat(MAX_FIELD_BYTES));
        for bad in [
            "",
            "{}",
            "[1]",
            "[{}]",
            r#"[{"on":"time","at_ms":-1}]"#,
            r#"[{"on":"memory","query":""}]"#,
            r#"[{"on":"webhook","token":"zz"}]"#,
            &many,
            &long,
            &huge,
        ] {
            assert_eq!(from_field(bad), None, "{bad:.60}");
        }
        assert_eq!(cause_from_field(r#"{"why":"moon"}"#), Some(Cause::Unknown));
        assert_eq!(cause_from_field("[]"), None);
    }

    #[test]
    fn a_token_is_what_we_draw() {
        assert!(is_token(&"a9".repeat(32)));
        for bad in ["", "a9", &"A9".repeat(32), &"/.".repeat(32)] {
            assert!(!is_token(bad), "{bad}");
        }
    }
}
