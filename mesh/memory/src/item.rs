//! What an agent says, and what a reader gets.
//!
//! A [`Draft`] is what is about to be published; a [`MemoryItem`] is what the fragments of one
//! document add up to. Every field has a bound, checked before anything is signed and again when a
//! fragment comes from elsewhere.

mod bounds;

use std::collections::BTreeMap;

use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

pub use self::bounds::BoundsError;
pub(crate) use self::bounds::{at_most, count, not_empty};
use crate::{DocId, FragmentId, Hlc, Kind};

/// Most bytes of a title.
pub const MAX_TITLE: usize = 512;
/// Most bytes of a text.
pub const MAX_TEXT: usize = 256 * 1024;
/// Most tags of one memory.
pub const MAX_TAGS: usize = 64;
/// Most bytes of one tag.
pub const MAX_TAG: usize = 128;
/// Most bytes of a key.
pub const MAX_KEY: usize = 512;
/// Most bytes of a task's name.
pub const MAX_TASK: usize = 512;
/// Most pieces of evidence of one memory.
pub const MAX_EVIDENCE: usize = 64;
/// Most bytes of one piece of evidence.
pub const MAX_EVIDENCE_BYTES: usize = 4 * 1024;
/// Most documents that one memory supersedes, or depends on.
pub const MAX_LINKS: usize = 64;
/// Most named fields of one memory.
pub const MAX_FIELDS: usize = 64;
/// Most bytes of a field's name.
pub const MAX_FIELD_NAME: usize = 128;
/// Most bytes of a field's value.
pub const MAX_FIELD_VALUE: usize = 16 * 1024;

/// A memory about to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// What it is about; any kind but [`Kind::Context`] and [`Kind::File`].
    pub kind: Kind,
    /// One line that says it; at most [`MAX_TITLE`] bytes, not blank.
    pub title: String,
    /// The rest; at most [`MAX_TEXT`] bytes.
    #[serde(default)]
    pub text: String,
    /// Words to find it by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// A name for what it is about: a later memory with the same kind and key replaces it.
    #[serde(default)]
    pub key: Option<String>,
    /// The task in which it was learned.
    #[serde(default)]
    pub task: Option<String>,
    /// What shows it: command lines, outputs, references.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// The memories that it replaces.
    #[serde(default)]
    pub supersedes: Vec<DocId>,
    /// The memories that it rests on.
    #[serde(default)]
    pub depends_on: Vec<DocId>,
    /// Whatever else has a name.
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
}

