use super::*;
use crate::volume::{Draft, Meta, Node as Item, Packed, Path, Version};

use std::time::Duration;

fn key() -> StoreKey {
    StoreKey::from_bytes([1; 32])
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A version of these files, each noise of its seed and length.
fn version(
    store: &ChunkStore,
    also: &[PackId],
    files: &[(&str, u64, usize)],
) -> Result<Kept, VolumeError> {
    let reader = store.reader(&key(), also)?;
    let mut writer = store.writer(&key());
    let mut draft = Draft::empty();
    for (name, seed, len) in files {
        let content = Content::store(&mut writer, &noise(*seed, *len))?;
        let meta = Meta {
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime_ns: 5,
            attributes: Vec::new(),
        };
        let path = Path::parse(name.as_bytes())?;
        draft.put(Trees::new(&reader), &path, meta, Item::File(content))?;
    }
    let root = draft.store(&mut writer)?;
    let mut packs = writer.finish()?;
    packs.extend(also);
    packs.sort_unstable();
    packs.dedup();
    let made = Version {
        volume: [7; 16],
        parents: Vec::new(),
        root: root.clone(),
        packs: packs.clone(),
        author: "laptop".to_owned(),
        at_ms: files.len() as u64,
        message: String::new(),
    };
    let version = made.store(store, &key())?;
    let kept = Kept {
        version,
        root,
        packs,
    };
    pin(store, &kept.version, &[kept.version], &kept.packs)?;
    Ok(kept)
}

fn pin(
    store: &ChunkStore,
    version: &VersionId,
    objects: &[PackId],
    packs: &[PackId],
) -> Result<(), VolumeError> {
    let all = [objects, packs].concat();
    Ok(store.pin(&format!("volume-{version}"), &all)?)
}

/// Reads every byte of a version, and compares.
fn check(store: &ChunkStore, root: &Content, packs: &[PackId], files: &[(&str, u64, usize)]) {
    let reader = store.reader(&key(), packs).unwrap();
    for (name, seed, len) in files {
        let path = Path::parse(name.as_bytes()).unwrap();
        let found = Trees::new(&reader).find(root, &path).unwrap().unwrap();
        let Item::File(content) = found.node else {
            panic!("{name} is no file");
        };
        let bytes = content.read(&reader, 0, usize::MAX).unwrap();
        assert!(bytes == noise(*seed, *len), "{name}");
    }
}

fn hush(_: usize, _: usize) {}

/// Six versions of a volume.
fn history(store: &ChunkStore) -> Result<Vec<Kept>, VolumeError> {
    let mut all: Vec<Kept> = Vec::new();
    for n in 0..6 {
        let also = all.last().map(|last| last.packs.clone());
        all.push(version(store, &also.unwrap_or_default(), &files(n))?);
    }
    Ok(all)
}

/// Lets go of all but the last two, as forgetting does.
fn forget(store: &ChunkStore, all: &[Kept]) -> Result<(), VolumeError> {
    for old in &all[..4] {
        store.unpin(&format!("volume-{}", old.version))?;
    }
    store.gc(Duration::ZERO)?;
    Ok(())
}

/// What remains of a volume of which most was forgotten.
fn aged(store: &ChunkStore) -> Result<Vec<Kept>, VolumeError> {
    let mut all = history(store)?;
    forget(store, &all)?;
    Ok(all.split_off(4))
}

/// One file stays, one is another each time.
fn files(n: u64) -> [(&'static str, u64, usize); 2] {
    [("same", 1, 300_000), ("other", 100 + n, 700_000)]
}

#[test]
fn what_is_needed_moves_and_the_rest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let kept = aged(&store).unwrap();
    let before = store.stats().bytes;
    let plan = plan(&store, &key(), &kept, &BTreeSet::new()).unwrap();
    // Five packs hold nothing but what was forgotten, but for the first: `same` is in it.
    assert!(plan.packs.len() >= 4 && !plan.more, "{plan:?}");
    assert!((300_000..400_000).contains(&plan.live_bytes), "{plan:?}");
    let done = rewrite(&store, &key(), &kept, &plan, "repack", &mut hush).unwrap();
    assert_eq!(done.versions.len(), 2);
    for (version, packs) in &done.versions {
        pin(&store, version, &[*version], packs).unwrap();
    }
    store.unpin("repack").unwrap();
    store.gc(Duration::ZERO).unwrap();
    let after = store.stats().bytes;
    assert!(after < before / 2, "{before} -> {after}");
    let moved: Vec<Kept> = done
        .versions
        .iter()
        .zip(&kept)
        .map(|((version, packs), kept)| Kept {
            version: *version,
            root: kept.root.clone(),
            packs: packs.clone(),
        })
        .collect();
    for (one, n) in moved.iter().zip(4..) {
        check(&store, &one.root, &one.packs, &files(n));
    }
    // Also for the next one who opens it; and nothing is left to do.
    drop(store);
    let store = ChunkStore::open(dir.path()).unwrap();
    for (one, n) in moved.iter().zip(4..) {
        check(&store, &one.root, &one.packs, &files(n));
    }
    let again = super::plan(&store, &key(), &moved, &BTreeSet::new()).unwrap();
    assert_eq!(again.packs, []);
}

#[test]
fn small_packs_of_many_versions_become_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let mut kept: Vec<Kept> = Vec::new();
    let mut all: Vec<(&str, u64, usize)> = Vec::new();
    for (name, n) in names.iter().zip(0..) {
        all.push((name, n, 20_000));
        let also = kept.last().map(|last| last.packs.clone());
        kept.push(version(&store, &also.unwrap_or_default(), &all).unwrap());
    }
    assert!(kept.last().unwrap().packs.len() >= names.len());
    let plan = plan(&store, &key(), &kept, &BTreeSet::new()).unwrap();
    let done = rewrite(&store, &key(), &kept, &plan, "repack", &mut hush).unwrap();
    assert_eq!(done.new.len(), 1);
    for (one, (_, packs)) in kept.iter().zip(&done.versions) {
        assert_eq!(*packs, done.new);
        check(&store, &one.root, packs, &all[..1]);
    }
    check(&store, &kept.last().unwrap().root, &done.new, &all);
}

