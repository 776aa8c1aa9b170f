//! What every driver does, whichever it is: the same cases on each that runs on this host. One
//! that cannot is named with the reason.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "driver_conformance/confined.rs"]
mod confined;
#[path = "driver_conformance/support.rs"]
mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    channel::{ChannelError, ChannelLimits, ExecError, ExecRequest, GuestChannel},
    chunks::{ChunkError, ChunkStore, StoreKey},
    driver::{DriverError, SavedState, read_console},
    silent,
    snapshot::{About, Freeze, HostFacts, SnapshotError, capture, compatible, freeze, wake},
};
use support::{
    Candidate, DISK_BYTES, Machine, count, counter_passes, is_alive, kill, on_every_driver, sh,
    start_counter, talk,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_lives_through_pauses_sessions_and_daemons() {
    on_every_driver("life", async |candidate| life(&candidate).await).await;
}

async fn life(candidate: &Candidate) {
    let machine = Machine::new(candidate).await;
    let driver = &candidate.driver;
    let vm = driver.start(&machine.request).await.unwrap();
    assert_eq!(vm.status().await.as_deref(), Some("running"));
    let (channel, doors) = talk(&vm).await;
    start_counter(&channel).await;

    // Pausing twice, or one that runs being told to run, changes nothing.
    let before = channel.info().await.unwrap().uptime_ms;
    vm.pause().await.unwrap();
    vm.pause().await.unwrap();
    assert_ne!(vm.status().await.as_deref(), Some("running"));
    let pause = Duration::from_millis(1500);
    let ping = tokio::time::timeout(pause, channel.ping()).await;
    assert!(ping.is_err(), "a paused guest answers nothing");
    vm.resume().await.unwrap();
    vm.resume().await.unwrap();
    let after = channel.info().await.unwrap().uptime_ms;
    assert!(
        after - before < 1400,
        "the guest's clock went on for {} ms",
        after - before
    );
    let counted = count(&channel).await;
    counter_passes(&channel, counted).await;

    // What the guest has freed is the host's again.
    sh(
        &channel,
        "dd if=/dev/urandom of=/tmp/x bs=1M count=64 2>/dev/null",
    )
    .await;
    let used = vm.ram().unwrap().resident().unwrap();
    sh(&channel, "rm /tmp/x").await;
    let begun = Instant::now();
    loop {
        let now = vm.ram().unwrap().resident().unwrap();
        if now < used - (32 << 20) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{now} of {used}");
        // Nothing tells: the guest's kernel reports when it finds the time.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // A second session after the first, and a third through another daemon.
    drop((channel, doors));
    let (channel, doors) = talk(&vm).await;
    let counted = count(&channel).await;
    drop((channel, doors));
    let (pid, started) = (vm.pid, vm.started);
    vm.release();
    drop(vm);
    assert!(is_alive(pid));
    let gone = driver.attach(&machine.request, pid, started + 1).await;
    assert!(matches!(gone, Err(DriverError::Gone { .. })), "{gone:?}");
    let vm = driver.attach(&machine.request, pid, started).await.unwrap();
    assert_eq!((vm.pid, vm.started), (pid, started));
    let (channel, _doors) = talk(&vm).await;
    counter_passes(&channel, counted).await;
    // Also what it saves is whole, and the console is still heard.
    sh(&channel, "echo heard > /dev/console").await;
    let dir = machine.home.path();
    let frozen = freeze(&vm, &machine.request, dir, Freeze::Copy)
        .await
        .unwrap();
    drop(frozen);
    counter_passes(&channel, counted).await;
    assert!(
        read_console(&machine.request.console)
            .unwrap()
            .contains("heard")
    );

    let how = tokio::join!(vm.kill(), vm.wait()).1;
    assert!(!how.is_empty());
    assert!(!is_alive(pid));
    let gone = driver.attach(&machine.request, pid, started).await;
    assert!(matches!(gone, Err(DriverError::Gone { .. })), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_guest_is_taken_over_paused() {
    on_every_driver("paused", async |candidate| paused(&candidate).await).await;
}

async fn paused(candidate: &Candidate) {
    let machine = Machine::new(candidate).await;
    let driver = &candidate.driver;
    let vm = driver.start(&machine.request).await.unwrap();
    let (channel, doors) = talk(&vm).await;
    start_counter(&channel).await;
    vm.pause().await.unwrap();
    // What a paused guest is, is given out as often as asked.
    let file = machine.home.path().join("device");
    vm.save_device(&file).await.unwrap();
    let first = fs::read(&file).unwrap();
    vm.save_device(&file).await.unwrap();
    assert!(fs::read(&file).unwrap() == first);
    drop((channel, doors));
    let (pid, started) = (vm.pid, vm.started);
    vm.release();
    drop(vm);
    let vm = driver.attach(&machine.request, pid, started).await.unwrap();
    assert_ne!(vm.status().await.as_deref(), Some("running"));
    vm.save_device(&file).await.unwrap();
    assert_ne!(vm.status().await.as_deref(), Some("running"));
    vm.resume().await.unwrap();
    let (channel, _doors) = talk(&vm).await;
    let counted = count(&channel).await;
    counter_passes(&channel, counted).await;
    // A guest that runs is not saved.
    let running = vm.save_device(&file).await;
    assert!(
        matches!(running, Err(DriverError::Control { .. })),
        "{running:?}"
    );
    // Dropped without being let go, it ends.
    drop(vm);
    assert!(matches!(
        channel.closed().await,
        ChannelError::Gone | ChannelError::Io { .. }
    ));
}

#[test]
fn a_runtime_that_goes_takes_its_guests_along() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pids = Mutex::new(Vec::new());
    runtime.block_on(on_every_driver("runtime", async |candidate| {
        let machine = Machine::new(&candidate).await;
        let vm = candidate.driver.start(&machine.request).await.unwrap();
        pids.lock().unwrap().push(vm.pid);
        // Its task gets no chance to be told.
        tokio::spawn(async move {
            let _vm = vm;
            std::future::pending::<()>().await;
        });
    }));
    drop(runtime);
    let begun = Instant::now();
    while pids.lock().unwrap().iter().any(|&pid| is_alive(pid)) {
        assert!(begun.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_guest_goes_on_and_so_do_its_forks() {
    on_every_driver("save", async |candidate| saved(&candidate).await).await;
}

async fn saved(candidate: &Candidate) {
    let machine = Machine::new(candidate).await;
    let driver = &candidate.driver;
    let vm = driver.start(&machine.request).await.unwrap();
    let (channel, doors) = talk(&vm).await;
    start_counter(&channel).await;
    sh(
        &channel,
        "dd if=/dev/urandom of=/root/file bs=64k count=40 2>/dev/null",
    )
    .await;
    let sum = sh(&channel, "sha256sum < /root/file").await;
    // To the disk, and not flushed.
    sh(&channel, "dd if=/root/file of=/dev/vda bs=64k 2>/dev/null").await;
    let counted = count(&channel).await;

    // A copy while it goes on.
    let copies = machine.home.path().join("copies");
    fs::create_dir(&copies).unwrap();
    let frozen = freeze(&vm, &machine.request, &copies, Freeze::Copy)
        .await
        .unwrap();
    let frozen = Arc::new(frozen);
    eprintln!("paused for {:?}, copied {}", frozen.pause, frozen.copied);
    let went_on = counter_passes(&channel, counted).await;
    sh(
        &channel,
        "echo later > /root/file; echo later > /dev/vda; sync",
    )
    .await;
    drop((channel, doors));
    vm.kill().await;

    // Two guests from it at once; the first has what was there then, and goes on from there.
    let mut guests = Vec::new();
    for number in 1..=2 {
        let request = machine.sibling(number);
        let begun = Instant::now();
        let vm = frozen.fork(&**driver, &request).await.unwrap();
        assert_ne!(vm.status().await.as_deref(), Some("running"));
        let stream = vm.connect().await.unwrap();
        vm.resume().await.unwrap();
        let (channel, doors) = GuestChannel::start(stream, ChannelLimits::default())
            .await
            .unwrap();
        eprintln!("guest {number} answers after {:?}", begun.elapsed());
        let shares = !vm.ram().unwrap().is_whole();
        assert_eq!(shares, driver.capabilities().copy_on_write);
        guests.push((request, vm, channel, doors));
    }
    for (_, _, channel, _) in &guests {
        let now = count(channel).await;
        assert!(now >= counted, "{now} after {counted}");
        assert!(now < went_on + 200, "{now} after {went_on}");
        counter_passes(channel, now).await;
        assert_eq!(sh(channel, "sha256sum < /root/file").await, sum);
        let disk = "dd if=/dev/vda bs=64k count=40 2>/dev/null | sha256sum";
        assert_eq!(sh(channel, disk).await, sum);
        assert_eq!(
            sh(channel, "kill -0 $(pgrep -f count.new | head -1); hostname").await,
            "case"
        );
    }
    // They share nothing.
    sh(
        &guests[0].2,
        "echo first > /root/mine; printf first | dd of=/dev/vda conv=notrunc 2>/dev/null; sync",
    )
    .await;
    assert_eq!(
        sh(&guests[1].2, "ls /root/mine 2>/dev/null || echo none").await,
        "none"
    );
    let mut head = [0; 5];
    let disk = fs::File::open(guests[1].0.dir.join("data")).unwrap();
    disk.read_exact_at(&mut head, 0).unwrap();
    assert_ne!(&head, b"first");

    // One that was restored sleeps in the chunk store, and wakes elsewhere.
    let (request, vm, channel, doors) = guests.remove(0);
    drop((channel, doors));
    // Another daemon finds where its memory is, too.
    let (pid, started) = (vm.pid, vm.started);
    vm.release();
    drop(vm);
    let vm = driver.attach(&request, pid, started).await.unwrap();
    let (channel, doors) = talk(&vm).await;
    let counted = count(&channel).await;
    let frozen = freeze(&vm, &request, machine.home.path(), Freeze::Hold)
        .await
        .unwrap();
    assert_ne!(vm.status().await.as_deref(), Some("running"));
    drop((channel, doors));
    let store = ChunkStore::open(&machine.home.path().join("chunks")).unwrap();
    let key = StoreKey::from_bytes([1; 32]);
    let mut writer = store.writer(&key);
    let about = About::of(&**driver, &request).await.unwrap();
    let captured = capture(&frozen, about, &mut writer, &silent()).unwrap();
    let packs = writer.finish().unwrap();
    drop(frozen);
    vm.kill().await;
    fs::remove_dir_all(&request.dir).unwrap();

    let host = HostFacts::of(&**driver, candidate.accel).await.unwrap();
    compatible(&captured.manifest, &host).unwrap();
    let again = machine.sibling(3);
    let reader = store.reader(&key, &packs).unwrap();
    let manifest = Arc::new(captured.manifest);
    let woken = wake(
        &**driver,
        &again,
        Arc::clone(&manifest),
        Arc::new(reader),
        silent(),
    );
    let (vm, read) = woken.await.unwrap();
    assert!(read > 20 * 1024 * 1024, "{read}");
    let stream = vm.connect().await.unwrap();
    vm.resume().await.unwrap();
    let (channel, _doors) = GuestChannel::start(stream, ChannelLimits::default())
        .await
        .unwrap();
    counter_passes(&channel, counted).await;
    let mine = "cat /root/mine; head -c 5 /dev/vda";
    assert_eq!(sh(&channel, mine).await, "first\nfirst");
    assert_eq!(sh(&channel, "sha256sum < /root/file").await, sum);
    vm.kill().await;

    // What does not arrive whole starts nothing.
    let mut writer = store.writer(&key);
    let other = writer.put(b"another's chunk").unwrap();
    let reader = store.reader(&key, &writer.finish().unwrap()).unwrap();
    assert!(reader.contains(&other));
    let request = machine.sibling(4);
    let manifest = Arc::clone(&manifest);
    let lost = wake(&**driver, &request, manifest, Arc::new(reader), silent()).await;
    assert!(
        matches!(
            lost,
            Err(SnapshotError::Chunks(ChunkError::MissingChunk { .. }))
        ),
        "{lost:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_is_held_in() {
    on_every_driver("confined", async |candidate| {
        let machine = Machine::new(&candidate).await;
        let vm = candidate.driver.start(&machine.request).await.unwrap();
        confined::check(vm.pid, &machine.request, machine.home.path());
        vm.kill().await;
        let restless = confined::groups_of(&machine.request, vm.pid);
        assert!(restless.is_empty(), "groups are left: {restless:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_monitor_ends_its_sessions_within_five_seconds() {
    on_every_driver("killed", async |candidate| killed(&candidate).await).await;
}

async fn killed(candidate: &Candidate) {
    let machine = Machine::new(candidate).await;
    let vm = candidate.driver.start(&machine.request).await.unwrap();
    let (channel, _doors) = talk(&vm).await;
    let request = ExecRequest {
        argv: ["sleep", "1000"].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let mut handle = channel.exec(request).await.unwrap();
    kill(vm.pid);
    let limit = Duration::from_secs(5);
    let lost = tokio::time::timeout(limit, handle.events.recv()).await;
    let lost = lost.expect("the exec ends").unwrap();
    assert!(
        matches!(lost, Err(ExecError::SandboxGone { .. })),
        "{lost:?}"
    );
    let how = tokio::time::timeout(limit, vm.wait())
        .await
        .expect("it is told");
    assert!(how.contains("signal: 9"), "{how}");
    let error = vm.pause().await.unwrap_err();
    assert!(matches!(error, DriverError::Control { .. }), "{error:?}");
    let error = vm.connect().await.unwrap_err();
    assert!(matches!(error, DriverError::Io { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_state_starts_nothing() {
    on_every_driver("damaged", async |candidate| damaged(&candidate).await).await;
}

async fn damaged(candidate: &Candidate) {
    let machine = Machine::new(candidate).await;
    let driver = &candidate.driver;
    let vm = driver.start(&machine.request).await.unwrap();
    drop(talk(&vm).await);
    let dir = machine.home.path();
    let frozen = freeze(&vm, &machine.request, dir, Freeze::Hold)
        .await
        .unwrap();
    let request = machine.sibling(1);
    let whole = fs::read(&frozen.device).unwrap();
    let state = frozen.instance(&request.dir).unwrap();
    let refused = async |bytes: &[u8]| {
        let path = dir.join("damaged");
        fs::write(&path, bytes).unwrap();
        let damaged = SavedState {
            device: path,
            ram: state.ram.try_clone().unwrap(),
        };
        let error = driver.restore(&request, &damaged).await.unwrap_err();
        assert!(matches!(error, DriverError::Saved { .. }), "{error:?}");
    };
    for length in [0, 1, 47, 48, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..length]).await;
    }
    for at in [0, 9, 20, 48, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        refused(&flipped).await;
    }
    refused(b"something else altogether").await;
    // The memory of another guest.
    let other = rhizome_sandbox::driver::GuestRam::create(128).unwrap();
    let wrong = SavedState {
        device: frozen.device.clone(),
        ram: other,
    };
    let error = driver.restore(&request, &wrong).await.unwrap_err();
    assert!(matches!(error, DriverError::Saved { .. }), "{error:?}");
    // Another machine.
    let mut larger = machine.sibling(1);
    larger.vcpus = 2;
    let error = driver.restore(&larger, &state).await.unwrap_err();
    assert!(error.to_string().contains("2 vcpus"), "{error:?}");
    // A guest that was not stopped by us is not taken for one that was.
    let missing = freeze(&vm, &machine.request, &dir.join("none"), Freeze::Hold).await;
    assert!(
        matches!(
            missing,
            Err(SnapshotError::Io { .. } | SnapshotError::Driver(_))
        ),
        "{missing:?}"
    );
    assert_eq!(
        fs::metadata(request.dir.join("data")).unwrap().len(),
        DISK_BYTES
    );
    vm.kill().await;
}
