//! What a frame carries: the greeting, credit and failures here, the rest by subject.

use super::{Decoder, Encoder, MAGIC, WireError};

mod acts;
mod connect;
mod exec;
mod files;
mod guest;
mod net;
mod programs;
mod sleep;
mod volumes;
mod watch;

pub use acts::{Act, Facts, FileAct};
pub use connect::Connect;
pub use exec::{Exec, Exit, PtySize, Signal};
pub use files::{Entry, FileEnd, FileKind, FileRead, FileWrite, MakeDir, PathOnly, Remove, Stat};
pub use guest::{Info, Reseed, SetTime};
pub use net::NetOpen;
pub use programs::{Attach, Attached, ExecEntry, ExecSignal, Keep};
pub use sleep::{Quiesce, Quiesced, Resumed};
pub use volumes::{
    MAX_VOLUME_MESSAGE, MAX_VOLUME_READ, VolumeAnswer, VolumeAsk, VolumeClose, VolumeEntry,
    VolumeFramer, VolumeKind, VolumeOpen, VolumeReply, VolumeScan,
};
pub use watch::{Watch, WatchEvent, WatchOp};

/// Longest path, in bytes.
const MAX_PATH: usize = 4096;
/// Longest name of a user or a host, in bytes.
const MAX_NAME: usize = 255;
/// Longest message of a failure or a warning, in bytes.
const MAX_TEXT: usize = 1024;
/// Most warnings in a READY.
const MAX_WARNINGS: usize = 32;

/// One message inside a frame.
pub trait Payload: Sized {
    /// Writes the fields.
    fn encode(&self, out: &mut Encoder);

    /// Reads the fields.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError>;

    /// Returns the message's bytes.
    fn to_payload(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        self.encode(&mut out);
        out.finish()
    }

    /// Reads a message that takes up all of `bytes`.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    fn from_payload(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Decoder::new(bytes);
        let message = Self::decode(&mut from)?;
        from.finish()?;
        Ok(message)
    }
}

/// First message of a session. Its length never changes, in any version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u16,
    /// Drawn by the host for each session, repeated by the guest: it tells the guest's answer
    /// from what is left of an older session.
    pub nonce: [u8; 16],
    /// Drawn by the guest at its start; zero in the host's message.
    pub boot: [u8; 16],
    /// What the sender can do beyond its version; zero from the host. Bits that the reader does
    /// not know are ignored.
    pub flags: u32,
}

impl Hello {
    /// Length of the message, in bytes.
    pub const LEN: usize = 16 + 2 + 16 + 16 + 4;
}

impl Payload for Hello {
    fn encode(&self, out: &mut Encoder) {
        out.array(&MAGIC);
        out.u16(self.version);
        out.array(&self.nonce);
        out.array(&self.boot);
        out.u32(self.flags);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        if from.array::<16>()? != MAGIC {
            return Err(WireError::Invalid { field: "magic" });
        }
        Ok(Self {
            version: from.u16()?,
            nonce: from.array()?,
            boot: from.array()?,
            flags: from.u32()?,
        })
    }
}

/// The guest takes requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ready {
    /// Milliseconds from the kernel's start to the agent's readiness.
    pub boot_ms: u64,
    /// What went wrong on the way without stopping it.
    pub warnings: Vec<String>,
}

impl Payload for Ready {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.boot_ms);
        let kept = self.warnings.len().min(MAX_WARNINGS);
        out.len(kept);
        for warning in &self.warnings[..kept] {
            out.bytes(clip(warning).as_bytes());
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let boot_ms = from.u64()?;
        let count = from.count(4, "warnings")?;
        if count > MAX_WARNINGS {
            return Err(WireError::Invalid { field: "warnings" });
        }
        let warnings = (0..count)
            .map(|_| from.text(MAX_TEXT, "warnings"))
            .collect::<Result<_, _>>()?;
        Ok(Self { boot_ms, warnings })
    }
}

/// More credit for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// Bytes of [`super::cost`] added.
    pub bytes: u32,
}

impl Payload for Credit {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.bytes);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self { bytes: from.u32()? })
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What a program can act on.
    pub code: FailureCode,
    /// What a person can read, at most 1,024 bytes.
    pub message: String,
}

macro_rules! failure_codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// Why a request failed, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum FailureCode { $($(#[$doc])* $name = $value,)* }

        impl FailureCode {
            fn from_wire(code: u16) -> Self {
                match code {
                    $($value => Self::$name,)*
                    // A newer guest may know more reasons.
                    _ => Self::Io,
                }
            }
        }
    };
}

failure_codes! {
    /// No such file or directory.
    NotFound = 1,
    /// Not allowed.
    PermissionDenied = 2,
    /// A directory was needed.
    NotADirectory = 3,
    /// A file was needed.
    IsADirectory = 4,
    /// It is there already.
    AlreadyExists = 5,
    /// The request makes no sense.
    Invalid = 6,
    /// The guest does as much at once as it will.
    TooMany = 7,
    /// The program can't be run.
    NotExecutable = 8,
    /// No such program.
    NoSuchProgram = 9,
    /// No such user or group.
    NoSuchUser = 10,
    /// The working directory is not there.
    NoSuchCwd = 11,
    /// What arrived is not what was sent.
    Checksum = 12,
    /// No room on the disk.
    NoSpace = 13,
    /// The directory is not empty.
    NotEmpty = 14,
    /// The file system is read-only.
    ReadOnly = 15,
    /// Anything else the kernel says.
    Io = 16,
    /// The guest can't do this.
    Unsupported = 17,
    /// A hook failed.
    Hook = 18,
    /// It took too long.
    TimedOut = 19,
    /// Nothing listens there.
    Refused = 20,
    /// No such program runs, or its end was forgotten.
    NoSuchExec = 21,
    /// Another reader took it over.
    TakenOver = 22,
    /// The guest is about to be copied and starts nothing.
    AtRest = 23,
}

impl Payload for Failure {
    fn encode(&self, out: &mut Encoder) {
        out.u16(self.code as u16);
        out.bytes(clip(&self.message).as_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            code: FailureCode::from_wire(from.u16()?),
            message: from.text(MAX_TEXT, "message")?,
        })
    }
}

/// Returns as much of `text` as a message may hold.
fn clip(text: &str) -> &str {
    super::clip(text, MAX_TEXT)
}
