//! Commands in the guest: their events, their input, their end.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rhizome_guest::wire::{
    Attached, Exec, ExecId, Exit, Frame, Kind, MAX_PAYLOAD, Payload, PtySize, Signal,
    contains_magic,
};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    ExecError,
    mux::{self, Purpose, Sender, Shared, Stream},
};

/// Events that wait between the channel and whoever reads them; the rest waits in the window.
const EVENT_QUEUE: usize = 2;

/// A command to run in a guest.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, over the guest's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home, or `/`, if not given.
    pub cwd: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; root if not given.
    pub user: Option<String>,
    /// Whether standard input will be written; otherwise it is empty.
    pub stdin: bool,
    /// Time after which the command is killed, with all that it started.
    pub timeout: Option<Duration>,
    /// The terminal that it runs on, if any. Standard error is then part of standard output, and
    /// `TERM` is what the environment says, or `xterm-256color`.
    pub pty: Option<PtySize>,
    /// Whether it runs on when nobody reads it any more.
    pub keep: bool,
    /// Its id; drawn if not given. No other program that the guest remembers may have it.
    pub id: Option<ExecId>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It ran out of time and was killed.
    TimedOut,
}

/// What a running command says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// The end; nothing comes after it.
    Exit(ExitStatus),
}

/// A running command, and the one reader that it has.
///
/// Dropping it kills the command and all that it started, unless it is kept. The end of the
/// channel does not: the guest then holds what the command says, and a new channel can
/// [`attach`](super::GuestChannel::attach) it; a command that is not kept waits a minute for that.
/// Output that nobody takes holds up the command, and nothing else.
#[derive(Debug)]
pub struct ExecHandle {
    /// What the command says: output in order, then one [`ExecEvent::Exit`], or one error.
    pub events: mpsc::Receiver<Result<ExecEvent, ExecError>>,
    input: ExecInput,
    id: ExecId,
    attached: Attached,
    left: CancellationToken,
}

/// What can be said to a running command; it clones, and may outlive the handle.
#[derive(Debug, Clone)]
pub struct ExecInput(Sender);

impl ExecHandle {
    /// Returns the command's id, by which it can be attached again.
    #[must_use]
    pub fn id(&self) -> ExecId {
        self.id
    }

    /// Returns what this reader gets to see: from which byte on, and how many are lost.
    #[must_use]
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// Lets go of the command without ending it: it is kept from now on.
    ///
    /// # Errors
    /// [`ExecError::NoSuchExec`] if its end was forgotten, [`ExecError::SandboxGone`]. The command
    /// is then ended, or lost.
    pub async fn detach(self) -> Result<(), ExecError> {
        super::programs::keep(self.input.0.shared(), self.id, true).await
    }

    /// Lets go of the command as the end of the channel would: it goes on, and a command that is
    /// not kept waits a minute for its next reader once the channel has ended. For a node that
    /// is about to close its channels.
    pub fn leave(self) {
        self.left.cancel();
    }

    /// Tells the command's terminal its size; without a terminal nothing happens.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn resize(&self, size: PtySize) -> Result<(), ExecError> {
        self.input.resize(size).await
    }

    /// Returns what can be said to the command, apart from its events.
    #[must_use]
    pub fn input(&self) -> ExecInput {
        self.input.clone()
    }

    /// Writes to the command's standard input. See [`ExecInput::write_stdin`].
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn write_stdin(&self, data: impl AsRef<[u8]> + Send) -> Result<(), ExecError> {
        self.input.write_stdin(data).await
    }

    /// Ends the command's standard input.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn close_stdin(&self) -> Result<(), ExecError> {
        self.input.close_stdin().await
    }

    /// Signals the command's process group.
    ///
    /// # Errors
    /// [`ExecError::Invalid`] for a number that is no signal, [`ExecError::Ended`],
    /// [`ExecError::SandboxGone`].
    pub async fn signal(&self, number: i32) -> Result<(), ExecError> {
        self.input.signal(number).await
    }

    /// Kills the command's process group.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn kill(&self) -> Result<(), ExecError> {
        self.signal(9).await
    }

    /// Reads all output and returns it with the status. For commands that say little: more than
    /// `limit_bytes` of either kind is an error.
    ///
    /// # Errors
    /// [`ExecError::TooLarge`], [`ExecError::SandboxGone`].
    pub async fn output(mut self, limit_bytes: usize) -> Result<ExecOutput, ExecError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = self.events.recv().await {
            let (sink, data) = match event? {
                ExecEvent::Stdout(data) => (&mut stdout, data),
                ExecEvent::Stderr(data) => (&mut stderr, data),
                ExecEvent::Exit(status) => {
                    return Ok(ExecOutput {
                        status,
                        stdout,
                        stderr,
                    });
                }
            };
            let size = sink.len() + data.len();
            if size > limit_bytes {
                return Err(ExecError::Output { limit: limit_bytes });
            }
            sink.extend_from_slice(&data);
        }
        Err(mux::misbehaved("a command ended without an end").into())
    }
}

