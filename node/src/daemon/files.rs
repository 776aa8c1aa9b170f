//! Files of memory: what a path names, edits, deletions, moves.
//!
//! A directory is nothing of its own: it is there while a file that stands is below it. Whatever is
//! done to several files is done to one after the other, in the order of their paths, and can be
//! asked for again after a crash in between: what was done is not done twice.
use axum::http::StatusCode;
use rhizome_identity::SpaceId;
use rhizome_memory::{
    ComposeError, FileEdit, FileError, FilePath, FileRequest, FileSummary, FileText, MAX_FILES,
    MemoryItem, PathError, PublishError, Published, TreePath,
};

use super::{
    caller::Caller,
    fail,
    names::Names,
    node::{Node, blocking},
};
use crate::{
    agents::LocalAgent,
    api::types::{
        SCHEMA,
        file::{FileBody, FileChanged, FileLine, FileList, FileOp, FileParams, FileShown},
    },
    error::ApiError,
};

/// How often a move goes on with a file that others edit meanwhile before it gives up.
const MOVE_ATTEMPTS: usize = 8;

/// Why something was not done to a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    /// The path is none.
    #[error("`{path}` is no path of a file")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        source: PathError,
    },
    /// Nothing is there.
    #[error("`{0}` does not exist")]
    NotFound(TreePath),
    /// It is a directory, and a file is wanted.
    #[error("`{0}` is a directory")]
    IsDirectory(TreePath),
    /// A file is in the way where a directory is wanted.
    #[error("`{0}` is a file")]
    NotDirectory(FilePath),
    /// Something is there already.
    #[error("`{0}` exists already")]
    Exists(TreePath),
    /// It is the directory of all files.
    #[error("`{0}` itself stays")]
    Root(TreePath),
    /// A directory cannot be moved into itself.
    #[error("`{0}` cannot be moved into itself")]
    IntoItself(TreePath),
    /// The space has as many files as are listed.
    #[error("the space has {MAX_FILES} files already")]
    TooMany,
    /// The edit does not fit the file.
    #[error("`{path}` cannot be edited so")]
    Edit {
        /// The file.
        path: FilePath,
        /// Why not.
        source: FileError,
    },
    /// Everything else.
    #[error(transparent)]
    Other(#[from] ApiError),
}

impl From<FilesError> for ApiError {
    fn from(error: FilesError) -> Self {
        let (status, code, hint) = match &error {
            FilesError::Path { source, .. } => {
                (StatusCode::BAD_REQUEST, "bad_path", Some(source.hint()))
            }
            FilesError::NotFound(_) => (
                StatusCode::NOT_FOUND,
                "not_found",
                Some("`GET /v1/files` lists what is there"),
            ),
            FilesError::IsDirectory(_) => (StatusCode::CONFLICT, "is_directory", None),
            FilesError::NotDirectory(_) => (StatusCode::CONFLICT, "not_directory", None),
            FilesError::Exists(_) => (
                StatusCode::CONFLICT,
                "exists",
                Some("edit it, or delete it first"),
            ),
            FilesError::Root(_) | FilesError::IntoItself(_) => {
                (StatusCode::BAD_REQUEST, "bad_path", None)
            }
            FilesError::TooMany => (
                StatusCode::CONFLICT,
                "too_many_files",
                Some("delete some, or use another space"),
            ),
            FilesError::Edit { source, .. } => {
                let (status, code) = match source {
                    FileError::NotFound => (StatusCode::NOT_FOUND, "not_found"),
                    FileError::Exists => (StatusCode::CONFLICT, "exists"),
                    FileError::Changed => (StatusCode::CONFLICT, "changed"),
                    FileError::NoMatch => (StatusCode::CONFLICT, "no_match"),
                    FileError::Ambiguous { .. } => (StatusCode::CONFLICT, "ambiguous"),
                    FileError::TooLarge { .. } | FileError::TooMuch { .. } => {
                        (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
                    }
                    _ => (StatusCode::BAD_REQUEST, "bad_edit"),
                };
                (status, code, Some(source.hint()))
            }
            FilesError::Other(other) => return other.clone(),
        };
        ApiError::of(status, code, &error).maybe_hint(hint)
    }
}

/// What a path names.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A file.
    File(Box<MemoryItem>),
    /// A directory, with every file below it in the order of their paths.
    Directory(Vec<FileSummary>),
}

/// An edit that was made.
#[derive(Debug)]
pub(crate) struct Edited {
    pub(crate) published: Published,
    pub(crate) text: FileText,
}

/// The files of one space, as one caller may use them.
pub(crate) struct Tree<'a> {
    node: &'a Node,
    caller: &'a Caller,
    agent: Option<&'a str>,
    pub(crate) space: SpaceId,
}

