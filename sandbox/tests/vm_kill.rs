//! A daemon that dies while it puts a sandbox to sleep, or wakes it, leaves one of two whole
//! sandboxes: the one that was, or the one that was to be.
//!
//! On a host without QEMU the test says so and passes.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::{path::Path, time::Duration};

use rhizome_sandbox::{
    OnShutdown, SandboxId, SandboxSpec, SandboxState, Sandboxes, SnapshotOptions,
    channel::{ExecEvent, ExecRequest, ExitStatus},
    chunks::StoreKey,
    silent,
};
use support::{open, sh, skipped};

const KILLS: u64 = 8;
const HOME: &str = "RHIZOME_TEST_KILLED_HOME";
const NAME: &str = "sleeper";

/// Counts what it is given through a pipe, in memory alone, and says on its output how far it is.
const COUNTER: &str = "
mkfifo /tmp/ask /tmp/tell
n=0
while read -r asked < /tmp/ask; do
    n=$((n + 1)); echo \"count $n\"; echo $n > /tmp/tell
    [ \"$asked\" = end ] && exit 7
done";

fn key() -> StoreKey {
    StoreKey::from_bytes([3; 32])
}

async fn said(sandboxes: &Sandboxes, id: &SandboxId, script: &str) -> String {
    let handle = sandboxes.exec(id, sh(script)).await.unwrap();
    let output = handle.output(1 << 20).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.stderr.is_empty(), "{}", text(output.stderr));
    text(output.stdout).trim().to_owned()
}

async fn count(sandboxes: &Sandboxes, id: &SandboxId, word: &str) -> u64 {
    let asked = format!("echo {word} > /tmp/ask; read -r n < /tmp/tell; echo $n");
    said(sandboxes, id, &asked).await.parse().unwrap()
}

/// Brings the sandbox back to work, from wherever it was left.
async fn wake(sandboxes: &Sandboxes, id: &SandboxId) {
    match sandboxes.get(NAME).unwrap().state {
        SandboxState::Ready => {}
        SandboxState::Paused => drop(sandboxes.unpause(id).await.unwrap()),
        SandboxState::Hibernated { .. } => {
            drop(sandboxes.resume(id, &key(), silent()).await.unwrap())
        }
        state => panic!("it was left {state}"),
    }
}

/// What the test runs as the daemon that it kills: it does nothing but put to sleep and wake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helper_daemon() {
    let Some(home) = std::env::var_os(HOME) else {
        return;
    };
    let home = std::path::PathBuf::from(home);
    let (sandboxes, _doors) = open(&home).await;
    let id = sandboxes.get(NAME).unwrap().id;
    std::fs::write(home.join("up"), "up").unwrap();
    loop {
        wake(&sandboxes, &id).await;
        let options = SnapshotOptions::new(key());
        sandboxes.hibernate(&id, options, silent()).await.unwrap();
    }
}

/// Lets a daemon work for a while, and kills it in whatever it is doing.
async fn a_daemon_dies(home: &Path, after: Duration) {
    let _ = std::fs::remove_file(home.join("up"));
    let mut daemon = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_daemon", "--nocapture"])
        .env(HOME, home)
        .stdin(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    support::file_appears(&home.join("up")).await;
    tokio::time::sleep(after).await;
    let left = daemon.try_wait().unwrap();
    assert!(left.is_none(), "it failed by itself: {left:?}");
    daemon.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_dies_in_between_leaves_a_whole_sandbox() {
    if skipped("a_daemon_that_dies_in_between_leaves_a_whole_sandbox") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (sandboxes, doors) = open(home).await;
    let spec = SandboxSpec {
        name: Some(NAME.into()),
        ..SandboxSpec::default()
    };
    let id = sandboxes.create(spec, silent()).await.unwrap().id;
    let counter = ExecRequest {
        keep: true,
        ..sh(COUNTER)
    };
    let counter = sandboxes.exec(&id, counter).await.unwrap().id();
    said(
        &sandboxes,
        &id,
        "until [ -p /tmp/tell ]; do sleep 0.1; done",
    )
    .await;
    assert_eq!(count(&sandboxes, &id, "more").await, 1);
    let tree = "cd /root && find . -type f | sort | xargs sha256sum";
    let mut left = said(
        &sandboxes,
        &id,
        "echo first > /root/file-0; cat /root/file-0",
    )
    .await;
    assert_eq!(left, "first");
    left = said(&sandboxes, &id, tree).await;
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop((sandboxes, doors));

    for round in 1..=KILLS {
        // Spread over the steps of both ways: a sleep and a waking take a second or two together.
        let after = Duration::from_millis((round * 379) % 2003);
        a_daemon_dies(home, after).await;

        let (sandboxes, doors) = open(home).await;
        let state = sandboxes.get(NAME).unwrap().state;
        eprintln!("killed after {after:?}, it was left {state}");
        wake(&sandboxes, &id).await;
        assert_eq!(said(&sandboxes, &id, tree).await, left, "round {round}");
        assert_eq!(count(&sandboxes, &id, "more").await, round + 1);
        // Written and not synced.
        let more = format!("head -c 50000 /dev/urandom > /root/file-{round}");
        said(&sandboxes, &id, &more).await;
        left = said(&sandboxes, &id, tree).await;
        let mended = sandboxes.mend().await.unwrap();
        assert!(mended.left.is_empty(), "{mended:?}");
        sandboxes.shutdown(OnShutdown::Keep).await;
        drop((sandboxes, doors));
    }

    // The command that all of them outlived has its whole output and its exit code still.
    let (sandboxes, _doors) = open(home).await;
    wake(&sandboxes, &id).await;
    assert_eq!(count(&sandboxes, &id, "end").await, KILLS + 2);
    let channel = sandboxes.channel(&id).await.unwrap();
    let mut handle = channel.attach(counter, 0).await.unwrap();
    let mut output = Vec::new();
    let status = loop {
        match handle.events.recv().await.unwrap().unwrap() {
            ExecEvent::Stdout(piece) => output.extend_from_slice(&piece),
            ExecEvent::Stderr(piece) => panic!("{piece:?}"),
            ExecEvent::Exit(status) => break status,
        }
    };
    let expected: String = (1..=KILLS + 2).map(|n| format!("count {n}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), expected);
    assert_eq!(status, ExitStatus::Code(7));
    sandboxes.shutdown(OnShutdown::Kill).await;
}
