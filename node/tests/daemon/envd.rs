//! E2B's data plane by raw HTTP: a real daemon, a real guest, none of their clients.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{Daemon, command};

/// How long an answer may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\xff\xfe\x00";

#[test]
fn programs_files_and_cells_answer_as_e2b_has_it() {
    let temp = tempfile::tempdir().unwrap();
    let mut up = command(&temp.path().join("node"), "e2b");
    up.args(["--e2b", "127.0.0.1:0", "--images-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"));
    let daemon = Daemon::spawn(up, &temp.path().join("node"));
    let built = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .arg("--data-dir")
        .arg(&daemon.dir)
        .args(["image", "build", "debian"])
        .output()
        .unwrap();
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr);
        return eprintln!("skipped: envd: mmdebstrap and a Debian mirror: {why}");
    }
    let url = daemon.get("/v1/status")["e2b"].as_str().unwrap().to_owned();
    let sandbox = Sandbox::create(url.strip_prefix("http://").unwrap());

    nothing_is_answered_without_the_token(&sandbox);
    a_program_says_its_number_its_output_and_its_end(&sandbox);
    a_client_that_goes_away_ends_nothing(&sandbox);
    time_that_is_over_ends_a_program(&sandbox);
    input_arrives_and_ends(&sandbox);
    a_terminal_has_the_size_it_was_given(&sandbox);
    files_come_back_as_they_were_sent(&sandbox);
    paths_are_made_moved_listed_and_removed(&sandbox);
    changes_are_kept_and_streamed(&sandbox);
    cells_keep_their_state(&sandbox);
    all_of_it_goes_on_after_a_pause(&sandbox);
    a_sandbox_that_dies_ends_its_streams(&sandbox);
    daemon.kill();
}

struct Sandbox {
    addr: String,
    id: String,
    token: String,
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

struct Body {
    reader: BufReader<TcpStream>,
    /// Bytes of the chunk, or of the body, that are still to come.
    left: usize,
    chunked: bool,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(of, _)| of == name).map(|(_, value)| &**value)
    }

    fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn json(self) -> (u16, Value) {
        let status = self.status;
        let bytes = self.bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
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

/// A stream of frames.
struct Frames(Body);

impl Frames {
    /// Returns the next frame, and whether it is the last.
    fn next(&mut self) -> (bool, Value) {
        let mut prefix = [0; 5];
        self.0.read_exact(&mut prefix).unwrap();
        let [flags, length @ ..] = prefix;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut message).unwrap();
        (flags == 2, serde_json::from_slice(&message).unwrap())
    }

    fn pid(&mut self) -> u64 {
        let (_, first) = self.next();
        let pid = first["event"]["start"]["pid"].as_u64();
        pid.unwrap_or_else(|| panic!("no start: {first}"))
    }

    /// Reads to the end; returns output, end event and error.
    fn finish(mut self) -> (String, Value, Value) {
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
                    output.extend(base64(data));
                }
            }
            if !event["end"].is_null() {
                end = event["end"].clone();
            }
        }
    }

    fn until(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (last, said) = self.next();
            assert!(!last, "the stream ended: {said}");
            if is(&said) {
                return said;
            }
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    data_encoding::BASE64.decode(text.as_bytes()).unwrap()
}

