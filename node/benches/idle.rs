//! What an idle daemon costs: resident memory, CPU and wake-ups over a minute, in a mesh of three.
//!
//! CPU time is what the scheduler counted in nanoseconds. The ticks in /proc/<pid>/stat will not
//! do: a timer ends at a tick, so that the tick finds at work whoever it woke, and charges it for
//! the whole of it.
//!
//! `cargo bench -p rhizome --bench idle`; RHIZOME_BENCH_SECONDS shortens the minute.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const NODES: usize = 3;

fn main() {
    let seconds = std::env::var("RHIZOME_BENCH_SECONDS")
        .ok()
        .and_then(|value| value.parse().ok());
    let minute = Duration::from_secs(seconds.unwrap_or(60));
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let nodes: Vec<Node> = (0..NODES)
        .map(|index| Node::start(dir.path(), index))
        .collect();
    nodes[0].rhizome(&["init", "--name", "bench", "--space", "findings"]);
    let invite = nodes[0].rhizome(&["invite", "create", "--space", "findings", "--uses", "9"]);
    let invite = invite
        .lines()
        .find(|line| line.starts_with("RHZ1"))
        .expect("an invite is printed")
        .to_owned();
    for node in &nodes[1..] {
        node.rhizome(&["join", &invite]);
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

struct Node {
    child: Child,
    data_dir: String,
}

impl Node {
    fn start(dir: &Path, index: usize) -> Self {
        let data_dir = dir
            .join(format!("node{index}"))
            .to_string_lossy()
            .into_owned();
        let child = Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .args([
                "--data-dir",
                &data_dir,
                "up",
                "--bind",
                "127.0.0.1:0",
                "--no-mdns",
            ])
            .args(["--name", &format!("node{index}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let node = Self { child, data_dir };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node
            .command(&["status"])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            assert!(Instant::now() < deadline, "the daemon does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        node
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command.args(["--data-dir", &self.data_dir]).args(args);
        command
    }

    fn rhizome(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("the command runs");
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

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

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
