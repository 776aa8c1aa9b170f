use super::{Decoder, Encoder, MAGIC, MAX_PAYLOAD, WireError};

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
    /// For later versions; zero, and ignored.
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

/// Size of a terminal. Kept for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Rows of characters.
    pub rows: u16,
    /// Columns of characters.
    pub columns: u16,
}

impl Payload for Resize {
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

/// A path and nothing else: stat, list, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathOnly {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
}

impl Payload for PathOnly {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self { path: path(from)? })
    }
}

/// A file to write. It appears under its name once it is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Whether missing directories above it are made.
    pub parents: bool,
}

impl Payload for FileWrite {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u32(self.mode);
        out.u8(self.parents.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            mode: mode(from)?,
            parents: from.flag("parents")?,
        })
    }
}

/// A directory to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeDir {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Whether missing directories above it are made, and an existing one is fine.
    pub parents: bool,
}

impl Payload for MakeDir {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u32(self.mode);
        out.u8(self.parents.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            mode: mode(from)?,
            parents: from.flag("parents")?,
        })
    }
}

/// A file or directory to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remove {
    /// Absolute path in the guest.
    pub path: Vec<u8>,
    /// Whether all that is in a directory goes with it.
    pub recursive: bool,
}

impl Payload for Remove {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.path);
        out.u8(self.recursive.into());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path: path(from)?,
            recursive: from.flag("recursive")?,
        })
    }
}

/// What kind of thing a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// What a path names. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// What kind of thing it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes in it.
    pub size: u64,
    /// Last change of its contents, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Where a symbolic link leads; otherwise empty.
    pub target: Vec<u8>,
}

impl Payload for Stat {
    fn encode(&self, out: &mut Encoder) {
        out.u8(match self.kind {
            FileKind::File => 0,
            FileKind::Directory => 1,
            FileKind::Symlink => 2,
            FileKind::Other => 3,
        });
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u64(self.size);
        out.u64(self.modified_ms);
        out.bytes(&self.target);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let kind = match from.u8()? {
            0 => FileKind::File,
            1 => FileKind::Directory,
            2 => FileKind::Symlink,
            3 => FileKind::Other,
            _ => return Err(WireError::Invalid { field: "kind" }),
        };
        Ok(Self {
            kind,
            mode: mode(from)?,
            uid: from.u32()?,
            gid: from.u32()?,
            size: from.u64()?,
            modified_ms: from.u64()?,
            target: from.os_bytes(MAX_PATH, "target")?,
        })
    }
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name: never empty, `.`, `..` or with a slash.
    pub name: Vec<u8>,
    /// What it is.
    pub stat: Stat,
}

impl Payload for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.name);
        self.stat.encode(out);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let name = from.os_bytes(MAX_NAME, "name")?;
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(WireError::Invalid { field: "name" });
        }
        Ok(Self {
            name,
            stat: Stat::decode(from)?,
        })
    }
}

impl Entry {
    /// Reads all entries of one FILE_ENTRIES frame.
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

/// The end of a transferred file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEnd {
    /// Bytes that were sent.
    pub size: u64,
    /// [`super::Crc32c`] of them.
    pub checksum: u32,
}

impl Payload for FileEnd {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.size);
        out.u32(self.checksum);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            size: from.u64()?,
            checksum: from.u32()?,
        })
    }
}

/// The time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetTime {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

impl Payload for SetTime {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.unix_ns);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            unix_ns: from.u64()?,
        })
    }
}

/// Fresh randomness.
#[derive(Clone, PartialEq, Eq)]
pub struct Reseed {
    /// Drawn by the host for this guest alone.
    pub seed: [u8; 32],
}

impl std::fmt::Debug for Reseed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reseed")
    }
}

impl Payload for Reseed {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.seed);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            seed: from.array()?,
        })
    }
}

/// What a guest is, as it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    /// Version of the agent.
    pub agent: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture, as `uname -m` says.
    pub arch: String,
    /// Model of the processor.
    pub cpu: String,
    /// Host name.
    pub hostname: String,
    /// Processors.
    pub cpus: u32,
    /// Memory in all, in bytes.
    pub memory_total: u64,
    /// Memory that can still be had, in bytes.
    pub memory_available: u64,
    /// Milliseconds since the kernel's start.
    pub uptime_ms: u64,
    /// Programs running for the host at this moment.
    pub execs: u32,
}

impl Payload for Info {
    fn encode(&self, out: &mut Encoder) {
        for text in [
            &self.agent,
            &self.kernel,
            &self.arch,
            &self.cpu,
            &self.hostname,
        ] {
            out.bytes(clip(text).as_bytes());
        }
        out.u32(self.cpus);
        out.u64(self.memory_total);
        out.u64(self.memory_available);
        out.u64(self.uptime_ms);
        out.u32(self.execs);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            agent: from.text(MAX_TEXT, "agent")?,
            kernel: from.text(MAX_TEXT, "kernel")?,
            arch: from.text(MAX_TEXT, "arch")?,
            cpu: from.text(MAX_TEXT, "cpu")?,
            hostname: from.text(MAX_TEXT, "hostname")?,
            cpus: from.u32()?,
            memory_total: from.u64()?,
            memory_available: from.u64()?,
            uptime_ms: from.u64()?,
            execs: from.u32()?,
        })
    }
}

fn path(from: &mut Decoder<'_>) -> Result<Vec<u8>, WireError> {
    let path = from.os_bytes(MAX_PATH, "path")?;
    if path.first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(WireError::Invalid { field: "path" })
    }
}

fn mode(from: &mut Decoder<'_>) -> Result<u32, WireError> {
    let mode = from.u32()?;
    if mode <= 0o7777 {
        Ok(mode)
    } else {
        Err(WireError::Invalid { field: "mode" })
    }
}

/// Returns as much of `text` as a message may hold.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
