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
fn two_who_were_apart_keep_both_versions_of_what_both_changed() {
    let mut bench = Bench::new();
    let base = bench.tree(&[
        ("same", "0"),
        ("both", "0"),
        ("gone", "0"),
        ("kept", "0"),
        ("dir/x", "0"),
        ("clash", "0"),
    ]);
    let ours = bench.tree(&[
        ("same", "0"),
        ("both", "ours"),
        ("kept", "ours"),
        ("dir/x", "0"),
        ("dir/ours", "1"),
        ("new", "ours"),
        ("clash", "->over there"),
        ("equal", "e"),
    ]);
    let theirs = bench.tree(&[
        ("same", "0"),
        ("both", "theirs"),
        ("gone", "theirs"),
        ("dir/x", "1"),
        ("dir/theirs", "2"),
        ("new", "theirs"),
        ("new.from-edge-7", "in the way"),
        ("clash/inside", "3"),
        ("equal", "e"),
    ]);
    let merged = bench.merge(Some(&base), &ours, &theirs);
    let expected = [
        ("both", "ours"),
        ("both.from-edge-7", "theirs"),
        ("clash", "->over there"),
        ("clash.from-edge-7", "/"),
        ("clash.from-edge-7/inside", "3"),
        ("dir", "/"),
        ("dir/ours", "1"),
        ("dir/theirs", "2"),
        ("dir/x", "1"),
        ("equal", "e"),
        ("gone", "theirs"),
        ("kept", "ours"),
        ("new", "ours"),
        ("new.from-edge-7", "in the way"),
        ("new.from-edge-7-2", "theirs"),
        ("same", "0"),
    ];
    assert_eq!(bench.files(&merged.root), texts(&expected));
    let conflicts: Vec<_> = merged
        .conflicts
        .iter()
        .map(|conflict| (conflict.path.to_string(), conflict.kind))
        .collect();
    let expected = [
        ("both", ConflictKind::BothChanged),
        ("clash", ConflictKind::BothChanged),
        ("gone", ConflictKind::RemovedAndChanged),
        ("kept", ConflictKind::ChangedAndRemoved),
        ("new", ConflictKind::BothChanged),
    ];
    assert_eq!(
        conflicts,
        expected.map(|(path, kind)| (path.to_owned(), kind))
    );
    // Without a common version, nothing is taken to be removed.
    let merged = bench.merge(None, &ours, &base);
    assert_eq!(bench.files(&merged.root)["gone"], "0");
    assert_eq!(bench.files(&merged.root)["both.from-edge-7"], "0");
}

#[test]
fn a_mode_and_a_content_changed_apart_come_together() {
    let mut bench = Bench::new();
    let base = bench.tree(&[("f", "0")]);
    let with = |bench: &mut Bench, mode, text: &str| {
        bench.write(|writer, _| {
            let content = Content::store(writer, text.as_bytes()).unwrap();
            let reader = bench_reader_of_nothing();
            let trees = Trees::new(&reader.1);
            let mut draft = Draft::empty();
            draft
                .put(trees, &path("f"), meta(mode), Node::File(content))
                .unwrap();
            draft.store(writer).unwrap()
        })
    };
    let ours = with(&mut bench, 0o755, "0");
    let theirs = with(&mut bench, 0o644, "1");
    for (a, b) in [(&ours, &theirs), (&theirs, &ours)] {
        let merged = bench.merge(Some(&base), a, b);
        assert_eq!(merged.conflicts, []);
        let reader = bench.reader();
        let found = Trees::new(&reader)
            .find(&merged.root, &path("f"))
            .unwrap()
            .unwrap();
        assert_eq!(found.meta.mode, 0o755);
        assert_eq!(bench.files(&merged.root), texts(&[("f", "1")]));
    }
}

fn bench_reader_of_nothing() -> (Bench, ChunkReader) {
    let bench = Bench::new();
    let reader = bench.reader();
    (bench, reader)
}

