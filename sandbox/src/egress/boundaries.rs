//! The boundaries of every sandbox of one node.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use rhizome_guest::wire::NetOpen;
use rustls::RootCertStore;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{
    GATEWAY, GUEST, MTU, PREFIX,
    boundary::{Boundary, EgressEvent, EgressUsage, lock},
    denial::{Attempt, Denial},
    gateway,
    outside::{HostNetwork, Outside},
    policy::{Denied, Policy},
    secrets::{self, Authority, AuthorityError, Secret, Secrets},
};
use crate::{
    SandboxId,
    channel::{ChannelError, GuestChannel},
};

/// Denials that wait for the node; more are lost to it, and stay in their sandbox's own list.
const EVENT_QUEUE: usize = 1024;
/// Time a guest has to open its device; under emulation on a busy host everything is slow.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// The key of a sandbox's authority, in the sandbox's directory.
const AUTHORITY: &str = "authority.pem";
/// Largest file that is read as one, in bytes.
const MAX_KEY_BYTES: u64 = 16 * 1024;
/// Where the guest's agent puts the certificates that are trusted.
const BUNDLE: &str = "/run/rhizome/ca-bundle.pem";
const CERTIFICATE: &str = "/run/rhizome/ca.pem";

/// What boundaries are made with.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// Directory with one directory for each sandbox, in which the key of its authority is kept.
    pub dir: PathBuf,
    /// What lies outside.
    pub outside: Arc<dyn Outside>,
    /// Who vouches for servers that secrets go to; the host's own certificates if absent.
    pub roots: Option<RootCertStore>,
}

impl EgressConfig {
    /// Returns the configuration of a node whose sandboxes live in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            outside: Arc::new(HostNetwork::default()),
            roots: None,
        }
    }
}

