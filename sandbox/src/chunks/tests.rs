use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use proptest::prelude::*;

use super::{
    format::{
        self, Contents, FOOTER_BYTES, HEADER_BYTES, Method, PackBuilder, SealedChunk, Sealer,
    },
    *,
};

fn key(byte: u8) -> StoreKey {
    StoreKey::from_bytes([byte; 32])
}

/// Bytes that don't compress, the same for the same seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

fn store_all(store: &ChunkStore, chunks: &[Vec<u8>]) -> (Vec<ChunkId>, Vec<PackId>, WriteStats) {
    let mut writer = store.writer(&key(1));
    let ids = chunks.iter().map(|chunk| writer.put(chunk).unwrap());
    let ids = ids.collect();
    let (packs, stats) = writer.finish_with_stats().unwrap();
    (ids, packs, stats)
}

fn id_of(bytes: &[u8]) -> PackId {
    PackId::from_bytes(*blake3::hash(bytes).as_bytes())
}

/// Puts a file where `import` takes it from.
fn sent(dir: &Path, bytes: &[u8]) -> PathBuf {
    let path = dir.join(format!("sent-{}", id_of(bytes)));
    fs::write(&path, bytes).unwrap();
    path
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn chunks_come_back_as_they_were(
        shapes in prop::collection::vec((0..8u64, 0..70_000usize, any::<bool>()), 0..40)
    ) {
        let chunks: Vec<Vec<u8>> = shapes
            .iter()
            .map(|&(seed, len, random)| if random { noise(seed, len) } else { vec![seed.to_le_bytes()[0]; len] })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let (ids, packs, stats) = store_all(&ChunkStore::open(dir.path()).unwrap(), &chunks);
        // Also after the store was opened anew.
        let store = ChunkStore::open(dir.path()).unwrap();
        let reader = store.reader(&key(1), &packs).unwrap();
        for (id, chunk) in ids.iter().zip(&chunks) {
            prop_assert_eq!(&reader.read(id).unwrap(), chunk);
            prop_assert_eq!(reader.len_of(id), Some(chunk.len()));
            prop_assert!(packs.contains(&reader.pack_of(id).unwrap()));
        }
        let different: std::collections::BTreeSet<_> = ids.iter().collect();
        prop_assert_eq!(stats.new_chunks, different.len() as u64);
        prop_assert_eq!(stats.chunks, chunks.len() as u64);
        prop_assert_eq!(store.stats().chunks, different.len() as u64);
        // The same again is nothing new, and lies in the same packs.
        let (ids_again, packs_again, stats) = store_all(&store, &chunks);
        prop_assert_eq!(ids_again, ids);
        prop_assert_eq!(packs_again, packs);
        prop_assert_eq!((stats.new_chunks, stats.stored_bytes), (0, 0));
    }

    #[test]
    fn no_bytes_make_the_index_parser_panic(
        tail in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = pack_of(&key(1), &[b"one".to_vec(), vec![0; 5000]]);
        let at = at.index(bytes.len());
        bytes[at] = value;
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend(tail);
        let path = sent(dir.path(), &bytes);
        let _ = format::read_contents(&fs::File::open(path).unwrap());
    }
}

/// The bytes of a pack, made by hand.
fn pack_of(key: &StoreKey, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = PackBuilder::new(key);
    let mut sealer = Sealer::new(key.clone());
    for chunk in chunks {
        builder.push(&sealer.seal_chunk(key.chunk_id(chunk), chunk));
    }
    builder.finish().0
}

#[test]
fn much_is_split_into_packs_and_always_the_same_way() {
    let dir = tempfile::tempdir().unwrap();
    let chunks: Vec<_> = (0..40).map(|seed| noise(seed, MAX_CHUNK_BYTES)).collect();
    let store = ChunkStore::open(&dir.path().join("a")).unwrap();
    let (ids, packs, stats) = store_all(&store, &chunks);
    assert_eq!(packs.len(), 3);
    let sizes = packs
        .iter()
        .map(|pack| fs::metadata(store.path(pack).unwrap()).unwrap().len());
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.iter().all(|size| *size <= MAX_PACK_BYTES as u64));
    assert_eq!(sizes.iter().sum::<u64>(), stats.stored_bytes);
    assert_eq!(
        packs
            .iter()
            .map(|pack| store.size_of(pack).unwrap())
            .sum::<u64>(),
        stats.stored_bytes
    );
    let reader = store.reader(&key(1), &packs).unwrap();
    assert_eq!(reader.read(&ids[39]).unwrap(), chunks[39]);
    for pack in &packs {
        store.verify(pack).unwrap();
    }
    let other = ChunkStore::open(&dir.path().join("b")).unwrap();
    assert_eq!(store_all(&other, &chunks).1, packs);
    let too_large = vec![0; MAX_CHUNK_BYTES + 1];
    let error = store.writer(&key(1)).put(&too_large).unwrap_err();
    assert!(matches!(error, ChunkError::ChunkTooLarge { bytes } if bytes == MAX_CHUNK_BYTES + 1));
}

