//! What a sandbox can be resumed from.
//!
//! [`freeze`] stops a guest and takes its memory, its disks and the state of its devices at one
//! moment ([`Frozen`]). From there a guest is started again at once, any number of times
//! ([`Frozen::fork`]), or its parts go into the chunk store ([`capture`]), named by a
//! [`Manifest`], from which any node that fits ([`compatible`]) makes them again ([`wake`]).
//! A guest need not wait for its disks: with [`wake_ahead`] it goes on when its memory is there, and
//! they come behind it ([`Behind`]).
//! [`archive`] puts it all into one file.

pub mod archive;
mod behind;
mod capture;
mod error;
mod freeze;
pub(crate) mod fuzz;
mod late_disk;
mod manifest;
mod materialise;
mod nbd;

pub use behind::{Behind, Standing};
pub use capture::{Captured, capture};
pub use error::{Incompatible, SnapshotError};
pub use freeze::{Freeze, Frozen, FrozenDisk, freeze};
pub use manifest::{
    About, CHUNK_BYTES, DiskMap, HostFacts, Manifest, Map, compatible, differences,
};
pub use materialise::{Materialised, materialise, wake, wake_ahead};

#[cfg(test)]
mod tests;
