//! The link to a context: finding it among the guest's programs, making it, speaking with it.
use std::{collections::BTreeMap, io, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rhizome_sandbox::{
    SandboxError,
    channel::{ExecError, ExecEvent, ExecHandle, ExecId, ExecRequest, GuestChannel},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use crate::e2b::{
    Door, Target,
    connect::{Code, ConnectError},
    envd::{guest, of_exec},
};

/// What runs in the guest.
const DRIVER: &str = include_str!("driver.py");
/// Where it lies there.
const DRIVER_PATH: &str = "/run/rhizome/interpreter/driver.py";
const PYTHON: &str = "python3";
/// Longest line that a context may say, in bytes: a result with a picture.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Time in which a context has to come up, on a host without hardware virtualisation too.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// Time in which an interrupted cell has to end, before its context does.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a context that was killed has to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A directory's name as one word of a command line.
const WORD: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'.')
    .remove(b'-')
    .remove(b'_');
const SIGINT: i32 = 2;

/// Why a context cannot be spoken with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkError {
    /// The sandbox or the context went away.
    Gone,
    /// No context is called so.
    NoContext,
    /// The image has no Python, or no IPython.
    NoKernel { what: String },
    /// Anything else.
    Failed(ConnectError),
}

impl From<ConnectError> for LinkError {
    fn from(error: ConnectError) -> Self {
        match error.code {
            Code::Unavailable => Self::Gone,
            _ => Self::Failed(error),
        }
    }
}

impl From<ExecError> for LinkError {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::SandboxGone { .. } | ExecError::Ended | ExecError::NoSuchExec { .. } => {
                Self::Gone
            }
            ExecError::NoSuchProgram { .. } | ExecError::NotExecutable { .. } => Self::NoKernel {
                what: error.to_string(),
            },
            error => Self::Failed(of_exec(&error)),
        }
    }
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) id: String,
    pub(super) cwd: String,
}

impl Context {
    /// Returns it as clients read it.
    pub(super) fn told(&self) -> Value {
        json!({ "id": self.id, "language": "python", "cwd": self.cwd })
    }
}

/// Reads a context from the command line of its program.
pub(super) fn context_of(command: &str) -> Option<Context> {
    let mut words = command.split(' ');
    let is_driver = words.next() == Some(PYTHON)
        && words.next() == Some("-u")
        && words.next() == Some(DRIVER_PATH);
    let (id, cwd) = (words.next()?, words.next()?);
    is_driver.then(|| Context {
        id: id.to_owned(),
        cwd: percent_decode_str(cwd).decode_utf8_lossy().into_owned(),
    })
}

/// Lists the contexts of a sandbox, the oldest first.
pub(super) async fn contexts(
    door: &Door,
    target: &Target,
) -> Result<Vec<(Context, ExecId)>, LinkError> {
    let all = guest(door, &target.sandbox).await?.execs().await?;
    let running = all.into_iter().rev().filter(|status| status.exit.is_none());
    let contexts = running.filter_map(|status| Some((context_of(&status.command)?, status.id)));
    Ok(contexts.collect())
}

/// Links to a context that there is.
pub(super) async fn find(door: &Door, target: &Target, id: &str) -> Result<Link, LinkError> {
    let all = contexts(door, target).await?;
    let found = all.into_iter().find(|(context, _)| context.id == id);
    let (context, exec) = found.ok_or(LinkError::NoContext)?;
    let handle = guest(door, &target.sandbox)
        .await?
        .attach(exec, u64::MAX)
        .await?;
    Ok(Link {
        context,
        handle,
        said: Lines::default(),
    })
}

