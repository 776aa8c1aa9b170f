//! `rhizome sandbox exec` and `shell`: a command in a sandbox, as if it ran here.

use std::{collections::BTreeMap, io::IsTerminal};

use clap::Args;

use super::{Context, Failure, path_of, session::Session, terminal};
use crate::{
    api::{
        exec_frame::PROTOCOL,
        types::sandbox::{ExecBody, ExecStarted, Pty},
    },
    cli::commands::{memory::field, seconds},
};

/// The size of a terminal that does not tell its own.
const USUAL_SIZE: Pty = Pty {
    rows: 24,
    columns: 80,
};
/// The user's own shell if the sandbox has it, as a login shell.
const SHELL: &str = r#"if [ -x "$SHELL" ]; then exec "$SHELL" -l; fi; exec sh -l"#;

/// Who runs it, where and for how long.
#[derive(Debug, Args)]
pub(crate) struct Setting {
    /// Working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User, by name or number; root by default
    #[arg(short, long)]
    user: Option<String>,
    /// Environment; repeat for several
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = field)]
    env: Vec<(String, String)>,
    /// Kill it, and all that it started, after this long: 30s, 5m
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    timeout: Option<u64>,
    /// Let it run on when this client goes away
    #[arg(long)]
    keep: bool,
}

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Send standard input to the command
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Run it on a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// Start it, print its id, and let it run
    #[arg(short, long, conflicts_with_all = ["stdin", "tty"])]
    detach: bool,
    #[command(flatten)]
    setting: Setting,
    /// Program and arguments
    #[arg(last = true, required = true)]
    argv: Vec<String>,
}

/// Where to work.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// Name, id or unique prefix of one
    sandbox: String,
    #[command(flatten)]
    setting: Setting,
    /// Program and arguments instead of the user's shell
    #[arg(last = true)]
    argv: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Exec) -> Result<(), Failure> {
    let mut body = body(args.setting, args.argv);
    body.stdin = args.stdin;
    if args.detach {
        body.detach = true;
        let path = format!("{}/exec", path_of(&args.sandbox));
        let started: ExecStarted = context.client.post(&path, &body).await?;
        if context.ui.is_json() {
            return context.ui.object(&started);
        }
        return context.ui.line(&started.id);
    }
    if args.tty {
        on_terminal(&mut body);
    }
    start(context, args.sandbox, body).await
}

pub(crate) async fn shell(context: &Context, args: Shell) -> Result<(), Failure> {
    let argv = if args.argv.is_empty() {
        ["sh", "-c", SHELL].map(str::to_owned).to_vec()
    } else {
        args.argv
    };
    let mut body = body(args.setting, argv);
    body.stdin = true;
    // Like ssh: a shell that is fed from a file has no terminal.
    if std::io::stdin().is_terminal() {
        on_terminal(&mut body);
    }
    start(context, args.sandbox, body).await
}

fn body(setting: Setting, argv: Vec<String>) -> ExecBody {
    ExecBody {
        argv,
        env: setting.env.into_iter().collect::<BTreeMap<_, _>>(),
        cwd: setting.cwd,
        user: setting.user,
        timeout_ms: setting.timeout.map(|seconds| seconds.saturating_mul(1000)),
        keep: setting.keep,
        ..ExecBody::default()
    }
}

fn on_terminal(body: &mut ExecBody) {
    body.pty = Some(terminal::size().unwrap_or(USUAL_SIZE));
    if let Ok(term) = std::env::var("TERM") {
        body.env.entry("TERM".to_owned()).or_insert(term);
    }
}

async fn start(context: &Context, sandbox: String, mut body: ExecBody) -> Result<(), Failure> {
    // Drawn here, so that it can be asked for again whatever becomes of the answer.
    let exec = draw_id()?;
    body.id = Some(exec.clone());
    let path = format!("{}/exec", path_of(&sandbox));
    let connection = context.client.upgrade(&path, PROTOCOL, &body).await?;
    let session = Session {
        context,
        sandbox,
        exec,
        input: body.stdin,
        pty: body.pty.is_some(),
        position: 0,
    };
    session.run(connection).await
}

fn draw_id() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(format!("{:016x}", u64::from_be_bytes(bytes)))
}
