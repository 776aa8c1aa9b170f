//! What a volume costs: a checkpoint after one file was changed, an attachment on another node until
//! something is read from it, and an old version made the newest.
//!
//! Two daemons on loopback, each with a guest of the minimal image. A time is that of the command as
//! a user runs it, its process included.
//!
//! `cargo bench -p rhizome --bench volumes`; RHIZOME_BENCH_MIB sets the size of the volume,
//! RHIZOME_BENCH_RUNS the number of checkpoints.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/node.rs"]
mod node;

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use node::Node;
use serde_json::Value;

/// Size of the volume, in MiB.
const VOLUME_MIB: usize = 128;
/// Checkpoints that are taken.
const RUNS: usize = 5;
/// Size of one file, in MiB.
const FILE_MIB: usize = 8;
/// Most bytes that a change of 4 KiB in one file may store: its chunk, those beside it, the list that
/// names them and the directory, none larger than 256 KiB.
const MAX_CHECKPOINT_BYTES: u64 = 4 * 256 * 1024;
/// Longest time until a version is the newest again, in seconds: nothing of it is copied.
const MAX_RESTORE_SECONDS: f64 = 1.0;
const MIB: f64 = (1 << 20) as f64;

fn main() {
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    if !qemu.is_ok_and(|found| found.status.success()) {
        println!("volumes: skipped: qemu-system-x86_64 is not installed");
        return;
    }
    let mib = setting("RHIZOME_BENCH_MIB", VOLUME_MIB).max(FILE_MIB);
    let runs = setting("RHIZOME_BENCH_RUNS", RUNS).max(1);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    let images = images.to_string_lossy().into_owned();
    let start = |index| Node::start(dir.path(), index, &["--images-dir", &images]);
    let (one, other) = (start(0), start(1));
    let from = dir.path().join("from");
    fill(&from, mib);
    one.rhizome(&["init", "--name", "bench", "--space", "findings"]);
    for node in [&one, &other] {
        node.rhizome(&["sandbox", "create", "--name", "bench"]);
    }
    let from = from.to_string_lossy().into_owned();
    let (created, ()) = timed(|| drop(one.rhizome(&["volume", "create", "work", "--from", &from])));
    one.rhizome(&["volume", "attach", "work", "bench", "/work"]);

    println!("volumes: {mib} MiB in files of {FILE_MIB} MiB, medians of {runs}");
    println!("{:<44} {:>12} {:>12}", "", "measured", "limit");
    row("create from a directory, s", created, None);
    let (mut seconds, mut bytes) = (Vec::new(), Vec::new());
    for run in 0..runs {
        // Somewhere else each time.
        let script = format!(
            "dd if=/dev/urandom of=/work/file0 bs=4k count=1 seek={} conv=notrunc 2>/dev/null",
            100 + 300 * run
        );
        one.rhizome(&["sandbox", "exec", "bench", "--", "sh", "-c", &script]);
        let (took, made) = timed(|| json(&one, &["volume", "checkpoint", "work"]));
        assert_eq!(made["changed"], true, "{made}");
        seconds.push(took);
        bytes.push(made["version"]["bytes_stored"].as_u64().unwrap_or(u64::MAX) as f64);
    }
    let stored = median(&mut bytes);
    row(
        "checkpoint after 4 KiB of one file, s",
        median(&mut seconds),
        None,
    );
    row(
        "  bytes stored and sent",
        stored,
        Some(MAX_CHECKPOINT_BYTES as f64),
    );
    row(
        "  share of the volume, %",
        stored / (mib as f64 * MIB) * 100.0,
        None,
    );

    other.join(&one);
    let begun = Instant::now();
    while listed(&other)["attached"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it is not heard of"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let (read, ()) = timed(|| {
        other.rhizome(&["volume", "attach", "work", "bench", "/work", "--read-only"]);
        let last = format!("head -c 4096 /work/file{} | wc -c", mib / FILE_MIB - 1);
        let said = other.rhizome(&["sandbox", "exec", "bench", "--", "sh", "-c", &last]);
        assert_eq!(said.trim(), "4096");
    });
    let (rest, ()) = timed(|| {
        while !is_whole(&other) {
            thread::sleep(Duration::from_millis(20));
        }
    });
    row(
        "attach elsewhere to the first read, s",
        read,
        Some(read + rest),
    );
    row("  until all of it is there, s", read + rest, None);

    let log = one.rhizome(&["volume", "log", "work", "--json"]);
    let first: Value =
        serde_json::from_str(log.lines().last().unwrap_or_default()).unwrap_or_default();
    let first = first["id"]
        .as_str()
        .expect("a version has an id")
        .to_owned();
    one.rhizome(&["volume", "detach", "work"]);
    let (restored, ()) = timed(|| drop(one.rhizome(&["volume", "restore", "work", &first])));
    row("restore, s", restored, Some(MAX_RESTORE_SECONDS));
    for node in [&one, &other] {
        node.rhizome(&["down", "--sandboxes", "kill"]);
    }
}

fn setting(name: &str, default: usize) -> usize {
    let said = std::env::var(name).ok().and_then(|text| text.parse().ok());
    said.unwrap_or(default)
}

/// Writes files that neither compress nor repeat.
fn fill(dir: &Path, mib: usize) {
    fs::create_dir_all(dir).expect("a directory can be made");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..mib / FILE_MIB {
        let words = (0..(FILE_MIB << 20) / 8).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let bytes: Vec<u8> = words.collect();
        fs::write(dir.join(format!("file{number}")), bytes).expect("a file can be written");
    }
}

fn json(node: &Node, args: &[&str]) -> Value {
    let said = node.rhizome(&[args, &["--json"]].concat());
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_default()
}

fn listed(node: &Node) -> Value {
    json(node, &["volume", "list"])
}

fn is_whole(node: &Node) -> bool {
    let volume = listed(node);
    let attached = volume["attached"].as_array().cloned().unwrap_or_default();
    let mut here = attached.iter().filter(|one| one["served"] == true);
    here.any(|one| one["arrived"]["packs"] == one["arrived"]["of"])
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let done = work();
    (begun.elapsed().as_secs_f64(), done)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(what: &str, measured: f64, limit: Option<f64>) {
    let shown = |value: f64| match value >= 1000.0 {
        true => format!("{value:.0}"),
        false => format!("{value:.3}"),
    };
    let limit = limit.map_or_else(|| "-".to_owned(), shown);
    println!("{what:<44} {:>12} {limit:>12}", shown(measured));
}