#[test]
fn what_something_else_needs_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let kept = aged(&store).unwrap();
    let besides = kept.iter().flat_map(|one| &one.packs).copied().collect();
    let plan = plan(&store, &key(), &kept, &besides).unwrap();
    assert_eq!(plan.packs, []);
}

/// A chunk that lies twice, in packs of two versions: whichever goes, both versions are whole.
#[test]
fn a_version_is_told_where_else_its_chunks_lie() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let one = version(&store, &[], &[("same", 1, 200_000), ("one", 2, 900_000)]).unwrap();
    // As if it had been written at the same moment by another.
    let mut writer = store.writer(&key()).avoiding(&one.packs);
    for (seed, len) in [(1, 200_000), (3, 900_000)] {
        Content::store(&mut writer, &noise(seed, len)).unwrap();
    }
    let twin = writer.finish_pinned("twin").unwrap();
    let two = version(&store, &twin, &[("same", 1, 200_000)]).unwrap();
    let two = Kept {
        packs: two
            .packs
            .into_iter()
            .filter(|pack| !one.packs.contains(pack))
            .collect(),
        ..two
    };
    check(&store, &two.root, &two.packs, &[("same", 1, 200_000)]);
    let kept = [one, two];
    let plan = plan(&store, &key(), &kept, &BTreeSet::new()).unwrap();
    assert_eq!(plan.packs, twin, "{plan:?}");
    let done = rewrite(&store, &key(), &kept, &plan, "repack", &mut hush).unwrap();
    let [(version, packs)] = &done.versions[..] else {
        panic!("{done:?}");
    };
    assert_eq!(*version, kept[1].version);
    check(&store, &kept[1].root, packs, &[("same", 1, 200_000)]);
}

/// What is said of where versions lie, which is durable elsewhere.
type Said = BTreeMap<VersionId, PackId>;

