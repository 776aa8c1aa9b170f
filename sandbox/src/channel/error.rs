//! What ends a channel, a command or a transfer, and what to do about it.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use rhizome_guest::wire::{Failure, FailureCode, WireError};

/// Why a channel ended, or never began.
///
/// It is shared by all that ran on the channel, so it clones.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Nobody listens on the socket.
    #[error("cannot connect to the guest channel `{}`", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Reading or writing failed.
    #[error("the guest channel broke")]
    Io {
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The other end is gone: the virtual machine has ended.
    #[error("the guest is gone")]
    Gone,
    /// We closed the channel.
    #[error("the guest channel was closed")]
    Closed,
    /// The guest did not come up.
    #[error("the guest was not ready within {after:?}")]
    NotReady {
        /// How long we waited.
        after: Duration,
    },
    /// The guest speaks another version of the protocol.
    #[error("the guest speaks version {guest} of the channel protocol, this node speaks {host}")]
    Version {
        /// The guest's version.
        guest: u16,
        /// Ours.
        host: u16,
    },
    /// The guest sent bytes without end, and no greeting among them.
    #[error("the guest sent {bytes} bytes that are no greeting")]
    Garbage {
        /// Bytes read.
        bytes: u64,
    },
    /// The guest sent bytes that are no frame or no message.
    #[error("the guest sent something malformed")]
    Malformed {
        /// What is wrong with it.
        source: WireError,
    },
    /// The guest broke a rule of the protocol.
    #[error("the guest broke the channel protocol: {what}")]
    Misbehaved {
        /// The rule.
        what: &'static str,
    },
    /// The guest stopped answering.
    #[error("the guest has not answered for {after:?}")]
    Unresponsive {
        /// How long we waited.
        after: Duration,
    },
    /// The guest started anew: all that ran in it is lost.
    #[error("the guest started anew")]
    Restarted,
    /// The guest refused or failed a request about itself.
    #[error("the guest failed: {message}")]
    Failed {
        /// What it said.
        message: String,
    },
    /// As many requests are open as may be.
    #[error("too many requests are open in this sandbox; the limit is {limit}")]
    Busy {
        /// The limit.
        limit: usize,
    },
}

impl ChannelError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Version { .. } => "build the image again with this version of rhizome".to_owned(),
            Self::NotReady { .. } | Self::Gone | Self::Restarted => {
                "the guest's console says more: `rhizome sandbox logs`".to_owned()
            }
            Self::Unresponsive { .. } => {
                "give the sandbox more memory, or kill it: `rhizome sandbox kill`".to_owned()
            }
            Self::Busy { .. } => "wait for running commands to end".to_owned(),
            _ => return None,
        })
    }

    pub(crate) fn io(source: io::Error) -> Self {
        Self::Io {
            source: Arc::new(source),
        }
    }
}

/// Why a program did not run, or was not seen to its end.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The guest has no such program.
    #[error("no program `{program}` in the sandbox")]
    NoSuchProgram {
        /// As it was asked for.
        program: String,
    },
    /// The file is there but can't be run.
    #[error("cannot run `{program}` in the sandbox: {message}")]
    NotExecutable {
        /// As it was asked for.
        program: String,
        /// What the guest said.
        message: String,
    },
    /// The guest has no such user or group.
    #[error("no user `{user}` in the sandbox")]
    NoSuchUser {
        /// As it was asked for.
        user: String,
    },
    /// The working directory is not there.
    #[error("no directory `{cwd}` in the sandbox")]
    NoSuchCwd {
        /// As it was asked for.
        cwd: String,
    },
    /// Arguments and environment together are too large.
    #[error("arguments and environment are {size} bytes; the limit is {limit}")]
    TooLarge {
        /// Their size, encoded.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// It said more than its reader wants to hold.
    #[error("the program's output is over {limit} bytes")]
    Output {
        /// The limit.
        limit: usize,
    },
    /// The request makes no sense.
    #[error("{message}")]
    Invalid {
        /// Why.
        message: String,
    },
    /// As much runs in the sandbox as may.
    #[error("too much runs in the sandbox at once")]
    Busy,
    /// The guest failed in some other way.
    #[error("the sandbox could not run `{program}`: {message}")]
    Guest {
        /// As it was asked for.
        program: String,
        /// What the guest said.
        message: String,
    },
    /// No program has this id, or its end was forgotten.
    #[error("no command `{id}` in the sandbox")]
    NoSuchExec {
        /// As it was asked for.
        id: String,
    },
    /// A program has this id already.
    #[error("the sandbox has a command with this id already")]
    IdTaken,
    /// The guest is about to be copied, and starts nothing until that is over.
    #[error("the sandbox is at rest")]
    AtRest,
    /// Another reader attached the program; it runs on.
    #[error("the command is read elsewhere now")]
    TakenOver,
    /// The program has ended, so it takes no more input and no signals.
    #[error("the program has ended")]
    Ended,
    /// The sandbox ended, or was lost, while the program ran; how it ended is not known.
    #[error("the sandbox is gone")]
    SandboxGone {
        /// What became of it.
        source: ChannelError,
    },
}

