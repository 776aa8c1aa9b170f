//! What a call costs by each way in: `remember` and `recall` through MCP on standard streams, MCP over
//! HTTP and the plain API, one call after the other, on one node with 10,000 memories; and the
//! reference memory server doing the same calls, if it is installed.
//!
//! `cargo bench -p rhizome --bench mcp`; RHIZOME_BENCH_MEMORIES and RHIZOME_BENCH_CALLS make it
//! shorter. The reference server is fetched with npx if RHIZOME_TEST_NPX is set. It keeps its memories
//! in one file that it writes anew with every call.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const WORDS: [&str; 24] = [
    "parser", "timeout", "cache", "socket", "lease", "volume", "kernel", "index", "retry", "token",
    "merge", "branch", "deploy", "schema", "queue", "thread", "buffer", "cursor", "mirror",
    "ledger", "router", "signal", "bundle", "shard",
];

fn main() {
    let number = |name: &str, default: usize| {
        let value = std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok());
        value.unwrap_or(default)
    };
    let memories = number("RHIZOME_BENCH_MEMORIES", 10_000);
    let calls = number("RHIZOME_BENCH_CALLS", 1_000);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let daemon = Daemon::start(&dir.path().join("node"));
    let mut api = Api::new(daemon.socket.clone());
    for number in 0..memories {
        api.remember(&title(number), &text(number));
    }
    println!("{memories} memories, {calls} calls of each kind, one after the other");
    println!(
        "{:<26} {:<9} {:>10} {:>10} {:>10}",
        "way in", "call", "calls/s", "p50 ms", "p99 ms"
    );
    measure("plain API", &mut api, memories, calls);
    measure(
        "MCP over HTTP",
        &mut Http::new(daemon.socket.clone()),
        memories,
        calls,
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
    command.arg("--data-dir").arg(&daemon.dir).arg("mcp");
    measure(
        "MCP on standard streams",
        &mut Streams::ours(command),
        memories,
        calls,
    );
    match Streams::reference(&dir.path().join("reference.jsonl"), memories) {
        Some(mut reference) => measure("reference memory server", &mut reference, memories, calls),
        None => {
            println!(
                "skipped: reference memory server: set RHIZOME_TEST_NPX=1 to fetch it with npx"
            )
        }
    }
}

fn title(number: usize) -> String {
    let word = |step: usize| WORDS[(number / step) % WORDS.len()];
    format!("{} {} {number}", word(1), word(WORDS.len()))
}

fn text(number: usize) -> String {
    let word = |step: usize| WORDS[(number * step + 7) % WORDS.len()];
    format!(
        "the {} fails when the {} is older than the {}",
        word(3),
        word(5),
        word(11)
    )
}

/// One way in.
trait Way {
    fn remember(&mut self, title: &str, text: &str);
    /// Returns how many were found.
    fn recall(&mut self, query: &str) -> usize;
}

fn measure(name: &str, way: &mut impl Way, memories: usize, calls: usize) {
    let mut found = 0;
    let recalled = timed(calls, |number| {
        found += way.recall(&format!(
            "{} {}",
            WORDS[number % 24],
            WORDS[(number * 7 + 3) % 24]
        ));
    });
    let remembered = timed(calls, |number| {
        way.remember(&title(memories + number), &text(number));
    });
    report(name, "remember", remembered);
    report("", "recall", recalled);
    println!(
        "{:<26} {:<9} {:>10.1} found each time",
        "",
        "",
        found as f64 / calls as f64
    );
}

fn timed(calls: usize, mut call: impl FnMut(usize)) -> Vec<Duration> {
    (0..calls)
        .map(|number| {
            let begun = Instant::now();
            call(number);
            begun.elapsed()
        })
        .collect()
}

fn report(name: &str, call: &str, mut took: Vec<Duration>) {
    took.sort();
    let total: Duration = took.iter().sum();
    let at = |percent: usize| {
        let place = took.len() * percent / 100;
        took[place.min(took.len() - 1)].as_secs_f64() * 1_000.0
    };
    let rate = took.len() as f64 / total.as_secs_f64();
    println!(
        "{name:<26} {call:<9} {rate:>10.0} {:>10.2} {:>10.2}",
        at(50),
        at(99)
    );
}

struct Daemon {
    dir: PathBuf,
    socket: PathBuf,
    child: Child,
}

impl Daemon {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .arg("--data-dir")
            .arg(dir)
            .args([
                "up",
                "--name",
                "bench",
                "--bind",
                "127.0.0.1:0",
                "--no-mdns",
                "--no-sandboxes",
            ])
            .env("RHIZOME_READY_STDOUT", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says when it is ready");
        let socket = dir.join("api.sock");
        let mut api = Api::new(socket.clone());
        api.post(
            "/v1/mesh/init",
            &json!({"name": "bench", "space": "findings"}),
        );
        Self {
            dir: dir.to_owned(),
            socket,
            child,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection of HTTP/1.1 that is kept.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the daemon listens");
        Self(BufReader::new(stream))
    }

    /// Returns the session that the answer names, and its body.
    fn post(&mut self, path: &str, headers: &str, body: &Value) -> (Option<String>, Vec<u8>) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0
            .get_mut()
            .write_all(head.as_bytes())
            .expect("the daemon reads");
        let (mut session, mut length, mut chunked, mut status) = (None, 0, false, String::new());
        self.0.read_line(&mut status).expect("the daemon answers");
        assert!(status.contains(" 20"), "{status}");
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("the daemon answers");
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match &name.to_ascii_lowercase()[..] {
                "content-length" => length = value.parse().expect("a length is a number"),
                "transfer-encoding" => chunked = true,
                "mcp-session-id" => session = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut body = Vec::new();
        while chunked {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a chunk begins");
            let size = usize::from_str_radix(line.trim(), 16).expect("a chunk has a size");
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).expect("a chunk is whole");
            body.extend_from_slice(&chunk[..size]);
            chunked = size > 0;
        }
        if length > 0 {
            body.resize(length, 0);
            self.0.read_exact(&mut body).expect("the body is whole");
        }
        (session, body)
    }
}

