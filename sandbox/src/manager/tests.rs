use std::collections::BTreeMap;

use futures::future::{BoxFuture, FutureExt};

use super::*;
use crate::{
    Accel, Fingerprint, SandboxState,
    driver::{DriverError, Vm, VmRequest, process_start},
};

/// A driver that starts nothing.
#[derive(Debug)]
struct NoDriver;

impl VmmDriver for NoDriver {
    fn name(&self) -> &'static str {
        "none"
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async { Ok("none 1".to_owned()) }.boxed()
    }

    fn cpu_model(&self, _: Accel) -> &'static str {
        "none"
    }

    fn machine(&self, _: Accel) -> String {
        "none".to_owned()
    }

    fn start<'a>(&'a self, _: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            Err(DriverError::NotInstalled {
                program: "none".to_owned(),
            })
        }
        .boxed()
    }
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
    let (first, _doors) = Sandboxes::open_with(config.clone(), Arc::new(NoDriver))
        .await
        .unwrap();
    let second = Sandboxes::open_with(config.clone(), Arc::new(NoDriver)).await;
    assert!(matches!(second, Err(SandboxError::InUse { .. })));
    drop(first);
    Sandboxes::open_with(config, Arc::new(NoDriver))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_lost_sandbox_is_failed_and_its_monitor_ended() {
    let dir = tempfile::tempdir().unwrap();
    let config = SandboxConfig::new(dir.path());
    let mut monitor = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let lost = info(5, Some("lost"), SandboxState::Booting);
    let path = dir.path().join(lost.id.to_string());
    std::fs::create_dir_all(path.join("vm")).unwrap();
    let entry = Entry::new(
        path,
        lost.clone(),
        BTreeMap::new(),
        CancellationToken::new(),
    );
    entry
        .booting(entry::Monitor {
            pid: monitor.id(),
            started: process_start(monitor.id()).unwrap(),
            boot_id: probe::boot_id(),
        })
        .unwrap();
    // Beside it: a directory that never got its state, one with damage, one of a stranger.
    let root = dir.path();
    let empty = SandboxId::from_bytes([6; 16]).to_string();
    std::fs::create_dir(root.join(&empty)).unwrap();
    let damaged = SandboxId::from_bytes([7; 16]).to_string();
    std::fs::create_dir(root.join(&damaged)).unwrap();
    std::fs::write(root.join(&damaged).join("state.json"), "{").unwrap();
    std::fs::create_dir(root.join("notes")).unwrap();

    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(NoDriver))
        .await
        .unwrap();
    assert!(!monitor.wait().unwrap().success());
    let found = sandboxes.get("lost").unwrap();
    assert_eq!(
        found.state,
        SandboxState::Failed {
            reason: leftovers::LOST.to_owned()
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
        Entry::new(path, ended, BTreeMap::new(), CancellationToken::new())
            .save()
            .unwrap();
    }
    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(NoDriver))
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
    let (sandboxes, _doors) = Sandboxes::open_with(config, Arc::new(NoDriver))
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
    sandboxes.shutdown().await;
    let error = sandboxes
        .create(SandboxSpec::default(), silent())
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Stopping));
}
