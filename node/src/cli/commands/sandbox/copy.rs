//! `rhizome sandbox cp`: files in and out, directories whole.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
    pin::Pin,
    task::{self, Poll, ready},
};

use clap::Args;
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    sync::watch,
};

use super::{Context, Failure, path_of};
use crate::{
    api::types::{
        Done,
        sandbox::{DirListing, FileEntry, FileKind, FileStat, FileWritten},
    },
    cli::{
        client::{reader, with_query},
        ui::{Steps, plain, size},
    },
};

/// How deep a tree may be; a guest could offer one without an end.
const MAX_DEPTH: usize = 64;
/// How many files and directories one copy may move.
const MAX_ENTRIES: usize = 200_000;

/// From where to where; one of the two is in a sandbox.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// A path here, or `sandbox:path`
    from: String,
    /// A path here, or `sandbox:path`
    to: String,
}

/// One end of a copy.
enum End {
    Here(PathBuf),
    Sandbox { sandbox: String, path: String },
}

impl End {
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
                Self::Sandbox {
                    sandbox: sandbox.to_owned(),
                    path: path.to_owned(),
                }
            }
            _ => Self::Here(PathBuf::from(text)),
        }
    }
}

pub(crate) async fn run(context: &Context, args: Copy) -> Result<(), Failure> {
    let mut copied = Copied::new(context.ui.progress());
    match (End::parse(&args.from), End::parse(&args.to)) {
        (End::Here(from), End::Sandbox { sandbox, path }) => {
            let path = into_directory(context, &sandbox, path, &from).await?;
            upload(context, &sandbox, &from, &path, &mut copied, 0).await?;
        }
        (End::Sandbox { sandbox, path }, End::Here(to)) => {
            let base = path
                .trim_end_matches('/')
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            let to = if to.is_dir() && !base.is_empty() {
                to.join(checked_name(&base)?)
            } else {
                to
            };
            let stat = stat(context, &sandbox, &path).await?;
            download(context, &sandbox, &path, stat.file, &to, &mut copied, 0).await?;
        }
        _ => {
            let hint = "as in `rhizome sandbox cp notes.txt bench:/root/notes.txt`";
            return Err(Failure::usage(
                "one of the two paths must be in a sandbox",
                hint,
            ));
        }
    }
    let Copied {
        files,
        bytes,
        steps,
        ..
    } = copied;
    drop(steps);
    if context.ui.is_json() {
        return context
            .ui
            .object(&serde_json::json!({"schema": 1, "files": files, "bytes": bytes}));
    }
    let line = format!("copied {files} file(s), {bytes} bytes");
    context.ui.status(&line);
    Ok(())
}

struct Copied {
    /// Files, directories, and what was skipped.
    entries: usize,
    files: usize,
    bytes: u64,
    steps: Steps,
}

impl Copied {
    fn new(steps: Steps) -> Self {
        Self {
            entries: 0,
            files: 0,
            bytes: 0,
            steps,
        }
    }

    /// Shows how far the copy of a file is.
    fn show(&mut self, name: &str, done: u64, total: u64) {
        let detail = format!("{} of {}  {}", size(done), size(total), plain(name));
        self.steps.at("copying", &detail, Some((done, total)));
    }
}

/// Returns where `from` goes: below `path` if that is a directory with a slash at its end, as of cp(1).
async fn into_directory(
    context: &Context,
    sandbox: &str,
    path: String,
    from: &Path,
) -> Result<String, Failure> {
    let name = from
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let is_dir = match stat(context, sandbox, &path).await {
        Ok(stat) => stat.file.kind == FileKind::Dir && from.is_file(),
        Err(Failure::Refused { .. }) => path.ends_with('/'),
        Err(error) => return Err(error),
    };
    Ok(match name {
        Some(name) if is_dir => format!("{}/{name}", path.trim_end_matches('/')),
        _ => path,
    })
}

async fn upload(
    context: &Context,
    sandbox: &str,
    from: &Path,
    to: &str,
    copied: &mut Copied,
    depth: usize,
) -> Result<(), Failure> {
    let at = |source| Failure::File {
        path: from.to_owned(),
        source,
    };
    let metadata = fs::metadata(from).map_err(at)?;
    let mode = Some(format!("{:o}", metadata.permissions().mode() & 0o7777));
    let path = Some(to.to_owned());
    limit(depth, copied, from)?;
    if metadata.is_dir() {
        let made = with_query(
            &format!("{}/dir", path_of(sandbox)),
            &[("path", path), ("mode", mode)],
        );
        let _: Done = context.client.put(&made).await?;
        let mut entries: Vec<_> = fs::read_dir(from).and_then(Iterator::collect).map_err(at)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let below = format!(
                "{}/{}",
                to.trim_end_matches('/'),
                entry.file_name().to_string_lossy()
            );
            Box::pin(upload(
                context,
                sandbox,
                &entry.path(),
                &below,
                copied,
                depth + 1,
            ))
            .await?;
        }
        return Ok(());
    }
    let file = tokio::fs::File::open(from).await.map_err(at)?;
    let (counted, mut sent) = Counted::new(file);
    let put = with_query(
        &format!("{}/file", path_of(sandbox)),
        &[("path", path), ("mode", mode)],
    );
    let uploading = context.client.upload(&put, counted);
    let mut uploading = std::pin::pin!(uploading);
    let written: FileWritten = loop {
        tokio::select! {
            written = &mut uploading => break written?,
            Ok(()) = sent.changed() => {
                let done = *sent.borrow_and_update();
                copied.show(to, done, metadata.len());
            }
        }
    };
    copied.files += 1;
    copied.bytes += written.bytes;
    Ok(())
}

