//! The daemon's HTTP API: what it says ([`types`]), how a running command's streams travel
//! ([`exec_frame`]), and the routes that answer it.
//!
//! Every verb of the command line goes through it. `docs/api.md` describes it for people.
pub mod exec_frame;
pub mod types;

mod backup_routes;
mod context_routes;
mod exec_pump;
pub mod exec_routes;
pub(crate) mod extract;
mod file_routes;
pub(crate) mod idempotency;
mod image_routes;
mod key_routes;
mod lifecycle_routes;
pub(crate) mod listen;
mod member_routes;
mod memory_routes;
mod mesh_routes;
mod network_routes;
mod node_routes;
pub mod openapi;
pub(crate) mod page;
mod pool_routes;
pub(crate) mod routes;
mod runtime_routes;
pub(crate) mod sandbox_routes;
pub(crate) mod serve;
mod sse;
pub(crate) mod table;
pub(crate) mod tcp;
pub(crate) mod token;
mod usage_routes;
mod volume_routes;

pub(crate) use self::exec_pump::end_of;
