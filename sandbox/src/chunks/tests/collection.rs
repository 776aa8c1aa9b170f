//! What is removed, and what is not.

use super::*;

#[test]
fn collection_spares_what_is_pinned_used_or_new() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let (ids, packs, _) = store_all(&store, &[noise(1, 5000)]);
    // New.
    assert_eq!(
        store.gc(Duration::from_secs(3600)).unwrap(),
        Freed::default()
    );
    // Pinned, twice.
    store.pin("a", &packs).unwrap();
    store.pin("b", &packs).unwrap();
    assert!(store.unpin("a").unwrap());
    assert!(!store.unpin("a").unwrap());
    assert_eq!(store.gc(Duration::ZERO).unwrap(), Freed::default());
    // Read.
    let reader = store.reader(&key(1), &packs).unwrap();
    assert!(store.unpin("b").unwrap());
    assert_eq!(store.gc(Duration::ZERO).unwrap(), Freed::default());
    // Found by a writer that is not done.
    let mut writer = store.writer(&key(1));
    assert_eq!(writer.put(&noise(1, 5000)).unwrap(), ids[0]);
    drop(reader);
    assert_eq!(store.gc(Duration::ZERO).unwrap(), Freed::default());
    assert_eq!(writer.finish_pinned("c").unwrap(), packs);
    assert_eq!(store.gc(Duration::ZERO).unwrap(), Freed::default());
    // Handed out again a moment ago, though the file is old.
    store.unpin("c").unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(7200);
    let file = fs::File::options()
        .write(true)
        .open(store.path(&packs[0]).unwrap())
        .unwrap();
    file.set_modified(old).unwrap();
    assert_eq!(
        store.gc(Duration::from_secs(3600)).unwrap(),
        Freed::default()
    );
    // Needed by nobody.
    let freed = store.gc(Duration::ZERO).unwrap();
    assert_eq!((freed.packs, store.stats()), (1, StoreStats::default()));
    assert!(!store.has(&packs[0]));
    let error = store.pin("d", &packs).unwrap_err();
    assert!(matches!(error, ChunkError::MissingPacks { .. }));
    // A pin may come first.
    let pack = pack_of(&key(1), &[noise(1, 5000)]);
    store.pin_ahead("d", &[id_of(&pack)]).unwrap();
    store
        .import(&id_of(&pack), &sent(dir.path(), &pack))
        .unwrap();
    assert_eq!(store.gc(Duration::ZERO).unwrap(), Freed::default());
    // What is gone is stored anew, and another pack's chunk is not mistaken for it.
    assert_eq!(
        store_all(&store, &[noise(1, 5000), noise(2, 10)])
            .2
            .new_chunks,
        1
    );
}

#[test]
fn an_unfinished_writer_leaves_nothing_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let mut writer = store.writer(&key(1));
    for seed in 0..40 {
        writer.put(&noise(seed, MAX_CHUNK_BYTES)).unwrap();
    }
    drop(writer);
    store.gc(Duration::ZERO).unwrap();
    assert_eq!(store.stats(), StoreStats::default());
    assert_eq!(fs::read_dir(dir.path().join("drafts")).unwrap().count(), 0);
}

#[test]
fn collections_race_with_writers_and_readers_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let done = AtomicBool::new(false);
    let freed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|number| {
                let (store, freed) = (&store, &freed);
                scope.spawn(move || {
                    let pin = format!("worker-{number}");
                    for round in 0..5000 {
                        // On a busy machine the collector may come late to the race.
                        if round >= 25 && freed.load(Ordering::Relaxed) > 0 {
                            break;
                        }
                        // Shared between the workers, so that they find each other's packs.
                        let chunks: Vec<_> =
                            (0..4).map(|at| noise((round + at) % 7, 2000)).collect();
                        let mut writer = store.writer(&key(1));
                        let ids: Vec<_> = chunks
                            .iter()
                            .map(|chunk| writer.put(chunk).unwrap())
                            .collect();
                        let packs = writer.finish_pinned(&pin).unwrap();
                        let reader = store.reader(&key(1), &packs).unwrap();
                        store.unpin(&pin).unwrap();
                        for (id, chunk) in ids.iter().zip(&chunks) {
                            assert_eq!(&reader.read(id).unwrap(), chunk);
                        }
                    }
                })
            })
            .collect();
        let collector = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let packs = store.gc(Duration::ZERO).unwrap().packs;
                freed.fetch_add(packs, Ordering::Relaxed);
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        collector.join().unwrap();
    });
    assert!(freed.into_inner() > 0);
    store.gc(Duration::ZERO).unwrap();
    assert_eq!(store.stats(), StoreStats::default());
}
