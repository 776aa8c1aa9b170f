mod folders;
mod hostile;
mod merges;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use proptest::prelude::*;

use super::{codec, tree::encode_tree, *};
use crate::chunks::{ChunkReader, ChunkStore, PackId, PackWriter, StoreKey};

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

struct Bench {
    _dir: tempfile::TempDir,
    store: ChunkStore,
    packs: Vec<PackId>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: ChunkStore::open(dir.path()).unwrap(),
            _dir: dir,
            packs: Vec::new(),
        }
    }

    fn write<T>(&mut self, body: impl FnOnce(&mut PackWriter, &ChunkReader) -> T) -> T {
        let reader = self.reader();
        let mut writer = self.store.writer(&key());
        let made = body(&mut writer, &reader);
        self.packs.extend(writer.finish().unwrap());
        made
    }

    fn reader(&self) -> ChunkReader {
        self.store.reader(&key(), &self.packs).unwrap()
    }

    /// A tree of files, by path; a path with a slash at its end is a directory, contents that
    /// begin with `->` a link.
    fn tree(&mut self, files: &[(&str, &str)]) -> Content {
        self.write(|writer, reader| {
            let trees = Trees::new(reader);
            let mut draft = Draft::empty();
            for (path, text) in files {
                put(&mut draft, trees, writer, path, text);
            }
            draft.store(writer).unwrap()
        })
    }

    fn files(&self, root: &Content) -> BTreeMap<String, String> {
        let reader = self.reader();
        let mut files = BTreeMap::new();
        Trees::new(&reader)
            .walk(root, &mut |path, entry| {
                let text = match &entry.node {
                    Node::Dir(_) => "/".to_owned(),
                    Node::Symlink(target) => format!("->{}", String::from_utf8_lossy(target)),
                    Node::File(content) => {
                        let bytes = content.read(&reader, 0, usize::MAX)?;
                        String::from_utf8(bytes).unwrap()
                    }
                };
                files.insert(path.to_string(), text);
                Ok(())
            })
            .unwrap();
        files
    }

    fn merge(&mut self, base: Option<&Content>, ours: &Content, theirs: &Content) -> Merged {
        self.write(|writer, reader| {
            let side = |root, label| Side { root, label };
            merge(
                Trees::new(reader),
                base,
                side(ours, "laptop"),
                side(theirs, "edge/7"),
                writer,
            )
            .unwrap()
        })
    }
}

fn meta(mode: u32) -> Meta {
    Meta {
        mode,
        uid: 0,
        gid: 0,
        mtime_ns: 5,
        attributes: Vec::new(),
    }
}

fn path(text: &str) -> Path {
    Path::parse(text.as_bytes()).unwrap()
}

fn put(draft: &mut Draft, trees: Trees<'_>, writer: &mut PackWriter, at: &str, text: &str) {
    if at.ends_with('/') {
        return draft.put_dir(trees, &path(at), meta(0o755), false).unwrap();
    }
    let node = match text.strip_prefix("->") {
        Some(target) => Node::Symlink(target.into()),
        None => Node::File(Content::store(writer, text.as_bytes()).unwrap()),
    };
    draft.put(trees, &path(at), meta(0o644), node).unwrap();
}

