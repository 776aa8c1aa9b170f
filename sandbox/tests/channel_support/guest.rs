//! The real agent as an ordinary process at the other end of a socket pair.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its share; what a test prepares has to work"
)]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use rhizome_sandbox::channel::{ChannelLimits, DoorStream, ExecOutput, ExecRequest, GuestChannel};
use tokio::{net::UnixStream, sync::mpsc};

pub(crate) struct Guest {
    pub(crate) channel: GuestChannel,
    pub(crate) doors: mpsc::Receiver<DoorStream>,
    pub(crate) door_port: u16,
    pub(crate) dir: tempfile::TempDir,
    process: Child,
}

impl Guest {
    pub(crate) async fn start() -> Self {
        Self::start_with(ChannelLimits::default()).await
    }

    pub(crate) async fn start_with(limits: ChannelLimits) -> Self {
        Self::start_as(limits, &[]).await
    }

    /// Starts an agent with more options.
    pub(crate) async fn start_as(limits: ChannelLimits, options: &[&str]) -> Self {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut process = agent(
            &[&["serve", "--fd", "0"], options].concat(),
            Stdio::from(std::os::fd::OwnedFd::from(far)),
        );
        let door_port = door_port(&mut process);
        near.set_nonblocking(true).unwrap();
        let stream = UnixStream::from_std(near).unwrap();
        let (channel, doors) = GuestChannel::start(stream, limits).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        Self {
            channel,
            doors,
            door_port,
            dir,
            process,
        }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) async fn run(&self, request: ExecRequest) -> ExecOutput {
        let handle = self.channel.exec(request).await.unwrap();
        handle.output(64 << 20).await.unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the agent; it is given nothing of the tests' environment but what it must not leak.
pub(crate) fn agent(args: &[&str], stdin: Stdio) -> Child {
    let binary = Path::new(env!("RHIZOME_GUEST_BINARY"));
    Command::new(binary)
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads where the agent's door listens.
pub(crate) fn door_port(process: &mut Child) -> u16 {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    line.trim().strip_prefix("door ").unwrap().parse().unwrap()
}

pub(crate) fn sh(script: &str) -> ExecRequest {
    ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    }
}

/// An agent behind a listening socket, as behind a virtio port: hosts connect one after another.
pub(crate) struct Listening {
    pub(crate) process: Child,
    pub(crate) dir: tempfile::TempDir,
}

impl Listening {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an agent with more options.
    pub(crate) async fn start_with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        let run = dir.path().join("run");
        let fixed = [
            "serve",
            "--socket",
            path.to_str().unwrap(),
            "--run-dir",
            run.to_str().unwrap(),
        ];
        let mut process = agent(&[&fixed, options].concat(), Stdio::null());
        door_port(&mut process);
        Self { process, dir }
    }

    pub(crate) async fn stream(&self) -> UnixStream {
        loop {
            match UnixStream::connect(self.dir.path().join("port")).await {
                Ok(stream) => return stream,
                // It says where its door is before it listens.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
    }

    pub(crate) async fn connect(&self) -> GuestChannel {
        let stream = self.stream().await;
        GuestChannel::start(stream, ChannelLimits::default())
            .await
            .unwrap()
            .0
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until no process has this number.
pub(crate) async fn process_ends(pid: u32) {
    let path = format!("/proc/{pid}");
    while Path::new(&path).exists() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
