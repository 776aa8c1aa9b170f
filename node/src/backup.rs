//! Everything a node needs, in one file that is encrypted for its owner.
//!
//! The file is age around tar (`docs/backup.md`), so that it can be opened without this program:
//!
//! ```text
//! contents.json   what follows, with lengths: nothing is written before this is judged
//! node.key …      the files, in that order; keys first
//! BLAKE3SUMS      their hashes, as `b3sum --check` reads them
//! counts.json     what the segments hold
//! ```
//!
//! - [`contents`]: which files belong to a backup, and the list of them
//! - [`pack`]: writes one, from a store that is in use
//! - [`unpack`]: reads one, checks all of it, and hands its files on
//! - [`restore`]: makes a data directory of one, whole or not at all
//! - [`sealed`]: age, and who can open it
mod contents;
mod error;
mod pack;
mod restore;
mod sealed;
#[cfg(test)]
mod tests;
mod unpack;

pub(crate) use self::{
    contents::Contents,
    error::BackupError,
    pack::{Pack, key_files},
    restore::restore,
    sealed::{Opener, Sealer, first_line, read_bounded},
    unpack::{Checked, verify},
};
