//! What a call costs by each way in: `remember` and `recall` through MCP on standard streams, MCP over
//! HTTP and the plain API, one call after the other, on one node with 10,000 memories; and the
//! reference memory server doing the same calls, if npx is there to fetch it.
//!
//! `cargo bench -p rhizome --bench mcp`; RHIZOME_BENCH_MEMORIES and RHIZOME_BENCH_CALLS make it
//! shorter. Every call says something new: what was said before would be counted, not kept. The
//! reference server keeps its memories in one file, which it writes anew with every change and syncs
//! never; ours are durable when the call returns. Its search is for the whole query as it stands, so
//! the queries here are the beginnings of titles.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

#[path = "support/node.rs"]
mod node;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use node::Node;
use serde_json::{Value, json};

/// The reference, as it was when its answers were recorded for the tests.
const REFERENCE: &str = "@modelcontextprotocol/server-memory@2026.8.31";
/// Calls of each kind before those that are measured.
const WARM_UP: usize = 20;
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
    let calls = number("RHIZOME_BENCH_CALLS", 1_000).max(1);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let node = Node::start(dir.path(), 0, &["--no-sandboxes"]);
    node.rhizome(&["init", "--name", "bench", "--space", "findings"]);
    let mut api = Api::new(&node.socket());
    let begun = Instant::now();
    for number in 0..memories {
        api.remember(&title(number), &text(number));
    }
    println!(
        "{memories} memories in {:.1} s, then {calls} calls of each kind, one after the other",
        begun.elapsed().as_secs_f64()
    );
    println!(
        "{:<26} {:<9} {:>10} {:>10} {:>10} {:>10}",
        "way in", "call", "calls/s", "p50 ms", "p99 ms", "found"
    );
    let mut bench = Bench {
        calls,
        next: memories,
    };
    bench.measure("plain API", &mut api);
    bench.measure("MCP over HTTP", &mut Http::new(&node.socket()));
    let mut command = node.command();
    command.arg("mcp");
    bench.measure("MCP on standard streams", &mut Streams::ours(command));
    match Streams::reference(&dir.path().join("reference.jsonl"), memories) {
        Some(mut reference) => bench.measure("reference memory server", &mut reference),
        None => println!("skipped: reference memory server: npx cannot start {REFERENCE}"),
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

struct Bench {
    calls: usize,
    /// The number of the next memory; none is said twice.
    next: usize,
}

impl Bench {
    fn measure(&mut self, name: &str, way: &mut impl Way) {
        let calls = self.calls;
        let mut found = 0;
        let recalled = timed(calls, |number| {
            let (first, second) = (number % WORDS.len(), (number * 7 + 3) % WORDS.len());
            found += way.recall(&format!("{} {}", WORDS[first], WORDS[second]));
        });
        let remembered = timed(calls, |_| {
            way.remember(&title(self.next), &text(self.next));
            self.next += 1;
        });
        report(name, "remember", remembered, None);
        let each = found as f64 / (calls + WARM_UP) as f64;
        report("", "recall", recalled, Some(each));
    }
}

fn timed(calls: usize, mut call: impl FnMut(usize)) -> Vec<Duration> {
    let mut one = |number| {
        let begun = Instant::now();
        call(number);
        begun.elapsed()
    };
    for number in 0..WARM_UP {
        one(number);
    }
    (0..calls).map(|number| one(WARM_UP + number)).collect()
}

fn report(name: &str, call: &str, mut took: Vec<Duration>, found: Option<f64>) {
    took.sort();
    let total: Duration = took.iter().sum();
    let at = |percent: usize| {
        let place = took.len() * percent / 100;
        took[place.min(took.len() - 1)].as_secs_f64() * 1_000.0
    };
    let rate = took.len() as f64 / total.as_secs_f64();
    let found = found.map_or_else(String::new, |found| format!("{found:.1}"));
    println!(
        "{name:<26} {call:<9} {rate:>10.0} {:>10.2} {:>10.2} {found:>10}",
        at(50),
        at(99)
    );
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
    fn new(socket: &Path) -> Self {
        Self(Connection::new(socket))
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
    fn new(socket: &Path) -> Self {
        let mut http = Self {
            connection: Connection::new(socket),
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
        command.args(["-y", REFERENCE]);
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
