//! The six commands, with the texts that models know.

use rhizome_memory::{FileEdit, FileError, MAX_FILE, MemoryItem, PathError, TreePath};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::Deserialize;
use serde_json::json;

use super::shown;
use crate::{
    daemon::files::{Entry, FilesError, Tree},
    mcp::{answer, session::Session},
};

/// What the tool is asked.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
enum Command {
    View {
        path: String,
        view_range: Option<Vec<i64>>,
    },
    Create {
        path: String,
        file_text: String,
    },
    StrReplace {
        path: String,
        old_str: String,
        #[serde(default)]
        new_str: String,
    },
    Insert {
        path: String,
        insert_line: i64,
        insert_text: String,
    },
    Delete {
        path: String,
    },
    Rename {
        old_path: String,
        new_path: String,
    },
}

/// What a model reads when something is not done.
struct Told(String);

impl From<FilesError> for Told {
    fn from(error: FilesError) -> Self {
        Self(match error {
            FilesError::Other(error) => answer::sentence(&error),
            error => answer::sentence(&error.into()),
        })
    }
}

/// Runs one command.
pub(super) async fn run(session: &Session, arguments: JsonObject) -> CallToolResult {
    let command: Command = match answer::arguments(arguments) {
        Ok(command) => command,
        Err(error) => return answer::failed(&error),
    };
    let tree = Tree::open(
        &session.node,
        &session.caller,
        session.agent.as_deref(),
        session.space.as_deref(),
    );
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) => return answer::failed(&error),
    };
    let done = match command {
        Command::View { path, view_range } => view(session, &tree, &path, view_range).await,
        Command::Create { path, file_text } => create(&tree, &path, file_text).await,
        Command::StrReplace {
            path,
            old_str,
            new_str,
        } => str_replace(&tree, &path, old_str, new_str).await,
        Command::Insert {
            path,
            insert_line,
            insert_text,
        } => insert(&tree, &path, insert_line, insert_text).await,
        Command::Delete { path } => delete(&tree, &path).await,
        Command::Rename { old_path, new_path } => rename(&tree, &old_path, &new_path).await,
    };
    match done {
        Ok(result) => result,
        Err(Told(text)) => CallToolResult::error(vec![ContentBlock::text(text)]),
    }
}

type Done = Result<CallToolResult, Told>;

