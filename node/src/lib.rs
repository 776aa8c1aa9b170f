//! The node: the daemon, its local API, the door for sandboxes, the command line.
//!
//! `api` holds what travels over the daemon's socket.
#![forbid(unsafe_code)]

pub mod api;
