//! Why a sandbox could not do what was asked.

use std::{io, path::PathBuf};

use crate::{SandboxId, channel, driver::DriverError, image::ImageError, kernel::KernelError};

/// Why a sandbox could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The data directory cannot be used.
    #[error("cannot use the sandbox directory `{}`", path.display())]
    Directory {
        /// The directory or file in it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing has this id, name or prefix.
    #[error("no sandbox is called `{wanted}`")]
    Unknown {
        /// What was asked for.
        wanted: String,
    },
    /// More than one sandbox has this prefix.
    #[error("`{wanted}` could be any of {matches} sandboxes")]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// How many it could be.
        matches: usize,
    },
    /// A part of the request cannot be used.
    #[error("{what}")]
    Invalid {
        /// What, and why.
        what: String,
    },
    /// The name is taken by a sandbox that has not ended.
    #[error("a sandbox called `{name}` exists already ({id})")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        id: SandboxId,
    },
    /// A limit of this node is reached.
    #[error("this node is at its limit of {limit} {what}")]
    LimitReached {
        /// What is limited, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The sandbox is not (or no longer) running.
    #[error("sandbox {id} is {state}")]
    NotRunning {
        /// Which one.
        id: SandboxId,
        /// Its state, for people.
        state: String,
    },
    /// The image cannot be used or made.
    #[error("cannot make the image ready")]
    Image(#[from] ImageError),
    /// The kernel cannot be used or fetched.
    #[error("cannot make the kernel ready")]
    Kernel(#[from] KernelError),
    /// The virtual machine monitor refused or died.
    #[error("cannot run the microVM")]
    Driver(#[from] DriverError),
    /// The guest's channel failed.
    #[error("the guest of sandbox {id} failed")]
    Guest {
        /// Which one.
        id: SandboxId,
        /// How.
        source: channel::ChannelError,
    },
    /// The node is going down.
    #[error("the sandbox manager is stopping")]
    Stopping,
}

impl SandboxError {
    /// Returns what the reader can do about it, in one sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Image(error) => error.hint(),
            Self::Kernel(error) => error.hint(),
            Self::Driver(error) => error.hint(),
            Self::Unknown { .. } => {
                Some("`rhizome sandbox list` shows every sandbox of this node".to_owned())
            }
            Self::Ambiguous { .. } => Some("give more characters of the id".to_owned()),
            Self::NameTaken { .. } => {
                Some("choose another name, or end that sandbox first".to_owned())
            }
            Self::LimitReached { .. } => {
                Some("end a sandbox with `rhizome sandbox kill`, or raise the limit".to_owned())
            }
            Self::NotRunning { .. } => Some(
                "create a new sandbox; `rhizome sandbox logs` shows what its console said"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
