//! Why a snapshot could not be taken or used.

use std::{io, path::PathBuf};

use crate::{chunks::ChunkError, driver::DriverError};

/// Why a snapshot could not be taken or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The monitor did not do its part.
    #[error("the monitor did not save or restore its guest")]
    Driver(#[from] DriverError),
    /// The chunk store failed, or a chunk is missing or damaged.
    #[error("the chunk store failed")]
    Chunks(#[from] ChunkError),
    /// A file failed.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest is not one.
    #[error("the manifest cannot be used: {what}")]
    Manifest {
        /// Why.
        what: String,
    },
    /// A file is not what an export writes.
    #[error("the file cannot be used: {what}")]
    Archive {
        /// Why.
        what: String,
    },
    /// Nothing of this node opens it.
    #[error("the snapshot is sealed with the key of a space that this node does not read")]
    Sealed,
    /// The snapshot fits no guest that this host could run.
    #[error("the snapshot does not fit this host")]
    Incompatible(#[from] Incompatible),
}

impl SnapshotError {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Driver(error) => error.hint(),
            Self::Incompatible(error) => Some(error.hint()),
            Self::Archive { .. } => Some("export it again: `rhizome snapshot export`".to_owned()),
            Self::Sealed => Some(
                "import it on a member of the mesh that is a reader of the sandbox's space, or ask an admin for that role"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Why a guest cannot go on here: what differs, as the snapshot has it and as this host has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incompatible {
    /// Another driver.
    #[error("it was made by the driver {snapshot}; this is {host}")]
    Driver {
        /// The snapshot's.
        snapshot: String,
        /// This host's.
        host: String,
    },
    /// Another monitor, or another version of it.
    #[error("it was made by {snapshot}; this host has {host}")]
    Vmm {
        /// The snapshot's.
        snapshot: String,
        /// This host's.
        host: String,
    },
    /// Another machine.
    #[error("its machine is `{snapshot}`; this host's is `{host}`")]
    Machine {
        /// The snapshot's.
        snapshot: String,
        /// This host's.
        host: String,
    },
    /// KVM here, emulation there.
    #[error("it ran under {snapshot}; guests run under {host} here")]
    Accel {
        /// The snapshot's.
        snapshot: crate::Accel,
        /// This host's.
        host: crate::Accel,
    },
    /// Another processor.
    #[error("its processor is `{snapshot}`; this host's is `{host}`")]
    Cpu {
        /// The snapshot's.
        snapshot: String,
        /// This host's.
        host: String,
    },
    /// The time stamp counter runs at another rate: the guest's clock would be wrong for good.
    #[error("its counter runs at {snapshot} kHz; this host's at {host} kHz")]
    Tsc {
        /// The snapshot's, in kHz.
        snapshot: u64,
        /// This host's, in kHz.
        host: u64,
    },
    /// More memory than this host gives.
    #[error("it needs {snapshot} MiB of memory; this host gives {host}")]
    Memory {
        /// The snapshot's, in MiB.
        snapshot: u32,
        /// This host's limit, in MiB.
        host: u32,
    },
    /// Its image is not here.
    #[error("its image {image_id} is not here")]
    Image {
        /// The image.
        image_id: String,
    },
    /// The agent in the guest speaks another protocol.
    #[error("its agent speaks protocol {snapshot}; this host speaks {host}")]
    Protocol {
        /// The snapshot's.
        snapshot: u32,
        /// This host's.
        host: u32,
    },
}

impl Incompatible {
    /// Returns what the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Image { .. } => "fetch the image, or build it, and try again",
            Self::Driver { snapshot, .. } => {
                return format!("resume it on a node that has the driver {snapshot}, or install that here");
            }
            Self::Memory { .. } => "raise the limit, or resume it on a node with more memory",
            _ => "resume it on a node like the one it was made on; files can be taken out of the snapshot anywhere",
        }
        .to_owned()
    }
}