/// All that a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl ExecInput {
    /// Writes to the command's standard input.
    ///
    /// Waits while the command does not read; returns when the last of `data` is on its way.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    ///
    /// # Cancel safety
    /// Some of `data` may have been written.
    pub async fn write_stdin(&self, data: impl AsRef<[u8]> + Send) -> Result<(), ExecError> {
        self.0.data(Kind::Stdin, data.as_ref()).await.map_err(lost)
    }

    /// Ends the command's standard input.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn close_stdin(&self) -> Result<(), ExecError> {
        self.0.plain(Kind::StdinEof, Vec::new()).await.map_err(lost)
    }

    /// Signals the command's process group.
    ///
    /// # Errors
    /// [`ExecError::Invalid`] for a number that is no signal, [`ExecError::Ended`],
    /// [`ExecError::SandboxGone`].
    pub async fn signal(&self, number: i32) -> Result<(), ExecError> {
        checked_signal(number)?;
        self.0
            .plain(Kind::Signal, Signal { number }.to_payload())
            .await
            .map_err(lost)
    }

    /// Tells the command's terminal its size; without a terminal nothing happens.
    ///
    /// # Errors
    /// [`ExecError::Ended`], [`ExecError::SandboxGone`].
    pub async fn resize(&self, size: PtySize) -> Result<(), ExecError> {
        self.0
            .plain(Kind::Resize, size.to_payload())
            .await
            .map_err(lost)
    }
}

pub(super) fn checked_signal(number: i32) -> Result<(), ExecError> {
    if (1..32).contains(&number) {
        return Ok(());
    }
    Err(ExecError::Invalid {
        message: format!("{number} is no signal"),
    })
}

/// A stream that ended alone means that the command did.
fn lost(error: super::ChannelError) -> ExecError {
    match error {
        super::ChannelError::Closed => ExecError::Ended,
        error => error.into(),
    }
}

pub(super) async fn exec(
    shared: &std::sync::Arc<Shared>,
    request: ExecRequest,
) -> Result<ExecHandle, ExecError> {
    let program = request.argv.first().cloned().unwrap_or_default();
    let user = request.user.clone().unwrap_or_default();
    let cwd = request.cwd.clone().unwrap_or_default();
    let id = match request.id {
        Some(id) => id,
        None => draw_id()?,
    };
    let attached = Attached {
        position: 0,
        gap: 0,
        pty: request.pty.is_some(),
        stdin: request.stdin,
    };
    let payload = encode(request, id)?;
    let mut stream = shared.open(Purpose::Exec, Kind::Exec, payload).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Started => {}
        Kind::Failed => {
            return Err(ExecError::from_failure(
                mux::decode(&frame)?,
                &program,
                &user,
                &cwd,
            ));
        }
        _ => return Err(fail(shared, "a command speaks before it starts")),
    }
    Ok(handle(stream, id, attached, program))
}

/// Returns the handle of a program whose output comes on `stream` from now on.
pub(super) fn handle(
    stream: Stream,
    id: ExecId,
    attached: Attached,
    program: String,
) -> ExecHandle {
    let input = ExecInput(stream.sender());
    let (tx, events) = mpsc::channel(EVENT_QUEUE);
    let left = CancellationToken::new();
    tokio::spawn(forward(stream, tx, program, left.clone()));
    ExecHandle {
        events,
        input,
        id,
        attached,
        left,
    }
}

