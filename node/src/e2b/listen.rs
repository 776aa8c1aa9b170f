//! The listener: one task per connection, so many at once and no more.
use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    At, Door, OpenDoorError, authority, control::state::Working, registry::Registry, route,
};
use crate::{
    api::serve::{STALL_TIMEOUT, serve},
    daemon::node::{Node, blocking},
};

/// Connections at once; more wait in the kernel's queue. Their clients keep up to 200 each.
const MAX_CONNECTIONS: usize = 1024;
/// Pause after an accept that failed, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
        source: std::io::Error::other(error),
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
    node.tasks.spawn(accept(door, listener, acceptor));
    Ok(())
}

async fn accept(door: Arc<Door>, listener: TcpListener, acceptor: Option<TlsAcceptor>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let router = route::router(&door);
    let node = &door.node;
    loop {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let (router, stop) = (router.clone(), node.stop.clone());
                let acceptor = acceptor.clone();
                node.tasks.spawn(async move {
                    answer(stream, from, acceptor, router, stop).await;
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection of a client of E2B");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) {
    // Small answers are waited for; they must not wait for one another.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        return serve(stream, router, STALL_TIMEOUT, stop).await;
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, router, STALL_TIMEOUT, stop).await,
        Ok(Err(error)) => debug!(%from, %error, "no TLS with a client of E2B"),
        Err(_) => debug!(%from, "a client of E2B did not finish its handshake"),
    }
}
