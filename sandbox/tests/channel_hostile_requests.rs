//! Guests that answer requests as they should not.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/rogue.rs"]
mod support;

use rhizome_guest::wire::{
    Attached, ExecEntry, ExecId, Exit, Frame, Kind, MAX_PAYLOAD, Payload, WINDOW, WatchEvent,
    WatchOp,
};
use rhizome_sandbox::channel::{
    ChannelError, ChannelLimits, ExecError, ExecEvent, ExecRequest, ExitStatus, FileError,
    ForwardError, Quiesce, QuiesceError,
};
use support::{Rogue, greeted, greeted_with, misbehaved, refused, started};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_stream_that_repeats_itself_ends_the_channel() {
    let (host, mut rogue) = greeted().await;
    let (mut handle, stream) = started(&host, &mut rogue).await;
    rogue.send(Frame::empty(Kind::Started, stream)).await;
    let last = handle.events.recv().await.unwrap();
    assert!(matches!(last, Err(ExecError::SandboxGone { .. })));
    assert_eq!(misbehaved(&host).await, "a command starts twice");
}

#[tokio::test]
async fn an_exit_that_is_none_ends_the_channel() {
    let (host, mut rogue) = greeted().await;
    let (mut handle, stream) = started(&host, &mut rogue).await;
    rogue
        .send(Frame {
            kind: Kind::Exit,
            stream,
            payload: vec![9; 5],
        })
        .await;
    let last = handle.events.recv().await.unwrap();
    assert!(matches!(last, Err(ExecError::SandboxGone { .. })));
    assert!(matches!(
        refused(&host).await,
        ChannelError::Malformed { .. }
    ));
}

#[tokio::test]
async fn door_streams_have_a_bound_and_rules() {
    for stream in [0, 1, 3] {
        let (host, mut rogue) = greeted().await;
        rogue.send(Frame::empty(Kind::StreamOpen, stream)).await;
        assert_eq!(
            misbehaved(&host).await,
            "a door stream has a number it may not have"
        );
    }
    let (host, mut rogue) = greeted().await;
    rogue.send(Frame::empty(Kind::StreamOpen, 2)).await;
    rogue.send(Frame::empty(Kind::StreamOpen, 2)).await;
    assert_eq!(
        misbehaved(&host).await,
        "a door stream has a number it may not have"
    );
    // Opening without end is refused stream by stream, and then ends the channel.
    let (host, rogue) = greeted().await;
    let (mut from, mut to) = tokio::io::split(rogue.stream);
    let draining = tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while from.read(&mut buffer).await.is_ok_and(|len| len > 0) {}
    });
    let mut opened = 0_u32;
    for id in (2_u32..200_000).step_by(2) {
        let mut bytes = Vec::new();
        Frame::empty(Kind::StreamOpen, id)
            .encode(&mut bytes)
            .unwrap();
        if to.write_all(&bytes).await.is_err() {
            break;
        }
        opened += 1;
    }
    assert!(opened > 64);
    drop(host);
    draining.await.unwrap();
}

#[tokio::test]
async fn a_directory_without_end_is_an_error_of_its_own() {
    let limits = ChannelLimits {
        max_entries: 100,
        ..ChannelLimits::default()
    };
    let (host, mut rogue) = greeted_with(limits).await;
    let channel = host.0.clone();
    let listing = tokio::spawn(async move { channel.list("/").await });
    let request = rogue.next().await;
    let entry = rhizome_guest::wire::Entry {
        name: b"same".to_vec(),
        stat: rhizome_guest::wire::Stat {
            kind: rhizome_guest::wire::FileKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            size: u64::MAX,
            modified_ms: u64::MAX,
            target: Vec::new(),
        },
    };
    let payload = entry.to_payload().repeat(101);
    rogue
        .send(Frame {
            kind: Kind::FileEntries,
            stream: request.stream,
            payload,
        })
        .await;
    let error = listing.await.unwrap().unwrap_err();
    assert!(matches!(
        error,
        FileError::TooManyEntries { limit: 100, .. }
    ));
    // Only the request failed: it is taken back, and the channel goes on.
    while rogue.next().await.kind != Kind::StreamReset {}
    let (_handle, _) = started(&host, &mut rogue).await;
    assert!(!host.0.is_closed());
}