#[test]
fn hostile_directories_are_refused() {
    let entry = |name: &[u8], kind: u8, mode: u16, rest: &[u8]| {
        let mut out = vec![u8::try_from(name.len()).unwrap()];
        out.extend_from_slice(name);
        out.push(kind);
        out.extend_from_slice(&mode.to_le_bytes());
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(rest);
        out
    };
    let empty_file = [0; 10];
    let file = |name: &[u8]| entry(name, 0, 0o644, &empty_file);
    let tree = |entries: &[Vec<u8>]| [vec![1], entries.concat()].concat();
    let parse = |entries: &[Vec<u8>]| tree::parse_tree(&tree(entries)).map(|all| all.len());
    assert_eq!(parse(&[file(b"a"), file(b"b")]), Ok(2));
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
        assert_eq!(parse(&[file(name)]), Err(Malformed::Name));
    }
    assert_eq!(parse(&[file(b"b"), file(b"a")]), Err(Malformed::Order));
    assert_eq!(parse(&[file(b"a"), file(b"a")]), Err(Malformed::Order));
    assert_eq!(
        parse(&[entry(b"a", 3, 0o644, &empty_file)]),
        Err(Malformed::Entry)
    );
    assert_eq!(
        parse(&[entry(b"a", 0, 0o10000, &empty_file)]),
        Err(Malformed::Entry)
    );
    assert_eq!(
        parse(&[entry(b"a", 2, 0o777, &[0, 0])]),
        Err(Malformed::Entry)
    );
    assert_eq!(
        parse(&[entry(b"a", 2, 0o777, &[3, 0, b'x', 0, b'y'])]),
        Err(Malformed::Entry)
    );
    assert_eq!(tree::parse_tree(&[2]), Err(Malformed::Encoding));
    assert_eq!(tree::parse_tree(&[1, 5, b'a']), Err(Malformed::Encoding));
    // Sizes that do not add up, parts of nothing, too many of them, too many levels.
    let content = |size: u64, levels: u8, parts: &[u64]| {
        let mut out = size.to_le_bytes().to_vec();
        out.extend_from_slice(&[levels, u8::try_from(parts.len()).unwrap()]);
        for part in parts {
            out.extend_from_slice(&[7; 32]);
            out.extend_from_slice(&part.to_le_bytes());
        }
        Content::decode(&mut codec::Reader(&out))
    };
    assert!(content(30, 0, &[10, 20]).is_ok());
    for wrong in [
        content(30, 0, &[10, 21]),
        content(30, 0, &[10]),
        content(10, 0, &[10, 0]),
        content(u64::MAX, 0, &[u64::MAX]),
        content(5, 0, &[u64::MAX, 6]),
        content(33, 0, &[1; 33]),
        content(1, 9, &[1]),
    ] {
        assert_eq!(wrong, Err(Malformed::Sizes));
    }
}

