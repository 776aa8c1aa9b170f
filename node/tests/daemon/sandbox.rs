//! A real microVM behind the API: commands, files, and the door from inside.
use std::{
    io::{BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    network::its_owner_says_what_a_sandbox_may_reach,
    support::{Daemon, code},
};

pub(crate) fn qemu_is_missing(test: &str) -> bool {
    let probe = Command::new("qemu-system-x86_64")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if probe.is_ok_and(|status| status.success()) {
        return false;
    }
    eprintln!(
        "skipped {test}: qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)"
    );
    true
}

pub(crate) struct Exec(BufReader<UnixStream>);

impl Exec {
    pub(crate) fn start(daemon: &Daemon, body: &Value) -> Result<Self, (u16, Value)> {
        Self::start_at(daemon, "/v1/sandboxes/bench/exec", body)
    }

    /// As [`Self::start`], of any sandbox, also of another node's.
    pub(crate) fn start_at(
        daemon: &Daemon,
        path: &str,
        body: &Value,
    ) -> Result<Self, (u16, Value)> {
        let upgraded = daemon.client().upgrade(path, "rhizome-exec/1", body);
        upgraded.unwrap().map(Self)
    }

    pub(crate) fn send(&mut self, kind: u8, payload: &[u8]) {
        let mut frame = vec![kind];
        frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        self.0.get_mut().write_all(&frame).unwrap();
    }

    pub(crate) fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize];
        self.0.read_exact(&mut payload).unwrap();
        (head[0], payload)
    }

    /// Returns standard output, standard error, and how it ended.
    pub(crate) fn finish(mut self) -> (String, String, Value) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match self.receive() {
                (16, bytes) => out.extend(bytes),
                (17, bytes) => err.extend(bytes),
                (18, bytes) => {
                    let text = |bytes| String::from_utf8(bytes).unwrap();
                    return (
                        text(out),
                        text(err),
                        serde_json::from_slice(&bytes).unwrap(),
                    );
                }
                (kind, _) => panic!("a daemon does not send frames of kind {kind}"),
            }
        }
    }
}

pub(crate) fn run(daemon: &Daemon, argv: &[&str]) -> (String, String, Value) {
    Exec::start(daemon, &json!({"argv": argv}))
        .unwrap()
        .finish()
}

/// What a memory relies on is checked against the sandbox of whoever recalls it.
fn a_reader_is_told_what_does_not_hold_in_its_runtime(daemon: &Daemon, made: &Value) {
    let fact = json!({
        "kind": "fact",
        "space": "findings",
        "title": "the parser wants a new python",
        "requires": ["python3 >= 99", "env:PATH"],
    });
    daemon.post("/v1/memory", fact.clone());
    let (out, err, _) = run(daemon, &["rhizome", "memory", "recall", "parser python"]);
    let broken = "DOES NOT HOLD HERE: `python3>=99` does not hold: it is not there";
    assert!(out.contains(broken), "{out}{err}");
    assert!(!out.contains("`env:PATH`"), "{out}");
    let mut nonsense = fact;
    nonsense["requires"] = json!(["python3 >> 3"]);
    let refused = daemon.ask("POST", "/v1/memory", Some(nonsense));
    assert_eq!((refused.0, code(&refused)), (400, "bad_request"));

    let hash = made["fingerprint_hash"].as_str().unwrap();
    let told = daemon.get("/v1/runtimes");
    assert_eq!(told["runtimes"][0]["hash"], hash, "{told}");
    let shown = daemon.get(&format!("/v1/runtimes/{}", &hash[..12]));
    assert_eq!(shown["fingerprint"], made["fingerprint"]);
    let same = daemon.get(&format!("/v1/runtimes/{hash}/differences/bench"));
    assert_eq!(same["differences"], json!([]));
}

/// The audit log names who did what to the sandbox, refusals included, and nothing was read.
fn what_was_done_is_written_down(daemon: &Daemon, made: &Value) {
    let log = daemon.get("/v1/audit?after=0&limit=1000");
    assert_eq!(log["broken_at"], Value::Null);
    let entries = log["entries"].as_array().unwrap();
    let find = |action: &str, outcome: &str| {
        let is = |e: &&Value| e["action"] == action && e["outcome"] == outcome;
        entries
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("no {action} {outcome} in {log}"))
    };
    assert_eq!(find("mesh.init", "ok")["who"]["kind"], "owner");
    assert_eq!(find("sandbox.create", "ok")["on"], made["id"]);
    find("sandbox.create", "name_taken");
    let exec = find("sandbox.exec", "started");
    assert_eq!(
        (&exec["on"], &exec["detail"]),
        (
            &json!("bench"),
            &json!("rhizome memory recall parser python")
        )
    );
    assert!(
        entries.iter().all(|e| e["action"] != "memory.create"),
        "{log}"
    );
}

