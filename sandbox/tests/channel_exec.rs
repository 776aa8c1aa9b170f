//! Programs run over the channel, by the real agent as an ordinary process.

#[path = "channel_support/guest.rs"]
mod support;

use std::{collections::BTreeMap, time::Duration};

use rhizome_sandbox::channel::{ExecError, ExecEvent, ExecRequest, ExitStatus};
use support::{Guest, sh};

#[tokio::test]
async fn output_and_exit_code_come_back() {
    let guest = Guest::start().await;
    let output = guest.run(sh("echo out; echo err >&2; exit 7")).await;
    assert_eq!(output.status, ExitStatus::Code(7));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
}

#[tokio::test]
async fn a_missing_program_is_its_own_error() {
    let guest = Guest::start().await;
    for program in ["no-such-program-here", "/no/such/program"] {
        let request = ExecRequest {
            argv: vec![program.to_owned()],
            ..Default::default()
        };
        let error = guest.channel.exec(request).await.unwrap_err();
        assert!(matches!(error, ExecError::NoSuchProgram { program: p } if p == program));
    }
}

#[tokio::test]
async fn files_that_are_no_programs_are_told_apart() {
    let guest = Guest::start().await;
    let plain = guest.path("plain");
    std::fs::write(&plain, "text").unwrap();
    let script = guest.path("script");
    guest
        .channel
        .write_file(&script, 0o755, false, &b"#!/no/such/interpreter\n"[..])
        .await
        .unwrap();
    for program in [plain.as_str(), script.as_str(), "/tmp"] {
        let request = ExecRequest {
            argv: vec![program.to_owned()],
            ..Default::default()
        };
        let error = guest.channel.exec(request).await.unwrap_err();
        assert!(
            matches!(error, ExecError::NotExecutable { .. }),
            "{program}: {error:?}"
        );
    }
}

#[tokio::test]
async fn wrong_directories_and_users_are_told_apart() {
    let guest = Guest::start().await;
    let request = ExecRequest {
        cwd: Some("/no/such/dir".to_owned()),
        ..sh("true")
    };
    let error = guest.channel.exec(request).await.unwrap_err();
    assert!(matches!(error, ExecError::NoSuchCwd { cwd } if cwd == "/no/such/dir"));
    let request = ExecRequest {
        user: Some("no-such-user".to_owned()),
        ..sh("true")
    };
    let error = guest.channel.exec(request).await.unwrap_err();
    assert!(matches!(error, ExecError::NoSuchUser { user } if user == "no-such-user"));
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_here() {
    let guest = Guest::start().await;
    let long = "x".repeat(70_000);
    let error = guest.channel.exec(sh(&long)).await.unwrap_err();
    assert!(matches!(error, ExecError::TooLarge { limit: 65_536, .. }));
    for argv in [vec![], vec![String::new()], vec!["a\0b".to_owned()]] {
        let request = ExecRequest {
            argv,
            ..Default::default()
        };
        let error = guest.channel.exec(request).await.unwrap_err();
        assert!(matches!(error, ExecError::Invalid { .. }));
    }
}

#[tokio::test]
async fn environment_and_directory_are_what_was_asked_for() {
    let guest = Guest::start().await;
    let request = ExecRequest {
        env: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
        cwd: Some("/usr".to_owned()),
        ..sh("echo $GREETING $HOME $RHIZOME_URL; pwd")
    };
    let output = guest.run(request).await;
    let expected = format!("hello /root http://127.0.0.1:{}\n/usr\n", guest.door_port);
    // The tests' own user may not be root.
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout == expected || !rustix::process::getuid().is_root(),
        "{stdout}"
    );
    let output = guest.run(sh("env | grep -c ^CARGO")).await;
    assert_eq!(
        output.stdout, b"0\n",
        "nothing of the agent's own environment leaks"
    );
}

#[tokio::test]
async fn users_are_switched() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let guest = Guest::start().await;
    let request = ExecRequest {
        user: Some("12345:54321".to_owned()),
        ..sh("id -u; id -g; id -G")
    };
    let output = guest.run(request).await;
    assert_eq!(output.stdout, b"12345\n54321\n54321\n");
}

#[tokio::test]
async fn standard_input_arrives_and_ends() {
    let guest = Guest::start().await;
    let mut handle = guest
        .channel
        .exec(ExecRequest {
            stdin: true,
            ..sh("wc -c")
        })
        .await
        .unwrap();
    let input = handle.input();
    let writer = tokio::spawn(async move {
        // More than all windows and pipes together.
        for _ in 0..64 {
            input.write_stdin(vec![7; 50_000]).await.unwrap();
        }
        input.close_stdin().await.unwrap();
    });
    let mut stdout = Vec::new();
    while let Some(event) = handle.events.recv().await {
        match event.unwrap() {
            ExecEvent::Stdout(data) => stdout.extend_from_slice(&data),
            ExecEvent::Exit(status) => assert_eq!(status, ExitStatus::Code(0)),
            ExecEvent::Stderr(data) => panic!("{data:?}"),
        }
    }
    writer.await.unwrap();
    assert_eq!(stdout, b"3200000\n");
}