fn texts(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    owned.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn contents_come_back_whole_and_in_part(
        seed in any::<u64>(),
        len in 0..3_000_000usize,
        pieces in prop::collection::vec(1..300_000usize, 1..5),
        reads in prop::collection::vec((any::<u32>(), 0..200_000usize), 1..8),
    ) {
        let bytes = noise(seed, len);
        let mut bench = Bench::new();
        let (whole, pieced) = bench.write(|writer, _| {
            let whole = Content::store(writer, &bytes).unwrap();
            let mut chunker = Chunker::default();
            let (mut rest, mut sizes) = (&bytes[..], pieces.iter().cycle());
            while !rest.is_empty() {
                let (piece, left) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
                chunker.push(writer, piece).unwrap();
                rest = left;
            }
            (whole, chunker.finish(writer).unwrap())
        });
        // However the bytes come, they are cut the same.
        prop_assert_eq!(&whole, &pieced);
        prop_assert_eq!(whole.size(), len as u64);
        let mut out = codec::Writer::default();
        whole.encode(&mut out);
        prop_assert_eq!(&Content::decode(&mut codec::Reader(&out.0)).unwrap(), &whole);
        let reader = bench.reader();
        prop_assert_eq!(&whole.read(&reader, 0, usize::MAX).unwrap(), &bytes);
        for (at, want) in reads {
            let at = at as usize % (len + 10);
            let expected = &bytes[at.min(len)..(at + want).min(len).max(at.min(len))];
            prop_assert_eq!(&whole.read(&reader, at as u64, want).unwrap(), expected);
        }
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = tree::parse_tree(&bytes);
        let _ = Version::parse(&bytes);
        let _ = Path::parse(&bytes);
        let _ = Content::decode(&mut codec::Reader(&bytes));
    }

    #[test]
    fn a_parsed_tree_is_written_as_it_was_read(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bench = Bench::new();
        let root = bench.tree(&[("a", "1"), ("b/c", "2"), ("d", "->a")]);
        let reader = bench.reader();
        let mut bytes = root.read(&reader, 0, usize::MAX).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(entries) = tree::parse_tree(&bytes) {
            prop_assert_eq!(encode_tree(&entries), bytes);
        }
    }

    #[test]
    fn a_merge_loses_no_file(
        base in prop::collection::btree_map("[abc](/[abc])?", "[xyz]", 0..6),
        ours in prop::collection::btree_map("[abc](/[abc])?", prop::option::of("[xyz]"), 0..5),
        theirs in prop::collection::btree_map("[abc](/[abc])?", prop::option::of("[xyz]"), 0..5),
    ) {
        let mut bench = Bench::new();
        let edit = |bench: &mut Bench, edits: &BTreeMap<String, Option<String>>, who: &str| {
            let files: Vec<_> = base.iter().collect();
            bench.write(|writer, reader| {
                let trees = Trees::new(reader);
                let mut draft = Draft::empty();
                for (at, text) in &files {
                    put(&mut draft, trees, writer, at, text);
                }
                for (at, text) in edits {
                    match text {
                        Some(text) => put(&mut draft, trees, writer, at, &format!("{text}{who}")),
                        None => draft.remove(trees, &path(at)).unwrap(),
                    }
                }
                draft.store(writer).unwrap()
            })
        };
        let root = edit(&mut bench, &BTreeMap::new(), "");
        let a = edit(&mut bench, &ours, "1");
        let b = edit(&mut bench, &theirs, "2");
        let merged = bench.merge(Some(&root), &a, &b);
        let all = bench.files(&merged.root);
        // Whatever one of them wrote is there, under its name or beside it.
        for side in [&a, &b] {
            for (at, text) in bench.files(side) {
                let written = text.ends_with('1') || text.ends_with('2');
                let found = all.iter().any(|(path, found)| *found == text && path.starts_with(&at[..1]));
                prop_assert!(!written || found, "{at} {text} of {all:?}");
            }
        }
        // The same again is the same.
        prop_assert_eq!(bench.merge(Some(&root), &a, &b), merged);
        // With one side unchanged there is nothing to decide.
        let plain = bench.merge(Some(&root), &root, &b);
        prop_assert_eq!((plain.root, plain.conflicts), (b.clone(), vec![]));
        let plain = bench.merge(Some(&root), &a, &root);
        prop_assert_eq!((plain.root, plain.conflicts), (a, vec![]));
    }
}

#[test]
fn a_small_change_stores_little() {
    let mut bench = Bench::new();
    let mut bytes = noise(1, 8 * 1024 * 1024);
    let old = bench.write(|writer, _| Content::store(writer, &bytes).unwrap());
    bytes.splice(3_000_000..3_000_000, *b"inserted");
    let mut writer = bench.store.writer(&key());
    let new = Content::store(&mut writer, &bytes).unwrap();
    let (_, stats) = writer.finish_with_stats().unwrap();
    assert_ne!(old, new);
    assert!(stats.new_bytes < 800_000, "{stats:?}");
}

#[test]
fn a_change_deep_down_stores_the_directories_on_its_way_alone() {
    let mut bench = Bench::new();
    let names: Vec<String> = (0..200)
        .map(|n| format!("d{}/e{}/f{n}", n % 10, n % 3))
        .collect();
    let files: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (name.as_str(), name.as_str()))
        .collect();
    let old = bench.tree(&files);
    let reader = bench.reader();
    let trees = Trees::new(&reader);
    let mut writer = bench.store.writer(&key());
    let mut draft = Draft::from_tree(trees, &old).unwrap();
    put(&mut draft, trees, &mut writer, "d3/e0/f3", "changed");
    let new = draft.store(&mut writer).unwrap();
    let (packs, stats) = writer.finish_with_stats().unwrap();
    // The file, d3/e0, d3 and the root.
    assert_eq!(stats.new_chunks, 4);
    bench.packs.extend(packs);
    let reader = bench.reader();
    let mut seen = Vec::new();
    diff(Trees::new(&reader), &old, &new, &mut |change| {
        seen.push((change.path.to_string(), change.kind));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [("d3/e0/f3".to_owned(), ChangeKind::Modified)]);
}