#[tokio::test]
async fn a_file_that_does_not_match_its_checksum_is_damaged() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let reading = tokio::spawn(async move {
        let mut reader = channel.read_file("/x").await.unwrap();
        let mut bytes = Vec::new();
        (reader.read_to_end(&mut bytes).await, bytes.len())
    });
    let stream = rogue.next().await.stream;
    let stat = rhizome_guest::wire::Stat {
        kind: rhizome_guest::wire::FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: 10,
        modified_ms: 0,
        target: Vec::new(),
    };
    rogue.send(Frame::new(Kind::FileMeta, stream, &stat)).await;
    rogue.send(Rogue::data(Kind::FileData, stream, 10)).await;
    let end = rhizome_guest::wire::FileEnd {
        size: 10,
        checksum: [1; 32],
    };
    rogue.send(Frame::new(Kind::FileEnd, stream, &end)).await;
    let (result, len) = reading.await.unwrap();
    let error = result.unwrap_err().into_inner().unwrap();
    let error = error.downcast::<FileError>().unwrap();
    assert!(matches!(*error, FileError::Damaged { .. }), "{error:?}");
    assert_eq!(len, 10);
}

#[tokio::test]
async fn words_of_the_guest_cannot_act_on_a_terminal() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let exec = tokio::spawn(async move {
        channel
            .exec(ExecRequest {
                argv: vec!["x".to_owned()],
                ..ExecRequest::default()
            })
            .await
    });
    let stream = rogue.next().await.stream;
    let failure = rhizome_guest::wire::Failure {
        code: rhizome_guest::wire::FailureCode::Io,
        message: "\u{1b}[2J\r\nforged".to_owned(),
    };
    rogue.send(Frame::new(Kind::Failed, stream, &failure)).await;
    let message = exec.await.unwrap().unwrap_err().to_string();
    assert!(!message.chars().any(char::is_control), "{message:?}");
}

#[tokio::test]
async fn late_frames_of_an_ended_stream_are_dropped() {
    let (host, mut rogue) = greeted().await;
    let (handle, stream) = started(&host, &mut rogue).await;
    drop(handle);
    assert_eq!(rogue.next().await.kind, Kind::StreamReset);
    rogue.send(Rogue::data(Kind::Stdout, stream, 1000)).await;
    rogue
        .send(Frame::new(Kind::Exit, stream, &Exit::Code(0)))
        .await;
    let (mut handle, stream) = started(&host, &mut rogue).await;
    rogue.send(Rogue::data(Kind::Stderr, stream, 3)).await;
    rogue
        .send(Frame::new(Kind::Exit, stream, &Exit::Code(4)))
        .await;
    assert_eq!(
        handle.events.recv().await.unwrap().unwrap(),
        ExecEvent::Stderr("xxx".into())
    );
    let end = handle.events.recv().await.unwrap().unwrap();
    assert_eq!(end, ExecEvent::Exit(ExitStatus::Code(4)));
    assert!(handle.events.recv().await.is_none());
}

#[tokio::test]
async fn programs_without_end_end_the_channel() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let listing = tokio::spawn(async move { channel.execs().await });
    let stream = rogue.next().await.stream;
    let entry = ExecEntry {
        id: ExecId::from_bytes([1; 8]),
        command: "\u{1b}[2Jx".to_owned(),
        user: String::new(),
        pid: 0,
        started_ms: u64::MAX,
        ran_ms: u64::MAX,
        exit: None,
        keep: false,
        pty: false,
        attached: false,
        dropped: u64::MAX,
        position: 0,
    };
    let payload = entry.to_payload().repeat(500);
    let entries = Frame {
        kind: Kind::ExecEntries,
        stream,
        payload,
    };
    while rogue.send(entries.clone()).await {}
    assert_eq!(misbehaved(&host).await, "it has more programs than may be");
    assert!(matches!(
        listing.await.unwrap(),
        Err(ExecError::SandboxGone { .. })
    ));
}

#[tokio::test]
async fn an_attached_program_keeps_the_rules_of_a_started_one() {
    let attached = Attached {
        position: u64::MAX,
        gap: u64::MAX,
        pty: true,
        stdin: true,
    };
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let attach = tokio::spawn(async move { channel.attach(ExecId::from_bytes([1; 8]), 7).await });
    let stream = rogue.next().await.stream;
    rogue
        .send(Frame::new(Kind::Attached, stream, &attached))
        .await;
    let mut handle = attach.await.unwrap().unwrap();
    assert_eq!(handle.attached(), attached);
    rogue
        .send(Frame::new(Kind::Attached, stream, &attached))
        .await;
    let last = handle.events.recv().await.unwrap();
    assert!(matches!(last, Err(ExecError::SandboxGone { .. })));
    assert_eq!(misbehaved(&host).await, "a command starts twice");

    for kind in [Kind::Started, Kind::Connected, Kind::Done] {
        let (host, mut rogue) = greeted().await;
        let channel = host.0.clone();
        let attach =
            tokio::spawn(async move { channel.attach(ExecId::from_bytes([1; 8]), 7).await });
        let stream = rogue.next().await.stream;
        rogue.send(Frame::empty(kind, stream)).await;
        assert!(attach.await.unwrap().is_err());
        assert_eq!(
            misbehaved(&host).await,
            "a frame does not belong on its stream"
        );
    }
}

