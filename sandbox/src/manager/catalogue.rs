//! The snapshots that were taken on request: each a small file, and a pin in the chunk store.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    SandboxError, SandboxInfo, SnapshotInfo, SnapshotRef,
    chunks::PackId,
    staging::{make_private_dir, write_atomic},
};

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// How the directory of an import begins.
const INCOMING: &str = ".incoming-";

/// A directory of them.
#[derive(Debug)]
pub(super) struct Catalogue {
    dir: PathBuf,
}

impl Catalogue {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        make_private_dir(&dir)?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            // What an import left that did not end.
            if entry.file_name().to_string_lossy().starts_with(INCOMING) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self { dir })
    }

    /// Returns where the parts of a snapshot lie that is being imported.
    pub(super) fn incoming(&self, manifest: &PackId) -> PathBuf {
        self.dir.join(format!("{INCOMING}{manifest}"))
    }

    /// Writes a snapshot down; one that is there already stays.
    pub(super) fn add(
        &self,
        info: &SandboxInfo,
        snapshot: &SnapshotRef,
    ) -> Result<(), SandboxError> {
        self.keep(&describe(info, snapshot, false))
    }

    /// As [`Self::add`], of one that was described elsewhere.
    pub(super) fn keep(&self, entry: &SnapshotInfo) -> Result<(), SandboxError> {
        let path = self.path(&entry.snapshot.manifest);
        let json = serde_json::to_vec_pretty(entry).expect("a snapshot becomes JSON");
        write_atomic(&path, &json)
            .and_then(|()| fs::File::open(&self.dir)?.sync_all())
            .map_err(super::directory(&path))
    }

    /// Returns every snapshot, the newest first; what cannot be read is left out.
    pub(super) fn list(&self) -> Vec<SnapshotInfo> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| read(&entry.ok()?.path()))
            .collect();
        found.sort_by_key(|info| {
            std::cmp::Reverse((info.snapshot.taken_ms, info.snapshot.manifest))
        });
        found
    }

    /// Forgets a snapshot; tells whether it was there.
    pub(super) fn remove(&self, manifest: &PackId) -> io::Result<bool> {
        match fs::remove_file(self.path(manifest)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn path(&self, manifest: &PackId) -> PathBuf {
        self.dir.join(format!("{manifest}.json"))
    }
}

/// Names a snapshot that was taken on request in the chunk store.
pub(super) fn pin_of(manifest: &PackId) -> String {
    format!("snapshot-{manifest}")
}

pub(super) fn describe(info: &SandboxInfo, snapshot: &SnapshotRef, asleep: bool) -> SnapshotInfo {
    SnapshotInfo {
        snapshot: snapshot.clone(),
        sandbox: info.id,
        name: info.name.clone(),
        image: info.image.clone(),
        image_id: info.image_id.clone(),
        memory_mib: info.memory_mib,
        labels: info.labels.clone(),
        asleep,
    }
}

fn read(path: &Path) -> Option<SnapshotInfo> {
    if path.extension()? != "json" || fs::metadata(path).ok()?.len() > MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
