//! Lets go of snapshots that are kept for others and that nobody needs any more, and of versions of
//! volumes that were forgotten; repacks what is then mostly dead.
//!
//! What a record names, this version of it or one that stands beside it, is never let go of; nor is
//! what has no record here, since that may be on its way.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rhizome_sandbox::chunks::ChunkError;

use super::{
    hold::{PIN, pin_of},
    record::Rest,
};
use crate::{
    daemon::{
        caller::Caller,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// How often it is looked for.
const EVERY: Duration = Duration::from_secs(15 * 60);
/// How long a pack that nothing names is kept: somebody may be about to name it.
const GRACE: Duration = Duration::from_secs(3600);

/// Sweeps from time to time, until the node stops.
pub(crate) async fn sweep(node: Arc<Node>) {
    let stop = node.stop.clone();
    while stop
        .run_until_cancelled(tokio::time::sleep(EVERY))
        .await
        .is_some()
    {
        if let Err(error) = node.let_go_of_forgotten().await {
            tracing::debug!(%error, "versions of volumes could not be looked through");
        }
        if let Err(error) = node.repack_volumes().await {
            tracing::debug!(%error, "volumes could not be repacked");
        }
        if let Err(error) = node.let_go().await {
            tracing::debug!(%error, "snapshots could not be looked through");
        }
    }
}

impl Node {
    /// Unpins what no record names, and removes the packs that nothing names.
    pub(crate) async fn let_go(&self) -> Result<(), ApiError> {
        let Ok(sandboxes) = self.sandboxes() else {
            return Ok(());
        };
        let store = sandboxes.chunks().clone();
        let (mut known, mut needed) = (BTreeSet::new(), BTreeSet::new());
        if self.need_mesh().is_ok() {
            for found in self.records(&Caller::Owner).await? {
                let sandbox = found.record.sandbox;
                known.insert(format!("{PIN}{sandbox}-"));
                let versions = std::iter::once(&found.record).chain(&found.forks);
                for record in versions.filter(|record| record.rest != Rest::Ended) {
                    needed.insert(pin_of(&sandbox, &record.snapshot.manifest));
                }
            }
        }
        let swept = blocking(move || {
            let idle = |pin: &String| {
                known.iter().any(|prefix| pin.starts_with(prefix)) && !needed.contains(pin)
            };
            for pin in store.pins().into_iter().filter(idle) {
                store.unpin(&pin)?;
            }
            store.gc(GRACE)
        });
        match swept.await? {
            Ok(_) => Ok(()),
            Err(error) => Err(crate::daemon::fail::chunks(&(error as ChunkError))),
        }
    }
}
