//! A daemon of the built program, and its command line.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A daemon; dropped, it is killed.
pub(crate) struct Node {
    pub(crate) child: Child,
    data_dir: String,
}

impl Node {
    /// Starts one below `dir` on loopback, and returns once it answers.
    pub(crate) fn start(dir: &Path, index: usize, more: &[&str]) -> Self {
        let data_dir = dir
            .join(format!("node{index}"))
            .to_string_lossy()
            .into_owned();
        let child = Command::new(env!("CARGO_BIN_EXE_rhizome"))
            .args(["--data-dir", &data_dir, "up", "--bind", "127.0.0.1:0"])
            .args(["--no-mdns", "--name", &format!("node{index}")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let node = Self { child, data_dir };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node
            .command(&["status"])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            assert!(Instant::now() < deadline, "the daemon does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        node
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command.args(["--data-dir", &self.data_dir]).args(args);
        command
    }

    /// Runs a command and returns what it prints.
    pub(crate) fn rhizome(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("the command runs");
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
