//! A root file system becomes an image: today's kernel and guest agent go with it.

use std::{collections::BTreeMap, fs, path::Path};

use super::{
    Image, ImageConfig, ImageError, ImageInfo, ImageStore, MANIFEST, MANIFEST_VERSION, MINIMAL,
    Manifest, Part, initramfs, read_image, rootfs::Rootfs,
};
use crate::{
    Progress,
    channel::guest_binary,
    kernel::{self, Kernel},
    progress::step,
    staging::{DirLock, link_or_copy, write_atomic},
};

/// What an image is called whose root file system has no name.
pub(super) const UNNAMED: &str = "step";

impl ImageStore {
    /// Puts kernel, initial file system and userland together; an image with the same parts is
    /// found again.
    pub(super) async fn assemble(
        &self,
        rootfs: Option<Rootfs>,
        progress: &Progress,
    ) -> Result<Image, ImageError> {
        let kernel = kernel::ensure(&self.config, progress).await?;
        let busybox = initramfs::Busybox::find(&self.config.images_dir, progress).await?;
        let dir = self.images_dir();
        let initramfs =
            initramfs::build(&kernel, &busybox, guest_binary()).map_err(ImageError::io(&dir))?;
        let mut parts = BTreeMap::from([
            (
                "vmlinuz".to_owned(),
                part_of(&kernel.image, kernel.hash.clone())?,
            ),
            (
                "initramfs".to_owned(),
                Part {
                    hash: blake3::hash(&initramfs).to_hex().to_string(),
                    size: initramfs.len() as u64,
                },
            ),
        ]);
        if let Some(rootfs) = &rootfs {
            parts.insert(
                "root.img".to_owned(),
                part_of(&rootfs.path, rootfs.hash.clone())?,
            );
        }
        let root_format = rootfs.as_ref().map(|rootfs| rootfs.format.clone());
        let config = rootfs.as_ref().map(|rootfs| rootfs.config.clone());
        let config = config.unwrap_or_default();
        let id = id_of(&parts, root_format.as_deref(), &config);
        if let Some(image) = read_image(&dir.join(&id[..16])).filter(|image| image.info.id == id) {
            return Ok(image);
        }
        let lock = DirLock::acquire(&dir, || {
            step(
                progress,
                "image",
                "waiting for another daemon that writes an image",
            );
        })
        .await
        .map_err(ImageError::io(&dir))?;
        let staging = lock.stage().map_err(ImageError::io(&dir))?;
        let place = |from: &Path, name: &str| -> Result<(), ImageError> {
            let to = staging.path().join(name);
            link_or_copy(from, &to).map_err(ImageError::io(&to))?;
            make_read_only(&to)
        };
        place(&kernel.image, "vmlinuz")?;
        let initramfs_path = staging.path().join("initramfs");
        fs::write(&initramfs_path, &initramfs).map_err(ImageError::io(&initramfs_path))?;
        make_read_only(&initramfs_path)?;
        if let Some(rootfs) = &rootfs {
            place(&rootfs.path, "root.img")?;
        }
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            info: ImageInfo {
                name: match &rootfs {
                    None => MINIMAL.to_owned(),
                    Some(rootfs) if rootfs.name.is_empty() => UNNAMED.to_owned(),
                    Some(rootfs) => rootfs.name.clone(),
                },
                config,
                root: rootfs.as_ref().map(|rootfs| rootfs.key.clone()),
                created_ms: crate::manager::now_ms(),
                size_bytes: parts.values().map(|part| part.size).sum(),
                lineage: lineage(&kernel, rootfs.as_ref()),
                kernel: kernel.release,
                id,
            },
            parts,
            root_format,
        };
        let json = serde_json::to_vec_pretty(&manifest).expect("a manifest becomes JSON");
        write_atomic(&staging.path().join(MANIFEST), &json).map_err(ImageError::io(&dir))?;
        let name = &manifest.info.id[..16];
        let entry = staging.commit(name).map_err(ImageError::io(&dir))?;
        step(
            progress,
            "image",
            format_args!("image {} {name} is ready", manifest.info.name),
        );
        Ok(Image {
            info: manifest.info,
            dir: entry,
            root_format: manifest.root_format,
        })
    }
}

pub(super) fn id_of(
    parts: &BTreeMap<String, Part>,
    root_format: Option<&str>,
    config: &ImageConfig,
) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("rhizome sandbox image 1");
    for (name, part) in parts {
        hasher.update(format!("{name} {} {}\n", part.hash, part.size).as_bytes());
    }
    hasher.update(root_format.unwrap_or("none").as_bytes());
    if *config != ImageConfig::default() {
        hasher.update(&serde_json::to_vec(config).expect("a configuration becomes JSON"));
    }
    hasher.finalize().to_hex().to_string()
}

fn lineage(kernel: &Kernel, rootfs: Option<&Rootfs>) -> Vec<String> {
    let mut lines = vec![format!("kernel: {}", kernel.source)];
    if let Some(rootfs) = rootfs {
        lines.extend(rootfs.lineage.iter().cloned());
        lines.push(format!("root: {}", rootfs.format));
    }
    lines
}

fn part_of(path: &Path, hash: String) -> Result<Part, ImageError> {
    let size = fs::metadata(path).map_err(ImageError::io(path))?.len();
    Ok(Part { hash, size })
}

/// Makes a part readable for the user a monitor runs as, and writable for nobody.
pub(super) fn make_read_only(path: &Path) -> Result<(), ImageError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).map_err(ImageError::io(path))
}
