//! `rhizome sandbox pause|unpause|stop|start|snapshot|hibernate|resume|fork|lease|health`.

use clap::Args;

use super::{Context, Failure, follow, path_of, short};
use crate::{
    api::types::{
        lifecycle::{ForkBody, Forked, Health, LeaseBody, ResumeBody, SnapshotBody, SnapshotTaken},
        remote::Replicated,
        sandbox::{Sandbox, SandboxCreated},
    },
    cli::{
        commands::{names, seconds},
        ui::{size, utc},
    },
};

/// Which sandboxes.
#[derive(Debug, Args)]
pub(crate) struct Some_ {
    /// Name, id or unique prefix of one
    #[arg(required = true)]
    sandboxes: Vec<String>,
}

/// Which sleepers, and how much they may miss.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// Name, id or unique prefix of one
    #[arg(required = true)]
    sandboxes: Vec<String>,
    /// Go on although something that it relies on is not here
    #[arg(long)]
    force: bool,
}

/// How long a sandbox lives when nobody asks for more.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LeaseArgs {
    /// Let it live this long unless somebody asks for more: 30m, 8h, 7d
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    lease: Option<u64>,
    /// What becomes of it then
    #[arg(long, value_parser = ["hibernate", "kill"], requires = "lease")]
    on_lease_end: Option<String>,
}

impl LeaseArgs {
    pub(in crate::cli) fn body(self) -> Option<LeaseBody> {
        let seconds = self.lease?;
        Some(LeaseBody {
            for_ms: Some(seconds.saturating_mul(1000)),
            then: self.on_lease_end,
            ..LeaseBody::default()
        })
    }
}

/// How a snapshot is taken.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Command that runs in the guest first, in `sh`
    #[arg(long, value_name = "COMMAND")]
    hook: Option<String>,
    /// Time that it may take: 30s, 5m
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    deadline: Option<u64>,
    /// Other nodes that are to hold the snapshot before this is done
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
    /// Which other nodes: `label=NAME[=VALUE]`
    #[arg(long, value_name = "LABEL")]
    held_by: Option<String>,
}

/// How a sandbox is put to sleep, and until when.
#[derive(Debug, Args)]
pub(crate) struct Hibernate {
    #[command(flatten)]
    snapshot: Snapshot,
    /// What wakes it, whichever comes first: `time=2h`, `time=2026-12-24T08:00:00Z`, `memory=<words>`, `webhook`
    #[arg(long, value_name = "WHAT")]
    wake_on: Vec<String>,
}

/// How copies are made.
#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// How many
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N")]
    count: usize,
    /// Name of the copy; with a number if there are several
    #[arg(long)]
    name: Option<String>,
    /// Command that runs in the guest first, in `sh`
    #[arg(long, value_name = "COMMAND")]
    hook: Option<String>,
    /// Time that it may take: 30s, 5m
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    deadline: Option<u64>,
    #[command(flatten)]
    lease: LeaseArgs,
}

/// What the lease is to be.
#[derive(Debug, Args)]
pub(crate) struct Lease {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Length from now: 30m, 8h, 7d; `none` to live on without one
    #[arg(value_name = "TIME")]
    length: String,
    /// What becomes of the sandbox then
    #[arg(long, value_parser = ["hibernate", "kill"])]
    then: Option<String>,
    /// Only make it longer, never shorter
    #[arg(long, conflicts_with = "then")]
    renew: bool,
    /// Keep it for an agent
    #[arg(long, value_name = "AGENT", conflicts_with_all = ["renew", "context"])]
    agent: Option<String>,
    /// Keep it for a context
    #[arg(long, value_name = "CONTEXT", conflicts_with = "renew")]
    context: Option<String>,
}

fn hook(command: Option<String>) -> Vec<String> {
    command
        .map(|command| vec!["/bin/sh".to_owned(), "-c".to_owned(), command])
        .unwrap_or_default()
}

/// Does to each sandbox what takes no more than a word.
pub(super) async fn word(context: &Context, args: Some_, verb: &str) -> Result<(), Failure> {
    for sandbox in &args.sandboxes {
        let path = format!("{}/{verb}", path_of(sandbox));
        let done: SandboxCreated = context.client.post(&path, &serde_json::json!({})).await?;
        said(context, &done)?;
    }
    Ok(())
}

pub(super) async fn start(context: &Context, args: Some_) -> Result<(), Failure> {
    let nothing = serde_json::json!({});
    work(context, &args.sandboxes, "start", &nothing).await
}

pub(super) async fn resume(context: &Context, args: Resume) -> Result<(), Failure> {
    let body = ResumeBody { force: args.force };
    work(context, &args.sandboxes, "resume", &body).await
}

/// Does to each what takes a while.
async fn work(
    context: &Context,
    sandboxes: &[String],
    verb: &str,
    body: &impl serde::Serialize,
) -> Result<(), Failure> {
    for sandbox in sandboxes {
        let path = format!("{}/{verb}", path_of(sandbox));
        let lines = context.client.post_lines(&path, body).await?;
        let done: SandboxCreated = follow(context.ui, lines).await?;
        said(context, &done)?;
    }
    Ok(())
}

fn said(context: &Context, done: &SandboxCreated) -> Result<(), Failure> {
    if context.ui.is_json() {
        return context.ui.object(done);
    }
    context.ui.line(&format!(
        "sandbox {} is {}",
        called(&done.sandbox),
        done.sandbox.state
    ))
}

