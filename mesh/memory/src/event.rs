//! What the replica tells whoever listens.

use rhizome_identity::Hash;

use crate::Lane;

/// How many events a slow listener may fall behind before it misses some and must reconcile.
pub const EVENT_BACKLOG: usize = 16 * 1024;

/// Something that has become durable here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An item is stored durably and may be sent to others.
    Stored {
        /// The lane it belongs to.
        lane: Lane,
        /// Its id: of a fragment, or of an authority record.
        id: Hash,
        /// Whether it was made here.
        own: bool,
        /// Its place in the order of arrival on this node.
        arrival: u64,
    },
    /// The authority log says something new; [`crate::Replica::authority`] has it.
    AuthorityChanged,
    /// A fragment arrived whose body is a blob that is not here yet.
    BodyWanted(Hash),
    /// The body that a fragment waited for is here.
    BodyStored(Hash),
    /// A body was redacted: whoever else keeps it has to let it go.
    BodyGone(Hash),
}
