//! Images: what a guest boots into, named by its content.
//!
//! An image is a directory of parts: a kernel, an initial file system and, for all but `minimal`,
//! a read-only root file system. Its id is BLAKE3 over the parts' hashes, so that equal parts are
//! one image on every machine. Parts are shared by hard links.
//!
//! A root file system ([`rootfs`]) comes from Debian's packages, from somebody else's image
//! ([`import`]), from a sandbox ([`commit`]) or from a recipe ([`recipe`]); under today's kernel
//! and guest agent it is an image. `docs/images.md` is the page for users.

mod assemble;
mod build;
mod commit;
mod cpio;
mod debian;
mod error;
pub(crate) mod import;
mod initramfs;
mod pack;
mod recipe;
mod remove;
mod rootfs;
mod start;
mod transfer;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use self::rootfs::Roots;
pub use self::{
    error::ImageError,
    import::{ImportError, ImportRequest},
    recipe::{MAX_RECIPE_BYTES, Recipe, RecipeError},
    remove::Removed,
    transfer::{DescribedPart, ImageDescription},
};
use crate::{
    Progress, SandboxConfig, kernel,
    staging::{make_private_dir, write_atomic},
};

/// The image without a userland.
const MINIMAL: &str = "minimal";

/// The description beside an image's parts.
const MANIFEST: &str = "image.json";
/// Versions of the tools in an image, as its guest told them.
const TOOLS: &str = "tools.json";
/// Version of the description; images of another version are not listed.
const MANIFEST_VERSION: u32 = 1;
/// Most root file systems in one line of descent.
const MAX_ANCESTORS: usize = 64;
/// Largest description that is read, in bytes.
const MAX_MANIFEST_BYTES: u64 = 256 * 1024;

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// BLAKE3 over the parts, as hex.
    pub id: String,
    /// What it is called; several may have one name, which then means the newest.
    pub name: String,
    /// When it was built, in Unix milliseconds.
    pub created_ms: u64,
    /// Bytes of all parts; parts shared with other images are counted in each.
    pub size_bytes: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// What it was built from, in words: the kernel's source, the suite, the packages.
    pub lineage: Vec<String>,
    /// How programs run in it.
    #[serde(default)]
    pub config: ImageConfig,
    /// The root file system in it, by the hash of what it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// How programs run in an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Environment of every program, below what the sandbox sets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Directory in which programs start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User as whom programs run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What whoever made the image would run in it; told, never run by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What is run in the background once the guest answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<String>,
    /// What has to succeed before the sandbox counts as ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<String>,
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// `vmlinuz`, `initramfs` or `root.img`.
    pub name: String,
    /// BLAKE3 of the file, as hex.
    pub hash: String,
    /// Its size in bytes.
    pub size: u64,
}

