//! What a daemon is told: defaults, then `config.json` in the data directory, then the
//! environment, then flags.
//!
//! [`api`], [`e2b`] and [`relay`] hold the settings of those doors, [`flags`] the flags of `rhizome up`.
mod api;
mod e2b;
mod flags;
mod relay;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::{Path, PathBuf},
    time::Duration,
};

use rhizome_memory::ShareLimits;
use rhizome_sandbox::{Accel, DriverChoice};
use serde::{Deserialize, Serialize};

use self::flags::parse_label;
pub use self::{
    api::ApiFile,
    e2b::{ApiKey, E2bConfig, E2bFlags},
    flags::UpFlags,
    relay::{RelayFile, RelayFlags},
};
use crate::api::types::node::Setting;
pub use crate::secrets::SecretRule;

/// The UDP port a node listens on if nothing else is said.
pub const DEFAULT_PORT: u16 = 4580;

/// For how long a copy of a snapshot may be gone before another is made.
const DEFAULT_REPLICA_GRACE: Duration = Duration::from_secs(600);
/// Most labels of a node.
const MAX_LABELS: usize = 32;
/// The longest name of a node, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// What a daemon runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where everything lies.
    pub data_dir: PathBuf,
    /// This node's name, for people.
    pub name: String,
    /// The UDP address to listen on.
    pub bind: SocketAddr,
    /// The TCP address to serve the API on, for those who have a token; none by default.
    pub api: Option<SocketAddr>,
    /// Addresses to put into invites and the address book, instead of those of the interfaces.
    pub advertise: Vec<SocketAddr>,
    /// The relay to serve for members who cannot reach each other, if any.
    pub relay: Option<RelayFile>,
    /// Whether to look for members on the local network.
    pub mdns: bool,
    /// Whether to run sandboxes.
    pub sandboxes: bool,
    /// Images and kernels; several daemons of one machine may share it.
    pub images_dir: PathBuf,
    /// A kernel for sandboxes instead of the distribution's.
    pub kernel: Option<PathBuf>,
    /// The QEMU program; found on `PATH` if absent.
    pub qemu: Option<PathBuf>,
    /// The Cloud Hypervisor program; found on `PATH` if absent.
    pub cloud_hypervisor: Option<PathBuf>,
    /// What new sandboxes run under.
    pub driver: DriverChoice,
    /// How guests run.
    pub accel: Accel,
    /// Guests that may wait, booted already, for the next sandbox of their image and size.
    pub pool: usize,
    /// Whether other nodes may make sandboxes here, as their grants allow.
    pub remote: bool,
    /// What this node is good for, told to the others: `gpu`, `zone`…
    pub labels: BTreeMap<String, String>,
    /// For how long a node that holds a copy may be gone before another copy is made.
    pub replica_grace: Duration,
    /// The door for clients of E2B.
    pub e2b: E2bConfig,
    /// What may be published and whose word counts.
    pub memory: MemoryConfig,
    /// Where each value came from, if it is no default.
    origins: BTreeMap<&'static str, Origin>,
}

/// Where a setting came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// `config.json`.
    File,
    /// The environment.
    Environment,
    /// A flag of `rhizome up`.
    Flag,
}

/// The content of `config.json`; what is absent keeps its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// See [`Config::name`].
    pub name: Option<String>,
    /// See [`Config::bind`].
    pub bind: Option<SocketAddr>,
    /// See [`Config::api`].
    pub api: Option<ApiFile>,
    /// See [`Config::advertise`].
    pub advertise: Option<Vec<SocketAddr>>,
    /// See [`Config::relay`].
    pub relay: Option<RelayFile>,
    /// See [`Config::mdns`].
    pub mdns: Option<bool>,
    /// See [`Config::sandboxes`].
    pub sandboxes: Option<bool>,
    /// See [`Config::images_dir`].
    pub images_dir: Option<PathBuf>,
    /// See [`Config::kernel`].
    pub kernel: Option<PathBuf>,
    /// See [`Config::qemu`].
    pub qemu: Option<PathBuf>,
    /// See [`Config::cloud_hypervisor`].
    pub cloud_hypervisor: Option<PathBuf>,
    /// See [`Config::driver`].
    pub driver: Option<DriverChoice>,
    /// See [`Config::accel`].
    pub accel: Option<Accel>,
    /// See [`Config::pool`].
    pub pool: Option<usize>,
    /// See [`Config::remote`].
    pub remote: Option<bool>,
    /// See [`Config::labels`].
    pub labels: Option<BTreeMap<String, String>>,
    /// See [`Config::replica_grace`].
    pub replica_grace_secs: Option<u64>,
    /// See [`Config::memory`].
    pub memory: Option<MemoryConfig>,
    /// See [`Config::e2b`].
    pub e2b: Option<E2bConfig>,
}

