//! A sandbox that goes on before its disk is there: what it reads waits, what nobody has pauses it,
//! and the next daemon goes on where the last one was.
//!
//! On a host without QEMU or mkfs.ext4 the test says so and passes.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    OnShutdown, ResumeOptions, SandboxError, SandboxInfo, SandboxSpec, SandboxState, Sandboxes,
    SnapshotOptions, SnapshotRef,
    channel::ExecRequest,
    chunks::{ChunkError, ChunkId, ChunkReader, ReadChunks, StoreKey},
    silent,
    snapshot::Manifest,
};
use support::{open, sh, skipped};

const IMAGE: &str = "vm-stream-base";
const LIMIT: Duration = Duration::from_secs(60);
/// Larger than what the guest has cached when it goes to sleep.
const FILL: &str = "mkdir -p /root/tree/deep; cd /root/tree
for n in 1 2 3 4 5 6; do head -c 4000000 /dev/urandom > deep/$n; echo $n > small-$n; done; sync";
const HASH: &str = "cd /root/tree && find . -type f | sort | xargs sha256sum | sha256sum";

fn key() -> StoreKey {
    StoreKey::from_bytes([5; 32])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Whoever asks waits.
    Wait,
    /// Nobody has it.
    Refuse,
    Give,
}

/// A store elsewhere that gives devices and memory, and the disk when it is told to.
#[derive(Debug)]
struct Elsewhere {
    reader: ChunkReader,
    first: BTreeSet<ChunkId>,
    mode: Mutex<Mode>,
    changed: Condvar,
}

impl Elsewhere {
    fn new(from: &Sandboxes, snapshot: &SnapshotRef, mode: Mode) -> Arc<Self> {
        let manifest = from
            .chunks()
            .get_object(&key(), "snapshot", &snapshot.manifest);
        let manifest = Manifest::parse(&manifest.unwrap()).unwrap();
        let maps = [&manifest.device, &manifest.ram];
        let first = maps
            .iter()
            .flat_map(|map| map.chunks.iter().flatten())
            .copied();
        Arc::new(Self {
            reader: from.chunks().reader(&key(), &snapshot.packs).unwrap(),
            first: first.collect(),
            mode: Mutex::new(mode),
            changed: Condvar::new(),
        })
    }

    fn now(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        self.changed.notify_all();
    }
}

/// Whether it is of the files, which are random, and not of the file system itself: to go on, a
/// guest thaws that, and looks for programs that want to know of it.
fn is_of_a_file(chunk: &[u8]) -> bool {
    let zeroes = chunk.iter().filter(|byte| **byte == 0).count();
    zeroes < chunk.len() / 64
}

impl ReadChunks for Elsewhere {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        let chunk = self.reader.read(id)?;
        if self.first.contains(id) || !is_of_a_file(&chunk) {
            return Ok(chunk);
        }
        let mode = self.mode.lock().unwrap();
        // Not for ever, so that a test that failed ends.
        let waited = self
            .changed
            .wait_timeout_while(mode, LIMIT, |mode| *mode == Mode::Wait);
        match *waited.unwrap().0 {
            Mode::Refuse => Err(ChunkError::MissingChunk { chunk: *id }),
            _ => Ok(chunk),
        }
    }
}

async fn out(
    sandboxes: &Sandboxes,
    info: &SandboxInfo,
    script: &str,
) -> Result<String, SandboxError> {
    let handle = sandboxes.exec(&info.id, sh(script)).await?;
    let output = handle.output(1 << 20).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.stderr.is_empty(), "{}", text(output.stderr));
    Ok(text(output.stdout).trim().to_owned())
}

/// Makes an image with a root file system, so that its sandboxes have a disk.
async fn make_image(sandboxes: &Sandboxes) {
    if sandboxes.images().show(IMAGE).is_ok() {
        return;
    }
    let first = SandboxSpec::default();
    let first = sandboxes.create(first, support::progress()).await.unwrap();
    let made = sandboxes.commit_image(&first.id, IMAGE, silent()).await;
    made.unwrap();
    sandboxes.kill(&first.id).await.unwrap();
}

/// Wakes it in another home, to which the manifest alone was brought.
async fn wake(
    there: &Sandboxes,
    from: &Sandboxes,
    snapshot: &SnapshotRef,
    with: &Arc<Elsewhere>,
    home: &Path,
) -> SandboxInfo {
    let copy = home.join("manifest");
    std::fs::copy(from.chunks().path(&snapshot.manifest).unwrap(), &copy).unwrap();
    there.chunks().import(&snapshot.manifest, &copy).unwrap();
    let options = ResumeOptions {
        arriving: Some(Arc::clone(with) as Arc<dyn ReadChunks>),
        ..ResumeOptions::default()
    };
    let began = Instant::now();
    let woken = there
        .restore(snapshot, &key(), options, silent())
        .await
        .unwrap();
    eprintln!("it goes on after {:?}", began.elapsed());
    woken
}

