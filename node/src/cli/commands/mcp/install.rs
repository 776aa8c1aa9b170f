//! `rhizome mcp install|uninstall`: a client's configuration, changed after the change was shown.
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::{
    super::{Context, Failure},
    Scope,
    clients::{CLIENTS, Client, Shape, find},
    edit::{self, Refused},
};

/// The name of the server in a client's configuration.
const SERVER: &str = "rhizome";
/// The largest configuration that is changed, in bytes.
const MAX_FILE: u64 = 32 * 1024 * 1024;
/// Copies of a file that are kept.
const MAX_BACKUPS: u32 = 1_000;
/// Lines around a change that are shown.
const AROUND: usize = 3;

/// Which client, and how.
#[derive(Debug, Args)]
pub(crate) struct Install {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    scope: Scope,
    /// Say which clients are known, and which have it
    #[arg(long, exclusive = true)]
    list: bool,
}

/// Which client.
#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// Client, as `rhizome mcp install --list` names it
    client: Option<String>,
    /// Change the configuration of the project in this directory, not the user's
    #[arg(long)]
    project: bool,
    /// Change this file instead
    #[arg(long, value_name = "PATH", conflicts_with = "project")]
    file: Option<PathBuf>,
    /// Show the change and make none
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What was changed, or would be.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    client: &'a str,
    path: String,
    /// `added`, `changed`, `removed` or `unchanged`.
    action: &'static str,
    dry_run: bool,
    diff: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<String>,
}

/// A client, for a list.
#[derive(Debug, Serialize)]
struct Listed {
    client: &'static str,
    title: &'static str,
    path: String,
    /// `installed`, `not installed`, `no file` or `unreadable`.
    state: &'static str,
}

pub(crate) fn install(context: &Context, args: Install) -> Result<(), Failure> {
    if args.list {
        return list(context);
    }
    let client = args.which.client()?;
    let entry = client.entry(&program()?, &arguments(context, &args.scope)?);
    change(context, &args.which, client, Some(&entry))
}

pub(crate) fn uninstall(context: &Context, args: Uninstall) -> Result<(), Failure> {
    let client = args.which.client()?;
    change(context, &args.which, client, None)
}

impl Which {
    fn client(&self) -> Result<&'static Client, Failure> {
        let name = self.client.as_deref().unwrap_or_default();
        find(name).ok_or_else(|| {
            let names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
            Failure::usage(
                format!("there is no client `{name}` that we know"),
                &format!(
                    "one of: {}; any other client starts `rhizome mcp`",
                    names.join(", ")
                ),
            )
        })
    }

    fn path(&self, client: &Client) -> Result<PathBuf, Failure> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        if self.project {
            return client.project_file().ok_or_else(|| {
                Failure::usage(
                    format!("{} has no configuration of a project", client.title),
                    "leave `--project` out, or name the file with `--file`",
                )
            });
        }
        user_file(client).ok_or_else(|| {
            Failure::usage(
                "there is no home directory to look in",
                "set `HOME`, or name the file with `--file`",
            )
        })
    }
}

fn user_file(client: &Client) -> Option<PathBuf> {
    client.user_file(|name| std::env::var_os(name).map(PathBuf::from))
}

fn list(context: &Context) -> Result<(), Failure> {
    let listed: Vec<_> = CLIENTS
        .iter()
        .filter_map(|client| {
            let path = user_file(client)?;
            let state = match read(&path) {
                Ok(None) => "no file",
                Ok(Some(text)) => match edited(client, &text, None) {
                    Ok(without) if without == text => "not installed",
                    Ok(_) => "installed",
                    Err(_) => "unreadable",
                },
                Err(_) => "unreadable",
            };
            Some(Listed {
                client: client.name,
                title: client.title,
                path: path.display().to_string(),
                state,
            })
        })
        .collect();
    let columns = ["CLIENT", "", "STATE", "FILE"];
    context
        .ui
        .list(&listed, "no home directory", columns, |one| {
            [
                one.client.to_owned(),
                one.title.to_owned(),
                one.state.to_owned(),
                one.path.clone(),
            ]
        })
}