#[test]
fn two_keys_share_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let chunk = noise(1, 5000);
    let (ids, packs, _) = store_all(&store, std::slice::from_ref(&chunk));
    let mut writer = store.writer(&key(2));
    let other = writer.put(&chunk).unwrap();
    let (other_packs, stats) = writer.finish_with_stats().unwrap();
    assert_eq!(stats.new_chunks, 1);
    assert_ne!(other, ids[0]);
    assert_ne!(other_packs, packs);
    let error = store.reader(&key(2), &packs).unwrap_err();
    assert!(matches!(error, ChunkError::OtherKey { pack } if pack == packs[0]));
    // The reader that failed holds nothing.
    assert_eq!(store.gc(Duration::ZERO).unwrap().packs, 2);
}

#[test]
fn objects_open_with_their_key_and_kind_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    for bytes in [Vec::new(), vec![7; 100_000], noise(1, 3000)] {
        let id = store.put_object(&key(1), "manifest", &bytes).unwrap();
        assert_eq!(store.put_object(&key(1), "manifest", &bytes).unwrap(), id);
        assert_ne!(store.put_object(&key(1), "tree", &bytes).unwrap(), id);
        assert_eq!(store.get_object(&key(1), "manifest", &id).unwrap(), bytes);
        let error = store.get_object(&key(1), "tree", &id).unwrap_err();
        assert!(
            matches!(error, ChunkError::Damaged { pack, what: DamagedWhat::Object } if pack == id)
        );
        let error = store.get_object(&key(2), "manifest", &id).unwrap_err();
        assert!(matches!(error, ChunkError::OtherKey { pack } if pack == id));
        // It may be named among packs to read.
        store.reader(&key(1), &[id]).unwrap();
    }
    let nowhere = PackId::from_bytes([9; 32]);
    let error = store.get_object(&key(1), "manifest", &nowhere).unwrap_err();
    assert!(matches!(error, ChunkError::MissingPacks { packs } if packs == [nowhere]));
    let error = store
        .put_object(&key(1), "x", &vec![0; MAX_OBJECT_BYTES + 1])
        .unwrap_err();
    assert!(matches!(error, ChunkError::ObjectTooLarge { .. }));
}

#[test]
fn a_store_has_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(dir.path()).unwrap();
    let error = ChunkStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, ChunkError::InUse { .. }));
    drop(store);
    ChunkStore::open(dir.path()).unwrap();
}

#[test]
fn packs_travel_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let here = ChunkStore::open(&dir.path().join("here")).unwrap();
    let there = ChunkStore::open(&dir.path().join("there")).unwrap();
    let chunks = [noise(1, 5000), noise(2, 5000)];
    let (ids, packs, _) = store_all(&here, &chunks);
    let object = here.put_object(&key(1), "manifest", b"what").unwrap();
    let all = [packs[0], object];
    assert_eq!(there.missing(&[packs[0], object, packs[0]]), all);
    let error = there.reader(&key(1), &packs).unwrap_err();
    assert!(matches!(error, ChunkError::MissingPacks { packs: missing } if missing == packs));
    for id in &all {
        let copy = sent(dir.path(), &fs::read(here.path(id).unwrap()).unwrap());
        there.import(id, &copy).unwrap();
        assert!(!copy.exists());
        // Once more does nothing.
        let copy = sent(dir.path(), &fs::read(here.path(id).unwrap()).unwrap());
        there.import(id, &copy).unwrap();
    }
    assert_eq!(there.missing(&all), []);
    let reader = there.reader(&key(1), &packs).unwrap();
    assert_eq!(reader.read(&ids[1]).unwrap(), chunks[1]);
    assert_eq!(
        there.get_object(&key(1), "manifest", &object).unwrap(),
        b"what"
    );
    // What was sent serves new writers too, once it was read.
    let (_, reused, stats) = store_all(&there, &chunks);
    assert_eq!((reused, stats.new_chunks), (packs, 0));
}

