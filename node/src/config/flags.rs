//! The flags of `rhizome up`.
use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::Args;
use rhizome_sandbox::{Accel, DriverChoice};

use super::{E2bFlags, RelayFlags};

/// The flags of `rhizome up`, with the environment below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct UpFlags {
    /// Name of this node, for people [default: the host's name]
    #[arg(long, env = "RHIZOME_NAME")]
    pub name: Option<String>,
    /// UDP address to listen on [default: 0.0.0.0:4580]
    #[arg(long, value_name = "IP:PORT", env = "RHIZOME_BIND")]
    pub bind: Option<SocketAddr>,
    /// TCP address of this machine to serve the API on, for those who have a token
    /// (`rhizome token create`) [default: none]
    #[arg(long, value_name = "IP:PORT", env = "RHIZOME_API")]
    pub api: Option<SocketAddr>,
    /// Address to give to others instead of those of the interfaces; may be repeated
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "RHIZOME_ADVERTISE",
        value_delimiter = ','
    )]
    pub advertise: Vec<SocketAddr>,
    /// The relay.
    #[command(flatten)]
    pub relay: RelayFlags,
    /// Do not run sandboxes
    #[arg(long)]
    pub no_sandboxes: bool,
    /// Do not look for members on the local network
    #[arg(long)]
    pub no_mdns: bool,
    /// Directory of images and kernels, which several daemons may share [default: in the data directory]
    #[arg(long, value_name = "DIR", env = "RHIZOME_IMAGES_DIR")]
    pub images_dir: Option<PathBuf>,
    /// Kernel for sandboxes instead of the distribution's
    #[arg(long, value_name = "FILE", env = "RHIZOME_KERNEL")]
    pub kernel: Option<PathBuf>,
    /// QEMU program [default: found on PATH]
    #[arg(long, value_name = "FILE", env = "RHIZOME_QEMU")]
    pub qemu: Option<PathBuf>,
    /// Cloud Hypervisor program [default: found on PATH]
    #[arg(long, value_name = "FILE", env = "RHIZOME_CLOUD_HYPERVISOR")]
    pub cloud_hypervisor: Option<PathBuf>,
    /// What new sandboxes run under: auto, qemu-microvm or cloud-hypervisor [default: auto]
    #[arg(long, env = "RHIZOME_DRIVER")]
    pub driver: Option<DriverChoice>,
    /// How guests run: auto, kvm or tcg [default: auto]
    #[arg(long, env = "RHIZOME_ACCEL")]
    pub accel: Option<Accel>,
    /// Keep this many booted guests, one for each image and size, so that create copies one
    /// instead of booting [default: 0]
    #[arg(long, env = "RHIZOME_POOL", value_name = "N")]
    pub pool: Option<usize>,
    /// Make no sandboxes for other nodes
    #[arg(long)]
    pub no_remote: bool,
    /// Label that other nodes choose this one by, as NAME or NAME=VALUE; may be repeated
    #[arg(
        long = "label",
        value_name = "NAME[=VALUE]",
        env = "RHIZOME_LABELS",
        value_delimiter = ','
    )]
    pub labels: Vec<String>,
    /// The door for clients of E2B.
    #[command(flatten)]
    pub e2b: E2bFlags,
}

impl UpFlags {
    /// Returns the flags as one would type them, for a process that takes them over.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        let mut push = |name: &str, value: OsString| {
            args.push(name.into());
            args.push(value);
        };
        if let Some(name) = &self.name {
            push("--name", name.into());
        }
        if let Some(bind) = self.bind {
            push("--bind", bind.to_string().into());
        }
        if let Some(api) = self.api {
            push("--api", api.to_string().into());
        }
        for addr in &self.advertise {
            push("--advertise", addr.to_string().into());
        }
        let paths = [
            ("--images-dir", &self.images_dir),
            ("--kernel", &self.kernel),
            ("--qemu", &self.qemu),
            ("--cloud-hypervisor", &self.cloud_hypervisor),
        ];
        for (name, path) in paths {
            if let Some(path) = path {
                // The process that takes over may have another working directory.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                push(name, path.into());
            }
        }
        if let Some(driver) = self.driver {
            push("--driver", driver.to_string().into());
        }
        if let Some(accel) = self.accel {
            push("--accel", accel.to_string().into());
        }
        if let Some(pool) = self.pool {
            push("--pool", pool.to_string().into());
        }
        self.e2b.push_args(&mut args);
        self.relay.push_args(&mut args);
        for label in &self.labels {
            args.push("--label".into());
            args.push(label.into());
        }
        if self.no_remote {
            args.push("--no-remote".into());
        }
        if self.no_sandboxes {
            args.push("--no-sandboxes".into());
        }
        if self.no_mdns {
            args.push("--no-mdns".into());
        }
        args
    }
}

/// Reads `name` or `name=value`.
pub(super) fn parse_label(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    (name.trim().to_owned(), value.trim().to_owned())
}