/// The section `memory` of `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// What happens to a text with something in it that looks like a live secret.
    pub secrets: SecretRule,
    /// Names or ids of agents and nodes whose word stands below everybody else's on this node.
    pub distrust: Vec<String>,
    /// What authors, nodes and spaces may write here before others go first.
    pub shares: ShareLimits,
}

impl Config {
    /// Returns the defaults for `data_dir`, `name` being the host's.
    pub fn defaults(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            name: host_name(),
            bind: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into(),
            api: None,
            advertise: Vec::new(),
            relay: None,
            mdns: true,
            sandboxes: true,
            images_dir: data_dir.join("images"),
            kernel: None,
            qemu: None,
            cloud_hypervisor: None,
            driver: DriverChoice::Auto,
            accel: Accel::Auto,
            pool: 0,
            remote: true,
            labels: BTreeMap::new(),
            replica_grace: DEFAULT_REPLICA_GRACE,
            e2b: E2bConfig::default(),
            memory: MemoryConfig::default(),
            origins: BTreeMap::new(),
        }
    }

    /// Returns the configuration for `data_dir` under `flags`.
    ///
    /// # Errors
    /// [`ConfigError`] if `config.json` cannot be read or a value cannot be used.
    pub fn load(data_dir: &Path, flags: UpFlags) -> Result<Self, ConfigError> {
        let path = data_dir.join("config.json");
        let file = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| ConfigError::Parse {
                path: path.clone(),
                source,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ConfigFile::default(),
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let mut config = Self::defaults(data_dir).with_file(file).with_flags(flags);
        // Not a flag: every user of the machine can read those.
        if let Ok(key) = std::env::var("RHIZOME_E2B_KEY")
            && !key.is_empty()
        {
            config.e2b.key = Some(ApiKey(key));
            config.origins.insert("e2b", Origin::Environment);
        }
        config.checked()
    }

    fn with_file(mut self, file: ConfigFile) -> Self {
        let said = [
            ("name", file.name.is_some()),
            ("bind", file.bind.is_some()),
            ("api.listen", ApiFile::is_said(file.api.as_ref())),
            ("advertise", file.advertise.is_some()),
            ("relay", file.relay.is_some()),
            ("mdns", file.mdns.is_some()),
            ("sandboxes", file.sandboxes.is_some()),
            ("images_dir", file.images_dir.is_some()),
            ("kernel", file.kernel.is_some()),
            ("qemu", file.qemu.is_some()),
            ("cloud_hypervisor", file.cloud_hypervisor.is_some()),
            ("driver", file.driver.is_some()),
            ("accel", file.accel.is_some()),
            ("pool", file.pool.is_some()),
            ("remote", file.remote.is_some()),
            ("labels", file.labels.is_some()),
            ("replica_grace_secs", file.replica_grace_secs.is_some()),
            ("e2b", file.e2b.is_some()),
            ("memory.secrets", file.memory.is_some()),
            ("memory.distrust", file.memory.is_some()),
            ("memory.shares", file.memory.is_some()),
        ];
        let said = said.into_iter().filter(|(_, said)| *said);
        self.origins
            .extend(said.map(|(name, _)| (name, Origin::File)));
        Self {
            name: file.name.unwrap_or(self.name),
            bind: file.bind.unwrap_or(self.bind),
            api: file.api.and_then(|api| api.listen).or(self.api),
            advertise: file.advertise.unwrap_or(self.advertise),
            relay: file.relay.or(self.relay),
            mdns: file.mdns.unwrap_or(self.mdns),
            sandboxes: file.sandboxes.unwrap_or(self.sandboxes),
            // A relative path in a file is relative to the file.
            images_dir: file
                .images_dir
                .map_or(self.images_dir, |path| self.data_dir.join(path)),
            kernel: file
                .kernel
                .map(|path| self.data_dir.join(path))
                .or(self.kernel),
            qemu: file.qemu.or(self.qemu),
            cloud_hypervisor: file.cloud_hypervisor.or(self.cloud_hypervisor),
            driver: file.driver.unwrap_or(self.driver),
            accel: file.accel.unwrap_or(self.accel),
            pool: file.pool.unwrap_or(self.pool),
            remote: file.remote.unwrap_or(self.remote),
            labels: file.labels.unwrap_or(self.labels),
            replica_grace: file
                .replica_grace_secs
                .map_or(self.replica_grace, Duration::from_secs),
            e2b: file.e2b.unwrap_or(self.e2b),
            memory: file.memory.unwrap_or(self.memory),
            data_dir: self.data_dir,
            origins: self.origins,
        }
    }

    fn with_flags(mut self, flags: UpFlags) -> Self {
        let text = |value: Option<&dyn ToString>| value.map(ToString::to_string);
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let addrs: Vec<String> = flags.advertise.iter().map(ToString::to_string).collect();
        let said = [
            ("name", "RHIZOME_NAME", flags.name.clone()),
            (
                "bind",
                "RHIZOME_BIND",
                text(flags.bind.as_ref().map(|v| v as _)),
            ),
            (
                "api.listen",
                "RHIZOME_API",
                text(flags.api.as_ref().map(|v| v as _)),
            ),
            (
                "advertise",
                "RHIZOME_ADVERTISE",
                Some(addrs.join(",")).filter(|_| !addrs.is_empty()),
            ),
            ("relay", "", flags.relay.are_said().then(String::new)),
            ("mdns", "", flags.no_mdns.then(String::new)),
            ("sandboxes", "", flags.no_sandboxes.then(String::new)),
            ("remote", "", flags.no_remote.then(String::new)),
            (
                "labels",
                "RHIZOME_LABELS",
                Some(flags.labels.join(",")).filter(|_| !flags.labels.is_empty()),
            ),
            ("images_dir", "RHIZOME_IMAGES_DIR", path(&flags.images_dir)),
            ("kernel", "RHIZOME_KERNEL", path(&flags.kernel)),
            ("qemu", "RHIZOME_QEMU", path(&flags.qemu)),
            (
                "cloud_hypervisor",
                "RHIZOME_CLOUD_HYPERVISOR",
                path(&flags.cloud_hypervisor),
            ),
            (
                "driver",
                "RHIZOME_DRIVER",
                text(flags.driver.as_ref().map(|v| v as _)),
            ),
            (
                "accel",
                "RHIZOME_ACCEL",
                text(flags.accel.as_ref().map(|v| v as _)),
            ),
            (
                "pool",
                "RHIZOME_POOL",
                text(flags.pool.as_ref().map(|v| v as _)),
            ),
            (
                "e2b",
                "RHIZOME_E2B",
                text(flags.e2b.listen.as_ref().map(|v| v as _)),
            ),
        ];
        for (name, variable, value) in said {
            let Some(value) = value else { continue };
            // The parser hands over both alike; what the environment says word for word is its.
            let is_of_environment = std::env::var(variable).is_ok_and(|said| said == value);
            let origin = if is_of_environment {
                Origin::Environment
            } else {
                Origin::Flag
            };
            self.origins.insert(name, origin);
        }
        Self {
            name: flags.name.unwrap_or(self.name),
            bind: flags.bind.unwrap_or(self.bind),
            api: flags.api.or(self.api),
            advertise: if flags.advertise.is_empty() {
                self.advertise
            } else {
                flags.advertise
            },
            relay: flags.relay.over(self.relay),
            mdns: self.mdns && !flags.no_mdns,
            sandboxes: self.sandboxes && !flags.no_sandboxes,
            images_dir: flags.images_dir.unwrap_or(self.images_dir),
            kernel: flags.kernel.or(self.kernel),
            qemu: flags.qemu.or(self.qemu),
            cloud_hypervisor: flags.cloud_hypervisor.or(self.cloud_hypervisor),
            driver: flags.driver.unwrap_or(self.driver),
            accel: flags.accel.unwrap_or(self.accel),
            pool: flags.pool.unwrap_or(self.pool),
            remote: self.remote && !flags.no_remote,
            labels: if flags.labels.is_empty() {
                self.labels
            } else {
                flags
                    .labels
                    .iter()
                    .map(|label| parse_label(label))
                    .collect()
            },
            replica_grace: self.replica_grace,
            e2b: self.e2b.with_flags(flags.e2b),
            memory: self.memory,
            data_dir: self.data_dir,
            origins: self.origins,
        }
    }

    /// Returns every setting with its value and where that came from.
    pub fn settings(&self) -> Vec<Setting> {
        let json = |value: &dyn ToString| serde_json::Value::from(value.to_string());
        let path = |path: &Option<PathBuf>| {
            let text = path.as_ref().map(|path| path.display().to_string());
            serde_json::Value::from(text)
        };
        let labels: serde_json::Map<_, _> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect();
        let advertise: Vec<String> = self.advertise.iter().map(ToString::to_string).collect();
        let values = [
            ("name", json(&self.name)),
            ("bind", json(&self.bind)),
            ("api.listen", self.api.map(|addr| addr.to_string()).into()),
            ("advertise", advertise.into()),
            (
                "relay",
                self.relay
                    .as_ref()
                    .map_or(serde_json::Value::Null, |relay| {
                        let relay = relay.config(self.bind);
                        serde_json::json!({ "listen": relay.listen.to_string(), "url": relay.url })
                    }),
            ),
            ("mdns", self.mdns.into()),
            ("sandboxes", self.sandboxes.into()),
            ("images_dir", json(&self.images_dir.display())),
            ("kernel", path(&self.kernel)),
            ("qemu", path(&self.qemu)),
            ("cloud_hypervisor", path(&self.cloud_hypervisor)),
            ("driver", json(&self.driver)),
            ("accel", json(&self.accel)),
            ("pool", self.pool.into()),
            ("remote", self.remote.into()),
            ("labels", labels.into()),
            ("replica_grace_secs", self.replica_grace.as_secs().into()),
            ("e2b", self.e2b.shown()),
            ("memory.secrets", json(&self.memory.secrets)),
            ("memory.distrust", self.memory.distrust.clone().into()),
            ("memory.shares", serde_json::json!(self.memory.shares)),
        ];
        let settings = values.map(|(name, value)| Setting {
            name: name.to_owned(),
            value,
            from: match self.origins.get(name).unwrap_or(&Origin::Default) {
                Origin::Default => "default",
                Origin::File => "file",
                Origin::Environment => "environment",
                Origin::Flag => "flag",
            }
            .to_owned(),
        });
        settings.into()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        check_name(&self.name)?;
        if let Some(addr) = self
            .advertise
            .iter()
            .find(|a| a.port() == 0 || a.ip().is_unspecified())
        {
            return Err(ConfigError::Advertise { addr: *addr });
        }
        api::check(self.api)?;
        self.relay.as_ref().map_or(Ok(()), RelayFile::check)?;
        let bad = |text: &str| text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control);
        let label = self
            .labels
            .iter()
            .find(|(name, value)| name.is_empty() || bad(name) || bad(value));
        if self.labels.len() > MAX_LABELS || label.is_some() {
            let label = label.map(|(name, _)| name.chars().take(MAX_NAME_BYTES).collect());
            return Err(ConfigError::Label { label });
        }
        self.e2b.check()?;
        if !self.memory.shares.grants_all() {
            return Err(ConfigError::Shares);
        }
        Ok(self)
    }
}

