//! Files by hash between whole nodes: verified, resumed, from whoever has them.

#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/net.rs"]
mod support;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rhizome_identity::{Hash, NodeKey};
use rhizome_mesh::net::{FileError, ProviderError};
use support::{Node, pair, stop_all};

const MIB: usize = 1 << 20;

/// Writes a file whose every chunk differs, and returns where and its hash.
fn file(node: &Node, name: &str, bytes: usize) -> (PathBuf, Hash, Vec<u8>) {
    let mut content = vec![0; bytes];
    blake3::Hasher::new_derive_key(name)
        .finalize_xof()
        .fill(&mut content);
    let path = node.dir.path().join(name);
    std::fs::write(&path, &content).unwrap();
    (path, Hash::of(&content), content)
}

fn target(node: &Node) -> PathBuf {
    node.dir.path().join("fetched")
}

fn part(to: &Path) -> PathBuf {
    to.with_extension("part")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_arrives_whole_and_belongs_to_who_fetched_it() {
    let (a, b, _) = pair().await;
    for size in [0, 1, 16 * 1024, 5 * MIB + 3] {
        let (path, hash, content) = file(&a, "some file", size);
        a.mesh.serve_file(hash, &path).await.unwrap();
        let seen = AtomicU64::new(0);
        let progress = |done, _| seen.store(done, Ordering::Relaxed);
        let to = target(&b);
        let fetched = b
            .mesh
            .fetch_file(hash, &[a.id()], &to, 6 << 20, &progress)
            .await
            .unwrap();
        assert_eq!((fetched, seen.into_inner()), (size as u64, size as u64));
        assert_eq!(std::fs::read(&to).unwrap(), content);
        // It can be moved and offered from there; the first one is gone, and nobody minds.
        let moved = b.dir.path().join(format!("moved {size}"));
        std::fs::rename(&to, &moved).unwrap();
        b.mesh.serve_file(hash, &moved).await.unwrap();
        a.mesh.unserve_file(hash).await;
        std::fs::remove_file(&path).unwrap();
        let back = target(&a);
        a.mesh
            .fetch_file(hash, &[b.id()], &back, 6 << 20, &|_, _| {})
            .await
            .unwrap();
        assert_eq!(std::fs::read(&back).unwrap(), content);
        assert!(!part(&to).exists() && !part(&back).exists());
    }
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_arrived_is_not_sent_again_and_damage_is_found() {
    let (a, b, _) = pair().await;
    let (path, hash, content) = file(&a, "long file", 4 * MIB);
    a.mesh.serve_file(hash, &path).await.unwrap();
    let to = target(&b);

    // Half of it from an earlier transfer, and a torn end.
    std::fs::write(part(&to), &content[..2 * MIB + 77]).unwrap();
    let first = AtomicU64::new(0);
    let progress = |done, _| {
        let _ = first.compare_exchange(0, done, Ordering::Relaxed, Ordering::Relaxed);
    };
    b.mesh
        .fetch_file(hash, &[a.id()], &to, u64::MAX, &progress)
        .await
        .unwrap();
    assert!(
        first.into_inner() > 2 * MIB as u64,
        "it resumed in the middle"
    );
    assert_eq!(std::fs::read(&to).unwrap(), content);

    // A part that is not what it should be costs one more transfer, not a wrong file.
    std::fs::remove_file(&to).unwrap();
    std::fs::write(part(&to), vec![9; MIB]).unwrap();
    b.mesh
        .fetch_file(hash, &[a.id()], &to, u64::MAX, &|_, _| {})
        .await
        .unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), content);
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn providers_are_asked_in_turn_and_each_refusal_is_named() {
    let (a, b, _) = pair().await;
    let (path, hash, content) = file(&a, "a file", MIB);
    let to = target(&b);
    let none = b
        .mesh
        .fetch_file(hash, &[], &to, u64::MAX, &|_, _| {})
        .await;
    assert!(matches!(none, Err(FileError::NoProvider { .. })));
    let absent = b
        .mesh
        .fetch_file(hash, &[a.id()], &to, u64::MAX, &|_, _| {})
        .await
        .unwrap_err();
    let FileError::Failed { tried, .. } = &absent else {
        panic!("{absent:?}");
    };
    assert!(
        matches!(tried[..], [(node, ProviderError::Absent)] if node == a.id()),
        "{tried:?}"
    );
    assert!(!part(&to).exists(), "a transfer of nothing leaves nothing");

    a.mesh.serve_file(hash, &path).await.unwrap();
    let large = b
        .mesh
        .fetch_file(hash, &[a.id()], &to, 1000, &|_, _| {})
        .await
        .unwrap_err();
    let FileError::Failed { tried, .. } = &large else {
        panic!("{large:?}");
    };
    assert!(matches!(
        tried[0].1,
        ProviderError::TooLarge { limit: 1000, .. }
    ));

    let stranger = NodeKey::generate().id();
    b.mesh
        .fetch_file(hash, &[stranger, a.id()], &to, u64::MAX, &|_, _| {})
        .await
        .unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), content);

    // A file that changed under its offer is not passed off as what it was.
    std::fs::remove_file(&to).unwrap();
    let mut changed = content;
    changed[700_000] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let wrong = b
        .mesh
        .fetch_file(hash, &[a.id()], &to, u64::MAX, &|_, _| {})
        .await;
    assert!(wrong.is_err() && !to.exists());
    let mismatch = a.mesh.serve_file(Hash::of(b"other"), &path).await;
    assert!(matches!(mismatch, Err(FileError::Mismatch { .. })));
    stop_all([a, b]).await;
}
