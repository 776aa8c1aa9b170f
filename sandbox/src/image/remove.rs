//! Images go when they are told to, and never while a sandbox needs one.
//!
//! Several daemons may share a store, and a sandbox may sleep for days, so use is written down: a
//! sandbox leaves a mark in its image that names a path of its own. A mark whose path is gone means
//! nothing any more.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Image, ImageError, ImageInfo, ImageStore, assemble::UNNAMED};
use crate::{
    Progress,
    progress::step,
    staging::{DirLock, write_atomic},
};

/// Marks of an image's users, below its directory.
const USERS: &str = "users";
/// Longest path that a mark may hold, in bytes.
const MAX_MARK_BYTES: u64 = 4096;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The images.
    pub images: Vec<ImageInfo>,
    /// Bytes of disk that this gave back.
    pub freed_bytes: u64,
}

impl Image {
    /// Writes down that a sandbox needs this image for as long as `path` is there: a file or
    /// directory of the sandbox that goes when it ends.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub(crate) fn mark_used(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let marks = self.dir.join(USERS);
        fs::create_dir_all(&marks)?;
        let path = path.as_os_str().as_bytes();
        let name = blake3::hash(path).to_hex();
        write_atomic(&marks.join(&name[..16]), path)
    }

    /// Returns the directories of the sandboxes that need this image.
    pub(super) fn users(&self) -> Vec<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let marks = fs::read_dir(self.dir.join(USERS)).into_iter().flatten();
        let mut users = Vec::new();
        for mark in marks.filter_map(Result::ok) {
            let short = mark
                .metadata()
                .is_ok_and(|meta| meta.len() <= MAX_MARK_BYTES);
            let Some(path) = short.then(|| fs::read(mark.path()).ok()).flatten() else {
                continue;
            };
            let dir = PathBuf::from(std::ffi::OsString::from_vec(path));
            if dir.exists() {
                users.push(dir);
            } else {
                let _ = fs::remove_file(mark.path());
            }
        }
        users.sort();
        users
    }
}

impl ImageStore {
    /// Removes the image that a name, an id or a prefix of an id means, and the root file system
    /// that it alone needs.
    ///
    /// # Errors
    /// [`ImageError::InUse`] names a sandbox that needs it; [`ImageError::Unknown`].
    pub async fn remove(&self, wanted: &str, progress: Progress) -> Result<Removed, ImageError> {
        let lock = self.lock(&progress).await?;
        let image = self.stored_as(wanted)?;
        if let Some(user) = image.users().first() {
            return Err(ImageError::InUse {
                wanted: wanted.chars().take(128).collect(),
                user: user.display().to_string(),
            });
        }
        let others = self.stored()?.into_iter();
        let root_needed = others
            .filter(|other| other.info.id != image.info.id)
            .any(|other| other.info.root == image.info.root);
        let mut removed = Removed::default();
        self.take_out(&image, &mut removed)?;
        let root = image.info.root.as_deref();
        if let Some(rootfs) = root
            .filter(|_| !root_needed)
            .and_then(|k| self.roots.find(k))
        {
            removed.freed_bytes += bytes_of(&rootfs.path);
            self.roots.remove(&rootfs)?;
        }
        drop(lock);
        Ok(removed)
    }

    /// Removes what nobody needs: images that newer ones of their name have taken the place of,
    /// and steps of recipes from which no image was made.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn prune(&self, progress: Progress) -> Result<Removed, ImageError> {
        let lock = self.lock(&progress).await?;
        let mut removed = Removed::default();
        let mut names = BTreeSet::new();
        let mut stored = self.stored()?;
        stored.sort_by_key(|image| std::cmp::Reverse(image.info.created_ms));
        let mut kept = Vec::new();
        for image in stored {
            let is_newest = image.info.name != UNNAMED && names.insert(image.info.name.clone());
            if is_newest || !image.users().is_empty() {
                kept.push(image);
            } else {
                self.take_out(&image, &mut removed)?;
            }
        }
        let mut needed: BTreeSet<String> = kept
            .into_iter()
            .filter_map(|image| image.info.root)
            .collect();
        let all = self.roots.all();
        let mut newest = BTreeSet::new();
        for rootfs in &all {
            // What a name means today stays, whether an image was put together of it yet or not.
            if !rootfs.name.is_empty() && newest.insert(rootfs.name.clone()) {
                needed.insert(rootfs.key.clone());
            }
        }
        // What they were made from is what makes the next build of a recipe short.
        let mut open: Vec<String> = needed.iter().cloned().collect();
        while let Some(key) = open.pop() {
            let parent = all.iter().find(|rootfs| rootfs.key == key);
            if let Some(parent) = parent.and_then(|rootfs| rootfs.parent.clone())
                && needed.insert(parent.clone())
            {
                open.push(parent);
            }
        }
        for rootfs in all.iter().filter(|rootfs| !needed.contains(&rootfs.key)) {
            removed.freed_bytes += bytes_of(&rootfs.path);
            self.roots.remove(rootfs)?;
        }
        drop(lock);
        Ok(removed)
    }

    async fn lock(&self, progress: &Progress) -> Result<DirLock, ImageError> {
        let dir = self.images_dir();
        let told = || step(progress, "image", "waiting for an image that is being made");
        let lock = DirLock::acquire(&dir, told).await;
        lock.map_err(ImageError::io(&dir))
    }

    fn take_out(&self, image: &Image, removed: &mut Removed) -> Result<(), ImageError> {
        for part in image.parts() {
            removed.freed_bytes += bytes_of(&image.dir.join(part.name));
        }
        // Renamed first: a directory that is half gone must not be taken for an image.
        let gone = self
            .images_dir()
            .join(format!(".gone-{}", &image.info.id[..16]));
        fs::rename(&image.dir, &gone).map_err(ImageError::io(&image.dir))?;
        fs::remove_dir_all(&gone).map_err(ImageError::io(&gone))?;
        removed.images.push(image.info.clone());
        Ok(())
    }
}

/// Returns what removing a name of a file gives back: nothing while it has another.
fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path)
        .ok()
        .filter(|meta| meta.nlink() == 1)
        .map_or(0, |meta| meta.blocks() * 512)
}

#[cfg(test)]
mod tests;
