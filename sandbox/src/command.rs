//! Helper programs of the host, run with a deadline and their last words kept.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::Command,
};

/// Lines of a failed program's output that its error carries.
const TAIL_LINES: usize = 12;
/// Longest line kept, in bytes.
const LINE_BYTES: usize = 400;
/// Most bytes of standard output that [`Helper::output`] returns.
const OUTPUT_BYTES: u64 = 8 * 1024 * 1024;

/// Why a helper program did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The program is not installed.
    #[error("`{program}` is not installed")]
    NotFound {
        /// Its name.
        program: String,
    },
    /// It could not be started or watched.
    #[error("cannot run `{program}`")]
    Io {
        /// Its name.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It reported a failure.
    #[error("`{program}` failed ({status}): {tail}")]
    Failed {
        /// Its name.
        program: String,
        /// Its exit status.
        status: String,
        /// The last lines it wrote.
        tail: String,
    },
    /// It did not end in time.
    #[error("`{program}` did not end within {} seconds: {tail}", limit.as_secs())]
    TimedOut {
        /// Its name.
        program: String,
        /// How long it was given.
        limit: Duration,
        /// The last lines it wrote.
        tail: String,
    },
}

impl CommandError {
    /// Returns how to install a program that is missing.
    pub fn hint(&self) -> Option<String> {
        let Self::NotFound { program } = self else {
            return None;
        };
        Some(match package_of(program) {
            Some(package) => format!("install it with `apt-get install {package}`"),
            None => format!("install `{program}` and see that it is on PATH"),
        })
    }
}

/// Returns the Debian package that carries a program.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    Some(match program {
        "qemu-system-x86_64" => "qemu-system-x86",
        "mmdebstrap" => "mmdebstrap",
        "mkfs.erofs" => "erofs-utils",
        "mkfs.ext4" => "e2fsprogs",
        "apt-get" | "apt-cache" => "apt",
        "dpkg-deb" => "dpkg",
        "prlimit" | "setpriv" | "setsid" | "unshare" => "util-linux",
        "xz" => "xz-utils",
        "zstd" => "zstd",
        "gzip" => "gzip",
        _ => return None,
    })
}

/// Finds a program on `PATH`, and in the system directories that a user's `PATH` may lack.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A helper program about to run.
#[derive(Debug)]
pub(crate) struct Helper {
    name: String,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    limit: Duration,
}

impl Helper {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            args: Vec::new(),
            env: vec![("LC_ALL".into(), "C.UTF-8".into())],
            cwd: None,
            limit: Duration::from_secs(300),
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn cwd(mut self, dir: &Path) -> Self {
        self.cwd = Some(dir.to_owned());
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to a successful end; every line it writes is handed to `on_line`.
    pub(crate) async fn run(self, mut on_line: impl FnMut(&str)) -> Result<(), CommandError> {
        let mut child = self.spawn(Stdio::piped())?;
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let err = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut tail = Tail::default();
        let talk = async {
            let (mut out, mut err) = (Lines::new(out), Lines::new(err));
            loop {
                let line = tokio::select! {
                    line = out.next(), if !out.done => line,
                    line = err.next(), if !err.done => line,
                    else => break,
                };
                if let Some(line) = line {
                    tail.push(&line);
                    on_line(&line);
                }
            }
            child.wait().await
        };
        let ended = tokio::time::timeout(self.limit, talk).await;
        self.judge(ended, tail.text())
    }

    /// Runs it to a successful end and returns what it wrote to standard output.
    pub(crate) async fn output(self) -> Result<Vec<u8>, CommandError> {
        use tokio::io::AsyncReadExt;
        let mut child = self.spawn(Stdio::piped())?;
        let out = child.stdout.take().expect("stdout is piped");
        let err = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut bytes = Vec::new();
        let mut tail = Tail::default();
        let mut limited = out.take(OUTPUT_BYTES);
        let talk = async {
            let errors = async {
                let mut err = Lines::new(err);
                while !err.done {
                    if let Some(line) = err.next().await {
                        tail.push(&line);
                    }
                }
            };
            let (read, ()) = tokio::join!(limited.read_to_end(&mut bytes), errors);
            read?;
            child.wait().await
        };
        let ended = tokio::time::timeout(self.limit, talk).await;
        self.judge(ended, tail.text())?;
        Ok(bytes)
    }

    fn spawn(&self, stdout: Stdio) -> Result<tokio::process::Child, CommandError> {
        let Some(program) = find_program(&self.name) else {
            return Err(CommandError::NotFound {
                program: self.name.clone(),
            });
        };
        let mut command = Command::new(program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        command.spawn().map_err(|source| CommandError::Io {
            program: self.name.clone(),
            source,
        })
    }

    fn judge(
        &self,
        ended: Result<io::Result<std::process::ExitStatus>, tokio::time::error::Elapsed>,
        tail: String,
    ) -> Result<(), CommandError> {
        let program = self.name.clone();
        match ended {
            Err(_) => Err(CommandError::TimedOut {
                program,
                limit: self.limit,
                tail,
            }),
            Ok(Err(source)) => Err(CommandError::Io { program, source }),
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(CommandError::Failed {
                program,
                status: status.to_string(),
                tail,
            }),
        }
    }
}

/// The last lines of an output.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<String>);

impl Tail {
    pub(crate) fn push(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.0.len() == TAIL_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().cloned().collect::<Vec<_>>().join(" | ")
    }
}

/// Lines of a foreign program, lossy and cut at [`LINE_BYTES`].
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    partial: Vec<u8>,
    pub(crate) done: bool,
}

impl<R: AsyncRead + Unpin + tokio::io::AsyncBufRead> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            partial: Vec::new(),
            done: false,
        }
    }

    /// Returns the next line; `None` once at the end (then `done` is set). Cancel safe: what was
    /// read stays in `partial`.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            let available = match self.reader.fill_buf().await {
                Ok(bytes) if !bytes.is_empty() => bytes,
                _ => {
                    self.done = true;
                    let rest = std::mem::take(&mut self.partial);
                    return (!rest.is_empty()).then(|| text_of(&rest));
                }
            };
            let end = available.iter().position(|&b| b == b'\n' || b == b'\r');
            let used = end.map_or(available.len(), |at| at + 1);
            let keep = end.unwrap_or(used);
            let room = LINE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&available[..keep.min(room)]);
            self.reader.consume(used);
            if end.is_some() {
                return Some(text_of(&std::mem::take(&mut self.partial)));
            }
        }
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control() || *c == '\t')
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_program_says_which_package_has_it() {
        let error = CommandError::NotFound {
            program: "mkfs.erofs".into(),
        };
        assert!(error.hint().unwrap().contains("erofs-utils"));
        let error = Helper::new("no-such-program-here")
            .output()
            .await
            .unwrap_err();
        assert!(matches!(error, CommandError::NotFound { .. }));
    }

    #[tokio::test]
    async fn a_failure_carries_the_last_lines() {
        let mut lines = Vec::new();
        let error = Helper::new("sh")
            .args(["-c", "echo one; echo two >&2; exit 3"])
            .run(|line| lines.push(line.to_owned()))
            .await
            .unwrap_err();
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
        let CommandError::Failed { tail, .. } = error else {
            panic!("{error}")
        };
        assert!(tail.contains("two"));
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended() {
        let error = Helper::new("sleep")
            .arg("100")
            .limit(Duration::from_millis(50))
            .run(|_| {})
            .await
            .unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }));
    }
}