#[test]
fn the_same_tree_has_one_digest_however_it_came_to_be() {
    let mut bench = Bench::new();
    let a = bench.tree(&[("x", "1"), ("d/y", "2")]);
    let b = bench.tree(&[("d/y", "0"), ("z", "3"), ("x", "1")]);
    let b = bench.write(|writer, reader| {
        let trees = Trees::new(reader);
        let mut draft = Draft::from_tree(trees, &b).unwrap();
        put(&mut draft, trees, writer, "d/y", "2");
        draft.remove(trees, &path("z")).unwrap();
        draft.remove(trees, &path("nothing/here")).unwrap();
        draft.store(writer).unwrap()
    });
    assert_eq!(a, b);
    assert_eq!(a.digest(), b.digest());
    assert_eq!(a.digest().to_string().len(), 64);
}

#[test]
fn drafts_replace_and_empty_and_refuse() {
    let mut bench = Bench::new();
    let root = bench.tree(&[("d/a", "1"), ("d/b", "2"), ("f", "3")]);
    let root = bench.write(|writer, reader| {
        let trees = Trees::new(reader);
        let mut draft = Draft::from_tree(trees, &root).unwrap();
        // Emptied, and then something in it again; a file in place of which a directory comes.
        draft.put_dir(trees, &path("d"), meta(0o700), true).unwrap();
        put(&mut draft, trees, writer, "d/c", "4");
        put(&mut draft, trees, writer, "f/g", "5");
        for wrong in [path(""), path(&"x/".repeat(MAX_DEPTH))] {
            let node = Node::Symlink(b"t".to_vec());
            let put = draft.put(trees, &wrong, meta(0o777), node);
            let deep = wrong.names().len() == MAX_DEPTH;
            assert_eq!(put.is_ok(), deep, "{wrong}");
        }
        draft.remove(trees, &path("x")).unwrap();
        assert!(draft.remove(trees, &path("")).is_err());
        for target in [&b""[..], b"a\0b", &[b'x'; 4096]] {
            let node = Node::Symlink(target.to_vec());
            assert!(draft.put(trees, &path("l"), meta(0o777), node).is_err());
        }
        draft.store(writer).unwrap()
    });
    let expected = [("d", "/"), ("d/c", "4"), ("f", "/"), ("f/g", "5")];
    assert_eq!(bench.files(&root), texts(&expected));
    let reader = bench.reader();
    let trees = Trees::new(&reader);
    let found = trees.find(&root, &path("d")).unwrap().unwrap();
    assert_eq!(found.meta.mode, 0o700);
    assert!(trees.find(&root, &path("d/c/x")).unwrap().is_none());
    assert!(trees.find(&root, &path("nothing")).unwrap().is_none());
}

#[test]
fn versions_come_back_as_they_were() {
    let bench = Bench::new();
    let id = |byte| PackId::from_bytes([byte; 32]);
    let version = Version {
        volume: [7; 16],
        parents: vec![id(1), id(2)],
        root: Content::default(),
        packs: vec![id(3)],
        author: "laptop".to_owned(),
        at_ms: 1_700_000_000_000,
        message: "before the move".to_owned(),
    };
    let stored = version.store(&bench.store, &key()).unwrap();
    assert_eq!(
        Version::load(&bench.store, &key(), &stored).unwrap(),
        version
    );
    let bytes = version.to_bytes();
    for len in 0..bytes.len() {
        assert!(Version::parse(&bytes[..len]).is_err());
    }
    let mut swapped = bytes.clone();
    swapped[21..85].rotate_left(32);
    assert_eq!(Version::parse(&swapped), Err(Malformed::Order));
    let mut many = bytes;
    many[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Version::parse(&many).is_err());
}

#[test]
fn paths_have_one_meaning() {
    assert_eq!(path("/a/b/"), path("a/b"));
    assert_eq!(path("/"), Path::default());
    assert_eq!(path("a/b").to_bytes(), b"a/b");
    for wrong in ["a//b", "../a", "a/./b", "a/..", "a\0"] {
        assert!(Path::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
    }
    assert!(Path::parse("a/".repeat(300).as_bytes()).is_err());
    let odd = Name::new(b"a\x1b[31m\xff\\".to_vec()).unwrap();
    assert_eq!(odd.to_string(), "a\\u{1b}[31m\\xff\\\\");
}

fn with_attributes(mode: u32, attributes: &[(&str, &str)]) -> Meta {
    let bytes =
        |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    Meta {
        attributes: attributes.iter().map(bytes).collect(),
        ..meta(mode)
    }
}

fn bench_reader_of_nothing() -> (Bench, ChunkReader) {
    let bench = Bench::new();
    let reader = bench.reader();
    (bench, reader)
}
