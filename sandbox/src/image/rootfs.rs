//! Root file systems: each one packed file, and what is known of it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{ImageConfig, ImageError};
use crate::{
    Progress,
    progress::step,
    staging::{DirLock, Staging, hash_file, make_private_dir, write_atomic},
};

const MANIFEST: &str = "rootfs.json";
const IMAGE: &str = "root.img";
/// Largest description that is read, in bytes.
const MAX_MANIFEST_BYTES: u64 = 1024 * 1024;

/// A root file system on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rootfs {
    /// Hash of what was asked for: the same wish is found again.
    pub(super) key: String,
    /// What images of it are called; empty for one step of a recipe.
    pub(super) name: String,
    /// `erofs` or `ext4`.
    pub(super) format: String,
    /// BLAKE3 of the packed file.
    pub(super) hash: String,
    pub(super) created_ms: u64,
    /// What it was made from, in words.
    pub(super) lineage: Vec<String>,
    /// How programs run in it.
    pub(super) config: ImageConfig,
    /// The key of the one it was made from.
    pub(super) parent: Option<String>,
    /// Fields of descriptions that were written before lineage was.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) suite: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) packages: Vec<String>,
    #[serde(skip)]
    pub(super) path: PathBuf,
}

impl Rootfs {
    /// Returns the key of a wish: what it is made from, and what it is to be called.
    pub(super) fn key_of(wish: &str, name: &str) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("rhizome root file system 1");
        hasher.update(wish.as_bytes());
        hasher.update(&[0]);
        hasher.update(name.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    fn read(entry: &Path) -> Option<Self> {
        let path = entry.join(MANIFEST);
        if fs::metadata(&path).ok()?.len() > MAX_MANIFEST_BYTES {
            return None;
        }
        let mut rootfs: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        rootfs.path = entry.join(IMAGE);
        if rootfs.lineage.is_empty() && !rootfs.suite.is_empty() {
            super::debian::NAME.clone_into(&mut rootfs.name);
            rootfs.lineage = vec![
                format!("debian: {}", rootfs.suite),
                format!("packages: {}", rootfs.packages.join(" ")),
            ];
        }
        (rootfs.path.is_file() && rootfs.key.len() >= 16).then_some(rootfs)
    }
}

/// All root file systems of a store.
#[derive(Debug, Clone)]
pub(super) struct Roots {
    dir: PathBuf,
}

impl Roots {
    pub(super) fn new(images_dir: &Path) -> Self {
        Self {
            dir: images_dir.join("rootfs"),
        }
    }

    pub(super) fn find(&self, key: &str) -> Option<Rootfs> {
        Rootfs::read(&self.dir.join(&key[..16])).filter(|rootfs| rootfs.key == key)
    }

    /// Returns every one of them, the newest first.
    pub(super) fn all(&self) -> Vec<Rootfs> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        let mut all: Vec<Rootfs> = entries
            .filter_map(Result::ok)
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| Rootfs::read(&entry.path()))
            .collect();
        all.sort_by(|a, b| (b.created_ms, &b.key).cmp(&(a.created_ms, &a.key)));
        all
    }

    /// Returns the newest of a name.
    pub(super) fn newest(&self, name: &str) -> Option<Rootfs> {
        let mut all = self.all().into_iter();
        all.find(|rootfs| !name.is_empty() && rootfs.name == name)
    }

    /// Removes one; images that were made of it keep their own link to its file.
    pub(super) fn remove(&self, rootfs: &Rootfs) -> Result<(), ImageError> {
        let entry = self.dir.join(&rootfs.key[..16]);
        fs::remove_dir_all(&entry).map_err(ImageError::io(&entry))
    }

    pub(super) fn free_bytes(&self) -> Result<u64, ImageError> {
        crate::probe::free_bytes(&self.dir).map_err(ImageError::io(&self.dir))
    }

    /// Refuses work for which the disk has no room.
    pub(super) fn need(&self, needed: u64) -> Result<(), ImageError> {
        let free = self.free_bytes()?;
        if free < needed {
            return Err(ImageError::NoSpace {
                path: self.dir.clone(),
                free,
                needed,
            });
        }
        Ok(())
    }

    /// Begins a new one; waits while another daemon makes one.
    pub(super) async fn stage(&self, progress: &Progress) -> Result<Staged, ImageError> {
        let told = || {
            step(
                progress,
                "image",
                "waiting for another image that is being made",
            );
        };
        let lock = DirLock::acquire(&self.dir, told)
            .await
            .map_err(ImageError::io(&self.dir))?;
        let staging = lock.stage().map_err(ImageError::io(&self.dir))?;
        Ok(Staged {
            dir: self.dir.clone(),
            staging,
            _lock: lock,
        })
    }
}

/// A root file system that is being made; gone on drop unless committed.
#[derive(Debug)]
pub(super) struct Staged {
    dir: PathBuf,
    // Dropped before the lock: the directory must be gone when another takes its place.
    staging: Staging,
    _lock: DirLock,
}

impl Staged {
    /// Returns a directory for what is needed on the way.
    pub(super) fn scratch(&self) -> Result<PathBuf, ImageError> {
        let scratch = self.staging.path().join("scratch");
        make_private_dir(&scratch).map_err(ImageError::io(&scratch))?;
        Ok(scratch)
    }

    /// Returns where the packed file belongs.
    pub(super) fn image(&self) -> PathBuf {
        self.staging.path().join(IMAGE)
    }

    /// Takes in what lies at [`Self::image`].
    pub(super) async fn commit(self, mut rootfs: Rootfs) -> Result<Rootfs, ImageError> {
        let image = self.image();
        let scratch = self.staging.path().join("scratch");
        // Off the async threads: a tree has tens of thousands of files.
        let (hashed, gone) = (image.clone(), scratch.clone());
        let hash = tokio::task::spawn_blocking(move || {
            if gone.exists() {
                fs::remove_dir_all(&gone)?;
            }
            hash_file(&hashed)
        });
        rootfs.hash = hash
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(ImageError::io(&image))?;
        rootfs.created_ms = crate::manager::now_ms();
        let json = serde_json::to_vec_pretty(&rootfs).expect("a description becomes JSON");
        let written = write_atomic(&self.staging.path().join(MANIFEST), &json);
        written.map_err(ImageError::io(&self.dir))?;
        let entry = self
            .staging
            .commit(&rootfs.key[..16])
            .map_err(ImageError::io(&self.dir))?;
        rootfs.path = entry.join(IMAGE);
        Ok(rootfs)
    }
}
