//! Removing what nobody needs.

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// Packs and objects removed.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}
