//! Volumes as the API shows them.

use rhizome_sandbox::volume::{Change, ChangeKind, Conflict, Entry, Node as Item};

use super::{ConflictKind, Known, Names, Node, VersionRecord, VolumeChange, VolumeConflict};
use crate::api::types::volume::{Volume, VolumeArrived, VolumeAttached, VolumeVersion};

impl Node {
    pub(super) fn volume_shown(&self, known: &Known) -> Volume {
        let authority = self.replica.authority();
        let heads = known.heads();
        let attached = known.attached.iter().filter(|attached| attached.attached);
        Volume {
            id: known.volume.volume.to_string(),
            name: known.volume.name.clone(),
            space: Names(&authority).space(&known.space),
            created_ms: known.volume.created_ms,
            heads: heads
                .iter()
                .filter_map(|id| known.versions.get(id))
                .map(|version| self.version_shown(version))
                .collect(),
            versions: known.versions.len() as u64,
            attached: attached
                .map(|attached| VolumeAttached {
                    sandbox: attached.sandbox.to_string(),
                    node: Names(&authority).node(&attached.node),
                    path: attached.path.clone(),
                    writable: attached.writable,
                    base: attached.base.to_string(),
                    last: attached.last.map(|last| last.to_string()),
                    every_secs: attached.every_secs,
                    until_ms: attached.until_ms,
                    served: self.volumes.serves(&attached.sandbox, &attached.volume),
                    arrived: self
                        .volumes
                        .progress(&attached.sandbox, &attached.volume)
                        .map(|(of, packs)| VolumeArrived {
                            packs: packs as u64,
                            of: of as u64,
                        }),
                })
                .collect(),
        }
    }

    pub(super) fn version_shown(&self, version: &VersionRecord) -> VolumeVersion {
        let authority = self.replica.authority();
        VolumeVersion {
            id: version.version.to_string(),
            parents: version.parents.iter().map(ToString::to_string).collect(),
            tree: version.tree.clone(),
            author: version.author.clone(),
            at_ms: version.at_ms,
            message: version.message.clone(),
            bytes_stored: version.bytes_stored,
            holders: version
                .holders
                .iter()
                .map(|node| Names(&authority).node(node))
                .collect(),
        }
    }
}

pub(super) fn change(change: &Change) -> VolumeChange {
    VolumeChange {
        path: change.path.to_string(),
        kind: match change.kind {
            ChangeKind::Added => "added",
            ChangeKind::Removed => "removed",
            ChangeKind::Meta => "meta",
            _ => "modified",
        }
        .to_owned(),
        old_bytes: bytes(change.old.as_ref()),
        new_bytes: bytes(change.new.as_ref()),
    }
}

pub(super) fn bytes(entry: Option<&Entry>) -> Option<u64> {
    match &entry?.node {
        Item::File(content) => Some(content.size()),
        _ => None,
    }
}

pub(super) fn conflict(conflict: &Conflict) -> VolumeConflict {
    VolumeConflict {
        path: conflict.path.to_string(),
        kind: match conflict.kind {
            ConflictKind::RemovedAndChanged => "removed_and_changed",
            ConflictKind::MetaChanged => "meta_changed",
            ConflictKind::ChangedAndRemoved => "changed_and_removed",
            _ => "both_changed",
        }
        .to_owned(),
        kept_as: conflict.kept_as.as_ref().map(ToString::to_string),
    }
}
