//! MCP as its clients have it: the SDK's client over `rhizome mcp`, plain HTTP, and the public clients
//! where they are installed.
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rmcp::{
    RoleClient, ServiceExt, model::CallToolRequestParams, service::RunningService,
    transport::async_rw::AsyncRwTransport,
};
use serde_json::{Value, json};

use crate::support::{Daemon, command};

/// How long an answer may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// `rhizome mcp` as a client of MCP starts it.
struct Served {
    service: RunningService<RoleClient, ()>,
    _child: tokio::process::Child,
}

impl Served {
    async fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .arg("--data-dir")
            .arg(&daemon.dir)
            .arg("mcp")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (output, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let transport = AsyncRwTransport::<RoleClient, _, _>::new(output, input);
        let service = ().serve(transport).await.unwrap();
        Self {
            service,
            _child: child,
        }
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> Result<Value, String> {
        let arguments = arguments.as_object().unwrap().clone();
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self.service.call_tool(request).await.unwrap();
        match result.is_error {
            Some(true) => Err(result.content[0].as_text().unwrap().text.clone()),
            _ => Ok(result.structured_content.unwrap()),
        }
    }

    async fn ok(&self, tool: &'static str, arguments: Value) -> Value {
        self.call(tool, arguments).await.unwrap()
    }
}

/// A session of streamable HTTP, spoken by hand.
struct Http {
    to: To,
    query: &'static str,
    token: Option<String>,
    session: Option<String>,
    id: u64,
}

enum To {
    Socket(PathBuf),
    Tcp(String),
}

type Answer = (u16, BTreeMap<String, String>, Vec<u8>);

impl Http {
    fn new(to: To, query: &'static str, token: Option<String>) -> Self {
        Self {
            to,
            query,
            token,
            session: None,
            id: 0,
        }
    }