#[tokio::test]
async fn input_that_nobody_reads_ends_with_the_program() {
    let guest = Guest::start().await;
    let handle = guest
        .channel
        .exec(ExecRequest {
            stdin: true,
            ..sh("read line; exit 3")
        })
        .await
        .unwrap();
    let input = handle.input();
    let writer = tokio::spawn(async move {
        loop {
            if let Err(error) = input.write_stdin(vec![b'\n'; 60_000]).await {
                return error;
            }
        }
    });
    let output = handle.output(100).await.unwrap();
    assert_eq!(output.status, ExitStatus::Code(3));
    assert!(matches!(writer.await.unwrap(), ExecError::Ended));
}

#[tokio::test]
async fn signals_reach_the_whole_group() {
    let guest = Guest::start().await;
    let mut handle = guest
        .channel
        .exec(sh("sleep 600 & echo up; wait; echo not reached"))
        .await
        .unwrap();
    let up = handle.events.recv().await.unwrap().unwrap();
    assert_eq!(up, ExecEvent::Stdout("up\n".into()));
    handle.signal(15).await.unwrap();
    let end = handle.events.recv().await.unwrap().unwrap();
    assert_eq!(end, ExecEvent::Exit(ExitStatus::Signal(15)));
    assert!(matches!(
        handle.signal(99).await,
        Err(ExecError::Invalid { .. })
    ));
}

#[tokio::test]
async fn time_runs_out_for_the_whole_group() {
    let guest = Guest::start().await;
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(50)),
        ..sh("sleep 600 & echo $!; sleep 600")
    };
    let output = guest.run(request).await;
    assert_eq!(output.status, ExitStatus::TimedOut);
    let background: u32 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    support::process_ends(background).await;
}

#[tokio::test]
async fn dropping_the_handle_kills_the_program() {
    let guest = Guest::start().await;
    let mut handle = guest.channel.exec(sh("echo $$; sleep 600")).await.unwrap();
    let Some(Ok(ExecEvent::Stdout(pid))) = handle.events.recv().await else {
        panic!()
    };
    let pid: u32 = String::from_utf8_lossy(&pid).trim().parse().unwrap();
    drop(handle);
    support::process_ends(pid).await;
}

#[tokio::test]
async fn a_background_process_does_not_hold_up_the_end() {
    let guest = Guest::start().await;
    let output = guest.run(sh("sleep 600 & echo $!")).await;
    assert_eq!(output.status, ExitStatus::Code(0));
    let pid: i32 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // It is an orphan, and the agent takes it in.
    support::process_ends(pid.as_raw_pid().cast_unsigned()).await;
}

#[tokio::test]
async fn much_output_arrives_whole() {
    let guest = Guest::start().await;
    let output = guest
        .run(sh("head -c 20000000 /dev/zero | tr '\\0' x; echo done >&2"))
        .await;
    assert_eq!(output.stdout.len(), 20_000_000);
    assert!(output.stdout.iter().all(|byte| *byte == b'x'));
    assert_eq!(output.stderr, b"done\n");
}

#[tokio::test]
async fn a_reader_that_is_stuck_holds_up_only_itself() {
    let guest = Guest::start().await;
    let stuck = guest.channel.exec(sh("cat /dev/zero")).await.unwrap();
    for _ in 0..5 {
        let output = guest.run(sh("echo quick")).await;
        assert_eq!(output.stdout, b"quick\n");
    }
    guest.channel.ping().await.unwrap();
    drop(stuck);
}

#[tokio::test]
async fn many_programs_run_at_once_and_too_many_are_refused() {
    let guest = Guest::start().await;
    let mut running = Vec::new();
    let refused = loop {
        match guest.channel.exec(sh("read line")).await {
            Ok(handle) => running.push(handle),
            Err(error) => break error,
        }
        // `read` from nothing ends at once unless its input stays open.
        if running.len() > 1000 {
            panic!("no limit");
        }
        let request = ExecRequest {
            stdin: true,
            ..sh("read line")
        };
        match guest.channel.exec(request).await {
            Ok(handle) => running.push(handle),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, ExecError::Busy), "{refused:?}");
    assert!(running.len() >= 64);
    drop(running);
    // Room comes back.
    loop {
        match guest.channel.exec(sh("exit 0")).await {
            Ok(handle) => {
                handle.output(0).await.unwrap();
                break;
            }
            Err(ExecError::Busy) => tokio::task::yield_now().await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn the_death_of_the_guest_ends_every_program_at_once() {
    let mut guest = Guest::start().await;
    let mut handles = Vec::new();
    for _ in 0..8 {
        // They end with their input, so that none outlives the test.
        let request = ExecRequest {
            stdin: true,
            ..sh("exec cat")
        };
        handles.push(guest.channel.exec(request).await.unwrap());
    }
    guest.kill();
    for mut handle in handles {
        let last = tokio::time::timeout(Duration::from_secs(5), handle.events.recv()).await;
        let last = last.expect("within five seconds").expect("an event");
        assert!(
            matches!(last, Err(ExecError::SandboxGone { .. })),
            "{last:?}"
        );
        assert!(handle.events.recv().await.is_none());
    }
    assert!(matches!(
        guest.channel.exec(sh("true")).await,
        Err(ExecError::SandboxGone { .. })
    ));
}
