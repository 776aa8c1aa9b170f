//! Files of memory, as the API tells them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, SCHEMA, memory::Memory};

/// The query of `GET /v1/files`, and of `GET`, `PUT` and `DELETE /v1/file`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileParams {
    /// `/memories` or below.
    pub path: Option<String>,
    /// Space, by name or id.
    pub space: Option<String>,
    /// Agent to speak as, by name or id.
    pub agent: Option<String>,
}

/// `GET /v1/files`: every file at or below a path, in the order of their paths.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileList {
    /// The version of this layout.
    pub schema: u32,
    /// The space.
    pub space: Named,
    /// The files.
    pub files: Vec<FileLine>,
}

/// One line about a file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileLine {
    /// Its path.
    pub path: String,
    /// Bytes of its text.
    pub bytes: u64,
    /// Its document.
    pub doc: String,
    /// The fragment that last changed it.
    pub id: String,
    /// Who signed that.
    pub author: Named,
    /// Where.
    pub node: Named,
    /// When.
    pub at_ms: u64,
}

/// `GET /v1/file`: a file with its text, as the memory that recall finds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileShown {
    /// The version of this layout.
    pub schema: u32,
    /// Its path.
    pub path: String,
    /// What it says, and who wrote it last.
    pub memory: Memory,
}

/// `POST /v1/file`: something to do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBody {
    /// Agent to speak as, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Space, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// What to do.
    pub edit: FileOp,
}

/// What to do to a file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileOp {
    /// Makes a file where nothing is.
    Create {
        /// The file.
        path: String,
        /// What it says.
        text: String,
    },
    /// Makes a file say this.
    Write {
        /// The file.
        path: String,
        /// What it says.
        text: String,
    },
    /// Carries over what somebody changed from `base` to `text`.
    Merge {
        /// The file.
        path: String,
        /// What somebody began with.
        base: String,
        /// What somebody made of it.
        text: String,
    },
    /// Puts a text in the place of one that is there once.
    Replace {
        /// The file.
        path: String,
        /// What is there.
        old: String,
        /// What is to be there.
        new: String,
    },
    /// Inserts lines after so many lines.
    Insert {
        /// The file.
        path: String,
        /// How many lines stay above.
        line: i64,
        /// The lines.
        text: String,
    },
    /// Deletes a file, or a directory with all in it.
    Delete {
        /// The file or directory.
        path: String,
        /// Only while the file says this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only_if: Option<String>,
    },
    /// Moves a file, or a directory with all in it.
    Rename {
        /// What is moved.
        from: String,
        /// Where to.
        to: String,
    },
}

/// What became of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileChanged {
    /// The version of this layout.
    pub schema: u32,
    /// What was changed.
    pub path: String,
    /// How many files were changed.
    pub files: usize,
    /// The fragment, if it was one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doc: Option<String>,
    /// What the file says now, if it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl FileChanged {
    pub(crate) fn of_several(path: String, files: usize) -> Self {
        Self {
            schema: SCHEMA,
            path,
            files,
            id: None,
            doc: None,
            text: None,
        }
    }
}
