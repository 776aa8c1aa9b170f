//! `rhizome root export|import|rotate`.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use rhizome_identity::{
    KeyFileError, SecretKey,
    keyfile::{self, KeyKind},
    words,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    Context, Failure,
    backup::{Open, Out, Seal},
};
use crate::{
    api::types::{SCHEMA, member::RootRotated},
    backup, datadir,
    vault::Vault,
};

/// The most that is read as words, in bytes.
const MAX_WORDS: u64 = 4 * 1024;
/// The largest encrypted key that is read, in bytes: it may be for many recipients.
const MAX_SEALED: u64 = 256 * 1024;
/// What a passphrase is asked for as.
const PASSPHRASE: &str = "passphrase of the root key";

/// What to do with the root of the mesh.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print a root key that lies on this node as 17 words, for paper, or write it encrypted
    #[command(after_help = "Examples:
  rhizome root export                 the root key, as words
  rhizome root export --next          the key that may replace it
  rhizome root export --to root.age   as an age file under a passphrase, which is asked for
  rhizome root export --to root.age --recipient age1...

Whoever reads the words is the root. Write them down, then remove the files `rhizome init` named.")]
    Export {
        /// The key that was chosen to be the next root
        #[arg(long)]
        next: bool,
        /// Write it to this file, encrypted; `-` is standard output
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        seal: Seal,
    },
    /// Bring a root key to this node from its words, read from standard input, or from a file
    #[command(after_help = "Examples:
  rhizome root import --next < words.txt
  rhizome root import --from root.age --identity key.txt")]
    Import {
        /// The key that was chosen to be the next root
        #[arg(long)]
        next: bool,
        /// Read it from this file, which `root export --to` wrote
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        #[command(flatten)]
        open: Open,
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
        Verb::Export { next, to, seal } => export(context, next, to.as_deref(), &seal),
        Verb::Import { next, from, open } => import(context, next, from.as_deref(), &open),
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
    let hint = "say it with `--data-dir` or RHIZOME_DATA";
    dir.map(|dir| dir.join(name))
        .ok_or_else(|| Failure::usage("where the keys lie is not known", hint))
}

fn export(context: &Context, next: bool, to: Option<&Path>, seal: &Seal) -> Result<(), Failure> {
    let path = path_of(context, next)?;
    let key = vault_of(&path)?
        .load(&path, KeyKind::Root)
        .map_err(key_file)?;
    if let Some(to) = to {
        // The text of a key file: age alone makes it one again.
        let sealed = seal
            .sealer(PASSPHRASE)?
            .seal_all(keyfile::spell(KeyKind::Root, &key).as_bytes())?;
        let mut out = Out::open(to)?;
        out.write_all(&sealed)?;
        out.finish()?;
        return match to == Path::new("-") {
            true => Ok(()),
            false => shown(context, &key.public().to_string(), to),
        };
    }
    if seal.is_given() {
        let hint = "say where it goes with `--to`";
        return Err(Failure::usage("words are not encrypted", hint));
    }
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

fn import(context: &Context, next: bool, from: Option<&Path>, open: &Open) -> Result<(), Failure> {
    let path = path_of(context, next)?;
    let key = match from {
        Some(from) => {
            let sealed = backup::read_bounded(from, MAX_SEALED)?;
            let opener = open.opener(&sealed, PASSPHRASE)?;
            let text = opener.open_all(&sealed, MAX_WORDS)?;
            let hint = "it has to be a file that `rhizome root export --to` wrote";
            keyfile::read(&text, KeyKind::Root)
                .ok_or_else(|| Failure::usage("the file holds no root key", hint))?
        }
        None => spoken()?,
    };
    let saved = vault_of(&path)?.save(&path, KeyKind::Root, &key);
    saved.map_err(key_file)?;
    shown(context, &key.public().to_string(), &path)
}

/// Returns what opens the keys beside `path`.
fn vault_of(path: &Path) -> Result<Vault, Failure> {
    Ok(Vault::open(path.parent().unwrap_or(Path::new(".")))?)
}

/// Reads a key as words from standard input.
fn spoken() -> Result<SecretKey, Failure> {
    let mut text = Zeroizing::new(String::new());
    let read = std::io::stdin().take(MAX_WORDS).read_to_string(&mut text);
    read.map_err(|source| Failure::File {
        path: "-".into(),
        source,
    })?;
    let hint = "give the words in their order, as `rhizome root export` printed them";
    words::from_words(&text).map_err(|error| Failure::usage(error.to_string(), hint))
}

fn shown(context: &Context, public: &str, path: &Path) -> Result<(), Failure> {
    if context.ui.is_json() {
        return context.ui.object(&Key {
            schema: SCHEMA,
            public: public.to_owned(),
            path: path.display().to_string(),
            words: None,
        });
    }
    context
        .ui
        .line(&format!("the key {public} is in {}", path.display()))
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
