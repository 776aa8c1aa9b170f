//! `rhizome sandbox create|exec|shell|ps|attach|signal|cp|forward|watch-dir|list|logs|kill`, and what
//! [`lifecycle`] has.

mod copy;
mod exec;
mod forward;
pub(super) mod lifecycle;
mod policy;
mod pool;
mod programs;
mod session;
mod terminal;
mod wake_on;
mod watch;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use rhizome_memory::now_ms;
use tokio::io::AsyncReadExt;

use super::{Context, Failure, follow, short};
use crate::{
    api::types::{
        Done,
        sandbox::{Sandbox, SandboxBody, SandboxCreated, Sandboxes},
    },
    cli::{
        client::{encode, reader, with_query},
        ui::{ago, plain},
    },
};

/// What to do with sandboxes, and where.
#[derive(Debug, Args)]
pub(crate) struct Sandboxing {
    /// Node to do it on, by name or id; for what is made also `any` or `label=NAME[=VALUE]`
    #[arg(long, global = true, value_name = "NODE")]
    on: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

/// What to do with sandboxes.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Boot a sandbox
    #[command(after_help = "Examples:
  rhizome sandbox create
  rhizome sandbox create --image debian --name bench --agent mender --space findings
  rhizome sandbox create --image debian --allow example.org --allow '*.pypi.org' --secret API_KEY
  rhizome sandbox create --name job --lease 8h --on-lease-end hibernate")]
    Create(Create),
    /// Run a command in a sandbox, its output as it comes
    #[command(after_help = "Examples:
  rhizome sandbox exec bench -- uname -a
  rhizome sandbox exec bench --stdin -- tee /root/notes < notes.txt
  rhizome sandbox exec bench -it -- top
  rhizome sandbox exec bench --detach -- ./serve

The exit code is the command's own; 128 and the signal's number if a signal ended it; 124 if it ran out of time.
When this client goes away its command is killed, with all that it started, unless it is kept (`--keep`, `--detach`).")]
    Exec(exec::Exec),
    /// Open a shell in a sandbox
    #[command(after_help = "Examples:
  rhizome sandbox shell bench
  rhizome sandbox shell bench --user ann --cwd /srv

At the beginning of a line: `~.` ends the shell, `~d` detaches from it (it runs on; see `sandbox attach`), `~~` is a `~`, `~?` helps.
The exit code is the shell's own; 255 after `~.`.")]
    Shell(exec::Shell),
    /// List the commands of a sandbox, those that ended too
    Ps {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Read a command on that runs, or has ended
    #[command(after_help = "Examples:
  rhizome sandbox attach bench 5f0e4c9b2a7d1163
  rhizome sandbox attach bench 5f0e --new

Whoever read the command before does not any more. What it said while nobody read is kept up to 16 MiB, and what is lost of it is said.
When this client goes away, a command that is not kept is killed.")]
    Attach(programs::Attach),
    /// Signal a command of a sandbox
    Signal(programs::Signal),
    /// Reach ports of a sandbox on this machine
    #[command(after_help = "Examples:
  rhizome sandbox forward bench 8000
  rhizome sandbox forward bench 18000:8000 0:5432")]
    Forward(forward::Forward),
    /// Print what changes in a directory of a sandbox, as it happens
    WatchDir(watch::Watch),
    /// Copy files between this machine and a sandbox, directories whole
    #[command(after_help = "Examples:
  rhizome sandbox cp project bench:/root/project
  rhizome sandbox cp bench:/root/report.txt .")]
    Cp(copy::Copy),
    /// List the sandboxes of this node, or of all
    List {
        /// Ask every node that is connected for those that this one may use
        #[arg(long)]
        all: bool,
        /// Include those that have been killed
        #[arg(long)]
        ended: bool,
    },
    /// Show a sandbox, also one that sleeps on another node
    Show {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Print what a sandbox's console said
    Logs {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Hold sandboxes: their processors stand still, their memory stays
    Pause(lifecycle::Some_),
    /// Let paused sandboxes go on, with their clocks set
    Unpause(lifecycle::Some_),
    /// Shut sandboxes down and keep their disks
    Stop(lifecycle::Some_),
    /// Boot stopped sandboxes again
    Start(lifecycle::Some_),
    /// Write a sandbox down as it is; it goes on
    #[command(after_help = "Examples:
  rhizome sandbox snapshot bench
  rhizome sandbox snapshot bench --hook 'pg_ctl checkpoint' --deadline 1m")]
    Snapshot(lifecycle::Snapshot),
    /// Put a sandbox to sleep: memory, programs, files and all, at no cost
    #[command(after_help = "Examples:
  rhizome sandbox hibernate bench
  rhizome sandbox hibernate bench --replicas 2
  rhizome sandbox hibernate bench --wake-on time=2h --wake-on 'memory=build green'
  rhizome sandbox hibernate bench --wake-on webhook

Whichever comes first wakes it, on one of the nodes that hold a copy, also when this one is gone.
What woke it is in /run/rhizome/wake.json in the sandbox, and what was sent to its webhook in /run/rhizome/wake.body.")]
    Hibernate(lifecycle::Hibernate),
    /// Show and change what wakes a sandbox that sleeps
    #[command(subcommand)]
    WakeOn(wake_on::Verb),
    /// Wake sandboxes that sleep here; they go on where they were
    #[command(after_help = "Examples:
  rhizome sandbox resume bench
  rhizome sandbox resume bench --force    also where something it relies on is missing")]
    Resume(lifecycle::Resume),
    /// Make copies of a sandbox that go on beside it
    #[command(after_help = "Examples:
  rhizome sandbox fork bench
  rhizome sandbox fork bench -n 20 --name try --lease 1h --on-lease-end kill")]
    Fork(lifecycle::Fork),
    /// Say how long a sandbox lives when nobody asks for more
    #[command(after_help = "Examples:
  rhizome sandbox lease bench 8h
  rhizome sandbox lease bench 8h --then kill
  rhizome sandbox lease bench 1h --renew        an hour more at least, never less than it has
  rhizome sandbox lease bench none

Running commands in a sandbox renews no lease.")]
    Lease(lifecycle::Lease),
    /// Ask a sandbox's guest whether it answers
    Health {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Show and change what a sandbox may reach
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Guests that wait, booted already, for the next sandbox of their image and size
    #[command(subcommand)]
    Pool(pool::Verb),
    /// Show what a sandbox tried to reach and may not
    Denials {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// End sandboxes and all that is in them
    Kill {
        /// Name, id or unique prefix of one
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
}

/// What to boot.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// A name, unique among the living
    #[arg(long)]
    name: Option<String>,
    /// `minimal`, `debian` or an image id
    #[arg(long, default_value = "minimal")]
    image: String,
    /// Memory in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Virtual CPUs
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
    /// Agent it works for, by name or id; without one its door stays shut
    #[arg(long)]
    agent: Option<String>,
    /// Space it may use, the first being its default; repeat for several
    #[arg(long = "space", value_name = "SPACE")]
    spaces: Vec<String>,
    /// Environment of every command in it; repeat for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::memory::field)]
    env: Vec<(String, String)>,
    /// Label; repeat for several
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = super::memory::field)]
    labels: Vec<(String, String)>,
    /// What you rely on in its runtime, such as `python3>=3.11`; repeat for several
    #[arg(long = "requires", value_name = "REQUIREMENT")]
    requires: Vec<String>,
    #[command(flatten)]
    lease: lifecycle::LeaseArgs,
    #[command(flatten)]
    network: policy::NetworkArgs,
}

pub(crate) async fn run(context: &Context, args: Sandboxing) -> Result<(), Failure> {
    let Sandboxing { on, verb } = args;
    let there = on.map(|node| Context {
        client: context.client.on(&node),
        ..context.clone()
    });
    let context = there.as_ref().unwrap_or(context);
    match verb {
        Verb::Create(args) => create(context, args).await,
        Verb::Exec(args) => exec::run(context, args).await,
        Verb::Shell(args) => exec::shell(context, args).await,
        Verb::Ps { sandbox } => programs::list(context, &sandbox).await,
        Verb::Attach(args) => programs::attach(context, args).await,
        Verb::Signal(args) => programs::signal(context, args).await,
        Verb::Forward(args) => forward::run(context, args).await,
        Verb::WatchDir(args) => watch::run(context, args).await,
        Verb::Cp(args) => copy::run(context, args).await,
        Verb::List { all, ended } => list(context, all, ended).await,
        Verb::Logs { sandbox } => logs(context, &sandbox).await,
        Verb::Pause(args) => lifecycle::word(context, args, "pause").await,
        Verb::Unpause(args) => lifecycle::word(context, args, "unpause").await,
        Verb::Stop(args) => lifecycle::word(context, args, "stop").await,
        Verb::Start(args) => lifecycle::start(context, args).await,
        Verb::Snapshot(args) => lifecycle::snapshot(context, args).await,
        Verb::Hibernate(args) => lifecycle::hibernate(context, args).await,
        Verb::WakeOn(verb) => wake_on::run(context, verb).await,
        Verb::Show { sandbox } => wake_on::show(context, &sandbox).await,
        Verb::Resume(args) => lifecycle::resume(context, args).await,
        Verb::Fork(args) => lifecycle::fork(context, args).await,
        Verb::Lease(args) => lifecycle::lease(context, args).await,
        Verb::Health { sandbox } => lifecycle::health(context, &sandbox).await,
        Verb::Policy(verb) => policy::run(context, verb).await,
        Verb::Pool(verb) => pool::run(context, verb).await,
        Verb::Denials { sandbox } => policy::denials(context, &sandbox).await,
        Verb::Kill { sandboxes } => kill(context, &sandboxes).await,
    }
}

/// Returns the path of a sandbox in the API.
fn path_of(sandbox: &str) -> String {
    format!("/v1/sandboxes/{}", encode(sandbox))
}

async fn create(context: &Context, args: Create) -> Result<(), Failure> {
    let body = SandboxBody {
        name: args.name,
        image: Some(args.image),
        memory_mib: args.memory,
        vcpus: args.vcpus,
        env: args.env.into_iter().collect::<BTreeMap<_, _>>(),
        agent: args.agent,
        spaces: args.spaces,
        requires: args.requires,
        lease: args.lease.body(),
        labels: args.labels.into_iter().collect::<BTreeMap<_, _>>(),
        secrets: args.network.secrets.clone(),
        network: args.network.policy()?,
    };
    let lines = context.client.post_lines("/v1/sandboxes", &body).await?;
    let created: SandboxCreated = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&created);
    }
    let Sandbox {
        id,
        name,
        image,
        boot_ms,
        accel,
        node,
        ..
    } = &created.sandbox;
    let on = node
        .as_ref()
        .filter(|_| context.client.is_elsewhere())
        .map_or_else(String::new, |node| format!(" on {node}"));
    let name = name
        .as_ref()
        .map_or_else(String::new, |name| format!(" named {name}"));
    let boot = boot_ms.map_or_else(String::new, |ms| {
        format!(
            ", up in {:.1} s",
            std::time::Duration::from_millis(ms).as_secs_f64()
        )
    });
    context.ui.line(&format!(
        "sandbox {id}{name} runs {image}{on} ({accel}{boot})"
    ))
}

async fn list(context: &Context, all: bool, ended: bool) -> Result<(), Failure> {
    let path = with_query("/v1/sandboxes", &[("all", all.then(|| "1".to_owned()))]);
    let answer: Sandboxes = context.client.get(&path).await?;
    let shown = answer
        .sandboxes
        .into_iter()
        .filter(|sandbox| ended || sandbox.state != "killed");
    let now = now_ms();
    let columns = [
        "sandbox", "name", "node", "image", "state", "accel", "memory", "agent", "created",
    ];
    let none = "no sandboxes; boot one with `rhizome sandbox create`";
    context
        .ui
        .list(&shown.collect::<Vec<_>>(), none, columns, |sandbox| {
            let reason = sandbox
                .reason
                .as_ref()
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default();
            [
                short(&sandbox.id),
                sandbox.name.clone().unwrap_or_else(|| "-".to_owned()),
                sandbox
                    .node
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), ToString::to_string),
                sandbox.image.clone(),
                format!("{}{reason}{}", sandbox.state, rest(sandbox)),
                sandbox.accel.clone(),
                format!("{} MiB", sandbox.memory_mib),
                sandbox
                    .agent
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), ToString::to_string),
                ago(now, sandbox.created_ms),
            ]
        })?;
    for silent in &answer.unanswered {
        let said = format!("node {} did not answer: {}", silent.node, silent.problem);
        context.ui.status(&said);
    }
    Ok(())
}