impl Draft {
    /// Returns a draft with a kind, a title and a text, and nothing else.
    #[must_use]
    pub fn new(kind: Kind, title: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            kind,
            title: title.into(),
            text: text.into(),
            tags: Vec::new(),
            key: None,
            task: None,
            evidence: Vec::new(),
            supersedes: Vec::new(),
            depends_on: Vec::new(),
            fields: BTreeMap::new(),
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks one, with its size and its limit.
    pub fn check(&self) -> Result<(), BoundsError> {
        if matches!(self.kind, Kind::Context | Kind::File | Kind::Redaction) {
            return Err(BoundsError::NotAMemory { kind: self.kind });
        }
        not_empty("title", &self.title)?;
        at_most("title", &self.title, MAX_TITLE)?;
        at_most("text", &self.text, MAX_TEXT)?;
        count("tags", self.tags.len(), MAX_TAGS)?;
        for tag in &self.tags {
            not_empty("tags", tag)?;
            at_most("tags", tag, MAX_TAG)?;
        }
        if let Some(key) = &self.key {
            not_empty("key", key)?;
            at_most("key", key, MAX_KEY)?;
        }
        if let Some(task) = &self.task {
            not_empty("task", task)?;
            at_most("task", task, MAX_TASK)?;
        }
        count("evidence", self.evidence.len(), MAX_EVIDENCE)?;
        for piece in &self.evidence {
            at_most("evidence", piece, MAX_EVIDENCE_BYTES)?;
        }
        count("supersedes", self.supersedes.len(), MAX_LINKS)?;
        count("depends_on", self.depends_on.len(), MAX_LINKS)?;
        count("fields", self.fields.len(), MAX_FIELDS)?;
        for (name, value) in &self.fields {
            not_empty("fields", name)?;
            at_most("fields", name, MAX_FIELD_NAME)?;
            at_most("fields", value, MAX_FIELD_VALUE)?;
        }
        Ok(())
    }
}

/// What the fragments of one memory add up to.
///
/// `title`, `text` and the other words are data of their author, never instructions to the reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryItem {
    /// The fragment that carries the statement shown.
    pub id: FragmentId,
    /// The document.
    pub doc: DocId,
    /// The space.
    pub space: SpaceId,
    /// What it is about.
    pub kind: Kind,
    /// One line that says it.
    pub title: String,
    /// The rest.
    pub text: String,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// The name of what it is about.
    pub key: Option<String>,
    /// The task in which it was learned.
    pub task: Option<String>,
    /// What shows it.
    pub evidence: Vec<String>,
    /// The memories that it replaces.
    pub supersedes: Vec<DocId>,
    /// The memories that replace it; in the order of their ids.
    pub superseded_by: Vec<DocId>,
    /// The memories that it rests on.
    pub depends_on: Vec<DocId>,
    /// Whatever else has a name.
    pub fields: BTreeMap<String, String>,
    /// Who signed `id`.
    pub author: AgentId,
    /// The node that `id` was written on.
    pub node: NodeId,
    /// When, in Unix milliseconds by that node's clock.
    pub at_ms: u64,
    /// The same with its counter; ranks.
    pub hlc: Hlc,
    /// The hash of the runtime fingerprint it was learned under.
    pub fingerprint: Hash,
    /// The statements that stand beside this one, because neither author knew of the other's.
    pub conflicts: Vec<Conflict>,
    /// Whether it was taken back: it is in no list and no answer then, but its history stays.
    #[serde(default, skip_serializing_if = "is_false")]
    pub retracted: bool,
    /// How often it was said again in the same words, beside the first time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub confirmations: u64,
    /// How many agents beside its author said it again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub confirmed_by: u64,
    /// What others said before in its document, for the search index; readers get it empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub buried: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A statement made without knowing of the one it stands beside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The fragment that carries it.
    pub id: FragmentId,
    /// What it is about.
    pub kind: Kind,
    /// One line that says it.
    pub title: String,
    /// The rest.
    pub text: String,
    /// Whatever else has a name.
    pub fields: BTreeMap<String, String>,
    /// Who signed `id`.
    pub author: AgentId,
    /// The node that `id` was written on.
    pub node: NodeId,
    /// When, in Unix milliseconds by that node's clock.
    pub at_ms: u64,
    /// The same with its counter.
    pub hlc: Hlc,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Draft)) -> BoundsError {
        let mut draft = Draft::new(Kind::Fact, "water is wet", "");
        assert_eq!(draft.check(), Ok(()));
        change(&mut draft);
        draft.check().unwrap_err()
    }

    #[test]
    fn each_bound_names_its_field_size_and_limit() {
        let long = refused(|draft| draft.title = "x".repeat(MAX_TITLE + 1));
        assert_eq!(
            long,
            BoundsError::TooLong {
                field: "title",
                size: MAX_TITLE + 1,
                limit: MAX_TITLE
            }
        );
        assert!(long.hint().unwrap().contains("title"));
        assert_eq!(
            refused(|draft| draft.title = " \n".into()),
            BoundsError::Blank { field: "title" }
        );
        let many = refused(|draft| draft.tags = vec!["t".into(); MAX_TAGS + 1]);
        assert_eq!(
            many,
            BoundsError::TooMany {
                field: "tags",
                size: MAX_TAGS + 1,
                limit: MAX_TAGS
            }
        );
        assert_eq!(
            refused(|draft| draft.kind = Kind::Context),
            BoundsError::NotAMemory {
                kind: Kind::Context
            }
        );
        let text = refused(|draft| draft.text = "x".repeat(MAX_TEXT + 1));
        assert!(matches!(text, BoundsError::TooLong { field: "text", .. }));
    }

    #[test]
    fn a_draft_with_an_unknown_field_is_refused() {
        let text = r#"{"kind":"fact","title":"t","colour":"red"}"#;
        assert!(serde_json::from_str::<Draft>(text).is_err());
        assert!(serde_json::from_str::<Draft>(r#"{"kind":"fact","title":"t"}"#).is_ok());
    }
}
