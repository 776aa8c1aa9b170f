//! The volumes that are served here, as the node keeps them in mind.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Instant,
};

use futures::FutureExt;
use rhizome_identity::{Hash, NodeId, SpaceId};
use rhizome_sandbox::{
    SandboxId,
    chunks::PackId,
    volume::{Content, VersionId, attach::Attachment},
};
use tokio_util::sync::DropGuard;

use super::{AttachedRecord, Node, VolumeId};
use crate::remote::arriving::Arriving;

/// A sandbox, and a volume in it.
type Place = (SandboxId, VolumeId);

/// The volumes that this node serves.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    live: Mutex<BTreeMap<Place, Arc<Live>>>,
    /// Held while a volume is attached or detached.
    pub(in crate::daemon::volume) changing: tokio::sync::Mutex<()>,
    /// Held while one is repacked.
    pub(in crate::daemon::volume) repacking: tokio::sync::Mutex<()>,
    /// What each volume was when there was nothing to repack.
    looked: Mutex<BTreeMap<VolumeId, Hash>>,
    /// Whose they are; set when the daemon starts to keep them.
    pub(crate) node: OnceLock<Weak<Node>>,
}

/// A volume that is served.
#[derive(Debug)]
pub(in crate::daemon::volume) struct Live {
    pub(super) space: SpaceId,
    pub(super) attachment: Attachment,
    /// The epoch of the key that the base is under.
    pub(super) epoch: u32,
    /// The packs that the base lies in, as is known now.
    pub(super) base_packs: Mutex<Vec<PackId>>,
    pub(super) arriving: Arc<Arriving>,
    pub(super) _fetching: DropGuard,
    /// Held while a checkpoint is taken.
    pub(in crate::daemon::volume) state: tokio::sync::Mutex<State>,
    pub(super) due: Mutex<Instant>,
    /// Who granted that this one writes, until others have heard of it.
    pub(super) claim: Mutex<Option<NodeId>>,
}

#[derive(Debug)]
pub(in crate::daemon::volume) struct State {
    pub(in crate::daemon::volume) record: AttachedRecord,
    /// The tree of the newest version of ours: what equals it is no new one.
    pub(super) root: Content,
}

impl Volumes {
    pub(super) fn live(&self) -> MutexGuard<'_, BTreeMap<Place, Arc<Live>>> {
        lock(&self.live)
    }

    pub(in crate::daemon::volume) fn serves(&self, sandbox: &SandboxId, volume: &VolumeId) -> bool {
        self.live().contains_key(&(*sandbox, *volume))
    }

    /// Returns the volumes that are served to a sandbox.
    pub(crate) fn of(&self, sandbox: &SandboxId) -> Vec<String> {
        let live = self.live();
        let its = live.keys().filter(|(of, _)| of == sandbox);
        its.map(|(_, volume)| volume.to_string()).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Live>> {
        self.live().values().cloned().collect()
    }

    /// Returns how many packs a volume has that is served, and how many of them are here.
    pub(in crate::daemon::volume) fn progress(
        &self,
        sandbox: &SandboxId,
        volume: &VolumeId,
    ) -> Option<(usize, usize)> {
        let live = self.live().get(&(*sandbox, *volume)).cloned()?;
        Some(live.arriving.progress())
    }

    /// Lets go of what is served no more: the guest, or the channel to it, is gone.
    pub(super) fn drop_ended(&self) {
        let mut live = self.live();
        live.retain(|_, live| live.attachment.ended().now_or_never().is_none());
    }

    /// Says that a version lies in other packs now: what is made of it from now on does too.
    pub(in crate::daemon::volume) async fn moved(&self, version: &VersionId, packs: &[PackId]) {
        for live in self.all() {
            let record = live.state.lock().await.record.clone();
            if record.base == *version {
                *lock(&live.base_packs) = packs.to_vec();
            }
            if record.base == *version || record.last == Some(*version) {
                live.attachment.begin_anew().await;
            }
        }
    }

    /// Returns what a volume was when there was nothing to repack.
    pub(in crate::daemon::volume) fn looked_at(&self, volume: &VolumeId) -> Option<Hash> {
        lock(&self.looked).get(volume).copied()
    }

    pub(in crate::daemon::volume) fn look_at(&self, volume: VolumeId, looked: Hash) {
        lock(&self.looked).insert(volume, looked);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every section leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
