//! The clients that E2B publishes, unmodified, against a real daemon and real guests.
//!
//! Each is looked for, and skipped by name where it is missing; `make acceptance` installs them all.
//! `$RHIZOME_TEST_PYTHON` has the newest Python client, `$RHIZOME_TEST_E2B/<version>` an older one
//! (`pip install --target`), and below `$RHIZOME_TEST_NPM` are the JavaScript client and the command
//! line (`npm install --prefix`).
use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use super::wire::{Door, debian_is_missing, start};
use crate::{sandbox::qemu_is_missing, support::Daemon};

/// A daemon that has the image these clients ask for.
struct Node {
    daemon: Daemon,
    url: String,
    home: tempfile::TempDir,
}

impl Node {
    fn start(test: &str, more: &[&str]) -> Option<Self> {
        if qemu_is_missing(test) {
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let daemon = start(&home.path().join("node"), more);
        if debian_is_missing(test, &daemon) {
            return None;
        }
        let url = format!("http://{}", Door::of(&daemon).0);
        Some(Self { daemon, url, home })
    }

    /// Runs a client that is told the way to this node.
    fn run(&self, command: &mut Command) -> Output {
        let output = command
            .env("E2B_API_KEY", "anything")
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url)
            .env("E2B_VOLUME_API_URL", &self.url)
            // What a client keeps for its user is none of this user's.
            .env("HOME", self.home.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .output();
        output.expect("the client starts")
    }

    /// Runs a client that has to succeed, and returns what it said.
    fn succeeds(&self, command: &mut Command) -> String {
        let output = self.run(command);
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}{failed}");
        said.into_owned()
    }
}

fn skipped(test: &str, install: &str) {
    eprintln!("skipped: {test}: {install}, or run `make acceptance`");
}

fn probe(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/acceptance/e2b")
        .join(name)
}

fn python() -> Command {
    let python = std::env::var_os("RHIZOME_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    Command::new(python)
}

fn has(command: &mut Command) -> bool {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// The newest Python client, `AsyncSandbox` and the code interpreter, from a pool.
#[test]
fn the_probes_pass_with_python() {
    let name = "the_probes_pass_with_python";
    if !has(python().args(["-c", "import e2b_code_interpreter"])) {
        let install =
            "pip install e2b e2b-code-interpreter, and name that python in RHIZOME_TEST_PYTHON";
        return skipped(name, install);
    }
    let Some(node) = Node::start(name, &["--pool", "2"]) else {
        return;
    };
    node.succeeds(python().arg(probe("probe_python.py")));
    node.daemon.stop();
}

#[test]
fn the_probes_pass_with_python_2_50() {
    older_python("the_probes_pass_with_python_2_50", "2.50.0");
}

#[test]
fn the_probes_pass_with_python_2_20() {
    older_python("the_probes_pass_with_python_2_20", "2.20.0");
}

fn older_python(name: &str, version: &str) {
    let packages = std::env::var_os("RHIZOME_TEST_E2B")
        .map(|all| Path::new(&all).join(version))
        .unwrap_or_default();
    let older = || {
        let mut python = python();
        python.env("PYTHONPATH", &packages);
        python
    };
    let is_it = format!(
        "import e2b, importlib.metadata as m, sys; sys.exit(m.version('e2b') != '{version}')"
    );
    if !has(older().args(["-c", &is_it])) {
        let install = format!(
            "pip install --target DIR/{version} e2b=={version}, and name DIR in RHIZOME_TEST_E2B"
        );
        return skipped(name, &install);
    }
    let Some(node) = Node::start(name, &[]) else {
        return;
    };
    let said = node.succeeds(older().arg(probe("probe_python_old.py")));
    assert!(said.contains(&format!("e2b {version}")), "{said}");
    node.daemon.stop();
}

/// Returns what `npm install` put below `$RHIZOME_TEST_NPM`, if it is there.
fn installed(test: &str, package: &str, within: &str) -> Option<PathBuf> {
    let modules = std::env::var_os("RHIZOME_TEST_NPM")
        .map(|prefix| Path::new(&prefix).join("node_modules"))
        .filter(|modules| modules.join(within).exists());
    if modules.is_none() || !has(Command::new("node").arg("--version")) {
        let install =
            format!("npm install --prefix DIR {package}, and name DIR in RHIZOME_TEST_NPM");
        skipped(test, &install);
        return None;
    }
    modules
}

#[test]
fn the_probes_pass_with_javascript() {
    let name = "the_probes_pass_with_javascript";
    let Some(modules) = installed(name, "e2b", "e2b/package.json") else {
        return;
    };
    let Some(node) = Node::start(name, &[]) else {
        return;
    };
    // Modules are looked for beside the program that wants them.
    let beside = node.home.path().join("probe.mjs");
    std::fs::copy(probe("probe_js.mjs"), &beside).unwrap();
    std::os::unix::fs::symlink(modules, node.home.path().join("node_modules")).unwrap();
    node.succeeds(Command::new("node").arg(beside));
    node.daemon.stop();
}

#[test]
fn the_official_command_line_makes_lists_runs_and_ends() {
    let name = "the_official_command_line_makes_lists_runs_and_ends";
    let Some(modules) = installed(name, "@e2b/cli", ".bin/e2b") else {
        return;
    };
    let Some(node) = Node::start(name, &[]) else {
        return;
    };
    let cli = |arguments: &[&str]| {
        let mut command = Command::new(modules.join(".bin/e2b"));
        command.arg("sandbox").args(arguments);
        command
    };
    let listed = || {
        let said = node.succeeds(&mut cli(&["list", "--format", "json"]));
        let all: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
        let ids = all.as_array().unwrap().iter();
        ids.map(|item| item["sandboxId"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(listed().is_empty());
    let made = node.succeeds(&mut cli(&["create", "--detach", "base"]));
    let all = listed();
    let [id] = &all[..] else {
        panic!("{made}: {all:?}");
    };
    assert!(made.contains(&id[..]), "{made}");
    let hi = node.succeeds(&mut cli(&["exec", id, "--", "echo", "hi"]));
    assert_eq!(hi.trim(), "hi");
    // How the command ended is how it ends.
    let failed = node.run(&mut cli(&["exec", id, "--", "exit", "3"]));
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    node.succeeds(&mut cli(&["kill", id]));
    assert!(listed().is_empty());
    node.daemon.stop();
}

#[test]
fn volumes_work_with_python() {
    let name = "volumes_work_with_python";
    if !has(python().args(["-c", "from e2b import Volume"])) {
        return skipped(
            name,
            "pip install e2b, and name that python in RHIZOME_TEST_PYTHON",
        );
    }
    let Some(node) = Node::start(name, &[]) else {
        return;
    };
    node.daemon.found("findings");
    node.succeeds(python().arg(probe("probe_volumes.py")));
    node.daemon.stop();
}