impl ExecError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoSuchProgram { .. } => {
                "use its full path, or an image that has it: `rhizome image build debian \
                 --packages NAME`"
                    .to_owned()
            }
            Self::TooLarge { .. } => {
                "write the data to a file in the sandbox, or to the program's standard input"
                    .to_owned()
            }
            Self::NoSuchUser { .. } => "use a name from its /etc/passwd, or a number".to_owned(),
            Self::NoSuchExec { .. } => {
                "`rhizome sandbox ps` lists its commands, and those that ended".to_owned()
            }
            Self::Busy => "wait for running commands to end".to_owned(),
            Self::AtRest => "wait until its snapshot is taken, or resume it".to_owned(),
            Self::SandboxGone { source } => return source.hint(),
            _ => return None,
        })
    }

    pub(crate) fn from_failure(failure: Failure, program: &str, user: &str, cwd: &str) -> Self {
        let program = program.to_owned();
        let message = printable(&failure.message);
        match failure.code {
            FailureCode::NoSuchProgram => Self::NoSuchProgram { program },
            FailureCode::NotExecutable => Self::NotExecutable { program, message },
            FailureCode::NoSuchUser => Self::NoSuchUser {
                user: user.to_owned(),
            },
            FailureCode::NoSuchCwd => Self::NoSuchCwd {
                cwd: cwd.to_owned(),
            },
            FailureCode::TooMany => Self::Busy,
            FailureCode::NoSuchExec => Self::NoSuchExec { id: program },
            FailureCode::AlreadyExists => Self::IdTaken,
            FailureCode::TakenOver => Self::TakenOver,
            FailureCode::AtRest => Self::AtRest,
            FailureCode::Invalid => Self::Invalid { message },
            _ => Self::Guest { program, message },
        }
    }
}

impl From<ChannelError> for ExecError {
    fn from(source: ChannelError) -> Self {
        match source {
            ChannelError::Busy { .. } => Self::Busy,
            source => Self::SandboxGone { source },
        }
    }
}

/// Why a file of the guest could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// No such file or directory.
    #[error("no file or directory `{path}` in the sandbox")]
    NotFound {
        /// As it was asked for.
        path: String,
    },
    /// The path is not absolute, too long, or holds a NUL.
    #[error("`{path}` is not an absolute path of at most 4096 bytes")]
    InvalidPath {
        /// As it was asked for.
        path: String,
    },
    /// The guest refused or failed.
    #[error("the sandbox cannot use `{path}`: {message}")]
    Guest {
        /// As it was asked for.
        path: String,
        /// Why, for programs.
        code: FailureCode,
        /// Why, in the guest's words.
        message: String,
    },
    /// What arrived is not what was sent.
    #[error("`{path}` was damaged on its way")]
    Damaged {
        /// As it was asked for.
        path: String,
    },
    /// The directory has more entries than may be listed.
    #[error("`{path}` has more than {limit} entries")]
    TooManyEntries {
        /// As it was asked for.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// What was to be written could not be read on this side.
    #[error("cannot read what is to be written to `{path}`")]
    Source {
        /// As it was asked for.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The guest's agent is of a time before this could be asked.
    #[error("the agent in the sandbox is too old for what was asked of `{path}`")]
    OldGuest {
        /// As it was asked for.
        path: String,
    },
    /// The sandbox ended or was lost on the way.
    #[error("the sandbox is gone")]
    SandboxGone {
        /// What became of it.
        source: ChannelError,
    },
}

impl FileError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::InvalidPath { .. } => Some("use a path that starts with `/`".to_owned()),
            Self::SandboxGone { source } => source.hint(),
            Self::OldGuest { .. } => Some(
                "it runs on from a snapshot of an older version: stop and start the sandbox"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    pub(crate) fn from_failure(failure: Failure, path: &str) -> Self {
        let path = path.to_owned();
        match failure.code {
            FailureCode::NotFound => Self::NotFound { path },
            FailureCode::Checksum => Self::Damaged { path },
            code => Self::Guest {
                path,
                code,
                message: printable(&failure.message),
            },
        }
    }
}

impl From<ChannelError> for FileError {
    fn from(source: ChannelError) -> Self {
        Self::SandboxGone { source }
    }
}

/// Why a port of the guest could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// Nothing listens there.
    #[error("nothing listens on port {port} in the sandbox")]
    Refused {
        /// The port.
        port: u16,
    },
    /// The guest failed in some other way.
    #[error("the sandbox cannot reach its port {port}: {message}")]
    Guest {
        /// The port.
        port: u16,
        /// What the guest said.
        message: String,
    },
    /// As many connections are open as may be.
    #[error("too many connections into the sandbox are open")]
    Busy,
    /// The sandbox ended or was lost.
    #[error("the sandbox is gone")]
    SandboxGone {
        /// What became of it.
        source: ChannelError,
    },
}

impl ForwardError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { .. } => Some(
                "start the server first; it must listen on the loopback device, or on all"
                    .to_owned(),
            ),
            Self::SandboxGone { source } => source.hint(),
            _ => None,
        }
    }
}

impl From<ChannelError> for ForwardError {
    fn from(source: ChannelError) -> Self {
        match source {
            ChannelError::Busy { .. } => Self::Busy,
            source => Self::SandboxGone { source },
        }
    }
}

/// Why a guest could not be made fit to be copied. It runs as before.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QuiesceError {
    /// The hook could not be run, or failed.
    #[error("the hook in the sandbox failed: {message}")]
    Hook {
        /// What the guest said.
        message: String,
    },
    /// The hook, or writing out, took too long.
    #[error("the sandbox was not at rest within {after:?}")]
    TimedOut {
        /// How long we waited.
        after: Duration,
    },
    /// The guest failed in some other way.
    #[error("the sandbox cannot come to rest: {message}")]
    Guest {
        /// What the guest said.
        message: String,
    },
    /// The sandbox ended or was lost.
    #[error("the sandbox is gone")]
    SandboxGone {
        /// What became of it.
        #[from]
        source: ChannelError,
    },
}

impl QuiesceError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Hook { .. } => Some("mend the hook, or leave it out".to_owned()),
            Self::TimedOut { .. } => Some("give it a longer deadline".to_owned()),
            Self::SandboxGone { source } => source.hint(),
            Self::Guest { .. } => None,
        }
    }
}

/// Returns a guest's words fit for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