/// Checks a name that people give: of a node, a mesh, a space.
///
/// # Errors
/// [`ConfigError::Name`] if it is empty, longer than 64 bytes or holds control characters.
pub fn check_name(name: &str) -> Result<(), ConfigError> {
    let trimmed = name.trim() == name;
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || !trimmed
        || name.chars().any(char::is_control)
    {
        return Err(ConfigError::Name {
            name: name.chars().take(MAX_NAME_BYTES).collect(),
        });
    }
    Ok(())
}

fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let first = name.split('.').next().unwrap_or_default();
    if check_name(first).is_ok() {
        first.to_owned()
    } else {
        "node".to_owned()
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("cannot understand `{}`", path.display())]
    Parse {
        /// Which one.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A name cannot be used.
    #[error(
        "the name `{name}` cannot be used: 1 to {MAX_NAME_BYTES} bytes, no control characters, no space at its ends"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// An address that nobody could reach.
    #[error("`{addr}` cannot be advertised: it needs an address and a port that others can reach")]
    Advertise {
        /// The address.
        addr: SocketAddr,
    },
    /// An address at which tokens would cross the network in the clear.
    #[error(
        "the API cannot be served on `{addr}`: it speaks plain HTTP, so on an address of this machine alone, such as 127.0.0.1:4581"
    )]
    Api {
        /// The address.
        addr: SocketAddr,
    },
    /// A share of nothing.
    #[error(
        "`memory.shares` has a zero in it, and who has a share of nothing writes nothing: each is at least 1"
    )]
    Shares,
    /// A relay at what nobody could dial.
    #[error(
        "`{url}` cannot be the URL of a relay: write it as `http://host:port/` or `https://host/`, at most 128 bytes"
    )]
    RelayUrl {
        /// The URL.
        url: String,
    },
    /// A label that cannot be told to others.
    #[error(
        "the labels cannot be used: at most {MAX_LABELS}, name and value up to {MAX_NAME_BYTES} bytes without control characters, the name not empty"
    )]
    Label {
        /// The name of the one that cannot, if it is a single one.
        label: Option<String>,
    },
    /// The door for clients of E2B cannot be opened like that.
    #[error("the settings of `e2b` cannot be used: {what}")]
    E2b {
        /// Why not.
        what: &'static str,
    },
}
