//! The command line against real daemons: every verb of the memory half, text and JSON.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// A daemon of its own directory, on a port the system chooses; stopped when dropped.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn start(name: &str) -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let up = [
            "up",
            "--detach",
            "--no-sandboxes",
            "--no-mdns",
            "--bind",
            "127.0.0.1:0",
            "--name",
            name,
        ];
        let said = node.ok(&up);
        assert!(said.contains("the daemon runs as process"), "{said}");
        node
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command
            .env_remove("RHIZOME_DATA")
            .env_remove("RHIZOME_SOCKET")
            .stdin(Stdio::null());
        command
            .arg("--data-dir")
            .arg(self.data())
            .args(args)
            .output()
            .unwrap()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("node")
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Vec<Value> {
        let text = self.ok(&[args, &["--json"]].concat());
        let objects: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for object in &objects {
            assert_eq!(object["schema"], 1, "{args:?}: {object}");
        }
        objects
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn wait(&self, what: &str, mut ready: impl FnMut(&Self) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !ready(self) {
            assert!(std::time::Instant::now() < deadline, "in vain: {what}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

#[test]
fn a_node_alone_remembers_explains_and_resumes() {
    let node = Node::start("laptop");
    let before = node.refused(&["memory", "publish", "--kind", "fact", "--title", "x"]);
    assert!(before.contains("hint:"), "{before}");
    node.ok(&["init", "--name", "lab", "--space", "findings"]);
    let again = node.refused(&["init"]);
    assert!(
        again.contains("hint:") || again.contains("cause:"),
        "{again}"
    );

    let spaces = node.json(&["space", "list"]);
    assert_eq!(spaces[0]["name"], "findings");
    node.ok(&["space", "create", "other"]);
    assert!(node.ok(&["space", "list"]).contains("other"));
    node.ok(&["agent", "create", "mender", "--space", "findings"]);
    assert!(
        node.json(&["agent", "list"])
            .iter()
            .any(|agent| agent["name"] == "mender" && agent["here"] == true)
    );

    let publish = [
        "memory", "publish", "--agent", "mender", "--space", "findings", "--kind", "error",
    ];
    let rest = [
        "--title",
        "connections time out",
        "--text",
        "the pool is exhausted",
        "--tag",
        "db",
        "--task",
        "mend",
    ];
    let published = &node.json(&[&publish[..], &rest].concat())[0];
    let (id, doc) = (
        published["id"].as_str().unwrap(),
        published["doc"].as_str().unwrap(),
    );
    let hits = node.json(&["memory", "recall", "a", "connection", "timed", "out"]);
    assert_eq!(hits[0]["doc"], doc);
    assert_eq!(hits[0]["author"]["name"], "mender");
    let shown = node.ok(&["memory", "show", doc]);
    assert!(
        shown.contains("  | the pool is exhausted") && shown.contains("mender on laptop"),
        "{shown}"
    );
    assert_eq!(node.json(&["memory", "list", "--kind", "error"]).len(), 1);
    assert!(node.json(&["memory", "list", "--kind", "fix"]).is_empty());
    let watched = node.json(&["memory", "watch", "--after", "0", "--no-follow"]);
    assert!(
        watched
            .iter()
            .any(|event| event["id"] == id && event["own"] == true)
    );
    let why = node.ok(&["memory", "why", id]);
    assert!(
        why.contains("part of the view") && why.contains("genesis"),
        "{why}"
    );
    let unknown = node.refused(&[
        "memory", "publish", "--space", "findings", "--kind", "rumour", "--title", "x",
    ]);
    assert!(unknown.contains("rumour"), "{unknown}");

    let slip = node.json(&[
        "memory", "publish", "--space", "findings", "--kind", "fact", "--title", "a slip",
    ]);
    let slip = slip[0]["doc"].as_str().unwrap();
    let unasked = node.run(&["memory", "redact", slip]);
    assert_eq!(unasked.status.code(), Some(2), "nobody can be asked");
    assert!(String::from_utf8_lossy(&unasked.stderr).contains("--yes"));
    let redacted = node.ok(&["memory", "redact", slip, "--yes", "--reason", "it slipped"]);
    assert!(redacted.contains(slip), "{redacted}");
    let gone = node.refused(&["memory", "show", slip]);
    assert!(
        gone.contains("redacted by") && gone.contains("it slipped"),
        "{gone}"
    );
    let again = node.refused(&["memory", "redact", slip, "--yes"]);
    assert!(again.contains("redacted by"), "{again}");

    let checkpoint = [
        "context",
        "checkpoint",
        "--agent",
        "mender",
        "--space",
        "findings",
        "--task",
        "mend",
    ];
    let patch = [
        "--goal",
        "tests pass",
        "--explored",
        "raise the timeout => no help",
        "--error",
        "times out => close connections",
        "--next",
        "run the suite",
    ];
    node.ok(&[&checkpoint[..], &patch].concat());
    let resumed = &node.json(&["context", "resume", "--space", "findings", "--task", "mend"])[0];
    assert_eq!(resumed["goal"], "tests pass");
    assert_eq!(resumed["explored"][0]["result"], "no help");
    assert_eq!(resumed["errors"][0]["fix"], "close connections");
    assert_eq!(resumed["next"][0]["what"], "run the suite");
    assert_eq!(
        resumed["verification"]["ok"],
        resumed["verification"]["total"]
    );
    assert!(
        node.ok(&["context", "show", "--space", "findings", "--task", "mend"])
            .contains("raise the timeout => no help")
    );
    assert_eq!(node.json(&["context", "list"])[0]["task"], "mend");

    let status = node.ok(&["status"]);
    assert!(
        status.contains("mesh: lab") && status.contains("space findings: "),
        "{status}"
    );
    let second = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .arg("--data-dir")
        .arg(node.data())
        .args(["up", "--no-sandboxes", "--bind", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert!(
        stderr.contains("belongs to a running daemon") && stderr.contains("hint: "),
        "{stderr}"
    );

    node.ok(&["down"]);
    assert_eq!(node.run(&["status"]).status.code(), Some(3));
    node.ok(&[
        "up",
        "--detach",
        "--no-sandboxes",
        "--no-mdns",
        "--bind",
        "127.0.0.1:0",
    ]);
    assert_eq!(
        node.json(&["memory", "recall", "connection timed out"])[0]["doc"],
        doc
    );
}

#[test]
fn nodes_join_by_one_string_and_bad_strings_say_what_is_wrong() {
    let [laptop, cloud] = ["laptop", "cloud"].map(Node::start);
    laptop.ok(&["init", "--name", "lab", "--space", "findings"]);
    let create = ["invite", "create", "--space", "findings"];
    let invite = &laptop.json(&create)[0];
    let invite = invite["invite"].as_str().unwrap();

    let cut = cloud.refused(&["join", &invite[..invite.len() - 9]]);
    assert!(cut.contains("cut off") && cut.contains("hint:"), "{cut}");
    let mut mistyped = invite.to_owned();
    mistyped.replace_range(40..42, if &invite[40..42] == "77" { "88" } else { "77" });
    assert!(cloud.refused(&["join", &mistyped]).contains("mistyped"));
    assert!(cloud.refused(&["join", "hello"]).contains("not an invite"));
    let short = &laptop.json(&["invite", "create", "--space", "findings", "--expires", "1s"])[0];
    let short = short["invite"].as_str().unwrap().to_owned();
    laptop.wait("the invite expires", |laptop| {
        laptop
            .json(&["invite", "list"])
            .iter()
            .any(|invite| invite["state"] == "expired")
    });
    assert!(cloud.refused(&["join", &short]).contains("expired"));

    let joined = cloud.ok(&["join", invite]);
    assert!(joined.contains("joined the mesh lab as writer"), "{joined}");
    let third = Node::start("edge");
    let spent = third.refused(&["join", invite]);
    assert!(
        spent.contains("spent") || spent.contains("used up"),
        "{spent}"
    );
    assert!(laptop.ok(&["invite", "list"]).contains("spent"));

    let publish = [
        "memory",
        "publish",
        "--kind",
        "fact",
        "--title",
        "cmake 3.28 is needed",
        "--replicas",
        "1",
    ];
    laptop.ok(&publish);
    assert_eq!(
        cloud.json(&["memory", "recall", "which cmake"])[0]["node"]["name"],
        "laptop"
    );
    cloud.wait("the peer is seen", |cloud| {
        cloud.json(&["peers"]).iter().any(|peer| {
            peer["name"] == "laptop"
                && peer["state"] == "connected"
                && peer["path"]["kind"] == "direct"
        })
    });
    let table = cloud.ok(&["peers"]);
    assert!(
        table.contains("NAME") && table.contains("laptop") && table.contains("this node"),
        "{table}"
    );

    let drawn = laptop.ok(&["invite", "create", "--qr"]);
    assert!(drawn.lines().count() > 20 && drawn.contains('█'), "{drawn}");
    let offline = &laptop.json(&create)[0];
    let offline = offline["invite"].as_str().unwrap().to_owned();
    laptop.ok(&["down"]);
    let unreachable = third.refused(&["join", &offline]);
    assert!(unreachable.contains("hint:"), "{unreachable}");
    cloud.wait("cloud sees that laptop is gone", |cloud| {
        cloud.json(&["peers"]).iter().any(|peer| {
            peer["name"] == "laptop" && peer["state"] == "gone" && peer["since_ms"].is_u64()
        })
    });
}
