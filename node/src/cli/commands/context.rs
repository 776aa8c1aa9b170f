//! `rhizome context show|checkpoint|resume|list`.

use std::{io::Read, path::PathBuf};

use clap::{Args, Subcommand};

use super::{Context, Failure, short};
use crate::{
    api::types::{
        context::{
            Artifact, CheckpointBody, Context as Working, ContextSummary, Contexts, Decision,
            Entry, ErrorEntry, Explored, Verification,
        },
        memory::Published,
    },
    cli::{
        client::with_query,
        ui::{headline, plain, utc},
    },
};

/// The largest patch that is read from a file, in bytes.
const MAX_PATCH_BYTES: u64 = 1024 * 1024;

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what is known of a task
    #[command(after_help = "Example:\n  rhizome context show --task mend-isodate")]
    Show(Which),
    /// Show what is known of a task to go on with it, every signature verified from disk
    #[command(after_help = "Examples:
  rhizome context resume --task mend-isodate --json
  rhizome context resume --task mend-isodate --in bench

With `--in`, the runtime of that sandbox is compared with the one the work was done in, and the context
is refused if something that it relies on (`context checkpoint --requires`) does not hold there.")]
    Resume(Resume),
    /// Add to the context of a task
    #[command(after_help = "Examples:
  rhizome context checkpoint --task mend --goal 'tests pass' --next 'run the tests'
  rhizome context checkpoint --task mend --explored 'raise the timeout => no help' \\
      --error 'tests time out => the port was taken'
  rhizome context checkpoint --task mend --requires 'python3>=3.11' --requires git
  rhizome context checkpoint --task mend --file patch.json")]
    Checkpoint(Box<Checkpoint>),
    /// List the contexts, last touched first
    List {
        /// Space, by name or id; all readable ones by default
        #[arg(long)]
        space: Option<String>,
    },
}

/// Which context.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The task's name
    #[arg(long)]
    task: String,
    /// Space, by name or id; may be left out where there is only one
    #[arg(long)]
    space: Option<String>,
}

/// Which context, and where to go on with it.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    which: Which,
    /// Sandbox to go on in, by name, id or prefix
    #[arg(long = "in", value_name = "SANDBOX")]
    place: Option<String>,
    /// Go on although something that it relies on is not there
    #[arg(long, requires = "place")]
    force: bool,
}

/// What to add.
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    /// The task's name
    #[arg(long)]
    task: String,
    /// Agent to speak as, by name or id; the node's own by default
    #[arg(long)]
    agent: Option<String>,
    /// Space, by name or id; may be left out where there is only one
    #[arg(long)]
    space: Option<String>,
    /// What the task is to reach
    #[arg(long)]
    goal: Option<String>,
    /// Where it stands
    #[arg(long)]
    status: Option<String>,
    /// Path explored; repeat for several
    #[arg(long, value_name = "WHAT => RESULT")]
    explored: Vec<String>,
    /// Decision; repeat for several
    #[arg(long = "decision", value_name = "WHAT => WHY")]
    decisions: Vec<String>,
    /// Error met; repeat for several
    #[arg(long = "error", value_name = "ERROR => FIX")]
    errors: Vec<String>,
    /// Open question; repeat for several
    #[arg(long = "question", value_name = "TEXT")]
    questions: Vec<String>,
    /// Open question that has found its answer; repeat for several
    #[arg(long = "resolved", value_name = "TEXT")]
    resolved_questions: Vec<String>,
    /// Next step, replacing the ones before; repeat for several
    #[arg(long, value_name = "TEXT")]
    next: Vec<String>,
    /// Thing made; repeat for several
    #[arg(long = "artifact", value_name = "NAME=REFERENCE")]
    artifacts: Vec<String>,
    /// What is relied on in the runtime, such as python3>=3.11, memory>=512 or env:HOME, in the place
    /// of what was; repeat for several
    #[arg(long, value_name = "REQUIREMENT")]
    requires: Vec<String>,
    /// Rely on nothing any more
    #[arg(long, conflicts_with = "requires")]
    no_requires: bool,
    /// Read the patch as JSON from a file, `-` for standard input; flags add to it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Show(which) => show(context, which, None).await,
        Verb::Resume(args) => {
            let Resume {
                which,
                place,
                force,
            } = args;
            show(context, which, Some((place, force))).await
        }
        Verb::Checkpoint(args) => checkpoint(context, *args).await,
        Verb::List { space } => list(context, space).await,
    }
}

