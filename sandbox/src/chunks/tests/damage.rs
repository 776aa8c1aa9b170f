//! Disks that fail, are full, or lose their power.

use super::*;

#[test]
fn damage_on_disk_is_named_and_mended_by_another_copy() {
    let dir = tempfile::tempdir().unwrap();
    let chunk = noise(1, 5000);
    let root = dir.path().join("store");
    let good = pack_of(&key(1), std::slice::from_ref(&chunk));
    let end = good.len() - FOOTER_BYTES;
    let regions = [
        0,
        8,
        HEADER_BYTES,
        HEADER_BYTES + 100,
        end - 41,
        end - 1,
        end,
        end + 4,
        end + 16,
    ];
    for at in regions {
        let _ = fs::remove_dir_all(&root);
        let store = ChunkStore::open(&root).unwrap();
        let (ids, packs, _) = store_all(&store, std::slice::from_ref(&chunk));
        let path = store.path(&packs[0]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), good);
        // Open before the damage, it still sees it.
        let before = store.reader(&key(1), &packs).unwrap();
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        fs::write(&path, &flipped).unwrap();
        match before.read(&ids[0]) {
            Ok(bytes) => assert_eq!(bytes, chunk),
            Err(ChunkError::Damaged { pack, .. }) => assert_eq!(pack, packs[0]),
            Err(other) => panic!("{other}"),
        }
        assert!(store.verify(&packs[0]).is_err());
        assert!(!store.has(&packs[0]));
        assert_eq!(store.missing(&packs), packs);
        drop((before, store));
        let store = ChunkStore::open(&root).unwrap();
        let error = store
            .reader(&key(1), &packs)
            .map(|reader| reader.read(&ids[0]));
        assert!(
            matches!(&error, Err(ChunkError::Damaged { pack, .. }) | Ok(Err(ChunkError::Damaged { pack, .. })) if *pack == packs[0]),
            "byte {at}: {error:?}"
        );
        // A writer stores the chunk anew where the index was enough to tell, and a copy mends it.
        store.verify(&packs[0]).unwrap_err();
        store.import(&packs[0], &sent(dir.path(), &good)).unwrap();
        let reader = store.reader(&key(1), &packs).unwrap();
        assert_eq!(reader.read(&ids[0]).unwrap(), chunk);
        drop((reader, store));
        let store = ChunkStore::open(&root).unwrap();
        assert_eq!((store.stats().packs, store.stats().damaged), (1, 0));
        store.verify(&packs[0]).unwrap();
    }
}

#[test]
fn a_damaged_pack_serves_no_new_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let chunk = noise(1, 5000);
    let (ids, packs, _) = store_all(&store, std::slice::from_ref(&chunk));
    let mut bytes = fs::read(store.path(&packs[0]).unwrap()).unwrap();
    bytes[100] ^= 1;
    fs::write(store.path(&packs[0]).unwrap(), bytes).unwrap();
    store
        .reader(&key(1), &packs)
        .unwrap()
        .read(&ids[0])
        .unwrap_err();
    let (_, mended, stats) = store_all(&store, std::slice::from_ref(&chunk));
    assert_eq!(stats.new_chunks, 1);
    let reader = store.reader(&key(1), &mended).unwrap();
    assert_eq!(reader.read(&ids[0]).unwrap(), chunk);
}

/// What a store was told is durable.
#[derive(Debug, Default)]
struct Promised {
    packs: Vec<PackId>,
    objects: Vec<PackId>,
    pins: Vec<(String, Vec<PackId>)>,
}

