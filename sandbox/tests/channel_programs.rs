//! Programs that outlive their session: attached again, read from where the last reader stopped.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use std::time::Duration;

use rhizome_sandbox::channel::{
    ExecError, ExecEvent, ExecHandle, ExecId, ExecRequest, ExecStatus, ExitStatus, GuestChannel,
};
use support::{Guest, Listening, process_ends, sh};

fn kept(script: &str) -> ExecRequest {
    ExecRequest {
        keep: true,
        ..sh(script)
    }
}

/// Reads up to `len` bytes of output, or to its end.
async fn read(handle: &mut ExecHandle, len: usize) -> (Vec<u8>, Option<ExitStatus>) {
    let mut output = Vec::new();
    while output.len() < len {
        match handle.events.recv().await.unwrap().unwrap() {
            ExecEvent::Stdout(data) | ExecEvent::Stderr(data) => output.extend_from_slice(&data),
            ExecEvent::Exit(status) => return (output, Some(status)),
        }
    }
    (output, None)
}

async fn status(channel: &GuestChannel, id: ExecId) -> ExecStatus {
    let all = channel.execs().await.unwrap();
    all.into_iter().find(|status| status.id == id).unwrap()
}

/// Waits until a program is as `wanted`; nothing tells us, so it is asked.
async fn until(
    channel: &GuestChannel,
    id: ExecId,
    wanted: impl Fn(&ExecStatus) -> bool,
) -> ExecStatus {
    loop {
        let status = status(channel, id).await;
        if wanted(&status) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_new_session_reads_on_where_the_last_one_stopped() {
    let listening = Listening::start().await;
    let first = listening.connect().await;
    // Lines of ten bytes that say where they stand.
    let script = "i=0; while [ $i -lt 50000 ]; do printf '%09d\\n' $i; i=$((i+1)); done; exit 5";
    let mut handle = first.exec(sh(script)).await.unwrap();
    let id = handle.id();
    let (mut output, _) = read(&mut handle, 100_000).await;
    // More is on its way than was read here; all of that is lost with the session.
    first.close();
    drop(handle);
    let second = listening.connect().await;
    let mut handle = second.attach(id, output.len() as u64).await.unwrap();
    assert_eq!(handle.attached().gap, 0);
    assert_eq!(handle.attached().position, output.len() as u64);
    let (rest, exit) = read(&mut handle, usize::MAX).await;
    output.extend(rest);
    assert_eq!(exit, Some(ExitStatus::Code(5)));
    let expected: String = (0..50_000).map(|i| format!("{i:09}\n")).collect();
    assert!(output == expected.as_bytes(), "{} bytes", output.len());
}

#[tokio::test]
async fn an_end_is_remembered_with_its_output() {
    let listening = Listening::start().await;
    let first = listening.connect().await;
    let handle = first
        .exec(kept("echo out; echo err >&2; sleep 0.01; exit 7"))
        .await
        .unwrap();
    let id = handle.id();
    first.close();
    drop(handle);
    let second = listening.connect().await;
    let status = until(&second, id, |status| status.exit.is_some()).await;
    assert_eq!(status.exit, Some(ExitStatus::Code(7)));
    assert!(status.command.starts_with("sh -c 'echo out"), "{status:?}");
    assert!(status.keep && !status.attached && !status.pty);
    assert_eq!(status.position, 8);
    // As often as it is asked for, in part too.
    for _ in 0..2 {
        let output = second
            .attach(id, 0)
            .await
            .unwrap()
            .output(100)
            .await
            .unwrap();
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(output.status, ExitStatus::Code(7));
    }
    let output = second
        .attach(id, 6)
        .await
        .unwrap()
        .output(100)
        .await
        .unwrap();
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b""[..], &b"r\n"[..])
    );
    let output = second.attach(id, u64::MAX).await.unwrap();
    let output = output.output(100).await.unwrap();
    assert_eq!(
        (output.stdout.len(), output.status),
        (0, ExitStatus::Code(7))
    );
}

#[tokio::test]
async fn output_that_nobody_reads_has_a_bound_and_its_loss_is_told() {
    let listening = Listening::start().await;
    let first = listening.connect().await;
    let handle = first
        .exec(kept("head -c 30000000 /dev/zero | tr '\\0' x; echo end"))
        .await
        .unwrap();
    let id = handle.id();
    first.close();
    drop(handle);
    let second = listening.connect().await;
    let status = until(&second, id, |status| status.exit.is_some()).await;
    assert_eq!(status.position, 30_000_004);
    assert!(status.dropped > 10_000_000, "{status:?}");
    let mut handle = second.attach(id, 1000).await.unwrap();
    let attached = handle.attached();
    assert_eq!(attached.position, status.dropped);
    assert_eq!(attached.gap, status.dropped - 1000);
    let (output, exit) = read(&mut handle, usize::MAX).await;
    assert_eq!(output.len() as u64, status.position - status.dropped);
    // The newest is what is kept.
    assert!(output.ends_with(b"xxxend\n"));
    assert!(output.len() > 16 << 20);
    assert_eq!(exit, Some(ExitStatus::Code(0)));
}

#[tokio::test]
async fn a_reader_holds_up_its_program_and_loses_nothing() {
    let listening = Listening::start().await;
    let channel = listening.connect().await;
    let mut handle = channel
        .exec(sh("head -c 9000000 /dev/zero; echo done >&2"))
        .await
        .unwrap();
    let id = handle.id();
    let held = until(&channel, id, |status| status.position > 1_000_000).await;
    assert!(held.position < 3_000_000, "{held:?}");
    assert_eq!(held.dropped, 0);
    let (output, exit) = read(&mut handle, usize::MAX).await;
    assert_eq!(output.len(), 9_000_005);
    assert_eq!(exit, Some(ExitStatus::Code(0)));
}

