//! Cloud Hypervisor's REST interface, through its published client.
//!
//! The client is made for monitors that are trusted: it reads an answer of whatever length, and
//! connects to a path. A monitor may have been taken over by its guest, so the client is given a
//! socket of ours, behind which every connection goes on to the monitor's, with a bound on what
//! comes back ([`carry`]); it also takes paths of any depth. An answer that does not come is given
//! up.

use std::{
    fmt, fs, io,
    os::{fd::AsRawFd, unix::net::UnixListener as StdListener},
    path::{Path, PathBuf},
    time::Duration,
};

use cloud_hypervisor_client::{
    SocketBasedApiClient,
    apis::{DefaultApi, Error},
    models::{RestoreConfig, VmConfig, VmSnapshotConfig, VmState},
    socket_based_api_client,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

use crate::driver::{
    DriverError,
    launch::{CONTROL_SOCKET, control, io_error},
    sockets,
};

/// The socket of ours, in the VM's directory.
const RELAY_SOCKET: &str = "api.sock";
/// Time an answer may take: to stop a guest, its disks' requests have to end.
const LIMIT: Duration = Duration::from_secs(10);
/// Time in which a guest is saved or restored; both copy its memory.
const COPY_LIMIT: Duration = Duration::from_secs(120);
/// What may come back on one connection, in bytes; the longest answer has some 20 KiB.
const MAX_ANSWERS_BYTES: u64 = 16 * 1024 * 1024;
/// Longest text of the monitor's that an error carries.
const MAX_TEXT_CHARS: usize = 300;

/// A monitor's interface.
pub(super) struct Api {
    client: SocketBasedApiClient,
    relay: JoinHandle<()>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

impl Api {
    /// Makes ready to speak with the monitor of a directory; connects with the first question.
    pub(super) fn open(dir: &Path) -> Result<Self, DriverError> {
        let path = dir.join(RELAY_SOCKET);
        let open = || {
            // A former daemon's.
            let _ = fs::remove_file(&path);
            let at = fs::File::open(dir)?;
            let through = format!("/proc/self/fd/{}/{RELAY_SOCKET}", at.as_raw_fd());
            let listener = StdListener::bind(&through)?;
            listener.set_nonblocking(true)?;
            Ok((UnixListener::from_std(listener)?, at, through))
        };
        let (listener, at, through) = open().map_err(io_error(&path))?;
        let client = socket_based_api_client(through);
        let relay = tokio::spawn(relay(listener, dir.to_owned(), at));
        Ok(Self { client, relay })
    }

    /// Asks whether anyone is there.
    pub(super) async fn ping(&self) -> Result<(), DriverError> {
        let answer = timed(LIMIT, self.client.vmm_ping_get()).await;
        answer.map(drop).map_err(control("greet"))
    }

    pub(super) async fn create(&self, config: VmConfig) -> Result<(), DriverError> {
        let made = timed(LIMIT, self.client.create_vm(config)).await;
        made.map_err(control("make its machine"))
    }

    pub(super) async fn boot(&self) -> Result<(), DriverError> {
        let booted = timed(LIMIT, self.client.boot_vm()).await;
        booted.map_err(control("let its guest begin"))
    }

    pub(super) async fn pause(&self) -> Result<(), DriverError> {
        let paused = timed(LIMIT, self.client.pause_vm()).await;
        paused.map_err(control("stop its guest"))
    }

    pub(super) async fn resume(&self) -> Result<(), DriverError> {
        let resumed = timed(LIMIT, self.client.resume_vm()).await;
        resumed.map_err(control("let its guest run"))
    }

    pub(super) async fn snapshot(&self, url: String) -> Result<(), DriverError> {
        let mut to = VmSnapshotConfig::new();
        to.destination_url = Some(url);
        let saved = timed(COPY_LIMIT, self.client.vm_snapshot_put(to)).await;
        saved.map_err(control("save its guest"))
    }

    pub(super) async fn restore(&self, url: String) -> Result<(), DriverError> {
        let mut from = RestoreConfig::new(url);
        from.prefault = Some(false);
        let restored = timed(COPY_LIMIT, self.client.vm_restore_put(from)).await;
        restored.map_err(control("restore its guest"))
    }

    /// Returns how the guest stands.
    pub(super) async fn state(&self) -> io::Result<VmState> {
        Ok(timed(LIMIT, self.client.vm_info_get()).await?.state)
    }
}

async fn timed<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> io::Result<T> {
    let answer = tokio::time::timeout(limit, answer).await;
    answer
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        .map_err(told)
}

fn told(error: Error) -> io::Error {
    match error {
        Error::Api(refused) => io::Error::other(format!(
            "the monitor refused ({}): {}",
            refused.code.as_u16(),
            reason(&refused.body)
        )),
        Error::Serde(_) => io::Error::new(
            io::ErrorKind::InvalidData,
            "the monitor's answer is not what it should be",
        ),
        other => io::Error::other(plain(&other.to_string())),
    }
}

/// Returns what the monitor says of a refusal: a list, from what was asked to what went wrong.
fn reason(body: &str) -> String {
    let said = match serde_json::from_str::<Vec<String>>(body) {
        // What follows its first line is where in its code.
        Ok(list) => list
            .last()
            .and_then(|last| last.lines().next())
            .unwrap_or_default()
            .to_owned(),
        Err(_) => body.to_owned(),
    };
    match plain(&said) {
        said if said.is_empty() => "it does not say why".to_owned(),
        said => said,
    }
}

/// Returns what of the monitor's words may be shown.
fn plain(text: &str) -> String {
    let kept = |c: &char| c.is_ascii_graphic() || *c == ' ';
    text.chars().filter(kept).take(MAX_TEXT_CHARS).collect()
}

/// Carries the client's connections to the monitor. `at` keeps the client's path open.
async fn relay(listener: UnixListener, dir: PathBuf, at: fs::File) {
    let mut carried = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        // The client has one open at a time, and those that are over are forgotten here.
        while carried.try_join_next().is_some() {}
        let dir = dir.clone();
        carried.spawn(async move {
            if let Ok(monitor) = sockets::connect(&dir, CONTROL_SOCKET, None).await {
                carry(client, monitor).await;
            }
        });
    }
    drop(at);
}

/// Carries one connection until either side ends it, or the monitor has said too much.
async fn carry(client: UnixStream, monitor: UnixStream) {
    let (mut asked, mut answered) = client.into_split();
    let (answers, mut asks) = monitor.into_split();
    let mut answers = answers.take(MAX_ANSWERS_BYTES);
    tokio::select! {
        _ = copy(&mut asked, &mut asks) => {}
        _ = copy(&mut answers, &mut answered) => {}
    }
    let _ = answered.shutdown().await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    fn listen(dir: &Path) -> UnixListener {
        let listener = StdListener::from(sockets::listen(dir, CONTROL_SOCKET).unwrap());
        listener.set_nonblocking(true).unwrap();
        UnixListener::from_std(listener).unwrap()
    }

    /// A monitor that gives this answer to everything.
    fn monitor(status: &str, body: &str) -> (tempfile::TempDir, Api) {
        let home = tempfile::tempdir().unwrap();
        // Deeper than a socket's path may be.
        let dir = home.path().join("d".repeat(120));
        fs::create_dir(&dir).unwrap();
        let listener = listen(&dir);
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap_or(0) > 2 {
                    line.clear();
                }
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let api = Api::open(&dir).unwrap();
        (home, api)
    }

    #[tokio::test]
    async fn an_answer_is_read_and_a_refusal_says_why() {
        let (_home, api) = monitor("200 OK", r#"{"version":"54.0.0","pid":1234567}"#);
        api.ping().await.unwrap();

        let refusal = r#"["Error from API","no \u001b room\nat 0x1"]"#;
        let (_home, api) = monitor("500 Internal Server Error", refusal);
        let error = api.pause().await.unwrap_err();
        let DriverError::Control { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(source.to_string(), "the monitor refused (500): no  room");
    }

    #[tokio::test]
    async fn a_monitor_that_lies_is_given_up() {
        for (status, body) in [
            ("999", ""),
            ("garbage", ""),
            ("200 OK", "{}x"),
            ("200 OK", "[]"),
        ] {
            let (_home, api) = monitor(status, body);
            let error = api.ping().await.unwrap_err();
            assert!(matches!(error, DriverError::Control { .. }), "{error:?}");
        }
        // Nobody there.
        let home = tempfile::tempdir().unwrap();
        let api = Api::open(home.path()).unwrap();
        let error = api.ping().await.unwrap_err();
        assert!(matches!(error, DriverError::Control { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn of_an_answer_without_end_a_bounded_part_is_held() {
        let home = tempfile::tempdir().unwrap();
        let listener = listen(home.path());
        let sent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let mut sent = 0_u64;
            while stream.write_all(&[b' '; 64 * 1024]).await.is_ok() {
                sent += 64 * 1024;
            }
            sent
        });
        let api = Api::open(home.path()).unwrap();
        let error = api.ping().await.unwrap_err();
        assert!(matches!(error, DriverError::Control { .. }), "{error:?}");
        assert!(sent.await.unwrap() < 2 * MAX_ANSWERS_BYTES);
    }
}
