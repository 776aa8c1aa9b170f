//! Connections into the guest, changes in its directories, rest and resume: the real agent as an
//! ordinary process.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and noise")]

#[path = "channel_support/guest.rs"]
mod support;

use std::{fs, time::Duration, time::SystemTime};

use rhizome_sandbox::channel::{
    DirChange, DirWatch, ExecError, FileError, ForwardError, Quiesce, QuiesceError, Resume, WatchOp,
};
use support::{Guest, Listening, sh};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

#[tokio::test]
async fn bytes_go_both_ways_and_each_way_ends_alone() {
    let guest = Guest::start().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        for _ in 0..20 {
            let (mut socket, _) = server.accept().await.unwrap();
            tokio::spawn(async move {
                let mut all = Vec::new();
                // Only after our end does it answer: half a connection is one still.
                socket.read_to_end(&mut all).await.unwrap();
                all.reverse();
                socket.write_all(&all).await.unwrap();
            });
        }
    });
    let mut clients = Vec::new();
    for number in 0..20_usize {
        let channel = guest.channel.clone();
        clients.push(tokio::spawn(async move {
            let stream = channel.forward(port).await.unwrap();
            let sent: Vec<u8> = (0..500_000 + number).map(|at| (at % 253) as u8).collect();
            let (mut from, mut to) = tokio::io::split(stream);
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
            let mut back = Vec::new();
            from.read_to_end(&mut back).await.unwrap();
            back.reverse();
            assert!(back == sent);
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    serving.await.unwrap();
}

#[tokio::test]
async fn a_port_where_nothing_listens_is_refused() {
    let guest = Guest::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = unused.local_addr().unwrap().port();
    drop(unused);
    let error = guest.channel.forward(port).await.unwrap_err();
    assert!(matches!(error, ForwardError::Refused { port: p } if p == port));
}

#[tokio::test]
async fn dropping_a_connection_ends_it_in_the_guest() {
    let guest = Guest::start().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let stream = guest.channel.forward(port).await.unwrap();
    let (mut socket, _) = server.accept().await.unwrap();
    drop(stream);
    let ended = socket.read(&mut [0; 1]).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

/// Reads changes until one is as wanted; those that came with it are looked at next time.
async fn wait_for(watch: &mut DirWatch, seen: &mut Vec<DirChange>, op: WatchOp, path: &str) {
    let found = |change: &DirChange| change.op == op && change.path == path;
    while !seen.iter().any(found) {
        seen.extend(watch.changes.recv().await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let guest = Guest::start().await;
    let root = guest.dir.path().to_owned();
    fs::create_dir(root.join("old")).unwrap();
    let path = root.to_str().unwrap();
    let mut watch = guest.channel.watch_dir(path, true).await.unwrap();
    let mut seen = Vec::new();
    fs::write(root.join("a"), "x").unwrap();
    wait_for(&mut watch, &mut seen, WatchOp::Created, "a").await;
    wait_for(&mut watch, &mut seen, WatchOp::Changed, "a").await;
    // Directories that were there, and those that come, with what is in them already.
    fs::write(root.join("old/b"), "x").unwrap();
    wait_for(&mut watch, &mut seen, WatchOp::Created, "old/b").await;
    fs::create_dir_all(root.join("new/deep")).unwrap();
    fs::write(root.join("new/deep/c"), "x").unwrap();
    wait_for(&mut watch, &mut seen, WatchOp::Created, "new/deep/c").await;
    fs::rename(root.join("a"), root.join("d")).unwrap();
    wait_for(&mut watch, &mut seen, WatchOp::Removed, "a").await;
    wait_for(&mut watch, &mut seen, WatchOp::Created, "d").await;
    fs::remove_file(root.join("d")).unwrap();
    wait_for(&mut watch, &mut seen, WatchOp::Removed, "d").await;

    let error = guest.channel.watch_dir("/no/such", true).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound { .. }));
    let error = guest
        .channel
        .watch_dir("/etc/passwd", true)
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::Guest { .. }), "{error:?}");
}

#[tokio::test]
async fn a_directory_that_goes_ends_its_watch() {
    let guest = Guest::start().await;
    let path = guest.path("gone");
    fs::create_dir(&path).unwrap();
    let mut watch = guest.channel.watch_dir(&path, false).await.unwrap();
    fs::remove_dir(&path).unwrap();
    loop {
        match watch.changes.recv().await.unwrap() {
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error, FileError::NotFound { .. }));
                break;
            }
        }
    }
}

