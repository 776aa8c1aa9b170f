//! Actions on sandboxes whose guests are fakes: what the state machine promises, kept by the
//! manager.

mod elsewhere;
mod limits;
mod mending;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    channel::{ExecError, ExecOutput},
    chunks::{ChunkError, StoreKey},
    life::{Lease, LeaseEnd, LeaseOwner, Phase, Refused},
};

struct Home {
    dir: tempfile::TempDir,
    fake: Fake,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("images/images/fake");
        std::fs::create_dir_all(&image).unwrap();
        let described = serde_json::json!({
            "version": 1,
            "info": {
                "id": "f".repeat(64), "name": "fake", "created_ms": 1, "size_bytes": 0,
                "kernel": "none", "lineage": [],
            },
            "parts": {},
            "root_format": null,
        });
        std::fs::write(image.join("image.json"), described.to_string()).unwrap();
        std::fs::write(image.join("tools.json"), "{}").unwrap();
        Self {
            dir,
            fake: Fake::default(),
        }
    }

    async fn open(&self) -> Sandboxes {
        self.open_with_gate(None).await
    }

    async fn open_with_gate(&self, gate: Option<Arc<dyn Gate>>) -> Sandboxes {
        let mut config = SandboxConfig::new(self.dir.path().join("sandboxes"));
        config.images_dir = self.dir.path().join("images");
        config.chunks_dir = self.dir.path().join("chunks");
        config.accel = Accel::Tcg;
        config.gate = gate;
        self.open_as(config).await
    }

    async fn open_as(&self, config: SandboxConfig) -> Sandboxes {
        // A child that another test starts has the lock too, from its fork to its exec.
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let fake = Arc::new(self.fake.clone());
            match Sandboxes::open_with(config.clone(), fake).await {
                Err(
                    SandboxError::InUse { .. } | SandboxError::Chunks(ChunkError::InUse { .. }),
                ) if Instant::now() < patience => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => return opened.unwrap().0,
            }
        }
    }

    fn guest(&self, info: &SandboxInfo) -> Arc<fake::Guest> {
        self.fake.guest(self.pid(info))
    }

    fn pid(&self, info: &SandboxInfo) -> u32 {
        let state = self.path(info).join("state.json");
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        u32::try_from(state["monitor"]["pid"].as_u64().unwrap()).unwrap()
    }

    fn path(&self, info: &SandboxInfo) -> PathBuf {
        self.dir.path().join("sandboxes").join(info.id.to_string())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What a failed test leaves.
        let found = std::fs::read_dir(self.dir.path().join("sandboxes")).into_iter();
        for entry in found.flatten().flatten() {
            for (pid, _) in crate::driver::monitors_in(&entry.path().join("vm")) {
                kill(pid);
            }
        }
    }
}

fn spec(name: &str) -> SandboxSpec {
    SandboxSpec {
        name: Some(name.into()),
        image: "ffff".into(),
        memory_mib: 128,
        ..SandboxSpec::default()
    }
}

fn key() -> StoreKey {
    StoreKey::from_bytes([9; 32])
}

fn options() -> SnapshotOptions {
    SnapshotOptions::new(key())
}

async fn run(
    sandboxes: &Sandboxes,
    id: &SandboxId,
    argv: &[&str],
) -> Result<ExecOutput, SandboxError> {
    let request = ExecRequest {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        ..ExecRequest::default()
    };
    let handle = sandboxes.exec(id, request).await?;
    let output = handle.output(1024).await;
    output.map_err(|source| SandboxError::Exec { id: *id, source })
}