/// An image with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageDetails {
    /// What it is made of.
    pub info: ImageInfo,
    /// Its files.
    pub parts: Vec<ImagePart>,
    /// What its root file system was made from, the nearest first: name and lineage of each.
    pub ancestors: Vec<(String, Vec<String>)>,
    /// Directories of sandboxes that use it.
    pub users: Vec<PathBuf>,
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

    /// Returns the environment of a sandbox of this image: its own, below what is asked for.
    pub(crate) fn environment(
        &self,
        wanted: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut env = self.info.config.env.clone();
        env.extend(
            wanted
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        env
    }

    fn parts(&self) -> Vec<ImagePart> {
        let manifest = read_manifest(&self.dir);
        let parts = manifest.into_iter().flat_map(|manifest| manifest.parts);
        parts
            .map(|(name, part)| ImagePart {
                name,
                hash: part.hash,
                size: part.size,
            })
            .collect()
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

impl Manifest {
    /// Returns the id that these parts make.
    fn computed_id(&self) -> String {
        assemble::id_of(&self.parts, self.root_format.as_deref(), &self.info.config)
    }
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
    roots: Roots,
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
            roots: Roots::new(dir),
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
        let suite = debian::DEFAULT_SUITE;
        let rootfs = debian::ensure(&self.roots, suite, packages, &progress).await?;
        Ok(self.assemble(Some(rootfs), &progress).await?.info)
    }

    /// Imports an OCI layout, what `docker save` writes, or a bare root file system.
    ///
    /// # Errors
    /// [`ImageError::Import`] says what is wrong with it; nothing of it is kept then.
    pub async fn import(
        &self,
        request: ImportRequest,
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        kernel::ensure(&self.config, &progress).await?;
        let rootfs = import::import(&self.roots, request, &progress).await?;
        Ok(self.assemble(Some(rootfs), &progress).await?.info)
    }

    /// Returns what is known of the image that a name, an id or a prefix of an id means; nothing
    /// is built for it.
    ///
    /// # Errors
    /// [`ImageError::Unknown`], [`ImageError::Ambiguous`].
    pub fn show(&self, wanted: &str) -> Result<ImageDetails, ImageError> {
        let image = self.stored_as(wanted)?;
        let mut ancestors = Vec::new();
        let mut next = image.info.root.clone();
        while let Some(rootfs) = next.and_then(|key| self.roots.find(&key)) {
            ancestors.push((rootfs.name.clone(), rootfs.lineage.clone()));
            // A circle would need a hash of itself; the bound is for damaged files.
            next = rootfs.parent.filter(|_| ancestors.len() < MAX_ANCESTORS);
        }
        Ok(ImageDetails {
            parts: image.parts(),
            users: image.users(),
            info: image.info,
            ancestors,
        })
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
        if wanted == MINIMAL {
            return self.minimal(progress).await;
        }
        // The newest of the name, under today's kernel and guest agent.
        if let Some(rootfs) = self.roots.newest(wanted) {
            return self.assemble(Some(rootfs), progress).await;
        }
        match self.stored_as(wanted) {
            Err(ImageError::Unknown { .. }) if wanted == debian::NAME => {
                Err(ImageError::NotBuilt {
                    name: wanted.to_owned(),
                })
            }
            // One that came from another node is here without its root file system's own entry.
            found => found,
        }
    }

    /// Returns whether a sandbox that asks for `wanted` would find something here, be it more than
    /// one image.
    pub fn knows(&self, wanted: &str) -> bool {
        wanted == MINIMAL
            || self.roots.newest(wanted).is_some()
            || !matches!(self.stored_as(wanted), Err(ImageError::Unknown { .. }))
    }

    /// Returns the stored image that an id, a unique prefix of one, or a name means.
    fn stored_as(&self, wanted: &str) -> Result<Image, ImageError> {
        let clipped = || wanted.chars().take(128).collect();
        let mut stored = self.stored()?;
        stored.sort_by_key(|image| std::cmp::Reverse(image.info.created_ms));
        if let Some(at) = stored.iter().position(|image| image.info.name == wanted) {
            return Ok(stored.swap_remove(at));
        }
        stored.retain(|image| wanted.len() >= 4 && image.info.id.starts_with(wanted));
        match stored.len() {
            1 => Ok(stored.swap_remove(0)),
            0 => Err(ImageError::Unknown { wanted: clipped() }),
            matches => Err(ImageError::Ambiguous {
                wanted: clipped(),
                matches,
            }),
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

    fn roots(&self) -> &Roots {
        &self.roots
    }

    fn images_dir(&self) -> PathBuf {
        self.config.images_dir.join("images")
    }
}

/// Checks a name that a user gives to an image.
fn check_name(name: &str) -> Result<(), ImageError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && ![MINIMAL, debian::NAME].contains(&name);
    if fits {
        Ok(())
    } else {
        Err(ImageError::BadName {
            name: name.chars().take(64).collect(),
        })
    }
}

fn read_manifest(entry: &Path) -> Option<Manifest> {
    serde_json::from_slice(&read_bounded(&entry.join(MANIFEST))?).ok()
}

fn read_image(entry: &Path) -> Option<Image> {
    let manifest = read_manifest(entry)?;
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
    use super::{assemble::id_of, *};

    fn part(hash: &str) -> Part {
        Part {
            hash: hash.into(),
            size: 1,
        }
    }

    #[test]
    fn the_id_covers_every_part_the_format_and_the_configuration() {
        let parts = BTreeMap::from([("initramfs".to_owned(), part("a"))]);
        let mut more = parts.clone();
        more.insert("root.img".into(), part("b"));
        let plain = ImageConfig::default();
        let config = ImageConfig {
            cwd: Some("/srv".into()),
            ..ImageConfig::default()
        };
        let ids = [
            id_of(&parts, None, &plain),
            id_of(&more, Some("erofs"), &plain),
            id_of(&more, Some("ext4"), &plain),
            id_of(&more, Some("ext4"), &config),
        ];
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert_eq!(id_of(&parts, None, &plain), ids[0]);
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