/// Links to a context, and makes it if there is none.
pub(super) async fn find_or_make(
    door: &Door,
    target: &Target,
    id: &str,
    cwd: Option<&str>,
) -> Result<Link, LinkError> {
    match find(door, target, id).await {
        Err(LinkError::NoContext) => {}
        found => return found,
    }
    let guest = guest(door, &target.sandbox).await?;
    let user = target.record.user.clone().unwrap_or_default();
    let cwd = cwd.filter(|cwd| !cwd.is_empty());
    let wanted = cwd.or(target.record.cwd.as_deref()).unwrap_or_default();
    let failed = |error: &dyn std::fmt::Display| {
        LinkError::Failed(ConnectError::invalid(format!(
            "the context cannot begin in `{wanted}`: {error}"
        )))
    };
    let cwd = match guest.look(&user, wanted).await {
        Ok(found) => found.path,
        // A home that is not there is no reason to refuse.
        Err(_) if cwd.is_none() => "/".to_owned(),
        Err(error) => return Err(failed(&error)),
    };
    let written = guest
        .write_file(DRIVER_PATH, 0o644, true, DRIVER.as_bytes())
        .await;
    written.map_err(|error| failed(&error))?;
    let word = utf8_percent_encode(&cwd, WORD).to_string();
    let argv = [PYTHON, "-u", DRIVER_PATH, id, &word].map(str::to_owned);
    let request = ExecRequest {
        argv: argv.to_vec(),
        env: environment(&target.record.envs),
        // The driver goes there itself, so that a directory it may not enter is told.
        cwd: Some("/".to_owned()),
        user: Some(user).filter(|user| !user.is_empty()),
        stdin: true,
        keep: true,
        ..ExecRequest::default()
    };
    let found = door
        .node
        .find_sandbox(&target.sandbox)
        .map_err(|_| LinkError::Gone)?;
    let sandboxes = door.node.sandboxes().map_err(|_| LinkError::Gone)?;
    let handle = match sandboxes.exec(&found.id, request).await {
        Ok(handle) => handle,
        Err(SandboxError::Exec { source, .. }) => return Err(source.into()),
        Err(_) => return Err(LinkError::Gone),
    };
    let context = Context {
        id: id.to_owned(),
        cwd,
    };
    let mut link = Link {
        context,
        handle,
        said: Lines::default(),
    };
    match timeout(START_TIMEOUT, link.ready()).await {
        Ok(Ok(())) => Ok(link),
        Ok(Err(error)) => {
            let _ = link.handle.kill().await;
            Err(error)
        }
        Err(_) => {
            let _ = link.handle.kill().await;
            let message = "the context did not come up in time";
            Err(LinkError::Failed(ConnectError::new(
                Code::DeadlineExceeded,
                message,
            )))
        }
    }
}

fn environment(envs: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = envs.clone();
    // What is written beside the system's modules would be the guest's only writes.
    env.entry("PYTHONDONTWRITEBYTECODE".to_owned())
        .or_insert_with(|| "1".to_owned());
    env
}

