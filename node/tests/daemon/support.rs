//! Starts daemons and speaks HTTP to them, with nothing of the crate under test.
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

/// How long an answer may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon; dropped, it is killed.
pub(crate) struct Daemon {
    pub(crate) dir: PathBuf,
    child: Child,
    leaves_guests: bool,
    // Kept open: a daemon that cannot write to its standard output would learn of it.
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Daemon {
    /// Starts a daemon on `dir` and returns once it answers.
    pub(crate) fn start(dir: &Path, name: &str) -> Self {
        let mut command = command(dir, name);
        command.arg("--no-sandboxes");
        Self::spawn(command, dir)
    }

    /// Starts one that runs sandboxes; their images are kept between runs.
    pub(crate) fn start_with_sandboxes(dir: &Path, name: &str) -> Self {
        let mut command = command(dir, name);
        command
            .arg("--images-dir")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"));
        Self::spawn(command, dir)
    }

    /// Runs `command`, which is `rhizome up` on `dir`, and returns once it answers.
    pub(crate) fn spawn(mut command: Command, dir: &Path) -> Self {
        let mut child = command
            .env("RHIZOME_READY_STDOUT", "1")
            .stdout(Stdio::piped())
            .stderr(log_of(dir))
            .spawn()
            .expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout can be read");
        assert_eq!(line, "ready\n", "the daemon did not start: {}", said(dir));
        Self {
            dir: dir.to_owned(),
            child,
            leaves_guests: false,
            _stdout: stdout,
        }
    }

    /// Returns a client of it.
    pub(crate) fn client(&self) -> Client {
        Client {
            socket: self.dir.join("api.sock"),
            open: None,
        }
    }

    /// Asks once and returns status and body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.client()
            .ask(method, path, body)
            .expect("the daemon answers")
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None);
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask("POST", path, Some(body));
        assert_eq!(status, 200, "POST {path}: {answer}");
        answer
    }

    /// Founds a mesh with one space.
    pub(crate) fn found(&self, space: &str) {
        self.post(
            "/v1/mesh/init",
            serde_json::json!({"name": "lab", "space": space}),
        );
    }

    /// Kills it with SIGKILL and waits until it is gone; its guests go with it.
    pub(crate) fn kill(self) {
        drop(self.crash());
    }

    /// As [`Self::kill`], but its guests stay until what is returned is dropped.
    pub(crate) fn crash(mut self) -> Guests {
        self.leaves_guests = true;
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
        Guests {
            dir: self.dir.clone(),
        }
    }

    /// Asks it to stop, with its sandboxes, and waits until it has.
    pub(crate) fn stop(self) {
        self.stop_and("kill");
    }

    /// Asks it to stop and says what becomes of its sandboxes.
    pub(crate) fn stop_and(mut self, sandboxes: &str) {
        self.leaves_guests = true;
        self.post("/v1/down", serde_json::json!({ "sandboxes": sandboxes }));
        assert!(
            self.child.wait().expect("it can be waited for").success(),
            "{}",
            said(&self.dir)
        );
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.leaves_guests {
            drop(Guests {
                dir: self.dir.clone(),
            });
        }
    }
}

/// The guests of a daemon, which outlive it; dropped, they are ended.
pub(crate) struct Guests {
    dir: PathBuf,
}