/// Shows a context; to go on with it, verified, in a sandbox and at any cost if so asked.
async fn show(
    context: &Context,
    which: Which,
    resume: Option<(Option<String>, bool)>,
) -> Result<(), Failure> {
    let number = |flag: bool| Some(u8::from(flag).to_string());
    let (place, force) = resume.clone().unwrap_or_default();
    let query = [
        ("task", Some(which.task)),
        ("space", which.space),
        ("verify", number(resume.is_some())),
        ("resume", number(resume.is_some())),
        ("force", number(force)),
        ("sandbox", place.clone()),
    ];
    let working: Working = context
        .client
        .get(&with_query("/v1/context", &query))
        .await?;
    if context.ui.is_json() {
        return context.ui.object(&working);
    }
    let ui = context.ui;
    ui.line(&ui.bold(&format!(
        "task {} in {}",
        plain(&working.task),
        working.space
    )))?;
    for (name, value) in [("goal", &working.goal), ("status", &working.status)] {
        if let Some(value) = value {
            ui.line(&format!("{name}: {}", plain(value)))?;
        }
    }
    let explored = |entry: &Explored| pair(&entry.what, &entry.result);
    section(context, "explored", &working.explored, explored)?;
    section(context, "decisions", &working.decisions, |entry| {
        pair(&entry.what, &entry.why)
    })?;
    section(context, "errors", &working.errors, |entry| {
        let says = |text: &Option<String>| headline(text.as_deref().unwrap_or_default(), 120);
        pair(
            &pair(&entry.error, &says(&entry.cause)),
            &format!("{} {}", says(&entry.fix), says(&entry.status)),
        )
    })?;
    section(context, "questions", &working.questions, |entry| {
        entry.what.clone()
    })?;
    section(context, "next", &working.next, |entry| entry.what.clone())?;
    section(context, "artifacts", &working.artifacts, |entry| {
        pair(&entry.name, &entry.reference)
    })?;
    if let Some(Entry { value, node, .. }) = &working.sandbox {
        let image = value.image.as_deref().unwrap_or("image unknown");
        ui.line(&format!("sandbox: {} ({image}) on {node}", value.id))?;
    }
    section(context, "relies on", &working.requires, |entry| {
        entry.what.clone()
    })?;
    for broken in &working.breaks {
        ui.line(&format!("DOES NOT HOLD THERE: {}", plain(broken)))?;
    }
    if !working.differs.is_empty() {
        ui.line("the runtime differs:")?;
        for one in &working.differs {
            ui.line(&format!("  - {}", plain(one)))?;
        }
    }
    if resume.is_some() && place.is_none() && !working.requires.is_empty() {
        ui.status("whether that holds was not looked at; name a sandbox with `--in`");
    }
    if let Some(Verification {
        total,
        ok,
        fragments,
    }) = &working.verification
    {
        ui.line(&format!("{ok} of {total} signatures verified"))?;
        for bad in fragments.iter().filter(|fragment| !fragment.ok) {
            let problem = bad.problem.as_deref().unwrap_or("does not verify");
            ui.line(&format!(
                "  {} by {}: {}",
                short(&bad.id),
                bad.author,
                plain(problem)
            ))?;
        }
    }
    Ok(())
}