impl<'a> Tree<'a> {
    /// Returns the files of `space`, or of the caller's own if it has one.
    ///
    /// # Errors
    /// If the caller may not use it, or has several and names none.
    pub(crate) fn open(
        node: &'a Node,
        caller: &'a Caller,
        agent: Option<&'a str>,
        space: Option<&str>,
    ) -> Result<Self, ApiError> {
        let space = caller.space(node, space)?;
        Ok(Self {
            node,
            caller,
            agent,
            space,
        })
    }

    /// Returns every file that stands, in the order of their paths.
    pub(crate) async fn all(&self) -> Result<Vec<FileSummary>, FilesError> {
        let (replica, space) = (self.node.replica.clone(), self.space);
        let files = blocking(move || replica.files(&space)).await?;
        Ok(files.map_err(fail::replica)?)
    }

    /// Returns a file that stands.
    pub(crate) async fn file(&self, path: &FilePath) -> Result<Option<MemoryItem>, FilesError> {
        let (replica, space, path) = (self.node.replica.clone(), self.space, path.clone());
        let file = blocking(move || replica.file(&space, &path)).await?;
        Ok(file.map_err(fail::replica)?)
    }

    /// Returns what `path` names.
    pub(crate) async fn entry(&self, path: &TreePath) -> Result<Entry, FilesError> {
        if let Some(file) = path.file()
            && let Some(item) = self.file(&file).await?
        {
            return Ok(Entry::File(Box::new(item)));
        }
        let mut below = self.all().await?;
        below.retain(|file| path.rest(&file.path).is_some());
        if below.is_empty() && !path.is_root() {
            return Err(FilesError::NotFound(path.clone()));
        }
        Ok(Entry::Directory(below))
    }

    /// Returns the file that `path` names.
    pub(crate) async fn expect_file(&self, path: &TreePath) -> Result<FilePath, FilesError> {
        match self.entry(path).await? {
            Entry::File(_) => Ok(path.file().expect("the root is no file")),
            Entry::Directory(_) => Err(FilesError::IsDirectory(path.clone())),
        }
    }

    /// Makes a file where nothing is.
    pub(crate) async fn create(&self, path: &TreePath, text: String) -> Result<Edited, FilesError> {
        let exists = || FilesError::Exists(path.clone());
        let file = path.file().ok_or_else(exists)?;
        let all = self.all().await?;
        if all.iter().any(|other| path.rest(&other.path).is_some()) {
            return Err(exists());
        }
        has_room(&all, &file)?;
        let edited = self
            .edit(&file, FileEdit::Create { text, from: None })
            .await;
        edited.map_err(|error| match error {
            FilesError::Edit {
                source: FileError::Exists,
                ..
            } => exists(),
            error => error,
        })
    }

    /// Makes a file say this, or carries a change over to it, whether or not it stands.
    pub(crate) async fn put(&self, path: &FilePath, edit: FileEdit) -> Result<Edited, FilesError> {
        let all = self.all().await?;
        if !all.iter().any(|other| other.path == *path) {
            let directory = TreePath::from(path.clone());
            if all
                .iter()
                .any(|other| directory.rest(&other.path).is_some())
            {
                return Err(FilesError::IsDirectory(directory));
            }
            has_room(&all, path)?;
        }
        self.edit(path, edit).await
    }

    /// Edits a file as it stands; durable on return.
    pub(crate) async fn edit(&self, path: &FilePath, edit: FileEdit) -> Result<Edited, FilesError> {
        let agent = self.speaker().await?;
        self.edit_as(&agent, path, edit).await
    }

    async fn speaker(&self) -> Result<LocalAgent, ApiError> {
        self.caller.agent(self.node, self.agent).await
    }

    async fn edit_as(
        &self,
        agent: &LocalAgent,
        path: &FilePath,
        mut edit: FileEdit,
    ) -> Result<Edited, FilesError> {
        self.node.screen_name("path", &path.to_string())?;
        let said = match &mut edit {
            FileEdit::Create { text, .. }
            | FileEdit::Insert { text, .. }
            | FileEdit::Write { text }
            | FileEdit::Merge { text, .. } => Some(text),
            FileEdit::Replace { new, .. } => Some(new),
            _ => None,
        };
        if let Some(said) = said {
            self.node.screen("text", said)?;
        }
        let request = FileRequest {
            space: self.space,
            path: path.clone(),
            edit,
            fingerprint: self.caller.fingerprint(self.node),
        };
        let (replica, key) = (self.node.replica.clone(), agent.key.clone());
        let edited = blocking(move || replica.edit_file(&key, &request)).await?;
        match edited {
            Ok(edited) => Ok(Edited {
                published: edited.published,
                text: edited.text,
            }),
            Err(PublishError::Compose(ComposeError::File(source))) => Err(FilesError::Edit {
                path: path.clone(),
                source,
            }),
            Err(error) => Err(fail::publish(error).into()),
        }
    }

