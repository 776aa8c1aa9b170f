//! What an idle daemon costs: resident memory and CPU over a minute, in a mesh of three.
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
/// Clock ticks a second in /proc/<pid>/stat; fixed by the kernel's user interface.
const TICKS: f64 = 100.0;

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
    let before: Vec<f64> = nodes.iter().map(Node::cpu_seconds).collect();
    let begun = Instant::now();
    thread::sleep(minute);
    let wall = begun.elapsed().as_secs_f64();
    println!("idle daemon, {NODES} nodes in one mesh on loopback, over {wall:.0} s");
    println!(
        "{:<8} {:>14} {:>16}",
        "node", "resident MiB", "CPU % of a core"
    );
    for (index, (node, before)) in nodes.iter().zip(before).enumerate() {
        let share = (node.cpu_seconds() - before) / wall * 100.0;
        println!("{index:<8} {:>14.1} {share:>16.2}", node.resident_mib());
    }
    println!("{:<8} {:>14} {:>16}", "limit", 80, 1);
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

    fn cpu_seconds(&self) -> f64 {
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The command name may hold spaces; the numbers follow its closing parenthesis.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |index: usize| {
            fields
                .get(index)
                .and_then(|field| field.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        (ticks(11) + ticks(12)) / TICKS
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