    fn send(&self, method: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!(
            "{method} /mcp{} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.query,
            body.len()
        );
        let defaults = [
            ("host", "localhost"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let known = defaults
            .into_iter()
            .filter(|(name, _)| headers.iter().all(|(its, _)| its != name));
        let bearer = bearer
            .iter()
            .map(|bearer| ("authorization", bearer.as_str()));
        let session = self
            .session
            .iter()
            .map(|id| ("mcp-session-id", id.as_str()));
        for (name, value) in known
            .chain(bearer)
            .chain(session)
            .chain(headers.iter().copied())
        {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let request = [head.as_bytes(), b"\r\n", body].concat();
        match &self.to {
            To::Socket(path) => exchange(UnixStream::connect(path).unwrap(), &request),
            To::Tcp(address) => exchange(TcpStream::connect(address).unwrap(), &request),
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let body = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        let (status, headers, bytes) = self.send("POST", &[], body.to_string().as_bytes());
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(status, 200, "{method}: {text}");
        if let Some(id) = headers.get("mcp-session-id") {
            self.session = Some(id.clone());
        }
        let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages
            .find(|message| message["id"] == json!(self.id))
            .unwrap_or_else(|| panic!("{text}"))
    }

    fn begin(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "by hand", "version": "1"},
        });
        let answer = self.ask("initialize", params);
        assert_eq!(
            answer["result"]["serverInfo"]["name"], "rhizome",
            "{answer}"
        );
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.send("POST", &[], told.to_string().as_bytes()).0, 202);
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        let result = answer["result"].clone();
        assert_ne!(result["isError"], true, "{answer}");
        result["structuredContent"].clone()
    }
}

fn exchange(mut stream: impl Read + Write, request: &[u8]) -> Answer {
    // Who refuses a request by its head may close before the rest comes.
    let _ = stream.write_all(request);
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line
        .split(' ')
        .nth(1)
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = Vec::new();
    // A connection that was closed over unread input is reset; what was said stands.
    let _ = reader.read_to_end(&mut body);
    (status, headers, body)
}

fn two_spaces(dir: &Path) -> Daemon {
    let daemon = Daemon::start(dir, "desk");
    daemon.found("findings");
    daemon.post("/v1/spaces", json!({"name": "secrets"}));
    daemon
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_at_once_meet_only_where_their_scopes_do() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_spaces(&dir.path().join("a"));
    let one = Served::start(&daemon, &["--space", "findings"]).await;
    let other = Served::start(&daemon, &["--space", "secrets"]).await;
    let tools = one.service.list_all_tools().await.unwrap();
    assert!(
        tools.len() <= 10 && tools.iter().any(|tool| tool.name == "recall"),
        "{tools:?}"
    );
    for number in 0..8 {
        let (open, closed) = (
            format!("open door {number}"),
            format!("closed door {number}"),
        );
        tokio::join!(
            one.ok("remember", json!({ "title": open })),
            other.ok("remember", json!({ "title": closed })),
        );
    }
    let socket = daemon.dir.join("api.sock");
    let (here, there) = tokio::join!(
        one.ok("recall", json!({"query": "door", "limit": 50})),
        other.ok("recall", json!({"query": "door", "limit": 50})),
    );
    let in_http = tokio::task::spawn_blocking(move || {
        let mut http = Http::new(To::Socket(socket), "?space=secrets", None);
        http.begin();
        http.call("recall", json!({"query": "door", "limit": 50}))
    });
    let in_http = in_http.await.unwrap();
    for (found, mine) in [(&here, "open"), (&there, "closed"), (&in_http, "closed")] {
        let hits = found["hits"].as_array().unwrap();
        assert_eq!(hits.len(), 8, "{hits:?}");
        for hit in hits {
            assert!(hit["title"].as_str().unwrap().starts_with(mine), "{hit}");
        }
    }
    let refused = one
        .call("recall", json!({"query": "door", "space": "secrets"}))
        .await;
    assert!(refused.unwrap_err().contains("unknown field `space`"));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_one_node_is_resumed_on_another_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = Daemon::start(&dir.path().join("a"), "first");
    first.found("findings");
    let second = Daemon::start(&dir.path().join("b"), "second");
    let invite = first.post("/v1/invites", json!({"spaces": ["findings"]}));
    second.post("/v1/mesh/join", json!({"invite": invite["invite"]}));
    let there = Served::start(&second, &["--task", "mend"]).await;
    {
        let here = Served::start(&first, &["--task", "mend"]).await;
        let saved = json!({
            "action": "checkpoint", "goal": "tests pass", "next": ["run the tests"],
            "decisions": [{"what": "pin isodate", "why": "0.7 breaks"}],
        });
        here.ok("context", saved).await;
    }
    // Until the other has it.
    let begun = std::time::Instant::now();
    while let Err(said) = there.call("context", json!({"action": "show"})).await {
        assert!(begun.elapsed() < PATIENCE, "{said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.kill();
    let resumed = there.ok("context", json!({"action": "resume"})).await;
    let context = &resumed["context"];
    assert_eq!(context["goal"], "tests pass", "{resumed}");
    assert_eq!(context["decisions"][0]["why"], "0.7 breaks");
    assert_eq!(context["decisions"][0]["by"]["name"], "first");
    let checked = &context["verification"];
    assert_eq!(
        (&checked["total"], &checked["ok"]),
        (&json!(1), &json!(1)),
        "{checked}"
    );
    there
        .ok(
            "context",
            json!({"action": "checkpoint", "status": "mended"}),
        )
        .await;
    second.stop();
}

#[test]
fn what_clients_may_send_over_http_has_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_spaces(&dir.path().join("a"));
    let socket = daemon.dir.join("api.sock");
    let mut http = Http::new(To::Socket(socket.clone()), "", None);
    http.begin();
    let post = |headers: &[(&str, &str)], body: &[u8]| http.send("POST", headers, body).0;
    assert_eq!(
        post(&[], b"{ not json"),
        415,
        "what is no JSON is refused by its type"
    );
    assert_eq!(post(&[("origin", "http://evil.example")], b"{}"), 403);
    assert_eq!(post(&[("content-type", "text/plain")], b"{}"), 415);
    assert_eq!(post(&[("accept", "application/json")], b"{}"), 406);
    assert_eq!(post(&[], &vec![b' '; 5 * 1024 * 1024]), 413);
    let mut stranger = Http::new(To::Socket(socket.clone()), "", None);
    stranger.session = Some("00000000-0000-0000-0000-000000000000".into());
    let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(
        stranger.send("POST", &[], asked.to_string().as_bytes()).0,
        404
    );
    let unknown = Http::new(To::Socket(socket.clone()), "?profile=nativ", None);
    let (status, _, body) = unknown.send("POST", &[], b"{}");
    assert_eq!(status, 400, "{}", String::from_utf8_lossy(&body));
    assert!(String::from_utf8_lossy(&body).contains("nativ"));
    // A session that was ended is gone.
    assert!(matches!(http.send("DELETE", &[], b"").0, 200 | 202 | 204));
    assert_eq!(http.send("POST", &[], asked.to_string().as_bytes()).0, 404);
    // So many sessions and no more; the daemon goes on.
    let mut full = None;
    for _ in 0..70 {
        let mut one = Http::new(To::Socket(socket.clone()), "", None);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        one.id = 1;
        let (status, _, answer) = one.send("POST", &[], body.to_string().as_bytes());
        if status != 200 {
            full = Some((status, String::from_utf8(answer).unwrap()));
            break;
        }
    }
    let (status, said) = full.expect("there is a bound");
    assert_eq!(status, 429, "{said}");
    assert!(said.contains("too_many_sessions"), "{said}");
    daemon.stop();
}

#[test]
fn a_token_reaches_its_spaces_and_nothing_else_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let data = dir.path().join("a");
    let mut up = command(&data, "desk");
    up.args(["--no-sandboxes", "--api"])
        .arg(format!("127.0.0.1:{port}"));
    let daemon = Daemon::spawn(up, &data);
    daemon.found("findings");
    daemon.post("/v1/spaces", json!({"name": "secrets"}));
    daemon.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "the port", "space": "secrets"}),
    );
    let agent = daemon.post("/v1/agents", json!({"name": "mender"}));
    assert_eq!(agent["name"], "mender", "{agent}");
    let made = daemon.post(
        "/v1/tokens",
        json!({"name": "t", "agent": "mender", "spaces": ["findings"]}),
    );
    let token = made["secret"]
        .as_str()
        .unwrap_or_else(|| panic!("{made}"))
        .to_owned();
    let to = || To::Tcp(format!("127.0.0.1:{port}"));
    assert_eq!(Http::new(to(), "", None).send("POST", &[], b"{}").0, 401);
    let mut http = Http::new(to(), "", Some(token.clone()));
    assert_eq!(http.send("POST", &[("host", "evil.example")], b"{}").0, 403);
    http.begin();
    assert_eq!(
        http.call("recall", json!({"query": "port"})),
        json!({"hits": []})
    );
    let kept = http.call("remember", json!({"title": "the door"}));
    let shown = daemon.get(&format!("/v1/memory/{}", kept["doc"].as_str().unwrap()));
    assert_eq!(shown["author"]["name"], "mender");
    let listed = http.ask("tools/list", json!({}));
    let names = listed["result"]["tools"].to_string();
    assert!(
        names.contains("recall") && !names.contains("hibernate"),
        "{names}"
    );
    // A query narrows, and never widens.
    for query in ["?space=secrets", "?agent=desk"] {
        let wider = Http::new(to(), query, Some(token.clone()));
        let (status, _, body) = wider.send("POST", &[], b"{}");
        assert_eq!(status, 403, "{query}: {}", String::from_utf8_lossy(&body));
    }
    daemon.stop();
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn installing_shows_asks_and_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    std::fs::create_dir(home.join(".cursor")).unwrap();
    let file = home.join(".cursor/mcp.json");
    let before = "{\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\"}\n  }\n}\n";
    std::fs::write(&file, before).unwrap();
    let rhizome = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .args(arguments)
            .env("HOME", home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("RHIZOME_DATA")
            .current_dir(home)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), said(done.stdout), said(done.stderr))
    };
    let (code, shown, _) = rhizome(&["mcp", "install", "cursor", "--dry-run"]);
    assert_eq!(code, Some(0));
    assert!(shown.contains("+    \"rhizome\": {"), "{shown}");
    let (code, _, said) = rhizome(&["mcp", "install", "cursor"]);
    assert_eq!(code, Some(2), "nobody was there to say yes: {said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    let (code, said, _) = rhizome(&[
        "--json", "mcp", "install", "cursor", "--yes", "--space", "findings",
    ]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &said["action"]),
        (Some(0), &json!("added")),
        "{said}"
    );
    let backup = said["backup"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(backup).unwrap(), before);
    let now: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(now["mcpServers"]["other"]["command"], "x");
    assert_eq!(
        now["mcpServers"]["rhizome"]["args"],
        json!(["mcp", "--space", "findings"])
    );
    let (_, listed, _) = rhizome(&["--json", "mcp", "install", "--list"]);
    let cursor = listed
        .lines()
        .find(|line| line.contains("\"cursor\""))
        .unwrap();
    assert!(cursor.contains("\"installed\""), "{cursor}");
    let (code, ..) = rhizome(&["mcp", "uninstall", "cursor", "--yes"]);
    assert_eq!(code, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    // Comments would be lost: left alone, with what to paste.
    let zed = home.join(".config/zed/settings.json");
    std::fs::create_dir_all(zed.parent().unwrap()).unwrap();
    std::fs::write(&zed, "{\n  // mine\n  \"theme\": \"dark\",\n}\n").unwrap();
    let (code, _, said) = rhizome(&["mcp", "install", "zed", "--yes"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("by hand") && said.contains("context_servers"),
        "{said}"
    );
    assert!(std::fs::read_to_string(&zed).unwrap().contains("// mine"));
    let (code, ..) = rhizome(&["mcp", "install", "codex", "--yes"]);
    assert_eq!(code, Some(0));
    let toml = std::fs::read_to_string(home.join(".codex/config.toml")).unwrap();
    assert!(
        toml.starts_with("[mcp_servers.rhizome]\nargs = [\"mcp\"]\ncommand = \""),
        "{toml}"
    );
}

/// Says that a public client is not here, and that nothing was tested with it.
fn skipped(what: &str, install: &str) {
    eprintln!("skipped: {what}: {install}");
}

#[test]
fn the_official_python_client_lists_and_calls_every_tool() {
    let python = std::env::var("RHIZOME_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python)
        .args(["-c", "import mcp.client.stdio"])
        .output()
        .is_ok_and(|done| done.status.success());
    if !there {
        return skipped(
            "Python `mcp`",
            "pip install mcp, and name its python in RHIZOME_TEST_PYTHON",
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_spaces(&dir.path().join("a"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/mcp_stdio.py");
    let done = Command::new(&python)
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_rhizome"))
        .arg(&daemon.dir)
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    daemon.stop();
}

#[test]
fn the_inspector_lists_and_calls_every_tool() {
    if std::env::var_os("RHIZOME_TEST_NPX").is_none() {
        return skipped(
            "MCP inspector",
            "set RHIZOME_TEST_NPX=1 to fetch it with npx",
        );
    }
    let inspector = || {
        let mut command = Command::new("npx");
        command.args(["-y", "@modelcontextprotocol/inspector", "--cli"]);
        command.stdin(Stdio::null());
        command
    };
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_spaces(&dir.path().join("a"));
    let run = |arguments: &[&str]| {
        let mut command = inspector();
        command
            .arg(env!("CARGO_BIN_EXE_rhizome"))
            .arg("--data-dir")
            .arg(&daemon.dir);
        command
            .args(["mcp", "--space", "findings"])
            .args(arguments)
            .output()
    };
    let listed = run(&["--method", "tools/list"]).unwrap().stdout;
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["tools"].as_array().unwrap().len(), 8, "{listed}");
    let call = |tool: &str, arguments: &[&str]| -> Value {
        let mut all = vec!["--method", "tools/call", "--tool-name", tool];
        for argument in arguments {
            all.extend(["--tool-arg", argument]);
        }
        let done = run(&all).unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{tool}: {said}");
        let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_ne!(answer["isError"], true, "{tool}: {answer}");
        answer["structuredContent"].clone()
    };
    let kept = call("remember", &["title=the door sticks", "kind=fact"]);
    let doc = kept["doc"].as_str().unwrap();
    assert_eq!(call("recall", &["query=door"])["hits"][0]["doc"], doc);
    call("feedback", &[&format!("doc={doc}"), "verdict=helped"]);
    call(
        "supersede",
        &[&format!("doc={doc}"), "title=the door is mended"],
    );
    call("why", &[&format!("id={doc}")]);
    call("watch", &["cursor=0"]);
    call(
        "context",
        &["action=checkpoint", "task=door", "goal=mend it"],
    );
    daemon.stop();
}
