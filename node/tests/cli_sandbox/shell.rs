//! Shells on a real terminal, and commands that need no client.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    process::{Child, Stdio},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};

use super::Node;

const PATIENCE: Duration = Duration::from_secs(60);

/// A user at a terminal.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    screen: Arc<(Mutex<String>, Condvar)>,
    before: Termios,
}

impl Terminal {
    fn open() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let ours = File::from(ours);
        let screen = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let (mut reader, shown) = (ours.try_clone().unwrap(), Arc::clone(&screen));
        // Ends with the test: the terminal stays open until then.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                shown.0.lock().unwrap().push_str(&text);
                shown.1.notify_all();
            }
        });
        let before = tcgetattr(&theirs).unwrap();
        let terminal = Self {
            ours,
            theirs,
            screen,
            before,
        };
        terminal.resize(30, 100);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.ours, size).unwrap();
    }

    fn start(&self, node: &Node, args: &[&str]) -> Child {
        let end = || Stdio::from(self.theirs.try_clone().unwrap());
        let mut command = node.command(args);
        command.stdin(end()).stdout(end()).stderr(end());
        command.spawn().unwrap()
    }

    fn type_keys(&self, keys: &str) {
        (&self.ours).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown, and forgets all up to it.
    fn wait_for(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        let mut screen = self.screen.0.lock().unwrap();
        loop {
            if let Some(at) = screen.find(text) {
                screen.drain(..at + text.len());
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {text:?} in {screen:?}");
            screen = self.screen.1.wait_timeout(screen, left).unwrap().0;
        }
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn is_as_before(&self) -> bool {
        let now = tcgetattr(&self.theirs).unwrap();
        (now.local_modes, now.input_modes, now.output_modes)
            == (
                self.before.local_modes,
                self.before.input_modes,
                self.before.output_modes,
            )
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn execs(node: &Node) -> Vec<serde_json::Value> {
    let listed = node.ok(&["sandbox", "ps", "box", "--json"]);
    let lines = listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Waits until the command with `word` in its command line is as `wanted`, and returns its id.
fn until(node: &Node, word: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let all = execs(node);
        let found = all
            .iter()
            .find(|exec| exec["command"].as_str().unwrap().contains(word) && wanted(exec));
        if let Some(exec) = found {
            return exec["id"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "{word}: {all:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn a_shell_feels_local(node: &Node) {
    let terminal = Terminal::open();
    let mut shell = terminal.start(node, &["sandbox", "shell", "box", "--env", "PS1=ready> "]);
    terminal.wait_for("ready> ");
    assert!(terminal.is_raw());
    terminal.type_keys("stty size; tty; echo $TERM-$WHO\r");
    terminal.wait_for("30 100\r\n/dev/pts/");
    terminal.wait_for("-agent\r\n");
    // The size follows.
    terminal.resize(41, 121);
    signal(&shell, Signal::WINCH);
    terminal.type_keys("sleep 0.2; stty size\r");
    terminal.wait_for("41 121\r\n");
    // ^C is for the command there, not for us.
    terminal.type_keys("sh -c 'echo go; exec sleep 1000'\r");
    // Before the command has the terminal it would be the shell's.
    terminal.wait_for("\r\ngo\r\n");
    terminal.type_keys("\x03");
    terminal.wait_for("ready> ");
    terminal.type_keys("exit 5\r");
    assert_eq!(shell.wait().unwrap().code(), Some(5));
    assert!(terminal.is_as_before());

    // Left alone, it goes on; attached again, it is the same shell.
    let args = ["sandbox", "shell", "box", "--env", "PS1=again> "];
    let mut shell = terminal.start(node, &args);
    terminal.wait_for("again> ");
    terminal.type_keys("kept=yes\r");
    terminal.wait_for("again> ");
    terminal.type_keys("~d");
    assert_eq!(shell.wait().unwrap().code(), Some(0));
    assert!(terminal.is_as_before());
    terminal.wait_for("detached");
    let id = until(node, "SHELL", |exec| {
        exec["end"].is_null() && exec["attached"] == false
    });
    let mut shell = terminal.start(node, &["sandbox", "attach", "box", &id[..6], "--new"]);
    // The client says nothing until the shell does.
    until(node, "SHELL", |exec| exec["attached"] == true);
    terminal.type_keys("echo $kept-$((1+1))\r");
    terminal.wait_for("yes-2\r\n");
    assert!(terminal.is_raw());
    terminal.type_keys("exit 6\r");
    assert_eq!(shell.wait().unwrap().code(), Some(6));
    assert!(terminal.is_as_before());

    // Whatever ends the client, the terminal is as it was and the shell is gone.
    for (how, code) in [("~.", Some(255)), ("TERM", Some(143)), ("KILL", None)] {
        let mut shell = terminal.start(node, &["sandbox", "shell", "box", "--env", "PS1=x> "]);
        terminal.wait_for("x> ");
        match how {
            "TERM" => signal(&shell, Signal::TERM),
            "KILL" => signal(&shell, Signal::KILL),
            keys => terminal.type_keys(keys),
        }
        assert_eq!(shell.wait().unwrap().code(), code, "{how}");
        if code.is_some() {
            assert!(terminal.is_as_before(), "{how}");
        }
        until(node, "SHELL", |exec| exec["end"]["signal"] == 9);
        assert!(
            execs(node).iter().all(|exec| !exec["end"].is_null()),
            "{how}"
        );
    }
}

pub(super) fn commands_need_no_client(node: &Node) {
    let script = "echo one; sleep 0.3; echo two >&2; exit 4";
    let id = node.ok(&[
        "sandbox", "exec", "box", "--detach", "--", "sh", "-c", script,
    ]);
    let attached = node.run(&["sandbox", "attach", "box", id.trim()]);
    assert_eq!(attached.status.code(), Some(4));
    assert_eq!(attached.stdout, b"one\n");
    assert!(attached.stderr.ends_with(b"two\n"));
    let shown = node.ok(&["sandbox", "ps", "box"]);
    assert!(
        shown.contains("exit 4") && shown.contains(id.trim()),
        "{shown}"
    );

    let id = node.ok(&["sandbox", "exec", "box", "--detach", "--", "sleep", "4242"]);
    node.ok(&["sandbox", "signal", "box", &id[..5], "TERM"]);
    until(node, "4242", |exec| exec["end"]["signal"] == 15);
    let unknown = node.run(&["sandbox", "attach", "box", "0000000000000000"]);
    assert_eq!(unknown.status.code(), Some(1));

    // A client that is killed takes its command with it, and what that started.
    let mut client = node.command(&[
        "sandbox",
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "sleep 4343 & echo up; sleep 4343",
    ]);
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    client.kill().unwrap();
    client.wait().unwrap();
    until(node, "4343", |exec| exec["end"]["signal"] == 9);
    // Those who ask do not have the number in their own words.
    let left = "grep -l '434[3]' /proc/[0-9]*/cmdline 2> /dev/null | wc -l";
    let left = node.ok(&["sandbox", "exec", "box", "--", "sh", "-c", left]);
    assert_eq!(left.trim(), "0");
}

pub(super) fn ports_and_changes_come_out(node: &Node) {
    let serve = "nc -l -p 8080 -e cat";
    node.ok(&[
        "sandbox", "exec", "box", "--detach", "--", "sh", "-c", serve,
    ]);
    let mut forward = node.command(&["sandbox", "forward", "box", "0:8080"]);
    let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(forward.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let here = line.split(" -> ").next().unwrap();
    let until = Instant::now() + PATIENCE;
    let back = loop {
        // Until the server listens its port is refused, which shows as an early end.
        let mut socket = TcpStream::connect(here).unwrap();
        let mut back = String::new();
        let sent = socket.write_all(b"round trip");
        let _ = socket.shutdown(std::net::Shutdown::Write);
        if sent.is_ok() && socket.read_to_string(&mut back).is_ok() && !back.is_empty() {
            break back;
        }
        assert!(Instant::now() < until, "nothing comes back");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(back, "round trip");
    forward.kill().unwrap();
    forward.wait().unwrap();

    let mut watch = node.command(&["sandbox", "watch-dir", "box", "/root", "--recursive"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(watch.stdout.take().unwrap());
    // Nothing says that it has begun, so it is given something to see until it does.
    let (tell, told) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        tell.send(()).unwrap();
        line
    });
    while told.try_recv().is_err() {
        node.ok(&["sandbox", "exec", "box", "--", "touch", "/root/seen"]);
    }
    let line = reading.join().unwrap();
    assert!(line.ends_with(" seen\n"), "{line:?}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let missing = node.run(&["sandbox", "watch-dir", "box", "/no/such"]);
    assert_eq!(missing.status.code(), Some(1));
}
