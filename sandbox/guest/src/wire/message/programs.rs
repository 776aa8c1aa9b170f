//! Programs that outlive the session that started them.

use super::{Exit, MAX_NAME, MAX_TEXT, Payload, clip};
use crate::wire::{Decoder, Encoder, ExecId, WireError};

/// A program to read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attach {
    /// Which one.
    pub id: ExecId,
    /// Bytes of its output, of both kinds together, that are known already; `u64::MAX` for all.
    pub from: u64,
}

impl Payload for Attach {
    fn encode(&self, out: &mut Encoder) {
        self.id.encode(out);
        out.u64(self.from);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: ExecId::decode(from)?,
            from: from.u64()?,
        })
    }
}

/// What a reader gets to see of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Bytes of output before the first that comes.
    pub position: u64,
    /// How many of them were asked for and are lost.
    pub gap: u64,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// Whether it takes input.
    pub stdin: bool,
}

impl Payload for Attached {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.position);
        out.u64(self.gap);
        out.u8(self.pty.into());
        out.u8(self.stdin.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            position: from.u64()?,
            gap: from.u64()?,
            pty: from.flag("pty")?,
            stdin: from.flag("stdin")?,
        })
    }
}

/// Whether a program runs on when the host loses interest in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Which one.
    pub id: ExecId,
    /// If not, it is killed when nobody reads it any more.
    pub keep: bool,
}

impl Payload for Keep {
    fn encode(&self, out: &mut Encoder) {
        self.id.encode(out);
        out.u8(self.keep.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: ExecId::decode(from)?,
            keep: from.flag("keep")?,
        })
    }
}

/// A signal for a program that is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecSignal {
    /// Which one.
    pub id: ExecId,
    /// Number of the signal, as Linux on x86-64 counts.
    pub number: i32,
}

impl Payload for ExecSignal {
    fn encode(&self, out: &mut Encoder) {
        self.id.encode(out);
        out.array(&self.number.to_le_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: ExecId::decode(from)?,
            number: i32::from_le_bytes(from.array()?),
        })
    }
}

/// One program, running or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEntry {
    /// Its number.
    pub id: ExecId,
    /// Its arguments, quoted where they need it; at most 1,024 bytes.
    pub command: String,
    /// Who it runs as.
    pub user: String,
    /// Process number of its leader.
    pub pid: u32,
    /// When it was started, in milliseconds since 1970 by the guest's clock.
    pub started_ms: u64,
    /// For how long it has run, or ran, in milliseconds of the guest's uptime.
    pub ran_ms: u64,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// Whether it runs on when the host loses interest in it.
    pub keep: bool,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// Whether somebody reads it.
    pub attached: bool,
    /// Bytes of output that are no longer there.
    pub dropped: u64,
    /// Bytes of output in all.
    pub position: u64,
}

impl Payload for ExecEntry {
    fn encode(&self, out: &mut Encoder) {
        self.id.encode(out);
        out.bytes(clip(&self.command).as_bytes());
        out.bytes(self.user.as_bytes());
        out.u32(self.pid);
        out.u64(self.started_ms);
        out.u64(self.ran_ms);
        out.u8(self.exit.is_some().into());
        if let Some(exit) = self.exit {
            exit.encode(out);
        }
        out.u8(self.keep.into());
        out.u8(self.pty.into());
        out.u8(self.attached.into());
        out.u64(self.dropped);
        out.u64(self.position);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: ExecId::decode(from)?,
            command: from.text(MAX_TEXT, "command")?,
            user: from.text(MAX_NAME, "user")?,
            pid: from.u32()?,
            started_ms: from.u64()?,
            ran_ms: from.u64()?,
            exit: match from.flag("ended")? {
                true => Some(Exit::decode(from)?),
                false => None,
            },
            keep: from.flag("keep")?,
            pty: from.flag("pty")?,
            attached: from.flag("attached")?,
            dropped: from.u64()?,
            position: from.u64()?,
        })
    }
}

impl ExecEntry {
    /// Reads all programs of one EXEC_ENTRIES frame.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut from = Decoder::new(payload);
        let mut entries = Vec::new();
        while !from.is_empty() {
            entries.push(Self::decode(&mut from)?);
        }
        Ok(entries)
    }
}
