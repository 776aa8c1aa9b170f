//! The keys of spaces, as the log names them and as a node holds them.
//!
//! Two admins may give a space a new key at the same time. The first in order is the one in force
//! under that number; what was sealed under the other meanwhile has to be read all the same, so the
//! other one is remembered as its rival. The key that follows holds both.

use std::collections::BTreeMap;

use super::Authority;
use crate::{
    epoch::{SpaceKey, WrapError, WrappedKey, open_previous, unwrap_key},
    id::{Hash, NodeId, SpaceId},
    keys::NodeKey,
};

/// How many rivals of one number are remembered; more are made only by admins who mean to.
pub(crate) const MAX_RIVALS: usize = 4;
/// How many epochs back a key holds the rivals of; a partition has healed by then.
pub(crate) const RIVAL_EPOCHS: u32 = 8;

/// A key that a space was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedKey {
    pub(crate) commitment: Hash,
    /// The keys before it, sealed under it.
    pub(crate) previous: Option<Vec<u8>>,
}

/// The space keys that a node can open.
#[derive(Debug, Clone, Default)]
pub struct HeldKeys {
    /// Those in force, by space and epoch.
    pub current: BTreeMap<(SpaceId, u32), SpaceKey>,
    /// Those that were made for the same epoch at the same time: nothing is sealed under them any
    /// more.
    pub rivals: BTreeMap<(SpaceId, u32), Vec<SpaceKey>>,
}

impl Authority {
    /// Returns the space keys that were wrapped to `node`.
    pub fn wrapped_keys_for(
        &self,
        node: &NodeId,
    ) -> impl Iterator<Item = (SpaceId, u32, &WrappedKey)> {
        let keys = self.keys.get(node).into_iter().flatten();
        keys.map(|(space, epoch, key)| (*space, *epoch, key))
    }

    /// Opens every key that `node` was given, with those that lie behind them: the key of an epoch
    /// opens those of the epoch before. Only what the log committed to is taken.
    pub fn held_keys(&self, node: &NodeKey) -> HeldKeys {
        let mut held = HeldKeys::default();
        for (space, epoch, wrapped) in self.wrapped_keys_for(&node.id()) {
            if !self.holds_all(&held, &space, epoch)
                && let Ok(key) = self.unwrap_space_key(node, &space, wrapped)
            {
                self.keep(&mut held, space, epoch, key);
            }
        }
        for (space, info) in &self.spaces {
            for epoch in (2..=info.epoch).rev() {
                let at = (*space, epoch);
                let rivals = held.rivals.get(&at).into_iter().flatten();
                let keys: Vec<SpaceKey> = rivals.chain(held.current.get(&at)).cloned().collect();
                for key in keys {
                    for before in self.keys_before(space, epoch, &key) {
                        let back = epoch.saturating_sub(RIVAL_EPOCHS)..epoch;
                        let of = back
                            .rev()
                            .find(|of| self.rank(space, *of, &before).is_some());
                        if let Some(of) = of {
                            self.keep(&mut held, *space, of, before);
                        }
                    }
                }
            }
        }
        held
    }

    /// Opens every key in force that `node` was given: each space and epoch once, ascending.
    pub fn unwrap_keys(&self, node: &NodeKey) -> Vec<(SpaceId, u32, SpaceKey)> {
        let held = self.held_keys(node).current;
        held.into_iter()
            .map(|((space, epoch), key)| (space, epoch, key))
            .collect()
    }

    /// Opens a key that [`Self::wrapped_keys_for`] returned.
    ///
    /// # Errors
    /// [`WrapError::Mismatch`] if it was not wrapped to `node`, or is none that the space was given.
    pub fn unwrap_space_key(
        &self,
        node: &NodeKey,
        space: &SpaceId,
        wrapped: &WrappedKey,
    ) -> Result<SpaceKey, WrapError> {
        let info = self.spaces.get(space).ok_or(WrapError::Mismatch)?;
        let key = unwrap_key(node, wrapped, &info.wrap_context())?;
        match self.rank(space, wrapped.epoch, &key) {
            Some(_) => Ok(key),
            None => Err(WrapError::Mismatch),
        }
    }

    /// Returns whether this is the key in force of an epoch.
    pub fn is_current_key(&self, space: &SpaceId, epoch: u32, key: &SpaceKey) -> bool {
        self.rank(space, epoch, key) == Some(0)
    }

    /// Returns how many keys a space was given under one number: the one in force and its rivals.
    pub fn keys_named(&self, space: &SpaceId, epoch: u32) -> usize {
        self.named(space, epoch).len()
    }

    fn named(&self, space: &SpaceId, epoch: u32) -> &[NamedKey] {
        let info = self.spaces.get(space);
        let named = info.and_then(|info| info.keys.get(&epoch));
        named.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the place of a key among those of its number, the one in force being first.
    fn rank(&self, space: &SpaceId, epoch: u32, key: &SpaceKey) -> Option<usize> {
        let commitment = key.commitment();
        let mut named = self.named(space, epoch).iter();
        named.position(|named| named.commitment == commitment)
    }

    fn holds_all(&self, held: &HeldKeys, space: &SpaceId, epoch: u32) -> bool {
        let at = (*space, epoch);
        let rivals = held.rivals.get(&at).map_or(0, Vec::len);
        usize::from(held.current.contains_key(&at)) + rivals >= self.keys_named(space, epoch)
    }

    fn keep(&self, held: &mut HeldKeys, space: SpaceId, epoch: u32, key: SpaceKey) {
        match self.rank(&space, epoch, &key) {
            Some(0) => {
                held.current.insert((space, epoch), key);
            }
            Some(_) => {
                let rivals = held.rivals.entry((space, epoch)).or_default();
                if rivals
                    .iter()
                    .all(|known| known.commitment() != key.commitment())
                {
                    rivals.push(key);
                }
            }
            None => {}
        }
    }

    /// Returns the keys of earlier epochs that `key` seals.
    fn keys_before(&self, space: &SpaceId, epoch: u32, key: &SpaceKey) -> Vec<SpaceKey> {
        let Some(info) = self.spaces.get(space) else {
            return Vec::new();
        };
        let rank = self.rank(space, epoch, key);
        let named = rank.and_then(|rank| self.named(space, epoch).get(rank));
        let sealed = named.and_then(|named| named.previous.as_deref());
        sealed
            .map(|sealed| open_previous(key, epoch, &info.wrap_context(), sealed))
            .unwrap_or_default()
    }
}