#[test]
fn a_sandbox_works_for_its_agent_alone() {
    if qemu_is_missing("a_sandbox_works_for_its_agent_alone") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = Daemon::start_with_sandboxes(&dir, "laptop");
    daemon.found("findings");
    daemon.post("/v1/spaces", json!({"name": "secrets"}));
    daemon.post("/v1/agents", json!({"name": "mender"}));
    let create = json!({"name": "bench", "agent": "mender", "spaces": ["findings"]});
    let (status, lines) = daemon
        .client()
        .ask_bytes("POST", "/v1/sandboxes", Some(create.clone()))
        .unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, 200, "{lines}");
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let made = &last["done"];
    assert_eq!(
        (&made["state"], &made["agent"]["name"]),
        (&json!("ready"), &json!("mender")),
        "{last}"
    );
    assert_eq!(made["spaces"][0]["name"], "findings");
    assert!(made["fingerprint"]["kernel"].is_string(), "{made}");
    let (_, taken) = daemon
        .client()
        .ask_bytes("POST", "/v1/sandboxes", Some(create))
        .unwrap();
    assert!(String::from_utf8(taken).unwrap().contains("\"name_taken\""));
    a_reader_is_told_what_does_not_hold_in_its_runtime(&daemon, made);
    its_owner_says_what_a_sandbox_may_reach(&daemon);

    // Input, both outputs, the code.
    let body = json!({"argv": ["sh", "-c", "cat; echo no >&2; exit 7"], "stdin": true});
    let mut exec = Exec::start(&daemon, &body).unwrap();
    exec.send(0, b"hello ");
    exec.send(0, b"guest\n");
    exec.send(1, b"");
    let said = exec.finish();
    assert_eq!(
        said,
        ("hello guest\n".into(), "no\n".into(), json!({"code": 7}))
    );
    // A signal, and a time limit.
    let mut exec = Exec::start(
        &daemon,
        &json!({"argv": ["sh", "-c", "echo up; sleep 600"]}),
    )
    .unwrap();
    assert_eq!(exec.receive(), (16, b"up\n".to_vec()));
    exec.send(2, &15_i32.to_be_bytes());
    assert_eq!(exec.finish().2, json!({"signal": 15}));
    let limited = json!({"argv": ["sleep", "600"], "timeout_ms": 200});
    assert_eq!(
        Exec::start(&daemon, &limited).unwrap().finish().2,
        json!("timed_out")
    );
    // A client that goes away takes its command with it.
    let mut exec = Exec::start(
        &daemon,
        &json!({"argv": ["sh", "-c", "echo up; exec sleep 77777"]}),
    )
    .unwrap();
    assert_eq!(exec.receive(), (16, b"up\n".to_vec()));
    drop(exec);
    while run(&daemon, &["sh", "-c", "ps | grep -v grep | grep 77777"]).2 == json!({"code": 0}) {}
    let missing = Exec::start(&daemon, &json!({"argv": ["nosuch"]}))
        .err()
        .unwrap();
    assert_eq!(
        (missing.0, code(&missing)),
        (404, "no_such_program"),
        "{missing:?}"
    );
    let plain = daemon.ask(
        "POST",
        "/v1/sandboxes/bench/exec",
        Some(json!({"argv": ["true"]})),
    );
    assert_eq!((plain.0, code(&plain)), (426, "upgrade_required"));

    // Files, both ways.
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut client = daemon.client();
    let (status, written) = client
        .put("/v1/sandboxes/bench/file?path=/root/big&mode=600", &bytes)
        .unwrap();
    assert_eq!(
        (status, &written["bytes"]),
        (200, &json!(bytes.len())),
        "{written}"
    );
    let (status, back) = client
        .ask_bytes("GET", "/v1/sandboxes/bench/file?path=/root/big", None)
        .unwrap();
    assert_eq!(status, 200);
    assert!(
        back == bytes,
        "{} bytes came back of {}",
        back.len(),
        bytes.len()
    );
    let stat = daemon.get("/v1/sandboxes/bench/stat?path=/root/big");
    assert_eq!(
        (&stat["kind"], &stat["mode"]),
        (&json!("file"), &json!(0o600)),
        "{stat}"
    );
    client
        .put("/v1/sandboxes/bench/dir?path=/root/a", b"")
        .unwrap();
    let entries = daemon.get("/v1/sandboxes/bench/dir?path=/root");
    let names: Vec<_> = entries["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["name"])
        .collect();
    assert!(
        names.contains(&&json!("a")) && names.contains(&&json!("big")),
        "{entries}"
    );
    let nothing = daemon.ask("GET", "/v1/sandboxes/bench/file?path=/nothing", None);
    assert_eq!((nothing.0, code(&nothing)), (404, "no_such_file"));
    let relative = daemon.ask("GET", "/v1/sandboxes/bench/file?path=nothing", None);
    assert_eq!((relative.0, code(&relative)), (400, "bad_request"));

    // The door: the guest has the words, the node has the signature and the stamps.
    let (_, err, end) = run(
        &daemon,
        &[
            "rhizome",
            "memory",
            "publish",
            "--kind",
            "fix",
            "--title",
            "from inside",
        ],
    );
    assert_eq!(end, json!({"code": 0}), "{err}");
    let listed = daemon.get("/v1/memory?space=findings");
    let memory = &listed["memories"][0];
    assert_eq!(
        (&memory["title"], &memory["author"]["name"]),
        (&json!("from inside"), &json!("mender"))
    );
    assert_eq!(memory["fields"]["rhizome.sandbox"], made["id"]);
    assert_eq!(memory["fingerprint"], made["fingerprint_hash"]);
    let elsewhere = [
        "rhizome", "memory", "publish", "--kind", "fix", "--title", "x", "--space", "secrets",
    ];
    let (_, err, end) = run(&daemon, &elsewhere);
    assert_ne!(end, json!({"code": 0}));
    assert!(err.contains("not among those of this sandbox"), "{err}");
    assert_eq!(
        daemon.get("/v1/memory?space=secrets")["memories"],
        json!([])
    );

    its_agent_speaks_mcp(&daemon, made);

    // After the end, everything says so.
    let (status, _) = daemon.ask("DELETE", "/v1/sandboxes/bench", None);
    assert_eq!(status, 200);
    let gone = Exec::start(&daemon, &json!({"argv": ["true"]}))
        .err()
        .unwrap();
    assert!(
        matches!(code(&gone), "sandbox_gone" | "unknown_sandbox"),
        "{gone:?}"
    );
    what_was_done_is_written_down(&daemon, made);
    daemon.stop();
}

