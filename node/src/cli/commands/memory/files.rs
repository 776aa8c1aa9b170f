//! `rhizome memory files list|show|pull|push|sync`.

mod base;
mod decide;
mod host;
mod place;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use futures::StreamExt;
use rhizome_memory::{FilePath, MEMORIES};
use serde_json::json;

use self::{
    base::{Base, Was},
    decide::{Action, Mode, decide},
    host::is_hidden,
    place::{Left, Place},
};
use super::{Context, Failure};
use crate::{
    api::types::file::{FileBody, FileChanged, FileLine, FileList, FileOp, FileShown},
    cli::{
        client::{encode, with_query},
        ui::{plain, size, utc},
    },
    datadir,
};

/// How long what happens together is waited for before it is synced, with `--watch`.
const SETTLE: Duration = Duration::from_millis(300);
/// How often a directory of this machine is looked at, with `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What to do with files.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the files at or below a path
    List {
        /// `/memories` or below
        #[arg(default_value = MEMORIES)]
        path: String,
        /// Space, by name or id
        #[arg(long)]
        space: Option<String>,
    },
    /// Print a file
    Show {
        /// Its path, below `/memories`
        path: String,
        /// Space, by name or id
        #[arg(long)]
        space: Option<String>,
    },
    /// Bring a directory up to what memory says
    #[command(after_help = "Example:\n  rhizome memory files pull notes --space findings")]
    Pull(Trees),
    /// Bring memory up to what a directory says
    #[command(after_help = "Example:\n  rhizome memory files push notes --space findings")]
    Push(Trees),
    /// Bring a directory and memory up to each other; what both changed is merged line by line
    #[command(after_help = "Examples:
  rhizome memory files sync notes --space findings
  rhizome memory files sync --sandbox bench /memories --watch

Links, special files, hidden files and what is no text stay out. What one side deleted and the
other changed stays. A line that both changed is there twice afterwards: none is lost.")]
    Sync(Trees),
}

/// Which directory, and which space.
#[derive(Debug, Args)]
pub(crate) struct Trees {
    /// A directory; with `--sandbox` an absolute path in it, `/memories` by default
    #[arg(required_unless_present = "sandbox")]
    dir: Option<PathBuf>,
    /// The directory is in this sandbox, by name, id or a unique prefix of it
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// Space, by name or id
    #[arg(long)]
    space: Option<String>,
    /// Agent to speak as, by name or id; the node's own by default
    #[arg(long)]
    agent: Option<String>,
    /// Go on as either side changes
    #[arg(long)]
    watch: bool,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::List { path, space } => list(context, &path, space).await,
        Verb::Show { path, space } => show(context, &path, space).await,
        Verb::Pull(trees) => sync(context, trees, Mode::Pull).await,
        Verb::Push(trees) => sync(context, trees, Mode::Push).await,
        Verb::Sync(trees) => sync(context, trees, Mode::Sync).await,
    }
}

async fn files(context: &Context, path: &str, space: Option<String>) -> Result<FileList, Failure> {
    let query = [("path", Some(path.to_owned())), ("space", space)];
    context.client.get(&with_query("/v1/files", &query)).await
}

async fn file(context: &Context, path: &str, space: Option<String>) -> Result<FileShown, Failure> {
    let query = [("path", Some(path.to_owned())), ("space", space)];
    context.client.get(&with_query("/v1/file", &query)).await
}

async fn list(context: &Context, path: &str, space: Option<String>) -> Result<(), Failure> {
    let list = files(context, path, space).await?;
    let columns = ["SIZE", "CHANGED", "BY", "PATH"];
    let row = |file: &FileLine| {
        [
            size(file.bytes),
            utc(file.at_ms),
            plain(&file.author.to_string()),
            plain(&file.path),
        ]
    };
    context.ui.list(&list.files, "no files", columns, row)
}

