//! What takes a machine of its own: control groups, frozen programs and disks, terminals of its
//! kernel, ports of its loopback device. One guest for all of it.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "vm_minimal/support.rs"]
mod support;

use std::time::{Duration, SystemTime};

use rhizome_sandbox::{
    OnShutdown, SandboxSpec,
    channel::{ExecEvent, ExecRequest, ExitStatus, GuestChannel, PtySize, Quiesce, Resume},
    silent,
};
use support::{open, sh, skipped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn said(channel: &GuestChannel, script: &str) -> String {
    let handle = channel.exec(sh(script)).await.unwrap();
    let output = handle.output(1 << 20).await.unwrap();
    assert_eq!(output.status, ExitStatus::Code(0), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_its_own_does_all_of_it() {
    if skipped("a_machine_of_its_own_does_all_of_it") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (sandboxes, _doors) = open(home.path()).await;
    let info = sandboxes
        .create(SandboxSpec::default(), silent())
        .await
        .unwrap();
    let channel = sandboxes.channel(&info.id).await.unwrap();
    assert_eq!(channel.ready().warnings, Vec::<String>::new());

    nothing_that_left_its_group_escapes(&channel).await;
    a_shell_has_a_terminal(&channel).await;
    a_port_can_be_reached(&channel).await;
    programs_stop_and_go_on(&channel).await;
    let number = u128::from_be_bytes(*info.id.as_bytes());
    let machine = said(&channel, "cat /etc/machine-id").await;
    assert_eq!(machine, format!("{number:032x}\n"));
    a_resume_sets_the_clock_before_programs_go_on(&channel).await;
    sandboxes.shutdown(OnShutdown::Kill).await;
}

async fn nothing_that_left_its_group_escapes(channel: &GuestChannel) {
    // A daemon as of old: its own session, its parent gone.
    let daemon = "setsid sh -c 'sleep 77777 & exec sleep 88888' < /dev/null > /dev/null 2>&1 &";
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(600)),
        ..sh(&format!("{daemon} sleep 66666"))
    };
    let handle = channel.exec(request).await.unwrap();
    let output = handle.output(100).await.unwrap();
    assert_eq!(output.status, ExitStatus::TimedOut);
    let left = "for n in 66666 77777 88888; do \
                grep -l sleep.$n /proc/[0-9]*/cmdline; done 2> /dev/null | wc -l";
    // They are dead, and taken in a moment later.
    while said(channel, left).await.trim() != "0" {}
}

async fn a_shell_has_a_terminal(channel: &GuestChannel) {
    let request = ExecRequest {
        argv: vec!["sh".to_owned()],
        stdin: true,
        pty: Some(PtySize {
            rows: 40,
            columns: 120,
        }),
        ..ExecRequest::default()
    };
    let mut handle = channel.exec(request).await.unwrap();
    handle
        .write_stdin("stty size; tty; sh -c 'echo in front; exec sleep 600'\r")
        .await
        .unwrap();
    let mut screen = String::new();
    let mut interrupted = false;
    let status = loop {
        match handle.events.recv().await.unwrap().unwrap() {
            ExecEvent::Stdout(data) => screen.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Stderr(data) => panic!("{data:?}"),
            ExecEvent::Exit(status) => break status,
        }
        // Said by who runs in front: an interrupt before that would be the shell's alone.
        if !interrupted && screen.contains("in front\r\n") {
            interrupted = true;
            handle.write_stdin("\x03").await.unwrap();
            handle.write_stdin("exit 9\r").await.unwrap();
        }
    };
    assert!(screen.contains("40 120\r\n"), "{screen:?}");
    assert!(screen.contains("/dev/pts/0\r\n"), "{screen:?}");
    assert_eq!(status, ExitStatus::Code(9), "{screen:?}");
}

async fn a_port_can_be_reached(channel: &GuestChannel) {
    let server = ExecRequest {
        keep: true,
        ..sh("nc -l -p 8080 -e tr a-z A-Z")
    };
    let server = channel.exec(server).await.unwrap();
    let mut stream = loop {
        match channel.forward(8080).await {
            Ok(stream) => break stream,
            Err(rhizome_sandbox::channel::ForwardError::Refused { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, "HELLO");
    channel.signal_exec(server.id(), 9).await.unwrap();
}

const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; done";

async fn programs_stop_and_go_on(channel: &GuestChannel) {
    let counter = ExecRequest {
        keep: true,
        ..sh(COUNTER)
    };
    let counter = channel.exec(counter).await.unwrap();
    let count = || async {
        let mut text = String::new();
        let mut file = channel.read_file("/tmp/count").await.unwrap();
        file.read_to_string(&mut text).await.unwrap();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    while channel.stat("/tmp/count").await.is_err() || count().await < 10 {}
    let quiesced = channel.quiesce(Quiesce::default()).await.unwrap();
    assert!(quiesced.programs, "{quiesced:?}");
    assert!(quiesced.notes.is_empty(), "{quiesced:?}");
    let stopped = count().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count().await, stopped);
    channel.thaw().await.unwrap();
    while count().await < stopped + 10 {}
    // The whole program is one that SIGKILL reaches.
    channel.signal_exec(counter.id(), 9).await.unwrap();
}

async fn a_resume_sets_the_clock_before_programs_go_on(channel: &GuestChannel) {
    said(
        channel,
        "mkdir -p /etc/rhizome/resumed.d && \
         printf '#!/bin/sh\\necho $RHIZOME_RESUMED $RHIZOME_FORK > /tmp/hook\\n' \
         > /etc/rhizome/resumed.d/10-tell && chmod +x /etc/rhizome/resumed.d/10-tell",
    )
    .await;
    // Notes the time as often as it can; the first one after the gap is what is asked for.
    let clock = ExecRequest {
        keep: true,
        ..sh("while :; do date +%s; done > /tmp/times")
    };
    let clock = channel.exec(clock).await.unwrap();
    let boot = said(channel, "cat /proc/sys/kernel/random/boot_id").await;
    channel.quiesce(Quiesce::default()).await.unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    let resume = Resume {
        now: later,
        seed: [9; 32],
        fork: true,
        hostname: Some("other".to_owned()),
        machine: Some([5; 16]),
    };
    channel.resumed(resume).await.unwrap();
    assert_eq!(
        said(channel, "cat $RHIZOME_GENERATION; hostname").await,
        "1\nother\n"
    );
    // Nothing that is told of the machine is told of the one that it is a copy of.
    assert_eq!(
        said(channel, "cat /etc/machine-id").await,
        format!("{}\n", "05".repeat(16))
    );
    let another = said(channel, "cat /proc/sys/kernel/random/boot_id").await;
    assert_eq!(another.len(), boot.len());
    assert_ne!(another, boot);
    while said(channel, "cat /tmp/hook || true").await != "1 1\n" {}
    channel.signal_exec(clock.id(), 9).await.unwrap();
    let times = said(channel, "cat /tmp/times").await;
    let times: Vec<u64> = times.lines().filter_map(|line| line.parse().ok()).collect();
    let now = later
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let first_after = times.iter().find(|time| **time > now - 1800).unwrap();
    assert!(first_after.abs_diff(now) <= 1, "{first_after} {now}");
    // No program saw a clock between the two.
    assert!(
        times
            .iter()
            .all(|time| *time < now - 3500 || *time + 1 >= now)
    );
}