fn encoded(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

fn frame(message: &Value) -> Vec<u8> {
    let json = message.to_string().into_bytes();
    let length = u32::try_from(json.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &json].concat()
}

fn send(addr: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
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

impl Sandbox {
    fn create(addr: &str) -> Self {
        let body = json!({"templateID": "base", "timeout": 900, "envVars": {"FOO": "bar"}});
        let headers = [("x-api-key", "any"), ("content-type", "application/json")];
        let made = send(
            addr,
            "POST",
            "/v2/sandboxes",
            &headers,
            body.to_string().as_bytes(),
        );
        let (status, made) = made.json();
        assert_eq!(status, 201, "{made}");
        Self {
            addr: addr.to_owned(),
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"].as_str().unwrap().to_owned(),
        }
    }

    fn control(&self, method: &str, path: &str, body: &Value) -> u16 {
        let headers = [("x-api-key", "any"), ("content-type", "application/json")];
        let path = format!("/sandboxes/{}{path}", self.id);
        let body = body.to_string();
        send(&self.addr, method, &path, &headers, body.as_bytes()).status
    }

    fn ask(&self, method: &str, path: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut headers = vec![
            ("x-access-token", &*self.token),
            ("e2b-sandbox-id", &*self.id),
        ];
        headers.extend(more);
        send(&self.addr, method, path, &headers, body)
    }

    fn call(&self, method: &str, message: &Value) -> (u16, Value) {
        let kind = [("content-type", "application/json")];
        let body = message.to_string();
        self.ask("POST", method, &kind, body.as_bytes()).json()
    }

    fn process(&self, method: &str, message: &Value) -> Value {
        let (status, answer) = self.call(&format!("/process.Process/{method}"), message);
        assert_eq!(status, 200, "{method}: {answer}");
        answer
    }

    fn filesystem(&self, method: &str, message: &Value) -> (u16, Value) {
        self.call(&format!("/filesystem.Filesystem/{method}"), message)
    }

    fn stream(&self, method: &str, message: &Value, more: &[(&str, &str)]) -> Frames {
        let mut headers = vec![("content-type", "application/connect+json")];
        headers.extend(more);
        let answer = self.ask("POST", method, &headers, &frame(message));
        assert_eq!(answer.status, 200);
        Frames(answer.body)
    }

    fn start(&self, script: &str, more: Value, headers: &[(&str, &str)]) -> Frames {
        let mut message = json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", script]},
            "stdin": false,
        });
        for (name, value) in more.as_object().unwrap() {
            message[name] = value.clone();
        }
        self.stream("/process.Process/Start", &message, headers)
    }

    fn run(&self, script: &str) -> String {
        let mut frames = self.start(script, json!({}), &[]);
        frames.pid();
        let (output, end, error) = frames.finish();
        assert!(error.is_null(), "{error}");
        assert_eq!(end["exitCode"], 0, "{script}: {output}");
        output
    }

    /// Runs a cell and returns all that is said.
    fn cell(&self, body: &Value) -> Vec<Value> {
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

fn of_kind<'a>(said: &'a [Value], kind: &str) -> &'a Value {
    let found = said.iter().find(|said| said["type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {said:?}"))
}

fn nothing_is_answered_without_the_token(sandbox: &Sandbox) {
    let headers = [
        ("e2b-sandbox-id", &*sandbox.id),
        ("content-type", "application/json"),
    ];
    for path in ["/process.Process/List", "/files?path=a", "/envs"] {
        let method = if path.starts_with("/p") {
            "POST"
        } else {
            "GET"
        };
        let refused = send(&sandbox.addr, method, path, &headers, b"{}");
        assert_eq!(refused.status, 401, "{path}");
    }
    let health = send(&sandbox.addr, "GET", "/health", &headers[..1], b"");
    assert_eq!(health.status, 204);
    assert_eq!(sandbox.ask("POST", "/init", &[], b"{}").status, 404);
    let envs = sandbox.ask("GET", "/envs", &[], b"").json();
    assert_eq!(envs, (200, json!({"FOO": "bar"})));
    let metrics = sandbox.ask("GET", "/metrics", &[], b"").json().1;
    assert!(metrics["mem_total"].as_u64().unwrap() > metrics["mem_used"].as_u64().unwrap());
}