/// Waits until a program has ended.
pub(super) async fn gone(guest: &GuestChannel, exec: ExecId) {
    let ended = async {
        loop {
            let all = guest.execs().await.unwrap_or_default();
            let runs = all
                .iter()
                .any(|status| status.id == exec && status.exit.is_none());
            if !runs {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    // What comes next says so itself if it has not.
    let _ = timeout(END_TIMEOUT, ended).await;
}

/// A context that is read here.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) context: Context,
    handle: ExecHandle,
    said: Lines,
}

impl Link {
    /// Sends a cell.
    pub(super) async fn send(&mut self, cell: &Value) -> Result<(), LinkError> {
        // Whether the link still is shows on what comes from the other end.
        loop {
            match self.handle.events.try_recv() {
                Ok(Ok(ExecEvent::Stdout(bytes))) => self.said.extend(&bytes)?,
                Ok(Ok(ExecEvent::Stderr(_))) => {}
                Ok(Ok(ExecEvent::Exit(_)) | Err(_))
                | Err(mpsc::error::TryRecvError::Disconnected) => return Err(LinkError::Gone),
                Err(mpsc::error::TryRecvError::Empty) => break,
            }
        }
        let mut line = cell.to_string();
        line.push('\n');
        Ok(self.handle.write_stdin(line).await?)
    }

    /// Tells what a cell says, until it has ended.
    pub(super) async fn run(
        &mut self,
        number: u64,
        told: &mpsc::Sender<io::Result<Bytes>>,
    ) -> Result<(), LinkError> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.next() => line?,
                () = told.closed() => return self.interrupt(number).await,
            };
            match part_of(number, &line) {
                Some(Part::Said(message)) => {
                    let mut message = message.to_vec();
                    message.push(b'\n');
                    if told.send(Ok(message.into())).await.is_err() {
                        return self.interrupt(number).await;
                    }
                }
                Some(Part::End) => return Ok(()),
                // The rest of a cell that was given up.
                None => {}
            }
        }
    }

    /// Interrupts a cell whose client has gone, and waits for its end.
    async fn interrupt(&mut self, number: u64) -> Result<(), LinkError> {
        self.handle.signal(SIGINT).await?;
        let over = async {
            loop {
                let line = self.next().await?;
                if part_of(number, &line) == Some(Part::End) {
                    return Ok::<_, LinkError>(());
                }
            }
        };
        if let Ok(over) = timeout(INTERRUPT_TIMEOUT, over).await {
            return over;
        }
        // It won't hear: the context ends, and its state with it.
        let _ = self.handle.kill().await;
        Err(LinkError::Gone)
    }

    /// Waits until the context takes cells.
    async fn ready(&mut self) -> Result<(), LinkError> {
        loop {
            let line = self.next().await.map_err(|error| match error {
                LinkError::Gone => LinkError::NoKernel {
                    what: "it ended at once".to_owned(),
                },
                other => other,
            })?;
            let Some(Part::Said(message)) = part_of(0, &line) else {
                continue;
            };
            let message: Value = serde_json::from_slice(message).unwrap_or_default();
            match message["type"].as_str() {
                Some("ready") => return Ok(()),
                Some("missing") => {
                    let what = message["value"].as_str().unwrap_or_default();
                    return Err(LinkError::NoKernel {
                        what: crate::daemon::memory::clip(what),
                    });
                }
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> Result<Bytes, LinkError> {
        loop {
            if let Some(line) = self.said.next() {
                return Ok(line);
            }
            match self.handle.events.recv().await {
                Some(Ok(ExecEvent::Stdout(bytes))) => self.said.extend(&bytes)?,
                // Its own standard error is of Python before our driver runs.
                Some(Ok(ExecEvent::Stderr(_))) => {}
                Some(Ok(ExecEvent::Exit(_)) | Err(_)) | None => return Err(LinkError::Gone),
            }
        }
    }
}

/// What a line is to a cell.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Said(&'a [u8]),
    End,
}

fn part_of(number: u64, line: &[u8]) -> Option<Part<'_>> {
    let rest = line.strip_prefix(number.to_string().as_bytes())?;
    match rest.strip_prefix(b" ")? {
        b"." => Some(Part::End),
        // Whoever runs in the sandbox may write there too; only objects are passed on.
        message if message.starts_with(b"{") && message.ends_with(b"}") => {
            Some(Part::Said(message))
        }
        _ => None,
    }
}

/// Bytes on their way to lines.
#[derive(Debug, Default)]
struct Lines {
    buffer: BytesMut,
    /// Bytes that are known to hold no end of a line.
    seen: usize,
}

impl Lines {
    fn extend(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > 2 * MAX_LINE_BYTES {
            return Err(LinkError::Gone);
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Bytes> {
        let end = self.buffer[self.seen..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.seen = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.seen + end).freeze();
        self.buffer.advance(1);
        self.seen = 0;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_known_by_its_command() {
        let of = |cwd: &str| {
            let word = utf8_percent_encode(cwd, WORD);
            context_of(&format!("python3 -u {DRIVER_PATH} c1 {word}"))
        };
        for cwd in ["/home/ann", "/a b/'c'", "/记忆"] {
            let context = of(cwd).unwrap();
            assert_eq!((&*context.id, &*context.cwd), ("c1", cwd));
        }
        for other in ["python3 -u x.py c1 /", "python3", "", "sh -c true a b c"] {
            assert_eq!(context_of(other), None, "{other}");
        }
    }

    #[test]
    fn lines_are_found_however_they_come() {
        let text = b"1 {\"a\":1}\n1 .\npart";
        for piece in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for bytes in text.chunks(piece) {
                lines.extend(bytes).unwrap();
                found.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(found, [&b"1 {\"a\":1}"[..], b"1 ."], "{piece}");
        }
        let mut endless = Lines::default();
        let mut left = 4 * MAX_LINE_BYTES;
        while endless.extend(&[b'x'; 65_536]).is_ok() {
            left -= 65_536;
            assert!(endless.next().is_none() && left > 0);
        }
    }

    #[test]
    fn only_lines_of_the_cell_are_passed_on() {
        assert_eq!(part_of(7, b"7 ."), Some(Part::End));
        assert_eq!(part_of(7, b"7 {}"), Some(Part::Said(b"{}")));
        for other in [&b"70 {}"[..], b"6 {}", b"7 x", b"7{}", b"7 {", b"", b"{}"] {
            assert_eq!(part_of(7, other), None);
        }
    }
}
