//! Real microVMs that outlive their daemon, sleep, wake and multiply.
//!
//! One boot serves all: the sandbox is handed from one case to the next. On a host without QEMU
//! the test says so and passes.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rhizome_sandbox::{
    ForkOptions, OnShutdown, ResumeOptions, SandboxError, SandboxId, SandboxSpec, SandboxState,
    Sandboxes, SnapshotOptions, channel::ExecRequest, chunks::StoreKey, silent,
};
use support::{open, sh, skipped};

/// A program that counts in memory alone, and says how far it is when asked through a pipe.
const COUNTER: &str = "
mkfifo /tmp/ask /tmp/tell
(n=0; while read -r _ < /tmp/ask; do n=$((n + 1)); echo $n > /tmp/tell; done) &
echo $! > /tmp/pid
";

fn key() -> StoreKey {
    StoreKey::from_bytes([3; 32])
}

fn options() -> SnapshotOptions {
    SnapshotOptions::new(key())
}

async fn said(sandboxes: &Sandboxes, id: &SandboxId, script: &str) -> String {
    let handle = sandboxes.exec(id, sh(script)).await.unwrap();
    let output = handle.output(1 << 20).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.stderr.is_empty(), "{}", text(output.stderr));
    text(output.stdout).trim().to_owned()
}

/// Asks the counter, which adds one.
async fn count(sandboxes: &Sandboxes, id: &SandboxId) -> u32 {
    let asked = "echo > /tmp/ask; read -r n < /tmp/tell; echo $n";
    said(sandboxes, id, asked).await.parse().unwrap()
}

/// Returns how far the guest's clock is from the host's.
async fn clock_error(sandboxes: &Sandboxes, id: &SandboxId) -> Duration {
    let guest: u64 = said(sandboxes, id, "date +%s").await.parse().unwrap();
    let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Duration::from_secs(host.as_secs().abs_diff(guest))
}

