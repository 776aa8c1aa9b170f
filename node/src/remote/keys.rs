//! The keys under which snapshots and volumes are stored: one per space and epoch.
//!
//! Whoever reads the space can derive them and so open what was stored, on any node; whoever holds
//! the packs for others need not. What belongs to no space is stored under a key that only this
//! node can derive, and can be opened nowhere else.
use axum::http::StatusCode;
use rhizome_identity::{SpaceId, SpaceKey};
use rhizome_sandbox::chunks::StoreKey;

use crate::{
    daemon::{names::Names, node::Node, sandbox::Bound},
    error::ApiError,
};

/// What a store's key is derived for from a space's.
const OF_A_SPACE: &str = "rhizome chunk store 1";
/// What it is derived for from the node's own.
const OF_A_NODE: &str = "rhizome chunk store of one node 1";

impl Node {
    /// Returns the key under which something of `space` is stored now, and its epoch.
    ///
    /// # Errors
    /// `unknown_space`, or `no_key` if this node was not given the space's key.
    pub(crate) fn store_key(&self, space: &SpaceId) -> Result<(StoreKey, u32), ApiError> {
        let authority = self.replica.authority();
        let info = authority.space(space).ok_or_else(|| {
            let message = format!("this node knows no space {}", space.fmt_short());
            ApiError::new(StatusCode::NOT_FOUND, "unknown_space", message)
        })?;
        Ok((self.store_key_of(space, info.epoch)?, info.epoch))
    }

    /// Returns the key under which something of `space` was stored in `epoch`.
    ///
    /// # Errors
    /// `no_key` if this node was not given that key.
    pub(crate) fn store_key_of(&self, space: &SpaceId, epoch: u32) -> Result<StoreKey, ApiError> {
        let key = self.replica.space_key(space, epoch);
        key.as_ref().map(derived).ok_or_else(|| {
            let authority = self.replica.authority();
            let name = Names(&authority).space(space);
            let message = format!("this node has no key of the space `{name}` (epoch {epoch})");
            ApiError::new(StatusCode::FORBIDDEN, "no_key", message)
                .hint("only readers of a space have its keys; an admin can grant the role")
        })
    }

    /// Returns the key under which a snapshot of a sandbox is stored: that of its first space, or
    /// this node's own if it belongs to none.
    pub(crate) fn snapshot_key(&self, bound: &Bound) -> Result<StoreKey, ApiError> {
        match bound.spaces.first() {
            Some(space) => self.store_key(space).map(|(key, _)| key),
            None => Ok(self.own_store_key()),
        }
    }

    /// Returns every key under which a snapshot of a sandbox may be stored, the likeliest first.
    pub(crate) fn snapshot_keys(&self, bound: &Bound) -> Vec<StoreKey> {
        let authority = self.replica.authority();
        let mut keys = Vec::new();
        for space in &bound.spaces {
            let newest = authority.space(space).map_or(0, |info| info.epoch);
            let held = (0..=newest)
                .rev()
                .filter_map(|epoch| self.replica.space_key(space, epoch));
            keys.extend(held.map(|key| derived(&key)));
        }
        keys.push(self.own_store_key());
        keys
    }

    fn own_store_key(&self) -> StoreKey {
        StoreKey::from_bytes(blake3::derive_key(OF_A_NODE, &self.key.secret_bytes()[..]))
    }
}

fn derived(key: &SpaceKey) -> StoreKey {
    StoreKey::from_bytes(key.derive(OF_A_SPACE))
}
