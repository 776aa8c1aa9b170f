//! What an idle daemon costs: resident memory, CPU and wake-ups over a minute, in a mesh of three.
//!
//! CPU time is what the scheduler counted in nanoseconds. The ticks in /proc/<pid>/stat will not
//! do: a timer ends at a tick, so that the tick finds at work whoever it woke, and charges it for
//! the whole of it.
//!
//! `cargo bench -p rhizome --bench idle`; RHIZOME_BENCH_SECONDS shortens the minute.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/node.rs"]
mod node;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use node::Node;

const NODES: usize = 3;

fn main() {
    let seconds = std::env::var("RHIZOME_BENCH_SECONDS")
        .ok()
        .and_then(|value| value.parse().ok());
    let minute = Duration::from_secs(seconds.unwrap_or(60));
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let nodes: Vec<Node> = (0..NODES)
        .map(|index| Node::start(dir.path(), index, &[]))
        .collect();
    nodes[0].rhizome(&["init", "--name", "bench", "--space", "findings"]);
    for node in &nodes[1..] {
        node.join(&nodes[0]);
    }
    // What joining costs is not idling.
    thread::sleep(Duration::from_secs(5));
    let before: Vec<Used> = nodes.iter().map(Node::used).collect();
    let begun = Instant::now();
    thread::sleep(minute);
    let wall = begun.elapsed().as_secs_f64();
    println!("idle daemon, {NODES} nodes in one mesh on loopback, over {wall:.0} s");
    println!(
        "{:<8} {:>14} {:>16} {:>14}",
        "node", "resident MiB", "CPU % of a core", "wake-ups/s"
    );
    for (index, (node, before)) in nodes.iter().zip(before).enumerate() {
        let used = node.used();
        let share = (used.cpu_seconds - before.cpu_seconds) / wall * 100.0;
        let wakes = (used.wakes - before.wakes) / wall;
        println!(
            "{index:<8} {:>14.1} {share:>16.2} {wakes:>14.1}",
            node.resident_mib()
        );
    }
    println!("{:<8} {:>14} {:>16}", "limit", 80, 1);
}

/// What the threads of a daemon have used.
#[derive(Default)]
struct Used {
    cpu_seconds: f64,
    wakes: f64,
}

impl Node {
    fn used(&self) -> Used {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut used = Used::default();
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let nanos = read("schedstat");
            let nanos: Option<f64> = nanos.split(' ').next().and_then(|n| n.parse().ok());
            used.cpu_seconds += nanos.unwrap_or_default() / 1e9;
            let status = read("status");
            let slept = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let slept: Option<f64> = slept.and_then(|slept| slept.trim().parse().ok());
            used.wakes += slept.unwrap_or_default();
        }
        used
    }

    fn resident_mib(&self) -> f64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap_or_default();
        line.trim()
            .trim_end_matches(" kB")
            .parse::<f64>()
            .unwrap_or(0.0)
            / 1024.0
    }
}
