//! A world outside, made of listeners on this machine.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use rhizome_sandbox::{
    SandboxId,
    egress::{
        Boundaries, DomainName, EgressConfig, EgressEvent, LookupError, Outside, Policy, Secret,
    },
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use super::client::Client;

/// What is outside, and what was asked of it.
#[derive(Debug, Default)]
pub(crate) struct World {
    names: Mutex<BTreeMap<String, Vec<Ipv4Addr>>>,
    servers: Mutex<BTreeMap<SocketAddrV4, SocketAddrV4>>,
    pub(crate) own: Mutex<Vec<Ipv4Addr>>,
    /// How long a connection takes to be made.
    pub(crate) distance: Mutex<Duration>,
    pub(crate) looked_up: Mutex<Vec<String>>,
    pub(crate) dialled: Mutex<Vec<SocketAddrV4>>,
}

impl World {
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.names
            .lock()
            .unwrap()
            .insert(name.to_owned(), addresses);
    }

    /// Lets `at` be served by what listens at `port` of this machine.
    pub(crate) fn server(&self, at: &str, port: u16) {
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        self.servers
            .lock()
            .unwrap()
            .insert(at.parse().unwrap(), here);
    }

    pub(crate) fn dialled(&self) -> Vec<String> {
        self.dialled
            .lock()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

impl Outside for World {
    fn lookup<'a>(
        &'a self,
        name: &'a DomainName,
    ) -> BoxFuture<'a, Result<Vec<Ipv4Addr>, LookupError>> {
        self.looked_up.lock().unwrap().push(name.to_string());
        let found = self.names.lock().unwrap().get(name.as_str()).cloned();
        Box::pin(async move { found.ok_or(LookupError::Unknown) })
    }

    fn connect(&self, to: SocketAddrV4) -> BoxFuture<'_, io::Result<TcpStream>> {
        self.dialled.lock().unwrap().push(to);
        let here = self.servers.lock().unwrap().get(&to).copied();
        let distance = *self.distance.lock().unwrap();
        Box::pin(async move {
            tokio::time::sleep(distance).await;
            match here {
                Some(here) => TcpStream::connect(here).await,
                None => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    fn is_own(&self, address: Ipv4Addr) -> bool {
        self.own.lock().unwrap().contains(&address)
    }
}

/// A sandbox with a boundary, and the guest's end of it.
pub(crate) struct Guarded {
    pub(crate) id: SandboxId,
    pub(crate) world: Arc<World>,
    pub(crate) boundaries: Boundaries,
    pub(crate) events: mpsc::Receiver<EgressEvent>,
    pub(crate) client: Client,
    pub(crate) authority: Origins,
}

impl Guarded {
    pub(crate) fn new(policy: &str) -> Self {
        let world = Arc::new(World::default());
        let authority = Origins::new();
        let mut config = EgressConfig::new("/nonexistent");
        config.outside = Arc::clone(&world) as _;
        config.roots = Some(authority.roots());
        let (boundaries, events) = Boundaries::new(config);
        let id = SandboxId::from_bytes([7; 16]);
        boundaries
            .define(&id, &policy.parse().unwrap(), Vec::new())
            .unwrap();
        let client = attach(&boundaries, &id);
        Self {
            id,
            world,
            boundaries,
            events,
            client,
            authority,
        }
    }

    pub(crate) fn set(&self, policy: &str, secrets: Vec<Secret>) {
        let policy: Policy = policy.parse().unwrap();
        self.boundaries.define(&self.id, &policy, secrets).unwrap();
    }

    /// Attaches anew, as after a restart.
    pub(crate) fn attach(&mut self) {
        self.client = attach(&self.boundaries, &self.id);
    }

    /// Returns the next event as `attempt destination: rule`.
    pub(crate) async fn event(&mut self) -> String {
        let event = tokio::time::timeout(std::time::Duration::from_secs(20), self.events.recv());
        let event = event.await.expect("an event comes").unwrap();
        assert_eq!(event.sandbox, self.id);
        let denial = event.denial;
        assert!(!denial.denied.how_to_ask.is_empty());
        format!(
            "{} {}: {}",
            denial.attempt, denial.denied.destination, denial.denied.rule
        )
    }
}

fn attach(boundaries: &Boundaries, id: &SandboxId) -> Client {
    let (near, far) = tokio::io::duplex(256 * 1024);
    boundaries.carry(id, near);
    Client::start(far)
}

/// Serves every connection with `serve`; returns the port.
pub(crate) async fn listen<F, T>(serve: F) -> u16
where
    F: Fn(TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// Sends back what comes.
pub(crate) async fn echo(stream: TcpStream) {
    let (mut reader, mut writer) = stream.into_split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

/// Answers every request with its own text, and keeps it in `seen`.
pub(crate) async fn mirror(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read_buf(&mut bytes).await {
                Ok(len) if len > 0 => continue,
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse::<usize>().unwrap());
        while bytes.len() < end + 4 + length {
            match stream.read_buf(&mut bytes).await {
                Ok(len) if len > 0 => {}
                _ => return,
            }
        }
        let request: Vec<u8> = bytes.drain(..end + 4 + length).collect();
        let request = String::from_utf8_lossy(&request).into_owned();
        seen.lock().unwrap().push(request.clone());
        let body = if request.contains("/mirror") {
            request
        } else {
            "hello".to_owned()
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        let _ = stream.flush().await;
    }
}

/// Certificates for servers outside.
pub(crate) struct Origins {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Origins {
    pub(crate) fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, key }
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }

    /// Returns what accepts TLS for `name`.
    pub(crate) fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params
            .signed_by(&key, &self.certificate, &self.key)
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// Serves HTTP over TLS as `name`, with [`mirror`].
    pub(crate) async fn serve(&self, name: &str, seen: Arc<Mutex<Vec<String>>>) -> u16 {
        let acceptor = self.acceptor(name);
        listen(move |stream| {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    mirror(stream, seen).await;
                }
            }
        })
        .await
    }
}

/// Returns what connects with TLS, trusting `roots`.
pub(crate) fn connector(roots: RootCertStore) -> tokio_rustls::TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config))
}
