//! New keys of spaces: by hand, and when they are due.
use std::{sync::Arc, time::Duration};

use rhizome_identity::{SpaceId, issue};
use rhizome_memory::now_ms;
use tracing::{debug, info};

use super::{fail, names::Names, node::Node};
use crate::{
    api::types::{SCHEMA, mesh::SpaceRotated},
    error::ApiError,
};

/// How often this node looks whether it is its turn.
const TICK: Duration = Duration::from_secs(60);
/// How long a node that just started listens first: others may have done it while it was away.
const LISTEN: Duration = Duration::from_secs(5 * 60);

/// Gives spaces new keys when it is for this node to do so, until the node stops.
pub(crate) async fn keep_keys(node: Arc<Node>) {
    let mut pause = LISTEN;
    while node
        .stop
        .run_until_cancelled(tokio::time::sleep(pause))
        .await
        .is_some()
    {
        pause = TICK;
        // A store that was put back knows an old log.
        if node.replica.is_unconfirmed_copy() {
            continue;
        }
        let authority = node.replica.authority();
        let (me, now) = (node.id(), now_ms());
        let is_turn = |space: &SpaceId| issue::is_key_turn(&authority, space, &me, now);
        let due: Vec<SpaceId> = authority
            .spaces()
            .map(|space| space.id)
            .filter(is_turn)
            .collect();
        for space in due {
            match node.rotate_if(space, true).await {
                Ok(()) => info!(space = %space.fmt_short(), "the space has a new key"),
                Err(error) => debug!(%error, space = %space.fmt_short(), "it keeps its old key"),
            }
        }
    }
}

impl Node {
    /// Gives a space a new key.
    pub(crate) async fn rotate_space(&self, wanted: &str) -> Result<SpaceRotated, ApiError> {
        let authority = self.need_mesh()?;
        let space = Names(&authority).find_space(wanted)?;
        self.rotate_if(space, false).await?;
        let authority = self.replica.authority();
        Ok(SpaceRotated {
            schema: SCHEMA,
            space: Names(&authority).space(&space),
            epoch: authority.space(&space).map_or(0, |info| info.epoch),
        })
    }

    /// Gives a space a new key, on the newest state of the log; with `in_turn` only if it is for
    /// this node to do so.
    pub(super) async fn rotate_if(&self, space: SpaceId, in_turn: bool) -> Result<(), ApiError> {
        self.append(move |key, authority, now| {
            if in_turn && !issue::is_key_turn(authority, &space, &key.id(), now) {
                return Ok((Vec::new(), ()));
            }
            let record = issue::rotate_key(key, authority, &space, now);
            Ok((vec![record.map_err(fail::issue)?], ()))
        })
        .await
    }
}
