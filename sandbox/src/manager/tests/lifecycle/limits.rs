//! What may run, what it uses, and what work in it relies on.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::Reliance;

/// Shut to sandboxes with the label `poor`.
#[derive(Debug, Default)]
struct Shut(AtomicBool);

impl Gate for Shut {
    fn may_run(&self, labels: &BTreeMap<String, String>) -> Result<(), OverQuota> {
        match self.0.load(Ordering::SeqCst) && labels.contains_key("poor") {
            false => Ok(()),
            true => Err(OverQuota {
                what: "nothing is left".into(),
                hint: "earn some".into(),
            }),
        }
    }
}

fn is_refused<T: std::fmt::Debug>(done: Result<T, SandboxError>) {
    let error = done.unwrap_err();
    assert!(matches!(error, SandboxError::OverQuota(_)), "{error}");
    assert_eq!(error.hint().as_deref(), Some("earn some"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_makes_a_sandbox_run_passes_the_gate() {
    let home = Home::new();
    let gate = Arc::new(Shut::default());
    let sandboxes = home.open_with_gate(Some(gate.clone())).await;
    let poor = |name: &str| {
        let mut spec = spec(name);
        spec.labels.insert("poor".into(), String::new());
        spec
    };
    let stopped = sandboxes.create(poor("stopped"), silent()).await.unwrap();
    let asleep = sandboxes.create(poor("asleep"), silent()).await.unwrap();
    let running = sandboxes.create(poor("running"), silent()).await.unwrap();
    sandboxes.stop(&stopped.id).await.unwrap();
    let taken = sandboxes
        .hibernate(&asleep.id, options(), silent())
        .await
        .unwrap();
    let listed = sandboxes.list().len();
    gate.0.store(true, Ordering::SeqCst);

    is_refused(sandboxes.create(poor("another"), silent()).await);
    is_refused(sandboxes.start(&stopped.id, silent()).await);
    is_refused(sandboxes.resume(&asleep.id, &key(), silent()).await);
    let copy = ResumeOptions {
        as_new: true,
        ..ResumeOptions::default()
    };
    is_refused(sandboxes.restore(&taken, &key(), copy, silent()).await);
    let one = ForkOptions {
        count: 1,
        ..ForkOptions::default()
    };
    is_refused(sandboxes.fork(&running.id, one, options(), silent()).await);
    assert_eq!(sandboxes.list().len(), listed, "nothing is left of a try");
    // What runs goes on, and others are let in.
    assert!(run(&sandboxes, &running.id, &["set", "1"]).await.is_ok());
    sandboxes.create(spec("rich"), silent()).await.unwrap();
    gate.0.store(false, Ordering::SeqCst);
    sandboxes.start(&stopped.id, silent()).await.unwrap();
    sandboxes
        .resume(&asleep.id, &key(), silent())
        .await
        .unwrap();
    sandboxes.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_monitor_used_is_read_before_it_is_ended() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("box"), silent()).await.unwrap();
    let pid = home.pid(&info);
    let readings = sandboxes.readings();
    assert_eq!((readings.usage.len(), readings.upto), (1, 0));
    let read = readings.usage[0].monitor.clone().unwrap();
    assert_eq!((read.monitor.pid, read.memory_mib), (pid, 128));
    assert_eq!(
        sandboxes.usage(&info.id).unwrap().monitor.unwrap().monitor,
        read.monitor
    );

    sandboxes
        .hibernate(&info.id, options(), silent())
        .await
        .unwrap();
    // Whoever waits for it is told at once, and again until it is written down.
    tokio::time::timeout(Duration::from_secs(5), sandboxes.last_reading())
        .await
        .unwrap();
    for _ in 0..2 {
        let readings = sandboxes.readings();
        assert_eq!((readings.usage.len(), readings.upto), (2, 1));
        let last = readings.usage[0].monitor.as_ref().unwrap();
        assert_eq!(last.monitor, read.monitor);
        // It sleeps: no monitor, and its snapshot is what it holds.
        let asleep = &readings.usage[1];
        assert_eq!(asleep.monitor, None);
        assert!(asleep.disk_bytes > 0);
    }
    sandboxes.forget_last_readings(1);
    assert_eq!(sandboxes.readings().usage.len(), 1);

    // A monitor that the next daemon takes over is the same one.
    let woken = sandboxes.resume(&info.id, &key(), silent()).await.unwrap();
    let before = sandboxes.readings().usage[0].monitor.clone().unwrap();
    assert_ne!(before.monitor, read.monitor);
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop(sandboxes);
    let sandboxes = home.open().await;
    let after = sandboxes.usage(&woken.id).unwrap().monitor.unwrap();
    assert_eq!(after.monitor, before.monitor);
    assert!(after.cpu_ms >= before.cpu_ms && after.up_ms >= before.up_ms);
    let tally = sandboxes.tally();
    assert_eq!(tally.actions["attach"].done, 1, "{tally:?}");
    sandboxes.kill(&woken.id).await.unwrap();
    assert_eq!(sandboxes.tally().actions["kill"].done, 1);
    sandboxes.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_relies_on_more_than_there_is_keeps_its_sandbox_asleep() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("box"), silent()).await.unwrap();
    let taken = sandboxes
        .hibernate(&info.id, options(), silent())
        .await
        .unwrap();
    let relying = |requirement: &str, force: bool| Relying {
        force,
        reliances: vec![Reliance {
            by: "the context of the task `x`".into(),
            contract: requirement.parse().unwrap(),
        }],
    };
    let key = key();
    let resume = |relying: Relying| sandboxes.resume_relying(&info.id, &key, relying, silent());
    let monitors = || crate::driver::monitors_in(&home.path(&info).join("vm")).len();
    let error = resume(relying("memory>=129", false)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the runtime of sandbox {} is not what the context of the task `x` relies on: \
             `memory>=129` does not hold: it is 128",
            info.id
        )
    );
    // It sleeps on: nothing of it was started.
    assert_eq!(monitors(), 0);
    assert!(matches!(
        sandboxes.get("box").unwrap().state,
        SandboxState::Hibernated { .. }
    ));
    // As it is elsewhere: the same one from its snapshot.
    let elsewhere = ResumeOptions {
        reliances: relying("gcc", false).reliances,
        ..ResumeOptions::default()
    };
    let restored = sandboxes.restore(&taken, &key, elsewhere, silent());
    let error = restored.await.unwrap_err();
    assert!(
        matches!(error, SandboxError::Contract { by: Some(_), .. }),
        "{error}"
    );
    let was = sandboxes.remembered(&taken, &key).await.unwrap();
    assert_eq!(
        (was.id, was.fingerprint),
        (info.id, info.fingerprint.clone())
    );

    resume(relying("memory>=128", false)).await.unwrap();
    sandboxes
        .hibernate(&info.id, options(), silent())
        .await
        .unwrap();
    resume(relying("memory>=129", true)).await.unwrap();
    sandboxes.shutdown(OnShutdown::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_are_changed_within_their_bounds_and_kept() {
    let home = Home::new();
    let sandboxes = home.open().await;
    let info = sandboxes.create(spec("box"), silent()).await.unwrap();
    let set = |value: String| {
        sandboxes.change_labels(&info.id, move |labels| {
            labels.insert("work".into(), value);
        })
    };
    set("one".into()).unwrap();
    let error = set("x".repeat(1 << 20)).unwrap_err();
    assert!(matches!(error, SandboxError::Invalid { .. }), "{error}");
    sandboxes.shutdown(OnShutdown::Keep).await;
    drop(sandboxes);
    let sandboxes = home.open().await;
    assert_eq!(sandboxes.get("box").unwrap().labels["work"], "one");
    sandboxes.shutdown(OnShutdown::Kill).await;
}