struct Api(Connection);

impl Api {
    fn new(socket: PathBuf) -> Self {
        Self(Connection::new(&socket))
    }

    fn post(&mut self, path: &str, body: &Value) -> Value {
        serde_json::from_slice(&self.0.post(path, "", body).1).expect("the answer is JSON")
    }
}

impl Way for Api {
    fn remember(&mut self, title: &str, text: &str) {
        self.post(
            "/v1/memory",
            &json!({"kind": "fact", "title": title, "text": text}),
        );
    }

    fn recall(&mut self, query: &str) -> usize {
        let found = self.post("/v1/recall", &json!({ "query": query }));
        found["hits"].as_array().map_or(0, Vec::len)
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    })
}

fn call(tool: &str, arguments: Value) -> Value {
    json!({"name": tool, "arguments": arguments})
}

fn hits(result: &Value) -> usize {
    assert_ne!(result["isError"], true, "{result}");
    result["structuredContent"]["hits"]
        .as_array()
        .map_or(0, Vec::len)
}

struct Http {
    connection: Connection,
    session: String,
    id: u64,
}

impl Http {
    fn new(socket: PathBuf) -> Self {
        let mut http = Self {
            connection: Connection::new(&socket),
            session: String::new(),
            id: 0,
        };
        http.ask("initialize", initialize());
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let headers = http.headers();
        http.connection.post("/mcp", &headers, &told);
        http
    }

    fn headers(&self) -> String {
        let mut headers = "accept: application/json, text/event-stream\r\n".to_owned();
        if !self.session.is_empty() {
            headers.push_str(&format!("mcp-session-id: {}\r\n", self.session));
        }
        headers
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let body = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        let headers = self.headers();
        let (session, body) = self.connection.post("/mcp", &headers, &body);
        if let Some(session) = session {
            self.session = session;
        }
        let body = String::from_utf8(body).expect("the answer is text");
        let data = body.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let answer = messages.find(|message| message["id"] == self.id);
        answer.expect("the call is answered")["result"].clone()
    }
}

impl Way for Http {
    fn remember(&mut self, title: &str, text: &str) {
        let arguments = json!({"kind": "fact", "title": title, "text": text});
        let result = self.ask("tools/call", call("remember", arguments));
        assert_ne!(result["isError"], true, "{result}");
    }

    fn recall(&mut self, query: &str) -> usize {
        hits(&self.ask("tools/call", call("recall", json!({ "query": query }))))
    }
}

/// A server on the standard streams of a program: ours, or the reference.
struct Streams {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    is_reference: bool,
    id: u64,
}

impl Streams {
    fn ours(command: Command) -> Self {
        Self::start(command, false).expect("`rhizome mcp` answers")
    }

    fn reference(file: &Path, memories: usize) -> Option<Self> {
        std::env::var_os("RHIZOME_TEST_NPX")?;
        let mut lines = String::new();
        for number in 0..memories {
            let entity = json!({
                "type": "entity",
                "name": title(number),
                "entityType": "fact",
                "observations": [text(number)],
            });
            lines.push_str(&format!("{entity}\n"));
        }
        fs::write(file, lines).expect("the file can be written");
        let mut command = Command::new("npx");
        command.args(["-y", "@modelcontextprotocol/server-memory"]);
        command.env("MEMORY_FILE_PATH", file).stderr(Stdio::null());
        Self::start(command, true)
    }

    fn start(mut command: Command, is_reference: bool) -> Option<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        let mut streams = Self {
            child,
            input,
            output: BufReader::new(output),
            is_reference,
            id: 0,
        };
        streams.ask("initialize", initialize())?;
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        writeln!(streams.input, "{told}").ok()?;
        Some(streams)
    }

    fn ask(&mut self, method: &str, params: Value) -> Option<Value> {
        self.id += 1;
        let asked = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        self.input.write_all(format!("{asked}\n").as_bytes()).ok()?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let message: Value = serde_json::from_str(&line).ok()?;
            if message["id"] == self.id {
                return Some(message["result"].clone());
            }
        }
    }

    fn tool(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self
            .ask("tools/call", call(tool, arguments))
            .expect("the server answers");
        assert_ne!(result["isError"], true, "{result}");
        result
    }
}

impl Way for Streams {
    fn remember(&mut self, title: &str, text: &str) {
        if self.is_reference {
            let entity = json!({"name": title, "entityType": "fact", "observations": [text]});
            self.tool("create_entities", json!({"entities": [entity]}));
        } else {
            self.tool(
                "remember",
                json!({"kind": "fact", "title": title, "text": text}),
            );
        }
    }

    fn recall(&mut self, query: &str) -> usize {
        if self.is_reference {
            let found = self.tool("search_nodes", json!({ "query": query }));
            return found["structuredContent"]["entities"]
                .as_array()
                .map_or(0, Vec::len);
        }
        hits(&self.tool("recall", json!({ "query": query })))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
