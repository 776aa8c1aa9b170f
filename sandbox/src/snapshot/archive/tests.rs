use super::*;
use crate::{
    chunks::{PackId, StoreKey},
    silent,
};

struct Node {
    dir: tempfile::TempDir,
    store: ChunkStore,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ChunkStore::open(&dir.path().join("chunks")).unwrap();
        fs::create_dir(dir.path().join("incoming")).unwrap();
        Self { dir, store }
    }

    fn import(&self, from: &Path) -> Result<SnapshotRef, SnapshotError> {
        let incoming = self.dir.path().join("incoming");
        let imported = import(&self.store, from, &incoming, &silent());
        assert_eq!(fs::read_dir(&incoming).unwrap().count(), 0);
        imported
    }
}

fn key() -> StoreKey {
    StoreKey::from_bytes([7; 32])
}

/// A snapshot of some chunks and an object that stands for its manifest.
fn snapshot(node: &Node) -> SnapshotRef {
    let mut writer = node.store.writer(&key());
    for byte in 0..40_u8 {
        writer.put(&vec![byte; 60_000 + usize::from(byte)]).unwrap();
    }
    let packs = writer.finish().unwrap();
    let manifest = node
        .store
        .put_object(&key(), "test", b"a manifest")
        .unwrap();
    SnapshotRef {
        manifest,
        packs,
        taken_ms: 1,
        bytes_read: 2,
        bytes_new: 3,
        bytes_stored: 4,
        pause_ms: 5,
    }
}

#[test]
fn what_is_exported_is_imported_elsewhere() {
    let (here, there) = (Node::new(), Node::new());
    let snapshot = snapshot(&here);
    let file = here.dir.path().join("file");
    let size = export(&here.store, &snapshot, &file, &silent()).unwrap();
    assert_eq!(size, fs::metadata(&file).unwrap().len());
    assert_eq!(peek(&file).unwrap(), snapshot);

    assert_eq!(there.import(&file).unwrap(), snapshot);
    assert!(there.store.missing(&snapshot.objects()).is_empty());
    let manifest = there.store.get_object(&key(), "test", &snapshot.manifest);
    assert_eq!(manifest.unwrap(), b"a manifest");
    // Once more changes nothing.
    assert_eq!(there.import(&file).unwrap(), snapshot);
    // A file that is there stays what it is.
    let again = export(&here.store, &snapshot, &file, &silent()).unwrap_err();
    assert!(matches!(again, SnapshotError::Io { .. }), "{again}");
    assert_eq!(size, fs::metadata(&file).unwrap().len());
}

#[test]
fn parts_that_are_missing_make_no_file() {
    let (here, there) = (Node::new(), Node::new());
    let snapshot = snapshot(&here);
    let file = there.dir.path().join("file");
    let error = export(&there.store, &snapshot, &file, &silent()).unwrap_err();
    assert!(matches!(error, SnapshotError::Chunks(_)), "{error}");
    assert!(!file.exists());
}

#[test]
fn a_file_that_is_cut_short_or_changed_is_refused() {
    let here = Node::new();
    let snapshot = snapshot(&here);
    let file = here.dir.path().join("file");
    export(&here.store, &snapshot, &file, &silent()).unwrap();
    let whole = fs::read(&file).unwrap();

    let there = Node::new();
    let refused = |bytes: &[u8]| {
        let wrong = there.dir.path().join("wrong");
        fs::write(&wrong, bytes).unwrap();
        there.import(&wrong).unwrap_err()
    };
    let step = (whole.len() / 97).max(1);
    for len in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
        let error = refused(&whole[..len]);
        assert!(
            matches!(error, SnapshotError::Archive { .. }),
            "{len}: {error}"
        );
    }
    for at in (0..whole.len())
        .step_by(step)
        .chain([8, 11, whole.len() - 1])
    {
        let mut changed = whole.clone();
        changed[at] ^= 0x55;
        let error = refused(&changed);
        assert!(
            matches!(error, SnapshotError::Archive { .. }),
            "{at}: {error}"
        );
    }
    let error = refused(&[&whole[..], b"x"].concat());
    assert!(matches!(error, SnapshotError::Archive { .. }), "{error}");
}

#[test]
fn a_file_that_names_much_is_refused_before_it_is_read() {
    let there = Node::new();
    let file = there.dir.path().join("file");
    let bytes = [&MAGIC[..], &u32::MAX.to_le_bytes()].concat();
    fs::write(&file, bytes).unwrap();
    let error = there.import(&file).unwrap_err();
    assert!(matches!(error, SnapshotError::Archive { .. }), "{error}");

    let twice = SnapshotRef {
        packs: vec![PackId::from_bytes([1; 32]); 2],
        ..snapshot(&Node::new())
    };
    let reference = serde_json::to_vec(&twice).unwrap();
    let length = u32::try_from(reference.len()).unwrap();
    let bytes = [&MAGIC[..], &length.to_le_bytes(), &reference].concat();
    fs::write(&file, bytes).unwrap();
    let error = there.import(&file).unwrap_err();
    assert!(error.to_string().contains("names a part twice"), "{error}");
}
