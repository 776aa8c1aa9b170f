//! Join: an invite is redeemed once, durably, by the node that issued it.
//!
//! TLS proves the joiner's node key. The invite key signs both node ids and keying material that
//! only the two ends of this TLS session can derive, so a proof can be neither relayed nor
//! replayed. The inviter checks and records under one lock: one use is one use, however many
//! join at once. A joiner whose answer was lost asks again and is answered again.

mod approvals;
pub(crate) mod fuzz;
mod inviter;
mod joiner;
mod lobby;
mod records;
mod wire;

pub(crate) use approvals::Approvals;
pub use approvals::JoinRequest;
pub(crate) use inviter::JoinProtocol;
pub use joiner::Joined;
pub(crate) use joiner::join;
