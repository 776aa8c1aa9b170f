//! How large a field may be.

use crate::Kind;

/// A field that is larger than a memory or a context may carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundsError {
    /// A text is too long; both sizes in bytes.
    #[error("`{field}` is {size} bytes; at most {limit} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A list is too long.
    #[error("`{field}` has {size} entries; at most {limit} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its number of entries.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A text that has to say something is blank.
    #[error("`{field}` is blank")]
    Blank {
        /// The field.
        field: &'static str,
    },
    /// A context or a file was given as the kind of a memory.
    #[error("`{kind}` is no kind of memory")]
    NotAMemory {
        /// The kind.
        kind: Kind,
    },
    /// A patch of a context that says nothing.
    #[error("the checkpoint changes nothing")]
    Nothing,
}

impl BoundsError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::TooLong { field: "text", .. } => {
                "put the long part into a file, publish it as an artifact and name it in `evidence`".into()
            }
            Self::TooLong { field, limit, .. } => format!("shorten `{field}` to {limit} bytes"),
            Self::TooMany { field, limit, .. } => format!("keep the {limit} entries of `{field}` that matter most"),
            Self::Blank { field } => format!("say something in `{field}`"),
            Self::NotAMemory { kind: Kind::File } => "write the file by its path instead".into(),
            Self::NotAMemory { .. } => "checkpoint a context instead".into(),
            Self::Nothing => "give at least one of goal, status, explored, decisions, errors, questions, next, artifacts, sandbox".into(),
        })
    }
}

pub(crate) fn at_most(field: &'static str, text: &str, limit: usize) -> Result<(), BoundsError> {
    let size = text.len();
    if size > limit {
        Err(BoundsError::TooLong { field, size, limit })
    } else {
        Ok(())
    }
}

pub(crate) fn count(field: &'static str, size: usize, limit: usize) -> Result<(), BoundsError> {
    if size > limit {
        Err(BoundsError::TooMany { field, size, limit })
    } else {
        Ok(())
    }
}

pub(crate) fn not_empty(field: &'static str, text: &str) -> Result<(), BoundsError> {
    if text.trim().is_empty() {
        Err(BoundsError::Blank { field })
    } else {
        Ok(())
    }
}
