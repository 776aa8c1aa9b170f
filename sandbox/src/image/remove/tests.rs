use super::{
    super::{ImageConfig, MANIFEST, MANIFEST_VERSION, Manifest, Part},
    *,
};
use crate::{SandboxConfig, silent};

struct Store {
    dir: tempfile::TempDir,
    store: ImageStore,
}

impl Store {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&SandboxConfig::new(dir.path())).unwrap();
        Self { dir, store }
    }

    /// Puts an image there, with a root file system of its own.
    fn put(&self, id: &str, name: &str, created_ms: u64) -> Image {
        let id = id.repeat(64);
        let root = id.to_uppercase();
        let images = &self.store.config.images_dir;
        let rootfs = images.join("rootfs").join(&root[..16]);
        fs::create_dir_all(&rootfs).unwrap();
        fs::write(rootfs.join("root.img"), "root").unwrap();
        let described = serde_json::json!({
            "key": root, "name": name, "format": "erofs", "hash": "x", "created_ms": created_ms,
            "lineage": ["import: x"],
        });
        fs::write(rootfs.join("rootfs.json"), described.to_string()).unwrap();

        let entry = self.store.images_dir().join(&id[..16]);
        fs::create_dir_all(&entry).unwrap();
        fs::hard_link(rootfs.join("root.img"), entry.join("root.img")).unwrap();
        let part = Part {
            hash: "x".into(),
            size: 4,
        };
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            info: ImageInfo {
                id,
                name: name.to_owned(),
                created_ms,
                size_bytes: 4,
                kernel: "6".into(),
                lineage: Vec::new(),
                config: ImageConfig::default(),
                root: Some(root),
            },
            parts: [("root.img".to_owned(), part)].into(),
            root_format: Some("erofs".into()),
        };
        fs::write(entry.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        super::super::read_image(&entry).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let listed = self.store.list().unwrap();
        listed
            .into_iter()
            .map(|info| info.id[..1].to_owned())
            .collect()
    }
}

#[tokio::test]
async fn an_image_in_use_stays_until_its_sandbox_is_gone() {
    let store = Store::new();
    let image = store.put("a", "tool", 1);
    let sandbox = store.dir.path().join("sandbox");
    fs::create_dir(&sandbox).unwrap();
    image.mark_used(&sandbox).unwrap();
    let error = store.store.remove("tool", silent()).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::InUse { user, .. } if user.contains("sandbox")),
        "{error:?}"
    );
    assert!(store.store.prune(silent()).await.unwrap().images.is_empty());
    fs::remove_dir(&sandbox).unwrap();
    let removed = store.store.remove("tool", silent()).await.unwrap();
    assert_eq!(removed.images.len(), 1);
    assert!(removed.freed_bytes > 0);
    assert!(store.names().is_empty());
    assert!(store.store.roots.all().is_empty());
    let error = store.store.remove("tool", silent()).await.unwrap_err();
    assert!(matches!(error, ImageError::Unknown { .. }));
}

#[tokio::test]
async fn prune_leaves_what_a_name_means_and_what_is_in_use() {
    let store = Store::new();
    let sandbox = store.dir.path().join("sandbox");
    fs::create_dir(&sandbox).unwrap();
    store.put("a", "tool", 1).mark_used(&sandbox).unwrap();
    store.put("b", "tool", 2);
    store.put("c", "tool", 3);
    store.put("d", "other", 1);
    let removed = store.store.prune(silent()).await.unwrap();
    assert_eq!(removed.images.len(), 1);
    assert_eq!(store.names(), ["c", "d", "a"]);
    // The root file systems of those that stay do so too.
    assert_eq!(store.store.roots.all().len(), 3);
    assert!(store.store.prune(silent()).await.unwrap().images.is_empty());
}

#[test]
fn an_image_is_shown_with_its_descent() {
    let store = Store::new();
    store.put("a", "tool", 1);
    let details = store.store.show("tool").unwrap();
    assert_eq!(details.parts.len(), 1);
    assert_eq!(
        details.ancestors,
        [("tool".to_owned(), vec!["import: x".to_owned()])]
    );
    assert!(store.store.show("aaaa").is_ok());
    assert!(matches!(
        store.store.show("aaa"),
        Err(ImageError::Unknown { .. })
    ));
}
