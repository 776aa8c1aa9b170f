//! Listeners: one task per connection, so many at once and no more.
use std::{io, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
};
use tracing::warn;

use super::serve::{STALL_TIMEOUT, serve};
use crate::daemon::node::Node;

/// Connections at once, of a listener that has no other limit; more wait in the kernel's queue.
pub(crate) const MAX_CONNECTIONS: usize = 512;
/// Pause after an accept that failed, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
pub(crate) trait Listener: Send + Sync + 'static {
    /// A connection that was just taken.
    type Arrived: Send + 'static;
    /// One that is ready for requests.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// What log lines call it.
    const NAME: &'static str;

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Arrived>> + Send;

    /// Makes a connection ready, in its own task; `None` if nothing comes of it.
    fn ready(
        self: Arc<Self>,
        arrived: Self::Arrived,
    ) -> impl Future<Output = Option<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Arrived = UnixStream;
    type Stream = UnixStream;

    const NAME: &'static str = "the API";

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }

    async fn ready(self: Arc<Self>, stream: UnixStream) -> Option<UnixStream> {
        Some(stream)
    }
}

impl Listener for TcpListener {
    type Arrived = TcpStream;
    type Stream = TcpStream;

    const NAME: &'static str = "the API over TCP";

    async fn accept(&self) -> io::Result<TcpStream> {
        accept_tcp(self).await
    }

    async fn ready(self: Arc<Self>, stream: TcpStream) -> Option<TcpStream> {
        Some(stream)
    }
}

/// Takes the next connection over TCP.
pub(crate) async fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Small answers are waited for; they must not wait for one another.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Serves `router` to those who come to `listener`, at most `connections` at once, until the node
/// stops.
pub(crate) async fn listen<L: Listener>(
    node: Arc<Node>,
    listener: L,
    router: Router,
    connections: usize,
) {
    let connections = Arc::new(Semaphore::new(connections));
    let listener = Arc::new(listener);
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
            Ok(arrived) => {
                let (router, stop) = (router.clone(), node.stop.clone());
                let listener = Arc::clone(&listener);
                node.tasks.spawn(async move {
                    if let Some(stream) = listener.ready(arrived).await {
                        serve(stream, router, STALL_TIMEOUT, stop).await;
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection to {}", L::NAME);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