/// What the test runs as the daemon that it kills, in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helper_daemon() {
    let Some(home) = std::env::var_os("RHIZOME_TEST_DAEMON_HOME") else {
        return;
    };
    let home = std::path::PathBuf::from(home);
    let (sandboxes, _doors) = open(&home).await;
    let spec = SandboxSpec {
        name: Some("life".into()),
        ..SandboxSpec::default()
    };
    let info = sandboxes.create(spec, silent()).await.unwrap();
    let counter = ExecRequest {
        keep: true,
        ..sh(&format!("{COUNTER} wait"))
    };
    let _running = sandboxes.exec(&info.id, counter).await.unwrap();
    while said(&sandboxes, &info.id, "cat /tmp/pid 2>/dev/null || true")
        .await
        .is_empty()
    {}
    assert_eq!(count(&sandboxes, &info.id).await, 1);
    std::fs::write(home.join("ready"), info.id.to_string()).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_outlives_daemons_sleeps_and_multiplies() {
    if skipped("a_sandbox_outlives_daemons_sleeps_and_multiplies") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut daemon = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_daemon", "--nocapture"])
        .env("RHIZOME_TEST_DAEMON_HOME", home.path())
        .stdin(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let id = support::file_appears(&home.path().join("ready")).await;
    let pid = support::monitor_pid_of(home.path(), &id);
    let id: SandboxId = id.parse().unwrap();
    // SIGKILL, and not a word to anybody.
    daemon.kill().await.unwrap();
    assert!(support::is_alive(pid));

    let (sandboxes, _doors) = open(home.path()).await;
    assert_eq!(sandboxes.get("life").unwrap().state, SandboxState::Ready);
    assert_eq!(count(&sandboxes, &id).await, 2, "it counts on");
    assert!(sandboxes.health(&id).await.unwrap().answers);

    it_is_paused_and_the_daemon_comes_and_goes(sandboxes, &id, home.path()).await;
    let (sandboxes, _doors) = open(home.path()).await;
    it_goes_on_after_a_pause(&sandboxes, &id).await;
    it_sleeps_five_times(&sandboxes, &id, home.path()).await;
    a_snapshot_is_taken_while_it_writes(&sandboxes, &id).await;
    copies_start_from_a_live_writer(&sandboxes, &id).await;
    a_stop_is_a_clean_end(&sandboxes, &id).await;
    sandboxes.shutdown(OnShutdown::Kill).await;
}

async fn it_is_paused_and_the_daemon_comes_and_goes(
    sandboxes: Sandboxes,
    id: &SandboxId,
    home: &Path,
) {
    sandboxes.pause(id).await.unwrap();
    let error = sandboxes.exec(id, sh("true")).await.unwrap_err();
    assert!(matches!(error, SandboxError::Refused { .. }), "{error}");
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop(sandboxes);
    assert!(support::is_alive(support::monitor_pid_of(
        home,
        &id.to_string()
    )));
}

async fn it_goes_on_after_a_pause(sandboxes: &Sandboxes, id: &SandboxId) {
    assert_eq!(
        sandboxes.get(&id.to_string()).unwrap().state,
        SandboxState::Paused
    );
    sandboxes.unpause(id).await.unwrap();
    assert_eq!(count(sandboxes, id).await, 3);
    assert!(clock_error(sandboxes, id).await <= Duration::from_secs(1));
}

async fn it_sleeps_five_times(sandboxes: &Sandboxes, id: &SandboxId, home: &Path) {
    let tree = "cd /root && find . -type f | sort | xargs sha256sum";
    // Without the kernel's threads, which come and go, and without the asking itself.
    let processes = r"ps -o pid,args | grep -v -e '\[' -e 'ps -o'";
    for round in 0..5_u32 {
        // Written and not synced.
        said(
            sandboxes,
            id,
            &format!("head -c 100000 /dev/urandom > /root/file-{round}"),
        )
        .await;
        let before = (
            said(sandboxes, id, tree).await,
            said(
                sandboxes,
                id,
                "cat /tmp/pid; kill -0 $(cat /tmp/pid) && echo lives",
            )
            .await,
            said(sandboxes, id, processes).await,
        );
        let random = "head -c 16 /dev/urandom | od -An -tx1";
        let drawn = said(sandboxes, id, random).await;
        let began = std::time::Instant::now();
        let slept = sandboxes.hibernate(id, options(), silent()).await.unwrap();
        let hibernated = began.elapsed();
        assert!(!support::vm_dir(home, &sandboxes.get("life").unwrap()).exists());
        let error = sandboxes.exec(id, sh("true")).await.unwrap_err();
        assert!(matches!(error, SandboxError::Refused { .. }), "{error}");
        if round == 2 {
            // Long enough to see whether the clock was set.
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let began = std::time::Instant::now();
        sandboxes.resume(id, &key(), silent()).await.unwrap();
        let after = (
            said(sandboxes, id, tree).await,
            said(
                sandboxes,
                id,
                "cat /tmp/pid; kill -0 $(cat /tmp/pid) && echo lives",
            )
            .await,
            said(sandboxes, id, processes).await,
        );
        eprintln!(
            "round {round}: asleep after {hibernated:?}, answers after {:?}, {} KiB read, {} KiB new, {} KiB stored",
            began.elapsed(),
            slept.bytes_read >> 10,
            slept.bytes_new >> 10,
            slept.bytes_stored >> 10,
        );
        assert_eq!(before, after, "round {round}");
        assert_eq!(count(sandboxes, id).await, 4 + round);
        assert!(clock_error(sandboxes, id).await <= Duration::from_secs(1));
        assert_ne!(drawn, said(sandboxes, id, random).await);
    }
}

async fn a_snapshot_is_taken_while_it_writes(sandboxes: &Sandboxes, id: &SandboxId) {
    let taken = sandboxes.snapshot(id, options(), silent()).await.unwrap();
    eprintln!("a snapshot paused it for {} ms", taken.pause_ms);
    assert_eq!(count(sandboxes, id).await, 9);
    let copy = ResumeOptions {
        as_new: true,
        name: Some("copy".into()),
        ..ResumeOptions::default()
    };
    let copy = sandboxes
        .restore(&taken, &key(), copy, silent())
        .await
        .unwrap();
    // The copy is where the snapshot was taken, under a name of its own.
    assert_eq!(count(sandboxes, &copy.id).await, 9);
    assert_eq!(said(sandboxes, &copy.id, "hostname").await, "copy");
    assert_eq!(said(sandboxes, id, "hostname").await, "life");
    sandboxes.kill(&copy.id).await.unwrap();
}

async fn copies_start_from_a_live_writer(sandboxes: &Sandboxes, id: &SandboxId) {
    said(sandboxes, id, "echo marker > /root/marker").await;
    let began = std::time::Instant::now();
    let wanted = ForkOptions {
        count: 3,
        name: Some("twin".into()),
        lease: None,
    };
    let copies = sandboxes
        .fork(id, wanted, options(), silent())
        .await
        .unwrap();
    eprintln!("three copies after {:?}", began.elapsed());
    let random = "head -c 16 /dev/urandom | od -An -tx1";
    let mut drawn = vec![said(sandboxes, id, random).await];
    for copy in &copies {
        assert_eq!(
            said(sandboxes, &copy.id, "cat /root/marker").await,
            "marker"
        );
        assert_eq!(count(sandboxes, &copy.id).await, 10);
        drawn.push(said(sandboxes, &copy.id, random).await);
    }
    assert_eq!(count(sandboxes, id).await, 10);
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 4, "each draws what no other does");
    for copy in &copies {
        sandboxes.kill(&copy.id).await.unwrap();
    }
}

async fn a_stop_is_a_clean_end(sandboxes: &Sandboxes, id: &SandboxId) {
    sandboxes.stop(id).await.unwrap();
    let state = sandboxes.get(&id.to_string()).unwrap().state;
    assert_eq!(state, SandboxState::Stopped);
}
