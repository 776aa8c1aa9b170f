//! Commands in the guest: their events, their input, their end.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rhizome_guest::wire::{Exec, Exit, Frame, Kind, MAX_PAYLOAD, Payload, Signal, contains_magic};
use tokio::sync::mpsc;

use super::{
    ExecError,
    mux::{self, Purpose, Sender, Shared, Stream},
};

/// Events that wait between the channel and whoever reads them; the rest waits in the window.
const EVENT_QUEUE: usize = 4;

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
    /// Time after which the command's process group is killed.
    pub timeout: Option<Duration>,
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

/// A running command.
///
/// Dropping it kills the command's process group, unless the command has ended. Output that
/// nobody takes holds up the command, and nothing else.
#[derive(Debug)]
pub struct ExecHandle {
    /// What the command says: output in order, then one [`ExecEvent::Exit`], or one error.
    pub events: mpsc::Receiver<Result<ExecEvent, ExecError>>,
    input: ExecInput,
}

/// What can be said to a running command; it clones, and may outlive the handle.
#[derive(Debug, Clone)]
pub struct ExecInput(Sender);

impl ExecHandle {
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
        if !(1..32).contains(&number) {
            return Err(ExecError::Invalid {
                message: format!("{number} is no signal"),
            });
        }
        self.0
            .plain(Kind::Signal, Signal { number }.to_payload())
            .await
            .map_err(lost)
    }
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
    let payload = encode(request)?;
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
    let input = ExecInput(stream.sender());
    let (tx, events) = mpsc::channel(EVENT_QUEUE);
    tokio::spawn(forward(stream, tx, program));
    Ok(ExecHandle { events, input })
}

fn encode(request: ExecRequest) -> Result<Vec<u8>, ExecError> {
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
) {
    loop {
        let next = tokio::select! {
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
            return;
        }
    }
}

fn event(stream: &Stream, frame: Frame, program: &str) -> Result<ExecEvent, ExecError> {
    match frame.kind {
        Kind::Stdout => Ok(ExecEvent::Stdout(frame.payload.into())),
        Kind::Stderr => Ok(ExecEvent::Stderr(frame.payload.into())),
        Kind::Exit => match mux::decode(&frame) {
            Ok(Exit::Code(code)) => Ok(ExecEvent::Exit(ExitStatus::Code(code))),
            Ok(Exit::Signal(signal)) => Ok(ExecEvent::Exit(ExitStatus::Signal(signal))),
            Ok(Exit::TimedOut) => Ok(ExecEvent::Exit(ExitStatus::TimedOut)),
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

fn fail(shared: &Shared, what: &'static str) -> ExecError {
    let error = mux::misbehaved(what);
    shared.close(error.clone());
    error.into()
}
