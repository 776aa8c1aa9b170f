//! Many copies of a guest that was writing: each whole, each its own, each on time.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "driver_conformance/support.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rhizome_sandbox::{
    channel::{ChannelLimits, GuestChannel, Quiesce, Resume},
    driver::Vm,
    snapshot::{Freeze, Frozen, freeze},
};
use support::{Candidate, Machine, on_every_driver, sh, talk};

const COPIES: u8 = 20;
/// How much later it is when the copies go on.
const LATER: Duration = Duration::from_secs(3600);
/// Writes without a pause, and one after the other says what time it is.
const WRITERS: &str = "
mkdir -p /mnt && mount -t ext4 /dev/vda /mnt
echo marker > /mnt/marker; echo in memory > /tmp/marker
setsid sh -c 'i=0; while :; do
    i=$((i + 1)); head -c 30000 /dev/urandom > /mnt/file-$((i % 40))
    echo $i > /mnt/last.new; mv /mnt/last.new /mnt/last; echo $i >> /mnt/log
done' < /dev/null > /dev/null 2>&1 & echo $! > /tmp/writers
setsid sh -c 'while :; do date +%s >> /tmp/clock; sleep 0.02; done' \
    < /dev/null > /dev/null 2>&1 & echo $! >> /tmp/writers
";

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_copies_of_a_live_writer_are_whole() {
    on_every_driver("copies", async |candidate| copies(&candidate).await).await;
}

async fn copies(candidate: &Candidate) {
    if !candidate.driver.capabilities().fork {
        eprintln!("skipped: copies: {} cannot fork", candidate.name);
        return;
    }
    let machine = Machine::new(candidate).await;
    let disk = &machine.request.disks[0].path;
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-O", "^has_journal"])
        .arg(disk)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: copies: mkfs.ext4 does not work (apt-get install e2fsprogs)");
        return;
    }
    let vm = candidate.driver.start(&machine.request).await.unwrap();
    let (channel, doors) = talk(&vm).await;
    sh(&channel, WRITERS).await;
    while sh(&channel, "wc -l < /mnt/log 2>/dev/null || echo 0").await == "0" {}
    channel.quiesce(Quiesce::default()).await.unwrap();
    let held = seconds(SystemTime::now());
    let taken = machine.home.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let frozen = freeze(&vm, &machine.request, &taken, Freeze::Copy);
    let frozen = Arc::new(frozen.await.unwrap());
    channel.thaw().await.unwrap();
    // The one that they were taken of writes on.
    let last = sh(&channel, "cat /mnt/last").await;
    let begun = Instant::now();
    while sh(&channel, "cat /mnt/last").await == last {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    drop((channel, doors));
    vm.kill().await;

    let begun = Instant::now();
    let (mut guests, mut drawn, mut counts) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut boots = BTreeSet::new();
    for number in 1..=COPIES {
        let (vm, channel) = copy(candidate, &machine, &frozen, number).await;
        let markers = "cat /mnt/marker /tmp/marker; hostname";
        let said = sh(&channel, markers).await;
        assert_eq!(said, format!("marker\nin memory\ncopy-{number}"));
        on_time(&channel, held).await;
        drawn.insert(sh(&channel, "head -c 16 /dev/urandom | sha256sum").await);
        boots.insert(sh(&channel, "cat /proc/sys/kernel/random/boot_id").await);
        // It goes on from where it was, and then leaves a file system behind.
        let stop = "kill $(cat /tmp/writers); wc -l < /mnt/log; while ! umount /mnt; do :; done 2>/dev/null";
        let count: u64 = sh(&channel, stop).await.parse().unwrap();
        assert!(count >= 1);
        counts.insert(count);
        guests.push((number, vm, channel));
    }
    eprintln!(
        "{COPIES} copies after {:?}, {} bytes each if they were not shared",
        begun.elapsed(),
        frozen.copied
    );
    assert_eq!(
        drawn.len(),
        usize::from(COPIES),
        "each draws what no other does"
    );
    assert_eq!(boots.len(), usize::from(COPIES), "each has a boot's number");
    // All at once until here, none in the way of another.
    for (number, vm, channel) in guests {
        assert_eq!(sh(&channel, "cat /tmp/marker").await, "in memory");
        drop(channel);
        vm.kill().await;
        is_clean(&machine.sibling(number).disks[0].path);
    }
    eprintln!("they had written {counts:?} times");
}

/// Starts a copy and tells it that it is an hour later.
async fn copy(
    candidate: &Candidate,
    machine: &Machine,
    frozen: &Arc<Frozen>,
    number: u8,
) -> (Vm, GuestChannel) {
    let request = machine.sibling(number);
    let vm = frozen.fork(&*candidate.driver, &request).await.unwrap();
    let stream = vm.connect().await.unwrap();
    vm.resume().await.unwrap();
    let started = GuestChannel::start(stream, ChannelLimits::default()).await;
    let (channel, _doors) = started.unwrap();
    let resumed = Resume {
        now: SystemTime::now() + LATER,
        seed: [number; 32],
        fork: true,
        hostname: Some(format!("copy-{number}")),
        machine: Some([number; 16]),
    };
    channel.resumed(resumed).await.unwrap();
    (vm, channel)
}

/// No program of the guest saw a time between the moment it was held and an hour later, and its
/// clock is within a second of ours, so to speak.
async fn on_time(channel: &GuestChannel, held: u64) {
    let before = seconds(SystemTime::now() + LATER);
    let now: u64 = sh(channel, "date +%s").await.parse().unwrap();
    let after = seconds(SystemTime::now() + LATER);
    assert!(
        (before - 1..=after + 1).contains(&now),
        "{before} {now} {after}"
    );
    let begun = Instant::now();
    loop {
        let clock = sh(channel, "cat /tmp/clock").await;
        let times: Vec<u64> = clock.lines().map(|line| line.parse().unwrap()).collect();
        let odd = times
            .iter()
            .find(|time| **time > held + 1 && **time < held + LATER.as_secs());
        assert_eq!(odd, None, "held at {held}");
        if times.last().is_some_and(|last| *last > held + 1) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody goes on");
    }
}

/// What the host says of a disk that was unmounted.
fn is_clean(disk: &Path) {
    let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(disk).output();
    let checked = checked.unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}: {said}", disk.display());
}
