//! A daemon in the background: the parent waits until the child answers, or shows why it will not.
use std::{
    env,
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    process::Stdio,
};

use tokio::{io::AsyncReadExt, process::Command};

use super::StartError;
use crate::config::UpFlags;

/// Set for a child that says on its standard output when it is ready.
const READY_ENV: &str = "RHIZOME_READY_STDOUT";
/// What it says.
const READY_WORD: &[u8] = b"ready\n";
/// How much of the log's end is shown when the child dies, in bytes.
const LAST_WORDS_BYTES: u64 = 2_000;

/// Starts this very program as `up` in the background; returns its process id once it answers.
///
/// Its log goes to `daemon.log` in the data directory.
///
/// # Errors
/// [`StartError::Died`] with the child's last words if it ends before it is ready.
pub async fn detach(data_dir: &Path, flags: &UpFlags) -> Result<u32, StartError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(StartError::Spawn)?;
    let data_dir = std::path::absolute(data_dir).map_err(StartError::Spawn)?;
    let log_path = data_dir.join("daemon.log");
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(StartError::Spawn)?;
    let log_begin = log.metadata().map_or(0, |meta| meta.len());
    let program = env::current_exe().map_err(StartError::Spawn)?;
    let mut child = Command::new(program)
        .arg("--data-dir")
        .arg(&data_dir)
        .arg("up")
        .args(flags.to_args())
        .env(READY_ENV, "1")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(StartError::Spawn)?;
    let pid = child.id().unwrap_or_default();
    let mut stdout = child.stdout.take().expect("standard output is piped");
    let mut word = vec![0; READY_WORD.len()];
    match stdout.read_exact(&mut word).await {
        Ok(_) if word == READY_WORD => Ok(pid),
        _ => {
            let _ = child.start_kill();
            let _ = child.wait().await;
            Err(StartError::Died {
                last_words: last_words(&log_path, log_begin),
            })
        }
    }
}

/// Tells the process that detached this one, if one did, that the daemon answers.
pub(crate) fn signal_ready() {
    if env::var_os(READY_ENV).is_none() {
        return;
    }
    // Away from the terminal's session, whose end must not end the daemon.
    let _ = rustix::process::setsid();
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(READY_WORD).and_then(|()| stdout.flush());
}

fn last_words(log: &Path, begin: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(
            begin.max(end.saturating_sub(LAST_WORDS_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.take(LAST_WORDS_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(words) if !words.is_empty() => words,
        _ => format!("it said nothing in `{}`", log.display()),
    }
}