#[tokio::test]
async fn a_second_reader_takes_over() {
    let guest = Guest::start().await;
    let request = ExecRequest {
        stdin: true,
        ..sh("while read line; do echo got $line; done; exit 3")
    };
    let mut first = guest.channel.exec(request).await.unwrap();
    first.write_stdin("one\n").await.unwrap();
    assert_eq!(read(&mut first, 8).await.0, b"got one\n");
    let mut second = guest.channel.attach(first.id(), 0).await.unwrap();
    assert_eq!(read(&mut second, 8).await.0, b"got one\n");
    let last = first.events.recv().await.unwrap();
    assert!(matches!(last, Err(ExecError::TakenOver)), "{last:?}");
    // The one that was before is over, and takes nothing with it.
    drop(first);
    second.write_stdin("two\n").await.unwrap();
    assert_eq!(read(&mut second, 8).await.0, b"got two\n");
    second.close_stdin().await.unwrap();
    let (_, exit) = read(&mut second, usize::MAX).await;
    assert_eq!(exit, Some(ExitStatus::Code(3)));
}

#[tokio::test]
async fn letting_go_of_a_program_is_not_ending_it() {
    let guest = Guest::start_as(Default::default(), &["--grace-ms", "1"]).await;
    let request = ExecRequest {
        stdin: true,
        ..sh("cat")
    };
    let handle = guest.channel.exec(request).await.unwrap();
    let id = handle.id();
    handle.detach().await.unwrap();
    let alone = until(&guest.channel, id, |status| !status.attached).await;
    assert!(alone.keep && alone.exit.is_none());
    let mut handle = guest.channel.attach(id, 0).await.unwrap();
    handle.write_stdin("hello").await.unwrap();
    assert_eq!(read(&mut handle, 5).await.0, b"hello");
    // What is not kept any more ends with its reader.
    guest.channel.keep_exec(id, false).await.unwrap();
    drop(handle);
    let ended = until(&guest.channel, id, |status| status.exit.is_some()).await;
    assert_eq!(ended.exit, Some(ExitStatus::Signal(9)));
}

#[tokio::test]
async fn a_node_that_leaves_does_not_take_its_programs_with_it() {
    let listening = Listening::start().await;
    let first = listening.connect().await;
    let mut handle = first.exec(sh("echo up; exec sleep 600")).await.unwrap();
    let id = handle.id();
    assert_eq!(read(&mut handle, 3).await.0, b"up\n");
    handle.leave();
    assert!(status(&first, id).await.exit.is_none());
    first.close();
    let second = listening.connect().await;
    assert!(status(&second, id).await.exit.is_none());
    second.signal_exec(id, 15).await.unwrap();
    let ended = until(&second, id, |status| status.exit.is_some()).await;
    assert_eq!(ended.exit, Some(ExitStatus::Signal(15)));
}

#[tokio::test]
async fn programs_are_named_once_and_unknown_ones_told_apart() {
    let guest = Guest::start().await;
    let id = ExecId::from_bytes([7; 8]);
    let request = ExecRequest {
        id: Some(id),
        ..kept("exit 0")
    };
    let handle = guest.channel.exec(request.clone()).await.unwrap();
    assert_eq!(handle.id(), id);
    let again = guest.channel.exec(request).await.unwrap_err();
    assert!(matches!(again, ExecError::IdTaken), "{again:?}");
    let unknown = ExecId::from_bytes([8; 8]);
    for error in [
        guest
            .channel
            .attach(unknown, 0)
            .await
            .map(drop)
            .unwrap_err(),
        guest.channel.signal_exec(unknown, 15).await.unwrap_err(),
        guest.channel.keep_exec(unknown, true).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, ExecError::NoSuchExec { id } if *id == unknown.to_string()),
            "{error:?}"
        );
    }
    assert!(matches!(
        guest.channel.signal_exec(id, 99).await,
        Err(ExecError::Invalid { .. })
    ));
}

#[tokio::test]
async fn ends_that_were_seen_are_forgotten_before_others() {
    let guest = Guest::start().await;
    let precious = guest.channel.exec(kept("exec sleep 600")).await.unwrap();
    let id = precious.id();
    drop(precious);
    until(&guest.channel, id, |status| !status.attached).await;
    // Nobody reads it when it ends, or its end would be taken for seen.
    guest.channel.signal_exec(id, 15).await.unwrap();
    until(&guest.channel, id, |status| status.exit.is_some()).await;
    for _ in 0..100 {
        guest.run(sh("exit 0")).await;
    }
    let all = guest.channel.execs().await.unwrap();
    assert!(all.len() <= 66, "{}", all.len());
    assert!(all.iter().any(|status| status.id == id));
}

#[tokio::test]
async fn a_timeout_reaches_those_that_left_the_group() {
    let guest = Guest::start().await;
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(100)),
        ..sh("setsid sh -c 'echo $$; exec sleep 600' & sleep 600")
    };
    let output = guest.run(request).await;
    assert_eq!(output.status, ExitStatus::TimedOut);
    let escaped = String::from_utf8(output.stdout).unwrap();
    process_ends(escaped.trim().parse().unwrap()).await;
}

#[tokio::test]
async fn time_runs_out_for_a_program_that_nobody_reads() {
    let listening = Listening::start().await;
    let first = listening.connect().await;
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(50)),
        ..kept("echo $$; exec sleep 600")
    };
    let handle = first.exec(request).await.unwrap();
    let id = handle.id();
    first.close();
    drop(handle);
    let second = listening.connect().await;
    let ended = until(&second, id, |status| status.exit.is_some()).await;
    assert_eq!(ended.exit, Some(ExitStatus::TimedOut));
}
