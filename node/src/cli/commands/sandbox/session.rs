//! The client's side of a command: its streams here, the user's keys there, until its end.

use std::{
    io,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tokio_util::codec::Framed;

use super::{
    Context, Failure, path_of,
    terminal::{self, Escapes, Order, Raw},
};
use crate::{
    api::{
        exec_frame::{Frame, FrameCodec, FrameError, MAX_PAYLOAD_BYTES, PROTOCOL},
        types::{
            ErrorInfo,
            sandbox::{AttachBody, ExecAttached, ExecEnd},
        },
    },
    cli::client::encode,
};

/// Pieces of standard input read ahead of the daemon, 64 KiB each at most.
const INPUT_QUEUE: usize = 4;
/// The exit code of a command that ran out of time, as of `timeout(1)`.
const TIMED_OUT: u8 = 124;
/// The exit code of a command that the user left, as of `ssh(1)`.
const LEFT: u8 = 255;
/// How long a daemon that went away may take to come back.
const BACK_WITHIN: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_millis(200);
const ORDERS: &str = "~.  end it\r\n~d  detach: it runs on, and `sandbox attach` finds it again\r\n~~  a `~`\r\n~?  this\r\n";

pub(super) type Connection = TokioIo<hyper::upgrade::Upgraded>;
pub(super) type Frames = Framed<Connection, FrameCodec>;

/// A command that is read here.
pub(super) struct Session<'a> {
    pub(super) context: &'a Context,
    pub(super) sandbox: String,
    /// Its id.
    pub(super) exec: String,
    /// Whether standard input goes to it.
    pub(super) input: bool,
    /// Whether it has a terminal, and so the user's if there is one.
    pub(super) pty: bool,
    /// Bytes of its output seen here, of both kinds together.
    pub(super) position: u64,
}

/// How one connection ended.
enum Over {
    Ended(ExecEnd),
    Left,
    Detached,
    Lost,
    /// This signal ended us.
    Signal(SignalKind),
}

/// What comes from the user, over all connections.
struct User {
    keys: Option<mpsc::Receiver<Bytes>>,
    /// Standard input has ended, which every daemon must be told.
    ended: bool,
    raw: Option<Raw>,
    escapes: Escapes,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    resized: Signal,
    continued: Signal,
}

