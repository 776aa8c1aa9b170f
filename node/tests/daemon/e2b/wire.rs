//! HTTP to the door for clients of E2B, with nothing of theirs and nothing of ours.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{self, Daemon};

/// How long an answer may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// An answer, its body still to come or read.
#[derive(Debug)]
pub(crate) struct Answer<B = Body> {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: B,
}

#[derive(Debug)]
pub(crate) struct Body {
    reader: BufReader<TcpStream>,
    /// Bytes of the chunk, or of the body, that are still to come.
    left: usize,
    chunked: bool,
}

impl<B> Answer<B> {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(of, _)| of == name).map(|(_, value)| &**value)
    }
}

impl Answer {
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn json(self) -> (u16, Value) {
        let read = self.read();
        (read.status, read.body)
    }

    /// Reads the body; `Null` if it is no JSON.
    pub(crate) fn read(mut self) -> Answer<Value> {
        let headers = std::mem::take(&mut self.headers);
        Answer {
            status: self.status,
            headers,
            body: serde_json::from_slice(&self.bytes()).unwrap_or_default(),
        }
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && self.chunked {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                line.clear();
                self.reader.read_line(&mut line)?;
            }
            if line.is_empty() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.left = usize::from_str_radix(line.trim(), 16).unwrap();
            if self.left == 0 {
                self.chunked = false;
            }
        }
        let len = self.left.min(into.len());
        let len = self.reader.read(&mut into[..len])?;
        self.left -= len;
        Ok(len)
    }
}

/// Sends a request on a connection of its own.
pub(crate) fn send(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {addr}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(of, _)| of == name).map(|(_, v)| v);
    let body = Body {
        reader,
        left: find("content-length").map_or(0, |length| length.parse().unwrap()),
        chunked: find("transfer-encoding").is_some(),
    };
    Answer {
        status,
        headers,
        body,
    }
}

/// Where the door of a daemon is.
pub(crate) struct Door(pub(crate) String);