/// A client of MCP inside the sandbox starts `rhizome mcp` and speaks to the node through the door.
fn its_agent_speaks_mcp(daemon: &Daemon, made: &Value) {
    let body = json!({"argv": ["rhizome", "mcp", "--profile", "native,files"], "stdin": true});
    let mut exec = Exec::start(daemon, &body).unwrap();
    let mut said = Vec::new();
    let mut ask = |exec: &mut Exec, id: u64, method: &str, params: Value| -> Value {
        let asked = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        exec.send(0, format!("{asked}\n").as_bytes());
        loop {
            if let Some(end) = said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = said.drain(..=end).collect();
                let answer: Value = serde_json::from_slice(&line).unwrap();
                if answer["id"] == id {
                    return answer["result"].clone();
                }
                continue;
            }
            match exec.receive() {
                (16, bytes) => said.extend(bytes),
                (kind, bytes) => panic!("{kind}: {}", String::from_utf8_lossy(&bytes)),
            }
        }
    };
    let hello = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "inside", "version": "1"},
    });
    let server = ask(&mut exec, 1, "initialize", hello);
    assert_eq!(server["serverInfo"]["name"], "rhizome", "{server}");
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    exec.send(0, format!("{told}\n").as_bytes());
    let tools = ask(&mut exec, 2, "tools/list", json!({}));
    let tools = tools["tools"].as_array().unwrap().iter();
    let tools: Vec<_> = tools.map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(
        tools.contains(&"remember") && tools.contains(&"memory"),
        "{tools:?}"
    );
    // Sandboxes are not for those who are in one.
    assert!(!tools.contains(&"sandbox"), "{tools:?}");
    let mut call = |id, tool: &str, arguments: Value| {
        let asked = json!({"name": tool, "arguments": arguments});
        ask(&mut exec, id, "tools/call", asked)
    };
    let kept = call(3, "remember", json!({"title": "said by MCP from inside"}));
    let doc = kept["structuredContent"]["doc"]
        .as_str()
        .unwrap_or_else(|| panic!("{kept}"));
    let memory = daemon.get(&format!("/v1/memory/{doc}"));
    assert_eq!(memory["author"]["name"], "mender");
    assert_eq!(memory["fields"]["rhizome.sandbox"], made["id"]);
    let elsewhere = call(4, "recall", json!({"query": "MCP", "space": "secrets"}));
    assert_eq!(elsewhere["isError"], true, "{elsewhere}");
    // A client that says no more is how it ends.
    exec.send(1, b"");
    assert_eq!(exec.finish().2, json!({"code": 0}));
    let refused = run(daemon, &["rhizome", "mcp", "--space", "secrets"]);
    assert_eq!(refused.2, json!({"code": 1}));
    assert!(
        refused.1.contains("not among those of this sandbox"),
        "{refused:?}"
    );
}

#[test]
fn a_guests_end_ends_its_commands() {
    if qemu_is_missing("a_guests_end_ends_its_commands") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with_sandboxes(&temp.path().join("node"), "laptop");
    daemon
        .client()
        .ask_bytes("POST", "/v1/sandboxes", Some(json!({"name": "bench"})))
        .unwrap();
    let mut exec = Exec::start(
        &daemon,
        &json!({"argv": ["sh", "-c", "echo up; sleep 600"]}),
    )
    .unwrap();
    assert_eq!(exec.receive(), (16, b"up\n".to_vec()));
    // Whichever thread of the daemon has started it.
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let monitor: String = threads
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap())
        .collect();
    let killed = Command::new("kill")
        .arg("-9")
        .args(monitor.split_whitespace())
        .status()
        .unwrap();
    assert!(killed.success());
    let (_, _, end) = exec.finish();
    assert_eq!(end["error"]["code"], "sandbox_gone", "{end}");
    daemon.stop();
}