impl Session<'_> {
    /// Carries the command's streams to its end. If the daemon goes away, the next one is asked
    /// for what is missing.
    pub(super) async fn run(self, connection: Connection) -> Result<(), Failure> {
        self.run_framed(Framed::new(connection, FrameCodec)).await
    }

    /// As [`Self::run`], with a connection on which frames were read already.
    pub(super) async fn run_framed(mut self, mut connection: Frames) -> Result<(), Failure> {
        let raw = if self.pty && self.input {
            Raw::enter()?
        } else {
            None
        };
        let mut user = User {
            keys: self.input.then(read_input),
            ended: false,
            raw,
            escapes: Escapes::new(),
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
            // SIGCONT: another program may have had the terminal.
            continued: signal(SignalKind::from_raw(18))?,
        };
        loop {
            let over = self.drive(connection, &mut user).await?;
            if !matches!(over, Over::Lost) {
                // Before anything is said: the terminal is as it was.
                drop(user.raw.take());
            }
            match over {
                Over::Ended(end) => return ended(end),
                Over::Left => return Err(Failure::Exit(LEFT)),
                Over::Signal(kind) => {
                    let code = 128_i32.saturating_add(kind.as_raw_value());
                    return Err(Failure::Exit(u8::try_from(code).unwrap_or(1)));
                }
                Over::Detached => {
                    let (sandbox, exec) = (&self.sandbox, &self.exec);
                    self.context.ui.status(&format!(
                        "detached; `rhizome sandbox attach {sandbox} {exec}` goes on"
                    ));
                    return Ok(());
                }
                Over::Lost => {
                    let again = self.attach_again(&user).await?;
                    connection = Framed::new(again, FrameCodec);
                }
            }
        }
    }

    /// Carries the streams over one connection.
    async fn drive(&mut self, connection: Frames, user: &mut User) -> Result<Over, Failure> {
        let (mut sink, mut frames) = connection.split();
        if self.pty
            && let Some(size) = terminal::size()
        {
            // It may have changed since it was asked for.
            let _ = sink.send(Frame::Resize(size)).await;
        }
        if user.ended {
            // The last daemon may have died before it passed that on.
            let _ = sink.send(Frame::StdinEnd).await;
        }
        let mut leaving = None;
        loop {
            let outgoing = tokio::select! {
                biased; // What the command says first: its end closes everything else.
                frame = frames.next() => {
                    match frame {
                        Some(Ok(Frame::End(end))) => return Ok(Over::Ended(end)),
                        Some(Ok(frame)) => self.take(frame, user).await?,
                        Some(Err(FrameError::Io(_))) | None => {
                            return Ok(leaving.unwrap_or(Over::Lost));
                        }
                        Some(Err(error)) => return Err(broken(self.context, error)),
                    }
                    continue;
                }
                keys = next_keys(&mut user.keys), if leaving.is_none() => match keys {
                    Some(keys) if user.raw.is_some() => {
                        let (keys, order) = user.escapes.take(&keys);
                        if !keys.is_empty() && sink.send(Frame::Stdin(keys.into())).await.is_err() {
                            continue;
                        }
                        match order {
                            None => continue,
                            Some(Order::End) => return Ok(Over::Left),
                            Some(Order::Detach) => {
                                leaving = Some(Over::Detached);
                                Frame::Detach
                            }
                            Some(Order::Help) => {
                                self.say(ORDERS);
                                continue;
                            }
                        }
                    }
                    Some(keys) => Frame::Stdin(keys),
                    None => {
                        user.keys = None;
                        user.ended = true;
                        Frame::StdinEnd
                    }
                },
                Some(()) = user.resized.recv(), if self.pty => match terminal::size() {
                    Some(size) => Frame::Resize(size),
                    None => continue,
                },
                Some(()) = user.continued.recv(), if self.pty => {
                    if let Some(raw) = &user.raw {
                        raw.again()?;
                    }
                    match terminal::size() {
                        Some(size) => Frame::Resize(size),
                        None => continue,
                    }
                }
                // In raw mode ^C is a key; a signal is somebody else's, and meant for us.
                Some(()) = user.interrupt.recv() => Frame::Signal(SignalKind::interrupt().as_raw_value()),
                Some(()) = user.terminate.recv() => {
                    if user.raw.is_some() {
                        return Ok(Over::Signal(SignalKind::terminate()));
                    }
                    Frame::Signal(SignalKind::terminate().as_raw_value())
                }
                Some(()) = user.hangup.recv() => return Ok(Over::Signal(SignalKind::hangup())),
            };
            // A connection that takes no more shows its end, or its loss, on the other direction.
            let _ = sink.send(outgoing).await;
        }
    }

    /// Takes what the daemon says.
    async fn take(&mut self, frame: Frame, user: &User) -> Result<(), Failure> {
        match frame {
            Frame::Stdout(bytes) => {
                self.position += bytes.len() as u64;
                let mut stdout = tokio::io::stdout();
                stdout.write_all(&bytes).await?;
                stdout.flush().await?;
            }
            Frame::Stderr(bytes) => {
                self.position += bytes.len() as u64;
                let mut stderr = tokio::io::stderr();
                stderr.write_all(&bytes).await?;
                stderr.flush().await?;
            }
            Frame::Attached(ExecAttached { position, gap, .. }) => {
                if gap > 0 {
                    let end = if user.raw.is_some() { "\r\n" } else { "\n" };
                    self.say(&format!("[{gap} bytes of output are lost]{end}"));
                }
                self.position = position;
            }
            // The daemon does not send the client's own kinds of frames; one that does is ignored.
            _ => {}
        }
        Ok(())
    }

    /// Waits for the next daemon and reads on where the last one stopped.
    async fn attach_again(&self, user: &User) -> Result<Connection, Failure> {
        let end = if user.raw.is_some() { "\r\n" } else { "\n" };
        self.say(&format!("[the daemon went away; waiting for it]{end}"));
        let body = AttachBody {
            from: self.position,
            new_only: false,
        };
        let until = Instant::now() + BACK_WITHIN;
        loop {
            let error = match attach(self.context, &self.sandbox, &self.exec, &body).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let waits = match &error {
                Failure::Unreachable { .. } | Failure::Broken { .. } => true,
                // Its sandboxes are not all there yet.
                Failure::Refused { code, .. } => code == "sandbox_gone" || code == "stopping",
                _ => false,
            };
            if !waits || Instant::now() > until {
                return Err(error);
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Says something in the middle of the command's own output.
    fn say(&self, text: &str) {
        eprint!("{text}");
    }
}

/// Attaches a command.
pub(super) async fn attach(
    context: &Context,
    sandbox: &str,
    exec: &str,
    body: &AttachBody,
) -> Result<Connection, Failure> {
    let path = format!("{}/execs/{}/attach", path_of(sandbox), encode(exec));
    context.client.upgrade(&path, PROTOCOL, body).await
}

pub(super) fn ended(end: ExecEnd) -> Result<(), Failure> {
    match end {
        ExecEnd::Code(0) => Ok(()),
        ExecEnd::Code(code) => Err(Failure::Exit(u8::try_from(code).unwrap_or(1))),
        ExecEnd::Signal(signal) => Err(Failure::Exit(
            u8::try_from(signal.saturating_add(128)).unwrap_or(1),
        )),
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

async fn next_keys(keys: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match keys {
        Some(keys) => keys.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads standard input in a task of its own; the queue's bound is the back-pressure.
fn read_input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(INPUT_QUEUE);
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; MAX_PAYLOAD_BYTES];
        while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
            let keys = Bytes::copy_from_slice(&buffer[..length]);
            if sender.send(keys).await.is_err() {
                return;
            }
        }
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