/// All that a store does, until the power goes.
fn everything(store: &ChunkStore, dir: &Path, promised: &mut Promised) -> Result<(), ChunkError> {
    let mut writer = store.writer(&key(1));
    for seed in 0..5 {
        writer.put(&noise(seed, 3000))?;
    }
    let first = writer.finish_pinned("first")?;
    promised.packs.extend(&first);
    promised.pins.push(("first".to_owned(), first.clone()));
    let object = store.put_object(&key(1), "manifest", b"manifest")?;
    promised.objects.push(object);
    let mut writer = store.writer(&key(1));
    for seed in 3..9 {
        writer.put(&noise(seed, 3000))?;
    }
    let second = writer.finish()?;
    promised.packs.extend(&second);
    let pack = pack_of(&key(1), &[noise(100, 3000)]);
    store.import(&id_of(&pack), &sent(dir, &pack))?;
    promised.packs.push(id_of(&pack));
    store.pin("second", &[second, vec![object]].concat())?;
    promised
        .pins
        .push(("second".to_owned(), store.pinned("second").unwrap()));
    // From here on one pin or the other may be the one that is there.
    let gone = promised.pins.remove(0);
    let loose = std::mem::take(&mut promised.packs);
    assert!(store.unpin("first")?);
    store.gc(Duration::ZERO)?;
    assert!(!store.has(loose.last().unwrap()));
    assert_eq!(store.pinned(&gone.0), None);
    Ok(())
}

#[test]
fn a_crash_at_any_step_leaves_whole_packs_and_what_was_promised() {
    let dir = tempfile::tempdir().unwrap();
    let mut steps = 0;
    loop {
        let root = dir.path().join(steps.to_string());
        let store = ChunkStore::open(&root).unwrap();
        store.inner.disk.faults.crash_after(steps);
        let mut promised = Promised::default();
        let done = everything(&store, dir.path(), &mut promised).is_ok();
        drop(store);

        let store = ChunkStore::open(&root).unwrap();
        assert_eq!(fs::read_dir(root.join("drafts")).unwrap().count(), 0);
        assert_eq!(store.stats().damaged, 0, "crash at step {steps}");
        for part in ["own", "held"] {
            for entry in fs::read_dir(root.join(part)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                store.verify(&name.parse().unwrap()).unwrap();
            }
        }
        for id in promised.packs.iter().chain(&promised.objects) {
            assert!(store.has(id), "crash at step {steps}: {id} was promised");
        }
        for (name, packs) in &promised.pins {
            let pinned = store.pinned(name).unwrap();
            assert_eq!(&pinned, packs);
            assert_eq!(store.missing(&pinned), []);
        }
        // It goes on as if nothing had been.
        everything(&store, dir.path(), &mut Promised::default()).unwrap();
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 30, "only {steps} steps");
}

#[test]
fn names_are_given_after_the_file_is_synced_and_away_after_the_directory_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let mut writer = store.writer(&key(1));
    writer.put(b"chunk").unwrap();
    writer.finish().unwrap();
    store.put_object(&key(1), "kind", b"object").unwrap();
    let log = store.inner.disk.faults.log();
    let kinds: Vec<&str> = log
        .iter()
        .skip_while(|(what, _)| *what != "create")
        .map(|(what, _)| *what)
        .collect();
    let one = ["create", "write", "sync", "rename", "sync dir"];
    assert_eq!(kinds, [one, one].concat());
}

#[test]
fn a_full_disk_fails_the_writer_and_not_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    store.inner.disk.faults.crash_after(0);
    let mut writer = store.writer(&key(1));
    let mut failed = None;
    for seed in 0..200 {
        if let Err(error) = writer.put(&noise(seed, MAX_CHUNK_BYTES / 2)) {
            failed = Some(error);
            break;
        }
    }
    assert!(matches!(failed, Some(ChunkError::Io { .. })), "{failed:?}");
    assert!(matches!(writer.put(b"more"), Err(ChunkError::WriterFailed)));
    assert!(matches!(writer.finish(), Err(ChunkError::WriterFailed)));
    let mut writer = store.writer(&key(1));
    writer.put(b"one").unwrap();
    assert!(matches!(writer.finish(), Err(ChunkError::Io { .. })));
}

#[test]
fn a_damaged_pin_stops_collections() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let (_, packs, _) = store_all(&store, &[noise(1, 5000)]);
    store.pin("a", &packs).unwrap();
    drop(store);
    let path = dir.path().join("pins/a");
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let error = store.gc(Duration::ZERO).unwrap_err();
    assert!(matches!(error, ChunkError::DamagedPin { path: found } if found == path));
    assert!(store.has(&packs[0]));
}
