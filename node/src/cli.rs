//! The command line: `rhizome <noun> <verb>`, every verb through the daemon's local API.

mod client;
mod commands;
mod failure;
mod ui;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

pub(crate) use self::ui::utc;
use self::{
    client::Client,
    commands::{
        agent, api, audit, backup, context, daemon, e2b, image, invite, keys, mcp, member, memory,
        mesh, node, quota, resume, root, runtime, sandbox, secret, snapshot, space, token, usage,
        volume,
    },
    failure::Failure,
    ui::Ui,
};

/// A mesh of sandbox nodes that share memory
#[derive(Debug, Parser)]
#[command(
    name = "rhizome",
    version,
    propagate_version = true,
    after_help = "Examples:
  rhizome up --detach                          start the daemon of this machine
  rhizome init --name lab --space findings     found a mesh with one space
  rhizome invite create --space findings       print an invite for one more node
  rhizome join RHZ1...                         join with an invite
  rhizome memory recall \"how to mend the build\"

Exit codes: 0 done, 1 the request failed, 2 usage, 3 the daemon cannot be reached;
`sandbox exec` passes on the guest command's own code."
)]
struct Cli {
    /// Directory that holds everything the node keeps
    #[arg(
        long,
        global = true,
        visible_alias = "data",
        env = "RHIZOME_DATA",
        value_name = "DIR"
    )]
    data_dir: Option<PathBuf>,

    /// Socket of the daemon, if not the data directory's own
    #[arg(long, global = true, env = "RHIZOME_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON, one object a line
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Found a mesh on this node
    Init(mesh::Init),
    /// Run the daemon
    Up(daemon::Up),
    /// Stop the daemon; sandboxes run on unless something else is said
    #[command(after_help = "Examples:
  rhizome down                          sandboxes run on; the next `rhizome up` takes them over
  rhizome down --sandboxes hibernate    they sleep, at no cost
  rhizome down --sandboxes kill         nothing runs on, also if the daemon is gone already

Without a daemon nobody heeds leases: before removing a node for good, use `--sandboxes kill`.")]
    Down(daemon::Down),
    /// Show what the node is doing
    Status,
    /// Check what the node needs from this machine
    Doctor(daemon::Doctor),
    /// Make, list, close and approve invites
    #[command(subcommand)]
    Invite(invite::Verb),
    /// Join a mesh with an invite
    Join(mesh::Join),
    /// Show who is there, who is gone, and by which path
    Peers(mesh::PeersArgs),
    /// Show what the nodes of the mesh are and have room for
    Nodes,
    /// Wake a sandbox, here or on another node, wherever it went to sleep
    #[command(after_help = "Examples:
  rhizome resume bench
  rhizome resume bench --on any
  rhizome resume bench --on edge")]
    Resume(resume::Resume),
    /// Make and list spaces
    #[command(subcommand)]
    Space(space::Verb),
    /// Make and list agents
    #[command(subcommand)]
    Agent(agent::Verb),
    /// List, approve, revoke and restore the members of the mesh
    #[command(subcommand)]
    Member(member::Verb),
    /// Export, import and replace the root key of the mesh
    #[command(subcommand)]
    Root(root::Verb),
    /// Show and change how the keys of this node lie at rest
    #[command(subcommand)]
    Keys(keys::Verb),
    Backup(backup::Backup),
    Restore(backup::Restore),
    /// Publish, recall and watch memories
    #[command(subcommand)]
    Memory(memory::Verb),
    Mcp(mcp::Mcp),
    /// Checkpoint and resume an agent's working context
    #[command(subcommand)]
    Context(context::Verb),
    /// Create sandboxes and work in them
    Sandbox(sandbox::Sandboxing),
    /// List, show, restore and remove snapshots of sandboxes
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    /// Show what sandboxes are made of, and in what two of them differ
    #[command(subcommand)]
    Runtime(runtime::Verb),
    Audit(audit::Audit),
    Usage(usage::Usage),
    /// Limit what agents and spaces may use of this node
    #[command(subcommand)]
    Quota(quota::Verb),
    /// Keep secrets that sandboxes use without seeing them
    #[command(subcommand)]
    Secret(secret::Verb),
    /// Make, list and revoke tokens that open the API over TCP
    #[command(subcommand)]
    Token(token::Verb),
    /// Keep directory trees that outlive every sandbox
    #[command(subcommand)]
    Volume(volume::Verb),
    /// Build, import, show and remove sandbox images
    #[command(subcommand)]
    Image(image::Verb),
    /// Show how clients of E2B reach this node
    #[command(subcommand)]
    E2b(e2b::Verb),
    /// Show how the daemon is set up
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Describe the API of the daemon
    #[command(subcommand)]
    Api(api::Verb),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  rhizome completions bash > /etc/bash_completion.d/rhizome")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Show each setting of the running daemon, and where it came from
    Show,
}

/// What every command is handed: the way to the daemon, and to the user.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) ui: Ui,
    pub(crate) data_dir: Option<PathBuf>,
}

/// Parses the command line, runs the command, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe while help is printed is no error of the user's.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(cli));
            // A thread that still reads standard input must not keep a finished command alive.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::Output(error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.exit_code()
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let ui = Ui::new(cli.json);
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "rhizome", &mut script);
        return ui.line(String::from_utf8_lossy(&script).trim_end());
    }
    let socket = cli
        .socket
        .unwrap_or_else(|| daemon::socket_of(cli.data_dir.as_deref()));
    let context = Context {
        client: Client::new(socket),
        ui,
        data_dir: cli.data_dir,
    };
    let context = &context;
    match cli.command {
        Command::Init(args) => mesh::init(context, args).await,
        Command::Up(args) => daemon::up(context, args).await,
        Command::Down(args) => daemon::down(context, args).await,
        Command::Status => daemon::status(context).await,
        Command::Doctor(args) => daemon::doctor(context, args).await,
        Command::Snapshot(verb) => snapshot::run(context, verb).await,
        Command::Invite(verb) => invite::run(context, verb).await,
        Command::Join(args) => mesh::join(context, args).await,
        Command::Peers(args) => mesh::peers(context, args).await,
        Command::Nodes => node::nodes(context).await,
        Command::Resume(args) => resume::run(context, args).await,
        Command::Space(verb) => space::run(context, verb).await,
        Command::Agent(verb) => agent::run(context, verb).await,
        Command::Member(verb) => member::run(context, verb).await,
        Command::Root(verb) => root::run(context, verb).await,
        Command::Keys(verb) => keys::run(context, verb).await,
        Command::Backup(args) => backup::backup(context, args).await,
        Command::Restore(args) => backup::restore(context, args).await,
        Command::Memory(verb) => memory::run(context, verb).await,
        Command::Mcp(args) => mcp::run(context, args).await,
        Command::Context(verb) => context::run(context, verb).await,
        Command::Sandbox(args) => sandbox::run(context, args).await,
        Command::Audit(args) => audit::run(context, args).await,
        Command::Usage(args) => usage::run(context, args).await,
        Command::Quota(verb) => quota::run(context, verb).await,
        Command::Secret(verb) => secret::run(context, verb).await,
        Command::Api(verb) => api::run(context, &verb),
        Command::Token(verb) => token::run(context, verb).await,
        Command::Volume(verb) => volume::run(context, verb).await,
        Command::Image(verb) => image::run(context, verb).await,
        Command::Runtime(verb) => runtime::run(context, verb).await,
        Command::E2b(verb) => e2b::run(context, verb).await,
        Command::Config(ConfigVerb::Show) => daemon::config_show(context).await,
        Command::Completions { .. } => unreachable!("answered above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
