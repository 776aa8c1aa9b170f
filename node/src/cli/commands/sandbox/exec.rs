//! `rhizome sandbox exec`: a command in a sandbox, as if it ran here.

use std::io;

use bytes::Bytes;
use clap::Args;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::codec::Framed;

use super::{Context, Failure, path_of};
use crate::{
    api::{
        exec_frame::{Frame, FrameCodec, FrameError, PROTOCOL},
        types::{
            ErrorInfo,
            sandbox::{ExecBody, ExecEnd},
        },
    },
    cli::commands::{memory::field, seconds},
};

/// Frames read from standard input ahead of the daemon, 64 KiB each at most.
const INPUT_QUEUE_FRAMES: usize = 4;
/// The exit code of a command that ran out of time, as of `timeout(1)`.
const TIMED_OUT: u8 = 124;

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Send standard input to the command
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User, by name or number; root by default
    #[arg(short, long)]
    user: Option<String>,
    /// Environment; repeat for several
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = field)]
    env: Vec<(String, String)>,
    /// Kill it after this long: 30s, 5m
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    timeout: Option<u64>,
    /// Program and arguments
    #[arg(last = true, required = true)]
    argv: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Exec) -> Result<(), Failure> {
    let body = ExecBody {
        argv: args.argv,
        env: args.env.into_iter().collect(),
        cwd: args.cwd,
        user: args.user,
        stdin: args.stdin,
        timeout_ms: args.timeout.map(|seconds| seconds.saturating_mul(1000)),
    };
    let path = format!("{}/exec", path_of(&args.sandbox));
    let connection = context.client.upgrade(&path, PROTOCOL, &body).await?;
    let (mut sink, mut frames) = Framed::new(connection, FrameCodec).split();
    let mut input = if body.stdin {
        read_input()
    } else {
        mpsc::channel(1).1
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let outgoing = tokio::select! {
            biased; // What the command says first: its end closes everything else.
            frame = frames.next() => {
                match frame {
                    Some(Ok(Frame::End(end))) => return ended(end),
                    Some(Ok(frame)) => output(frame).await?,
                    Some(Err(error)) => return Err(broken(context, error)),
                    None => return Err(Failure::Protocol("the daemon went away while the command ran".to_owned())),
                }
                continue;
            }
            Some(frame) = input.recv() => frame,
            Some(()) = interrupt.recv() => Frame::Signal(SignalKind::interrupt().as_raw_value()),
            Some(()) = terminate.recv() => Frame::Signal(SignalKind::terminate().as_raw_value()),
        };
        sink.send(outgoing)
            .await
            .map_err(|error| broken(context, error))?;
    }
}

async fn output(frame: Frame) -> Result<(), Failure> {
    match frame {
        Frame::Stdout(bytes) => {
            let mut stdout = tokio::io::stdout();
            stdout.write_all(&bytes).await?;
            stdout.flush().await?;
        }
        Frame::Stderr(bytes) => {
            let mut stderr = tokio::io::stderr();
            stderr.write_all(&bytes).await?;
            stderr.flush().await?;
        }
        // The daemon does not send the client's own kinds of frames; one that does is ignored.
        _ => {}
    }
    Ok(())
}

fn ended(end: ExecEnd) -> Result<(), Failure> {
    match end {
        ExecEnd::Code(0) => Ok(()),
        ExecEnd::Code(code) => Err(Failure::Exit(u8::try_from(code).unwrap_or(1))),
        ExecEnd::Signal(signal) => Err(Failure::Exit(u8::try_from(128 + signal).unwrap_or(1))),
        ExecEnd::TimedOut => {
            eprintln!("the command ran out of time and was killed");
            Err(Failure::Exit(TIMED_OUT))
        }
        ExecEnd::Error(ErrorInfo {
            code,
            message,
            causes,
            hint,
        }) => Err(Failure::Refused {
            code,
            message,
            causes,
            hint,
        }),
    }
}

/// Reads standard input in a task of its own; the queue's bound is the back-pressure.
fn read_input() -> mpsc::Receiver<Frame> {
    let (sender, receiver) = mpsc::channel(INPUT_QUEUE_FRAMES);
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; crate::api::exec_frame::MAX_PAYLOAD_BYTES];
        loop {
            let frame = match stdin.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => Frame::Stdin(Bytes::copy_from_slice(&buffer[..length])),
            };
            if sender.send(frame).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Frame::StdinEnd).await;
    });
    receiver
}

fn broken(context: &Context, error: FrameError) -> Failure {
    let source = io::Error::other(error);
    Failure::File {
        path: context.client.socket().to_owned(),
        source,
    }
}
