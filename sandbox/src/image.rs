//! Images: what a guest boots into, named by its content.
//!
//! An image is a directory of parts: a kernel, an initial file system and, for `debian`, a
//! read-only root file system. Its id is BLAKE3 over the parts' hashes, so that equal parts are
//! one image on every machine. Parts are shared by hard links.

mod cpio;
mod debian;
mod initramfs;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    Progress, SandboxConfig,
    apt::AptError,
    channel::guest_binary,
    command::CommandError,
    kernel::{self, Kernel, KernelError},
    progress::step,
    staging::{DirLock, link_or_copy, make_private_dir, write_atomic},
};

/// The description beside an image's parts.
const MANIFEST: &str = "image.json";
/// Versions of the tools in an image, as its guest told them.
const TOOLS: &str = "tools.json";
/// Version of the description; images of another version are not listed.
const MANIFEST_VERSION: u32 = 1;
/// Largest description that is read, in bytes.
const MAX_MANIFEST_BYTES: u64 = 256 * 1024;

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// BLAKE3 over the parts, as hex.
    pub id: String,
    /// `minimal` or `debian`.
    pub name: String,
    /// When it was built, in Unix milliseconds.
    pub created_ms: u64,
    /// Bytes of all parts; parts shared with other images are counted in each.
    pub size_bytes: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// What it was built from, in words: the kernel's source, the suite, the packages.
    pub lineage: Vec<String>,
}

/// An image whose parts are on disk.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) info: ImageInfo,
    pub(crate) dir: PathBuf,
    /// Format of the root file system, where the image has one.
    pub(crate) root_format: Option<String>,
}

