//! The sandbox verbs of the command line on a real microVM.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "cli_sandbox/shell.rs"]
mod shell;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A daemon with sandboxes, stopped when dropped. Kernel and image are kept between runs.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
        let up = [
            "up",
            "--detach",
            "--no-mdns",
            "--bind",
            "127.0.0.1:0",
            "--name",
            "host",
            "--images-dir",
        ];
        node.ok(&[&up[..], &[images.to_str().unwrap()]].concat());
        node
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command
            .env_remove("RHIZOME_DATA")
            .env_remove("RHIZOME_SOCKET")
            .stdin(Stdio::null());
        command.arg("--data-dir").arg(self.path("node")).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.run(&["down", "--sandboxes", "kill"]);
    }
}

#[test]
fn a_sandbox_is_made_worked_in_and_ended() {
    let found = Command::new("qemu-system-x86_64").arg("--version").output();
    if found.is_err() {
        eprintln!("skipped: a_sandbox_is_made_worked_in_and_ended: there is no QEMU here");
        return;
    }
    let node = Node::start();
    let made = node.ok(&["sandbox", "create", "--name", "box", "--env", "WHO=agent"]);
    assert!(made.contains("named box runs minimal"), "{made}");
    let twice = node.run(&["sandbox", "create", "--name", "box"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(node.ok(&["image", "list"]).contains("minimal"));

    // Output, environment and exit codes are the command's own.
    let said = node.run(&[
        "sandbox",
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "echo $WHO; echo err >&2; exit 7",
    ]);
    assert_eq!(said.status.code(), Some(7));
    assert_eq!(
        (said.stdout, said.stderr),
        (b"agent\n".to_vec(), b"err\n".to_vec())
    );
    let killed = node.run(&["sandbox", "exec", "box", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9));
    let late = node.run(&[
        "sandbox",
        "exec",
        "box",
        "--timeout",
        "1s",
        "--",
        "sleep",
        "60",
    ]);
    assert_eq!(late.status.code(), Some(124));
    let missing = node.run(&["sandbox", "exec", "box", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-program"));

    let mut cat = node.command(&["sandbox", "exec", "box", "--stdin", "--", "cat"]);
    let mut cat = cat
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let (mut stdin, copy) = (cat.stdin.take().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let back = cat.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(back.status.success() && back.stdout == sent);

    // A tree goes in and comes back as it was.
    let tree = node.path("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::write(tree.join("one.bin"), &sent).unwrap();
    fs::write(tree.join("deep/er/two.txt"), "two").unwrap();
    node.ok(&["sandbox", "cp", tree.to_str().unwrap(), "box:/root/tree"]);
    assert_eq!(
        node.ok(&[
            "sandbox",
            "exec",
            "box",
            "--",
            "cat",
            "/root/tree/deep/er/two.txt"
        ]),
        "two"
    );
    let home = node.path("home");
    node.ok(&["sandbox", "cp", "box:/root/tree", home.to_str().unwrap()]);
    assert_eq!(fs::read(home.join("one.bin")).unwrap(), sent);
    assert_eq!(
        fs::read_to_string(home.join("deep/er/two.txt")).unwrap(),
        "two"
    );
    let absent = node.run(&["sandbox", "cp", "box:/root/absent", home.to_str().unwrap()]);
    assert_eq!(absent.status.code(), Some(1));

    shell::a_shell_feels_local(&node);
    shell::commands_need_no_client(&node);
    shell::ports_and_changes_come_out(&node);

    node.ok(&[
        "sandbox",
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "echo said on the console > /dev/console",
    ]);
    assert!(
        node.ok(&["sandbox", "logs", "box"])
            .contains("said on the console")
    );
    let listed: serde_json::Value =
        serde_json::from_str(node.ok(&["sandbox", "list", "--json"]).trim()).unwrap();
    assert_eq!(
        (&listed["name"], &listed["state"], &listed["schema"]),
        (&"box".into(), &"ready".into(), &1.into())
    );
    let id = listed["id"].as_str().unwrap();
    node.ok(&["sandbox", "kill", &id[..8]]);
    assert!(!node.ok(&["sandbox", "list"]).contains("box"));
    let gone = node.run(&["sandbox", "exec", "box", "--", "true"]);
    assert_eq!(gone.status.code(), Some(1));
}