async fn show(context: &Context, path: &str, space: Option<String>) -> Result<(), Failure> {
    let shown = file(context, path, space).await?;
    if context.ui.is_json() {
        return context.ui.object(&shown);
    }
    let text = shown.memory.text;
    context.ui.line(text.strip_suffix('\n').unwrap_or(&text))
}

/// One pair of trees.
struct Pair<'a> {
    context: &'a Context,
    place: Place,
    space: String,
    agent: Option<String>,
    mode: Mode,
}

async fn sync(context: &Context, trees: Trees, mode: Mode) -> Result<(), Failure> {
    let place = match trees.sandbox {
        Some(sandbox) => {
            let dir = trees.dir.unwrap_or_else(|| MEMORIES.into());
            let dir = dir.to_string_lossy().trim_end_matches('/').to_owned();
            if !dir.starts_with('/') || dir.split('/').any(|name| name == "..") {
                return Err(Failure::Usage {
                    message: format!("`{dir}` is no absolute path in a sandbox"),
                    hint: Some("begin it with `/`, and leave `..` out".to_owned()),
                });
            }
            Place::Sandbox {
                sandbox: full_id(context, &sandbox).await?,
                dir,
            }
        }
        None => Place::Here(trees.dir.expect("clap asks for one")),
    };
    // Asked for now: the base is kept under the space's id.
    let space = files(context, MEMORIES, trees.space).await?.space.id;
    let pair = Pair {
        context,
        place,
        space,
        agent: trees.agent,
        mode,
    };
    if !trees.watch {
        return pair.once().await;
    }
    pair.watch().await
}

/// A name may come to mean another sandbox, an id never.
async fn full_id(context: &Context, sandbox: &str) -> Result<String, Failure> {
    let found: crate::api::types::sandbox::Sandbox = context
        .client
        .get(&format!("/v1/sandboxes/{}", encode(sandbox)))
        .await?;
    Ok(found.id)
}