async fn until(
    sandboxes: &Sandboxes,
    what: &str,
    is_so: impl Fn(&SandboxInfo) -> bool,
) -> SandboxInfo {
    let began = Instant::now();
    loop {
        let info = sandboxes.list().remove(0);
        if is_so(&info) {
            return info;
        }
        assert!(began.elapsed() < LIMIT, "it is not {what}: {info:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_clean(disk: &Path) {
    let checked = std::process::Command::new("e2fsck")
        .args(["-f", "-n"])
        .arg(disk)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sandbox_goes_on_ahead_of_its_disk() {
    if skipped("a_sandbox_goes_on_ahead_of_its_disk") {
        return;
    }
    let homes = tempfile::tempdir().unwrap();
    let home = |name: &str| homes.path().join(name);
    let (from, _doors) = open(&home("from")).await;
    make_image(&from).await;
    let spec = SandboxSpec {
        image: IMAGE.to_owned(),
        name: Some("streamed".to_owned()),
        ..SandboxSpec::default()
    };
    let made = from.create(spec, support::progress()).await.unwrap();
    if !home("from")
        .join(made.id.to_string())
        .join("vm/upper")
        .exists()
    {
        eprintln!(
            "skipped: a_sandbox_goes_on_ahead_of_its_disk: mkfs.ext4 is not installed (apt-get install e2fsprogs)"
        );
        from.shutdown(OnShutdown::Kill).await;
        return;
    }
    out(&from, &made, FILL).await.unwrap();
    let hash = out(&from, &made, HASH).await.unwrap();
    let options = SnapshotOptions::new(key());
    let snapshot = from.hibernate(&made.id, options, silent()).await.unwrap();
    reads_wait(&from, &snapshot, &home("waits"), &hash).await;
    nobody_has_it(&from, &snapshot, &home("stuck"), &hash).await;
    from.shutdown(OnShutdown::Kill).await;
}

/// Its disk comes late.
async fn reads_wait(from: &Sandboxes, snapshot: &SnapshotRef, home: &Path, hash: &str) {
    let (sandboxes, _doors) = open(home).await;
    let elsewhere = Elsewhere::new(from, snapshot, Mode::Wait);
    let woken = wake(&sandboxes, from, snapshot, &elsewhere, home).await;
    assert_eq!(woken.state, SandboxState::Ready);
    let arriving = woken.arriving.clone().unwrap();
    assert!(
        arriving.left > 20_000_000 && arriving.waits.is_none(),
        "{arriving:?}"
    );
    assert!(sandboxes.health(&woken.id).await.unwrap().answers);
    // What needs the disk waits, and the disk is all that it waits for.
    let reading = {
        let (sandboxes, woken) = (sandboxes.clone(), woken.clone());
        tokio::spawn(async move { out(&sandboxes, &woken, HASH).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!reading.is_finished());
    assert!(sandboxes.health(&woken.id).await.unwrap().answers);
    // It can be held and let go meanwhile.
    sandboxes.pause(&woken.id).await.unwrap();
    sandboxes.unpause(&woken.id).await.unwrap();
    assert!(!reading.is_finished());
    elsewhere.now(Mode::Give);
    assert_eq!(reading.await.unwrap().unwrap(), hash);
    out(&sandboxes, &woken, "echo more > /root/tree/more; sync")
        .await
        .unwrap();
    let changed = out(&sandboxes, &woken, HASH).await.unwrap();
    until(&sandboxes, "whole", |info| info.arriving.is_none()).await;
    assert!(!home.join(woken.id.to_string()).join("arriving").exists());
    // Nobody is needed any more, and it sleeps and wakes like any other.
    drop(elsewhere);
    let options = SnapshotOptions::new(key());
    sandboxes
        .hibernate(&woken.id, options, silent())
        .await
        .unwrap();
    sandboxes.resume(&woken.id, &key(), silent()).await.unwrap();
    assert_eq!(out(&sandboxes, &woken, HASH).await.unwrap(), changed);
    sandboxes.stop(&woken.id).await.unwrap();
    is_clean(&home.join(woken.id.to_string()).join("vm/upper"));
    sandboxes.shutdown(OnShutdown::Kill).await;
}

/// Nobody has its disk; the daemon goes, and with the next comes who has it.
async fn nobody_has_it(from: &Sandboxes, snapshot: &SnapshotRef, home: &Path, hash: &str) {
    let (sandboxes, doors) = open(home).await;
    let elsewhere = Elsewhere::new(from, snapshot, Mode::Refuse);
    let woken = wake(&sandboxes, from, snapshot, &elsewhere, home).await;
    let asked = ExecRequest {
        keep: true,
        ..sh(&format!("{HASH} > /tmp/hash"))
    };
    let handle = sandboxes.exec(&woken.id, asked).await.unwrap();
    let held = until(&sandboxes, "paused", |info| {
        info.state == SandboxState::Paused
    })
    .await;
    let arriving = held.arriving.unwrap();
    assert!(arriving.waits.is_some(), "{arriving:?}");
    let refused = out(&sandboxes, &woken, "true").await.unwrap_err();
    assert!(
        matches!(&refused, SandboxError::Arriving { why: Some(_), .. }),
        "{refused:?}"
    );
    let options = SnapshotOptions::new(key());
    let refused = sandboxes
        .hibernate(&woken.id, options, silent())
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, SandboxError::Arriving { .. }),
        "{refused:?}"
    );
    drop(handle);
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop((sandboxes, doors));

    let (sandboxes, _doors) = open(home).await;
    let left = sandboxes.arriving();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].state, SandboxState::Paused);
    elsewhere.now(Mode::Give);
    let chunks = Arc::clone(&elsewhere) as Arc<dyn ReadChunks>;
    sandboxes
        .go_on_arriving(&woken.id, &key(), chunks)
        .await
        .unwrap();
    until(&sandboxes, "ready and whole", |info| {
        info.state == SandboxState::Ready && info.arriving.is_none()
    })
    .await;
    // What had asked in vain was asked again.
    let began = Instant::now();
    while out(&sandboxes, &woken, "cat /tmp/hash").await.unwrap() != hash {
        assert!(began.elapsed() < LIMIT);
    }
    assert_eq!(out(&sandboxes, &woken, HASH).await.unwrap(), hash);
    sandboxes.stop(&woken.id).await.unwrap();
    is_clean(&home.join(woken.id.to_string()).join("vm/upper"));
    sandboxes.shutdown(OnShutdown::Kill).await;
}