/// Why a guest has no boundary that works, and so no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EgressError {
    /// The guest did not open its device.
    #[error("the guest has no network device")]
    Guest(#[from] ChannelError),
    /// There are no certificates for its secrets.
    #[error("the sandbox's secrets cannot be used")]
    Authority(#[from] AuthorityError),
    /// The key of its authority cannot be kept.
    #[error("cannot keep the key at `{}`", path.display())]
    Key {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The boundaries of every sandbox of one node; cheap to clone.
#[derive(Debug, Clone)]
pub struct Boundaries {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: EgressConfig,
    connector: OnceLock<TlsConnectorBox>,
    entries: Mutex<BTreeMap<SandboxId, Entry>>,
    /// What those that are forgotten sent and received.
    gone: Mutex<EgressUsage>,
    events: mpsc::Sender<EgressEvent>,
}

/// A [`TlsConnector`], whose `Debug` says more than anybody wants.
struct TlsConnectorBox(TlsConnector);

impl std::fmt::Debug for TlsConnectorBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConnector")
    }
}

#[derive(Debug)]
struct Entry {
    boundary: Arc<Boundary>,
    secrets: Vec<Secret>,
    authority: Option<Arc<Authority>>,
    /// Ends the gateway that carries its packets now.
    gateway: CancellationToken,
}

impl Boundaries {
    /// Makes them; the receiver yields what is denied, as long as somebody reads it.
    #[must_use]
    pub fn new(config: EgressConfig) -> (Self, mpsc::Receiver<EgressEvent>) {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let inner = Inner {
            config,
            connector: OnceLock::new(),
            entries: Mutex::default(),
            gone: Mutex::default(),
            events,
        };
        (
            Self {
                inner: Arc::new(inner),
            },
            receiver,
        )
    }

    /// Makes the boundary of a sandbox, or changes the one it has.
    ///
    /// Connections that are not allowed any more are cut.
    ///
    /// # Errors
    /// [`EgressError::Authority`] and [`EgressError::Key`], if there are secrets. Nothing has
    /// changed then.
    pub fn define(
        &self,
        id: &SandboxId,
        policy: &Policy,
        secrets: Vec<Secret>,
    ) -> Result<(), EgressError> {
        let known = lock(&self.inner.entries)
            .get(id)
            .and_then(|entry| entry.authority.clone());
        let authority = match known {
            Some(authority) => Some(authority),
            None if secrets.is_empty() => None,
            None => Some(Arc::new(self.authority(id)?)),
        };
        let set = match &authority {
            Some(authority) if !secrets.is_empty() => {
                Secrets::new(secrets.clone(), authority, self.connector())?
            }
            _ => Secrets::none(),
        };
        let mut entries = lock(&self.inner.entries);
        if let Some(entry) = entries.get_mut(id) {
            entry.boundary.set_policy(policy.clone());
            if entry.secrets != secrets {
                entry.boundary.set_secrets(set);
            }
            entry.secrets = secrets;
            entry.authority = authority;
            return Ok(());
        }
        let (outside, events) = (
            Arc::clone(&self.inner.config.outside),
            self.inner.events.clone(),
        );
        entries.insert(
            *id,
            Entry {
                boundary: Arc::new(Boundary::new(*id, policy.clone(), set, outside, events)),
                secrets,
                authority,
                gateway: CancellationToken::new(),
            },
        );
        Ok(())
    }

    /// Notes that a sandbox is denied something that it has not asked for yet, as if it had.
    pub fn deny(&self, id: &SandboxId, attempt: Attempt, denied: Denied) {
        let boundary = lock(&self.inner.entries)
            .get(id)
            .map(|entry| Arc::clone(&entry.boundary));
        if let Some(boundary) = boundary {
            boundary.deny(attempt, denied);
        }
    }

    /// Gives the guest at the other end of `channel` its network, as [`Self::define`]d before.
    ///
    /// Returns when the guest's device is up: nothing that a program of it sends is lost then.
    /// Connections of an earlier attachment are reset.
    ///
    /// # Errors
    /// [`EgressError::Guest`]; the guest then has no network at all.
    pub async fn attach(&self, id: &SandboxId, channel: &GuestChannel) -> Result<(), EgressError> {
        let authority = self.authority_pem(id);
        let setup = NetOpen {
            address: GUEST.octets(),
            prefix: PREFIX,
            gateway: GATEWAY.octets(),
            mtu: MTU,
            authority: authority.unwrap_or_default(),
        };
        // An agent of an older release does not answer at all.
        let opened = timeout(OPEN_LIMIT, channel.open_net(&setup)).await;
        let stream = opened.map_err(|_| ChannelError::Unresponsive { after: OPEN_LIMIT })??;
        self.carry(id, stream);
        Ok(())
    }

    /// Carries the packets that come over `stream`, each behind its length in two bytes,
    /// little-endian, for a sandbox that is [`Self::define`]d.
    pub fn carry<S>(&self, id: &SandboxId, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut entries = lock(&self.inner.entries);
        let Some(entry) = entries.get_mut(id) else {
            return;
        };
        entry.gateway.cancel();
        entry.gateway = CancellationToken::new();
        let (boundary, stop, id) = (Arc::clone(&entry.boundary), entry.gateway.clone(), *id);
        tokio::spawn(async move {
            if let Err(error) = gateway::run(boundary, stream, stop).await {
                tracing::debug!(sandbox = %id, %error, "a sandbox's gateway ended");
            }
        });
    }

    /// Forgets a sandbox and ends all its connections.
    pub fn forget(&self, id: &SandboxId) {
        let mut entries = lock(&self.inner.entries);
        if let Some(entry) = entries.remove(id) {
            entry.gateway.cancel();
            // While the entries are locked, so that nobody sees it in neither place.
            lock(&self.inner.gone).add(&entry.boundary.usage());
        }
    }

    /// Ends a sandbox's connections; what is known about it stays, for its next attachment.
    pub fn detach(&self, id: &SandboxId) {
        if let Some(entry) = lock(&self.inner.entries).get(id) {
            entry.gateway.cancel();
        }
    }

    /// Returns a sandbox's policy.
    #[must_use]
    pub fn policy(&self, id: &SandboxId) -> Option<Policy> {
        let entries = lock(&self.inner.entries);
        entries
            .get(id)
            .map(|entry| Policy::clone(&entry.boundary.policy()))
    }

    /// Returns what a sandbox was denied, the oldest first.
    #[must_use]
    pub fn denials(&self, id: &SandboxId) -> Vec<Denial> {
        let entries = lock(&self.inner.entries);
        entries
            .get(id)
            .map(|entry| entry.boundary.denials())
            .unwrap_or_default()
    }

    /// Returns what a sandbox sent and received since it was first defined here.
    #[must_use]
    pub fn usage(&self, id: &SandboxId) -> EgressUsage {
        let entries = lock(&self.inner.entries);
        entries
            .get(id)
            .map(|entry| entry.boundary.usage())
            .unwrap_or_default()
    }

    /// Returns what all sandboxes sent and received together, those that are forgotten included.
    #[must_use]
    pub fn totals(&self) -> EgressUsage {
        let entries = lock(&self.inner.entries);
        let mut sum = *lock(&self.inner.gone);
        for entry in entries.values() {
            sum.add(&entry.boundary.usage());
        }
        sum
    }

    /// Returns the certificate that the sandbox's guest is to trust, as PEM, if it has secrets.
    #[must_use]
    pub fn authority_pem(&self, id: &SandboxId) -> Option<String> {
        let entries = lock(&self.inner.entries);
        let authority = entries.get(id)?.authority.as_ref()?;
        Some(authority.certificate_pem())
    }

    /// Returns the environment that programs of a sandbox need to use its secrets.
    #[must_use]
    pub fn env(&self, id: &SandboxId) -> BTreeMap<String, String> {
        let entries = lock(&self.inner.entries);
        let Some(entry) = entries.get(id) else {
            return BTreeMap::new();
        };
        let mut env: BTreeMap<_, _> = entry
            .secrets
            .iter()
            .map(|secret| (secret.variable(), secret.placeholder()))
            .collect();
        if entry.authority.is_some() {
            for name in [
                "SSL_CERT_FILE",
                "REQUESTS_CA_BUNDLE",
                "CURL_CA_BUNDLE",
                "GIT_SSL_CAINFO",
            ] {
                env.insert(name.to_owned(), BUNDLE.to_owned());
            }
            env.insert("NODE_EXTRA_CA_CERTS".to_owned(), CERTIFICATE.to_owned());
        }
        env
    }

    fn connector(&self) -> TlsConnector {
        let make = || {
            let roots = self.inner.config.roots.clone().unwrap_or_else(|| {
                let mut roots = RootCertStore::empty();
                // What cannot be read vouches for nobody.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            });
            TlsConnectorBox(secrets::connector(roots))
        };
        self.inner.connector.get_or_init(make).0.clone()
    }

    /// Finds the sandbox's authority, or makes it.
    fn authority(&self, id: &SandboxId) -> Result<Authority, EgressError> {
        let (dir, name) = (self.inner.config.dir.join(id.to_string()), id.to_string());
        let path = dir.join(AUTHORITY);
        let kept =
            fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_KEY_BYTES);
        if kept
            && let Ok(pem) = fs::read_to_string(&path).map(zeroize::Zeroizing::new)
            && let Ok(authority) = Authority::from_key_pem(&name, &pem)
        {
            return Ok(authority);
        }
        let authority = Authority::generate(&name)?;
        if dir.is_dir() {
            keep(&path, authority.key_pem().as_bytes())
                .map_err(|source| EgressError::Key { path, source })?;
        }
        Ok(authority)
    }
}

/// Writes a file that is its owner's alone from its first byte.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}
