use std::collections::BTreeMap;

use super::*;
use crate::{Accel, Fingerprint, SandboxState, driver::process_start};

pub(crate) mod fake;
mod lifecycle;

use fake::Fake;

/// Kills a process; one that is gone is fine.
pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn info(byte: u8, name: Option<&str>, state: SandboxState) -> SandboxInfo {
    SandboxInfo {
        id: SandboxId::from_bytes([byte; 16]),
        name: name.map(str::to_owned),
        image: "minimal".into(),
        image_id: "0".repeat(64),
        state,
        driver: "none".into(),
        accel: Accel::Tcg,
        memory_mib: 256,
        vcpus: 1,
        created_ms: byte.into(),
        boot_ms: None,
        labels: BTreeMap::new(),
        fingerprint: Fingerprint::default(),
        network: crate::egress::Policy::none(),
        secrets: Vec::new(),
        requires: crate::Contract::default(),
        lease: None,
        snapshot: None,
        parent: None,
        arriving: None,
    }
}

#[test]
fn sandboxes_are_found_by_id_name_and_prefix() {
    let one = info(1, Some("web"), SandboxState::Ready);
    let old = info(9, Some("web"), SandboxState::Killed);
    let two = info(2, None, SandboxState::Ready);
    let all = vec![old.clone(), one.clone(), two.clone()];
    assert_eq!(find(all.clone(), &old.id.to_string()).unwrap(), old);
    assert_eq!(find(all.clone(), "web").unwrap(), one);
    assert_eq!(find(all.clone(), &two.id.to_string()[..6]).unwrap(), two);
    assert!(matches!(
        find(all.clone(), "a"),
        Err(SandboxError::Unknown { .. })
    ));
    assert!(matches!(
        find(all.clone(), "../x"),
        Err(SandboxError::Unknown { .. })
    ));
    let twin = SandboxInfo {
        id: SandboxId::from_bytes([1; 16]),
        ..two
    };
    let mut twins = vec![one, twin];
    twins[1].id = {
        let mut bytes = [1; 16];
        bytes[15] = 7;
        SandboxId::from_bytes(bytes)
    };
    let prefix = twins[0].id.to_string()[..8].to_owned();
    assert!(matches!(
        find(twins, &prefix),
        Err(SandboxError::Ambiguous { matches: 2, .. })
    ));
}

#[tokio::test]
async fn two_daemons_cannot_have_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let config = SandboxConfig::new(dir.path());
    let (first, _doors) = Sandboxes::open_with(config.clone(), Arc::new(Fake::default()))
        .await
        .unwrap();
    let second = Sandboxes::open_with(config.clone(), Arc::new(Fake::default())).await;
    assert!(matches!(second, Err(SandboxError::InUse { .. })));
    drop(first);
    Sandboxes::open_with(config, Arc::new(Fake::default()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_sandbox_that_was_being_made_is_failed_and_its_monitor_ended() {
    let dir = tempfile::tempdir().unwrap();
    let config = SandboxConfig::new(dir.path());
    let mut monitor = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let lost = info(5, Some("lost"), SandboxState::Booting);
    let path = dir.path().join(lost.id.to_string());
    std::fs::create_dir_all(path.join("vm")).unwrap();
    let entry = Entry::new(path, lost.clone(), BTreeMap::new());
    let started = entry::Monitor {
        pid: monitor.id(),
        started: process_start(monitor.id()).unwrap(),
        boot_id: probe::boot_id(),
    };
    entry
        .change(|record| record.run.monitor = Some(started))
        .unwrap();
    // Beside it: a directory that never got its state, one with damage, one of a stranger.
    let root = dir.path();
    let empty = SandboxId::from_bytes([6; 16]).to_string();
    std::fs::create_dir(root.join(&empty)).unwrap();
    let damaged = SandboxId::from_bytes([7; 16]).to_string();
    std::fs::create_dir(root.join(&damaged)).unwrap();
    std::fs::write(root.join(&damaged).join("state.json"), "{").unwrap();
    std::fs::create_dir(root.join("notes")).unwrap();

    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(Fake::default()))
        .await
        .unwrap();
    assert!(!monitor.wait().unwrap().success());
    let found = sandboxes.get("lost").unwrap();
    assert_eq!(
        found.state,
        SandboxState::Failed {
            reason: open::INTERRUPTED.to_owned()
        }
    );
    assert_eq!(sandboxes.list().len(), 1);
    assert!(!entry.vm_dir().exists());
    assert!(!root.join(empty).exists());
    assert!(root.join(damaged).exists() && root.join("notes").exists());
    // Ending it again is fine, running something in it is not.
    sandboxes.kill(&found.id).await.unwrap();
    let error = sandboxes
        .exec(&found.id, ExecRequest::default())
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::NotRunning { .. }));
}

#[tokio::test]
async fn the_oldest_ended_sandboxes_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SandboxConfig::new(dir.path());
    config.limits.max_ended = 2;
    for byte in 1..=4 {
        let ended = info(byte, None, SandboxState::Killed);
        let path = dir.path().join(ended.id.to_string());
        std::fs::create_dir_all(&path).unwrap();
        Entry::new(path, ended, BTreeMap::new())
            .change(|_| {})
            .unwrap();
    }
    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(Fake::default()))
        .await
        .unwrap();
    let left: Vec<_> = sandboxes
        .list()
        .iter()
        .map(|info| info.created_ms)
        .collect();
    assert_eq!(left, [4, 3]);
}

#[tokio::test]
async fn a_request_that_cannot_be_met_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = SandboxConfig::new(dir.path());
    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(Fake::default()))
        .await
        .unwrap();
    let base = SandboxSpec::default();
    for spec in [
        SandboxSpec {
            name: Some("../x".into()),
            ..base.clone()
        },
        SandboxSpec {
            name: Some(String::new()),
            ..base.clone()
        },
        SandboxSpec {
            memory_mib: 16,
            ..base.clone()
        },
        SandboxSpec {
            memory_mib: u32::MAX,
            ..base.clone()
        },
        SandboxSpec {
            vcpus: 999,
            ..base.clone()
        },
        SandboxSpec {
            env: BTreeMap::from([("A=B".into(), String::new())]),
            ..base.clone()
        },
        SandboxSpec {
            image: "nothing".into(),
            ..base
        },
    ] {
        assert!(
            sandboxes.create(spec.clone(), silent()).await.is_err(),
            "{spec:?}"
        );
    }
    assert!(sandboxes.list().is_empty());
    sandboxes.shutdown(OnShutdown::Kill).await;
    let error = sandboxes
        .create(SandboxSpec::default(), silent())
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Stopping));
}