fn change(
    context: &Context,
    which: &Which,
    client: &Client,
    entry: Option<&Value>,
) -> Result<(), Failure> {
    // What is behind a link is what is changed: the link stays one.
    let named = which.path(client)?;
    let path = fs::canonicalize(&named).unwrap_or(named);
    let before = read(&path)?;
    let text = before.clone().unwrap_or_default();
    let after = edited(client, &text, entry)
        .map_err(|refused| left_alone(client, &path, &refused, entry))?;
    let had = edited(client, &text, None).is_ok_and(|without| without != text);
    let mut changed = Changed {
        client: client.name,
        path: path.display().to_string(),
        action: match (after == text, entry.is_some(), had) {
            (true, ..) => "unchanged",
            (_, false, _) => "removed",
            (_, true, true) => "changed",
            (_, true, false) => "added",
        },
        dry_run: which.dry_run,
        diff: diff(&path, &text, &after),
        backup: None,
    };
    let ui = context.ui;
    if changed.action == "unchanged" || which.dry_run {
        return match ui.is_json() {
            true => ui.object(&changed),
            false if changed.action == "unchanged" => {
                ui.status(&format!("{} is as it should be already", path.display()));
                Ok(())
            }
            false => ui.line(changed.diff.trim_end()),
        };
    }
    if !ui.is_json() {
        ui.line(changed.diff.trim_end())?;
    }
    if !which.yes {
        ui.ask(
            "Write this?",
            "nothing was written",
            "add `--yes`, or look with `--dry-run`",
        )?;
    }
    changed.backup =
        write(&path, before.as_deref(), &after)?.map(|path| path.display().to_string());
    if ui.is_json() {
        return ui.object(&changed);
    }
    ui.status(&format!(
        "{} is written; restart {} to use it",
        path.display(),
        client.title
    ));
    if let Some(backup) = &changed.backup {
        ui.status(&format!("what was there is in {backup}"));
    }
    Ok(())
}

fn edited(client: &Client, text: &str, entry: Option<&Value>) -> Result<String, Refused> {
    match client.shape {
        Shape::Json(section) | Shape::JsonTyped(section) | Shape::JsonOneList(section) => {
            edit::json(text, section, SERVER, entry)
        }
        Shape::Toml(section) => edit::toml(text, section, SERVER, entry),
    }
}

fn left_alone(client: &Client, path: &Path, refused: &Refused, entry: Option<&Value>) -> Failure {
    let message = format!("`{}` is left as it is: {refused}", path.display());
    let hint = match entry.map(|entry| edited(client, "", Some(entry))) {
        Some(Ok(paste)) => format!("add this to it by hand:\n{}", paste.trim_end()),
        _ => format!("take the server `{SERVER}` out by hand"),
    };
    Failure::usage(message, &hint)
}

fn program() -> Result<String, Failure> {
    // The whole path: programs with windows start their servers without the user's `PATH`.
    let program = std::env::current_exe().map_err(Failure::Output)?;
    program.into_os_string().into_string().map_err(|path| {
        Failure::usage(
            format!("the path of this program is no UTF-8: {}", path.display()),
            "move the program",
        )
    })
}

fn arguments(context: &Context, scope: &Scope) -> Result<Vec<String>, Failure> {
    let mut arguments = Vec::new();
    if let Some(dir) = &context.data_dir {
        let dir = std::path::absolute(dir).map_err(|source| Failure::File {
            path: dir.clone(),
            source,
        })?;
        arguments.extend(["--data-dir".to_owned(), dir.display().to_string()]);
    }
    arguments.push("mcp".to_owned());
    let given = [
        ("--profile", &scope.profile),
        ("--agent", &scope.agent),
        ("--space", &scope.space),
        ("--task", &scope.task),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            arguments.extend([name.to_owned(), value.clone()]);
        }
    }
    if scope.prefix {
        arguments.push("--prefix".to_owned());
    }
    Ok(arguments)
}

