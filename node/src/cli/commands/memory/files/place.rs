//! Where a tree is: in a directory of this machine, or in one of a sandbox.

use std::path::PathBuf;

use rhizome_memory::{MAX_DEPTH, MAX_FILE};
use tokio::io::AsyncReadExt;

use super::host::{self, Scan, is_hidden};
use crate::{
    api::types::{
        Done,
        sandbox::{DirListing, FileEntry, FileKind, FileWritten},
    },
    cli::{
        client::{encode, reader, with_query},
        commands::{Context, Failure},
    },
};

/// Most entries of all directories of a sandbox that are looked at.
const MAX_ENTRIES: usize = 50_000;

/// Where the files are.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Here(PathBuf),
    Sandbox { sandbox: String, dir: String },
}

/// Why a file was left as it is.
pub(super) type Left = String;

impl Place {
    /// Returns a name by which to find what both sides said before.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Here(dir) => {
                let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
                format!("here {}", absolute.display())
            }
            Self::Sandbox { sandbox, dir } => format!("sandbox {sandbox} {dir}"),
        }
    }

    /// Reads the whole tree.
    pub(super) async fn scan(&self, context: &Context) -> Result<Scan, Failure> {
        match self {
            Self::Here(dir) => {
                let root = dir.clone();
                let scanned = tokio::task::spawn_blocking(move || host::scan(&root)).await;
                let scanned = scanned.expect("reading a directory does not panic");
                scanned.map_err(|source| Failure::File {
                    path: dir.clone(),
                    source,
                })
            }
            Self::Sandbox { sandbox, dir } => scan_sandbox(context, sandbox, dir).await,
        }
    }

    /// Makes a file say `text` if it says `expected` now.
    pub(super) async fn write(
        &self,
        context: &Context,
        rest: &str,
        expected: Option<&str>,
        text: &str,
    ) -> Result<(), Left> {
        match self {
            Self::Here(dir) => {
                host::write(dir, rest, expected, text).map_err(|error| error.to_string())
            }
            Self::Sandbox { sandbox, dir } => {
                unchanged(context, sandbox, &format!("{dir}/{rest}"), expected).await?;
                let put = route(sandbox, "file", &format!("{dir}/{rest}"));
                let text = std::io::Cursor::new(text.to_owned());
                let written: Result<FileWritten, Failure> = context.client.upload(&put, text).await;
                written.map(drop).map_err(|failure| failure.to_string())
            }
        }
    }

    /// Deletes a file that says `expected`.
    pub(super) async fn delete(
        &self,
        context: &Context,
        rest: &str,
        expected: &str,
    ) -> Result<(), Left> {
        match self {
            Self::Here(dir) => host::delete(dir, rest, expected).map_err(|error| error.to_string()),
            Self::Sandbox { sandbox, dir } => {
                let path = format!("{dir}/{rest}");
                unchanged(context, sandbox, &path, Some(expected)).await?;
                let removed: Result<Done, Failure> =
                    context.client.delete(&route(sandbox, "file", &path)).await;
                removed.map(drop).map_err(|failure| failure.to_string())
            }
        }
    }
}

/// Between this look and the write somebody in the sandbox may still be faster: its own program,
/// on its own files. What it wrote is then gone from there, and the next sync says nothing of it;
/// so nobody shall write what another writes at the same moment, as with any program.
async fn unchanged(
    context: &Context,
    sandbox: &str,
    path: &str,
    expected: Option<&str>,
) -> Result<(), Left> {
    let found = match download(context, sandbox, path).await {
        Ok(bytes) => Some(bytes),
        Err(Failure::Refused { code, .. }) if code == "no_such_file" => None,
        Err(failure) => return Err(failure.to_string()),
    };
    if found.as_deref() == expected.map(str::as_bytes) {
        Ok(())
    } else {
        Err("it was changed meanwhile".to_owned())
    }
}

async fn scan_sandbox(context: &Context, sandbox: &str, dir: &str) -> Result<Scan, Failure> {
    let mut scan = Scan::default();
    let mut entries = 0;
    let mut todo = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = todo.pop() {
        let path = format!("{dir}/{prefix}");
        let path = path.trim_end_matches('/');
        let listing: Result<DirListing, Failure> =
            context.client.get(&route(sandbox, "dir", path)).await;
        let listing = match listing {
            // Nothing is there yet: it is made with the first file.
            Err(Failure::Refused { code, .. }) if depth == 0 && code == "no_such_file" => break,
            listing => listing?,
        };
        for FileEntry { name, kind, .. } in listing.entries {
            entries += 1;
            let rest = format!("{prefix}{name}");
            if is_hidden(&name) {
                continue;
            }
            // A guest says what its files are called, and how many there are.
            if entries > MAX_ENTRIES || scan.is_full() {
                scan.skip(&rest, "there are too many files".to_owned());
                return Ok(scan);
            }
            match kind {
                FileKind::Dir if depth + 1 >= MAX_DEPTH => {
                    scan.skip(&rest, "it is too deep".to_owned());
                }
                FileKind::Dir if name.contains('/') || name == ".." => {
                    scan.skip(&rest, "its name is none".to_owned());
                }
                FileKind::Dir => todo.push((format!("{rest}/"), depth + 1)),
                FileKind::File => {
                    if scan.takes(&rest) {
                        match download(context, sandbox, &format!("{dir}/{rest}")).await {
                            Ok(bytes) => scan.take(&rest, bytes),
                            Err(failure) => scan.skip(&rest, failure.to_string()),
                        }
                    }
                }
                FileKind::Link | FileKind::Other => {
                    scan.skip(&rest, "it is a link or a special file".to_owned());
                }
            }
        }
    }
    Ok(scan)
}

/// Reads a file, and one byte more than a file may have.
async fn download(context: &Context, sandbox: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let route = route(sandbox, "file", path);
    let response = context.client.download(&route).await?;
    let body = reader(response.into_body());
    let mut bytes = Vec::new();
    let read = body.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).await;
    read.map_err(|source| Failure::File {
        path: path.into(),
        source,
    })?;
    Ok(bytes)
}

fn route(sandbox: &str, what: &str, path: &str) -> String {
    with_query(
        &format!("/v1/sandboxes/{}/{what}", encode(sandbox)),
        &[("path", Some(path.to_owned()))],
    )
}
