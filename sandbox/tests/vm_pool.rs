//! Sandboxes that are copies of a guest that waits.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, SystemTime},
};

use rhizome_sandbox::{
    OnShutdown, SandboxConfig, SandboxError, SandboxInfo, SandboxSpec, SandboxState, Sandboxes,
    SnapshotOptions, chunks::StoreKey, silent,
};
use support::{progress, sh, skipped};

async fn open(home: &Path, waiting: usize) -> Sandboxes {
    let mut config = SandboxConfig::new(home);
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    config.limits.max_waiting = waiting;
    Sandboxes::open(config).await.unwrap().0
}

async fn run(sandboxes: &Sandboxes, info: &SandboxInfo, script: &str) -> String {
    let handle = sandboxes.exec(&info.id, sh(script)).await.unwrap();
    let output = handle.output(1024 * 1024).await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn spec(name: &str) -> SandboxSpec {
    SandboxSpec {
        name: Some(name.into()),
        env: BTreeMap::from([("COLOUR".into(), "green".into())]),
        ..SandboxSpec::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_guest_that_waits_are_sandboxes_like_any_other() {
    if skipped("copies_of_a_guest_that_waits_are_sandboxes_like_any_other") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    // One that was booted, to compare.
    let booting = open(home.path(), 0).await;
    let booted = booting.create(spec("cold"), progress()).await.unwrap();
    let refused = booting.warm(SandboxSpec::default(), progress()).await;
    assert!(
        matches!(refused, Err(SandboxError::Invalid { .. })),
        "{refused:?}"
    );
    booting.kill(&booted.id).await.unwrap();
    booting.shutdown(OnShutdown::Kill).await;
    drop(booting);

    let sandboxes = open(home.path(), 1).await;
    sandboxes
        .warm(SandboxSpec::default(), progress())
        .await
        .unwrap();
    let one = sandboxes.create(spec("one"), progress()).await.unwrap();
    let two = sandboxes.create(spec("two"), progress()).await.unwrap();
    eprintln!(
        "booted {:?} ms, copied {:?} and {:?} ms",
        booted.boot_ms, one.boot_ms, two.boot_ms
    );
    assert!(one.boot_ms.unwrap() < booted.boot_ms.unwrap());
    // The first was started before it was asked for; the second came too soon for that.
    assert!(one.boot_ms.unwrap() < two.boot_ms.unwrap());
    // What waits is shown, with what it takes.
    let waiting = sandboxes.pool();
    assert_eq!(waiting.len(), 1);
    assert_eq!((waiting[0].memory_mib, waiting[0].taken), (256, 2));
    assert!((1 << 20..256 << 20).contains(&waiting[0].resident_bytes));
    // The same runtime, as far as it can be.
    assert_eq!(one.fingerprint, booted.fingerprint);
    let mut seen = Vec::new();
    for (info, name) in [(&one, "one"), (&two, "two")] {
        let said = run(
            &sandboxes,
            info,
            "hostname; echo $COLOUR; date +%s; head -c 16 /dev/urandom | sha256sum; \
             cat /proc/sys/kernel/random/boot_id /etc/machine-id $RHIZOME_GENERATION",
        )
        .await;
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        assert_eq!(lines[..2], [name, "green"]);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let apart = now.unwrap().as_secs().abs_diff(lines[2].parse().unwrap());
        assert!(apart <= 1, "the clock is {apart} s off");
        let machine = u128::from_be_bytes(*info.id.as_bytes());
        assert_eq!(lines[5..], [format!("{machine:032x}"), "1".to_owned()]);
        seen.push((lines[3].clone(), lines[4].clone()));
    }
    assert_ne!(seen[0].0, seen[1].0, "two guests draw the same randomness");
    assert_ne!(seen[0].1, seen[1].1, "two guests say they were booted once");
    run(&sandboxes, &one, "echo mine > /root/mine").await;
    let none = "ls /root/mine 2>/dev/null || echo none";
    assert_eq!(run(&sandboxes, &two, none).await, "none");

    // One that shares its memory with others sleeps and wakes by itself.
    let key = StoreKey::from_bytes([4; 32]);
    let options = SnapshotOptions::new(key.clone());
    sandboxes
        .hibernate(&one.id, options, silent())
        .await
        .unwrap();
    sandboxes.kill(&two.id).await.unwrap();
    assert_eq!(sandboxes.drain_pool(), 1);
    assert!(sandboxes.pool().is_empty());
    // The copy that was about to stand by goes when it has noticed.
    let pool = home.path().join("pool");
    for _ in 0..100 {
        if std::fs::read_dir(&pool).unwrap().count() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(std::fs::read_dir(&pool).unwrap().count(), 0);
    sandboxes.resume(&one.id, &key, silent()).await.unwrap();
    assert_eq!(
        run(&sandboxes, &one, "cat /root/mine; hostname").await,
        "mine\none"
    );

    // The next one is booted, and with the daemon goes what waits.
    let three = sandboxes.create(spec("three"), progress()).await.unwrap();
    assert_eq!(sandboxes.get("three").unwrap().state, SandboxState::Ready);
    assert_eq!(run(&sandboxes, &three, none).await, "none");
    sandboxes.shutdown(OnShutdown::Kill).await;
    assert!(sandboxes.pool().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_may_use_all_the_memory_it_has() {
    if skipped("a_copy_may_use_all_the_memory_it_has") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let sandboxes = open(home.path(), 1).await;
    let large = || SandboxSpec {
        memory_mib: 768,
        ..spec("large")
    };
    sandboxes.warm(large(), progress()).await.unwrap();
    let info = sandboxes.create(large(), progress()).await.unwrap();
    assert_eq!(sandboxes.pool()[0].taken, 1);
    // What waits has a tenth of that: nearly each page is put into the template first, and then
    // copied, and its monitor is charged with both.
    let script = "mkdir /tmp/all && mount -t tmpfs -o size=700m none /tmp/all && \
                  dd if=/dev/zero of=/tmp/all/file bs=1M count=620 2>/dev/null && \
                  stat -c %s /tmp/all/file";
    let size = run(&sandboxes, &info, script).await;
    assert_eq!(size, (620 << 20).to_string());
    assert_eq!(sandboxes.get("large").unwrap().state, SandboxState::Ready);
    sandboxes.shutdown(OnShutdown::Kill).await;
}
