//! The node as a server of the Model Context Protocol: what an agent's own client speaks.
//!
//! There is one server, in the daemon, and three ways to it: streamable HTTP at `/mcp` wherever the
//! API is served, the guests' door included ([`http`]); and newline-delimited JSON-RPC over an upgraded
//! connection ([`pipe`]), which `rhizome mcp` carries from and to its standard streams. What a client
//! may touch is fixed by its credential before its first message ([`session`]); no argument of a tool
//! widens it. The tools come from profiles ([`profile`]), each another view of the same memories.
//!
//! `docs/mcp.md` describes all of it for people.

pub(crate) mod answer;
mod files;
pub(crate) mod http;
pub(crate) mod kg;
mod mem0;
mod native;
pub(crate) mod pipe;
pub(crate) mod profile;
mod server;
pub(crate) mod session;
mod sessions;
pub(crate) mod shown;
mod updates;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod tests;

pub(crate) use self::sessions::Doors;

/// The name in the `Upgrade` header of a connection that carries MCP's messages, one a line.
pub(crate) const PIPE_PROTOCOL: &str = "rhizome-mcp/1";
/// The largest message of a client, in bytes: a memory of the largest size, escaped, with room.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
