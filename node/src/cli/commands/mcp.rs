//! `rhizome mcp`: the standard streams of a client of MCP, carried to the daemon and back.
mod clients;
mod edit;
mod install;

use clap::{Args, Subcommand};
use tokio::io::{AsyncWriteExt, copy};

use super::{Context, Failure};
use crate::{cli::client::with_query, mcp::PIPE_PROTOCOL};

/// Serve MCP on the standard streams, or set up a client to do so
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  rhizome mcp                                  what a client of MCP starts
  rhizome mcp --profile native,kg --space findings
  rhizome mcp --profile kg,mem0 --prefix       both have `delete_entities`
  rhizome mcp install claude-code              write that into a client's configuration
  rhizome mcp install --list"
)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    scope: Scope,
}

/// What a client may touch; each narrows what the socket allows.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Scope {
    /// Sets of tools to serve, with commas between; `native` by default
    #[arg(long, value_name = "NAMES")]
    pub(crate) profile: Option<String>,
    /// Call a tool that two of the profiles have by its profile too, such as `kg_delete_entities`
    #[arg(long)]
    pub(crate) prefix: bool,
    /// Agent to speak as, by name or id; the node's own by default
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// The only space to read and write, by name or id; all by default
    #[arg(long)]
    pub(crate) space: Option<String>,
    /// Task of what names none
    #[arg(long)]
    pub(crate) task: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add the server to a client's configuration, after showing the change
    #[command(after_help = "Examples:
  rhizome mcp install claude-code --dry-run
  rhizome mcp install cursor --space findings --yes
  rhizome mcp install --list

A file that cannot be changed without risk, such as JSON with comments, is left alone: what to add is
printed instead. What was there is kept beside it, with the ending `.rhizome-backup`.")]
    Install(install::Install),
    /// Take the server out of a client's configuration again
    Uninstall(install::Uninstall),
}

pub(crate) async fn run(context: &Context, args: Mcp) -> Result<(), Failure> {
    match args.verb {
        Some(Verb::Install(wanted)) => install::install(context, wanted),
        Some(Verb::Uninstall(wanted)) => install::uninstall(context, wanted),
        None => serve(context, args.scope).await,
    }
}

async fn serve(context: &Context, scope: Scope) -> Result<(), Failure> {
    let query = [
        ("profile", scope.profile),
        ("prefix", scope.prefix.then(|| "1".to_owned())),
        ("agent", scope.agent),
        ("space", scope.space),
        ("task", scope.task),
    ];
    let path = with_query("/v1/mcp/pipe", &query);
    let pipe = context
        .client
        .upgrade(&path, PIPE_PROTOCOL, &serde_json::json!({}))
        .await?;
    let (mut from_daemon, mut to_daemon) = tokio::io::split(pipe);
    let (mut input, mut output) = (tokio::io::stdin(), tokio::io::stdout());
    let asking = async {
        copy(&mut input, &mut to_daemon).await?;
        to_daemon.shutdown().await?;
        // What was asked is still answered; the daemon then closes.
        std::future::pending::<std::io::Result<()>>().await
    };
    let answering = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::io::AsyncReadExt::read(&mut from_daemon, &mut buffer).await?;
            if read == 0 {
                return Ok::<_, std::io::Error>(());
            }
            output.write_all(&buffer[..read]).await?;
            // A client waits for the answer, not for a full buffer.
            output.flush().await?;
        }
    };
    let ended = tokio::select! {
        ended = asking => ended,
        ended = answering => ended,
    };
    match ended {
        // A client that goes away is how this ends.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended.map_err(Failure::Output),
    }
}
