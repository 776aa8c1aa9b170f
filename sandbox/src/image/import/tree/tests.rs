use super::*;

fn meta(mode: u32) -> Meta {
    Meta {
        mode,
        ..Meta::default()
    }
}

fn item(path: &str, what: What) -> Item {
    Item {
        path: path.into(),
        what,
        meta: meta(0o644),
    }
}

fn file(path: &str) -> Item {
    item(path, What::File { size: 1 })
}

fn dir(path: &str) -> Item {
    item(path, What::Dir)
}

fn link(path: &str, target: &str) -> Item {
    item(
        path,
        What::Symlink {
            target: target.into(),
        },
    )
}

fn hard(path: &str, target: &str) -> Item {
    item(
        path,
        What::Hardlink {
            target: target.into(),
        },
    )
}

fn tree(layers: &[Vec<Item>]) -> Result<Tree, ImportError> {
    let mut tree = Tree::default();
    for (layer, items) in layers.iter().enumerate() {
        for (entry, item) in items.iter().enumerate() {
            tree.apply(layer, entry as u64, item.clone())?;
        }
    }
    Ok(tree)
}

/// Every path: directories with a slash, links with an arrow, hard links with their layer.
fn paths(layers: &[Vec<Item>]) -> Vec<String> {
    let tree = tree(layers).unwrap();
    let listing = tree.listing();
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let dirs = listing.dirs.iter().map(|(path, _)| text(path) + "/");
    let files = listing
        .files
        .iter()
        .flat_map(|((layer, _), (_, names))| names.iter().map(move |n| (n, layer)));
    let files = files.map(|(name, layer)| format!("{}@{layer}", text(name)));
    let links = listing.symlinks.iter();
    let links = links.map(|(path, _, target)| format!("{} -> {}", text(path), text(target)));
    let mut all: Vec<_> = dirs.chain(files).chain(links).collect();
    all.sort();
    all
}

#[test]
fn a_later_layer_replaces_and_adds() {
    let below = vec![dir("etc"), file("etc/hosts"), file("etc/motd")];
    let above = vec![file("./etc/hosts"), file("opt/new")];
    assert_eq!(
        paths(&[below, above]),
        [
            "/",
            "etc/",
            "etc/hosts@1",
            "etc/motd@0",
            "opt/",
            "opt/new@1"
        ]
    );
}

#[test]
fn a_whiteout_hides_lower_layers_and_never_its_own() {
    let below = vec![file("a/x"), file("a/y"), file("b/z"), file("c")];
    // The new file comes before the whiteout of its name, which the format allows.
    let above = vec![
        file("a/x"),
        file("a/.wh.x"),
        file("a/.wh.y"),
        file(".wh.b"),
        file(".wh.c"),
        file(".wh.never-there"),
    ];
    assert_eq!(paths(&[below, above]), ["/", "a/", "a/x@1"]);
}

#[test]
fn an_opaque_directory_keeps_what_its_layer_adds() {
    let below = vec![file("a/old"), file("a/deep/old")];
    for opaque_first in [true, false] {
        let mut above = vec![file("a/new"), file("a/deep/new")];
        above.insert(if opaque_first { 0 } else { 2 }, file("a/.wh..wh..opq"));
        assert_eq!(
            paths(&[below.clone(), above]),
            ["/", "a/", "a/deep/", "a/deep/new@1", "a/new@1"]
        );
    }
}

#[test]
fn a_file_takes_the_place_of_a_tree_and_a_tree_of_a_link() {
    let below = vec![file("a/x"), link("l", "a"), link("k", "a")];
    let above = vec![file("a"), dir("l")];
    assert_eq!(paths(&[below, above]), ["/", "a@1", "k -> a", "l/"]);
}

#[test]
fn links_are_followed_inside_the_image_alone() {
    let merged = vec![
        dir("usr"),
        dir("usr/bin"),
        link("bin", "usr/bin"),
        link("out", "../../../../usr"),
        link("abs", "/usr/bin"),
    ];
    let above = vec![
        file("bin/a"),
        file("out/b"),
        file("abs/c"),
        file("out/bin/d"),
    ];
    let paths = paths(&[merged, above]);
    for path in ["usr/bin/a@1", "usr/b@1", "usr/bin/c@1", "usr/bin/d@1"] {
        assert!(paths.contains(&path.to_owned()), "{path}: {paths:?}");
    }
}

#[test]
fn hard_links_share_what_they_name_at_that_moment() {
    let below = vec![file("a"), hard("b", "a"), hard("c", "./b")];
    // Replacing one name leaves the others.
    let above = vec![file("a"), hard("d", "b")];
    assert_eq!(paths(&[below, above]), ["/", "a@1", "b@0", "c@0", "d@0"]);
}

#[test]
fn every_way_out_is_refused_by_name() {
    let cases = [
        (vec![file("../x")], ".."),
        (vec![file("a/../../x")], ".."),
        (vec![file("/etc/passwd")], "absolute"),
        (vec![hard("x", "/etc/passwd")], "absolute"),
        (vec![hard("x", "../etc/passwd")], ".."),
        (vec![hard("x", "etc/passwd")], "no file"),
        (vec![dir("d"), hard("x", "d")], "no file"),
        (vec![file("a"), file("a/b")], "through a file"),
        (
            vec![link("a", "b"), link("b", "a"), file("a/x")],
            "many links",
        ),
        (vec![link("a", "")], "nothing"),
        (vec![file("a/.wh...")], "hides no name"),
        (vec![file(&"x".repeat(256))], "255"),
        (vec![file(&"d/".repeat(300))], "deep"),
    ];
    for (items, told) in cases {
        let error = tree(&[items]).unwrap_err().to_string();
        assert!(error.contains(told), "{error} should tell of `{told}`");
    }
}

#[test]
fn devices_are_left_out_and_counted() {
    let tree = tree(&[vec![item("dev/null", What::Special), file("a")]]).unwrap();
    assert_eq!(tree.left_out, 1);
    assert_eq!(tree.listing().files.len(), 1);
}

#[test]
fn links_that_multiply_are_cut_off() {
    // Each link goes through the one before it twice: 2^30 names if nobody counted.
    let mut items = vec![dir("a0")];
    for n in 1..30 {
        let before = n - 1;
        items.push(link(&format!("a{n}"), &format!("a{before}/../a{before}")));
    }
    items.push(file("a29/x"));
    assert!(tree(&[items]).is_err());
}
