//! Images on their way between nodes: a description, and files named by their hash.
//!
//! Whoever sends is not trusted: the id is computed from the description, and every file is hashed
//! before it becomes part of an image.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{
    ImageError, ImageInfo, ImageStore, MANIFEST, MANIFEST_VERSION, MAX_MANIFEST_BYTES, Manifest,
    assemble::make_read_only, read_image,
};
use crate::{
    Progress,
    progress::step,
    staging::{DirLock, hash_file, link_or_copy, write_atomic},
};

/// The files that an image may have.
const PART_NAMES: [&str; 3] = ["vmlinuz", "initramfs", "root.img"];
/// Largest file of an image that is taken from elsewhere, in bytes.
const MAX_PART_BYTES: u64 = 64 << 30;

/// What an image is made of, checked: its id is that of its parts.
#[derive(Debug)]
pub struct ImageDescription {
    manifest: Manifest,
}

/// One file of a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedPart {
    /// `vmlinuz`, `initramfs` or `root.img`.
    pub name: String,
    /// BLAKE3 of the file.
    pub hash: [u8; 32],
    /// Its size in bytes.
    pub size: u64,
}

impl ImageDescription {
    /// Reads a description that another node sent.
    ///
    /// # Errors
    /// [`ImageError::Description`] if it is malformed, or its id is not that of its parts.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let wrong = |what: &str| ImageError::Description {
            what: what.to_owned(),
        };
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(wrong("it is too long"));
        }
        let manifest: Manifest =
            serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        if manifest.version != MANIFEST_VERSION {
            return Err(wrong("it is of another version"));
        }
        let known = |name: &String| PART_NAMES.contains(&name.as_str());
        if !manifest.parts.keys().all(known) {
            return Err(wrong("it has a file that no image has"));
        }
        if !["vmlinuz", "initramfs"]
            .iter()
            .all(|name| manifest.parts.contains_key(*name))
        {
            return Err(wrong("it lacks a kernel or an initial file system"));
        }
        if manifest.parts.contains_key("root.img") != manifest.root_format.is_some() {
            return Err(wrong(
                "its root file system and the format of one do not go together",
            ));
        }
        let sound = |part: &super::Part| {
            part.size <= MAX_PART_BYTES && blake3::Hash::from_hex(&part.hash).is_ok()
        };
        if !manifest.parts.values().all(sound) {
            return Err(wrong("a file of it is too large, or its hash is none"));
        }
        if manifest.computed_id() != manifest.info.id {
            return Err(wrong("its id is not that of its parts"));
        }
        Ok(Self { manifest })
    }

    /// Returns the image's id.
    pub fn id(&self) -> &str {
        &self.manifest.info.id
    }

    /// Returns the files it takes.
    pub fn parts(&self) -> impl Iterator<Item = DescribedPart> {
        self.manifest
            .parts
            .iter()
            .map(|(name, part)| DescribedPart {
                name: name.clone(),
                hash: *blake3::Hash::from_hex(&part.hash)
                    .expect("the description was checked")
                    .as_bytes(),
                size: part.size,
            })
    }
}

impl ImageStore {
    /// Returns whether the image with this id is here.
    pub fn has(&self, id: &str) -> bool {
        self.find(id).is_some()
    }

    /// Returns the description of an image and where its files lie, to be sent to another node.
    pub fn describe(&self, id: &str) -> Option<(String, BTreeMap<String, PathBuf>)> {
        let dir = self.find(id)?;
        let text = String::from_utf8(super::read_bounded(&dir.join(MANIFEST))?).ok()?;
        let description = ImageDescription::parse(&text).ok()?;
        let parts = description.manifest.parts.into_keys();
        let parts = parts.map(|name| (name.clone(), dir.join(name))).collect();
        Some((text, parts))
    }

    /// Makes an image of files that were fetched into `from`, each under its part's name.
    ///
    /// # Errors
    /// [`ImageError::Description`] if a file is not what the description says; nothing is kept
    /// then.
    pub async fn adopt(
        &self,
        description: &ImageDescription,
        from: &Path,
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        let dir = self.images_dir();
        let manifest = &description.manifest;
        let lock = DirLock::acquire(&dir, || {
            step(
                &progress,
                "image",
                "waiting for another daemon that writes an image",
            );
        });
        let lock = lock.await.map_err(ImageError::io(&dir))?;
        let staging = lock.stage().map_err(ImageError::io(&dir))?;
        for (name, part) in &manifest.parts {
            let (from, to) = (from.join(name), staging.path().join(name));
            let hashed = {
                let from = from.clone();
                tokio::task::spawn_blocking(move || hash_file(&from))
            };
            let hash = hashed.await.map_err(std::io::Error::other).flatten();
            let hash = hash.map_err(ImageError::io(&from))?;
            let size = fs::metadata(&from).map_err(ImageError::io(&from))?.len();
            if hash != part.hash || size != part.size {
                let what = format!("its file `{name}` is another one");
                return Err(ImageError::Description { what });
            }
            link_or_copy(&from, &to).map_err(ImageError::io(&to))?;
            make_read_only(&to)?;
        }
        let json = serde_json::to_vec_pretty(manifest).expect("a manifest becomes JSON");
        write_atomic(&staging.path().join(MANIFEST), &json).map_err(ImageError::io(&dir))?;
        let entry = staging
            .commit(&manifest.info.id[..16])
            .map_err(ImageError::io(&dir))?;
        let image = read_image(&entry).filter(|image| image.info.id == manifest.info.id);
        image
            .map(|image| image.info)
            .ok_or_else(|| ImageError::Description {
                what: "another image lies in its place".to_owned(),
            })
    }