impl Door {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let status = daemon.get("/v1/status");
        let url = status["e2b"].as_str().expect("the door listens");
        Self(url.strip_prefix("http://").unwrap().to_owned())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer<Value> {
        self.ask_with(method, path, body, &[("x-api-key", "anything")])
    }

    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer<Value> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        send(&self.0, method, path, headers, body.as_bytes()).read()
    }

    /// Makes a sandbox and returns what is said of it.
    pub(crate) fn create(&self, wanted: Value) -> Sandbox {
        let made = self.ask("POST", "/v2/sandboxes", Some(wanted));
        assert_eq!(made.status, 201, "{made:?}");
        let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
        Sandbox {
            addr: self.0.clone(),
            id: text("sandboxID"),
            token: text("envdAccessToken"),
            made,
        }
    }

    pub(crate) fn info(&self, id: &str) -> Value {
        let answer = self.ask("GET", &format!("/sandboxes/{id}"), None);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    pub(crate) fn listed(&self, query: &str) -> Vec<String> {
        let answer = self.ask("GET", &format!("/v2/sandboxes{query}"), None);
        assert_eq!(answer.status, 200, "{answer:?}");
        let ids = answer.body.as_array().unwrap().iter();
        ids.map(|item| item["sandboxID"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Asks the data plane of a sandbox how it is.
    pub(crate) fn health(&self, id: &str) -> Answer<Value> {
        let headers = [("e2b-sandbox-id", id), ("e2b-sandbox-port", "49983")];
        self.ask_with("GET", "/health", None, &headers)
    }
}

/// A sandbox that was made through the door.
pub(crate) struct Sandbox {
    pub(crate) addr: String,
    pub(crate) id: String,
    pub(crate) token: String,
    /// What was answered when it was made.
    pub(crate) made: Answer<Value>,
}

impl Sandbox {
    pub(crate) fn control(&self, method: &str, path: &str, body: &Value) -> u16 {
        let headers = [
            ("x-api-key", "anything"),
            ("content-type", "application/json"),
        ];
        let path = format!("/sandboxes/{}{path}", self.id);
        let body = body.to_string();
        send(&self.addr, method, &path, &headers, body.as_bytes()).status
    }

    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut headers = vec![
            ("x-access-token", &*self.token),
            ("e2b-sandbox-id", &*self.id),
        ];
        headers.extend(more);
        send(&self.addr, method, path, &headers, body)
    }

    pub(crate) fn call(&self, method: &str, message: &Value) -> (u16, Value) {
        let kind = [("content-type", "application/json")];
        let body = message.to_string();
        self.ask("POST", method, &kind, body.as_bytes()).json()
    }

    pub(crate) fn process(&self, method: &str, message: &Value) -> Value {
        let (status, answer) = self.call(&format!("/process.Process/{method}"), message);
        assert_eq!(status, 200, "{method}: {answer}");
        answer
    }

    pub(crate) fn filesystem(&self, method: &str, message: &Value) -> (u16, Value) {
        self.call(&format!("/filesystem.Filesystem/{method}"), message)
    }

    pub(crate) fn stream(&self, method: &str, message: &Value, more: &[(&str, &str)]) -> Frames {
        let mut headers = vec![("content-type", "application/connect+json")];
        headers.extend(more);
        let answer = self.ask("POST", method, &headers, &frame(message));
        assert_eq!(answer.status, 200);
        Frames(answer.body)
    }

    pub(crate) fn start(&self, script: &str, more: Value, headers: &[(&str, &str)]) -> Frames {
        let mut message = json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", script]},
            "stdin": false,
        });
        for (name, value) in more.as_object().unwrap() {
            message[name] = value.clone();
        }
        self.stream("/process.Process/Start", &message, headers)
    }

    pub(crate) fn run(&self, script: &str) -> String {
        let mut frames = self.start(script, json!({}), &[]);
        frames.pid();
        let (output, end, error) = frames.finish();
        assert!(error.is_null(), "{error}");
        // What is zero is left out by some.
        let code = end["exitCode"].as_i64().unwrap_or(0);
        assert_eq!(code, 0, "{script}: {output}");
        output
    }

    /// Runs a cell and returns all that is said.
    pub(crate) fn cell(&self, body: &Value) -> Vec<Value> {
        let headers = [
            ("content-type", "application/json"),
            ("e2b-sandbox-port", "49999"),
        ];
        let body = body.to_string();
        let answer = self.ask("POST", "/execute", &headers, body.as_bytes());
        let status = answer.status;
        let text = String::from_utf8(answer.bytes()).unwrap();
        assert_eq!(status, 200, "{text}");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// A stream of frames.
pub(crate) struct Frames(pub(crate) Body);

impl Frames {
    /// Returns the next frame, and whether it is the last.
    pub(crate) fn next(&mut self) -> (bool, Value) {
        let mut prefix = [0; 5];
        self.0.read_exact(&mut prefix).unwrap();
        let [flags, length @ ..] = prefix;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut message).unwrap();
        (flags == 2, serde_json::from_slice(&message).unwrap())
    }

    pub(crate) fn pid(&mut self) -> u64 {
        let (_, first) = self.next();
        let pid = first["event"]["start"]["pid"].as_u64();
        pid.unwrap_or_else(|| panic!("no start: {first}"))
    }

    /// Reads to the end; returns output, end event and error.
    pub(crate) fn finish(mut self) -> (String, Value, Value) {
        let (mut output, mut end) = (Vec::new(), Value::Null);
        loop {
            let (last, said) = self.next();
            if last {
                let text = String::from_utf8_lossy(&output).into_owned();
                return (text, end, said["error"].clone());
            }
            let event = &said["event"];
            for kind in ["stdout", "stderr", "pty"] {
                if let Some(data) = event["data"][kind].as_str() {
                    output.extend(data_encoding::BASE64.decode(data.as_bytes()).unwrap());
                }
            }
            if !event["end"].is_null() {
                end = event["end"].clone();
            }
        }
    }

    pub(crate) fn until(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (last, said) = self.next();
            assert!(!last, "the stream ended: {said}");
            if is(&said) {
                return said;
            }
        }
    }
}

pub(crate) fn encoded(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

pub(crate) fn frame(message: &Value) -> Vec<u8> {
    let json = message.to_string().into_bytes();
    let length = u32::try_from(json.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &json].concat()
}

/// Starts a daemon with the door, its images kept between runs.
pub(crate) fn start(dir: &Path, more: &[&str]) -> Daemon {
    let mut command = support::command(dir, "laptop");
    command
        .args(["--e2b", "127.0.0.1:0"])
        .args(more)
        .arg("--images-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"));
    Daemon::spawn(command, dir)
}

/// Sees that a daemon has the image `debian`, or says what is missing.
pub(crate) fn debian_is_missing(test: &str, daemon: &Daemon) -> bool {
    let built = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .arg("--data-dir")
        .arg(&daemon.dir)
        .args(["image", "build", "debian"])
        .output()
        .unwrap();
    if built.status.success() {
        return false;
    }
    let why = String::from_utf8_lossy(&built.stderr);
    eprintln!("skipped: {test}: mmdebstrap and a Debian mirror: {why}");
    true
}
