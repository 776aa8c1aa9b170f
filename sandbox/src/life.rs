//! The life of a sandbox as a state machine, without any I/O.
//!
//! [`Action`] is the one door: whatever happens to a sandbox, asked for or not, is an action in a
//! [`Phase`], and [`plan`] says what follows: a [`Plan`] of [`Step`]s, or [`Refused`]. One step of
//! a plan is [`Step::Commit`]: the moment at which the sandbox is in its new phase. A failure
//! before it is undone step by step ([`Plan::undo`]); after it the rest is done, however often it
//! takes. What was begun stands in a [`Journal`] on disk before it is done, so that [`recover`]
//! knows, after a crash, whether to go on or back.
//!
//! A [`Lease`] says until when a sandbox may live without anyone asking for more, and what becomes
//! of it then; [`Leases`] has one deadline for all of them.
//!
//! `docs/lifecycle.md` shows the same as a diagram and a table.
mod action;
mod lease;
mod phase;
mod plan;
mod recover;
mod step;

pub use action::{Action, Refused};
pub use lease::{Lease, LeaseEnd, LeaseError, LeaseOwner, Leases, MAX_LEASE_MS};
pub use phase::{Phase, State};
pub use plan::{Plan, plan};
pub use recover::{Facts, Journal, Recovery, recover};
pub use step::Step;

#[cfg(test)]
mod tests;
