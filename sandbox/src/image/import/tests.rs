//! Images made here, as others would make them and as an enemy would.

use std::{fs, io::Write};

use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::*;
use crate::silent;

const FREE: u64 = 1 << 40;

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}

/// A layer of files, whiteouts included: whatever has these names.
fn layer(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = header(EntryType::Regular, content.len() as u64);
        let length = name.len().min(100);
        header.as_gnu_mut().unwrap().name[..length].copy_from_slice(&name.as_bytes()[..length]);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn config_of(layers: &[Vec<u8>]) -> Vec<u8> {
    let ids: Vec<_> = layers.iter().map(|l| Digest::of(l).to_string()).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["GREETING=hello"], "Cmd": ["sh"], "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    serde_json::to_vec(&config).unwrap()
}

/// Writes an OCI layout: layers plain, gzip and zstd in turn.
fn layout(dir: &Path, layers: &[Vec<u8>]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(dir.join(digest.blob()), bytes).unwrap();
        json!({"digest": digest.to_string(), "size": bytes.len()})
    };
    let packed = layers.iter().enumerate().map(|(n, bytes)| match n % 3 {
        0 => bytes.clone(),
        1 => gzip(bytes),
        _ => zstd::encode_all(&bytes[..], 1).unwrap(),
    });
    let layer_refs: Vec<_> = packed.map(|bytes| put(&bytes)).collect();
    let config = put(&config_of(layers));
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layer_refs});
    let mut manifest = put(&serde_json::to_vec(&manifest).unwrap());
    manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
    manifest["platform"] = json!({"architecture": "amd64", "os": "linux"});
    manifest["annotations"] = json!({"io.containerd.image.name": "docker.io/library/tiny:1"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(dir.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn docker_save(layers: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut names = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = header(EntryType::Regular, bytes.len() as u64);
        builder.append_data(&mut header, name, bytes).unwrap();
    };
    for (n, bytes) in layers.iter().enumerate() {
        let name = format!("layer{n}/layer.tar");
        add(&name, bytes);
        names.push(name);
    }
    add("config.json", &config_of(layers));
    let saved = json!([{"Config": "config.json", "RepoTags": ["tiny:1"], "Layers": names}]);
    add("manifest.json", &serde_json::to_vec(&saved).unwrap());
    builder.into_inner().unwrap()
}

/// Merges what lies at `path`; returns each path of the result with its content.
fn merged(path: &Path) -> Result<Vec<(String, String)>, ImportError> {
    let scratch = tempfile::tempdir().unwrap();
    let source = Source::open(path, scratch.path(), FREE, false)?;
    let described = describe(&source, None)?;
    let to = scratch.path().join("merged.tar");
    merge(&source, &described, &to, FREE, &silent())?;
    let mut found = Vec::new();
    let file = File::open(&to).unwrap();
    layer::read(file, &mut Budget::default(), |item, content| {
        let mut text = String::new();
        content.read_to_string(&mut text).unwrap();
        found.push((String::from_utf8(item.path).unwrap(), text));
        Ok(())
    })?;
    Ok(found)
}

fn two_layers() -> Vec<Vec<u8>> {
    vec![
        layer(&[("etc/a", "old"), ("etc/b", "kept"), ("etc/c", "gone")]),
        layer(&[("etc/a", "new"), ("etc/.wh.c", "")]),
        layer(&[("opt/tool", "#!/bin/sh")]),
    ]
}

fn expected() -> Vec<(String, String)> {
    [
        ("./", ""),
        ("etc/", ""),
        ("opt/", ""),
        ("etc/b", "kept"),
        ("etc/a", "new"),
        ("opt/tool", "#!/bin/sh"),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .to_vec()
}

#[test]
fn a_layout_an_archive_of_it_and_docker_save_become_the_same_tree() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    layout(&image, &two_layers());
    assert_eq!(merged(&image).unwrap(), expected());

    let mut builder = Builder::new(Vec::new());
    builder.append_dir_all(".", &image).unwrap();
    let archive = builder.into_inner().unwrap();
    fs::write(dir.path().join("image.tar"), &archive).unwrap();
    assert_eq!(merged(&dir.path().join("image.tar")).unwrap(), expected());
    fs::write(dir.path().join("image.tgz"), gzip(&archive)).unwrap();
    assert_eq!(merged(&dir.path().join("image.tgz")).unwrap(), expected());

    fs::write(dir.path().join("saved.tar"), docker_save(&two_layers())).unwrap();
    assert_eq!(merged(&dir.path().join("saved.tar")).unwrap(), expected());
}

#[test]
fn every_byte_is_checked_against_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path(), &two_layers());
    let blobs: Vec<_> = fs::read_dir(dir.path().join("blobs/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(blobs.len(), 5);
    for blob in blobs {
        let good = fs::read(&blob).unwrap();
        let mut bad = good.clone();
        // The last byte of a layer is padding behind its end, and counts all the same.
        *bad.last_mut().unwrap() ^= 1;
        fs::write(&blob, bad).unwrap();
        let error = merged(dir.path()).unwrap_err();
        assert!(
            matches!(
                error,
                ImportError::Digest { .. } | ImportError::Archive { .. }
            ),
            "{error:?}"
        );
        fs::remove_file(&blob).unwrap();
        let error = merged(dir.path()).unwrap_err();
        assert!(matches!(error, ImportError::Missing { .. }), "{error:?}");
        fs::write(&blob, good).unwrap();
    }
    assert_eq!(merged(dir.path()).unwrap(), expected());
}

#[test]
fn a_hostile_layer_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for name in ["../../evil", "/evil", "a/../../evil"] {
        layout(&image, &[layer(&[(name, "x")])]);
        let error = merged(&image).unwrap_err();
        assert!(
            matches!(error, ImportError::Hostile { .. }),
            "{name}: {error:?}"
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_bomb_is_cut_off_by_what_comes_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let zeros = "\0".repeat(8 << 20);
    let layers = ["one", "two"].map(|name| layer(&[(name, &zeros)]));
    layout(dir.path(), &layers);
    let scratch = tempfile::tempdir().unwrap();
    let source = Source::open(dir.path(), scratch.path(), FREE, false).unwrap();
    let described = describe(&source, None).unwrap();
    let to = scratch.path().join("merged.tar");
    let error = merge(&source, &described, &to, 12 << 20, &silent()).unwrap_err();
    assert!(matches!(error, ImportError::Archive { .. }), "{error:?}");
    assert!(!to.exists());
    let error = merge(&source, &described, &to, 17 << 20, &silent()).unwrap_err();
    assert!(
        matches!(
            error,
            ImportError::NoSpace { .. } | ImportError::Archive { .. }
        ),
        "{error:?}"
    );
}

#[test]
fn an_extended_header_cannot_ask_for_memory() {
    let mut builder = Builder::new(Vec::new());
    let zeros = vec![0; 1 << 20];
    for kind in [EntryType::XHeader, EntryType::GNULongName] {
        let mut header = header(kind, zeros.len() as u64);
        header.set_cksum();
        builder.append(&header, &zeros[..]).unwrap();
    }
    let bytes = builder.into_inner().unwrap();
    let read = layer::read(&bytes[..], &mut Budget::default(), |_, _| Ok(()));
    assert!(matches!(read, Err(ImportError::Unsupported { .. })));
}

#[test]
fn what_is_no_image_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(merged(dir.path()), Err(ImportError::NoImage)));
    let path = dir.path().join("x.tar");
    fs::write(&path, "no archive at all, but long enough to be looked at").unwrap();
    assert!(merged(&path).is_err());
    fs::write(&path, layer(&[("etc/hosts", "")])).unwrap();
    let error = merged(&path).unwrap_err();
    assert!(error.hint().unwrap().contains("--rootfs"));
    let missing = merged(&dir.path().join("nothing"));
    assert!(matches!(missing, Err(ImportError::Read { .. })));
}

fn roots() -> (TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::new(dir.path());
    (dir, roots)
}

#[tokio::test]
async fn an_image_becomes_a_root_file_system_once() {
    let (_dir, roots) = roots();
    let given = tempfile::tempdir().unwrap();
    layout(given.path(), &two_layers());
    let request = ImportRequest {
        path: given.path().to_owned(),
        ..ImportRequest::default()
    };
    let made = import(&roots, request.clone(), &silent()).await.unwrap();
    assert_eq!(made.name, "tiny:1");
    assert_eq!(made.config.env["GREETING"], "hello");
    assert_eq!(made.config.command, ["sh"]);
    assert!(made.path.is_file());
    let again = import(&roots, request.clone(), &silent()).await.unwrap();
    assert_eq!((again.key, again.created_ms), (made.key, made.created_ms));
    let named = ImportRequest {
        name: Some("../x".into()),
        ..request
    };
    let error = import(&roots, named, &silent()).await.unwrap_err();
    assert!(matches!(error, ImageError::BadName { .. }));
    assert_eq!(roots.all().len(), 1);
}

#[tokio::test]
async fn a_bare_root_file_system_is_imported_when_asked() {
    let (_dir, roots) = roots();
    let given = tempfile::tempdir().unwrap();
    let path = given.path().join("exported.tar.gz");
    fs::write(&path, gzip(&layer(&[("etc/hosts", "x"), ("bin/sh", "y")]))).unwrap();
    let request = ImportRequest {
        path,
        rootfs: true,
        ..ImportRequest::default()
    };
    let made = import(&roots, request, &silent()).await.unwrap();
    assert_eq!(made.name, "exported");
    assert_eq!(roots.newest("exported").unwrap().key, made.key);
    roots.remove(&made).unwrap();
    assert!(roots.newest("exported").is_none());
}