fn a_program_says_its_number_its_output_and_its_end(sandbox: &Sandbox) {
    let script = "ps -o pid= -p $$ | tr -d ' '; echo $FOO; echo err >&2; exit 3";
    let mut frames = sandbox.start(script, json!({}), &[]);
    let pid = frames.pid();
    let (output, end, error) = frames.finish();
    assert!(output.contains(&format!("{pid}\n")), "{pid}: {output}");
    assert!(
        output.contains("bar\n") && output.contains("err\n"),
        "{output}"
    );
    assert_eq!((&end["exitCode"], &error), (&json!(3), &Value::Null));

    let mut frames = sandbox.start("exec sleep 100", json!({"tag": "napper"}), &[]);
    let pid = frames.pid();
    let listed = sandbox.process("List", &json!({}));
    let all = listed["processes"].as_array().unwrap();
    let found = all.iter().find(|one| one["pid"] == pid).unwrap();
    assert_eq!(found["tag"], "napper");
    assert_eq!(found["config"]["args"][2], "exec sleep 100");
    let kill = json!({"process": {"tag": "napper"}, "signal": "SIGNAL_SIGKILL"});
    sandbox.process("SendSignal", &kill);
    let (_, end, _) = frames.finish();
    assert_eq!(end["exitCode"], -1);
    assert_eq!(end["status"], "signal: killed");
    let missing = json!({"process": {"pid": 99_999_999}, "signal": "SIGNAL_SIGKILL"});
    let (status, answer) = sandbox.call("/process.Process/SendSignal", &missing);
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));

    // Errors of streams come in a stream.
    let user = format!("Basic {}", encoded("nobody-at-all:"));
    let frames = sandbox.start("true", json!({}), &[("authorization", &user)]);
    assert_eq!(frames.finish().2["code"], "unauthenticated");
    let connect = json!({"process": {"pid": 99_999_999}});
    let frames = sandbox.stream("/process.Process/Connect", &connect, &[]);
    assert_eq!(frames.finish().2["code"], "not_found");
    let headers = [("content-type", "application/connect+json")];
    for body in [
        &b"\x00\xff\xff\xff\xff"[..],
        b"\x01\0\0\0\0",
        b"\0\0\0\0\x05{",
    ] {
        let answer = sandbox.ask("POST", "/process.Process/Start", &headers, body);
        assert_eq!(answer.status, 200);
        let error = Frames(answer.body).finish().2;
        assert!(error["code"].is_string(), "{error}");
    }
}

fn a_client_that_goes_away_ends_nothing(sandbox: &Sandbox) {
    let mut frames = sandbox.start("sleep 2; echo late", json!({}), &[]);
    let pid = frames.pid();
    drop(frames);
    let connect = json!({"process": {"pid": pid}});
    let mut again = sandbox.stream("/process.Process/Connect", &connect, &[]);
    let mut third = sandbox.stream("/process.Process/Connect", &connect, &[]);
    assert_eq!((again.pid(), third.pid()), (pid, pid));
    assert_eq!(again.finish().0, "late\n");
    assert_eq!(third.finish().0, "late\n");
    let interval = [("keepalive-ping-interval", "1")];
    let mut quiet = sandbox.start("sleep 3", json!({}), &interval);
    quiet.until(|said| said["event"]["keepalive"].is_object());
}

fn time_that_is_over_ends_a_program(sandbox: &Sandbox) {
    let begun = Instant::now();
    let limit = [("connect-timeout-ms", "1500")];
    let frames = sandbox.start("exec sleep 31", json!({}), &limit);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "deadline_exceeded");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(!sandbox.run("ps ax -o args").contains("sleep 31"));
}

fn input_arrives_and_ends(sandbox: &Sandbox) {
    let mut frames = sandbox.start("cat", json!({"stdin": true}), &[]);
    let process = json!({"pid": frames.pid()});
    let input = json!({"process": process, "input": {"stdin": encoded("one\n")}});
    sandbox.process("SendInput", &input);
    let start = frame(&json!({"start": {"process": process}}));
    let more = frame(&json!({"data": {"input": {"stdin": encoded("two\n")}}}));
    let keepalive = frame(&json!({"keepalive": {}}));
    let headers = [("content-type", "application/connect+json")];
    let body = [start, keepalive, more].concat();
    let fed = sandbox.ask("POST", "/process.Process/StreamInput", &headers, &body);
    assert_eq!(Frames(fed.body).finish().2, Value::Null);
    sandbox.process("CloseStdin", &json!({"process": process}));
    assert_eq!(frames.finish().0, "one\ntwo\n");
    let (status, answer) = sandbox.call("/process.Process/SendInput", &input);
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
}

