//! Snapshots that leave the node as files, and come back.

use std::{fs, path::Path};

use super::{Sandboxes, capture::blocking_in, catalogue, directory, now_ms};
use crate::{
    Progress, SandboxError, SnapshotInfo,
    chunks::{PackId, StoreKey},
    snapshot::{SnapshotError, archive},
};

impl Sandboxes {
    /// Writes a snapshot whose packs are in [`Self::chunks`] to a new file, and returns the file's
    /// size in bytes.
    ///
    /// # Errors
    /// [`SandboxError::UnknownSnapshot`], and [`SandboxError::Snapshot`].
    ///
    /// # Cancel safety
    /// The work goes on in a thread of its own.
    pub async fn export_snapshot(
        &self,
        manifest: &PackId,
        to: &Path,
        progress: Progress,
    ) -> Result<u64, SandboxError> {
        let found = self.find_snapshot(&manifest.to_string())?;
        let (store, to) = (self.inner.chunks.clone(), to.to_owned());
        let written = blocking_in(move || archive::export(&store, &found.snapshot, &to, &progress));
        Ok(written.await??)
    }

    /// Takes a snapshot out of a file and keeps it, as one that was taken on request; what is told
    /// of it comes from its manifest, which one of `keys` has to open.
    ///
    /// # Errors
    /// [`SandboxError::Snapshot`]; nothing is kept then.
    ///
    /// # Cancel safety
    /// The work goes on in a task of its own.
    pub async fn import_snapshot(
        &self,
        from: &Path,
        keys: Vec<StoreKey>,
        progress: Progress,
    ) -> Result<SnapshotInfo, SandboxError> {
        let (sandboxes, from) = (self.clone(), from.to_owned());
        self.spawned(async move { sandboxes.take_in(&from, &keys, progress).await })
            .await
    }

    async fn take_in(
        &self,
        from: &Path,
        keys: &[StoreKey],
        progress: Progress,
    ) -> Result<SnapshotInfo, SandboxError> {
        let inner = &self.inner;
        let path = from.to_owned();
        let named = blocking_in(move || archive::peek(&path)).await??;
        let pin = catalogue::pin_of(&named.manifest);
        let was_kept = inner.chunks.pinned(&pin).is_some();
        let incoming = inner.catalogue.incoming(&named.manifest);
        let (store, path, dir, name) = (
            inner.chunks.clone(),
            from.to_owned(),
            incoming.clone(),
            pin.clone(),
        );
        let taken = blocking_in(move || {
            // Before the first part is there, so that nothing removes one meanwhile.
            store.pin_ahead(&name, &named.objects())?;
            fs::create_dir_all(&dir).map_err(directory(&dir))?;
            let taken = archive::import(&store, &path, &dir, &progress)?;
            if taken != named {
                let what = "it changed while it was read".to_owned();
                return Err(SnapshotError::Archive { what }.into());
            }
            Ok::<_, SandboxError>(taken)
        });
        let taken = match taken.await {
            Ok(Ok(snapshot)) => self.described(snapshot, keys).await,
            Ok(Err(error)) | Err(error) => Err(error),
        };
        let kept = taken.and_then(|info| inner.catalogue.keep(&info).map(|()| info));
        let (store, failed) = (inner.chunks.clone(), kept.is_err() && !was_kept);
        let _ = blocking_in(move || {
            let _ = fs::remove_dir_all(&incoming);
            failed.then(|| store.unpin(&pin))
        })
        .await;
        kept
    }

    /// Returns what a snapshot says of itself; the numbers that a file could claim are counted.
    async fn described(
        &self,
        mut snapshot: crate::SnapshotRef,
        keys: &[StoreKey],
    ) -> Result<SnapshotInfo, SandboxError> {
        for key in keys {
            match self.remembered(&snapshot, key).await {
                Ok(info) => {
                    let sizes = snapshot.objects().into_iter();
                    let sizes = sizes.filter_map(|id| self.inner.chunks.size_of(&id));
                    snapshot.bytes_stored = sizes.sum();
                    snapshot.bytes_new = snapshot.bytes_stored;
                    snapshot.bytes_read = snapshot.bytes_read.max(snapshot.bytes_stored);
                    snapshot.taken_ms = snapshot.taken_ms.min(now_ms());
                    return Ok(catalogue::describe(&info, &snapshot, false));
                }
                Err(SandboxError::Chunks(error)) if error.is_of_another_key() => {}
                Err(error) => return Err(error),
            }
        }
        Err(SnapshotError::Sealed.into())
    }
}