#[test]
fn a_file_that_is_not_what_it_is_called_stays_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(&dir.path().join("store")).unwrap();
    let good = pack_of(&key(1), &[b"chunk".to_vec()]);
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        // Under the right name: the hash tells.
        let error = store
            .import(&id_of(&good), &sent(dir.path(), &flipped))
            .unwrap_err();
        assert!(matches!(error, ChunkError::NotThatPack { pack, .. } if pack == id_of(&good)));
        // Under its own: what is not sealed must still make sense. Flips in the key's tag and in
        // what only a checksum guards are seen by that; those in what is sealed, by the key.
        let id = id_of(&flipped);
        match store.import(&id, &sent(dir.path(), &flipped)) {
            Ok(()) => {
                let sealed = HEADER_BYTES..good.len() - FOOTER_BYTES - format::ENTRY_BYTES;
                assert!(sealed.contains(&at), "byte {at}");
                let reader = store.reader(&key(1), &[id]).unwrap();
                let error = reader.read(&key(1).chunk_id(b"chunk")).unwrap_err();
                let what = DamagedWhat::Chunk(key(1).chunk_id(b"chunk"));
                assert!(
                    matches!(error, ChunkError::Damaged { pack, what: found } if pack == id && found == what)
                );
            }
            Err(ChunkError::Damaged { pack, .. }) => assert_eq!(pack, id),
            Err(other) => panic!("{other}"),
        }
    }
    for bytes in [
        vec![],
        vec![0; 23],
        good[..good.len() - 1].to_vec(),
        vec![0; 100_000],
    ] {
        let error = store
            .import(&id_of(&bytes), &sent(dir.path(), &bytes))
            .unwrap_err();
        assert!(matches!(error, ChunkError::Damaged { .. }));
    }
    assert_eq!(
        fs::read_dir(dir.path().join("store/drafts"))
            .unwrap()
            .count(),
        0
    );
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    assert!(store.import(&id_of(&good), &folder).is_err());
}

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

#[test]
fn a_forged_claim_to_hold_a_chunk_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(&dir.path().join("store")).unwrap();
    let chunk = noise(1, 5000);
    // A pack that says it holds the chunk, made without the key but with its tag.
    let mut builder = PackBuilder::new(&key(1));
    builder.push(&SealedChunk {
        id: key(1).chunk_id(&chunk),
        raw: 5000,
        method: Method::Plain,
        bytes: noise(2, 5040),
    });
    let (forged, _) = builder.finish();
    store
        .import(&id_of(&forged), &sent(dir.path(), &forged))
        .unwrap();
    let (ids, packs, stats) = store_all(&store, std::slice::from_ref(&chunk));
    assert_eq!(stats.new_chunks, 1);
    assert!(!packs.contains(&id_of(&forged)));
    // Also with the forged one among those that are read, whichever comes first.
    let both = [packs[0], id_of(&forged)];
    let reader = store.reader(&key(1), &both).unwrap();
    assert_eq!(reader.read(&ids[0]).unwrap(), chunk);
    // It is whole by its hash: nothing to fetch again.
    assert!(store.has(&id_of(&forged)));
}

#[test]
fn a_bomb_unpacks_to_no_more_than_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(&dir.path().join("store")).unwrap();
    let bomb = zstd::bulk::compress(&vec![0; 256 * 1024 * 1024], 1).unwrap();
    for raw in [u32::try_from(MAX_CHUNK_BYTES).unwrap(), 100_000] {
        let id = key(1).chunk_id(&vec![0; raw as usize]);
        let mut bound = b"chunk".to_vec();
        bound.extend_from_slice(id.as_bytes());
        bound.extend_from_slice(&raw.to_le_bytes());
        bound.push(Method::Zstd as u8);
        let mut builder = PackBuilder::new(&key(1));
        builder.push(&SealedChunk {
            id,
            raw,
            method: Method::Zstd,
            bytes: key(1).seal(&bound, &bomb),
        });
        let (bytes, _) = builder.finish();
        store
            .import(&id_of(&bytes), &sent(dir.path(), &bytes))
            .unwrap();
        let reader = store.reader(&key(1), &[id_of(&bytes)]).unwrap();
        let error = reader.read(&id).unwrap_err();
        assert!(
            matches!(error, ChunkError::Damaged { what: DamagedWhat::Chunk(found), .. } if found == id)
        );
    }
}

#[test]
fn an_index_that_claims_too_much_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkStore::open(&dir.path().join("store")).unwrap();
    let claims = [
        // Larger than any chunk.
        (
            u32::try_from(MAX_CHUNK_BYTES).unwrap() + 1,
            Method::Zstd,
            100,
        ),
        // Smaller than a seal.
        (0, Method::Plain, 39),
        // Plain, and yet of another length.
        (61, Method::Plain, 100),
        // Compressed to more than it was.
        (10, Method::Zstd, 100),
    ];
    for (raw, method, stored) in claims {
        let mut builder = PackBuilder::new(&key(1));
        builder.push(&SealedChunk {
            id: key(1).chunk_id(b""),
            raw,
            method,
            bytes: vec![0; stored],
        });
        let (bytes, _) = builder.finish();
        let error = store
            .import(&id_of(&bytes), &sent(dir.path(), &bytes))
            .unwrap_err();
        assert!(matches!(
            error,
            ChunkError::Damaged {
                what: DamagedWhat::Index,
                ..
            }
        ));
    }
    let good = pack_of(&key(1), &[b"x".to_vec()]);
    let path = sent(dir.path(), &good);
    assert!(matches!(
        format::read_contents(&fs::File::open(path).unwrap()),
        Ok(Contents::Pack(index)) if index.chunks.len() == 1
    ));
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
