//! One `rhizome` daemon of a lab, driven by the command line that users have.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Host, LabError};

/// How long a daemon may take until it answers.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How often a condition is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(100);
/// How much of a failed command's standard error is kept, in bytes.
const STDERR_TAIL: usize = 2_000;

/// A running daemon; dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    program: PathBuf,
    data_dir: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `program up` on `host` with `data_dir` and waits until it answers.
    ///
    /// What the daemon prints goes to `<data_dir>.log`.
    ///
    /// # Errors
    /// [`LabError::Spawn`] if it cannot be started, [`LabError::Failed`] if it ends at once,
    /// [`LabError::Late`] if it does not answer.
    pub fn start(
        host: &Host,
        program: &Path,
        data_dir: &Path,
        extra: &[&str],
    ) -> Result<Self, LabError> {
        let log_path = data_dir.with_extension("log");
        let at_log = |source| LabError::File {
            path: log_path.clone(),
            source,
        };
        let log = File::create(&log_path).map_err(at_log)?;
        let mut command = host.command(program);
        command.arg("--data-dir").arg(data_dir).args([
            "up",
            "--name",
            &host.name,
            "--bind",
            &host.bind.to_string(),
        ]);
        command
            .args(extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(at_log)?)
            .stderr(log);
        let child = command.spawn().map_err(|source| LabError::Spawn {
            command: describe(&command),
            source,
        })?;
        let mut daemon = Self {
            name: host.name.clone(),
            program: program.to_owned(),
            data_dir: data_dir.to_owned(),
            child,
        };
        let deadline = Instant::now() + START_DEADLINE;
        while !daemon.answers(deadline) {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                let stderr = tail(&std::fs::read(&log_path).unwrap_or_default());
                return Err(LabError::Failed {
                    command: describe(&command),
                    status: status.to_string(),
                    stderr,
                });
            }
            if Instant::now() > deadline {
                let what = format!("the daemon `{}` answers", daemon.name);
                return Err(LabError::Late {
                    what,
                    seconds: START_DEADLINE.as_secs(),
                });
            }
            thread::sleep(POLL);
        }
        Ok(daemon)
    }

    /// Returns whether the daemon says how it is; one that does not answer at all is not waited for.
    fn answers(&self, deadline: Instant) -> bool {
        let mut command = self.command(&["status"]);
        let Ok(mut asked) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            return false;
        };
        loop {
            match asked.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
                _ => {
                    let _ = asked.kill();
                    let _ = asked.wait();
                    return false;
                }
            }
        }
    }

    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory that holds everything the node keeps.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns `rhizome <args>` as a command against this daemon.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs `rhizome <args>` and returns what it printed, without the last line's end.
    ///
    /// # Errors
    /// [`LabError::Failed`] with the command's own words if it fails.
    pub fn output(&self, args: &[&str]) -> Result<String, LabError> {
        run(&mut self.command(args))
    }

    /// Runs `rhizome <args> --json` and returns its objects, one per line.
    ///
    /// # Errors
    /// As [`Self::output`], and [`LabError::Output`] if a line is no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Vec<Value>, LabError> {
        let args = [args, &["--json"]].concat();
        let parse = |line: &str| {
            serde_json::from_str(line).map_err(|_| LabError::Output {
                command: args.join(" "),
                found: line.to_owned(),
            })
        };
        self.output(&args)?
            .lines()
            .filter(|line| !line.is_empty())
            .map(parse)
            .collect()
    }

    /// Runs `rhizome <args>`, hands every line it prints to `seen`, and returns all of them.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn lines(
        &self,
        args: &[&str],
        mut seen: impl FnMut(&str),
    ) -> Result<Vec<String>, LabError> {
        let mut running = self.follow(args)?;
        let mut lines = Vec::new();
        while let Ok(line) = running.lines.recv() {
            seen(&line);
            lines.push(line);
        }
        running.finish()?;
        Ok(lines)
    }

    /// Starts `rhizome <args>` beside us; its lines arrive as they are printed.
    ///
    /// # Errors
    /// [`LabError::Spawn`] if it cannot be started.
    pub fn follow(&self, args: &[&str]) -> Result<Following, LabError> {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let described = describe(&command);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| LabError::Spawn {
            command: described.clone(),
            source,
        })?;
        let stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut stderr = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = std::io::Read::read_to_end(&mut stderr, &mut text);
            tail(&text)
        });
        Ok(Following {
            lines,
            command: described,
            child,
            errors: Some(errors),
        })
    }

    /// Waits until `ready` answers `Some`.
    ///
    /// # Errors
    /// [`LabError::Late`] after `limit`; `what` completes the sentence.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = ready(self) {
                return Ok(value);
            }
            if Instant::now() > deadline {
                return Err(LabError::Late {
                    what: what.to_owned(),
                    seconds: limit.as_secs(),
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the daemon with SIGKILL, and its guests as a machine that goes down does: nobody gets
    /// a chance to say goodbye or to write anything.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.end_guests();
    }

    /// Ends the guests of a daemon that is gone; they outlive it otherwise.
    fn end_guests(&self) {
        if self.data_dir().join("sandboxes").exists() {
            let _ = self.output(&["down", "--sandboxes", "kill"]);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A graceful stop ends sandboxes in order; the kill is for a daemon that hangs.
            let _ = self.output(&["down", "--sandboxes", "kill"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.end_guests();
    }
}

/// A command that runs beside us; dropped, it is killed.
#[derive(Debug)]
pub struct Following {
    /// What it prints, line by line; closed when it has ended.
    pub lines: mpsc::Receiver<String>,
    command: String,
    child: Child,
    errors: Option<thread::JoinHandle<String>>,
}

impl Following {
    /// Waits for the end of the command.
    ///
    /// # Errors
    /// [`LabError::Failed`] if it did not end well.
    pub fn finish(&mut self) -> Result<(), LabError> {
        let waited = self.child.wait();
        let status = waited.map_err(|source| LabError::Spawn {
            command: self.command.clone(),
            source,
        })?;
        let stderr = self
            .errors
            .take()
            .and_then(|errors| errors.join().ok())
            .unwrap_or_default();
        if status.success() {
            return Ok(());
        }
        Err(LabError::Failed {
            command: self.command.clone(),
            status: status.to_string(),
            stderr,
        })
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` and returns what it printed, without the last line's end.
pub(crate) fn run(command: &mut Command) -> Result<String, LabError> {
    let output = command.output().map_err(|source| LabError::Spawn {
        command: describe(command),
        source,
    })?;
    if !output.status.success() {
        let (status, stderr) = (output.status.to_string(), tail(&output.stderr));
        return Err(LabError::Failed {
            command: describe(command),
            status,
            stderr,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// Returns the command line as one would type it, the program by its file name.
fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let args = command
        .get_args()
        .map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(program)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

fn tail(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[text.len().saturating_sub(STDERR_TAIL)..])
        .trim()
        .to_owned()
}
