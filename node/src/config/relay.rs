//! The relay that a node serves for its mesh.
use std::{ffi::OsString, net::SocketAddr};

use clap::Args;
use rhizome_identity::is_relay_url;
use rhizome_mesh::net::RelayConfig;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The part `relay` of `config.json`: a relay is served if it is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayFile {
    /// The TCP address to listen on; that of `bind` if absent.
    pub listen: Option<SocketAddr>,
    /// The URL at which others reach it; made from the addresses if absent.
    pub url: Option<String>,
}

/// The flags of `rhizome up` for it, with the environment below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct RelayFlags {
    /// Serve as relay: carry packets for members who cannot reach each other, on the TCP port of
    /// the same number as `--bind`
    #[arg(id = "relay", long = "relay")]
    pub serve: bool,
    /// TCP address for the relay to listen on; implies --relay [default: that of --bind]
    #[arg(
        id = "relay-listen",
        long = "relay-listen",
        value_name = "IP:PORT",
        env = "RHIZOME_RELAY_LISTEN"
    )]
    pub listen: Option<SocketAddr>,
    /// URL at which others reach the relay, behind a forwarded port or a proxy that speaks TLS;
    /// implies --relay
    #[arg(
        id = "relay-url",
        long = "relay-url",
        value_name = "URL",
        env = "RHIZOME_RELAY_URL"
    )]
    pub url: Option<String>,
}

impl RelayFlags {
    /// Whether any of them is given.
    pub(super) fn are_said(&self) -> bool {
        self.serve || self.listen.is_some() || self.url.is_some()
    }

    /// Adds the flags as one would type them.
    pub(super) fn push_args(&self, args: &mut Vec<OsString>) {
        if self.serve {
            args.push("--relay".into());
        }
        if let Some(listen) = self.listen {
            args.extend(["--relay-listen".into(), listen.to_string().into()]);
        }
        if let Some(url) = &self.url {
            args.extend(["--relay-url".into(), url.into()]);
        }
    }

    /// Puts the flags over what the file says.
    pub(super) fn over(self, file: Option<RelayFile>) -> Option<RelayFile> {
        if !self.are_said() {
            return file;
        }
        let file = file.unwrap_or_default();
        Some(RelayFile {
            listen: self.listen.or(file.listen),
            url: self.url.or(file.url),
        })
    }
}

impl RelayFile {
    /// Returns the relay of a node that listens at `bind`.
    pub(crate) fn config(&self, bind: SocketAddr) -> RelayConfig {
        RelayConfig {
            listen: self.listen.unwrap_or(bind),
            url: self.url.clone(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match &self.url {
            Some(url) if !is_relay_url(url) => Err(ConfigError::RelayUrl {
                url: url.chars().take(128).collect(),
            }),
            _ => Ok(()),
        }
    }
}
