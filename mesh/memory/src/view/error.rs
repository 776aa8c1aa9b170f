//! Why the view did not do what it was asked.

use std::{io, path::PathBuf};

use crate::{BoundsError, FileError};

/// Why nothing was composed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComposeError {
    /// A field is too large or blank.
    #[error("the draft cannot be published")]
    Bounds(#[from] BoundsError),
    /// The author has used up its room in the document.
    #[error(
        "the author has made {changes} changes on this document and used up its room; at most {limit} are allowed"
    )]
    Full {
        /// The changes it made.
        changes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// An earlier change of this document was composed, but not yet named by its fragment.
    #[error("an earlier change of this document is still being published")]
    Busy,
    /// The file is not as the edit needs it.
    #[error("the file cannot be edited so")]
    File(#[source] FileError),
    /// automerge failed.
    #[error("automerge failed: {0}")]
    Automerge(String),
    /// The view's database failed.
    #[error("the view failed")]
    View(#[from] ViewError),
}

impl ComposeError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bounds(error) => error.hint(),
            Self::Full { .. } => Some("begin a new task, or publish under another key".into()),
            Self::Busy => Some("try again".into()),
            Self::File(error) => Some(error.hint().into()),
            Self::Automerge(_) => None,
            Self::View(error) => error.hint(),
        }
    }
}

/// Why the view failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The view's directory cannot be used.
    #[error("cannot use the view's directory `{}`", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database failed.
    #[error("the view's database failed")]
    Database(#[source] Box<redb::Error>),
    /// The search index failed.
    #[error("the search index failed")]
    Index(#[source] Box<tantivy::TantivyError>),
    /// The view's thread could not be started.
    #[error("cannot start the view's thread")]
    Thread(#[source] io::Error),
    /// What was read back is not what was written; the next opening derives the view anew.
    #[error("{0} in the view is damaged")]
    Damaged(&'static str),
}

impl ViewError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Io { .. } => {
                Some("check that the disk has room and that the directory is yours".into())
            }
            Self::Database(error) if matches!(**error, redb::Error::DatabaseAlreadyOpen) => Some(
                "another daemon uses this data directory: stop it, or use another directory".into(),
            ),
            Self::Database(_) | Self::Index(_) => {
                Some("check that the disk has room, then restart the node".into())
            }
            Self::Damaged(_) => {
                Some("restart the node: the view is derived anew from the fragments".into())
            }
            Self::Thread(_) => None,
        }
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for ViewError {
            fn from(error: redb::$error) -> Self {
                Self::Database(Box::new(error.into()))
            }
        })*
    };
}

from_redb!(
    StorageError,
    TableError,
    TransactionError,
    CommitError,
    DatabaseError,
    SetDurabilityError
);
