//! Opening the door, with TLS if the configuration says so.
use std::{io, sync::Arc, time::Duration};

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;
use tracing::{debug, info};

use super::{
    At, Door, OpenDoorError, authority, control::state::Working, registry::Registry, route,
};
use crate::{
    api::listen::{Listener, accept_tcp, listen},
    daemon::node::{Node, blocking},
};

/// Connections at once; more wait in the kernel's queue. Their clients keep up to 200 each.
const MAX_CONNECTIONS: usize = 1024;
/// Time a client has for its part of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the door as the node's configuration says, and serves it until the node stops.
///
/// # Errors
/// [`OpenDoorError`].
pub(crate) async fn open(node: &Arc<Node>) -> Result<(), OpenDoorError> {
    let settings = &node.config.e2b;
    let Some(wanted) = settings.listen else {
        return Ok(());
    };
    let root = node.data.join("e2b");
    let (domain, tls) = (settings.domain.clone(), settings.tls);
    let opened = blocking(move || {
        let registry = Registry::open(&root).map_err(OpenDoorError::Registry)?;
        let acceptor = tls
            .then(|| authority::acceptor(&root, domain.as_deref(), wanted.ip()))
            .transpose()
            .map_err(OpenDoorError::Authority)?;
        Ok((registry, acceptor))
    });
    let panicked = |error| OpenDoorError::Listen {
        addr: wanted,
        source: io::Error::other(error),
    };
    let (registry, acceptor) = opened.await.map_err(panicked)??;
    let failed = |source| OpenDoorError::Listen {
        addr: wanted,
        source,
    };
    let listener = TcpListener::bind(wanted).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let door = Arc::new(Door {
        node: Arc::clone(node),
        registry,
        at: At {
            addr,
            tls,
            domain: settings.domain.clone(),
        },
        working: Working::default(),
        envd: super::envd::Live::default(),
        interpreter: super::interpreter::Contexts::default(),
    });
    node.e2b
        .set(Arc::clone(&door))
        .expect("the door is opened once");
    info!(url = door.at.url(), "clients of E2B are answered");
    super::control::tidy(&door).await;
    node.tasks
        .spawn(super::control::keep_tidy(Arc::clone(&door)));
    let router = route::router(&door);
    let listener = Tls {
        tcp: listener,
        acceptor,
    };
    node.tasks
        .spawn(listen(Arc::clone(node), listener, router, MAX_CONNECTIONS));
    Ok(())
}

/// The door's listener, which may speak TLS.
struct Tls {
    tcp: TcpListener,
    acceptor: Option<TlsAcceptor>,
}

impl Listener for Tls {
    type Arrived = TcpStream;
    type Stream = Either<TcpStream, TlsStream<TcpStream>>;

    const NAME: &'static str = "the door for clients of E2B";

    async fn accept(&self) -> io::Result<TcpStream> {
        accept_tcp(&self.tcp).await
    }

    async fn ready(self: Arc<Self>, stream: TcpStream) -> Option<Self::Stream> {
        let Some(acceptor) = &self.acceptor else {
            return Some(Either::Left(stream));
        };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(Either::Right(stream)),
            Ok(Err(error)) => debug!(%error, "no TLS with a client of E2B"),
            Err(_) => debug!("a client of E2B did not finish its handshake"),
        }
        None
    }
}