async fn checkpoint(context: &Context, args: Checkpoint) -> Result<(), Failure> {
    let mut body = match &args.file {
        Some(path) => read_patch(path, &args.task)?,
        None => CheckpointBody {
            task: args.task.clone(),
            ..CheckpointBody::default()
        },
    };
    body.task = args.task;
    body.agent = args.agent.or(body.agent);
    body.space = args.space.or(body.space);
    body.goal = args.goal.or(body.goal);
    body.status = args.status.or(body.status);
    let two = |text: &String| split(text, " => ");
    body.explored.extend(
        args.explored
            .iter()
            .map(two)
            .map(|(what, result)| Explored { what, result }),
    );
    body.decisions.extend(
        args.decisions
            .iter()
            .map(two)
            .map(|(what, why)| Decision { what, why }),
    );
    body.errors
        .extend(args.errors.iter().map(two).map(|(error, fix)| {
            let fix = Some(fix).filter(|fix| !fix.is_empty());
            let status = Some(if fix.is_some() { "fixed" } else { "open" }.to_owned());
            ErrorEntry {
                error,
                fix,
                status,
                cause: None,
            }
        }));
    body.questions.extend(args.questions);
    body.resolved_questions.extend(args.resolved_questions);
    if !args.next.is_empty() {
        body.next = Some(args.next);
    }
    if !args.requires.is_empty() || args.no_requires {
        body.requires = Some(args.requires);
    }
    let artifacts = args.artifacts.iter().map(|text| split(text, "="));
    body.artifacts
        .extend(artifacts.map(|(name, reference)| Artifact { name, reference }));
    let published: Published = context.client.post("/v1/context/checkpoint", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&published);
    }
    context
        .ui
        .line(&format!("checkpointed as {}", published.id))
}

async fn list(context: &Context, space: Option<String>) -> Result<(), Failure> {
    let answer: Contexts = context
        .client
        .get(&with_query("/v1/contexts", &[("space", space)]))
        .await?;
    let columns = [
        "task",
        "space",
        "status",
        "fragments",
        "last by",
        "on",
        "when",
    ];
    context.ui.list(
        &answer.contexts,
        "no contexts",
        columns,
        |entry: &ContextSummary| {
            [
                headline(&entry.task, 40),
                entry.space.to_string(),
                headline(entry.status.as_deref().unwrap_or("-"), 30),
                entry.fragments.to_string(),
                entry.by.to_string(),
                entry.node.to_string(),
                utc(entry.at_ms),
            ]
        },
    )
}

fn section<T>(
    context: &Context,
    name: &str,
    entries: &[Entry<T>],
    says: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if entries.is_empty() {
        return Ok(());
    }
    context.ui.line(&format!("{name}:"))?;
    for entry in entries {
        let says = headline(&says(&entry.value), 200);
        context.ui.line(&format!(
            "  - {says}  [{} on {}, {}]",
            entry.by,
            entry.node,
            utc(entry.at_ms)
        ))?;
    }
    Ok(())
}

fn read_patch(path: &PathBuf, task: &str) -> Result<CheckpointBody, Failure> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin()
            .take(MAX_PATCH_BYTES)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_PATCH_BYTES).read_to_string(&mut text))
    };
    read.map_err(|source| Failure::File {
        path: path.clone(),
        source,
    })?;
    let hint =
        "it holds the fields of a checkpoint, such as goal, explored, decisions, errors, next";
    let refuse = |error: serde_json::Error| {
        Failure::usage(format!("`{}` is no patch: {error}", path.display()), hint)
    };
    let mut patch: serde_json::Value = serde_json::from_str(&text).map_err(refuse)?;
    if let Some(patch) = patch.as_object_mut() {
        patch.entry("task").or_insert_with(|| task.into());
    }
    serde_json::from_value(patch).map_err(refuse)
}

fn split(text: &str, separator: &str) -> (String, String) {
    let (first, second) = text.split_once(separator).unwrap_or((text, ""));
    (first.trim().to_owned(), second.trim().to_owned())
}

fn pair(first: &str, second: &str) -> String {
    let second = second.trim();
    if second.is_empty() {
        first.to_owned()
    } else {
        format!("{first} => {second}")
    }
}
