//! Files of text that agents share: what a file is called, what may be done to it, and what is
//! kept of it.
//!
//! A file is a document of its own shape: an automerge text, and beside it one register that says
//! its path and whether it was deleted. Every change writes that register, so that whoever edits a
//! file while another deletes it keeps it: of values written without knowing of each other, one
//! that lets the file stand is enough.

pub(crate) mod diff;
mod path;

use rhizome_identity::{AgentId, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

pub use self::path::{FilePath, MAX_COMPONENT, MAX_DEPTH, MAX_PATH, MEMORIES, PathError, TreePath};
use crate::{DocId, FragmentId, Hlc};

/// Most bytes of a file's text after an edit; what several wrote at once may add up to more.
pub const MAX_FILE: usize = 128 * 1024;
/// Most bytes of a file's text that readers get.
pub const MAX_FILE_SHOWN: usize = 1024 * 1024;
/// Most files of one space that are listed.
pub const MAX_FILES: usize = 10_000;
/// Most lines that are named as places of a text that is not unique.
const MAX_PLACES: usize = 1_000;

/// What is to be done to a file, as it stands when it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileEdit {
    /// Makes it; refused if it stands.
    Create {
        /// What it says.
        text: String,
        /// The file it was moved from.
        from: Option<FilePath>,
    },
    /// Puts `new` in the place of `old`, which has to be there once.
    Replace {
        /// What is there.
        old: String,
        /// What is to be there.
        new: String,
    },
    /// Inserts a text as lines of their own, after so many lines.
    Insert {
        /// How many lines stay above it.
        line: i64,
        /// The text; newlines at its end count for one.
        text: String,
    },
    /// Makes it say this, whether or not it stands.
    Write {
        /// What it says.
        text: String,
    },
    /// Carries over what somebody changed from `base` to `text`; what others changed meanwhile
    /// stays.
    Merge {
        /// What somebody began with.
        base: String,
        /// What somebody made of it.
        text: String,
    },
    /// Deletes it; with `only_if`, only while it says that.
    Delete {
        /// What it has to say.
        only_if: Option<String>,
    },
}

/// What an edit came upon, and what it left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileText {
    /// The text before; none if the file did not stand.
    pub before: Option<String>,
    /// The text after; none if it stands no more.
    pub after: Option<String>,
    /// The byte of `after` at which the first change begins.
    pub at: usize,
}

/// One line about a file that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSummary {
    /// The document.
    pub doc: DocId,
    /// The space.
    pub space: SpaceId,
    /// Its path.
    pub path: FilePath,
    /// The bytes of its text.
    pub bytes: u64,
    /// Whether it was deleted; such a file is listed for nobody.
    pub deleted: bool,
    /// The file it was moved from.
    pub from: Option<FilePath>,
    /// The fragment that carries the latest change.
    pub id: FragmentId,
    /// Who signed it.
    pub author: AgentId,
    /// The node it was written on.
    pub node: NodeId,
    /// When, by that node's clock.
    pub hlc: Hlc,
}

/// Why a file was not edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such file.
    #[error("the file does not exist")]
    NotFound,
    /// There is one already.
    #[error("the file exists already")]
    Exists,
    /// The text to be replaced is not in it.
    #[error("the text to be replaced is not in the file")]
    NoMatch,
    /// The text to be replaced is in it more than once.
    #[error("the text to be replaced is in the file {} times", lines.len())]
    Ambiguous {
        /// The lines on which it begins, from 1; the first thousand.
        lines: Vec<usize>,
    },
    /// There are not so many lines.
    #[error("line {line} is not within 0 and {last}")]
    NoLine {
        /// The line.
        line: i64,
        /// The number of lines there are.
        last: usize,
    },
    /// It says something else than it was to say.
    #[error("the file has been changed")]
    Changed,
    /// It would become larger than a file may be; both sizes in bytes.
    #[error("the file would be {size} bytes; at most {limit} are allowed")]
    TooLarge {
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The edit touches more characters than one change may.
    #[error("the edit inserts and removes {size} characters; at most {limit} are allowed at once")]
    TooMuch {
        /// How many.
        size: u64,
        /// What is allowed.
        limit: u64,
    },
}

impl FileError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotFound => "create it, or look at the directory for its name",
            Self::Exists => "edit it, or delete it first",
            Self::NoMatch => "view the file and give the text as it is there",
            Self::Ambiguous { .. } => "give more of the text around it, so that it is there once",
            Self::NoLine { .. } => "view the file and count its lines",
            Self::Changed => "look at it again",
            Self::TooLarge { .. } => "split it into several files",
            Self::TooMuch { .. } => "make the edit in several steps",
        }
    }
}

/// Returns what two texts that were made of `base` add up to, line by line.
///
/// A line of the base stays if both kept it; whatever either put in is there, what both put in at
/// one place once. A line that both changed is there twice, `ours` first: none is lost.
#[must_use]
pub fn merge_texts(base: &str, ours: &str, theirs: &str) -> String {
    diff::merge(base, ours, theirs)
}

/// What becomes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) splices: Vec<diff::Splice>,
    pub(crate) deleted: bool,
    pub(crate) text: FileText,
}

