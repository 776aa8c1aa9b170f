//! What nobody who means well would store.

use super::*;

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
