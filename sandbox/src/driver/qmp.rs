//! QEMU's control channel: one JSON object a line, both ways.
//!
//! Only what is asked for is answered; events in between are passed over. The monitor may have
//! been taken over by its guest, so lines are bounded and an answer that does not come is given
//! up.

use std::{io, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Longest line that is read, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Events that may come before an answer.
const MAX_EVENTS: usize = 256;
/// Time an answer may take.
const LIMIT: Duration = Duration::from_secs(2);

/// A session with a monitor.
#[derive(Debug)]
pub(super) struct Qmp {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    greeted: bool,
}

impl Qmp {
    pub(super) fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            reader: BufReader::new(reader),
            writer,
            greeted: false,
        }
    }

    /// Returns the run state: `running`, `paused`, `internal-error`, …
    pub(super) async fn status(&mut self) -> io::Result<String> {
        let answer = self.ask("query-status").await?;
        let status = answer.get("status").and_then(Value::as_str);
        let status = status.ok_or_else(|| invalid("no status in the monitor's answer"))?;
        Ok(status
            .chars()
            .filter(char::is_ascii_graphic)
            .take(32)
            .collect())
    }

    async fn ask(&mut self, command: &str) -> io::Result<Value> {
        let asked = async {
            if !self.greeted {
                self.line().await?;
                self.execute("qmp_capabilities").await?;
                self.greeted = true;
            }
            self.execute(command).await
        };
        let answered = tokio::time::timeout(LIMIT, asked).await;
        answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn execute(&mut self, command: &str) -> io::Result<Value> {
        let line = format!("{}\n", json!({ "execute": command }));
        self.writer.write_all(line.as_bytes()).await?;
        for _ in 0..MAX_EVENTS {
            let mut answer = self.line().await?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if answer.get("error").is_some() {
                return Err(invalid("the monitor refused"));
            }
        }
        Err(invalid("the monitor sends events without end"))
    }

    async fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(MAX_LINE_BYTES);
        limited.read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every line with the next of `lines`, after a greeting.
    async fn ask(lines: &[&str]) -> io::Result<String> {
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
        Qmp::new(ours).status().await
    }

    #[tokio::test]
    async fn events_are_passed_over() {
        let answers = [
            "{\"return\": {}}",
            "{\"event\": \"RESUME\"}\n{\"return\": {\"status\": \"running\"}}",
        ];
        assert_eq!(ask(&answers).await.unwrap(), "running");
    }

    #[tokio::test]
    async fn a_monitor_that_lies_is_given_up() {
        let hostile = [
            "garbage",
            "{\"return\": 1}",
            "{\"error\": {}}",
            "{\"return\": {\"status\": 7}}",
        ];
        for answer in hostile {
            assert!(
                ask(&["{\"return\": {}}", answer]).await.is_err(),
                "{answer}"
            );
        }
        let long = format!("{{\"return\": \"{}\"}}", "x".repeat(100_000));
        assert!(ask(&["{\"return\": {}}", &long]).await.is_err());
        assert!(ask(&[]).await.is_err());
    }
}