fn called(sandbox: &Sandbox) -> String {
    sandbox.name.clone().unwrap_or_else(|| short(&sandbox.id))
}

/// Takes a snapshot.
pub(super) async fn snapshot(context: &Context, args: Snapshot) -> Result<(), Failure> {
    take(context, args, Vec::new(), "snapshot").await
}

/// Puts a sandbox to sleep.
pub(super) async fn hibernate(context: &Context, args: Hibernate) -> Result<(), Failure> {
    take(context, args.snapshot, args.wake_on, "hibernate").await
}

async fn take(
    context: &Context,
    args: Snapshot,
    wake_on: Vec<String>,
    verb: &str,
) -> Result<(), Failure> {
    let body = SnapshotBody {
        hook: hook(args.hook),
        deadline_ms: args.deadline.map(|seconds| seconds.saturating_mul(1000)),
        replicas: args.replicas,
        held_by: args.held_by,
        wake_on,
    };
    let path = format!("{}/{verb}", path_of(&args.sandbox));
    let lines = context.client.post_lines(&path, &body).await?;
    let taken: SnapshotTaken = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&taken);
    }
    let snapshot = &taken.snapshot;
    let what = match verb {
        "hibernate" => "sleeps in snapshot",
        _ => "was written down in snapshot",
    };
    context.ui.line(&format!(
        "sandbox {} {what} {} (paused {} ms; {} read, {} new, {} stored)",
        snapshot
            .name
            .clone()
            .unwrap_or_else(|| short(&snapshot.sandbox)),
        snapshot.id,
        snapshot.pause_ms,
        size(snapshot.bytes_read),
        size(snapshot.bytes_new),
        size(snapshot.bytes_stored),
    ))?;
    if let Some(kept) = &taken.kept {
        context.ui.line(&copies(kept))?;
    }
    if !taken.wake_on.is_empty() {
        let called = snapshot
            .name
            .clone()
            .unwrap_or_else(|| short(&snapshot.sandbox));
        super::wake_on::say(context, &called, &taken.wake_on, taken.webhook.as_deref())?;
    }
    Ok(())
}

/// Says where else a snapshot is kept, and why not in more places.
fn copies(kept: &Replicated) -> String {
    let refused: Vec<_> = kept
        .refused
        .iter()
        .map(|refused| format!("{} does not: {}", refused.node, refused.problem))
        .collect();
    let mut said = match (&kept.record, kept.holders.is_empty()) {
        (None, _) if kept.problem.is_some() => format!(
            "no other node will find it: {}",
            kept.problem.as_deref().unwrap_or_default()
        ),
        (None, _) => "kept on this node alone: the sandbox belongs to no space".to_owned(),
        (Some(_), true) => "kept on this node alone: no other node holds a copy".to_owned(),
        (Some(_), false) => format!("also kept by {}", names(&kept.holders, "nobody")),
    };
    if !refused.is_empty() {
        said.push_str(&format!(" ({})", refused.join("; ")));
    }
    said
}

pub(super) async fn fork(context: &Context, args: Fork) -> Result<(), Failure> {
    let body = ForkBody {
        count: Some(args.count),
        name: args.name,
        hook: hook(args.hook),
        deadline_ms: args.deadline.map(|seconds| seconds.saturating_mul(1000)),
        lease: args.lease.body(),
    };
    let path = format!("{}/fork", path_of(&args.sandbox));
    let lines = context.client.post_lines(&path, &body).await?;
    let forked: Forked = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&forked);
    }
    for sandbox in &forked.sandboxes {
        let name = sandbox
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!(" named {name}"));
        context
            .ui
            .line(&format!("sandbox {}{name} is a copy", sandbox.id))?;
    }
    Ok(())
}

pub(super) async fn lease(context: &Context, args: Lease) -> Result<(), Failure> {
    let owner = match (&args.agent, &args.context) {
        (Some(_), _) => Some("agent".to_owned()),
        (None, Some(_)) => Some("context".to_owned()),
        (None, None) => None,
    };
    let mut body = LeaseBody {
        then: args.then,
        owner,
        id: args.agent.or(args.context),
        renew: args.renew,
        ..LeaseBody::default()
    };
    if args.length == "none" {
        body.none = true;
    } else {
        let length = seconds(&args.length)
            .map_err(|error| Failure::usage(error, "give a length such as 8h, or `none`"))?;
        body.for_ms = Some(length.saturating_mul(1000));
    }
    let path = format!("{}/lease", path_of(&args.sandbox));
    let done: SandboxCreated = context.client.post(&path, &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&done);
    }
    let name = called(&done.sandbox);
    context.ui.line(&match &done.sandbox.lease {
        Some(lease) => format!(
            "sandbox {name} is kept until {}; then: {}",
            utc(lease.until_ms),
            lease.then
        ),
        None => format!("sandbox {name} lives on without a lease"),
    })
}

pub(super) async fn health(context: &Context, sandbox: &str) -> Result<(), Failure> {
    let health: Health = context
        .client
        .get(&format!("{}/health", path_of(sandbox)))
        .await?;
    if context.ui.is_json() {
        context.ui.object(&health)?;
    } else if let Some(us) = health.ping_us {
        context.ui.line(&format!("it answers, after {us} µs"))?;
    } else {
        let problem = health.problem.as_deref().unwrap_or("nobody says why");
        context.ui.line(&format!("it does not answer: {problem}"))?;
    }
    match health.answers {
        true => Ok(()),
        false => Err(Failure::Exit(1)),
    }
}
