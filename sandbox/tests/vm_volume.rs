//! A volume in a real microVM, under its own kernel's FUSE and overlay, also through a sleep.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{fs, sync::Arc};

use rhizome_sandbox::{
    OnShutdown, SandboxInfo, SandboxSpec, Sandboxes, SnapshotOptions,
    chunks::StoreKey,
    silent,
    volume::{
        Path, Trees, VersionId,
        attach::{Attachment, Mount, Target},
        import,
    },
};
use support::{open, sh, skipped};

async fn run(sandboxes: &Sandboxes, info: &SandboxInfo, script: &str) -> String {
    let handle = sandboxes.exec(&info.id, sh(script)).await.unwrap();
    let output = handle.output(1 << 20).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stderr), "", "{script}");
    text(&output.stdout)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_read_changed_and_kept_through_a_sleep() {
    if skipped("a_volume_is_read_changed_and_kept_through_a_sleep") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let from = home.path().join("from");
    fs::create_dir_all(from.join("src")).unwrap();
    fs::write(from.join("src/main"), "one").unwrap();
    fs::write(from.join("gone"), "x").unwrap();
    fs::write(from.join("large"), vec![7; 3_000_000]).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let noted = rustix::fs::lsetxattr(from.join("src/main"), "user.note", b"kept", flags).is_ok();
    let (sandboxes, _doors) = open(&home.path().join("sandboxes")).await;
    let key = StoreKey::from_bytes([1; 32]);
    let store = sandboxes.chunks().clone();
    let mut writer = store.writer(&key);
    let root = import(&from, &mut writer, &mut |_| {}).unwrap().root;
    let packs = writer.finish().unwrap();

    let created = sandboxes.create(SandboxSpec::default(), support::progress());
    let info = created.await.unwrap();
    let mount = Mount {
        volume: [3; 16],
        path: "/work".to_owned(),
        writable: true,
    };
    let target = Target {
        store: store.clone(),
        key: key.clone(),
        base_packs: packs.clone(),
        max_bytes: 1 << 30,
        pin: "volume".to_owned(),
    };
    let chunks = || Arc::new(store.reader(&key, &packs).unwrap());
    let channel = sandboxes.channel(&info.id).await.unwrap();
    let attached = Attachment::open(&channel, mount.clone(), root.clone(), chunks())
        .await
        .unwrap();
    let script = "cat /work/src/main && wc -c < /work/large && echo two > /work/src/main && \
                  rm /work/gone && mkdir /work/new && echo 3 > /work/new/file";
    assert_eq!(run(&sandboxes, &info, script).await, "one3000000\n");
    let taken = attached.checkpoint(&channel, target.clone()).await.unwrap();
    assert_eq!((taken.files_read, taken.unsettled.len()), (2, 0));

    let version = VersionId::from_bytes([7; 32]);
    assert_eq!(attached.find_mark(&channel).await.unwrap(), None);
    attached.set_mark(&channel, &version).await.unwrap();

    // It sleeps and wakes: what was there is there, and what is read then comes from the node.
    let options = SnapshotOptions::new(key.clone());
    sandboxes
        .hibernate(&info.id, options, silent())
        .await
        .unwrap();
    attached.ended().await;
    sandboxes.resume(&info.id, &key, silent()).await.unwrap();
    let channel = sandboxes.channel(&info.id).await.unwrap();
    let attached = Attachment::open(&channel, mount, root.clone(), chunks())
        .await
        .unwrap();
    assert_eq!(attached.find_mark(&channel).await.unwrap(), Some(version));
    let script = "cat /work/src/main /work/new/file && ls /work && echo 4 > /work/after";
    assert_eq!(
        run(&sandboxes, &info, script).await,
        "two\n3\nlarge\nnew\nsrc\n"
    );
    let taken = attached.checkpoint(&channel, target).await.unwrap();
    let reader = store.reader(&key, &taken.packs).unwrap();
    let mut names = Vec::new();
    Trees::new(&reader)
        .walk(&taken.root, &mut |path, _| {
            names.push(path.to_string());
            Ok(())
        })
        .unwrap();
    names.sort();
    assert_eq!(
        names,
        ["after", "large", "new", "new/file", "src", "src/main"]
    );
    // The guest's kernel took the attribute along when it copied the file up to change it.
    let main = Path::parse(b"src/main").unwrap();
    let main = Trees::new(&reader).find(&taken.root, &main).unwrap();
    let expected = noted.then(|| (b"user.note".to_vec(), b"kept".to_vec()));
    assert_eq!(main.unwrap().meta.attributes, Vec::from_iter(expected));

    // Shut down and booted again, this guest has nothing of what was in its memory, and says so.
    sandboxes.stop(&info.id).await.unwrap();
    attached.ended().await;
    let started = sandboxes.start(&info.id, support::progress()).await;
    started.unwrap();
    let channel = sandboxes.channel(&info.id).await.unwrap();
    let mount = attached.mount().clone();
    let attached = Attachment::open(&channel, mount, root.clone(), chunks())
        .await
        .unwrap();
    assert_eq!(attached.find_mark(&channel).await.unwrap(), None);
    assert!(attached.is_unchanged(&channel).await.unwrap());
    assert_eq!(run(&sandboxes, &info, "cat /work/src/main").await, "one");
    attached.close(&channel, false).await.unwrap();
    assert_eq!(run(&sandboxes, &info, "ls /work").await, "");
    sandboxes.shutdown(OnShutdown::Kill).await;
}