impl Drop for Guests {
    fn drop(&mut self) {
        if !self.dir.join("sandboxes").exists() {
            return;
        }
        let _ = Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .arg("--data-dir")
            .arg(&self.dir)
            .args(["down", "--sandboxes", "kill"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Returns `rhizome up` on `dir`, on loopback.
pub(crate) fn command(dir: &Path, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
    command
        .arg("--data-dir")
        .arg(dir)
        .args(["up", "--name", name, "--bind", "127.0.0.1:0", "--no-mdns"])
        .stdin(Stdio::null());
    command
}

/// The log lies beside the directory: that may be a tiny filesystem.
fn log_path(dir: &Path) -> PathBuf {
    dir.with_extension("log")
}

fn log_of(dir: &Path) -> std::fs::File {
    let path = log_path(dir);
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the log opens")
}

/// Returns what the daemon on `dir` said on its standard error.
pub(crate) fn said(dir: &Path) -> String {
    std::fs::read_to_string(log_path(dir)).unwrap_or_default()
}

/// One keep-alive connection to a daemon, opened when needed.
pub(crate) struct Client {
    socket: PathBuf,
    open: Option<BufReader<UnixStream>>,
}

impl Client {
    /// Sends a request and returns status and body; `Null` if the body is no JSON.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> io::Result<(u16, Value)> {
        let (status, bytes) = self.ask_bytes(method, path, body)?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    /// Sends a request and returns status and body.
    pub(crate) fn ask_bytes(
        &mut self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> io::Result<(u16, Vec<u8>)> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(method, path, &body)?;
        let result = self.receive();
        if result.is_err() {
            self.open = None;
        }
        result
    }

    /// Sends a request and returns its answer's lines as they come.
    pub(crate) fn lines(mut self, path: &str) -> io::Result<impl Iterator<Item = Value>> {
        self.send("GET", path, "")?;
        let mut reader = self.open.take().expect("it was just used");
        let (status, _) = head(&mut reader)?;
        assert_eq!(status, 200, "GET {path}");
        Ok(std::iter::from_fn(move || {
            let chunk = chunk(&mut reader).ok()??;
            Some(serde_json::from_slice(&chunk).expect("a chunk is one line of JSON"))
        }))
    }

    /// Asks for `protocol` on this connection and returns it once both sides speak that.
    pub(crate) fn upgrade(
        self,
        path: &str,
        protocol: &str,
        body: &Value,
    ) -> io::Result<Result<BufReader<UnixStream>, (u16, Value)>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: node\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\
             content-length: {length}\r\n\r\n{body}"
        )?;
        let mut reader = BufReader::new(stream);
        let (status, length) = head(&mut reader)?;
        if status == 101 {
            return Ok(Ok(reader));
        }
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        Ok(Err((
            status,
            serde_json::from_slice(&body).unwrap_or_default(),
        )))
    }

    /// Sends `bytes` as they are and returns status and body.
    pub(crate) fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<(u16, Value)> {
        self.send("PUT", path, bytes)?;
        let (status, body) = self.receive()?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    fn send(&mut self, method: &str, path: &str, body: impl AsRef<[u8]>) -> io::Result<()> {
        if self.open.is_none() {
            let stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            self.open = Some(BufReader::new(stream));
        }
        let stream = self.open.as_mut().expect("it was just opened").get_mut();
        let body = body.as_ref();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: node\r\ncontent-length: {length}\r\n\r\n");
        // At once: who refuses a request by its head may have closed before the rest comes.
        stream.write_all(&[head.as_bytes(), body].concat())
    }

    fn receive(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let reader = self.open.as_mut().expect("a request was sent");
        let (status, length) = head(reader)?;
        let mut body = Vec::new();
        match length {
            Some(length) => {
                body.resize(length, 0);
                reader.read_exact(&mut body)?;
            }
            None => {
                while let Some(chunk) = chunk(reader)? {
                    body.extend(chunk);
                }
            }
        }
        Ok((status, body))
    }
}

fn head(reader: &mut impl BufRead) -> io::Result<(u16, Option<usize>)> {
    let bad = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(bad)?;
    let mut length = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok();
            }
            Some(_) => {}
            None if line.ends_with('\n') => return Ok((status, length)),
            None => return Err(bad()),
        }
    }
}

fn chunk(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let bad = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let size = usize::from_str_radix(line.trim_end(), 16).map_err(|_| bad())?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok((size > 0).then_some(chunk))
}

/// Returns the stable code of an error answer.
pub(crate) fn code(answer: &(u16, Value)) -> &str {
    answer.1["error"]["code"].as_str().unwrap_or_default()
}
