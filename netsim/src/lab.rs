//! Real daemons on hosts of their own: network namespaces where the machine allows them, loopback elsewhere.
//!
//! [`Hosts`] makes the hosts and takes them away again, [`Daemon`] runs one `rhizome` on one of them,
//! [`setup`] brings the programs of Debian's packages that a sandbox needs, and [`demo`] is the main
//! job from end to end; [`acceptance`] runs the tests that need public clients. Nothing here knows a protocol: everything goes through the command line that
//! users have.

pub mod acceptance;
pub mod daemon;
pub mod demo;
pub mod hosts;
pub mod setup;
pub mod soak;

pub use daemon::Daemon;
pub use hosts::{Host, Hosts};

use std::{io, path::PathBuf};

/// Why a lab could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A program could not be started.
    #[error("cannot run `{command}`")]
    Spawn {
        /// The command line.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program ran and failed; `stderr` holds its last lines.
    #[error("`{command}` failed with {status}: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it printed on standard error.
        stderr: String,
    },
    /// A program's output was not what its documentation says.
    #[error("`{command}` printed something unexpected: {found}")]
    Output {
        /// The command line.
        command: String,
        /// What was found instead.
        found: String,
    },
    /// Something did not come true in time.
    #[error("waited {seconds} s in vain until {what}")]
    Late {
        /// The condition, as the end of a sentence.
        what: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A step saw something else than it should.
    #[error("{0}")]
    NotSeen(String),
    /// A needed program is missing and could not be installed.
    #[error("missing: {}; install it with `{command}`", programs.join(", "))]
    Missing {
        /// What was looked for.
        programs: Vec<String>,
        /// The command that brings it.
        command: String,
    },
    /// A file or directory of the lab could not be used.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
