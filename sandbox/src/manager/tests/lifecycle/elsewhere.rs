//! What a sandbox has after its host went down, and on another node.

use std::fs;

use super::*;
use crate::{
    egress::{Attempt, SecretParts},
    manager::entry::Record,
};

/// What the synced file alone says: the other is what a host that goes down may lose.
fn synced(home: &Home, info: &SandboxInfo) -> Record {
    let path = home.path(info);
    let run = path.join("run.json");
    let kept = fs::read(&run).unwrap();
    fs::remove_file(&run).unwrap();
    let record = Record::read(&path).unwrap();
    fs::write(&run, kept).unwrap();
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_stands_in_the_file_that_is_synced() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("one"), silent()).await.unwrap();
    let is = |phase: Phase| {
        let record = synced(&home, &info);
        assert_eq!(record.info.state.phase(), phase);
        assert_eq!(record.run.journal, None, "{phase}");
    };
    is(Phase::Ready);
    let (id, options) = (info.id, options());
    let taken = sandboxes.snapshot(&id, options.clone(), silent());
    let taken = taken.await.unwrap();
    // Were it under way still, the next start would keep it again.
    is(Phase::Ready);
    sandboxes.remove_snapshot(&taken.manifest).await.unwrap();
    sandboxes.hibernate(&id, options, silent()).await.unwrap();
    is(Phase::Hibernated);
    sandboxes.resume(&id, &key(), silent()).await.unwrap();
    is(Phase::Ready);
    sandboxes.kill(&id).await.unwrap();
    assert_eq!(synced(&home, &info).info.state.phase(), Phase::Killed);
    sandboxes.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_those_of_the_node_and_granted_there() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let mut wanted = spec("one");
    wanted.secrets = vec!["API_KEY".into(), "OTHER".into()];
    let info = sandboxes.create(wanted, silent()).await.unwrap();
    let taken = sandboxes.hibernate(&info.id, options(), silent());
    let taken = taken.await.unwrap();
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop(sandboxes);

    // Another node, which has one of the two, and the snapshot.
    let mut config = SandboxConfig::new(home.dir.path().join("elsewhere"));
    config.images_dir = home.dir.path().join("images");
    config.chunks_dir = home.dir.path().join("chunks");
    config.secrets_dir = home.dir.path().join("secrets");
    config.accel = Accel::Tcg;
    let elsewhere = home.open_as(config).await;
    let secret = SecretParts {
        name: "API_KEY".into(),
        domain: "api.example.org".into(),
        header: "authorization".into(),
        format: "Bearer {}".into(),
        value: "hunter2hunter2".to_owned().into(),
    };
    elsewhere
        .secrets()
        .set(&secret.try_into().unwrap())
        .unwrap();
    let wake = async |secrets: &[String]| {
        let options = ResumeOptions {
            secrets: secrets.to_vec(),
            ..ResumeOptions::default()
        };
        let woken = elsewhere.restore(&taken, &key(), options, silent()).await;
        woken.unwrap()
    };
    // A snapshot brings no right to them.
    let woken = wake(&[]).await;
    assert!(woken.secrets.is_empty());
    assert!(elsewhere.egress().env(&woken.id).is_empty());
    elsewhere.kill(&woken.id).await.unwrap();

    let granted = ["API_KEY", "OTHER", "NEVER_USED"].map(str::to_owned);
    let woken = wake(&granted).await;
    assert_eq!(woken.secrets, ["API_KEY", "OTHER"]);
    let env = elsewhere.egress().env(&woken.id);
    let placeholders = env.values().filter(|value| value.starts_with("rz-secret-"));
    assert_eq!(placeholders.count(), 1, "{env:?}");
    let denials = elsewhere.egress().denials(&woken.id);
    let told: Vec<_> = denials
        .iter()
        .filter(|denial| denial.attempt == Attempt::Secret)
        .collect();
    assert_eq!(told.len(), 1, "{denials:?}");
    assert_eq!(told[0].denied.rule, "secret `OTHER` is not on this node");
    elsewhere.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stood_by_is_ended_by_the_next_daemon() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("one"), silent()).await.unwrap();
    let pid = home.pid(&info);
    crash(sandboxes).await;
    // As one that was nobody's yet: a monitor in a directory that no state file speaks of.
    // And the first state of one that the host's end cut short, which is as good as none.
    fs::remove_file(home.path(&info).join("run.json")).unwrap();
    fs::write(home.path(&info).join("state.json"), "").unwrap();
    let sandboxes = home.open().await;
    assert!(sandboxes.list().is_empty());
    assert!(!home.path(&info).exists());
    let deadline = Instant::now() + Duration::from_secs(10);
    while crate::driver::process_start(pid).is_some() {
        assert!(Instant::now() < deadline, "its monitor runs on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sandboxes.shutdown(OnShutdown::Kill).await;
}