async fn get(sandboxes: &Sandboxes, id: &SandboxId) -> String {
    let output = run(sandboxes, id, &["get"]).await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// What SIGKILL does, without the end of the process.
async fn crash(sandboxes: Sandboxes) {
    let inner = &sandboxes.inner;
    inner.stop.cancel();
    inner.abandon.cancel();
    let entries: Vec<_> = inner.entries().values().cloned().collect();
    for entry in entries {
        if let Some(vm) = entry.set_vm(None) {
            vm.release();
        }
        drop(entry.set_session(None));
    }
    inner.tasks.close();
    inner.tasks.wait().await;
}

async fn becomes(sandboxes: &Sandboxes, id: &SandboxId, phase: Phase) {
    let entry = sandboxes.inner.entry(id).unwrap();
    let there = async {
        while entry.phase() != phase {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), there)
        .await
        .unwrap_or_else(|_| panic!("it is {} and not {phase}", entry.phase()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_dies_loses_no_sandbox() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let runs = sandboxes.create(spec("runs"), silent()).await.unwrap();
    let held = sandboxes.create(spec("held"), silent()).await.unwrap();
    let gone = sandboxes.create(spec("gone"), silent()).await.unwrap();
    run(&sandboxes, &runs.id, &["set", "41"]).await.unwrap();
    run(&sandboxes, &held.id, &["set", "42"]).await.unwrap();
    sandboxes.pause(&held.id).await.unwrap();
    let pid = home.pid(&gone);
    crash(sandboxes).await;
    kill(pid);
    let guest = home.fake.guest(pid);
    assert_eq!(home.fake.running().min(2), 2);
    drop(guest);

    let sandboxes = home.open().await;
    assert_eq!(get(&sandboxes, &runs.id).await, "41");
    assert_eq!(sandboxes.get("runs").unwrap().state, SandboxState::Ready);
    assert_eq!(sandboxes.get("held").unwrap().state, SandboxState::Paused);
    let error = run(&sandboxes, &held.id, &["get"]).await.unwrap_err();
    assert!(
        matches!(
            error,
            SandboxError::Refused {
                why: Refused::Paused,
                ..
            }
        ),
        "{error}"
    );
    sandboxes.unpause(&held.id).await.unwrap();
    assert_eq!(get(&sandboxes, &held.id).await, "42");
    // The third says what it is: never a fresh guest under an old name.
    let error = run(&sandboxes, &gone.id, &["get"]).await.unwrap_err();
    assert!(matches!(error, SandboxError::StateLost { .. }), "{error}");
    assert!(!home.path(&gone).join("vm").exists());
    sandboxes.shutdown(OnShutdown::Kill).await;
    assert_eq!(home.fake.running(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_stop_keeps_them_too() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("runs"), silent()).await.unwrap();
    run(&sandboxes, &info.id, &["set", "5"]).await.unwrap();
    sandboxes.shutdown(OnShutdown::Keep).await;
    let error = sandboxes.pause(&info.id).await.unwrap_err();
    assert!(matches!(error, SandboxError::Stopping), "{error}");
    drop(sandboxes);
    assert_eq!(home.fake.running(), 1);
    let sandboxes = home.open().await;
    assert_eq!(get(&sandboxes, &info.id).await, "5");
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop(sandboxes);
    // Without a daemon, and once more: there is nothing left to end.
    let dir = home.dir.path().join("sandboxes");
    // As in `open`: another test's child may have the lock for a moment.
    let patience = Instant::now() + Duration::from_secs(10);
    for wanted in [1, 0] {
        let ended = loop {
            match end_monitors(&dir).await {
                Err(SandboxError::InUse { .. }) if Instant::now() < patience => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                ended => break ended.unwrap(),
            }
        };
        assert_eq!(ended, wanted);
    }
    let sandboxes = home.open().await;
    becomes(&sandboxes, &info.id, Phase::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleep_keeps_what_was_in_memory() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("sleeper"), silent()).await.unwrap();
    for round in 1..=5_u32 {
        run(&sandboxes, &info.id, &["set", &round.to_string()])
            .await
            .unwrap();
        let slept = sandboxes
            .hibernate(&info.id, options(), silent())
            .await
            .unwrap();
        assert_eq!(home.fake.running(), 0);
        assert!(!home.path(&info).join("vm").exists());
        assert!(!home.path(&info).join("frozen").exists());
        let error = run(&sandboxes, &info.id, &["get"]).await.unwrap_err();
        assert!(
            matches!(
                error,
                SandboxError::Refused {
                    why: Refused::Hibernated,
                    ..
                }
            ),
            "{error}"
        );
        // Asking again is no other sleep.
        let again = sandboxes.hibernate(&info.id, options(), silent()).await;
        assert_eq!(again.unwrap().manifest, slept.manifest);
        assert_eq!(
            sandboxes.chunks().pins(),
            [format!("sleep-{}", info.id)],
            "only the newest is kept"
        );
        let woken = sandboxes.resume(&info.id, &key(), silent()).await.unwrap();
        assert_eq!(woken.state, SandboxState::Ready);
        assert_eq!(get(&sandboxes, &info.id).await, round.to_string());
        let guest = home.guest(&info);
        assert_eq!(guest.resumed.load(Ordering::SeqCst), 1);
        assert_eq!(guest.held.load(Ordering::SeqCst), 0);
    }
    // Another key opens nothing, and the sandbox sleeps on.
    sandboxes
        .hibernate(&info.id, options(), silent())
        .await
        .unwrap();
    let wrong = StoreKey::from_bytes([1; 32]);
    sandboxes
        .resume(&info.id, &wrong, silent())
        .await
        .unwrap_err();
    becomes(&sandboxes, &info.id, Phase::Hibernated).await;
    // A daemon that comes and goes does not wake it.
    crash(sandboxes).await;
    let sandboxes = home.open().await;
    becomes(&sandboxes, &info.id, Phase::Hibernated).await;
    sandboxes.resume(&info.id, &key(), silent()).await.unwrap();
    assert_eq!(get(&sandboxes, &info.id).await, "5");
    // Lost after it slept: it says so, and goes back to its sleep when told.
    kill(home.pid(&info));
    becomes(&sandboxes, &info.id, Phase::Lost).await;
    let error = run(&sandboxes, &info.id, &["get"]).await.unwrap_err();
    assert!(matches!(error, SandboxError::StateLost { .. }), "{error}");
    sandboxes.resume(&info.id, &key(), silent()).await.unwrap();
    assert_eq!(get(&sandboxes, &info.id).await, "5");
    sandboxes.kill(&info.id).await.unwrap();
    assert!(sandboxes.chunks().pins().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_can_be_gone_on_from_more_than_once() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("source"), silent()).await.unwrap();
    run(&sandboxes, &info.id, &["set", "7"]).await.unwrap();
    let taken = sandboxes
        .snapshot(&info.id, options(), silent())
        .await
        .unwrap();
    run(&sandboxes, &info.id, &["set", "8"]).await.unwrap();
    assert_eq!(home.guest(&info).held.load(Ordering::SeqCst), 0);
    sandboxes.pause(&info.id).await.unwrap();
    let paused = sandboxes
        .snapshot(&info.id, options(), silent())
        .await
        .unwrap();
    assert_eq!(sandboxes.get("source").unwrap().state, SandboxState::Paused);
    assert_eq!(sandboxes.snapshots().len(), 2);

    let other = ResumeOptions {
        as_new: true,
        name: Some("copy".into()),
        ..ResumeOptions::default()
    };
    let copy = sandboxes
        .restore(&taken, &key(), other.clone(), silent())
        .await
        .unwrap();
    assert_ne!(copy.id, info.id);
    assert_eq!(copy.parent, Some(info.id));
    assert_eq!(get(&sandboxes, &copy.id).await, "7");
    // The name is taken now; nothing of the try is left.
    let error = sandboxes
        .restore(&paused, &key(), other, silent())
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::NameTaken { .. }), "{error}");
    assert_eq!(sandboxes.list().len(), 2);
    // The same one runs already.
    let same = ResumeOptions::default();
    let error = sandboxes
        .restore(&taken, &key(), same.clone(), silent())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            SandboxError::Refused {
                why: Refused::Running,
                ..
            }
        ),
        "{error}"
    );
    // It can be had again once it is over, here or, with the packs, anywhere.
    sandboxes.kill(&info.id).await.unwrap();
    let again = sandboxes
        .restore(&paused, &key(), same, silent())
        .await
        .unwrap();
    assert_eq!((again.id, again.name.as_deref()), (info.id, Some("source")));
    assert_eq!(get(&sandboxes, &again.id).await, "8");
    // One that cannot be started leaves nothing.
    *home.fake.broken.lock().unwrap() = Some("restore");
    let broken = ResumeOptions {
        as_new: true,
        ..ResumeOptions::default()
    };
    sandboxes
        .restore(&taken, &key(), broken, silent())
        .await
        .unwrap_err();
    assert_eq!(sandboxes.list().len(), 2);
    let left = sandboxes.snapshots();
    for info in left.iter().filter(|info| !info.asleep) {
        let manifest = info.snapshot.manifest;
        sandboxes.remove_snapshot(&manifest).await.unwrap();
        sandboxes.remove_snapshot(&manifest).await.unwrap_err();
    }
    sandboxes.shutdown(OnShutdown::Kill).await;
    assert!(sandboxes.chunks().pins().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_have_lives_of_their_own() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("tree"), silent()).await.unwrap();
    run(&sandboxes, &info.id, &["set", "3"]).await.unwrap();
    let wanted = ForkOptions {
        count: 5,
        name: Some("leaf".into()),
        lease: None,
    };
    let copies = sandboxes
        .fork(&info.id, wanted.clone(), options(), silent())
        .await
        .unwrap();
    assert_eq!(copies.len(), 5);
    for (number, copy) in (1..).zip(&copies) {
        assert_eq!(copy.name.as_deref(), Some(&*format!("leaf-{number}")));
        assert_eq!(get(&sandboxes, &copy.id).await, "3");
        run(&sandboxes, &copy.id, &["set", &number.to_string()])
            .await
            .unwrap();
    }
    assert_eq!(get(&sandboxes, &info.id).await, "3");
    assert_eq!(get(&sandboxes, &copies[4].id).await, "5");
    // All or none: the names are taken.
    sandboxes
        .fork(&info.id, wanted, options(), silent())
        .await
        .unwrap_err();
    assert_eq!(sandboxes.list().len(), 6);
    // A copy that cannot start takes the others with it; the source goes on.
    *home.fake.broken.lock().unwrap() = Some("restore");
    let more = ForkOptions {
        count: 2,
        ..ForkOptions::default()
    };
    sandboxes
        .fork(&info.id, more, options(), silent())
        .await
        .unwrap_err();
    assert_eq!(sandboxes.list().len(), 6);
    assert_eq!(get(&sandboxes, &info.id).await, "3");
    sandboxes.shutdown(OnShutdown::Kill).await;
    assert_eq!(home.fake.running(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_is_taken_back() {
    let home = Home::new();
    let sandboxes = home.open().await;
    *home.fake.broken.lock().unwrap() = Some("start");
    sandboxes.create(spec("never"), silent()).await.unwrap_err();
    let failed = sandboxes.get("never").unwrap();
    assert_eq!(failed.state.phase(), Phase::Failed);
    assert!(!home.path(&failed).join("vm").exists());
    *home.fake.broken.lock().unwrap() = None;
    // The name is free again.
    let info = sandboxes.create(spec("never"), silent()).await.unwrap();
    for broken in ["pause", "save"] {
        *home.fake.broken.lock().unwrap() = Some(broken);
        run(&sandboxes, &info.id, &["set", "6"]).await.unwrap();
        sandboxes
            .hibernate(&info.id, options(), silent())
            .await
            .unwrap_err();
        assert_eq!(get(&sandboxes, &info.id).await, "6", "{broken}");
        assert_eq!(home.guest(&info).held.load(Ordering::SeqCst), 0);
        assert!(!home.path(&info).join("frozen").exists());
        assert!(sandboxes.chunks().pins().is_empty());
    }
    *home.fake.broken.lock().unwrap() = None;
    // Stopped, and started again.
    sandboxes.stop(&info.id).await.unwrap();
    assert_eq!(home.fake.running(), 0);
    let error = run(&sandboxes, &info.id, &["get"]).await.unwrap_err();
    assert!(
        matches!(
            error,
            SandboxError::Refused {
                why: Refused::Stopped,
                ..
            }
        ),
        "{error}"
    );
    sandboxes.start(&info.id, silent()).await.unwrap();
    assert_eq!(get(&sandboxes, &info.id).await, "0");
    sandboxes.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_dies_ends_its_commands_and_says_so() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("dies"), silent()).await.unwrap();
    let channel = sandboxes.channel(&info.id).await.unwrap();
    kill(home.pid(&info));
    tokio::time::timeout(Duration::from_secs(5), channel.closed())
        .await
        .unwrap();
    becomes(&sandboxes, &info.id, Phase::Lost).await;
    let error = run(&sandboxes, &info.id, &["get"]).await.unwrap_err();
    assert!(matches!(&error, SandboxError::StateLost { what, .. } if what.contains("signal: 9")));
    assert!(!sandboxes.health(&info.id).await.unwrap().answers);
    sandboxes.kill(&info.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_what_nobody_asks_for() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let lease = |ms: u64, then| Lease {
        owner: LeaseOwner::Client("test".into()),
        until_ms: now_ms() + ms,
        then,
    };
    let mut asked = spec("leased");
    asked.lease = Some(lease(60_000, LeaseEnd::Kill));
    let info = sandboxes.create(asked, silent()).await.unwrap();
    // Asking for less does not shorten it, asking for more makes it longer.
    let until = info.lease.as_ref().unwrap().until_ms;
    let kept = sandboxes.renew_lease(&info.id, until - 1_000).unwrap();
    assert_eq!(kept.lease.unwrap().until_ms, until);
    let longer = sandboxes.renew_lease(&info.id, until + 1_000).unwrap();
    assert_eq!(longer.lease.unwrap().until_ms, until + 1_000);
    // It is on disk: the next daemon heeds it.
    crash(sandboxes).await;
    let sandboxes = home.open().await;
    let none = tokio::time::timeout(Duration::from_millis(20), sandboxes.lease_ended()).await;
    assert!(none.is_err());
    let waiting = sandboxes.clone();
    let ended = tokio::spawn(async move { waiting.lease_ended().await });
    sandboxes
        .set_lease(&info.id, Some(lease(50, LeaseEnd::Hibernate)))
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), ended).await;
    assert_eq!(ended.unwrap().unwrap(), (info.id, LeaseEnd::Hibernate));
    sandboxes
        .hibernate(&info.id, options(), silent())
        .await
        .unwrap();
    assert_eq!(sandboxes.get("leased").unwrap().lease, None);
    sandboxes.kill(&info.id).await.unwrap();
    let late = sandboxes.set_lease(&info.id, Some(lease(1_000, LeaseEnd::Kill)));
    assert!(matches!(late, Err(SandboxError::NotRunning { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_races_end_in_states_that_the_machine_allows() {
    let home = Home::new();
    let sandboxes = home.open().await;
    for round in 0..100_u32 {
        let info = sandboxes
            .create(spec(&format!("race-{round}")), silent())
            .await
            .unwrap();
        let id = info.id;
        let acts: Vec<_> = (0..6)
            .map(|act| {
                let (sandboxes, key) = (sandboxes.clone(), key());
                let act = (act + round) % 6;
                tokio::spawn(async move {
                    let refused = |error: SandboxError| match error {
                        SandboxError::Refused { .. }
                        | SandboxError::NotRunning { .. }
                        | SandboxError::Cancelled { .. }
                        | SandboxError::MonitorEnded { .. }
                        | SandboxError::Guest { .. }
                        | SandboxError::Quiesce { .. }
                        | SandboxError::Driver(_)
                        | SandboxError::Exec {
                            source: ExecError::SandboxGone { .. },
                            ..
                        } => {}
                        other => panic!("{other:?}"),
                    };
                    match act {
                        0 => drop(sandboxes.pause(&id).await.map_err(refused)),
                        1 => drop(sandboxes.unpause(&id).await.map_err(refused)),
                        2 => drop(sandboxes.resume(&id, &key, silent()).await.map_err(refused)),
                        3 if round % 3 == 0 => sandboxes.kill(&id).await.unwrap(),
                        3 => drop(
                            sandboxes
                                .hibernate(&id, options(), silent())
                                .await
                                .map_err(refused),
                        ),
                        4 => drop(run(&sandboxes, &id, &["set", "1"]).await.map_err(refused)),
                        _ => drop(sandboxes.pause(&id).await.map_err(refused)),
                    }
                })
            })
            .collect();
        for act in acts {
            act.await.unwrap();
        }
        let phase = sandboxes.inner.entry(&id).unwrap().phase();
        let vm = home.path(&info).join("vm").exists();
        match phase {
            Phase::Ready | Phase::Paused => assert!(vm, "{phase}"),
            Phase::Hibernated | Phase::Killed => assert!(!vm, "{phase}"),
            other => panic!("round {round} ended in {other}"),
        }
        if phase == Phase::Paused {
            sandboxes.unpause(&id).await.unwrap();
        }
        if phase == Phase::Hibernated {
            sandboxes.resume(&id, &key(), silent()).await.unwrap();
        }
        if phase != Phase::Killed {
            run(&sandboxes, &id, &["get"]).await.unwrap();
        }
        sandboxes.kill(&id).await.unwrap();
        assert_eq!(home.fake.running(), 0, "round {round}");
    }
    assert!(sandboxes.chunks().pins().is_empty());
}
