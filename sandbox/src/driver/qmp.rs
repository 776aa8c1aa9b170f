//! QEMU's control channel: one JSON object a line, both ways.
//!
//! Every command carries a number that its answer repeats, so a caller that gave up leaves
//! nothing behind that the next could take for its own; events in between are passed over, but
//! for how a migration stands. The monitor may have been taken over by its guest, so lines are
//! bounded and an answer that does not come is given up.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::UnixStream,
};

/// Longest line that is read, in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Other lines that may come before an answer.
const MAX_EVENTS: usize = 256;
/// Time an answer may take: to stop a guest, its disks' requests have to end.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest text of the monitor's that an error carries.
const MAX_TEXT_CHARS: usize = 300;

/// A session with a monitor.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    buffer: Vec<u8>,
    last: u64,
    /// How the migration stands, as the last event told.
    migration: Option<String>,
}

impl Qmp {
    /// Waits for the monitor's greeting, for as long as the caller does.
    pub(super) async fn open(stream: UnixStream) -> io::Result<Self> {
        let mut qmp = Self {
            stream,
            buffer: Vec::new(),
            last: 0,
            migration: None,
        };
        let greeting = qmp.line().await?;
        if greeting.get("QMP").is_none() {
            return Err(invalid("no monitor greets there"));
        }
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Returns the run state: `running`, `paused`, `internal-error`, …
    pub(super) async fn status(&mut self) -> io::Result<String> {
        let answer = self.execute("query-status", json!({})).await?;
        let status = answer.get("status").and_then(Value::as_str);
        status
            .map(plain)
            .ok_or_else(|| invalid("no status in the monitor's answer"))
    }

    /// Runs a command and returns its answer.
    pub(super) async fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        self.execute_with(command, arguments, None).await
    }

    /// Hands a file to the monitor, under a name for other commands.
    pub(super) async fn hand(&mut self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let arguments = json!({ "fdname": name });
        self.execute_with("getfd", arguments, Some(file)).await?;
        Ok(())
    }

    /// Lends a file to the monitor, which opens it as `/dev/fdset/<set>` with the rights it has.
    pub(super) async fn lend(&mut self, set: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        let arguments = json!({ "fdset-id": set });
        self.execute_with("add-fd", arguments, Some(file)).await?;
        Ok(())
    }

    /// Waits until the migration that `command` begins is over.
    pub(super) async fn migrate(
        &mut self,
        command: &str,
        uri: &str,
        limit: Duration,
    ) -> io::Result<()> {
        self.migration = None;
        self.execute(command, json!({ "uri": uri })).await?;
        let over = async {
            loop {
                match self.migration.as_deref() {
                    Some("completed") => return Ok(()),
                    Some("failed" | "cancelled") => {
                        return Err(io::Error::other("the monitor says that it failed"));
                    }
                    _ => self.line().await.map(drop)?,
                }
            }
        };
        timed(limit, over).await
    }

    async fn execute_with(
        &mut self,
        command: &str,
        arguments: Value,
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<Value> {
        self.last += 1;
        let id = self.last;
        let line = json!({ "execute": command, "arguments": arguments, "id": id });
        timed(LIMIT, async {
            self.send(format!("{line}\n").as_bytes(), file).await?;
            for _ in 0..MAX_EVENTS {
                let mut answer = self.line().await?;
                if answer.get("id").and_then(Value::as_u64) != Some(id) {
                    continue;
                }
                if let Some(value) = answer.get_mut("return") {
                    return Ok(value.take());
                }
                let said = answer.pointer("/error/desc").and_then(Value::as_str);
                return Err(io::Error::other(format!(
                    "the monitor refused: {}",
                    plain(said.unwrap_or("it does not say why"))
                )));
            }
            Err(invalid("the monitor sends events without end"))
        })
        .await
    }

    async fn send(&mut self, mut bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut files = file;
        while !bytes.is_empty() {
            self.stream.writable().await?;
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if let Some(file) = &files {
                    control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
                }
                let pieces = [IoSlice::new(bytes)];
                Ok(sendmsg(
                    &self.stream,
                    &pieces,
                    &mut control,
                    SendFlags::NOSIGNAL,
                )?)
            });
            match sent {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    files = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the next line. A dropped future loses nothing.
    async fn line(&mut self) -> io::Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let value: Value = serde_json::from_slice(&line)?;
                if value.get("event").and_then(Value::as_str) == Some("MIGRATION") {
                    let status = value.pointer("/data/status").and_then(Value::as_str);
                    self.migration = status.map(plain);
                }
                return Ok(value);
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(invalid("the monitor's line is too long"));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn timed<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let ended = tokio::time::timeout(limit, work).await;
    ended.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Returns what of the monitor's words may be shown.
fn plain(text: &str) -> String {
    let kept = |c: &char| c.is_ascii_graphic() || *c == ' ';
    text.chars().filter(kept).take(MAX_TEXT_CHARS).collect()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    /// Greets, then answers every line with the next of `lines`.
    async fn open(lines: &[&str]) -> io::Result<Qmp> {
        let (ours, theirs) = UnixStream::pair()?;
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        tokio::spawn(async move {
            let (reader, mut writer) = theirs.into_split();
            let mut reader = BufReader::new(reader);
            let _ = writer.write_all(b"{\"QMP\": {}}\n").await;
            for line in lines {
                let mut asked = String::new();
                let _ = reader.read_line(&mut asked).await;
                let _ = writer.write_all(line.as_bytes()).await;
            }
        });
        Qmp::open(ours).await
    }

    async fn ask(lines: &[&str]) -> io::Result<String> {
        open(lines).await?.status().await
    }

    #[tokio::test]
    async fn events_and_answers_to_others_are_passed_over() {
        let answers = [
            "{\"return\": {}, \"id\": 1}",
            "{\"event\": \"RESUME\"}\n{\"return\": {\"status\": \"paused\"}, \"id\": 1}\n{\"return\": {\"status\": \"running\"}, \"id\": 2}",
        ];
        assert_eq!(ask(&answers).await.unwrap(), "running");
    }

    #[tokio::test]
    async fn a_migration_ends_with_its_event_wherever_it_comes() {
        let early = [
            "{\"return\": {}, \"id\": 1}",
            "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\n{\"return\": {}, \"id\": 2}",
        ];
        let late = [
            "{\"return\": {}, \"id\": 1}",
            "{\"return\": {}, \"id\": 2}\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}",
        ];
        for lines in [&early, &late] {
            let mut qmp = open(lines).await.unwrap();
            qmp.migrate("migrate", "fd:x", LIMIT).await.unwrap();
        }
        let failed = [
            "{\"return\": {}, \"id\": 1}",
            "{\"return\": {}, \"id\": 2}\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"failed\"}}",
        ];
        let mut qmp = open(&failed).await.unwrap();
        assert!(qmp.migrate("migrate", "fd:x", LIMIT).await.is_err());
    }

    #[tokio::test]
    async fn a_monitor_that_lies_is_given_up() {
        let first = "{\"return\": {}, \"id\": 1}";
        let hostile = [
            "garbage",
            "{\"return\": 1, \"id\": 2}",
            "{\"error\": {}, \"id\": 2}",
            "{\"return\": {\"status\": 7}, \"id\": 2}",
        ];
        for answer in hostile {
            assert!(ask(&[first, answer]).await.is_err(), "{answer}");
        }
        let long = format!("{{\"return\": \"{}\", \"id\": 2}}", "x".repeat(100_000));
        assert!(ask(&[first, &long]).await.is_err());
        assert!(ask(&[]).await.is_err());
    }
}
