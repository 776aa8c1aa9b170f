//! What a sandbox costs who asks for one: from `create` to the end of its first command, and a
//! command's round trip after that, through E2B's SDK and through our command line, each on a node
//! with a pool of guests that wait and on one without.
//!
//! `cargo bench -p rhizome --bench e2b`; RHIZOME_BENCH_CREATES and RHIZOME_BENCH_RUNS make it
//! shorter. The SDK is that of `$RHIZOME_TEST_PYTHON` (`pip install e2b`), or of `python3`.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/node.rs"]
mod node;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use node::Node;
use serde_json::Value;

/// Prints how long creating with a first command took, and each command after that, in seconds.
const PYTHON: &str = r#"
import json, sys, time
from e2b import Sandbox

def timed(call):
    begun = time.perf_counter()
    result = call()
    return time.perf_counter() - begun, result

def create():
    sandbox = Sandbox.create("base", timeout=600)
    sandbox.commands.run("true")
    return sandbox

creates, runs = [], []
for number in range(int(sys.argv[1])):
    seconds, sandbox = timed(create)
    creates.append(seconds)
    if number + 1 == int(sys.argv[1]):
        for _ in range(int(sys.argv[2])):
            runs.append(timed(lambda: sandbox.commands.run("true"))[0])
    sandbox.kill()
print(json.dumps({"creates": creates, "runs": runs}))
"#;

fn main() {
    let number = |name: &str, default: usize| {
        let value = std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok());
        value.unwrap_or(default)
    };
    let creates = number("RHIZOME_BENCH_CREATES", 10);
    let runs = number("RHIZOME_BENCH_RUNS", 50);
    let python = python();
    if python.is_none() {
        println!("skipped: E2B's SDK: pip install e2b, and name its python in RHIZOME_TEST_PYTHON");
    }
    println!("{creates} sandboxes of `debian` one after the other, {runs} commands in the last");
    println!(
        "{:<14} {:<13} {:<26} {:>9} {:>9} {:>9}",
        "way in", "node", "what", "p50 ms", "p99 ms", "worst ms"
    );
    for (pool, node) in [(0, "without pool"), (2, "with pool")] {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let door = Door::open(dir.path(), pool);
        if let Err(why) = door.build_image() {
            return println!("skipped: the image `debian`: {why}");
        }
        if pool > 0 {
            door.warm();
        }
        if let Some(python) = &python {
            let (created, ran) = door.through_the_sdk(python, creates, runs);
            report("SDK (Python)", node, "create to first command", created);
            report("", "", "commands.run(\"true\")", ran);
        }
        let (created, ran) = door.through_the_command_line(creates, runs);
        report("command line", node, "create to first command", created);
        report("", "", "sandbox exec -- true", ran);
        let (_, ran) = door.as_the_sdk_runs_it(runs);
        report("", "", "the same by `bash -l -c`", ran);
    }
}

fn report(way: &str, node: &str, what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let millis = |at: usize| {
        times
            .get(at)
            .map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    let last = times.len().saturating_sub(1);
    println!(
        "{way:<14} {node:<13} {what:<26} {:>9.0} {:>9.0} {:>9.0}",
        millis(last / 2),
        millis(last * 99 / 100),
        millis(last)
    );
}

/// Returns a Python that has the SDK.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("RHIZOME_TEST_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let has = Command::new(&python)
        .args(["-c", "import e2b"])
        .stderr(Stdio::null())
        .status();
    has.is_ok_and(|status| status.success()).then_some(python)
}

/// A node at whose E2B door sandboxes are asked for.
struct Door {
    node: Node,
    url: String,
}

impl Door {
    fn open(dir: &Path, pool: usize) -> Self {
        let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
        let (images, size) = (images.to_string_lossy().into_owned(), pool.to_string());
        let more = ["--e2b", "127.0.0.1:0", "--pool", &size, "--images-dir"];
        let node = Node::start(dir, pool, &[&more[..], &[&images]].concat());
        let status: Value =
            serde_json::from_str(&node.rhizome(&["status", "--json"])).expect("the status is JSON");
        let url = status["e2b"].as_str().expect("the door listens").to_owned();
        Self { node, url }
    }

    fn build_image(&self) -> Result<(), String> {
        let built = self.node.output(&["image", "build", "debian"]);
        match built.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
        }
    }

    /// Has a guest wait for sandboxes of the size that all of them have.
    fn warm(&self) {
        self.node
            .rhizome(&["sandbox", "pool", "warm", "--image", "debian"]);
    }

    fn through_the_sdk(
        &self,
        python: &Path,
        creates: usize,
        runs: usize,
    ) -> (Vec<Duration>, Vec<Duration>) {
        let output = Command::new(python)
            .args(["-c", PYTHON, &creates.to_string(), &runs.to_string()])
            .env("E2B_API_KEY", "anything")
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url)
            .stdin(Stdio::null())
            .output()
            .expect("python starts");
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{failed}");
        let told: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let times = |name: &str| {
            let seconds = told[name].as_array().expect("times are a list").iter();
            seconds
                .filter_map(Value::as_f64)
                .map(Duration::from_secs_f64)
                .collect()
        };
        (times("creates"), times("runs"))
    }

    fn through_the_command_line(
        &self,
        creates: usize,
        runs: usize,
    ) -> (Vec<Duration>, Vec<Duration>) {
        let (mut created, mut ran) = (Vec::new(), Vec::new());
        for number in 0..creates {
            let name = format!("bench{number}");
            created.push(timed(|| {
                self.node
                    .rhizome(&["sandbox", "create", "--image", "debian", "--name", &name]);
                self.node.rhizome(&["sandbox", "exec", &name, "--", "true"]);
            }));
            if number + 1 == creates {
                let run =
                    || timed(|| drop(self.node.rhizome(&["sandbox", "exec", &name, "--", "true"])));
                ran.extend((0..runs).map(|_| run()));
            }
            self.node.rhizome(&["sandbox", "kill", &name]);
        }
        (created, ran)
    }

    /// Runs `true` as the SDK does: in a login shell.
    fn as_the_sdk_runs_it(&self, runs: usize) -> (Duration, Vec<Duration>) {
        let create = ["sandbox", "create", "--image", "debian", "--name", "shell"];
        let created = timed(|| drop(self.node.rhizome(&create)));
        let exec = ["sandbox", "exec", "shell", "--", "bash", "-l", "-c", "true"];
        let ran = (0..runs).map(|_| timed(|| drop(self.node.rhizome(&exec))));
        let ran = ran.collect();
        self.node.rhizome(&["sandbox", "kill", "shell"]);
        (created, ran)
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

impl Drop for Door {
    fn drop(&mut self) {
        self.node.output(&["down", "--sandboxes", "kill"]);
    }
}