fn a_terminal_has_the_size_it_was_given(sandbox: &Sandbox) {
    let message = json!({
        "process": {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm"}},
        "pty": {"size": {"cols": 80, "rows": 24}},
    });
    let mut frames = sandbox.stream("/process.Process/Start", &message, &[]);
    let process = json!({"pid": frames.pid()});
    let size = json!({"process": process, "pty": {"size": {"cols": 100, "rows": 30}}});
    sandbox.process("Update", &size);
    let input = json!({"process": process, "input": {"pty": encoded("stty size; exit\n")}});
    sandbox.process("SendInput", &input);
    let (output, _, _) = frames.finish();
    assert!(output.contains("30 100"), "{output}");
}

fn files_come_back_as_they_were_sent(sandbox: &Sandbox) {
    let octets = [("content-type", "application/octet-stream")];
    let put = sandbox
        .ask("POST", "/files?path=p.png", &octets, PNG)
        .json();
    let written = json!([{"path": "/root/p.png", "name": "p.png", "type": "file"}]);
    assert_eq!(put, (200, written));
    let got = sandbox.ask("GET", "/files?path=p.png", &[], b"").bytes();
    assert_eq!(&got[..4], b"\x89PNG");
    assert_eq!(got, PNG);
    let part = [("range", "bytes=1-3")];
    let part = sandbox.ask("GET", "/files?path=p.png", &part, b"");
    let range = format!("bytes 1-3/{}", PNG.len());
    assert_eq!(
        (part.status, part.header("content-range")),
        (206, Some(&*range))
    );
    assert_eq!(part.bytes(), b"PNG");

    let big: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n % 251).to_le_bytes()[0])
        .collect();
    let put = sandbox.ask("POST", "/files?path=deep/er/big.bin", &octets, &big);
    assert_eq!(put.status, 200);
    let got = sandbox.ask("GET", "/files?path=deep/er/big.bin", &[], b"");
    assert!(got.bytes() == big, "3 MB come back");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&big).unwrap();
    let packed = packer.finish().unwrap();
    let mut gzip = vec![("content-encoding", "gzip"), ("x-metadata-purpose", "test")];
    gzip.extend(octets);
    let put = sandbox.ask("POST", "/files?path=unpacked", &gzip, &packed);
    assert_eq!(put.json().1[0]["metadata"], json!({"purpose": "test"}));
    assert!(sandbox.ask("GET", "/files?path=unpacked", &[], b"").bytes() == big);
    let (_, said) = sandbox.filesystem("Stat", &json!({"path": "unpacked"}));
    assert_eq!(said["entry"]["metadata"], json!({"purpose": "test"}));
    // Whole or not at all: what was there before stays.
    let cut = sandbox.ask(
        "POST",
        "/files?path=unpacked",
        &gzip,
        &packed[..packed.len() / 2],
    );
    assert_eq!(cut.status, 400);
    assert!(sandbox.ask("GET", "/files?path=unpacked", &[], b"").bytes() == big);

    let form = "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"d/记忆\"\r\n\r\none\r\n\
                --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"/tmp/two\"\r\n\r\n2\r\n--x--\r\n";
    let kind = [("content-type", "multipart/form-data; boundary=x")];
    let head = b"--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    let large = [&head[..], &big, b"\r\n--x--\r\n"].concat();
    let put = sandbox.ask("POST", "/files?path=form", &kind, &large);
    assert_eq!(put.status, 200);
    assert!(sandbox.ask("GET", "/files?path=form", &[], b"").bytes() == big);
    let (status, put) = sandbox.ask("POST", "/files", &kind, form.as_bytes()).json();
    assert_eq!((status, put.as_array().unwrap().len()), (200, 2), "{put}");
    let got = sandbox.ask("GET", "/files?path=d/%E8%AE%B0%E5%BF%86", &[], b"");
    assert_eq!(got.bytes(), b"one");
    assert_eq!(sandbox.run("cat /tmp/two"), "2");
    let both = sandbox.ask("POST", "/files?path=one", &kind, form.as_bytes());
    assert_eq!(both.status, 400);
    for (path, status) in [
        ("none", 404),
        ("d", 400),
        ("/", 400),
        ("a&username=nobody-at-all", 401),
    ] {
        let refused = sandbox
            .ask("GET", &format!("/files?path={path}"), &[], b"")
            .json();
        assert_eq!(refused.0, status, "{path}: {}", refused.1);
        assert_eq!(refused.1["code"], status);
    }

    // sha256("p.png:read::<token>"), by a program of the sandbox that knows nothing of ours.
    let script = format!(
        "printf 'p.png:read::{}' | sha256sum | cut -c1-64",
        sandbox.token
    );
    let digest = sandbox.run(&script);
    let digest = data_encoding::HEXLOWER
        .decode(digest.trim().as_bytes())
        .unwrap();
    let signature = data_encoding::BASE64_NOPAD.encode(&digest);
    let signature = signature.replace('+', "%2B").replace('/', "%2F");
    let url = format!("/files?path=p.png&signature=v1_{signature}");
    assert_eq!(send(&sandbox.addr, "GET", &url, &[], b"").bytes(), PNG);
    let other = url.replace("p.png", "unpacked");
    assert_eq!(send(&sandbox.addr, "GET", &other, &[], b"").status, 401);
    assert_eq!(send(&sandbox.addr, "POST", &url, &[], b"x").status, 401);
    let full = sandbox.run("mkdir /small && mount -t tmpfs -o size=64k none /small && echo made");
    assert_eq!(full, "made\n");
    let put = sandbox.ask("POST", "/files?path=/small/big", &octets, &big);
    assert_eq!(put.status, 507);
    assert_eq!(sandbox.run("ls -A /small"), "");
}

