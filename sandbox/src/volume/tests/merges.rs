//! Versions that come together.

use super::*;

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
