//! `rhizome root export|import|rotate`.

use std::{io::Read, path::PathBuf};

use clap::Subcommand;
use rhizome_identity::{
    KeyFileError,
    keyfile::{self, KeyKind},
    words,
};
use serde::Serialize;

use super::{Context, Failure};
use crate::{
    api::types::{SCHEMA, member::RootRotated},
    datadir,
};

/// The most that is read as words, in bytes.
const MAX_WORDS: u64 = 4 * 1024;

/// What to do with the root of the mesh.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print a root key that lies on this node as 17 words, for paper
    #[command(after_help = "Examples:
  rhizome root export                 the root key
  rhizome root export --next          the key that may replace it

Whoever reads the words is the root. Write them down, then remove the files `rhizome init` named.")]
    Export {
        /// The key that was chosen to be the next root
        #[arg(long)]
        next: bool,
    },
    /// Bring a root key to this node from its words, read from standard input
    #[command(after_help = "Example:\n  rhizome root import --next < words.txt")]
    Import {
        /// The key that was chosen to be the next root
        #[arg(long)]
        next: bool,
    },
    /// Make the key that was chosen in advance the root, and choose the one after it
    #[command(
        after_help = "Do it when the root key may be known to somebody else: what the old key \
signs from then on counts nowhere. The next root key has to be on this node."
    )]
    Rotate,
}

/// What `root export` and `root import` say with `--json`.
#[derive(Serialize)]
struct Key<'a> {
    schema: u32,
    public: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<&'a str>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Export { next } => export(context, next),
        Verb::Import { next } => import(context, next),
        Verb::Rotate => rotate(context).await,
    }
}

/// Returns where a root key lies; the daemon need not run.
fn path_of(context: &Context, next: bool) -> Result<PathBuf, Failure> {
    let dir = context
        .data_dir
        .clone()
        .or_else(datadir::this_users_data_dir);
    let name = if next { "next-root.key" } else { "root.key" };
    let hint = "say it with `--data-dir` or RHIZOME_DATA_DIR";
    dir.map(|dir| dir.join(name))
        .ok_or_else(|| Failure::usage("where the keys lie is not known", hint))
}

fn export(context: &Context, next: bool) -> Result<(), Failure> {
    let path = path_of(context, next)?;
    let key = keyfile::load(&path, KeyKind::Root).map_err(key_file)?;
    let spelt = words::to_words(&key);
    if context.ui.is_json() {
        return context.ui.object(&Key {
            schema: SCHEMA,
            public: key.public().to_string(),
            path: path.display().to_string(),
            words: Some(spelt.as_str()),
        });
    }
    context.ui.line(&spelt)?;
    context
        .ui
        .status("whoever reads these words is the root of the mesh: keep them off this machine");
    Ok(())
}

fn import(context: &Context, next: bool) -> Result<(), Failure> {
    let path = path_of(context, next)?;
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_WORDS).read_to_string(&mut text);
    read.map_err(|source| Failure::File {
        path: "-".into(),
        source,
    })?;
    let hint = "give the words in their order, as `rhizome root export` printed them";
    let key = words::from_words(&text).map_err(|error| Failure::usage(error.to_string(), hint))?;
    keyfile::save(&path, KeyKind::Root, &key).map_err(key_file)?;
    if context.ui.is_json() {
        return context.ui.object(&Key {
            schema: SCHEMA,
            public: key.public().to_string(),
            path: path.display().to_string(),
            words: None,
        });
    }
    context.ui.line(&format!(
        "the key {} is in {}",
        key.public(),
        path.display()
    ))
}

fn key_file(error: KeyFileError) -> Failure {
    let hint = error.hint();
    Failure::Usage {
        message: error.to_string(),
        hint,
    }
}

async fn rotate(context: &Context) -> Result<(), Failure> {
    let rotated: RootRotated = context.client.post("/v1/root/rotate", &()).await?;
    if context.ui.is_json() {
        return context.ui.object(&rotated);
    }
    context
        .ui
        .line(&format!("the root is {} now", rotated.root))?;
    context.ui.status(&format!(
        "its key is in {}, the one that may replace it in {}",
        rotated.root_key, rotated.next_root_key
    ));
    context.ui.status("keep copies of both off this machine");
    Ok(())
}