fn paths_are_made_moved_listed_and_removed(sandbox: &Sandbox) {
    let at = |path: &str| json!({ "path": path });
    let (status, made) = sandbox.filesystem("MakeDir", &at("n/m"));
    assert_eq!(
        (status, &made["entry"]["type"]),
        (200, &json!("FILE_TYPE_DIRECTORY"))
    );
    let (status, again) = sandbox.filesystem("MakeDir", &at("n/m"));
    assert_eq!((status, &again["code"]), (409, &json!("already_exists")));
    sandbox.run("cd n; echo hi > f; chmod 640 f; ln -s f link; mkdir m/deep");
    let (_, stat) = sandbox.filesystem("Stat", &at("n/f"));
    let entry = &stat["entry"];
    assert_eq!(entry["permissions"], "-rw-r-----");
    assert_eq!(
        (&entry["owner"], &entry["group"]),
        (&json!("root"), &json!("root"))
    );
    assert_eq!(
        (&entry["size"], &entry["mode"]),
        (&json!("3"), &json!(0o640))
    );
    assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z'));
    let names = |depth: u32| {
        let (_, listed) = sandbox.filesystem("ListDir", &json!({"path": "n", "depth": depth}));
        let entries = listed["entries"].as_array().unwrap().clone();
        entries
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(1), ["f", "link", "m"]);
    assert_eq!(names(2), ["f", "link", "m", "deep"]);
    let (_, link) = sandbox.filesystem("Stat", &at("n/link"));
    assert_eq!(link["entry"]["isSymlink"], true);
    assert_eq!(link["entry"]["symlinkTarget"], "/root/n/f");
    let moved = json!({"source": "n/f", "destination": "o/g"});
    let (status, moved) = sandbox.filesystem("Move", &moved);
    assert_eq!(
        (status, &moved["entry"]["path"]),
        (200, &json!("/root/o/g"))
    );
    assert_eq!(sandbox.filesystem("Remove", &at("n")).0, 200);
    assert_eq!(sandbox.filesystem("Remove", &at("n")).0, 200);
    let (status, gone) = sandbox.filesystem("Stat", &at("n"));
    assert_eq!((status, &gone["code"]), (404, &json!("not_found")));
    // What an image holds is on another file system than what is written.
    let image = json!({"source": "/usr/share/zoneinfo", "destination": "zones"});
    let (_, there) = sandbox.filesystem("Stat", &at("/usr/share/zoneinfo"));
    if !there["entry"].is_null() {
        assert_eq!(sandbox.filesystem("Move", &image).0, 200);
    }
}

