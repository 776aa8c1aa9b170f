//! Why a sandbox could not do what was asked.

use std::{io, path::PathBuf};

use crate::{
    Breach, SandboxId,
    channel::{ChannelError, ExecError, FileError},
    chunks::ChunkError,
    driver::DriverError,
    image::ImageError,
    kernel::KernelError,
    life::{Action, LeaseError, Refused},
    manager::OverQuota,
    snapshot::SnapshotError,
};

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
    /// Another daemon has the directory.
    #[error("another daemon uses the sandbox directory `{}`", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
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
    /// A quota is used up.
    #[error(transparent)]
    OverQuota(#[from] OverQuota),
    /// The sandbox is not (or no longer) running.
    #[error("sandbox {id} is {state}")]
    NotRunning {
        /// Which one.
        id: SandboxId,
        /// Its state, for people.
        state: String,
    },
    /// The sandbox is in no state for that.
    #[error("cannot {action} sandbox {id}: {why}")]
    Refused {
        /// Which one.
        id: SandboxId,
        /// What was asked for.
        action: Action,
        /// Why not.
        why: Refused,
    },
    /// What the sandbox held in memory is gone, and it is not replaced by an empty one.
    #[error("the state of sandbox {id} was lost: {what}")]
    StateLost {
        /// Which one.
        id: SandboxId,
        /// What was lost, and how.
        what: String,
    },
    /// It runs ahead of its disks, and has to have them for that.
    #[error(
        "the disks of sandbox {id} are still on their way, {} MiB are left{}",
        left >> 20,
        why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
    )]
    Arriving {
        /// Which one.
        id: SandboxId,
        /// Bytes that are not here yet.
        left: u64,
        /// Why the next of them cannot be had, if so.
        why: Option<String>,
    },
    /// There is no snapshot to go back to.
    #[error("sandbox {id} has no snapshot")]
    NoSnapshot {
        /// Which one.
        id: SandboxId,
    },
    /// The snapshot is not among those of this node.
    #[error("no snapshot is called `{wanted}`")]
    UnknownSnapshot {
        /// What was asked for.
        wanted: String,
    },
    /// A snapshot could not be taken or used.
    #[error("the snapshot failed")]
    Snapshot(#[from] SnapshotError),
    /// The chunk store failed.
    #[error("the chunk store failed")]
    Chunks(#[from] ChunkError),
    /// The guest could not be made fit for a snapshot; it runs on.
    #[error("the guest of sandbox {id} could not be held for a snapshot: {what}")]
    Quiesce {
        /// Which one.
        id: SandboxId,
        /// Why.
        what: String,
    },
    /// The runtime is not what the sandbox relies on.
    #[error(
        "the runtime of sandbox {id} is not what {} relies on: {}",
        by.as_deref().unwrap_or("it"),
        list(breaches)
    )]
    Contract {
        /// Which one.
        id: SandboxId,
        /// Who relies on it, if it is not the sandbox itself.
        by: Option<String>,
        /// What does not hold.
        breaches: Vec<Breach>,
    },
    /// The lease cannot be had.
    #[error("the lease cannot be had")]
    Lease(#[from] LeaseError),
    /// The image cannot be used or made.
    #[error("cannot make the image ready")]
    Image(#[from] ImageError),
    /// The kernel cannot be used or fetched.
    #[error("cannot make the kernel ready")]
    Kernel(#[from] KernelError),
    /// The virtual machine monitor refused or died.
    #[error("cannot run the microVM")]
    Driver(#[from] DriverError),
    /// The guest did not come up, or its channel failed.
    #[error("the guest of sandbox {id} failed")]
    Guest {
        /// Which one.
        id: SandboxId,
        /// How.
        source: ChannelError,
    },
    /// The monitor ended while its guest booted.
    #[error("the monitor of sandbox {id} ended: {how}")]
    MonitorEnded {
        /// Which one.
        id: SandboxId,
        /// How, with its last words.
        how: String,
    },
    /// A command could not be run.
    #[error("cannot run the command in sandbox {id}")]
    Exec {
        /// Which one.
        id: SandboxId,
        /// Why.
        source: ExecError,
    },
    /// A file could not be read or written.
    #[error("cannot use a file of sandbox {id}")]
    File {
        /// Which one.
        id: SandboxId,
        /// Why.
        source: FileError,
    },
    /// The sandbox was ended while it was being made.
    #[error("sandbox {id} was ended while it was being made")]
    Cancelled {
        /// Which one.
        id: SandboxId,
    },
    /// The guest has no network as it should have.
    #[error("the network of sandbox {id} cannot be made")]
    Network {
        /// Which one.
        id: SandboxId,
        /// Why.
        source: crate::egress::EgressError,
    },
    /// The node is going down.
    #[error("the sandbox manager is stopping")]
    Stopping,
}

fn list(breaches: &[Breach]) -> String {
    let all: Vec<_> = breaches.iter().map(ToString::to_string).collect();
    all.join("; ")
}

impl SandboxError {
    /// Returns what the reader can do about it, in one sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Image(error) => error.hint(),
            Self::Kernel(error) => error.hint(),
            Self::Driver(error) => error.hint(),
            Self::Guest { source, .. } => source.hint(),
            Self::MonitorEnded { .. } => {
                Some("the guest's console says more: `rhizome sandbox logs`".to_owned())
            }
            Self::Exec { source, .. } => source.hint(),
            Self::File { source, .. } => source.hint(),
            Self::InUse { .. } => {
                Some("stop it with `rhizome down`, or use another data directory".to_owned())
            }
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
            Self::OverQuota(quota) => Some(quota.hint.clone()),
            Self::Refused { why, .. } => Some(why.hint().to_owned()),
            Self::StateLost { .. } => Some(
                "`rhizome sandbox resume` goes back to its last snapshot, if it has one; `rhizome sandbox kill` forgets it"
                    .to_owned(),
            ),
            Self::Arriving { why: None, .. } => {
                Some("try again in a while; `rhizome sandbox list` shows what is left".to_owned())
            }
            Self::Arriving { .. } => Some(
                "it goes on by itself when a node that holds its snapshot is connected again"
                    .to_owned(),
            ),
            Self::Contract { .. } => Some(
                "resume it where that holds, or go on all the same with `--force`".to_owned(),
            ),
            Self::NoSnapshot { .. } => {
                Some("what it held is gone; create a new sandbox".to_owned())
            }
            Self::UnknownSnapshot { .. } => {
                Some("`rhizome snapshot list` shows every snapshot of this node".to_owned())
            }
            Self::Snapshot(error) => error.hint(),
            Self::Chunks(error) => error.hint(),
            Self::Quiesce { .. } => {
                Some("look at the hook's output, or allow more time with `--deadline`".to_owned())
            }
            Self::NotRunning { .. } => Some(
                "create a new sandbox; `rhizome sandbox logs` shows what its console said"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