impl Image {
    pub(crate) fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.dir.join("initramfs")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root.img")
    }

    /// Returns the tool versions found in an earlier guest of this image.
    pub(crate) fn tools(&self) -> Option<BTreeMap<String, String>> {
        let bytes = read_bounded(&self.dir.join(TOOLS))?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(crate) fn keep_tools(&self, tools: &BTreeMap<String, String>) -> io::Result<()> {
        let json = serde_json::to_vec(tools).expect("strings become JSON");
        write_atomic(&self.dir.join(TOOLS), &json)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    info: ImageInfo,
    parts: BTreeMap<String, Part>,
    root_format: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Part {
    hash: String,
    size: u64,
}

/// The images of one node, or of several that share a directory.
#[derive(Debug, Clone)]
pub struct ImageStore {
    config: SandboxConfig,
}

impl ImageStore {
    /// Opens the store under the configuration's directory.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(config: &SandboxConfig) -> Result<Self, ImageError> {
        let dir = &config.images_dir;
        make_private_dir(dir).map_err(ImageError::io(dir))?;
        Ok(Self {
            config: config.clone(),
        })
    }

    /// Returns the minimal image, built in seconds when it is not there.
    ///
    /// # Errors
    /// When the kernel or busybox cannot be had, or the disk refuses.
    pub async fn build_minimal(&self, progress: Progress) -> Result<ImageInfo, ImageError> {
        Ok(self.minimal(&progress).await?.info)
    }

    /// Returns the Debian image with `packages` beside the standard ones, built (about a minute)
    /// when it is not there.
    ///
    /// # Errors
    /// When a helper program is missing or the build fails; the error carries its last lines.
    pub async fn build_debian(
        &self,
        packages: &[String],
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        // The kernel first: without it a minute of building would be for nothing.
        kernel::ensure(&self.config, &progress).await?;
        let images_dir = &self.config.images_dir;
        let rootfs = debian::ensure(images_dir, debian::DEFAULT_SUITE, packages, &progress).await?;
        Ok(self.assemble(Some(rootfs), &progress).await?.info)
    }

    /// Returns every image in the store, the newest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> Result<Vec<ImageInfo>, ImageError> {
        let mut images: Vec<_> = self.stored()?.into_iter().map(|image| image.info).collect();
        images.sort_by(|a, b| (b.created_ms, &b.id).cmp(&(a.created_ms, &a.id)));
        Ok(images)
    }

    /// Returns the minimal image.
    pub(crate) async fn minimal(&self, progress: &Progress) -> Result<Image, ImageError> {
        self.assemble(None, progress).await
    }

    /// Returns the image that a name, an id or a unique prefix of an id means.
    pub(crate) async fn resolve(
        &self,
        wanted: &str,
        progress: &Progress,
    ) -> Result<Image, ImageError> {
        match wanted {
            "minimal" => self.minimal(progress).await,
            // The newest userland, under today's kernel and guest agent.
            "debian" => match debian::newest(&self.config.images_dir) {
                Some(rootfs) => self.assemble(Some(rootfs), progress).await,
                None => Err(ImageError::NotBuilt {
                    name: wanted.to_owned(),
                }),
            },
            prefix => {
                let mut matching = self.stored()?;
                matching.retain(|image| prefix.len() >= 4 && image.info.id.starts_with(prefix));
                match matching.len() {
                    1 => Ok(matching.swap_remove(0)),
                    0 => Err(ImageError::Unknown {
                        wanted: prefix.chars().take(128).collect(),
                    }),
                    matches => Err(ImageError::Ambiguous {
                        wanted: prefix.chars().take(128).collect(),
                        matches,
                    }),
                }
            }
        }
    }

    fn stored(&self) -> Result<Vec<Image>, ImageError> {
        let dir = self.images_dir();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(ImageError::io(&dir)(error)),
        };
        Ok(entries
            .filter_map(Result::ok)
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| read_image(&entry.path()))
            .collect())
    }

    fn images_dir(&self) -> PathBuf {
        self.config.images_dir.join("images")
    }

    /// Puts kernel, initial file system and userland together; an image with the same parts is
    /// found again.
    async fn assemble(
        &self,
        rootfs: Option<debian::Rootfs>,
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
        let id = id_of(&parts, root_format.as_deref());
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
                name: if rootfs.is_some() {
                    "debian"
                } else {
                    "minimal"
                }
                .to_owned(),
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

/// Why an image cannot be used or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its kernel cannot be used or fetched.
    #[error("cannot make the kernel ready")]
    Kernel(#[from] KernelError),
    /// A package could not be fetched.
    #[error("cannot fetch a package for the image")]
    Apt(#[from] AptError),
    /// A helper program is missing or failed.
    #[error("a helper program failed")]
    Command(#[from] CommandError),
    /// The Debian userland could not be made.
    #[error("cannot build the Debian userland")]
    Bootstrap(#[source] CommandError),
    /// The image is known but was not built here.
    #[error("the image `{name}` has not been built on this machine")]
    NotBuilt {
        /// Its name.
        name: String,
    },
    /// Nothing in the store has this name or id.
    #[error("no image is called `{wanted}`")]
    Unknown {
        /// What was asked for.
        wanted: String,
    },
    /// More than one image has this prefix.
    #[error("`{wanted}` could be any of {matches} images")]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// How many it could be.
        matches: usize,
    },
    /// A package name is not one.
    #[error("`{name}` is not a package name")]
    BadPackage {
        /// What was given.
        name: String,
    },
    /// Debian's signing keys are not on this machine.
    #[error("the keys that sign Debian's packages are not installed")]
    NoKeyring,
    /// The disk has no room for the build.
    #[error("`{}` has {} MiB free; the build needs {} MiB", path.display(), free >> 20, needed >> 20)]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Needed bytes.
        needed: u64,
    },
}

impl ImageError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel(error) => error.hint(),
            Self::Apt(error) => error.hint(),
            Self::Command(error) => error.hint(),
            Self::Bootstrap(error) => error.hint().or_else(|| {
                Some(if rustix::process::geteuid().is_root() {
                    "check the network and the package names".to_owned()
                } else {
                    "build as root, or install `uidmap`, allow user namespaces and give this user a range in /etc/subuid".to_owned()
                })
            }),
            Self::NotBuilt { name } => Some(format!("build it with `rhizome image build {name}`")),
            Self::Unknown { .. } => Some("`rhizome image list` shows the images; `minimal` and `debian` can be built".to_owned()),
            Self::Ambiguous { .. } => Some("give more characters of the id".to_owned()),
            Self::NoKeyring => Some("install them with `apt-get install debian-archive-keyring`".to_owned()),
            Self::NoSpace { .. } => Some("make room, or put images elsewhere with `--images-dir`".to_owned()),
            Self::Io { .. } | Self::BadPackage { .. } => None,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

fn id_of(parts: &BTreeMap<String, Part>, root_format: Option<&str>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("rhizome sandbox image 1");
    for (name, part) in parts {
        hasher.update(format!("{name} {} {}\n", part.hash, part.size).as_bytes());
    }
    hasher.update(root_format.unwrap_or("none").as_bytes());
    hasher.finalize().to_hex().to_string()
}

fn lineage(kernel: &Kernel, rootfs: Option<&debian::Rootfs>) -> Vec<String> {
    let mut lines = vec![format!("kernel: {}", kernel.source)];
    if let Some(rootfs) = rootfs {
        lines.push(format!("debian: {}", rootfs.suite));
        lines.push(format!("packages: {}", rootfs.packages.join(" ")));
        lines.push(format!("root: {}", rootfs.format));
    }
    lines
}

fn part_of(path: &Path, hash: String) -> Result<Part, ImageError> {
    let size = fs::metadata(path).map_err(ImageError::io(path))?.len();
    Ok(Part { hash, size })
}

/// Makes a part readable for the user a monitor runs as, and writable for nobody.
fn make_read_only(path: &Path) -> Result<(), ImageError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).map_err(ImageError::io(path))
}