    /// Deletes a file, or every file of a directory; returns how many.
    pub(crate) async fn delete(&self, path: &TreePath) -> Result<usize, FilesError> {
        if path.is_root() {
            return Err(FilesError::Root(path.clone()));
        }
        let files = match self.entry(path).await? {
            Entry::File(_) => vec![path.file().expect("the root is no file")],
            Entry::Directory(below) => below.into_iter().map(|file| file.path).collect(),
        };
        let agent = self.speaker().await?;
        let delete = FileEdit::Delete { only_if: None };
        let mut deleted = 0;
        for file in &files {
            match self.edit_as(&agent, file, delete.clone()).await {
                Ok(_) => deleted += 1,
                // Somebody else was faster.
                Err(FilesError::Edit {
                    source: FileError::NotFound,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        if deleted == 0 {
            return Err(FilesError::NotFound(path.clone()));
        }
        Ok(deleted)
    }

    /// Moves a file, or every file of a directory; returns how many.
    ///
    /// Each file is made anew with its text, which says where it came from, before the old one is
    /// deleted: a crash in between leaves both, and the same move asked for again goes on.
    pub(crate) async fn rename(&self, from: &TreePath, to: &TreePath) -> Result<usize, FilesError> {
        if from.is_root() {
            return Err(FilesError::Root(from.clone()));
        }
        let exists = || FilesError::Exists(to.clone());
        let target = to.file().ok_or_else(exists)?;
        let all = self.all().await?;
        let here = |tree: &TreePath, file: &FileSummary| {
            tree.as_str() == file.path.as_str() || tree.rest(&file.path).is_some()
        };
        // What is there already may be what an earlier attempt left.
        let left = |file: &FileSummary| {
            let came_from = match to.rest(&file.path) {
                Some(rest) => from.join(rest).ok(),
                None => from.file(),
            };
            came_from.is_some() && file.from == came_from
        };
        let there: Vec<&FileSummary> = all.iter().filter(|file| here(to, file)).collect();
        if from == to || !there.iter().all(|file| left(file)) {
            return Err(exists());
        }
        let moved: Vec<FilePath> = all
            .iter()
            .filter(|file| here(from, file))
            .map(|file| file.path.clone())
            .collect();
        if moved.is_empty() {
            return match there.is_empty() {
                true => Err(FilesError::NotFound(from.clone())),
                false => Err(exists()),
            };
        }
        if from.rest(&target).is_some() {
            return Err(FilesError::IntoItself(from.clone()));
        }
        let mut pairs = Vec::with_capacity(moved.len());
        for old in moved {
            let new = match from.rest(&old) {
                Some(rest) => to.join(rest).map_err(|source| FilesError::Path {
                    path: to.to_string(),
                    source,
                })?,
                None => target.clone(),
            };
            pairs.push((old, new));
        }
        if let Some((_, first)) = pairs.first() {
            let others: Vec<_> = all
                .iter()
                .filter(|file| !here(from, file))
                .cloned()
                .collect();
            has_room(&others, first)?;
        }
        let agent = self.speaker().await?;
        for (old, new) in &pairs {
            self.move_file(&agent, old, new).await?;
        }
        Ok(pairs.len())
    }

    async fn move_file(
        &self,
        agent: &LocalAgent,
        old: &FilePath,
        new: &FilePath,
    ) -> Result<(), FilesError> {
        let gone = || FilesError::NotFound(old.clone().into());
        let mut base: Option<String> = None;
        for _ in 0..MOVE_ATTEMPTS {
            let text = self.file(old).await?.ok_or_else(gone)?.text;
            let edit = match (&base, self.file(new).await?) {
                (None, None) => Some(FileEdit::Create {
                    text: text.clone(),
                    from: Some(old.clone()),
                }),
                // An earlier attempt made it; what was added to the old one since goes over.
                (None, Some(made)) if made.text == text => None,
                (None, Some(_)) => Some(FileEdit::Merge {
                    base: String::new(),
                    text: text.clone(),
                }),
                (Some(base), _) => Some(FileEdit::Merge {
                    base: base.clone(),
                    text: text.clone(),
                }),
            };
            if let Some(edit) = edit {
                self.edit_as(agent, new, edit).await?;
            }
            let delete = FileEdit::Delete {
                only_if: Some(text.clone()),
            };
            match self.edit_as(agent, old, delete).await {
                Err(FilesError::Edit {
                    source: FileError::Changed,
                    ..
                }) => base = Some(text),
                deleted => return deleted.map(drop),
            }
        }
        Err(FilesError::Edit {
            path: old.clone(),
            source: FileError::Changed,
        })
    }
}

/// Refuses a file that would be below another file, or one too many.
fn has_room(all: &[FileSummary], path: &FilePath) -> Result<(), FilesError> {
    if all.len() >= MAX_FILES {
        return Err(FilesError::TooMany);
    }
    let blocked = path
        .parents()
        .find(|parent| all.iter().any(|file| file.path == *parent));
    blocked.map_or(Ok(()), |parent| Err(FilesError::NotDirectory(parent)))
}

/// Reads a path.
pub(crate) fn parse_path(path: &str) -> Result<TreePath, FilesError> {
    TreePath::parse(path).map_err(|source| FilesError::Path {
        path: super::memory::clip(path).to_owned(),
        source,
    })
}

fn parse_file(path: &str) -> Result<FilePath, FilesError> {
    FilePath::parse(path).map_err(|source| FilesError::Path {
        path: super::memory::clip(path).to_owned(),
        source,
    })
}

impl Node {
    /// Lists the files at or below a path.
    pub(crate) async fn files(
        &self,
        caller: &Caller,
        params: FileParams,
    ) -> Result<FileList, ApiError> {
        let tree = Tree::open(self, caller, None, params.space.as_deref())?;
        let path = match params.path.as_deref() {
            Some(path) => parse_path(path)?,
            None => TreePath::root(),
        };
        let mut files = tree.all().await?;
        files.retain(|file| path.as_str() == file.path.as_str() || path.rest(&file.path).is_some());
        let authority = self.replica.authority();
        let names = Names(&authority);
        Ok(FileList {
            schema: SCHEMA,
            space: names.space(&tree.space),
            files: files
                .into_iter()
                .map(|file| FileLine {
                    path: file.path.to_string(),
                    bytes: file.bytes,
                    doc: file.doc.to_string(),
                    id: file.id.to_string(),
                    author: names.agent(&file.author),
                    node: names.node(&file.node),
                    at_ms: file.hlc.unix_ms(),
                })
                .collect(),
        })
    }

    /// Shows one file.
    pub(crate) async fn file(
        &self,
        caller: &Caller,
        params: FileParams,
    ) -> Result<FileShown, ApiError> {
        let tree = Tree::open(self, caller, None, params.space.as_deref())?;
        let path = parse_file(params.path.as_deref().unwrap_or_default())?;
        let item = tree.file(&path).await?;
        let item = item.ok_or_else(|| FilesError::NotFound(path.clone().into()))?;
        Ok(FileShown {
            schema: SCHEMA,
            path: path.to_string(),
            memory: self.memory_of(&self.replica.authority(), item),
        })
    }

    /// Does something to a file or a directory; answers when that is durable here.
    pub(crate) async fn change_file(
        &self,
        caller: &Caller,
        body: FileBody,
    ) -> Result<FileChanged, ApiError> {
        let tree = Tree::open(self, caller, body.agent.as_deref(), body.space.as_deref())?;
        let (path, edited) = match body.edit {
            FileOp::Create { path, text } => {
                let edited = tree.create(&parse_path(&path)?, text).await?;
                (path, edited)
            }
            FileOp::Write { path, text } => {
                let file = parse_file(&path)?;
                let edited = tree.put(&file, FileEdit::Write { text }).await?;
                (path, edited)
            }
            FileOp::Merge { path, base, text } => {
                let file = parse_file(&path)?;
                let edited = tree.put(&file, FileEdit::Merge { base, text }).await?;
                (path, edited)
            }
            FileOp::Replace { path, old, new } => {
                let file = parse_file(&path)?;
                let edited = tree.edit(&file, FileEdit::Replace { old, new }).await?;
                (path, edited)
            }
            FileOp::Insert { path, line, text } => {
                let file = parse_file(&path)?;
                let edited = tree.edit(&file, FileEdit::Insert { line, text }).await?;
                (path, edited)
            }
            FileOp::Delete { path, only_if } => match only_if {
                Some(_) => {
                    let file = parse_file(&path)?;
                    let edited = tree.edit(&file, FileEdit::Delete { only_if }).await?;
                    (path, edited)
                }
                None => {
                    let files = tree.delete(&parse_path(&path)?).await?;
                    return Ok(FileChanged::of_several(path, files));
                }
            },
            FileOp::Rename { from, to } => {
                let files = tree.rename(&parse_path(&from)?, &parse_path(&to)?).await?;
                return Ok(FileChanged::of_several(to, files));
            }
        };
        Ok(FileChanged {
            schema: SCHEMA,
            path,
            files: 1,
            id: Some(edited.published.id.to_string()),
            doc: Some(edited.published.doc.to_string()),
            text: edited.text.after,
        })
    }
}