fn changes_are_kept_and_streamed(sandbox: &Sandbox) {
    sandbox.run("mkdir -p w/sub");
    let watch = json!({"path": "w", "recursive": true, "includeEntry": true});
    let (status, made) = sandbox.filesystem("CreateWatcher", &watch);
    assert_eq!(status, 200, "{made}");
    let mut stream = sandbox.stream("/filesystem.Filesystem/WatchDir", &watch, &[]);
    assert!(stream.next().1["start"].is_object());
    let octets = [("content-type", "application/octet-stream")];
    sandbox.ask("POST", "/files?path=w/sub/z", &octets, b"2");
    let is = |kind: &'static str| {
        move |said: &Value| {
            said["filesystem"]["name"] == "sub/z" && said["filesystem"]["type"] == kind
        }
    };
    let told = stream.until(is("EVENT_TYPE_WRITE"));
    assert_eq!(told["filesystem"]["entry"]["size"], "1");
    sandbox.run("mv w/sub/z w/sub/y");
    stream.until(is("EVENT_TYPE_RENAME"));
    let (_, kept) = sandbox.filesystem("GetWatcherEvents", &made);
    let kept = kept["events"].as_array().unwrap();
    assert!(
        kept.iter().any(|event| event["name"] == "sub/z"),
        "{kept:?}"
    );
    assert!(
        !kept
            .iter()
            .any(|event| event["name"].as_str().unwrap().contains(".rhizome-"))
    );
    let (_, drained) = sandbox.filesystem("GetWatcherEvents", &made);
    assert!(drained["events"].as_array().unwrap().len() < kept.len());
    assert_eq!(sandbox.filesystem("RemoveWatcher", &made).0, 200);
    assert_eq!(sandbox.filesystem("GetWatcherEvents", &made).0, 404);
    assert_eq!(
        sandbox
            .filesystem("CreateWatcher", &json!({"path": "p.png"}))
            .0,
        400
    );
}

fn cells_keep_their_state(sandbox: &Sandbox) {
    let cell = |code: &str| sandbox.cell(&json!({ "code": code }));
    let said = cell("print(6*7)");
    assert_eq!(of_kind(&said, "stdout")["text"], "42\n");
    cell("x = 41");
    let said = cell("x + 1");
    let result = of_kind(&said, "result");
    assert_eq!(
        (&result["text"], &result["is_main_result"]),
        (&json!("42"), &json!(true))
    );
    let said = cell("1/0");
    assert_eq!(of_kind(&said, "error")["name"], "ZeroDivisionError");
    assert_eq!(of_kind(&said, "number_of_executions")["execution_count"], 4);
    let said = cell("from IPython.display import HTML\nHTML('<b>1</b>')");
    assert_eq!(of_kind(&said, "result")["html"], "<b>1</b>");
    let said = sandbox.cell(
        &json!({"code": "import os; os.environ['A'], os.environ['FOO']", "env_vars": {"A": "b"}}),
    );
    assert_eq!(of_kind(&said, "result")["text"], "('b', 'bar')");
    let said = cell("import subprocess; subprocess.run(['echo', 'below'])");
    assert_eq!(of_kind(&said, "stdout")["text"], "below\n");

    // A client that goes away interrupts its cell, and nothing of the state is lost.
    let headers = [
        ("content-type", "application/json"),
        ("e2b-sandbox-port", "49999"),
    ];
    let endless = json!({"code": "import time\nprint('on')\nwhile True: time.sleep(0.1)"});
    let mut running = sandbox.ask("POST", "/execute", &headers, endless.to_string().as_bytes());
    running.body.read_exact(&mut [0; 8]).unwrap();
    drop(running);
    let begun = Instant::now();
    assert_eq!(of_kind(&cell("x"), "result")["text"], "41");
    assert!(begun.elapsed() < Duration::from_secs(15));

    let ask =
        |method: &str, path: &str, body: &[u8]| sandbox.ask(method, path, &headers, body).json();
    let (status, made) = ask("POST", "/contexts", b"{\"cwd\": \"/tmp\"}");
    assert_eq!((status, &made["cwd"]), (201, &json!("/tmp")), "{made}");
    let id = made["id"].as_str().unwrap();
    let other = |code: &str| sandbox.cell(&json!({"code": code, "context_id": id}));
    assert_eq!(of_kind(&other("x"), "error")["name"], "NameError");
    assert_eq!(
        of_kind(&other("import os; y = 1; os.getcwd()"), "result")["text"],
        "'/tmp'"
    );
    let listed = ask("GET", "/contexts", b"").1;
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(ask("POST", &format!("/contexts/{id}/restart"), b"").0, 200);
    assert_eq!(of_kind(&other("y"), "error")["name"], "NameError");
    assert_eq!(ask("DELETE", &format!("/contexts/{id}"), b"").0, 204);
    let gone = json!({"code": "1", "context_id": id}).to_string();
    assert_eq!(ask("POST", "/execute", gone.as_bytes()).0, 404);
    let js = json!({"code": "1", "language": "javascript"}).to_string();
    assert_eq!(ask("POST", "/execute", js.as_bytes()).0, 400);
    // They are no processes of the client's.
    let listed = sandbox.process("List", &json!({})).to_string();
    assert!(!listed.contains("driver.py"), "{listed}");
}

