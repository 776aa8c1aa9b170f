//! Programs on a terminal, run by the real agent as an ordinary process.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use std::collections::BTreeMap;

use rhizome_sandbox::channel::{ExecEvent, ExecHandle, ExecRequest, ExitStatus, PtySize};
use support::{Guest, sh};

const SIZE: PtySize = PtySize {
    rows: 33,
    columns: 111,
};

fn on_terminal(script: &str) -> ExecRequest {
    ExecRequest {
        pty: Some(SIZE),
        stdin: true,
        ..sh(script)
    }
}

/// What a terminal showed so far.
#[derive(Default)]
struct Screen(String);

impl Screen {
    /// Reads until `text` is shown.
    async fn wait_for(&mut self, handle: &mut ExecHandle, text: &str) {
        while !self.0.contains(text) {
            match handle.events.recv().await.unwrap().unwrap() {
                ExecEvent::Stdout(data) => self.0.push_str(&String::from_utf8_lossy(&data)),
                other => panic!("{other:?} after {:?}", self.0),
            }
        }
    }

    async fn end(&mut self, handle: &mut ExecHandle) -> ExitStatus {
        loop {
            match handle.events.recv().await.unwrap().unwrap() {
                ExecEvent::Stdout(data) => self.0.push_str(&String::from_utf8_lossy(&data)),
                ExecEvent::Exit(status) => return status,
                ExecEvent::Stderr(data) => panic!("{data:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_terminal_has_a_size_that_changes() {
    let guest = Guest::start().await;
    let script = "trap 'stty size; exit 4' WINCH; stty size; tty; echo err >&2; \
                  while :; do sleep 0.01; done";
    let mut handle = guest.channel.exec(on_terminal(script)).await.unwrap();
    let mut screen = Screen::default();
    screen.wait_for(&mut handle, "err\r\n").await;
    assert!(
        screen.0.starts_with("33 111\r\n/dev/pts/"),
        "{:?}",
        screen.0
    );
    let size = PtySize {
        rows: 50,
        columns: 200,
    };
    handle.resize(size).await.unwrap();
    let end = screen.end(&mut handle).await;
    assert!(screen.0.ends_with("50 200\r\n"), "{:?}", screen.0);
    assert_eq!(end, ExitStatus::Code(4));
}

#[tokio::test]
async fn keys_become_signals_and_ends() {
    let guest = Guest::start().await;
    let script = "trap 'echo caught' INT; echo up; cat; echo after; cat; echo end";
    let mut handle = guest.channel.exec(on_terminal(script)).await.unwrap();
    let mut screen = Screen::default();
    screen.wait_for(&mut handle, "up\r\n").await;
    handle.write_stdin("typed\r").await.unwrap();
    // Once as the terminal's echo, once from `cat`.
    screen.wait_for(&mut handle, "typed\r\ntyped\r\n").await;
    handle.write_stdin("\x03").await.unwrap();
    screen.wait_for(&mut handle, "caught\r\nafter\r\n").await;
    handle.write_stdin("\x04").await.unwrap();
    let end = screen.end(&mut handle).await;
    assert!(screen.0.ends_with("end\r\n"), "{:?}", screen.0);
    assert_eq!(end, ExitStatus::Code(0));
}

#[tokio::test]
async fn the_end_of_input_is_an_end_for_a_terminal_too() {
    let guest = Guest::start().await;
    let mut handle = guest
        .channel
        .exec(on_terminal("cat; exit 6"))
        .await
        .unwrap();
    handle.close_stdin().await.unwrap();
    assert_eq!(
        Screen::default().end(&mut handle).await,
        ExitStatus::Code(6)
    );
}

#[tokio::test]
async fn the_environment_is_that_of_a_login() {
    let guest = Guest::start().await;
    let mut request = on_terminal("echo $TERM $SHELL $USER $HOME $LANG; ps -o tty= -p $$ || true");
    let mut handle = guest.channel.exec(request.clone()).await.unwrap();
    let mut screen = Screen::default();
    screen.end(&mut handle).await;
    if rustix::process::getuid().is_root() {
        assert!(
            screen.0.starts_with("xterm-256color /bin/"),
            "{:?}",
            screen.0
        );
        assert!(screen.0.contains("root /root C.UTF-8"), "{:?}", screen.0);
    }
    request.env = BTreeMap::from([("TERM".to_owned(), "vt100".to_owned())]);
    let mut handle = guest.channel.exec(request).await.unwrap();
    let mut screen = Screen::default();
    screen.end(&mut handle).await;
    assert!(screen.0.starts_with("vt100 "), "{:?}", screen.0);
}

#[tokio::test]
async fn a_terminal_hangs_up_what_is_left_on_it() {
    if hang_up_is_ignored() {
        eprintln!("skipped: a_terminal_hangs_up_what_is_left_on_it: these tests run under nohup");
        return;
    }
    let guest = Guest::start().await;
    let mut handle = guest
        .channel
        .exec(on_terminal("sleep 600 & echo $!; exit 2"))
        .await
        .unwrap();
    let mut screen = Screen::default();
    assert_eq!(screen.end(&mut handle).await, ExitStatus::Code(2));
    let pid = screen.0.trim().parse().unwrap();
    support::process_ends(pid).await;
}

/// Whether this process, and with it whatever it starts, was told to ignore SIGHUP.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[tokio::test]
async fn a_terminal_survives_its_session() {
    let listening = support::Listening::start().await;
    let first = listening.connect().await;
    let mut handle = first.exec(on_terminal("cat")).await.unwrap();
    let id = handle.id();
    handle.write_stdin("one\r").await.unwrap();
    let mut screen = Screen::default();
    screen.wait_for(&mut handle, "one\r\none\r\n").await;
    first.close();
    drop(handle);
    let second = listening.connect().await;
    let mut handle = second.attach(id, screen.0.len() as u64).await.unwrap();
    assert!(handle.attached().pty && handle.attached().stdin);
    handle.write_stdin("two\r").await.unwrap();
    screen.wait_for(&mut handle, "two\r\ntwo\r\n").await;
    handle.write_stdin("\x04").await.unwrap();
    assert_eq!(screen.end(&mut handle).await, ExitStatus::Code(0));
}
