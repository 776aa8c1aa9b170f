//! What interrupted work leaves, and that it goes however often mending is interrupted too.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mending_converges() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("kept"), silent()).await.unwrap();
    // What an interrupted operation may leave: a directory of nobody with a monitor in it, copies
    // that were not dropped, a name in the store.
    let stray = SandboxId::from_bytes([3; 16]);
    let vm = home.dir.path().join(format!("sandboxes/{stray}/vm"));
    std::fs::create_dir_all(&vm).unwrap();
    std::fs::create_dir_all(home.path(&info).join("frozen")).unwrap();
    sandboxes
        .chunks()
        .pin(&format!("capture-{stray}"), &[])
        .unwrap();
    let mended = sandboxes.mend().await.unwrap();
    assert_eq!((mended.directories, mended.pins), (2, 1), "{mended:?}");
    assert!(mended.left.is_empty());
    assert_eq!(sandboxes.mend().await.unwrap(), Mended::default());
    assert_eq!(get(&sandboxes, &info.id).await, "0");
    sandboxes.shutdown(OnShutdown::Kill).await;
}

/// Snapshots that belong to nothing, beside one that is kept, let go of with the power going out at
/// every step of the store: the next time it ends in the same place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mending_that_is_interrupted_at_any_step_converges() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("kept"), silent()).await.unwrap();
    run(&sandboxes, &info.id, &["set", "7"]).await.unwrap();
    let snapshot = sandboxes.snapshot(&info.id, options(), silent());
    let kept = snapshot.await.unwrap();
    sandboxes.kill(&info.id).await.unwrap();
    let pins = sandboxes.chunks().pins();
    assert_eq!(pins.len(), 1, "{pins:?}");
    let packs = sandboxes.chunks().pinned(&pins[0]).unwrap();
    let stray = SandboxId::from_bytes([3; 16]);
    let strays = ["capture-", "sleep-", "snapshot-"].map(|kind| format!("{kind}{stray}"));
    let mut sandboxes = sandboxes;
    let mut steps = 0;
    loop {
        for name in &strays {
            sandboxes.chunks().pin(name, &packs).unwrap();
        }
        sandboxes.chunks().crash_after(steps);
        let interrupted = sandboxes.mend().await.unwrap();
        sandboxes.shutdown(OnShutdown::Keep).await;
        drop(sandboxes);
        sandboxes = home.open().await;
        let mended = sandboxes.mend().await.unwrap();
        assert!(mended.left.is_empty(), "step {steps}: {mended:?}");
        assert_eq!(sandboxes.mend().await.unwrap(), Mended::default());
        assert_eq!(sandboxes.chunks().pins(), pins, "step {steps}");
        assert_eq!(sandboxes.chunks().missing(&packs), []);
        if interrupted.left.is_empty() {
            break;
        }
        steps += 1;
    }
    assert!(steps > strays.len(), "only {steps} steps");
    // What was kept can be gone on from.
    let other = ResumeOptions {
        as_new: true,
        ..ResumeOptions::default()
    };
    let key = key();
    let restored = sandboxes.restore(&kept, &key, other, silent());
    let copy = restored.await.unwrap();
    assert_eq!(get(&sandboxes, &copy.id).await, "7");
    sandboxes.shutdown(OnShutdown::Kill).await;
}