fn all_of_it_goes_on_after_a_pause(sandbox: &Sandbox) {
    let mut frames = sandbox.start(
        "for i in $(seq 600); do echo $i; sleep 0.2; done",
        json!({}),
        &[],
    );
    let process = json!({"process": {"pid": frames.pid()}});
    sandbox.run("mkdir -p v");
    let (_, watcher) = sandbox.filesystem("CreateWatcher", &json!({"path": "v"}));
    assert_eq!(sandbox.control("POST", "/pause", &json!({})), 204);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "unavailable", "{error}");
    let refused = sandbox.ask("GET", "/health", &[], b"").json();
    assert_eq!(refused.0, 502);
    assert!(
        refused.1["message"]
            .as_str()
            .unwrap()
            .contains("was not found")
    );
    assert_eq!(
        sandbox.control("POST", "/connect", &json!({"timeout": 900})),
        200
    );
    let mut again = sandbox.stream("/process.Process/Connect", &process, &[]);
    again.pid();
    again.until(|said| said["event"]["data"].is_object());
    sandbox.process(
        "SendSignal",
        &json!({"process": process["process"], "signal": "SIGNAL_SIGTERM"}),
    );
    assert_eq!(again.finish().1["status"], "signal: terminated");
    assert_eq!(
        of_kind(&sandbox.cell(&json!({"code": "x"})), "result")["text"],
        "41"
    );
    assert_eq!(sandbox.filesystem("GetWatcherEvents", &watcher).0, 200);
    sandbox.run("touch v/new");
    let begun = Instant::now();
    while !sandbox
        .filesystem("GetWatcherEvents", &watcher)
        .1
        .to_string()
        .contains("new")
    {
        assert!(begun.elapsed() < PATIENCE);
    }
}

fn a_sandbox_that_dies_ends_its_streams(sandbox: &Sandbox) {
    let mut frames = sandbox.start("sleep 600", json!({}), &[]);
    frames.pid();
    let headers = [
        ("content-type", "application/json"),
        ("e2b-sandbox-port", "49999"),
    ];
    let code = json!({"code": "import time\nprint('on')\ntime.sleep(600)"}).to_string();
    let mut cell = sandbox.ask("POST", "/execute", &headers, code.as_bytes());
    cell.body.read_exact(&mut [0; 8]).unwrap();
    let begun = Instant::now();
    assert_eq!(sandbox.control("DELETE", "", &json!({})), 204);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "unavailable");
    let mut rest = Vec::new();
    assert!(
        cell.body.read_to_end(&mut rest).is_err(),
        "no end that looks whole"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(sandbox.ask("GET", "/health", &[], b"").status, 502);
}
