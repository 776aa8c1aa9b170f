//! Why the keys of a node cannot be had, or cannot lie another way.
use std::{
    io,
    path::{Path, PathBuf},
};

use rhizome_identity::KeyFileError;

use crate::prompt::PromptError;

/// Why the keys of a node cannot be had, or cannot lie another way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultError {
    /// Nobody could be asked for the passphrase.
    #[error("the keys of this node are under a passphrase")]
    Prompt(#[source] PromptError),
    /// The file that was to hold the passphrase is of no use.
    #[error("cannot take the passphrase from `{}`: {why}", path.display())]
    PassphraseFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is another passphrase.
    #[error("the passphrase does not open the keys of this node")]
    WrongPassphrase,
    /// None was given.
    #[error("a passphrase is needed")]
    NoPassphrase,
    /// The program that speaks to the keyring is not there.
    #[error("there is no program `{program}`, which speaks to the keyring")]
    NoKeyring {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The keyring refused, or does not know the lock.
    #[error("the keyring does not {what} the lock of this node's keys: {said}")]
    Keyring {
        /// What was asked.
        what: &'static str,
        /// What the program said.
        said: String,
    },
    /// `keys.json` is damaged, or the lock is another one.
    #[error("what protects the keys of this node is damaged, or belongs to other keys")]
    Damaged,
    /// It was written by a later version.
    #[error("how the keys lie here was written by a later version ({0})")]
    Version(u32),
    /// The passphrase's file is no file of age's.
    #[error("the lock does not open: {0}")]
    Age(String),
    /// A key file cannot be used.
    #[error("a key of this node cannot be used")]
    Key(#[from] KeyFileError),
    /// The system refused.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl VaultError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Prompt(_) | Self::PassphraseFile { .. } => {
                "name a file with it in RHIZOME_PASSPHRASE_FILE, or give the service the credential `rhizome-passphrase`"
            }
            Self::WrongPassphrase => "try again; without it the keys have to come from a backup",
            Self::NoPassphrase => "give it with `--passphrase-file`",
            Self::NoKeyring { package, .. } => {
                return Some(format!(
                    "install {package}, or use `rhizome keys protect --with passphrase`"
                ));
            }
            Self::Keyring { .. } => {
                "log in to the desktop session whose keyring it is, or unlock that"
            }
            Self::Damaged => "restore the node from a backup: `rhizome restore`",
            Self::Version(_) => "use that version of the program",
            Self::Key(error) => return error.hint(),
            Self::Age(_) | Self::Io { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
