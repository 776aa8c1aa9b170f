//! A daemon of the built program, and its command line.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A daemon; dropped, it is killed.
pub(crate) struct Node {
    pub(crate) child: Child,
    data_dir: PathBuf,
}

impl Node {
    /// Starts one below `dir` on loopback, and returns once it answers.
    pub(crate) fn start(dir: &Path, index: usize, more: &[&str]) -> Self {
        let data_dir = dir.join(format!("node{index}"));
        let child = rhizome(&data_dir)
            .args(["up", "--bind", "127.0.0.1:0"])
            .args(["--no-mdns", "--name", &format!("node{index}")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let node = Self { child, data_dir };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node.output(&["status"]).status.success() {
            assert!(Instant::now() < deadline, "the daemon does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        node
    }

    /// Returns our command line, which asks this daemon.
    pub(crate) fn command(&self) -> Command {
        rhizome(&self.data_dir)
    }

    /// The socket of the daemon's API.
    pub(crate) fn socket(&self) -> PathBuf {
        self.data_dir.join("api.sock")
    }

    /// Runs a command, which may fail.
    pub(crate) fn output(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        let output = command.args(args).stdin(Stdio::null()).output();
        output.expect("the command runs")
    }

    /// Runs a command and returns what it prints.
    pub(crate) fn rhizome(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Joins the mesh of `founder`, in which it may write.
    pub(crate) fn join(&self, founder: &Self) {
        let asked = ["invite", "create", "--space", "findings", "--uses", "9"];
        let invite = founder.rhizome(&asked);
        let mut lines = invite.lines();
        let invite = lines.find(|line| line.starts_with("RHZ1"));
        self.rhizome(&["join", invite.expect("an invite is printed")]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rhizome(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
    command.arg("--data-dir").arg(data_dir);
    command
}
