//! The node: the daemon, its local API, the door for sandboxes, the command line.
//!
//! - [`daemon`]: the parts of a node, started in order, served and stopped
//! - [`api`]: what travels over the daemon's socket, and the routes that answer it
//! - `door`: the few of those routes that a sandbox reaches, and whose it is
//! - [`cli`]: the command line, every verb through that API
//! - [`config`], [`datadir`]: settings and files; nothing else reads either
//! - `remote`: what other nodes may ask of this one, and what this one asks of them
//! - `mcp`: the same for agents whose client speaks the Model Context Protocol
//! - `control`: who did what here, what it cost, how much is allowed
//! - `secrets`: what looks like a live secret in a text that is about to be shared
//! - `agents`: the keys of the agents that speak here
//! - `backup`: everything a node needs in one encrypted file, and back
//! - `e2b`: the door for clients of E2B
//! - `vault`: how the keys of this node lie at rest
//! - `prompt`: asking for a passphrase on the terminal
//! - [`error`]: errors as the API tells them
#![forbid(unsafe_code)]

pub mod api;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod datadir;
pub mod error;
#[doc(hidden)]
pub mod fuzz;

mod agents;
mod backup;
mod control;
mod door;
mod e2b;
mod mcp;
mod prompt;
mod remote;
mod secrets;
mod vault;
#[cfg(test)]
mod world;
