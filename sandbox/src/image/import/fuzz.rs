//! Images of others, for [`crate::fuzz`].

use std::io::Read;

use super::{
    layer::{self, Budget, Meta},
    merged::Merged,
    oci,
    tree::Tree,
};

/// A layer, or two if a zero byte stands between them, becomes a tree that stays inside its root.
pub(crate) fn layers(bytes: &[u8]) {
    let mut tree = Tree::default();
    let mut budget = Budget {
        entries: 2_000,
        bytes: 1 << 20,
    };
    let (first, second) = match bytes.split_first() {
        Some((0, rest)) => rest.split_at(rest.len() / 1024 * 512),
        Some((_, rest)) => (rest, &[][..]),
        None => return,
    };
    for (number, layer) in [first, second].into_iter().enumerate() {
        let mut entry = 0;
        let read = layer::read(layer, &mut budget, |item, content| {
            std::io::copy(&mut content.take(1 << 16), &mut std::io::sink())
                .map_err(layer::broken)?;
            tree.apply(number, entry, item)?;
            entry += 1;
            Ok(())
        });
        if read.is_err() {
            return;
        }
    }
    let listing = tree.listing();
    let files = listing.files.values().flat_map(|(_, names)| names);
    let links = listing.symlinks.iter().map(|(path, ..)| path);
    for path in files.chain(links) {
        assert!(
            !path.is_empty() && path[0] != b'/',
            "a path out of the root"
        );
        for name in path.split(|byte| *byte == b'/') {
            assert!(!name.is_empty() && name != b"." && name != b"..");
            assert!(!name.contains(&0));
        }
        // Whoever unpacks it meets directories alone on the way, and never a link.
        let dir = path.iter().rposition(|byte| *byte == b'/');
        let dir = dir.map_or(&path[..0], |at| &path[..at]);
        assert!(listing.dirs.iter().any(|(known, _)| known == dir));
    }
}

/// Descriptions of images.
pub(crate) fn descriptions(bytes: &[u8]) {
    if let Ok(index) = oci::json::<oci::Index>("index", bytes) {
        let _ = index.choose(None);
        let _ = index.choose(Some("latest"));
    }
    let _ = oci::json::<oci::Manifest>("manifest", bytes);
    let _ = oci::json::<Vec<oci::Saved>>("manifest.json", bytes);
    if let Ok(config) = oci::json::<oci::Config>("configuration", bytes) {
        let _ = config.check(1);
        let runs = config.runs();
        assert!(runs.env.keys().all(|name| !name.is_empty()));
    }
}

pub(crate) fn layer_samples() -> Vec<Vec<u8>> {
    let meta = Meta {
        mode: 0o755,
        ..Meta::default()
    };
    let mut archive = Merged::new(vec![1]);
    let written = [
        archive.dir(b"etc", &meta),
        archive.file(b"etc/hosts", &meta, 5, &mut &b"hosts"[..]),
        archive.hardlink(b"etc/other", b"etc/hosts", &meta),
        archive.symlink(b"bin", b"/usr/bin", &meta),
        archive.file(&[b'x'; 120], &meta, 1, &mut &b"x"[..]),
        archive.file(b"bin/.wh.tool", &meta, 0, &mut &b""[..]),
    ];
    assert!(written.iter().all(Result::is_ok), "memory takes every byte");
    let one = archive.finish().expect("memory takes every byte");
    let two = [&[0][..], &one[1..], &one[1..]].concat();
    vec![one, two]
}

pub(crate) fn description_samples() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:00","size":1,"platform":{"architecture":"amd64","os":"linux"},"annotations":{"org.opencontainers.image.ref.name":"latest"}}]}"#,
        r#"{"schemaVersion":2,"config":{"digest":"sha256:00"},"layers":[{"digest":"sha256:01"}]}"#,
        r#"[{"Config":"a.json","RepoTags":["a:b"],"Layers":["a/layer.tar"]}]"#,
        r#"{"architecture":"amd64","os":"linux","config":{"Env":["A=b"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":["sha256:00"]}}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