/// Says what `edit` does to a file whose document holds `text`, and which `stands` or not.
pub(crate) fn plan(edit: &FileEdit, text: &str, stands: bool) -> Result<Plan, FileError> {
    let before = stands.then(|| text.to_owned());
    let (splices, after) = match edit {
        FileEdit::Delete { only_if } => {
            let before = before.ok_or(FileError::NotFound)?;
            if only_if.as_ref().is_some_and(|wanted| *wanted != before) {
                return Err(FileError::Changed);
            }
            return Ok(Plan {
                splices: Vec::new(),
                deleted: true,
                text: FileText {
                    before: Some(before),
                    after: None,
                    at: 0,
                },
            });
        }
        FileEdit::Create { text: new, .. } => {
            if stands {
                return Err(FileError::Exists);
            }
            (whole(text, new), new.clone())
        }
        FileEdit::Write { text: new } if stands => (diff::splices(text, new), new.clone()),
        FileEdit::Write { text: new } => (whole(text, new), new.clone()),
        FileEdit::Merge { base, text: theirs } => {
            let merged = diff::merge(base, before.as_deref().unwrap_or_default(), theirs);
            let splices = if stands {
                diff::splices(text, &merged)
            } else {
                whole(text, &merged)
            };
            (splices, merged)
        }
        FileEdit::Replace { old, new } => {
            let before = before.as_deref().ok_or(FileError::NotFound)?;
            let at = only_place(before, old)?;
            let end = at + old.len();
            let after = [&before[..at], new, &before[end..]].concat();
            let offset = before[..at].chars().count();
            let mut splices = diff::splices(old, new);
            for splice in &mut splices {
                splice.at += offset;
            }
            bounded(&splices, &after, before.len())?;
            return Ok(Plan {
                splices,
                deleted: false,
                text: FileText {
                    before: Some(before.to_owned()),
                    after: Some(after),
                    at,
                },
            });
        }
        FileEdit::Insert { line, text: new } => {
            let before = before.as_deref().ok_or(FileError::NotFound)?;
            inserted(before, *line, new)?
        }
    };
    bounded(&splices, &after, if stands { text.len() } else { 0 })?;
    let at = common_prefix(before.as_deref().unwrap_or_default(), &after);
    Ok(Plan {
        splices,
        deleted: false,
        text: FileText {
            before,
            after: Some(after),
            at,
        },
    })
}

/// What a file that did not stand held is nobody's any more: all of it goes.
fn whole(old: &str, new: &str) -> Vec<diff::Splice> {
    let splice = diff::Splice {
        at: 0,
        delete: old.chars().count(),
        insert: new.to_owned(),
    };
    Vec::from_iter((!splice.is_empty()).then_some(splice))
}

/// A file that is too large already may shrink.
fn bounded(splices: &[diff::Splice], after: &str, before: usize) -> Result<(), FileError> {
    if after.len() > MAX_FILE && after.len() >= before {
        return Err(FileError::TooLarge {
            size: after.len(),
            limit: MAX_FILE,
        });
    }
    let size = splices.iter().map(diff::Splice::operations).sum();
    if size > crate::fence::MAX_FILE_OPS - 1 {
        return Err(FileError::TooMuch {
            size,
            limit: crate::fence::MAX_FILE_OPS - 1,
        });
    }
    Ok(())
}

fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(a, _)| a.len_utf8()).sum()
}

/// Returns where `old` is, if it is there once.
fn only_place(text: &str, old: &str) -> Result<usize, FileError> {
    let mut places = text.match_indices(old).map(|(at, _)| at);
    let first = places.next().ok_or(FileError::NoMatch)?;
    if places.next().is_none() {
        return Ok(first);
    }
    // Every place at which it begins is named, those that overlap as well.
    let mut lines = Vec::new();
    let (mut from, mut counted, mut line) = (0, 0, 1);
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(old)) {
        let at = from + at;
        line += text[counted..at].matches('\n').count();
        counted = at;
        lines.push(line);
        let step = text[at..].chars().next().map(char::len_utf8);
        let Some(step) = step.filter(|_| lines.len() < MAX_PLACES) else {
            break;
        };
        from = at + step;
    }
    Err(FileError::Ambiguous { lines })
}

/// Inserts lines of their own; a last line without a newline gets one.
fn inserted(before: &str, line: i64, text: &str) -> Result<(Vec<diff::Splice>, String), FileError> {
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    let wanted = usize::try_from(line)
        .ok()
        .filter(|line| *line <= lines.len());
    let wanted = wanted.ok_or(FileError::NoLine {
        line,
        last: lines.len(),
    })?;
    let above: String = lines[..wanted].concat();
    let below: String = lines[wanted..].concat();
    let mut block = text.trim_end_matches('\n').to_owned();
    block.push('\n');
    let is_open = |text: &str| !text.is_empty() && !text.ends_with('\n');
    let mut splices = Vec::new();
    if is_open(&above) {
        block.insert(0, '\n');
    }
    splices.push(diff::Splice {
        at: above.chars().count(),
        delete: 0,
        insert: block.clone(),
    });
    let mut after = [above, block, below].concat();
    if is_open(&after) {
        splices.push(diff::Splice {
            at: before.chars().count(),
            delete: 0,
            insert: "\n".to_owned(),
        });
        after.push('\n');
    }
    Ok((splices, after))
}

#[cfg(test)]
mod tests;
