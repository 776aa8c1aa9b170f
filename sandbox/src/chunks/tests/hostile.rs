//! Files that somebody made to deceive.

use super::*;

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