/// Reads a file; `None` if there is none.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    let failed = |source| Failure::File {
        path: path.to_owned(),
        source,
    };
    let size = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Err(failed(io::Error::from(io::ErrorKind::InvalidInput))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if size > MAX_FILE {
        return Err(failed(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}

/// Puts `after` in the place of `before`, whole or not at all; returns where `before` is kept.
fn write(path: &Path, before: Option<&str>, after: &str) -> Result<Option<PathBuf>, Failure> {
    let failed = |source| Failure::File {
        path: path.to_owned(),
        source,
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(failed)?;
    let backup = match before {
        None => None,
        Some(_) => Some(keep(path).map_err(failed)?),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".rhizome-new");
    let new = dir.join(name);
    let made = (|| {
        let mut file = fs::File::create(&new)?;
        if before.is_some() {
            file.set_permissions(fs::metadata(path)?.permissions())?;
        }
        file.write_all(after.as_bytes())?;
        file.sync_all()?;
        // A client writes its own configuration too: what it wrote meanwhile is not ours to lose.
        let now = read(path).map_err(|_| io::Error::other("it cannot be read any more"))?;
        if now.as_deref() != before {
            return Err(io::Error::other(
                "it was changed by somebody else meanwhile",
            ));
        }
        fs::rename(&new, path)
    })();
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made.map_err(failed)?;
    Ok(backup)
}

/// Copies a file beside itself, over no earlier copy.
fn keep(path: &Path) -> io::Result<PathBuf> {
    for number in 0..MAX_BACKUPS {
        let mut name = path.as_os_str().to_owned();
        name.push(".rhizome-backup");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let backup = PathBuf::from(name);
        match fs::File::create_new(&backup) {
            Ok(_) => return fs::copy(path, &backup).map(|_| backup),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("there are too many copies of it already"))
}

/// Returns what differs, as `diff -u` says it: all edits are in one place.
fn diff(path: &Path, before: &str, after: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other);
    let head = same.count();
    let most = old.len().min(new.len()) - head;
    let tail = (1..=most)
        .take_while(|back| old[old.len() - back] == new[new.len() - back])
        .count();
    let from = head.saturating_sub(AROUND);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let after_end = (new_end + AROUND).min(new.len());
    let mut out = format!("--- {0}\n+++ {0}\n", path.display());
    out.push_str(&format!(
        "@@ -{},{} +{},{} @@\n",
        from + 1,
        old_end - from + (after_end - new_end),
        from + 1,
        after_end - from
    ));
    let mut lines = |mark: char, lines: &[&str]| {
        for line in lines {
            out.push_str(&format!("{mark}{line}\n"));
        }
    };
    lines(' ', &new[from..head]);
    lines('-', &old[head..old_end]);
    lines('+', &new[head..new_end]);
    lines(' ', &new[new_end..after_end]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_what_is_around_it() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let after = "1\n2\n3\n4\nnew\n5\n6\n7\n8\n";
        assert_eq!(
            diff(Path::new("f"), before, after),
            "--- f\n+++ f\n@@ -2,6 +2,7 @@\n 2\n 3\n 4\n+new\n 5\n 6\n 7\n"
        );
        assert_eq!(
            diff(Path::new("f"), "", "a\n"),
            "--- f\n+++ f\n@@ -1,0 +1,1 @@\n+a\n"
        );
    }

    #[test]
    fn a_file_is_replaced_whole_and_kept() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/settings.json");
        assert_eq!(write(&path, None, "one").unwrap(), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let backup = write(&path, Some("one"), "two").unwrap().unwrap();
        assert_eq!(fs::read_to_string(&backup).unwrap(), "one");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&backup)), (0o600, 0o600));
        let stale = write(&path, Some("one"), "three").unwrap_err();
        assert!(matches!(stale, Failure::File { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_ne!(write(&path, Some("two"), "three").unwrap().unwrap(), backup);
    }
}
