//! What a sandbox can be resumed from.
//!
//! [`freeze`] stops a guest and takes its memory, its disks and the state of its devices at one
//! moment ([`Frozen`]). From there a guest is started again at once, any number of times
//! ([`Frozen::fork`]), or its parts go into the chunk store ([`capture`]), named by a
//! [`Manifest`], from which any node that fits ([`compatible`]) makes them again ([`wake`]).
//! [`archive`] puts it all into one file.

pub mod archive;
mod capture;
mod error;
mod freeze;
mod manifest;
mod materialise;

pub use capture::{Captured, capture};
pub use error::{Incompatible, SnapshotError};
pub use freeze::{Freeze, Frozen, FrozenDisk, freeze};
pub use manifest::{
    About, CHUNK_BYTES, DiskMap, HostFacts, Manifest, Map, compatible, differences,
};
pub use materialise::{Materialised, materialise, wake};

#[cfg(test)]
mod tests;