fn draw_id() -> Result<ExecId, ExecError> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| super::ChannelError::io(error.into()))?;
    Ok(ExecId::from_bytes(bytes))
}

fn encode(request: ExecRequest, id: ExecId) -> Result<Vec<u8>, ExecError> {
    let invalid = |message: &str| ExecError::Invalid {
        message: message.to_owned(),
    };
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(invalid("no program is named"));
    }
    let has_nul = |text: &String| text.contains('\0');
    if request.argv.iter().any(has_nul)
        || request
            .env
            .iter()
            .any(|(name, value)| has_nul(name) || has_nul(value))
        || request.cwd.as_ref().is_some_and(has_nul)
    {
        return Err(invalid(
            "arguments, environment and directory cannot hold a NUL",
        ));
    }
    if request
        .env
        .keys()
        .any(|name| name.is_empty() || name.contains('='))
    {
        return Err(invalid("a variable's name cannot be empty or hold `=`"));
    }
    let timeout_ms = request.timeout.map_or(0, |timeout| {
        // Zero means never, so the shortest time is a millisecond.
        u64::try_from(timeout.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    });
    let payload = Exec {
        argv: request.argv.into_iter().map(String::into_bytes).collect(),
        env: request
            .env
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect(),
        cwd: request.cwd.unwrap_or_default().into_bytes(),
        user: request.user.unwrap_or_default(),
        stdin: request.stdin,
        timeout_ms,
        id,
        keep: request.keep,
        pty: request.pty,
    }
    .to_payload();
    if payload.len() > MAX_PAYLOAD {
        return Err(ExecError::TooLarge {
            size: payload.len(),
            limit: MAX_PAYLOAD,
        });
    }
    if contains_magic(&payload) {
        return Err(invalid("arguments hold the channel's own greeting"));
    }
    Ok(payload)
}

/// Hands a command's frames to its reader. Credit goes back as the reader takes them.
async fn forward(
    mut stream: Stream,
    events: mpsc::Sender<Result<ExecEvent, ExecError>>,
    program: String,
    left: CancellationToken,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = left.cancelled() => return stream.finish(),
            // The reader is gone: dropping the stream kills the command.
            () = events.closed() => return,
            next = stream.expect() => next,
        };
        let event = match next {
            Ok(frame) => event(&stream, frame, &program),
            Err(error) => Err(error.into()),
        };
        let last = !matches!(event, Ok(ExecEvent::Stdout(_) | ExecEvent::Stderr(_)));
        if events.send(event).await.is_err() || last {
            if left.is_cancelled() {
                stream.finish();
            }
            return;
        }
    }
}

fn event(stream: &Stream, frame: Frame, program: &str) -> Result<ExecEvent, ExecError> {
    match frame.kind {
        Kind::Stdout => Ok(ExecEvent::Stdout(frame.payload.into())),
        Kind::Stderr => Ok(ExecEvent::Stderr(frame.payload.into())),
        Kind::Exit => match mux::decode(&frame) {
            Ok(exit) => Ok(ExecEvent::Exit(status_of(exit))),
            Err(error) => {
                stream.shared.close(error.clone());
                Err(error.into())
            }
        },
        Kind::Failed => Err(ExecError::from_failure(
            mux::decode(&frame)?,
            program,
            "",
            "",
        )),
        _ => Err(fail(&stream.shared, "a command starts twice")),
    }
}

pub(super) fn status_of(exit: Exit) -> ExitStatus {
    match exit {
        Exit::Code(code) => ExitStatus::Code(code),
        Exit::Signal(signal) => ExitStatus::Signal(signal),
        Exit::TimedOut => ExitStatus::TimedOut,
    }
}

pub(super) fn fail(shared: &Shared, what: &'static str) -> ExecError {
    let error = mux::misbehaved(what);
    shared.close(error.clone());
    error.into()
}
