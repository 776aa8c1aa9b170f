//! Files of memory: the tool that models know, the routes, directories kept in step, other nodes.
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    hosts::Lan,
    remote::{done, meshed},
    sandbox::qemu_is_missing,
    support::{Daemon, code},
};

const TABLE: &str = include_str!("memory_tool.json");
const REFERENCE: &str = include_str!("memory_tool_reference.py");

/// A client of MCP with the profile `files`, over the pipe.
struct Tool {
    pipe: BufReader<UnixStream>,
    calls: u64,
}

impl Tool {
    fn open(daemon: &Daemon, query: &str) -> Self {
        let path = format!("/v1/mcp/pipe?profile=files{query}");
        let pipe = daemon
            .client()
            .upgrade(&path, "rhizome-mcp/1", &json!({}))
            .unwrap();
        let mut tool = Self {
            pipe: pipe.unwrap_or_else(|refused| panic!("{refused:?}")),
            calls: 0,
        };
        let client = json!({"name": "test", "version": "1"});
        let initialize =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        tool.ask("initialize", initialize);
        tool.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        tool
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.pipe.get_mut(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            assert!(
                self.pipe.read_line(&mut line).unwrap() > 0,
                "the pipe ended"
            );
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Calls `memory`; returns what it says, and whether that is an error.
    fn call(&mut self, arguments: &Value) -> (String, bool) {
        let result = self.ask(
            "tools/call",
            json!({"name": "memory", "arguments": arguments}),
        );
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        (text, result["isError"] == true)
    }

    fn done(&mut self, arguments: Value) -> String {
        let (text, is_error) = self.call(&arguments);
        assert!(!is_error, "{arguments}: {text}");
        text
    }
}

#[test]
fn the_tool_says_what_models_know() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(temp.path(), "laptop");
    daemon.found("findings");
    let mut tool = Tool::open(&daemon, "");
    let tools = tool.ask("tools/list", json!({}));
    let tools = tools["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!("memory")));
    let rows: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    for row in &rows {
        let (text, is_error) = tool.call(&row["call"]);
        assert_eq!(text, row["text"].as_str().unwrap(), "{}", row["call"]);
        assert_eq!(is_error, row["error"] == true, "{}", row["call"]);
    }
    let (text, is_error) = tool.call(&json!({"command": "view"}));
    assert!(is_error && text.contains("path"), "{text}");
    let (text, is_error) = tool.call(&json!({"command": "burn", "path": "/memories"}));
    assert!(is_error && text.contains("burn"), "{text}");
}

/// The same calls with the directory that Anthropic's own library keeps.
#[test]
fn the_table_is_what_the_reference_says() {
    let python = std::env::var("RHIZOME_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python)
        .args(["-c", "import anthropic.tools"])
        .output();
    if !has.is_ok_and(|has| has.status.success()) {
        println!(
            "skipped: the_table_is_what_the_reference_says: \
             pip install anthropic, and name that python in RHIZOME_TEST_PYTHON"
        );
        return;
    }
    let rows: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    let calls: Vec<&Value> = rows.iter().map(|row| &row["call"]).collect();
    let mut child = Command::new(python)
        .args(["-c", REFERENCE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(json!(calls).to_string().as_bytes())
        .unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), rows.len());
    for (row, answer) in rows.iter().zip(answers) {
        let wanted = match &row["reference"] {
            Value::Null => row,
            differs => differs,
        };
        let text = |answer: &Value| {
            let text = answer["text"].as_str().unwrap().to_owned();
            if row["directory"] == true {
                sizes_of_files(&text)
            } else {
                text
            }
        };
        assert_eq!(text(&answer), text(wanted), "{}", row["call"]);
        assert_eq!(answer["error"], wanted["error"], "{}", row["call"]);
        if row["directory"] == true {
            let (ours, theirs) = (text(row), text(&answer));
            let ours: Vec<_> = ours.lines().skip(1).collect();
            // The library has dropped a blank last line of that file.
            let theirs = theirs
                .replace("4B\t/memories/blank", "5B\t/memories/blank")
                .replace("//", "/")
                .replace("/memories/\n", "/memories\n");
            let theirs: Vec<_> = theirs.lines().skip(1).collect();
            assert_eq!(ours, theirs, "{}", row["call"]);
        }
    }
}

/// The size of a directory is its file system's to say.
fn sizes_of_files(text: &str) -> String {
    let lines = text.lines().enumerate().map(|(number, line)| {
        let is_directory = number == 1 || line.ends_with('/');
        match line.split_once('\t') {
            Some((_, path)) if is_directory => format!("\t{path}"),
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_written_as_a_file_is_found_as_a_memory() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(temp.path(), "laptop");
    daemon.found("findings");
    let mut tool = Tool::open(&daemon, "&space=findings");
    tool.done(json!({"command": "create", "path": "/memories/birds/heron.md", "file_text": "The heron stands still.\n"}));
    let hits = daemon.post("/v1/recall", json!({"query": "heron stands"}));
    let hit = &hits["hits"][0];
    assert_eq!(
        (&hit["kind"], &hit["title"]),
        (&json!("file"), &json!("/memories/birds/heron.md"))
    );
    assert_eq!(hit["text"], "The heron stands still.\n");
    assert_eq!(
        hit["author"]["name"],
        daemon.get("/v1/self")["agent"]["name"]
    );
    let why = daemon.get(&format!("/v1/why/{}", hit["id"].as_str().unwrap()));
    assert_eq!(why["kind"], "file", "{why}");
    let shown = daemon.get(&format!("/v1/memory/{}", hit["doc"].as_str().unwrap()));
    assert_eq!(shown["text"], hit["text"], "{shown}");
    let listed = daemon.get("/v1/memory?kind=file");
    assert_eq!(listed["memories"].as_array().unwrap().len(), 1);
    let told = tool.ask("tools/call", json!({"name": "memory", "arguments": {"command": "view", "path": "/memories/birds/heron.md"}}));
    assert_eq!(told["_meta"]["rhizome/file"]["id"], hit["id"], "{told}");

    tool.done(json!({"command": "delete", "path": "/memories/birds"}));
    let hits = daemon.post("/v1/recall", json!({"query": "heron stands"}));
    assert_eq!(hits["hits"], json!([]));
    assert_eq!(daemon.get("/v1/memory")["memories"], json!([]));
}

#[test]
fn routes_do_what_the_tool_does_and_refuse_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(temp.path(), "laptop");
    daemon.found("findings");
    let mut client = daemon.client();
    let (status, put) = client
        .put("/v1/file?path=/memories/a.md", b"one\ntwo\n")
        .unwrap();
    assert_eq!((status, &put["text"]), (200, &json!("one\ntwo\n")), "{put}");
    let edit = |edit: Value| daemon.ask("POST", "/v1/file", Some(json!({ "edit": edit })));
    let (status, done) =
        edit(json!({"op": "insert", "path": "/memories/a.md", "line": 1, "text": "between"}));
    assert_eq!(
        (status, &done["text"]),
        (200, &json!("one\nbetween\ntwo\n"))
    );
    let base = "one\ntwo\n";
    let merged = edit(
        json!({"op": "merge", "path": "/memories/a.md", "base": base, "text": "zero\none\ntwo\n"}),
    );
    assert_eq!(merged.1["text"], "zero\none\nbetween\ntwo\n", "{merged:?}");
    let files = daemon.get("/v1/files?path=/memories");
    assert_eq!(files["files"][0]["path"], "/memories/a.md", "{files}");
    assert_eq!(
        daemon.get("/v1/file?path=/memories/a.md")["memory"]["id"],
        files["files"][0]["id"]
    );
    let refused = |wanted: (u16, &str), answer: (u16, Value)| {
        assert_eq!((answer.0, code(&answer)), wanted, "{answer:?}");
    };
    refused(
        (409, "exists"),
        edit(json!({"op": "create", "path": "/memories/a.md", "text": ""})),
    );
    refused(
        (409, "no_match"),
        edit(json!({"op": "replace", "path": "/memories/a.md", "old": "x", "new": "y"})),
    );
    refused(
        (409, "ambiguous"),
        edit(json!({"op": "replace", "path": "/memories/a.md", "old": "o", "new": "y"})),
    );
    refused(
        (409, "changed"),
        edit(json!({"op": "delete", "path": "/memories/a.md", "only_if": "other"})),
    );
    refused(
        (409, "not_directory"),
        edit(json!({"op": "create", "path": "/memories/a.md/b", "text": ""})),
    );
    refused(
        (404, "not_found"),
        edit(json!({"op": "delete", "path": "/memories/b"})),
    );
    refused(
        (413, "too_large"),
        edit(json!({"op": "write", "path": "/memories/b", "text": "x".repeat(128 * 1024 + 1)})),
    );
    for path in [
        "/etc/passwd",
        "/memories/../x",
        "/memories/%2e%2e/x",
        "/memoriesX",
        "/memories/a\u{0}b",
    ] {
        refused(
            (400, "bad_path"),
            edit(json!({"op": "write", "path": path, "text": ""})),
        );
    }
    let (status, gone) = daemon.ask("DELETE", "/v1/file?path=/memories/a.md", None);
    assert_eq!((status, &gone["files"]), (200, &json!(1)), "{gone}");
    refused(
        (404, "not_found"),
        daemon.ask("GET", "/v1/file?path=/memories/a.md", None),
    );
}

#[test]
fn a_move_that_broke_off_goes_on_when_asked_again() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(temp.path(), "laptop");
    daemon.found("findings");
    let mut tool = Tool::open(&daemon, "");
    for name in ["a", "b", "c"] {
        tool.done(json!({"command": "create", "path": format!("/memories/old/{name}"), "file_text": name}));
    }
    tool.done(
        json!({"command": "rename", "old_path": "/memories/old", "new_path": "/memories/new"}),
    );
    // As a crash would leave it: one file is back in its old place with its text, the new one says
    // where it came from.
    tool.done(json!({"command": "create", "path": "/memories/old/b", "file_text": "b"}));
    tool.done(
        json!({"command": "rename", "old_path": "/memories/old", "new_path": "/memories/new"}),
    );
    let files = daemon.get("/v1/files");
    let paths: Vec<_> = files["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].clone())
        .collect();
    assert_eq!(
        json!(paths),
        json!(["/memories/new/a", "/memories/new/b", "/memories/new/c"])
    );
    assert_eq!(
        daemon.get("/v1/file?path=/memories/new/b")["memory"]["text"],
        "b"
    );
    let (text, is_error) = tool.call(
        &json!({"command": "rename", "old_path": "/memories/new", "new_path": "/memories/new/x"}),
    );
    assert!(is_error, "{text}");
}

#[test]
fn lines_put_at_the_top_on_two_nodes_while_apart_both_stand() {
    let temp = tempfile::tempdir().unwrap();
    let lan = Lan::of(&["laptop", "cloud"]);
    if let Err(why) = lan.can_cut() {
        eprintln!("skipped lines_put_at_the_top_on_two_nodes_while_apart_both_stand: {why}");
        return;
    }
    let start = |name: &str| lan.start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud] = meshed(["laptop", "cloud"].map(start));
    let path = "/memories/notes.md";
    Tool::open(&laptop, "")
        .done(json!({"command": "create", "path": path, "file_text": "common\n"}));
    until(&cloud, path, |text| text == "common\n");
    lan.cut("laptop", "cloud");
    let insert = |text: &str| json!({"command": "insert", "path": path, "insert_line": 0, "insert_text": text});
    Tool::open(&laptop, "").done(insert("from the laptop"));
    Tool::open(&cloud, "").done(insert("from the cloud"));
    until(&laptop, path, |text| text == "from the laptop\ncommon\n");
    until(&cloud, path, |text| text == "from the cloud\ncommon\n");
    lan.heal("laptop", "cloud");
    let both = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines == ["common", "from the cloud", "from the laptop"] && text.ends_with("common\n")
    };
    let (here, there) = (until(&laptop, path, both), until(&cloud, path, both));
    assert_eq!(here, there);
}

fn until(daemon: &Daemon, path: &str, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, file) = daemon.ask("GET", &format!("/v1/file?path={path}"), None);
        let text = file["memory"]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if wanted(&text) {
            return text;
        }
        assert!(Instant::now() < deadline, "{path} says {text:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_directory_is_kept_in_step_both_ways() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let daemon = Daemon::start(&data, "laptop");
    daemon.found("findings");
    let dir = temp.path().join("notes");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/a.md"), "one\ntwo\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
    let files = |verb: &str| {
        run(
            &data,
            &["memory", "files", verb, dir.to_str().unwrap(), "--json"],
        )
    };
    let did = files("sync");
    assert_eq!(
        did[0],
        json!({"schema": 1, "path": "/memories/sub/a.md", "did": "pushed"})
    );
    assert_eq!(did[1]["path"], "link", "{did:?}");
    let mut tool = Tool::open(&daemon, "");
    let insert = |line: i64, text: &str| json!({"command": "insert", "path": "/memories/sub/a.md", "insert_line": line, "insert_text": text});
    tool.done(insert(0, "zero"));
    tool.done(json!({"command": "create", "path": "/memories/b.md", "file_text": "b\n"}));
    fs::write(dir.join("sub/a.md"), "one\ntwo\nthree\n").unwrap();
    let did = files("sync");
    assert_eq!(
        (&did[0]["did"], &did[1]["did"]),
        (&json!("pulled"), &json!("merged"))
    );
    assert_eq!(fs::read_to_string(dir.join("b.md")).unwrap(), "b\n");
    let merged = "zero\none\ntwo\nthree\n";
    assert_eq!(fs::read_to_string(dir.join("sub/a.md")).unwrap(), merged);
    until(&daemon, "/memories/sub/a.md", |text| text == merged);

    // A line that both change is there twice; a deletion does not take an edit with it.
    fs::write(dir.join("sub/a.md"), "zero\none\nTWO\nthree\n").unwrap();
    tool.done(json!({"command": "str_replace", "path": "/memories/sub/a.md", "old_str": "two", "new_str": "zwei"}));
    fs::remove_file(dir.join("b.md")).unwrap();
    tool.done(json!({"command": "insert", "path": "/memories/b.md", "insert_line": 0, "insert_text": "more"}));
    files("sync");
    let both = fs::read_to_string(dir.join("sub/a.md")).unwrap();
    for line in ["zero", "one", "TWO", "zwei", "three"] {
        assert!(both.lines().any(|found| found == line), "{both}");
    }
    assert_eq!(fs::read_to_string(dir.join("b.md")).unwrap(), "more\nb\n");
    assert_eq!(
        files("sync").len(),
        1,
        "nothing is left to do but to tell of the link"
    );

    // What is gone on one side goes on the other; only the side that may change does.
    fs::remove_file(dir.join("b.md")).unwrap();
    tool.done(json!({"command": "delete", "path": "/memories/sub/a.md"}));
    files("pull");
    assert!(!dir.join("sub/a.md").exists());
    assert_eq!(
        daemon.get("/v1/files")["files"][0]["path"],
        "/memories/b.md"
    );
    files("push");
    assert_eq!(daemon.get("/v1/files")["files"], json!([]));
    assert!(!fs::read_to_string("/etc/passwd").unwrap().is_empty());
}

/// Runs the command line and returns its lines of JSON.
fn run(data: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .arg("--data-dir")
        .arg(data)
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}{said}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_directory_of_a_sandbox_is_kept_in_step_and_its_door_has_the_files() {
    if qemu_is_missing("a_directory_of_a_sandbox_is_kept_in_step_and_its_door_has_the_files") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let daemon = Daemon::start_with_sandboxes(&data, "laptop");
    daemon.found("findings");
    daemon.post("/v1/agents", json!({"name": "mender"}));
    let bench = json!({"name": "bench", "agent": "mender", "spaces": ["findings"]});
    done(&daemon, "/v1/sandboxes", bench);
    let mut client = daemon.client();
    let (status, put) = client
        .put("/v1/file?path=/memories/a.md", b"one\ntwo\n")
        .unwrap();
    assert_eq!(status, 200, "{put}");
    let sync = || {
        run(
            &data,
            &["memory", "files", "sync", "--sandbox", "bench", "--json"],
        )
    };
    assert_eq!(sync()[0]["did"], "pulled");
    let script = "cat /memories/a.md && echo three >> /memories/a.md && mkdir /memories/sub \
                  && echo new > /memories/sub/b.md && ln -s /etc/passwd /memories/link";
    let (out, err, end) = crate::sandbox::run(&daemon, &["sh", "-c", script]);
    assert_eq!(out, "one\ntwo\n", "{err} {end}");
    client
        .put("/v1/file?path=/memories/a.md", b"zero\none\ntwo\n")
        .unwrap();
    let did = sync();
    assert_eq!(
        (&did[0]["did"], &did[1]["did"]),
        (&json!("merged"), &json!("pushed")),
        "{did:?}"
    );
    assert_eq!(did[2]["path"], "link");
    let all = "zero\none\ntwo\nthree\n";
    until(&daemon, "/memories/a.md", |text| text == all);
    until(&daemon, "/memories/sub/b.md", |text| text == "new\n");
    let (out, _, _) = crate::sandbox::run(&daemon, &["cat", "/memories/a.md"]);
    assert_eq!(out, all);
    daemon.ask("DELETE", "/v1/file?path=/memories/a.md", None);
    assert_eq!(sync()[0]["did"], "deleted here");
    let (_, _, end) = crate::sandbox::run(&daemon, &["test", "-e", "/memories/a.md"]);
    assert_eq!(end["code"], 1, "{end}");

    // Through its door a guest has the files of its own space, as its own agent.
    let door = "wget -q -O - \"$RHIZOME_URL/v1/file?path=/memories/sub/b.md\"";
    let (out, err, _) = crate::sandbox::run(&daemon, &["sh", "-c", door]);
    assert!(out.contains("\"text\":\"new\\n\""), "{out}{err}");
}
