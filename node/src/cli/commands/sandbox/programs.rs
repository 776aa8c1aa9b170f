//! `rhizome sandbox ps|attach|signal`: commands that run on without a client.

use std::time::Duration;

use clap::Args;
use futures::StreamExt;
use rhizome_memory::now_ms;
use tokio_util::codec::Framed;

use super::{
    Context, Failure, path_of,
    session::{Session, attach as attach_to},
};
use crate::{
    api::{
        exec_frame::{Frame, FrameCodec},
        types::{
            Done,
            sandbox::{AttachBody, Exec, ExecEnd, Execs, SignalBody},
        },
    },
    cli::{
        client::encode,
        ui::{ago, plain, size},
    },
};

/// Signals that have a name here, as Linux numbers them.
const SIGNALS: [(&str, i32); 12] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("WINCH", 28),
];
/// Characters of a command line that a table shows.
const SHOWN: usize = 60;

/// What to read on.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Id of a command, or a unique prefix of it
    exec: String,
    /// Send standard input to the command
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Show only what comes from now on
    #[arg(long)]
    new: bool,
}

/// What to signal.
#[derive(Debug, Args)]
pub(crate) struct Signal {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Id of a command, or a unique prefix of it
    exec: String,
    /// A signal's name or number; KILL ends all that the command started
    #[arg(value_parser = signal_number, default_value = "TERM")]
    signal: i32,
}

pub(crate) async fn list(context: &Context, sandbox: &str) -> Result<(), Failure> {
    let answer: Execs = context
        .client
        .get(&format!("{}/execs", path_of(sandbox)))
        .await?;
    let now = now_ms();
    let columns = [
        "exec", "state", "user", "ran", "output", "started", "command",
    ];
    let none = "no commands; start one with `rhizome sandbox exec`";
    context.ui.list(&answer.execs, none, columns, |exec| {
        let command: String = plain(&exec.command).chars().take(SHOWN).collect();
        [
            exec.id.clone(),
            state(exec),
            plain(&exec.user),
            ran(Duration::from_millis(exec.ran_ms)),
            size(exec.position),
            ago(now, exec.started_ms),
            command,
        ]
    })
}

pub(crate) async fn attach(context: &Context, args: Attach) -> Result<(), Failure> {
    let body = AttachBody {
        from: 0,
        new_only: args.new,
    };
    let connection = attach_to(context, &args.sandbox, &args.exec, &body).await?;
    // The first frame says what it is that was attached; the session gets the rest.
    let mut framed = Framed::new(connection, FrameCodec);
    let attached = match framed.next().await {
        Some(Ok(Frame::Attached(attached))) => attached,
        Some(Ok(Frame::End(end))) => return super::session::ended(end),
        _ => {
            let what = "it does not say what was attached".to_owned();
            return Err(Failure::Protocol(what));
        }
    };
    if attached.gap > 0 {
        let gap = size(attached.gap);
        context
            .ui
            .status(&format!("the first {gap} of its output are lost"));
    }
    // A terminal wants the user's, if there is one.
    let input = attached.stdin && (args.stdin || attached.pty);
    let session = Session {
        context,
        sandbox: args.sandbox,
        exec: attached.id,
        input,
        pty: attached.pty,
        position: attached.position,
    };
    session.run_framed(framed).await
}

pub(crate) async fn signal(context: &Context, args: Signal) -> Result<(), Failure> {
    let path = format!(
        "{}/execs/{}/signal",
        path_of(&args.sandbox),
        encode(&args.exec)
    );
    let body = SignalBody {
        signal: args.signal,
    };
    let done: Done = context.client.post(&path, &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&done);
    }
    Ok(())
}

fn state(exec: &Exec) -> String {
    match &exec.end {
        Some(ExecEnd::Code(code)) => format!("exit {code}"),
        Some(ExecEnd::Signal(signal)) => {
            let named = SIGNALS.iter().find(|(_, number)| number == signal);
            named.map_or_else(
                || format!("signal {signal}"),
                |(name, _)| format!("SIG{name}"),
            )
        }
        Some(ExecEnd::TimedOut) => "timed out".to_owned(),
        Some(ExecEnd::Error(_)) => "failed".to_owned(),
        None if exec.attached => "attached".to_owned(),
        None if exec.keep => "kept".to_owned(),
        None => "waiting".to_owned(),
    }
}

fn ran(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

fn signal_number(text: &str) -> Result<i32, String> {
    if let Ok(number @ 1..=31) = text.parse() {
        return Ok(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS.iter().find(|(known, _)| *known == name);
    known
        .map(|(_, number)| *number)
        .ok_or_else(|| format!("`{text}` is no signal such as TERM, SIGKILL or 15"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(signal_number(text), Ok(15), "{text}");
        }
        for text in ["", "0", "32", "-9", "NOPE"] {
            assert!(signal_number(text).is_err(), "{text}");
        }
    }
}