fn read_image(entry: &Path) -> Option<Image> {
    let manifest: Manifest = serde_json::from_slice(&read_bounded(&entry.join(MANIFEST))?).ok()?;
    let whole = manifest.parts.iter().all(|(name, part)| {
        fs::metadata(entry.join(name)).is_ok_and(|meta| meta.len() == part.size)
    });
    (manifest.version == MANIFEST_VERSION && whole).then(|| Image {
        info: manifest.info,
        dir: entry.to_owned(),
        root_format: manifest.root_format,
    })
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    let size = fs::metadata(path).ok()?.len();
    (size <= MAX_MANIFEST_BYTES).then(|| fs::read(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(hash: &str) -> Part {
        Part {
            hash: hash.into(),
            size: 1,
        }
    }

    #[test]
    fn the_id_covers_every_part_and_the_format() {
        let parts = BTreeMap::from([("initramfs".to_owned(), part("a"))]);
        let mut more = parts.clone();
        more.insert("root.img".into(), part("b"));
        let ids = [
            id_of(&parts, None),
            id_of(&more, Some("erofs")),
            id_of(&more, Some("ext4")),
        ];
        assert_ne!(ids[0], ids[1]);
        assert_ne!(ids[1], ids[2]);
        assert_eq!(id_of(&parts, None), ids[0]);
    }

    #[tokio::test]
    async fn an_image_that_was_not_built_says_how_to_build_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&SandboxConfig::new(dir.path())).unwrap();
        let progress = crate::silent();
        let error = store.resolve("debian", &progress).await.unwrap_err();
        assert!(error.hint().unwrap().contains("rhizome image build debian"));
        let error = store.resolve("../../etc", &progress).await.unwrap_err();
        assert!(matches!(error, ImageError::Unknown { .. }));
        assert!(store.list().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_image_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&SandboxConfig::new(dir.path())).unwrap();
        let entry = store.images_dir().join("0123456789abcdef");
        fs::create_dir_all(&entry).unwrap();
        fs::write(entry.join(MANIFEST), "{").unwrap();
        assert!(store.list().unwrap().is_empty());
    }
}
