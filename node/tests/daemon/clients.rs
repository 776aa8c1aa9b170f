//! Clients that others wrote, and ours in Python, against a real daemon.
//!
//! Each looks for what it needs and says by name what it skips. `$RHIZOME_TEST_PYTHON` names a Python
//! with public clients (`make acceptance` makes one).
use std::{
    io,
    net::{Shutdown, TcpListener},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
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
        // Images are kept between runs.
        let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
        match sandboxes {
            true => Self::with(&["--images-dir", images.to_str().unwrap()]),
            false => Self::with(&["--no-sandboxes"]),
        }
    }

    fn with(flags: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("one");
        let mut up = command(&dir, "one");
        up.args(["--api", "127.0.0.1:0"]).args(flags);
        let sandboxes = !flags.contains(&"--no-sandboxes");
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

/// Schemathesis, which makes requests of the document, good and bad ones, and compares the answers
/// with it, on all routes but those of `without`; `None` if it is not here.
fn schemathesis(node: &Node, url: &str, without: &[&str]) -> Option<Command> {
    let python = python_with("schemathesis", "schemathesis", "schemathesis")?;
    let program = python.with_file_name("schemathesis");
    let program = match program.is_file() {
        true => program,
        false => "schemathesis".into(),
    };
    node.daemon.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "something to find", "space": "findings"}),
    );
    let mut run = node.told(Command::new(program));
    run.current_dir(node.daemon.dir.parent().unwrap())
        .arg("run")
        .arg(root().join("docs/openapi.json"))
        .args(["--url", url])
        // Streams that follow have no end, and MCP is spoken by its own suite.
        .args(["--exclude-path", "/v1/watch"])
        .args(["--exclude-path-regex", &[&["^/mcp|^/v1/mcp"][..], without].concat().join("|")])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"])
        .args(["--seed", "7", "--phases", "examples,coverage,fuzzing"]);
    Some(run)
}

/// What a token may ask.
const OF_TOKENS: &str = "^/v1/(self|memory|recall|why|context|openapi|sandboxes)";

#[test]
fn no_request_of_a_token_is_answered_otherwise_than_the_document_says() {
    let node = Node::start(false);
    let Some(mut run) = schemathesis(&node, &node.url, &[]) else {
        return;
    };
    run.args(["--include-path-regex", OF_TOKENS])
        .args(["-H", &format!("Authorization: Bearer {}", node.token)])
        .args(["--max-examples", "15", "--rate-limit", "90/s"]);
    eprintln!("{}", succeeds(run));
}

/// The rest of the routes, which the owner of the node may ask.
#[test]
fn no_request_of_the_owner_is_answered_otherwise_than_the_document_says() {
    // Its images are its own: some of the requests remove what nothing needs.
    let node = Node::with(&[]);
    let url = over_tcp(node.daemon.dir.join("api.sock"));
    let mut without = vec![
        OF_TOKENS,
        // It would end the test's own daemon.
        "^/v1/down$",
        // They boot guests, and change the machine.
        "^/v1/(doctor|pool)",
        // They read and write files of the machine, wherever they are told to.
        "^/v1/(snapshots|images|volumes).*/(import|export)$",
        // Other nodes and guests ask those.
        "^/v1/(remote|net)/",
    ];
    if node.daemon.get("/v1/status")["sandboxes"]["available"] != true {
        eprintln!("skipped: schemathesis: routes of sandboxes: see `rhizome doctor`");
        without.push("^/v1/(images|secrets|snapshots|volumes|resume|wake)");
    }
    let Some(mut run) = schemathesis(&node, &url, &without) else {
        return;
    };
    run.args(["--max-examples", "10"]);
    eprintln!("{}", succeeds(run));
    assert_eq!(node.daemon.get("/v1/status")["node"]["name"], "one");
}

/// Carries what comes to a port of this machine to a socket, for programs that know no sockets;
/// returns its address.
fn over_tcp(socket: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for tcp in listener.incoming() {
            let (Ok(tcp), Ok(unix)) = (tcp, UnixStream::connect(&socket)) else {
                return;
            };
            let (mut from, mut to) = (tcp.try_clone().unwrap(), unix.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let (mut from, mut to) = (unix, tcp);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    format!("http://{address}")
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
