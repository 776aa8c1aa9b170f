//! Running a program: what to run, its signals, its end.

use super::{MAX_NAME, MAX_PATH, Payload};
use crate::wire::{Decoder, Encoder, ExecId, MAX_PAYLOAD, WireError};

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// Program and arguments; at least the program.
    pub argv: Vec<Vec<u8>>,
    /// Environment, set over the guest's own.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; empty for the user's home, or `/`.
    pub cwd: Vec<u8>,
    /// `name`, `uid`, `name:group` or `uid:gid`; empty for root.
    pub user: String,
    /// Whether its standard input is written; otherwise it is empty.
    pub stdin: bool,
    /// Milliseconds after which its process group is killed; 0 for never.
    pub timeout_ms: u64,
    /// Its number, drawn by the host; no other program of the guest may have it.
    pub id: ExecId,
    /// Whether it runs on when the host loses interest in it.
    pub keep: bool,
    /// The terminal that it runs on, if any; standard error is then part of standard output.
    pub pty: Option<PtySize>,
}

impl Payload for Exec {
    fn encode(&self, out: &mut Encoder) {
        out.len(self.argv.len());
        for word in &self.argv {
            out.bytes(word);
        }
        out.len(self.env.len());
        for (name, value) in &self.env {
            out.bytes(name);
            out.bytes(value);
        }
        out.bytes(&self.cwd);
        out.bytes(self.user.as_bytes());
        out.u8(self.stdin.into());
        out.u64(self.timeout_ms);
        self.id.encode(out);
        out.u8(self.keep.into());
        out.u8(self.pty.is_some().into());
        if let Some(size) = self.pty {
            size.encode(out);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let words = from.count(4, "argv")?;
        if words == 0 {
            return Err(WireError::Invalid { field: "argv" });
        }
        let argv = (0..words)
            .map(|_| from.os_bytes(MAX_PAYLOAD, "argv"))
            .collect::<Result<_, _>>()?;
        let pairs = from.count(8, "env")?;
        let env = (0..pairs)
            .map(|_| {
                let name = from.os_bytes(MAX_PAYLOAD, "env")?;
                if name.is_empty() || name.contains(&b'=') {
                    return Err(WireError::Invalid { field: "env" });
                }
                Ok((name, from.os_bytes(MAX_PAYLOAD, "env")?))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            argv,
            env,
            cwd: from.os_bytes(MAX_PATH, "cwd")?,
            user: from.text(MAX_NAME, "user")?,
            stdin: from.flag("stdin")?,
            timeout_ms: from.u64()?,
            id: ExecId::decode(from)?,
            keep: from.flag("keep")?,
            pty: match from.flag("pty")? {
                true => Some(PtySize::decode(from)?),
                false => None,
            },
        })
    }
}

/// A signal for a process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Number of the signal, as Linux on x86-64 counts.
    pub number: i32,
}

impl Payload for Signal {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.number.to_le_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            number: i32::from_le_bytes(from.array()?),
        })
    }
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Rows of characters.
    pub rows: u16,
    /// Columns of characters.
    pub columns: u16,
}

impl Payload for PtySize {
    fn encode(&self, out: &mut Encoder) {
        out.u16(self.rows);
        out.u16(self.columns);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            rows: from.u16()?,
            columns: from.u16()?,
        })
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It ran out of its time and was killed.
    TimedOut,
}

impl Payload for Exit {
    fn encode(&self, out: &mut Encoder) {
        let (tag, value) = match self {
            Self::Code(code) => (0, *code),
            Self::Signal(signal) => (1, *signal),
            Self::TimedOut => (2, 0),
        };
        out.u8(tag);
        out.array(&value.to_le_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let tag = from.u8()?;
        match (tag, i32::from_le_bytes(from.array()?)) {
            (0, code) => Ok(Self::Code(code)),
            (1, signal @ 1..=64) => Ok(Self::Signal(signal)),
            (2, 0) => Ok(Self::TimedOut),
            _ => Err(WireError::Invalid { field: "exit" }),
        }
    }
}
