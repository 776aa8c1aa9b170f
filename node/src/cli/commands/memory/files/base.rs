//! What a directory and memory said when they last agreed.
//!
//! Kept in the data directory, not in the one that is synced: whoever writes there must not be able
//! to say what was there before.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rhizome_identity::Hash;
use serde::{Deserialize, Serialize};

/// One file, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Was {
    pub(super) text: String,
    /// The fragment that memory showed then; empty if memory says something else.
    pub(super) id: String,
}

/// All files of one pair of trees.
#[derive(Debug, Default)]
pub(super) struct Base {
    path: PathBuf,
    pub(super) files: BTreeMap<String, Was>,
}

impl Base {
    /// Reads what was kept for `tree` and `space`; nothing, if there is nothing that can be read:
    /// then what is on both sides is merged and nothing is deleted.
    pub(super) fn open(data_dir: &Path, tree: &str, space: &str) -> Self {
        let name = Hash::of(format!("{space}\0{tree}").as_bytes());
        let path = data_dir.join("files").join(format!("{name}.json"));
        let files = fs::read(&path).ok();
        let files = files.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            path,
            files: files.unwrap_or_default(),
        }
    }

    /// Keeps it, whole or not at all.
    pub(super) fn save(&self) -> io::Result<()> {
        let dir = self.path.parent().expect("it was joined to a directory");
        fs::create_dir_all(dir)?;
        let draft = self
            .path
            .with_extension(format!("{}.new", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| {
                file.write_all(&serde_json::to_vec(&self.files).expect("it has string keys"))?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
