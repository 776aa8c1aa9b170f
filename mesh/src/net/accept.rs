//! Lets connections in: bounded handshakes, then each to its protocol.
//!
//! iroh's router would do, but it warns in the log of every stranger that is refused, and bounds
//! nothing. Here remote input stays at debug level, handshakes in flight are bounded, and from
//! half of the bound on a newcomer must first prove its source address.

use std::{sync::Arc, time::Duration};

use iroh::{
    Endpoint,
    endpoint::{Connection, Incoming},
    protocol::ProtocolHandler,
};
use iroh_blobs::BlobsProtocol;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, debug, trace};

use crate::net::{
    ctl::Ctl,
    endpoint::{CTL_ALPN, GOSSIP_ALPN, JOIN_ALPN, SYNC_ALPN},
    join::JoinProtocol,
    sync::Sync,
    transport::GossipProtocol,
};

/// Handshakes in flight; what comes on top is refused.
const MAX_HANDSHAKES: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The protocols behind the endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Acceptor {
    pub(crate) gossip: GossipProtocol,
    pub(crate) sync: Sync,
    pub(crate) join: JoinProtocol,
    pub(crate) blobs: BlobsProtocol,
    pub(crate) ctl: Ctl,
}

impl Acceptor {
    /// Accepts connections until `stop`; every one is served by a task of `tasks`.
    pub(crate) async fn run(self, endpoint: Endpoint, tasks: TaskTracker, stop: CancellationToken) {
        endpoint.set_alpns(
            [
                GOSSIP_ALPN,
                SYNC_ALPN,
                JOIN_ALPN,
                CTL_ALPN,
                iroh_blobs::ALPN,
            ]
            .map(<[u8]>::to_vec)
            .to_vec(),
        );
        let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        while let Some(Some(incoming)) = stop.run_until_cancelled(endpoint.accept()).await {
            let crowded = handshakes.available_permits() < MAX_HANDSHAKES / 2;
            if crowded && !incoming.remote_addr_validated() {
                if incoming.retry().is_err() {
                    trace!("a newcomer could not be asked to prove its address");
                }
                continue;
            }
            let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
                trace!("too many handshakes; a connection is refused");
                incoming.refuse();
                continue;
            };
            let (this, stop) = (self.clone(), stop.clone());
            let task = async move {
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(incoming));
                let connection = stop.run_until_cancelled(handshake).await;
                drop(permit);
                if let Some(Ok(Some(connection))) = connection {
                    this.serve(connection, &stop).await;
                }
            };
            tasks.spawn(task.instrument(Span::current()));
        }
    }

    async fn serve(&self, connection: Connection, stop: &CancellationToken) {
        let served = match connection.alpn() {
            // A session winds up by itself when the node stops.
            SYNC_ALPN => Some(self.sync.accept(connection).await),
            GOSSIP_ALPN => {
                stop.run_until_cancelled(self.gossip.accept(connection))
                    .await
            }
            CTL_ALPN => stop.run_until_cancelled(self.ctl.accept(connection)).await,
            JOIN_ALPN => stop.run_until_cancelled(self.join.accept(connection)).await,
            iroh_blobs::ALPN => {
                stop.run_until_cancelled(self.blobs.accept(connection))
                    .await
            }
            other => {
                debug!(alpn = %String::from_utf8_lossy(other), "no such protocol");
                None
            }
        };
        if let Some(Err(error)) = served {
            debug!(%error, "a connection ended badly");
        }
    }
}

/// Completes a handshake; the endpoint's hook has the last word on who gets in.
async fn handshake(incoming: Incoming) -> Option<Connection> {
    let accepting = incoming.accept().ok()?;
    match accepting.await {
        Ok(connection) => Some(connection),
        Err(error) => {
            trace!(%error, "no connection came of a handshake");
            None
        }
    }
}
