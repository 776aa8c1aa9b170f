//! Snapshots that leave the node as files, and come back.
use rhizome_sandbox::Progress as SandboxProgress;

use super::{fail, image::absolute, node::Node, sandbox::Bound};
use crate::{
    api::types::{
        SCHEMA,
        lifecycle::{ArchiveBody, SnapshotExported, SnapshotTaken},
    },
    error::ApiError,
};

impl Node {
    /// Writes a snapshot to a file of this machine.
    pub(crate) async fn export_snapshot(
        &self,
        wanted: &str,
        body: ArchiveBody,
        progress: SandboxProgress,
    ) -> Result<SnapshotExported, ApiError> {
        let sandboxes = self.sandboxes()?;
        let to = absolute(body.path)?;
        let found = sandboxes.find_snapshot(wanted);
        let found = found.map_err(|error| fail::sandbox(&error))?;
        let manifest = found.snapshot.manifest;
        let written = sandboxes.export_snapshot(&manifest, &to, progress).await;
        let bytes = written.map_err(|error| fail::sandbox(&error))?;
        let mut notes = vec![format!(
            "the image {} ({}) is not in it: a node that lacks it fetches it from a peer, or is given it by `rhizome image push`",
            found.image, found.image_id
        )];
        if Bound::of_labels(&found.labels).spaces.is_empty() {
            notes
                .push("its sandbox belongs to no space, so this node alone can open it".to_owned());
        }
        Ok(SnapshotExported {
            schema: SCHEMA,
            id: manifest.to_string(),
            path: to.display().to_string(),
            bytes,
            notes,
        })
    }

    /// Takes a snapshot out of a file of this machine, and keeps it until it is removed.
    pub(crate) async fn import_snapshot(
        &self,
        body: ArchiveBody,
        progress: SandboxProgress,
    ) -> Result<SnapshotTaken, ApiError> {
        let sandboxes = self.sandboxes()?;
        let from = absolute(body.path)?;
        let anywhere = Bound {
            agent: None,
            spaces: self.replica.authority().spaces().map(|s| s.id).collect(),
        };
        let keys = self.snapshot_keys(&anywhere);
        let taken = sandboxes.import_snapshot(&from, keys, progress).await;
        let found = taken.map_err(|error| fail::sandbox(&error))?;
        Ok(SnapshotTaken {
            schema: SCHEMA,
            snapshot: self.snapshot_of(found),
            kept: None,
            wake_on: Vec::new(),
            webhook: None,
        })
    }
}