/// All steps of a repacking, as a node takes them.
fn everything(store: &ChunkStore, kept: &[Kept], said: &mut Said) -> Result<(), VolumeError> {
    // What was interrupted is ended first.
    for (version, object) in &*said {
        let packs = Packed::load(store, &key(), object)?.packs;
        pin(store, version, &[*version, *object], &packs)?;
    }
    let plan = plan(store, &key(), kept, &BTreeSet::new())?;
    let done = rewrite(store, &key(), kept, &plan, "repack", &mut hush)?;
    for (version, packs) in done.versions {
        let before = store
            .pinned(&format!("volume-{version}"))
            .unwrap_or_default();
        let object = Packed { version, packs }.store(store, &key())?;
        let packs = Packed::load(store, &key(), &object)?.packs;
        // Both, until it is said.
        pin(
            store,
            &version,
            &[vec![version, object], packs.clone()].concat(),
            &before,
        )?;
        said.insert(version, object);
        pin(store, &version, &[version, object], &packs)?;
    }
    store.unpin("repack")?;
    store.gc(Duration::ZERO)?;
    Ok(())
}

#[test]
fn a_crash_at_any_step_leaves_every_version_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut steps = 0;
    loop {
        let root = dir.path().join(steps.to_string());
        let store = ChunkStore::open(&root).unwrap();
        let kept = aged(&store).unwrap();
        store.crash_after(steps);
        let mut said = Said::new();
        let done = everything(&store, &kept, &mut said).is_ok();
        drop(store);
        let store = ChunkStore::open(&root).unwrap();
        // What no pin names goes at once.
        store.gc(Duration::ZERO).unwrap();
        for (one, n) in kept.iter().zip(4..) {
            let packs = match said.get(&one.version) {
                Some(object) => Packed::load(&store, &key(), object).unwrap().packs,
                None => one.packs.clone(),
            };
            check(&store, &one.root, &packs, &files(n));
        }
        // And the next one ends as if nothing had been.
        let now: Vec<Kept> = kept
            .iter()
            .map(|one| Kept {
                packs: match said.get(&one.version) {
                    Some(object) => Packed::load(&store, &key(), object).unwrap().packs,
                    None => one.packs.clone(),
                },
                ..one.clone()
            })
            .collect();
        everything(&store, &now, &mut said).unwrap();
        assert_eq!(store.pins().len(), 2, "crash at step {steps}");
        for (one, n) in kept.iter().zip(4..) {
            let packs = Packed::load(&store, &key(), &said[&one.version])
                .unwrap()
                .packs;
            check(&store, &one.root, &packs, &files(n));
        }
        assert!(store.stats().bytes < 2_200_000, "crash at step {steps}");
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 20, "only {steps} steps");
}

#[test]
fn forgetting_that_is_interrupted_at_any_step_ends_in_the_same_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut ends = BTreeSet::new();
    for steps in 0.. {
        let root = dir.path().join(steps.to_string());
        let store = ChunkStore::open(&root).unwrap();
        let all = history(&store).unwrap();
        store.crash_after(steps);
        let done = forget(&store, &all).is_ok();
        drop(store);
        let store = ChunkStore::open(&root).unwrap();
        forget(&store, &all).unwrap();
        for (one, n) in all[4..].iter().zip(4..) {
            check(&store, &one.root, &one.packs, &files(n));
        }
        assert_eq!(store.pins().len(), 2, "crash at step {steps}");
        ends.insert(store.stats().bytes);
        if done {
            assert!(steps > 8, "only {steps} steps");
            break;
        }
    }
    assert_eq!(ends.len(), 1, "{ends:?}");
}

#[test]
fn where_a_version_lies_has_one_encoding() {
    let id = |byte| PackId::from_bytes([byte; 32]);
    let packed = Packed {
        version: id(9),
        packs: vec![id(1), id(2)],
    };
    let bytes = packed.to_bytes();
    assert_eq!(Packed::parse(&bytes), Ok(packed));
    for cut in 0..bytes.len() {
        assert!(Packed::parse(&bytes[..cut]).is_err());
    }
    let mut other = bytes.clone();
    other.push(0);
    assert!(Packed::parse(&other).is_err());
    let mut swapped = bytes;
    let len = swapped.len();
    swapped[len - 64..].rotate_left(32);
    assert!(Packed::parse(&swapped).is_err());
}