#[test]
fn a_tree_that_names_itself_a_million_times_ends() {
    let mut bench = Bench::new();
    let root = bench.write(|writer, _| {
        // Each level names the one below 40 times: 40^20 entries in 20 small directories.
        let mut below = Content::store(writer, &encode_tree(&[])).unwrap();
        for _ in 0..20 {
            let entries: Vec<Entry> = (0..40u8)
                .map(|number| Entry {
                    name: Name::new(vec![b'a' + number]).unwrap(),
                    meta: meta(0o755),
                    node: Node::Dir(below.clone()),
                })
                .collect();
            below = Content::store(writer, &encode_tree(&entries)).unwrap();
        }
        below
    });
    let reader = bench.reader();
    let trees = Trees::new(&reader);
    // Named chunks are bounded by what is stored.
    let mut chunks = 0;
    trees.for_each_chunk(&root, &mut |_| chunks += 1).unwrap();
    assert_eq!(chunks, 21);
    let mut deep = path("");
    for _ in 0..20 {
        deep = deep.join(&Name::new("a").unwrap());
    }
    assert!(trees.find(&root, &deep).unwrap().is_some());
    // Equal directories are not compared.
    diff(trees, &root, &root, &mut |_| panic!("nothing differs")).unwrap();
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
fn folders_go_in_and_come_out_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::create_dir(from.join("empty")).unwrap();
    fs::write(from.join("file"), "text").unwrap();
    fs::write(from.join("deep/er/large"), noise(1, 1_000_000)).unwrap();
    fs::write(from.join("deep/zero"), "").unwrap();
    fs::hard_link(from.join("file"), from.join("second name")).unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    symlink("nowhere", from.join("deep/dangling")).unwrap();
    fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o751)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let mut bench = Bench::new();
    let mut read = 0;
    let imported = bench.write(|writer, _| import(&from, writer, &mut |len| read += len).unwrap());
    assert_eq!(
        (imported.skipped, imported.hard_links, imported.entries),
        (1, 1, 9)
    );
    assert_eq!((imported.bytes, read), (1_000_008, 1_000_008));
    let to = dir.path().join("to");
    let reader = bench.reader();
    let trees = Trees::new(&reader);
    export(trees, &imported.root, &to, &mut |_| {}).unwrap();
    assert_eq!(
        fs::read(to.join("deep/er/large")).unwrap(),
        noise(1, 1_000_000)
    );
    assert_eq!(
        fs::read_link(to.join("link")).unwrap().to_str(),
        Some("/etc/passwd")
    );
    assert_eq!(
        fs::metadata(to.join("file")).unwrap().mode() & 0o7777,
        0o751
    );
    assert!(to.join("empty").is_dir());
    let time = |path: &std::path::Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(time(&from.join("deep")), time(&to.join("deep")));
    // What came out goes in as the same tree.
    let again = bench.write(|writer, _| import(&to, writer, &mut |_| {}).unwrap());
    let same_but_for = |root: &Content| {
        let mut files = Vec::new();
        let reader = bench.reader();
        Trees::new(&reader)
            .walk(root, &mut |path, entry| {
                if !matches!(entry.node, Node::Symlink(_) | Node::Dir(_)) {
                    files.push((path.clone(), entry.clone()));
                }
                Ok(())
            })
            .unwrap();
        files
    };
    assert_eq!(same_but_for(&again.root), same_but_for(&imported.root));
    // A name that is taken stays what it is.
    let error = export(trees, &imported.root, &to, &mut |_| {}).unwrap_err();
    assert!(matches!(error, VolumeError::Folder { .. }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
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

#[test]
fn attributes_have_one_encoding_and_bounds() {
    let entry = |meta| Entry {
        name: Name::new("f").unwrap(),
        meta,
        node: Node::Symlink(b"t".to_vec()),
    };
    let with = entry(with_attributes(0o644, &[("user.a", "1"), ("user.b", "")]));
    let bytes = encode_tree([&with]);
    assert_eq!(super::tree::parse_tree(&bytes).unwrap(), [with]);
    // Without any it is what it was before there were any.
    let without = encode_tree([&entry(meta(0o644))]);
    assert_eq!(without[3], 2);
    let mut none = without.clone();
    none[3] |= 0x80;
    none.push(0);
    assert!(super::tree::parse_tree(&none).is_err());
    for hostile in [
        &[("user.b", "1"), ("user.a", "2")][..],
        &[("user.a", "1"), ("user.a", "2")],
        &[("security.capability", "1")],
        &[("trusted.overlay.opaque", "y")],
    ] {
        let bytes = encode_tree([&entry(with_attributes(0o644, hostile))]);
        assert!(super::tree::parse_tree(&bytes).is_err(), "{hostile:?}");
    }
}

#[test]
fn attributes_changed_apart_come_together_or_are_named() {
    let mut bench = Bench::new();
    let tree = |bench: &mut Bench, mode, attributes: &[(&str, &str)]| {
        let meta = with_attributes(mode, attributes);
        bench.write(|writer, reader| {
            let trees = Trees::new(reader);
            let content = Content::store(writer, b"same").unwrap();
            let mut draft = Draft::empty();
            draft
                .put(trees, &path("f"), meta, Node::File(content))
                .unwrap();
            draft.store(writer).unwrap()
        })
    };
    let base = tree(
        &mut bench,
        0o644,
        &[("user.a", "0"), ("user.b", "0"), ("user.c", "0")],
    );
    let ours = tree(
        &mut bench,
        0o600,
        &[("user.a", "1"), ("user.b", "0"), ("user.n", "x")],
    );
    let theirs = tree(
        &mut bench,
        0o644,
        &[("user.a", "0"), ("user.b", "2"), ("user.c", "0")],
    );
    let of = |bench: &Bench, root: &Content| {
        let reader = bench.reader();
        Trees::new(&reader)
            .find(root, &path("f"))
            .unwrap()
            .unwrap()
            .meta
    };
    let merged = bench.merge(Some(&base), &ours, &theirs);
    assert_eq!(merged.conflicts, []);
    let expected = [("user.a", "1"), ("user.b", "2"), ("user.n", "x")];
    assert_eq!(of(&bench, &merged.root), with_attributes(0o600, &expected));
    // The same one, or the mode, changed by both: one stays, and it is said.
    let other = tree(
        &mut bench,
        0o640,
        &[("user.a", "9"), ("user.b", "0"), ("user.c", "0")],
    );
    let merged = bench.merge(Some(&base), &ours, &other);
    assert_eq!(merged.conflicts.len(), 1);
    assert_eq!(merged.conflicts[0].kind, ConflictKind::MetaChanged);
    assert_eq!(of(&bench, &merged.root).mode, 0o600);
}

#[test]
fn attributes_come_from_a_folder_and_go_to_one() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/f"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for at in ["d", "d/f"] {
        if let Err(error) = rustix::fs::lsetxattr(from.join(at), "user.note", at.as_bytes(), flags)
        {
            eprintln!("skipped: attributes_come_from_a_folder_and_go_to_one: {error}");
            return;
        }
    }
    let root = bench.write(|writer, _| import(&from, writer, &mut |_| {}).unwrap().root);
    let to = dir.path().join("to");
    let reader = bench.reader();
    export(Trees::new(&reader), &root, &to, &mut |_| {}).unwrap();
    for at in ["d", "d/f"] {
        let read = rhizome_guest::xattr::read(&to.join(at)).unwrap();
        assert_eq!(read, [(b"user.note".to_vec(), at.as_bytes().to_vec())]);
    }
}