/// Returns what a sandbox that sleeps waits for, and how far its copies are there.
fn rest(sandbox: &Sandbox) -> String {
    let mut said = Vec::new();
    if !sandbox.wake_on.is_empty() {
        said.push(wake_on::until(&sandbox.wake_on));
    }
    if sandbox.state == "hibernated" {
        said.extend(sandbox.copies.as_ref().and_then(wake_on::copies));
    }
    if let Some(arriving) = &sandbox.arriving {
        said.push(format!(
            "{} MiB of its disk on their way",
            arriving.left >> 20
        ));
    }
    match said.is_empty() {
        true => String::new(),
        false => format!(" {}", said.join("; ")),
    }
}

async fn logs(context: &Context, sandbox: &str) -> Result<(), Failure> {
    let response = context
        .client
        .download(&format!("{}/logs", path_of(sandbox)))
        .await?;
    let mut said = Vec::new();
    // The console's log is bounded by the node; a guest's escape sequences are not for our terminal.
    reader(response.into_body()).read_to_end(&mut said).await?;
    context
        .ui
        .line(plain(&String::from_utf8_lossy(&said).replace('\r', "")).trim_end())
}

async fn kill(context: &Context, sandboxes: &[String]) -> Result<(), Failure> {
    for sandbox in sandboxes {
        let done: Done = context.client.delete(&path_of(sandbox)).await?;
        if context.ui.is_json() {
            context.ui.object(&done)?;
        } else {
            context.ui.line(&format!("killed {sandbox}"))?;
        }
    }
    Ok(())
}
