//! What arrived, in the order in which it arrived here.

use serde::Serialize;

use crate::{FragmentId, MemoryItem};

/// The most events one call of [`crate::Replica::watch`] returns.
pub const MAX_WATCH: usize = 1024;

/// A fragment that changed a memory, with the memory as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WatchEvent {
    /// The place in the order of arrival on this node; pass it back as `after` to go on from here.
    pub arrival: u64,
    /// The fragment that arrived.
    pub id: FragmentId,
    /// Whether it was published on this node.
    pub own: bool,
    /// The memory it belongs to.
    pub item: MemoryItem,
}
