//! The listener of a node that serves as relay.
//!
//! iroh's relay service does the relaying. Around it: a bound on connections that have not shown
//! who they are, which its own server lacks, and the end of those that lose their right.

use std::{
    future, io,
    net::{Shutdown, SocketAddr},
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{
    HeaderMap, Method, Response, StatusCode,
    service::{Service, service_fn},
};
use hyper_util::rt::TokioIo;
use iroh_relay::{
    KeyCache,
    http::RELAY_PROBE_PATH,
    server::{
        ClientRateLimit, ConnectionId, Metrics,
        http_server::{BytesBody, Handlers, RelayService, RelayServiceWithNotify},
        streams::MaybeTlsStream,
    },
};
use rhizome_identity::NodeId;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, debug, trace, warn};

use crate::net::{StartError, connections::Membership, ids::endpoint_of_node};

use super::{
    RelayConfig, Served,
    access::{Access, GUEST_FOR, Invited},
};

/// Connections that have not shown who they are; what comes on top is dropped.
const MAX_STRANGERS: usize = 256;
/// How long a connection may take to show who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often the clients are looked through for newcomers whose time is over.
const SWEEP: Duration = Duration::from_secs(5);
/// Keys of clients that are kept decompressed.
const KEYS: usize = 4096;
/// How long to wait after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// What one client may send through the relay, in bytes a second, and at once.
const CLIENT_RATE: NonZeroU32 = NonZeroU32::new(32 << 20).expect("not zero");
const CLIENT_BURST: NonZeroU32 = NonZeroU32::new(64 << 20).expect("not zero");

/// The relay of this node; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct RelayServer {
    service: RelayService,
    access: Arc<Access>,
}

impl RelayServer {
    /// Binds the listener; [`Self::run`] serves it.
    pub(crate) async fn bind(
        config: &RelayConfig,
        members: Membership,
        invited: Invited,
    ) -> Result<(Self, TcpListener, Served), StartError> {
        let listen = config.listen;
        let at = |source: io::Error| StartError::Relay {
            addr: listen,
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(at)?;
        let served = Served {
            listen: listener.local_addr().map_err(at)?,
            url: config.url.clone(),
        };
        let mut handlers = Handlers::default();
        // Clients measure how far away a relay is.
        handlers.insert(
            (Method::GET, RELAY_PROBE_PATH),
            Box::new(|_, response| {
                let body: BytesBody = Box::<String>::default();
                Ok(response.status(StatusCode::OK).body(body)?)
            }),
        );
        let access = Arc::new(Access::new(members, invited));
        let mut rate = ClientRateLimit::new(CLIENT_RATE);
        rate.max_burst_bytes = Some(CLIENT_BURST);
        let service = RelayService::new(
            handlers,
            HeaderMap::new(),
            Some(rate),
            KeyCache::new(KEYS),
            access.clone(),
            Arc::new(Metrics::default()),
        );
        Ok((Self { service, access }, listener, served))
    }

    /// Serves until `stop`.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) {
        let places = Arc::new(Semaphore::new(MAX_STRANGERS));
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sweep.tick() => self.end(self.access.strangers(GUEST_FOR)),
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => self.accept(stream, from, &places, &tasks, &stop),
                    Err(error) => {
                        // Out of file descriptors, most likely: those who leave make room.
                        warn!(%error, "the relay cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        self.service.shutdown().await;
    }

    /// Ends the connections of those who are no members any more; newcomers come back with their
    /// token.
    pub(crate) fn membership_changed(&self) {
        self.end(self.access.strangers(Duration::ZERO));
    }

    fn end(&self, connections: Vec<(NodeId, ConnectionId)>) {
        for (node, connection) in connections {
            debug!(peer = %node.fmt_short(), "a client of the relay is no member");
            if let Some(endpoint) = endpoint_of_node(&node) {
                self.service
                    .clients()
                    .disconnect(endpoint, Some(connection));
            }
        }
    }

    fn accept(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        places: &Arc<Semaphore>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            trace!(%from, "too many strangers at the relay");
            return;
        };
        let (service, stop) = (self.service.clone(), stop.clone());
        let task = async move {
            let served = stop.run_until_cancelled(serve(service, stream, place));
            if let Some(Err(error)) = served.await {
                trace!(%from, %error, "a connection to the relay failed");
            }
        };
        tasks.spawn(task.instrument(Span::current()));
    }
}

/// Serves one connection until it is a client's, which is the service's from then on, or ended.
///
/// The service waits for the handshake of a client without end, so a second handle on the socket
/// ends it when its time is over.
async fn serve(
    service: RelayService,
    stream: TcpStream,
    place: OwnedSemaphorePermit,
) -> io::Result<()> {
    let stream = stream.into_std()?;
    let handle = stream.try_clone()?;
    let stream = MaybeTlsStream::Plain(TcpStream::from_std(stream)?);
    let notify = Arc::new(Notify::new());
    let mut established = pin!(notify.notified());
    established.as_mut().enable();
    let upgraded = Arc::new(AtomicBool::new(false));
    let switched = Arc::clone(&upgraded);
    let service = RelayServiceWithNotify::new(service, Arc::clone(&notify));
    let service = service_fn(move |request| {
        let answer: Result<Response<BytesBody>, _> = service.call(request).into_inner();
        if answer
            .as_ref()
            .is_ok_and(|a| a.status() == StatusCode::SWITCHING_PROTOCOLS)
        {
            switched.store(true, Ordering::Relaxed);
        }
        future::ready(answer.map_err(io::Error::other))
    });
    let http = async {
        let served = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
        if let Err(error) = served {
            trace!(%error, "no request of the relay's protocol");
        }
        if upgraded.load(Ordering::Relaxed) {
            established.await;
            true
        } else {
            false
        }
    };
    let is_client = tokio::time::timeout(HANDSHAKE, http).await == Ok(true);
    drop(place);
    if is_client {
        return Ok(());
    }
    match handle.shutdown(Shutdown::Both) {
        // The other side may have been faster.
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}
