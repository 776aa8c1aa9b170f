//! Shared memory: signed fragments, their chains, and what they add up to.
//!
//! Fragments are the truth and live in append-only segment files, which a [`Replica`] owns; the
//! documents, the search index and the working contexts are a [`View`] that can always be rebuilt
//! from them. [`Admission`] and [`IdSet`] are pure: a simulator drives the code of production.
//! Nothing here knows of sockets or peers.
#![forbid(unsafe_code)]

mod admission;
mod chain;
mod context;
mod disk;
mod document;
mod event;
mod fence;
mod fragment;
#[doc(hidden)]
pub mod fuzz;
mod hlc;
mod id;
mod idset;
mod item;
mod kind;
mod recall;
mod replica;
mod store;
mod view;
mod watch;
mod why;

pub use admission::*;
pub use context::*;
pub use event::*;
pub use fragment::*;
pub use hlc::*;
pub use id::*;
pub use idset::*;
pub use item::*;
pub use kind::*;
pub use recall::*;
pub use replica::*;
pub use view::*;
pub use watch::*;
pub use why::*;

#[cfg(test)]
extern crate self as rhizome_memory;
