//! Why a backup could not be made, read or put back.
use std::{
    io,
    path::{Path, PathBuf},
};

use rhizome_identity::KeyFileError;
use rhizome_memory::AuditError;

use super::contents::FORMAT;

/// Why a backup could not be made, read or put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BackupError {
    /// It was not said who may open it.
    #[error("it is not said who may open the file")]
    NoRecipient,
    /// Nobody can be meant by this.
    #[error("`{0}` is no age recipient")]
    Recipient(String),
    /// The file that was to hold identities holds none.
    #[error("`{}` holds no age identity", .0.display())]
    NoIdentity(PathBuf),
    /// The passphrase is empty, or not one line.
    #[error("the passphrase in `{0}` is empty or too long")]
    Passphrase(String),
    /// What was given opens another file, or none.
    #[error("the file does not open with this {with}")]
    WrongKey {
        /// What was tried.
        with: &'static str,
    },
    /// Opening it would take more work than is sensible.
    #[error("the passphrase is stretched 2^{required} times; at most 2^{limit} are done")]
    TooMuchWork {
        /// What the file asks for, as a power of two.
        required: u8,
        /// What is done at most.
        limit: u8,
    },
    /// It is no age file, or its head is damaged.
    #[error("the file is no age file, or its head is damaged")]
    NotAge,
    /// It ends early, or some of it is not what was written.
    #[error("the file is cut short or damaged: {what}")]
    Damaged {
        /// Where that showed.
        what: String,
    },
    /// It was made by a version that this one does not understand.
    #[error("the backup has format {found}; this program reads format {FORMAT}")]
    Version {
        /// The format it has.
        found: u32,
    },
    /// It names a file that no backup has.
    #[error("a backup holds no file `{path}`")]
    Path {
        /// The name, with what cannot be printed left out.
        path: String,
    },
    /// It says that something is larger than it can be.
    #[error("`{path}` is said to have {bytes} bytes; at most {limit} are possible")]
    TooLarge {
        /// What.
        path: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// What is in it is not what its list says.
    #[error("`{path}` is not what the list of contents says: {what}")]
    Contents {
        /// Which file.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A key in it is none.
    #[error("`{path}` holds no key")]
    Key {
        /// Which file.
        path: String,
    },
    /// The segments are not those of a sound store.
    #[error("the store in the backup is not sound")]
    Store(#[from] AuditError),
    /// The segments hold something else than what was counted when they were copied.
    #[error("the segments hold {found} {what}; {counted} were counted when the backup was made")]
    Count {
        /// What was counted.
        what: &'static str,
        /// How many are there.
        found: u64,
        /// How many were.
        counted: u64,
    },
    /// The directory is not empty.
    #[error("`{}` is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Another process is at it.
    #[error("`{}` is being restored by another process", .0.display())]
    Busy(PathBuf),
    /// There is no room for it.
    #[error("the backup holds {needed} bytes; `{}` has room for {free}", path.display())]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// A file that was to be copied was changed meanwhile.
    #[error("`{path}` changed while it was copied")]
    Changed {
        /// Which file.
        path: String,
    },
    /// A key of this node cannot be read.
    #[error("cannot read a key of this node")]
    OwnKey(#[from] KeyFileError),
    /// The system refused.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl BackupError {
    /// Returns what makes an error of the system's.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// Returns what the reader can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoRecipient => {
                "name who may open it with `--recipient age1…`, or give a passphrase with `--passphrase-file`"
            }
            Self::Recipient(_) => {
                "a recipient begins with `age1`; `age-keygen` makes one, with the identity that opens what is encrypted for it"
            }
            Self::NoIdentity(_) => "an identity is a line that begins with `AGE-SECRET-KEY-1`",
            Self::Passphrase(_) => "put the passphrase on the first line of the file",
            Self::WrongKey { .. } => {
                "give the identity (`--identity`) or the passphrase that it was made for"
            }
            Self::TooMuchWork { .. } => "decrypt it with `age --decrypt` if you trust it",
            Self::NotAge
            | Self::Damaged { .. }
            | Self::Contents { .. }
            | Self::Count { .. }
            | Self::Store(_) => "take another copy of it, or an older backup; nothing was written",
            Self::Version { .. } => "use the version of the program that made it, or a later one",
            Self::Path { .. } | Self::TooLarge { .. } | Self::Key { .. } => {
                "this was made by something else than `rhizome backup`; nothing was written"
            }
            Self::NotEmpty(_) => "restore into a directory that is empty or is not there yet",
            Self::Busy(_) => "wait until it has ended",
            Self::NoRoom { .. } => "free some space, or restore to another disk",
            Self::Changed { .. } => "try again",
            Self::OwnKey(error) => return error.hint(),
            Self::Io {
                what: "put in place",
                ..
            } => "restore into a directory below it: what is mounted cannot be replaced as a whole",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space"
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                "choose another name; a backup is never overwritten"
            }
            Self::Io { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
