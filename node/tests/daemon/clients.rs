//! Clients that others wrote, and ours in Python, against a real daemon.
//!
//! Each looks for what it needs and says by name what it skips. `$RHIZOME_TEST_PYTHON` names a Python
//! with public clients (`make acceptance` makes one).
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::json;

use crate::support::{Daemon, command};

/// A daemon over TCP too, with a token.
struct Node {
    daemon: Daemon,
    url: String,
    token: String,
    _temp: tempfile::TempDir,
}

impl Node {
    fn start(sandboxes: bool) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("one");
        let mut up = command(&dir, "one");
        up.args(["--api", "127.0.0.1:0"]);
        match sandboxes {
            true => up
                .arg("--images-dir")
                .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images")),
            false => up.arg("--no-sandboxes"),
        };
        let daemon = Daemon::spawn(up, &dir);
        daemon.found("findings");
        daemon.post("/v1/spaces", json!({"name": "private"}));
        let status = daemon.get("/v1/status");
        let address = status["api"].as_str().expect("it listens over TCP");
        let body = json!({"name": "test", "spaces": ["findings"], "sandboxes": sandboxes});
        let made = daemon.post("/v1/tokens", body);
        Self {
            url: format!("http://{address}"),
            token: made["secret"].as_str().unwrap().to_owned(),
            daemon,
            _temp: temp,
        }
    }

    /// Returns `command` with the way to this node in its environment.
    fn told(&self, mut command: Command) -> Command {
        command
            .env("RHIZOME_TEST_URL", &self.url)
            .env("RHIZOME_TEST_TOKEN", &self.token)
            .env("RHIZOME_TEST_SOCKET", self.daemon.dir.join("api.sock"))
            .env("RHIZOME_TEST_PROGRAM", env!("CARGO_BIN_EXE_rhizome"))
            .env("PYTHONPATH", root().join("clients/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        command
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Python: the one that is named, or the machine's.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("RHIZOME_TEST_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let version = Command::new(&python)
        .args(["-c", "import sys; sys.exit(sys.version_info < (3, 10))"])
        .status();
    version
        .is_ok_and(|status| status.success())
        .then_some(python)
}

/// Python with the module `name`, or a line that says what is skipped.
fn python_with(test: &str, name: &str, package: &str) -> Option<PathBuf> {
    let Some(python) = python() else {
        eprintln!("skipped: {test}: install python3 (3.10 or newer)");
        return None;
    };
    let found = Command::new(&python)
        .args(["-c", &format!("import {name}")])
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    eprintln!("skipped: {test}: pip install {package}, or run `make acceptance`");
    None
}

fn succeeds(mut command: Command) -> String {
    let output = command.output().expect("the program starts");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn the_python_client_is_made_from_the_document() {
    let Some(python) = python() else {
        return eprintln!("skipped: clients/python: install python3 (3.10 or newer)");
    };
    let mut check = Command::new(python);
    check
        .arg(root().join("clients/python/tools/generate.py"))
        .arg("--check");
    succeeds(check);
}

#[test]
fn the_python_client_works_with_a_daemon() {
    let Some(python) = python() else {
        return eprintln!("skipped: clients/python: install python3 (3.10 or newer)");
    };
    let node = Node::start(false);
    let mut tests = node.told(Command::new(python));
    tests
        .current_dir(root().join("clients/python"))
        .args(["-m", "unittest", "discover", "-s", "tests", "-t", ".", "-v"]);
    let said = succeeds(tests);
    assert!(said.contains("test_remember_and_recall"), "{said}");
    assert!(said.contains("OK"), "{said}");
}

#[test]
fn the_python_client_works_in_sandboxes() {
    let Some(python) = python() else {
        return eprintln!("skipped: clients/python: install python3 (3.10 or newer)");
    };
    let node = Node::start(true);
    let doctor = node.daemon.get("/v1/status");
    if doctor["sandboxes"]["available"] != true {
        return eprintln!("skipped: sandboxes of clients/python: see `rhizome doctor`");
    }
    let mut tests = node.told(Command::new(python));
    tests
        .env("RHIZOME_TEST_SANDBOXES", "1")
        .current_dir(root().join("clients/python"))
        .args(["-m", "unittest", "-v", "tests.test_sandboxes"]);
    let said = succeeds(tests);
    assert!(said.contains("OK") && !said.contains("skipped="), "{said}");
}

/// Schemathesis makes requests of the document, good and bad ones, and compares the answers with it.
#[test]
fn no_request_of_a_token_is_answered_otherwise_than_the_document_says() {
    let test = "schemathesis";
    let Some(python) = python_with(test, "schemathesis", "schemathesis") else {
        return;
    };
    let program = python.with_file_name("schemathesis");
    let program = match program.is_file() {
        true => program,
        false => "schemathesis".into(),
    };
    let node = Node::start(false);
    node.daemon.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "something to find", "space": "findings"}),
    );
    let mut run = node.told(Command::new(program));
    run.current_dir(node.daemon.dir.parent().unwrap())
        .arg("run")
        .arg(root().join("docs/openapi.json"))
        .args(["--url", &node.url])
        .args(["-H", &format!("Authorization: Bearer {}", node.token)])
        // Streams that follow have no end, and other callers have other routes.
        .args(["--exclude-path", "/v1/watch"])
        .args(["--exclude-path-regex", "^/mcp|^/v1/mcp"])
        .args(["--include-path-regex", "^/v1/(self|memory|recall|why|context|openapi|sandboxes)"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"])
        .args(["--max-examples", "15", "--seed", "7", "--rate-limit", "90/s"])
        .args(["--phases", "examples,coverage,fuzzing"]);
    let said = succeeds(run);
    eprintln!("{said}");
}

#[test]
fn the_examples_run_with_recorded_models() {
    let Some(python) = python() else {
        return eprintln!("skipped: examples: install python3 (3.10 or newer)");
    };
    let node = Node::start(false);
    for (name, module, package) in [
        ("scripted.py", "json", ""),
        ("anthropic_memory.py", "anthropic", "anthropic"),
        ("openai_agents.py", "agents", "openai-agents"),
        ("langgraph_store.py", "langgraph", "langgraph"),
    ] {
        if python_with(name, module, package).is_none() {
            continue;
        }
        let mut example = node.told(Command::new(&python));
        example
            .env("RHIZOME_URL", &node.url)
            .env("RHIZOME_TOKEN", &node.token)
            .arg(root().join("clients/examples").join(name))
            .arg("--recorded");
        let said = succeeds(example);
        assert!(said.contains("done"), "{name}: {said}");
    }
}
