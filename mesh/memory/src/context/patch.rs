//! What one checkpoint adds to a context.

use serde::{Deserialize, Serialize};

use super::{MAX_ENTRY_TEXT, MAX_PATCH_BYTES, MAX_PATCH_ENTRIES, Note};
use crate::item::{BoundsError, at_most, count, not_empty};

/// What one checkpoint adds to a context; lists add to what is there, `next` replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextPatch {
    /// What is to be reached.
    pub goal: Option<String>,
    /// Where it stands.
    pub status: Option<String>,
    /// Paths taken.
    pub explored: Vec<Explored>,
    /// Choices made.
    pub decisions: Vec<Decision>,
    /// What went wrong; the same `error` again updates its earlier entry.
    pub errors: Vec<ErrorEntry>,
    /// What is not known.
    pub questions: Vec<String>,
    /// Questions that have their answer, word for word as they were asked.
    pub resolved_questions: Vec<String>,
    /// What to do next, in order; replaces the steps there were.
    pub next: Option<Vec<String>>,
    /// What was made.
    pub artifacts: Vec<Artifact>,
    /// Where the work is done.
    pub sandbox: Option<SandboxRef>,
    /// What is relied on in the runtime, one requirement each; replaces what there was.
    ///
    /// Absent from what earlier releases wrote, and never written if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Vec<String>>,
}

/// A path that was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explored {
    /// What was tried.
    pub what: String,
    /// What came of it.
    #[serde(default)]
    pub result: String,
}

/// A choice that was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What was decided.
    pub what: String,
    /// Why.
    #[serde(default)]
    pub why: String,
}

/// Something that went wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// What was seen; the entry's name in later patches.
    pub error: String,
    /// Why it happens.
    #[serde(default)]
    pub cause: Option<String>,
    /// What mended it.
    #[serde(default)]
    pub fix: Option<String>,
    /// Where it stands, such as `open` or `fixed`.
    #[serde(default)]
    pub status: Option<String>,
}

/// Something that was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name.
    pub name: String,
    /// Where it is: a path, a hash, a URL.
    #[serde(default)]
    pub reference: String,
}

/// The sandbox in which the work is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRef {
    /// Its id.
    pub id: String,
    /// The image it was made from.
    #[serde(default)]
    pub image: Option<String>,
    /// The node it runs on.
    #[serde(default)]
    pub node: Option<String>,
    /// The snapshot it can be resumed from.
    #[serde(default)]
    pub snapshot: Option<String>,
}

impl ContextPatch {
    /// Returns whether the patch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks one, with its size and its limit; an empty patch too.
    pub fn check(&self) -> Result<(), BoundsError> {
        if self.is_empty() {
            return Err(BoundsError::Nothing);
        }
        let mut total = 0;
        let mut text = |field, text: &str| {
            total += text.len();
            at_most(field, text, MAX_ENTRY_TEXT)
        };
        if let Some(goal) = &self.goal {
            text("goal", goal)?;
        }
        if let Some(status) = &self.status {
            text("status", status)?;
        }
        for entry in &self.explored {
            entry.check(&mut text)?;
        }
        for entry in &self.decisions {
            entry.check(&mut text)?;
        }
        for entry in &self.errors {
            entry.check(&mut text)?;
        }
        for question in &self.questions {
            not_empty("questions", question)?;
            text("questions", question)?;
        }
        for question in &self.resolved_questions {
            text("resolved_questions", question)?;
        }
        for step in self.next.iter().flatten() {
            text("next", step)?;
        }
        for requirement in self.requires.iter().flatten() {
            not_empty("requires", requirement)?;
            text("requires", requirement)?;
        }
        for entry in &self.artifacts {
            entry.check(&mut text)?;
        }
        if let Some(sandbox) = &self.sandbox {
            sandbox.check(&mut text)?;
        }
        count("explored", self.explored.len(), MAX_PATCH_ENTRIES)?;
        count("decisions", self.decisions.len(), MAX_PATCH_ENTRIES)?;
        count("errors", self.errors.len(), MAX_PATCH_ENTRIES)?;
        count("questions", self.questions.len(), MAX_PATCH_ENTRIES)?;
        count(
            "resolved_questions",
            self.resolved_questions.len(),
            MAX_PATCH_ENTRIES,
        )?;
        count(
            "next",
            self.next.as_ref().map_or(0, Vec::len),
            MAX_PATCH_ENTRIES,
        )?;
        count("artifacts", self.artifacts.len(), MAX_PATCH_ENTRIES)?;
        count(
            "requires",
            self.requires.as_ref().map_or(0, Vec::len),
            MAX_PATCH_ENTRIES,
        )?;
        if total > MAX_PATCH_BYTES {
            return Err(BoundsError::TooLong {
                field: "patch",
                size: total,
                limit: MAX_PATCH_BYTES,
            });
        }
        Ok(())
    }
}

/// Checks one text of a field, and counts its bytes.
type CheckText<'a> = &'a mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>;

/// Something with bounds of its own.
pub(crate) trait Bounded {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError>;
}

impl Bounded for Note {
    fn check(&self, text: CheckText<'_>) -> Result<(), BoundsError> {
        text("text", &self.text)
    }
}

impl Bounded for Explored {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError> {
        not_empty("explored", &self.what)?;
        text("explored", &self.what)?;
        text("explored", &self.result)
    }
}

impl Bounded for Decision {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError> {
        not_empty("decisions", &self.what)?;
        text("decisions", &self.what)?;
        text("decisions", &self.why)
    }
}

impl Bounded for ErrorEntry {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError> {
        not_empty("errors", &self.error)?;
        text("errors", &self.error)?;
        [&self.cause, &self.fix, &self.status]
            .into_iter()
            .flatten()
            .try_for_each(|part| text("errors", part))
    }
}

impl Bounded for Artifact {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError> {
        not_empty("artifacts", &self.name)?;
        text("artifacts", &self.name)?;
        text("artifacts", &self.reference)
    }
}

impl Bounded for SandboxRef {
    fn check(
        &self,
        text: &mut dyn FnMut(&'static str, &str) -> Result<(), BoundsError>,
    ) -> Result<(), BoundsError> {
        not_empty("sandbox", &self.id)?;
        text("sandbox", &self.id)?;
        [&self.image, &self.node, &self.snapshot]
            .into_iter()
            .flatten()
            .try_for_each(|part| text("sandbox", part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_that_says_nothing_or_too_much_is_refused() {
        assert_eq!(ContextPatch::default().check(), Err(BoundsError::Nothing));
        let questions = vec!["why?".to_owned(); MAX_PATCH_ENTRIES + 1];
        let patch = ContextPatch {
            questions,
            ..ContextPatch::default()
        };
        assert!(matches!(
            patch.check(),
            Err(BoundsError::TooMany {
                field: "questions",
                ..
            })
        ));
        let next = Some(vec!["x".repeat(MAX_ENTRY_TEXT); 17]);
        let patch = ContextPatch {
            next,
            ..ContextPatch::default()
        };
        assert!(matches!(
            patch.check(),
            Err(BoundsError::TooLong { field: "patch", .. })
        ));
        assert!(serde_json::from_str::<ContextPatch>(r#"{"goals":"x"}"#).is_err());
    }
}