impl Pair<'_> {
    /// Syncs once.
    async fn once(&self) -> Result<(), Failure> {
        let context = self.context;
        let data_dir = context
            .data_dir
            .clone()
            .or_else(datadir::this_users_data_dir)
            .unwrap_or_default();
        let mut base = Base::open(&data_dir, &self.place.name(), &self.space);
        let scan = self.place.scan(context).await?;
        let there = files(context, MEMORIES, Some(self.space.clone())).await?;
        let there: std::collections::BTreeMap<String, String> = there
            .files
            .into_iter()
            .filter_map(|file| {
                let path = FilePath::parse(&file.path).ok()?;
                let rest = path.below().to_owned();
                (!is_hidden(&rest)).then_some((rest, file.id))
            })
            .collect();
        let mut done = 0;
        let all: BTreeSet<&String> = scan.files.keys().chain(there.keys()).collect();
        let gone: Vec<String> = base
            .files
            .keys()
            .filter(|rest| !all.contains(*rest))
            .cloned()
            .collect();
        for rest in gone {
            base.files.remove(&rest);
        }
        for rest in all {
            if scan.skipped.contains_key(rest) {
                continue;
            }
            let here = scan.files.get(rest).map(String::as_str);
            match self.one(&mut base, rest, here, there.get(rest)).await? {
                Ok(Action::Same | Action::Leave) => {}
                Ok(action) => {
                    done += 1;
                    self.tell(rest, action)?;
                }
                Err(why) => self.tell_left(rest, &why)?,
            }
        }
        for (rest, why) in &scan.skipped {
            self.tell_left(rest, why)?;
        }
        base.save().map_err(|source| Failure::File {
            path: base.path().to_owned(),
            source,
        })?;
        if !context.ui.is_json() {
            context
                .ui
                .status(&format!("{done} file(s) brought up to date"));
        }
        Ok(())
    }

    fn tell(&self, rest: &str, action: Action) -> Result<(), Failure> {
        let did = match action {
            Action::Pull => "pulled",
            Action::Push => "pushed",
            Action::Merge => "merged",
            Action::DeleteHere => "deleted here",
            Action::DeleteThere => "deleted there",
            Action::Same | Action::Leave => return Ok(()),
        };
        let path = format!("{MEMORIES}/{rest}");
        if self.context.ui.is_json() {
            let object = json!({ "schema": 1, "path": path, "did": did });
            return self.context.ui.object(&object);
        }
        self.context.ui.line(&format!("{did:<13} {}", plain(&path)))
    }

    fn tell_left(&self, rest: &str, why: &str) -> Result<(), Failure> {
        if self.context.ui.is_json() {
            let object = json!({ "schema": 1, "path": rest, "left": why });
            return self.context.ui.object(&object);
        }
        let line = format!("left {} as it is: {}", plain(rest), plain(why));
        self.context.ui.status(&line);
        Ok(())
    }

    /// Brings one file up to date; says what was done, or why it was left.
    async fn one(
        &self,
        base: &mut Base,
        rest: &str,
        here: Option<&str>,
        there: Option<&String>,
    ) -> Result<Result<Action, Left>, Failure> {
        let path = format!("{MEMORIES}/{rest}");
        let was = base.files.get(rest).cloned();
        let there = match (there, &was) {
            (None, _) => None,
            // Nobody has changed it: its text is known.
            (Some(id), Some(was)) if was.id == *id => Some(was.clone()),
            (Some(_), _) => match file(self.context, &path, Some(self.space.clone())).await {
                Ok(shown) => Some(Was {
                    text: shown.memory.text,
                    id: shown.memory.id,
                }),
                Err(Failure::Refused { code, .. }) if code == "not_found" => None,
                Err(failure) => return Err(failure),
            },
        };
        let base_text = was.as_ref().map(|was| was.text.as_str());
        let there_text = there.as_ref().map(|there| there.text.as_str());
        let action = decide(self.mode, base_text, here, there_text);
        let done = self
            .act(action, rest, &path, base_text, here, there.as_ref())
            .await?;
        let agreed = match done {
            Ok(agreed) => agreed,
            Err(left) => return Ok(Err(left)),
        };
        match agreed {
            Agreed::On(agreed) => drop(base.files.insert(rest.to_owned(), agreed)),
            Agreed::Gone => drop(base.files.remove(rest)),
            Agreed::AsBefore => {}
        }
        Ok(Ok(action))
    }

    async fn act(
        &self,
        action: Action,
        rest: &str,
        path: &str,
        base: Option<&str>,
        here: Option<&str>,
        there: Option<&Was>,
    ) -> Result<Result<Agreed, Left>, Failure> {
        let context = self.context;
        let agreed = match (action, here, there) {
            (Action::Leave, ..) => Agreed::AsBefore,
            (Action::Same, Some(_), Some(there)) => Agreed::On(there.clone()),
            (Action::Same, ..) => Agreed::Gone,
            (Action::Pull, _, Some(there)) => {
                if let Err(left) = self.place.write(context, rest, here, &there.text).await {
                    return Ok(Err(left));
                }
                Agreed::On(there.clone())
            }
            (Action::DeleteHere, Some(here), _) => {
                if let Err(left) = self.place.delete(context, rest, here).await {
                    return Ok(Err(left));
                }
                Agreed::Gone
            }
            (Action::DeleteThere, ..) => {
                let edit = FileOp::Delete {
                    path: path.to_owned(),
                    only_if: base.map(str::to_owned),
                };
                match self.change(edit).await? {
                    Ok(_) => Agreed::Gone,
                    Err(left) => return Ok(Err(left)),
                }
            }
            (Action::Merge, Some(here), Some(there)) if self.mode == Mode::Pull => {
                let merged =
                    rhizome_memory::merge_texts(base.unwrap_or_default(), &there.text, here);
                if let Err(left) = self.place.write(context, rest, Some(here), &merged).await {
                    return Ok(Err(left));
                }
                Agreed::On(there.clone())
            }
            (Action::Push | Action::Merge, Some(here), there) => {
                let (path, text) = (path.to_owned(), here.to_owned());
                let edit = match there {
                    Some(_) => FileOp::Merge {
                        path,
                        base: base.unwrap_or_default().to_owned(),
                        text,
                    },
                    None => FileOp::Create { path, text },
                };
                let changed = match self.change(edit).await? {
                    Ok(changed) => changed,
                    Err(left) => return Ok(Err(left)),
                };
                let after = changed.text.unwrap_or_default();
                let mut agreed = Was {
                    text: here.to_owned(),
                    // Memory says more than the directory: the next look has to read it.
                    id: String::new(),
                };
                if after == here || self.mode == Mode::Push {
                    if after == here {
                        agreed.id = changed.id.unwrap_or_default();
                    }
                } else if let Err(left) = self.place.write(context, rest, Some(here), &after).await
                {
                    self.tell_left(rest, &left)?;
                } else {
                    agreed = Was {
                        text: after,
                        id: changed.id.unwrap_or_default(),
                    };
                }
                Agreed::On(agreed)
            }
            (Action::Pull | Action::DeleteHere | Action::Push | Action::Merge, ..) => {
                unreachable!("`decide` saw both sides")
            }
        };
        Ok(Ok(agreed))
    }

    /// Changes memory; what others were faster at is left for the next time.
    async fn change(&self, edit: FileOp) -> Result<Result<FileChanged, Left>, Failure> {
        let body = FileBody {
            agent: self.agent.clone(),
            space: Some(self.space.clone()),
            edit,
        };
        match self.context.client.post("/v1/file", &body).await {
            Ok(changed) => Ok(Ok(changed)),
            Err(Failure::Refused {
                code,
                message,
                causes,
                ..
            }) if LEFT.contains(&&code[..]) => {
                let causes = causes.into_iter().map(|cause| format!(": {cause}"));
                Ok(Err(format!("{message}{}", causes.collect::<String>())))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Syncs, and again whenever one of both sides has changed.
    async fn watch(&self) -> Result<(), Failure> {
        let context = self.context;
        let query = [
            ("space", Some(self.space.clone())),
            ("after", Some("now".to_owned())),
            ("follow", Some("1".to_owned())),
        ];
        let mut memory = context
            .client
            .get_lines(&with_query("/v1/watch", &query))
            .await?;
        self.once().await?;
        match &self.place {
            Place::Here(_) => loop {
                // There is no telling a change of a directory here but by looking.
                tokio::select! {
                    line = memory.next() => told(line)?,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
                tokio::time::sleep(SETTLE).await;
                self.once().await?;
            },
            Place::Sandbox { sandbox, dir } => {
                let query = [
                    ("path", Some(dir.clone())),
                    ("recursive", Some("true".to_owned())),
                ];
                let _: crate::api::types::Done = context
                    .client
                    .put(&with_query(
                        &format!("/v1/sandboxes/{}/dir", encode(sandbox)),
                        &[("path", Some(dir.clone()))],
                    ))
                    .await?;
                let watch = format!("/v1/sandboxes/{}/watch", encode(sandbox));
                let mut guest = context
                    .client
                    .get_lines(&with_query(&watch, &query))
                    .await?;
                self.once().await?;
                loop {
                    tokio::select! {
                        line = memory.next() => told(line)?,
                        line = guest.next() => told(line)?,
                    }
                    tokio::time::sleep(SETTLE).await;
                    self.once().await?;
                }
            }
        }
    }
}

/// Codes of refusals that leave a file for the next time.
const LEFT: [&str; 7] = [
    "changed",
    "exists",
    "not_found",
    "is_directory",
    "not_directory",
    "too_large",
    "bad_path",
];

/// What both sides say after an action.
enum Agreed {
    On(Was),
    Gone,
    AsBefore,
}

fn told(line: Option<Result<String, Failure>>) -> Result<(), Failure> {
    let line = line.ok_or_else(|| Failure::Protocol("the daemon went away".to_owned()))??;
    Failure::from_line(&line).map_or(Ok(()), Err)
}
