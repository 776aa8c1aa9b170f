//! The API's listener: one task per connection, so many at once and no more.
use std::{sync::Arc, time::Duration};

use tokio::{net::UnixListener, sync::Semaphore};
use tracing::warn;

use super::{
    routes,
    serve::{STALL_TIMEOUT, serve},
};
use crate::daemon::node::Node;

/// Connections at once; more wait in the kernel's queue.
pub(crate) const MAX_CONNECTIONS: usize = 512;
/// Pause after an accept that failed, most likely for want of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API on `listener` until the node stops.
pub(crate) async fn listen(node: Arc<Node>, listener: UnixListener) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let router = routes::owner(Arc::clone(&node));
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
            Ok((stream, _)) => {
                let serving = serve(stream, router.clone(), STALL_TIMEOUT, node.stop.clone());
                node.tasks.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection to the API");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