#[tokio::test]
async fn more_changes_than_are_read_are_an_overflow() {
    let guest = Guest::start().await;
    let root = guest.dir.path().to_owned();
    let path = root.to_str().unwrap();
    let mut watch = guest.channel.watch_dir(path, false).await.unwrap();
    // More than the window, the frames and the kernel's own queue hold.
    for turn in 0..40_000 {
        let name = root.join(format!("{turn:0120}"));
        fs::write(&name, "").unwrap();
        fs::remove_file(&name).unwrap();
    }
    loop {
        let changes = watch.changes.recv().await.unwrap().unwrap();
        if changes.iter().any(|change| change.op == WatchOp::Overflow) {
            break;
        }
    }
}

#[tokio::test]
async fn a_guest_at_rest_starts_nothing_until_it_thaws() {
    let guest = Guest::start().await;
    let channel = &guest.channel;
    let mark = guest.path("mark");
    let quiesce = Quiesce {
        hook: vec!["touch".to_owned(), mark.clone()],
        ..Quiesce::default()
    };
    channel.quiesce(quiesce).await.unwrap();
    assert!(fs::exists(&mark).unwrap());
    let error = channel.exec(sh("true")).await.unwrap_err();
    assert!(matches!(error, ExecError::AtRest), "{error:?}");
    channel.thaw().await.unwrap();
    channel.thaw().await.unwrap();
    assert_eq!(guest.run(sh("echo hi")).await.stdout, b"hi\n");
    // One whose host forgot it thaws by itself.
    let quiesce = Quiesce {
        hold: Duration::from_millis(20),
        ..Quiesce::default()
    };
    channel.quiesce(quiesce).await.unwrap();
    loop {
        match channel.exec(sh("true")).await {
            Ok(_) => break,
            Err(ExecError::AtRest) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_hook_that_fails_or_hangs_leaves_the_guest_as_it_was() {
    let guest = Guest::start().await;
    let hook = |script: &str| Quiesce {
        hook: ["sh", "-c", script].map(str::to_owned).to_vec(),
        hook_deadline: Duration::from_millis(200),
        ..Quiesce::default()
    };
    let quiesce = Quiesce {
        hook_deadline: Duration::from_secs(20),
        ..hook("echo not yet >&2; exit 3")
    };
    let error = guest.channel.quiesce(quiesce).await.unwrap_err();
    assert!(
        matches!(&error, QuiesceError::Hook { message } if message == "exit code 3: not yet"),
        "{error:?}"
    );
    let error = guest.channel.quiesce(hook("sleep 600")).await.unwrap_err();
    assert!(matches!(error, QuiesceError::TimedOut { .. }), "{error:?}");
    let missing = Quiesce {
        hook: vec!["/no/such/hook".to_owned()],
        ..Quiesce::default()
    };
    let error = guest.channel.quiesce(missing).await.unwrap_err();
    assert!(matches!(error, QuiesceError::Hook { .. }), "{error:?}");
    assert_eq!(guest.run(sh("echo hi")).await.stdout, b"hi\n");
}

#[tokio::test]
async fn each_resume_is_a_generation() {
    let listening = Listening::start().await;
    let channel = listening.connect().await;
    let read = sh("cat $RHIZOME_GENERATION");
    let output = channel.exec(read.clone()).await.unwrap();
    assert_eq!(output.output(100).await.unwrap().stdout, b"0\n");
    channel.quiesce(Quiesce::default()).await.unwrap();
    channel.close();
    // As after a restore: the new session says so first of all.
    let channel = listening.connect().await;
    let resume = Resume {
        now: SystemTime::now(),
        seed: [7; 32],
        fork: true,
        hostname: None,
        machine: None,
    };
    channel.resumed(resume).await.unwrap();
    let output = channel.exec(read).await.unwrap();
    assert_eq!(output.output(100).await.unwrap().stdout, b"1\n");
}