    fn find(&self, id: &str) -> Option<PathBuf> {
        let dir = self.images_dir().join(id.get(..16)?);
        let plain = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let image = plain.then(|| read_image(&dir)).flatten();
        image.filter(|image| image.info.id == id).map(|_| dir)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Part, *};
    use crate::{SandboxConfig, silent};

    fn store(dir: &Path) -> ImageStore {
        ImageStore::open(&SandboxConfig::new(dir)).unwrap()
    }

    /// Lays an image with two small files into `store`.
    fn lay(store: &ImageStore) -> String {
        let files = [("vmlinuz", &b"kernel"[..]), ("initramfs", b"files")];
        let part = |bytes: &[u8]| Part {
            hash: blake3::hash(bytes).to_hex().to_string(),
            size: bytes.len() as u64,
        };
        let parts = files.map(|(name, bytes)| (name.to_owned(), part(bytes)));
        let mut manifest: Manifest = serde_json::from_value(serde_json::json!({
            "version": MANIFEST_VERSION,
            "info": {"id": "", "name": "minimal", "created_ms": 1, "size_bytes": 11,
                     "kernel": "6.1", "lineage": []},
            "parts": BTreeMap::from(parts),
            "root_format": null,
        }))
        .unwrap();
        manifest.info.id = manifest.computed_id();
        let dir = store.images_dir().join(&manifest.info.id[..16]);
        fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in files {
            fs::write(dir.join(name), bytes).unwrap();
        }
        fs::write(dir.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        manifest.info.id
    }

    #[tokio::test]
    async fn an_image_goes_from_store_to_store_under_its_id() {
        let temp = tempfile::tempdir().unwrap();
        let (here, there) = (store(&temp.path().join("a")), store(&temp.path().join("b")));
        let id = lay(&here);
        assert!(here.has(&id) && !there.has(&id));
        let (text, files) = here.describe(&id).unwrap();
        let description = ImageDescription::parse(&text).unwrap();
        assert_eq!(description.id(), id);
        let staged = temp.path().join("staged");
        fs::create_dir(&staged).unwrap();
        for part in description.parts() {
            fs::copy(&files[&part.name], staged.join(&part.name)).unwrap();
            assert_eq!(
                part.hash,
                *blake3::hash(&fs::read(&files[&part.name]).unwrap()).as_bytes()
            );
        }
        let info = there.adopt(&description, &staged, silent()).await.unwrap();
        assert_eq!(info.id, id);
        assert!(there.has(&id));

        // A file that is another one makes no image.
        let third = store(&temp.path().join("c"));
        fs::write(staged.join("vmlinuz"), "kerneL").unwrap();
        let refused = third.adopt(&description, &staged, silent()).await;
        assert!(matches!(refused, Err(ImageError::Description { .. })));
        assert!(!third.has(&id));
    }

    #[test]
    fn a_description_that_lies_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let here = store(temp.path());
        let id = lay(&here);
        let (text, _) = here.describe(&id).unwrap();
        for (from, to) in [
            (&id[..], &"0".repeat(64)[..]),
            ("initramfs", "../../../etc/cron.d/x"),
            ("\"size\": 6", "\"size\": 7"),
            ("\"root_format\": null", "\"root_format\": \"erofs\""),
            ("\"version\": 1", "\"version\": 99"),
        ] {
            let text = text.replace("\":", "\": ").replace(":  ", ": ");
            assert!(text.contains(from), "{from} is in {text}");
            let refused = ImageDescription::parse(&text.replace(from, to));
            assert!(
                matches!(refused, Err(ImageError::Description { .. })),
                "{to}"
            );
        }
        for id in ["", "../../../../../etc", &"g".repeat(64), &id[..16]] {
            assert!(!here.has(id) && here.describe(id).is_none(), "{id}");
        }
    }
}