async fn download(
    context: &Context,
    sandbox: &str,
    from: &str,
    entry: FileEntry,
    to: &Path,
    copied: &mut Copied,
    depth: usize,
) -> Result<(), Failure> {
    let at = |source| Failure::File {
        path: to.to_owned(),
        source,
    };
    let query = [("path", Some(from.to_owned()))];
    limit(depth, copied, to)?;
    match entry.kind {
        FileKind::Dir => {
            fs::create_dir_all(to).map_err(at)?;
            let listing: DirListing = context
                .client
                .get(&with_query(&format!("{}/dir", path_of(sandbox)), &query))
                .await?;
            for entry in listing.entries {
                let to = to.join(checked_name(&entry.name)?);
                let below = format!("{}/{}", from.trim_end_matches('/'), entry.name);
                Box::pin(download(
                    context,
                    sandbox,
                    &below,
                    entry,
                    &to,
                    copied,
                    depth + 1,
                ))
                .await?;
            }
        }
        FileKind::File => {
            let response = context
                .client
                .download(&with_query(&format!("{}/file", path_of(sandbox)), &query))
                .await?;
            // Written beside its place and moved there whole: a transfer that breaks off leaves what
            // was there, and a link that stands there is replaced rather than followed.
            let draft = draft_of(to);
            let written = receive(&draft, response.into_body(), &entry, copied).await;
            let written = written.and_then(|()| {
                fs::set_permissions(&draft, fs::Permissions::from_mode(entry.mode & 0o777))?;
                fs::rename(&draft, to)
            });
            if let Err(error) = written {
                let _ = fs::remove_file(&draft);
                return Err(at(error));
            }
            copied.files += 1;
        }
        FileKind::Link | FileKind::Other => {
            context
                .ui
                .status(&format!("skipped {from}: neither a file nor a directory"));
        }
    }
    Ok(())
}

/// Writes a body to a new file at `path`.
async fn receive(
    path: &Path,
    body: hyper::body::Incoming,
    entry: &FileEntry,
    copied: &mut Copied,
) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    let mut body = reader(body);
    let mut buffer = vec![0; 256 * 1024];
    let mut done = 0;
    loop {
        match body.read(&mut buffer).await? {
            0 => return Ok(()),
            length => {
                file.write_all(&buffer[..length])?;
                done += length as u64;
                copied.bytes += length as u64;
                copied.show(&entry.name, done, entry.size);
            }
        }
    }
}

/// A file that tells how much of it was read.
struct Counted {
    file: tokio::fs::File,
    read: u64,
    told: watch::Sender<u64>,
}

impl Counted {
    fn new(file: tokio::fs::File) -> (Self, watch::Receiver<u64>) {
        let (told, sent) = watch::channel(0);
        let counted = Self {
            file,
            read: 0,
            told,
        };
        (counted, sent)
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.file).poll_read(context, into))?;
        self.read += (into.filled().len() - before) as u64;
        self.told.send_replace(self.read);
        Poll::Ready(Ok(()))
    }
}

/// Returns where a file for `path` is written until it is whole.
fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

async fn stat(context: &Context, sandbox: &str, path: &str) -> Result<FileStat, Failure> {
    let query = [("path", Some(path.to_owned()))];
    context
        .client
        .get(&with_query(&format!("{}/stat", path_of(sandbox)), &query))
        .await
}

/// Refuses names a guest made up to reach outside the directory that is copied into.
fn checked_name(name: &str) -> Result<&str, Failure> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(Failure::Protocol(format!(
            "the sandbox offers a file named `{}`",
            name.escape_debug()
        ))),
    }
}

/// Counts one more entry, and refuses it where the tree grows beyond all bounds.
fn limit(depth: usize, copied: &mut Copied, path: &Path) -> Result<(), Failure> {
    copied.entries += 1;
    if depth > MAX_DEPTH || copied.entries > MAX_ENTRIES {
        let what = format!("more than {MAX_DEPTH} levels or {MAX_ENTRIES} entries");
        let source = io::Error::other(what);
        return Err(Failure::File {
            path: path.to_owned(),
            source,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_name_its_way_out() {
        for name in ["..", ".", "", "/etc/passwd", "a/b", "../x", "a/.."] {
            assert!(checked_name(name).is_err(), "{name}");
        }
        assert!(checked_name("notes.txt").is_ok());
    }

    #[test]
    fn the_sandbox_is_before_the_first_colon() {
        assert!(
            matches!(End::parse("bench:/root"), End::Sandbox { sandbox, path } if sandbox == "bench" && path == "/root")
        );
        assert!(matches!(End::parse("./a:b"), End::Here(_)));
        assert!(matches!(End::parse("notes.txt"), End::Here(_)));
    }
}
