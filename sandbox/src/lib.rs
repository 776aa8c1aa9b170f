//! MicroVM sandboxes: images, lifecycle, isolation.
//!
//! [`Sandboxes`] owns every sandbox of one node: it builds the image, boots a microVM through a
//! [`driver::VmmDriver`], speaks to the guest over a [`channel::GuestChannel`] and keeps the
//! state of each sandbox on disk. A guest has no network device; what it needs from its node
//! comes as [`DoorConnection`]s.
//!
//! Everything that comes out of a guest is hostile: no byte of it is trusted for a length, a
//! path or a claim.
#![forbid(unsafe_code)]

pub mod channel;
pub mod chunks;
pub mod driver;
pub mod egress;
#[doc(hidden)]
pub mod fuzz;
pub mod image;
pub mod kernel;
pub mod life;
pub mod probe;
pub mod snapshot;
pub mod volume;

mod apt;
mod command;
mod config;
mod contract;
mod error;
mod fingerprint;
mod id;
mod info;
mod manager;
mod progress;
mod sparse;
mod staging;

pub use apt::AptError;
pub use channel::guest_binary;
pub use command::CommandError;
pub use config::{Accel, DriverChoice, Limits, SandboxConfig};
pub use contract::{Breach, Contract, MAX_REQUIREMENTS, Reliance, Requirement, RequirementError};
pub use error::SandboxError;
pub use fingerprint::{Difference, Fingerprint, Mount, ReportError};
pub use id::{ParseSandboxIdError, SandboxId};
pub use info::{ArrivingDisks, SandboxInfo, SandboxSpec, SnapshotInfo, SnapshotRef};
pub use life::State as SandboxState;
pub use manager::{
    ActionTally, DURATION_BOUNDS_MS, DirEntry, DoorConnection, FileDownload, FileKind, FileStat,
    ForkOptions, Gate, GuestFile, Health, HostTime, Mended, MonitorId, MonitorUsage, OnShutdown,
    OverQuota, PoolInfo, Readings, Relying, ResumeOptions, Sandboxes, SnapshotOptions, Tally,
    Usage, end_monitors,
};
pub use progress::{Progress, ProgressEvent, silent};
#[doc(no_inline)]
pub use rhizome_guest::wire::clip;
