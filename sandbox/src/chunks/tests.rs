mod collection;
mod damage;
mod hostile;

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
