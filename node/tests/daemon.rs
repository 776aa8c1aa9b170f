//! Real daemons, started from the built program, each on a directory and a loopback port of its own.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]
#[path = "daemon/api.rs"]
mod api;
#[path = "daemon/backup.rs"]
mod backup;
#[path = "daemon/clients.rs"]
mod clients;
#[path = "daemon/contexts.rs"]
mod contexts;
#[path = "daemon/crash.rs"]
mod crash;
#[path = "daemon/disk.rs"]
mod disk;
#[path = "daemon/drivers.rs"]
mod drivers;
#[path = "daemon/e2b.rs"]
mod e2b;
#[path = "daemon/envd.rs"]
mod envd;
#[path = "daemon/epochs.rs"]
mod epochs;
#[path = "daemon/files.rs"]
mod files;
#[path = "daemon/gap.rs"]
mod gap;
#[path = "daemon/hosts.rs"]
mod hosts;
#[path = "daemon/http.rs"]
mod http;
#[path = "daemon/images.rs"]
mod images;
#[path = "daemon/invites.rs"]
mod invites;
#[path = "daemon/keys.rs"]
mod keys;
#[path = "daemon/lifecycle.rs"]
mod lifecycle;
#[path = "daemon/mcp.rs"]
mod mcp;
#[path = "daemon/member.rs"]
mod member;
#[path = "daemon/mesh.rs"]
mod mesh;
#[path = "daemon/network.rs"]
mod network;
#[path = "daemon/pool.rs"]
mod pool;
#[path = "daemon/profiles.rs"]
mod profiles;
#[path = "daemon/redact.rs"]
mod redact;
#[path = "daemon/remote.rs"]
mod remote;
#[path = "daemon/resume.rs"]
mod resume;
#[path = "daemon/sandbox.rs"]
mod sandbox;
#[path = "daemon/stream.rs"]
mod stream;
#[path = "daemon/support.rs"]
mod support;
#[path = "daemon/takeover.rs"]
mod takeover;
#[path = "daemon/usage.rs"]
mod usage;
#[path = "daemon/views.rs"]
mod views;
#[path = "daemon/volume.rs"]
mod volume;
#[path = "daemon/volume_care.rs"]
mod volume_care;