fn said(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// Reads a path; what is wrong with it is told as the reference tells it, where that has words.
fn parse(path: &str) -> Result<TreePath, Told> {
    TreePath::parse(path).map_err(|error| {
        let shown = crate::daemon::memory::clip(path);
        Told(match error {
            PathError::Outside => format!("Path must start with /memories, got: {shown}"),
            PathError::Dots | PathError::Encoded(_) => {
                format!("Path {shown} would escape /memories directory")
            }
            error => format!("Path {shown} is not valid: {error}; {}", error.hint()),
        })
    })
}

fn missing(path: &str) -> Told {
    Told(format!(
        "The path {path} does not exist. Please provide a valid path."
    ))
}

async fn view(
    session: &Session,
    tree: &Tree<'_>,
    path: &str,
    view_range: Option<Vec<i64>>,
) -> Done {
    let place = parse(path)?;
    let entry = tree.entry(&place).await.map_err(|error| match error {
        FilesError::NotFound(_) => missing(path),
        error => error.into(),
    })?;
    let item = match entry {
        Entry::Directory(files) => return Ok(said(shown::directory(&place, &files))),
        Entry::File(item) => *item,
    };
    let lines = shown::lines(&item.text);
    if lines.len() > shown::MAX_LINES {
        return Err(Told(format!(
            "File {path} exceeds maximum line limit of 999,999 lines."
        )));
    }
    let text = format!(
        "Here's the content of {path} with line numbers:\n{}",
        shown::ranged(&lines, view_range.as_deref())
    );
    let mut result = said(text);
    result.meta = Some(origin(session, item));
    Ok(result)
}

/// Who wrote what is shown, for programs: the text is what models know.
fn origin(session: &Session, item: MemoryItem) -> rmcp::model::MetaObject {
    let memory = session
        .node
        .memory_of(&session.node.replica.authority(), item);
    let mut meta = rmcp::model::MetaObject::default();
    let origin = json!({
        "doc": memory.doc,
        "id": memory.id,
        "author": memory.author,
        "node": memory.node,
        "trust": memory.trust,
        "at_ms": memory.at_ms,
    });
    meta.0.insert("rhizome/file".to_owned(), origin);
    meta
}

async fn create(tree: &Tree<'_>, path: &str, text: String) -> Done {
    let place = parse(path)?;
    match tree.create(&place, text).await {
        Ok(_) => Ok(said(format!("File created successfully at: {path}"))),
        Err(FilesError::Exists(_)) => Err(Told(format!("File {path} already exists"))),
        Err(error) => Err(told_edit(path, error)),
    }
}

async fn str_replace(tree: &Tree<'_>, path: &str, old: String, new: String) -> Done {
    let file = file(tree, path).await?;
    let edit = FileEdit::Replace {
        old: old.clone(),
        new,
    };
    let text = match tree.edit(&file, edit).await {
        Ok(edited) => edited.text,
        Err(FilesError::Edit {
            source: FileError::NoMatch,
            ..
        }) => {
            return Err(Told(format!(
                "No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
            )));
        }
        Err(FilesError::Edit {
            source: FileError::Ambiguous { lines },
            ..
        }) => {
            let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
            return Err(Told(format!(
                "No replacement was performed. Multiple occurrences of old_str `{old}` in lines: \
                 {}. Please ensure it is unique",
                lines.join(", ")
            )));
        }
        Err(error) => return Err(told_edit(path, error)),
    };
    let after = text.after.unwrap_or_default();
    Ok(said(format!(
        "The memory file has been edited. Here is the snippet showing the change (with line \
         numbers):\n{}",
        shown::snippet(&after, text.at)
    )))
}

async fn insert(tree: &Tree<'_>, path: &str, line: i64, text: String) -> Done {
    let file = file(tree, path).await?;
    match tree.edit(&file, FileEdit::Insert { line, text }).await {
        Ok(_) => Ok(said(format!("The file {path} has been edited."))),
        Err(FilesError::Edit {
            source: FileError::NoLine { line, last },
            ..
        }) => Err(Told(format!(
            "Invalid `insert_line` parameter: {line}. It should be within the range [0, {last}]."
        ))),
        Err(error) => Err(told_edit(path, error)),
    }
}

async fn delete(tree: &Tree<'_>, path: &str) -> Done {
    let place = parse(path)?;
    match tree.delete(&place).await {
        Ok(_) => Ok(said(format!("Successfully deleted {path}"))),
        Err(FilesError::Root(_)) => Err(Told(
            "Cannot delete the /memories directory itself".to_owned(),
        )),
        Err(FilesError::NotFound(_)) => Err(Told(format!("The path {path} does not exist"))),
        Err(error) => Err(error.into()),
    }
}

async fn rename(tree: &Tree<'_>, old: &str, new: &str) -> Done {
    let (from, to) = (parse(old)?, parse(new)?);
    match tree.rename(&from, &to).await {
        Ok(_) => Ok(said(format!("Successfully renamed {old} to {new}"))),
        Err(FilesError::Root(_)) => Err(Told(
            "Cannot rename the /memories directory itself".to_owned(),
        )),
        Err(FilesError::Exists(_)) => Err(Told(format!("The destination {new} already exists"))),
        Err(FilesError::NotFound(_)) => Err(Told(format!("The path {old} does not exist"))),
        Err(error) => Err(told_edit(new, error)),
    }
}

async fn file(tree: &Tree<'_>, path: &str) -> Result<rhizome_memory::FilePath, Told> {
    let place = parse(path)?;
    tree.expect_file(&place).await.map_err(|error| match error {
        FilesError::NotFound(_) => missing(path),
        FilesError::IsDirectory(_) => Told(format!("The path {path} is not a file.")),
        error => error.into(),
    })
}

/// What the reference has no words for, because it has no such bound.
fn told_edit(path: &str, error: FilesError) -> Told {
    match error {
        FilesError::Edit {
            source: FileError::NotFound,
            ..
        } => Told(format!(
            "The file {path} no longer exists (may have been deleted or renamed concurrently)."
        )),
        FilesError::Edit {
            source: FileError::TooLarge { size, .. },
            ..
        } => Told(format!(
            "File {path} would be {size} bytes; at most {MAX_FILE} are allowed. Please split it \
             into several files."
        )),
        FilesError::NotDirectory(parent) => {
            Told(format!("The path {parent} is a file, not a directory."))
        }
        error => error.into(),
    }
}