#[tokio::test]
async fn changes_are_of_the_directory_that_is_watched() {
    for path in ["/etc/passwd", "../x", "a/../../x", "."] {
        let (host, mut rogue) = greeted().await;
        let channel = host.0.clone();
        let watching = tokio::spawn(async move { channel.watch_dir("/x", true).await });
        let stream = rogue.next().await.stream;
        rogue.send(Frame::empty(Kind::Started, stream)).await;
        let mut watch = watching.await.unwrap().unwrap();
        let event = WatchEvent {
            op: WatchOp::Created,
            directory: false,
            path: path.as_bytes().to_vec(),
        };
        rogue
            .send(Frame::new(Kind::WatchEvents, stream, &event))
            .await;
        let told = watch.changes.recv().await.unwrap();
        assert!(matches!(told, Err(FileError::SandboxGone { .. })));
        assert_eq!(
            misbehaved(&host).await,
            "a change is told of another directory"
        );
    }
}

#[tokio::test]
async fn changes_that_nobody_takes_have_a_bound() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let watching = tokio::spawn(async move { channel.watch_dir("/x", true).await });
    let stream = rogue.next().await.stream;
    rogue.send(Frame::empty(Kind::Started, stream)).await;
    let _watch = watching.await.unwrap().unwrap();
    let event = WatchEvent {
        op: WatchOp::Created,
        directory: false,
        path: b"x".to_vec(),
    };
    let frame = Frame {
        kind: Kind::WatchEvents,
        stream,
        payload: event.to_payload().repeat(MAX_PAYLOAD / 8),
    };
    let mut sent = 0;
    while rogue.send(frame.clone()).await {
        sent += frame.payload.len();
        assert!(sent < 64 * WINDOW as usize, "no bound");
    }
    assert_eq!(misbehaved(&host).await, "data came without credit");
}

#[tokio::test]
async fn connections_into_the_guest_have_rules_and_a_bound() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let forward = tokio::spawn(async move { channel.forward(80).await });
    let stream = rogue.next().await.stream;
    rogue.send(Rogue::data(Kind::StreamData, stream, 3)).await;
    assert!(matches!(
        forward.await.unwrap(),
        Err(ForwardError::SandboxGone { .. })
    ));
    assert_eq!(
        misbehaved(&host).await,
        "a connection speaks before it is open"
    );

    let limits = ChannelLimits {
        max_connects: 1,
        ..ChannelLimits::default()
    };
    let (host, mut rogue) = greeted_with(limits).await;
    let channel = host.0.clone();
    let forward = tokio::spawn(async move { channel.forward(80).await });
    let stream = rogue.next().await.stream;
    rogue.send(Frame::empty(Kind::Connected, stream)).await;
    let mut open = forward.await.unwrap().unwrap();
    assert!(matches!(host.0.forward(80).await, Err(ForwardError::Busy)));
    // Half an end each makes an end, and then there is room again.
    rogue.send(Rogue::data(Kind::StreamData, stream, 3)).await;
    rogue.send(Frame::empty(Kind::StreamEof, stream)).await;
    let mut said = Vec::new();
    open.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"xxx");
    open.shutdown().await.unwrap();
    while rogue.next().await.kind != Kind::StreamEof {}
    let again = host.0.forward(0).await;
    assert!(matches!(again, Err(ForwardError::Refused { port: 0 })));
}

#[tokio::test]
async fn what_a_hook_says_cannot_act_on_a_terminal() {
    let (host, mut rogue) = greeted().await;
    let channel = host.0.clone();
    let quiesce = tokio::spawn(async move { channel.quiesce(Quiesce::default()).await });
    let stream = rogue.next().await.stream;
    let failure = rhizome_guest::wire::Failure {
        code: rhizome_guest::wire::FailureCode::Hook,
        message: "\u{1b}[2J\r\nforged".to_owned(),
    };
    rogue.send(Frame::new(Kind::Failed, stream, &failure)).await;
    let error = quiesce.await.unwrap().unwrap_err();
    assert!(matches!(error, QuiesceError::Hook { .. }));
    assert!(!error.to_string().chars().any(char::is_control));
}
