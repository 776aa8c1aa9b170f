//! Guests that break every rule they can.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::time::Duration;

use rhizome_guest::wire::{
    Credit, Exit, Frame, FrameDecoder, Hello, Kind, MAX_PAYLOAD, PROTOCOL_VERSION, Payload, Ready,
    WINDOW, WireError,
};
use rhizome_sandbox::channel::{
    ChannelError, ChannelLimits, DoorStream, ExecError, ExecEvent, ExecHandle, ExecRequest,
    ExitStatus, FileError, GuestChannel,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::mpsc,
};

/// The guest's end of a channel, with nobody behind it but the test.
struct Rogue {
    stream: DuplexStream,
    decoder: FrameDecoder,
    hello: Hello,
}

impl Rogue {
    async fn send(&mut self, frame: Frame) -> bool {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.raw(&bytes).await
    }

    /// Returns whether the host still listens.
    async fn raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Returns the next frame of the host that is neither a greeting nor a ping.
    async fn next(&mut self) -> Frame {
        let mut buffer = vec![0; 65_536];
        loop {
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                match frame.kind {
                    Kind::Hello => self.hello = frame.message().unwrap(),
                    Kind::Ping => {
                        let pong = Frame {
                            kind: Kind::Pong,
                            ..frame
                        };
                        self.send(pong).await;
                    }
                    _ => return frame,
                }
            }
            let len = self.stream.read(&mut buffer).await.unwrap();
            assert!(len > 0, "the host hung up");
            self.decoder.extend(&buffer[..len]);
        }
    }

    fn data(kind: Kind, stream: u32, len: usize) -> Frame {
        Frame {
            kind,
            stream,
            payload: vec![b'x'; len],
        }
    }
}

type Host = (GuestChannel, mpsc::Receiver<DoorStream>);

fn pair() -> (DuplexStream, Rogue) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let hello = Hello {
        version: 0,
        nonce: [0; 16],
        boot: [0; 16],
        flags: 0,
    };
    (
        near,
        Rogue {
            stream: far,
            decoder: FrameDecoder::watching(),
            hello,
        },
    )
}

async fn greeted_with(limits: ChannelLimits) -> (Host, Rogue) {
    let (near, mut rogue) = pair();
    let host = tokio::spawn(GuestChannel::start(near, limits));
    let mut buffer = vec![0; 4096];
    let hello = loop {
        let len = rogue.stream.read(&mut buffer).await.unwrap();
        rogue.decoder.extend(&buffer[..len]);
        if let Some(frame) = rogue.decoder.next_frame().unwrap() {
            break frame.message::<Hello>().unwrap();
        }
    };
    assert_eq!(hello.version, PROTOCOL_VERSION);
    rogue.hello = Hello {
        boot: [7; 16],
        ..hello
    };
    let answer = Frame::new(Kind::Hello, 0, &rogue.hello);
    rogue.send(answer).await;
    rogue
        .send(Frame::new(Kind::Ready, 0, &Ready::default()))
        .await;
    (host.await.unwrap().unwrap(), rogue)
}

async fn greeted() -> (Host, Rogue) {
    greeted_with(ChannelLimits::default()).await
}

/// Starts an exec as a well-behaved guest would; returns its stream.
async fn started(host: &Host, rogue: &mut Rogue) -> (ExecHandle, u32) {
    let channel = host.0.clone();
    let request = ExecRequest {
        argv: vec!["x".to_owned()],
        stdin: true,
        ..ExecRequest::default()
    };
    let exec = tokio::spawn(async move { channel.exec(request).await });
    let frame = rogue.next().await;
    assert_eq!(frame.kind, Kind::Exec);
    rogue.send(Frame::empty(Kind::Started, frame.stream)).await;
    (exec.await.unwrap().unwrap(), frame.stream)
}

async fn refused(host: &Host) -> ChannelError {
    tokio::time::timeout(Duration::from_secs(20), host.0.closed())
        .await
        .expect("it ends")
}

async fn misbehaved(host: &Host) -> &'static str {
    match refused(host).await {
        ChannelError::Misbehaved { what } => what,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn frames_on_streams_that_never_were_end_the_channel() {
    for stream in [0, 1, 2, 77, u32::MAX] {
        let (host, mut rogue) = greeted().await;
        rogue.send(Rogue::data(Kind::Stdout, stream, 1)).await;
        assert_eq!(
            misbehaved(&host).await,
            "a frame belongs to a stream that never was"
        );
    }
}

#[tokio::test]
async fn frames_that_do_not_belong_on_their_stream_end_the_channel() {
    for kind in [
        Kind::FileData,
        Kind::StreamData,
        Kind::Done,
        Kind::Exec,
        Kind::InfoReply,
    ] {
        let (host, mut rogue) = greeted().await;
        let (mut handle, stream) = started(&host, &mut rogue).await;
        rogue.send(Rogue::data(kind, stream, 1)).await;
        assert_eq!(
            misbehaved(&host).await,
            "a frame does not belong on its stream"
        );
        let last = handle.events.recv().await.unwrap();
        assert!(
            matches!(last, Err(ExecError::SandboxGone { .. })),
            "{last:?}"
        );
    }
}

#[tokio::test]
async fn output_without_credit_ends_the_channel() {
    let (host, mut rogue) = greeted().await;
    let (_handle, stream) = started(&host, &mut rogue).await;
    let mut sent = 0;
    // Nobody reads the events, so no credit comes back.
    while rogue
        .send(Rogue::data(Kind::Stdout, stream, MAX_PAYLOAD))
        .await
    {
        sent += MAX_PAYLOAD;
        assert!(sent < 64 * WINDOW as usize, "no bound");
    }
    assert_eq!(misbehaved(&host).await, "data came without credit");
}

#[tokio::test]
async fn tiny_frames_cost_credit_too() {
    let (host, mut rogue) = greeted().await;
    let (_handle, stream) = started(&host, &mut rogue).await;
    let mut sent = 0;
    while rogue.send(Rogue::data(Kind::Stdout, stream, 1)).await {
        sent += 1;
        assert!(sent < WINDOW, "no bound");
    }
    assert_eq!(misbehaved(&host).await, "data came without credit");
    let (host, mut rogue) = greeted().await;
    let (_handle, stream) = started(&host, &mut rogue).await;
    rogue.send(Frame::empty(Kind::Stdout, stream)).await;
    assert_eq!(misbehaved(&host).await, "a data frame is empty");
}

#[tokio::test]
async fn floods_of_no_consequence_end_the_channel() {
    let pong = Frame {
        kind: Kind::Pong,
        stream: 0,
        payload: vec![0; 8],
    };
    let ready = Frame::new(Kind::Ready, 0, &Ready::default());
    for frame in [pong, ready] {
        let (host, mut rogue) = greeted().await;
        while rogue.send(frame.clone()).await {}
        assert_eq!(
            misbehaved(&host).await,
            "it floods us with frames of no consequence"
        );
    }
    let (host, mut rogue) = greeted().await;
    let (_handle, stream) = started(&host, &mut rogue).await;
    while rogue
        .send(Frame::new(Kind::Credit, stream, &Credit { bytes: 0 }))
        .await
    {}
    assert_eq!(
        misbehaved(&host).await,
        "it floods us with frames of no consequence"
    );
}

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
async fn too_much_credit_ends_the_channel() {
    let (host, mut rogue) = greeted().await;
    let (_handle, stream) = started(&host, &mut rogue).await;
    rogue
        .send(Frame::new(
            Kind::Credit,
            stream,
            &Credit { bytes: u32::MAX },
        ))
        .await;
    assert_eq!(
        misbehaved(&host).await,
        "a stream was given more credit than may be"
    );
}

#[tokio::test]
async fn bytes_that_are_no_frames_end_the_channel() {
    let (host, mut rogue) = greeted().await;
    rogue.raw(&[0xff; 9]).await;
    let error = refused(&host).await;
    let too_long = WireError::FrameTooLong { len: u32::MAX };
    assert!(matches!(&error, ChannelError::Malformed { source } if *source == too_long));
    let (host, mut rogue) = greeted().await;
    rogue.raw(&[0, 0, 0, 0, 0xee, 0, 0, 0, 0]).await;
    let error = refused(&host).await;
    let unknown = WireError::UnknownKind { kind: 0xee };
    assert!(matches!(&error, ChannelError::Malformed { source } if *source == unknown));
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
async fn garbage_instead_of_a_greeting_has_an_end() {
    let (near, mut rogue) = pair();
    let host = tokio::spawn(GuestChannel::start(near, ChannelLimits::default()));
    let garbage = vec![0xa5; 1 << 20];
    while rogue.raw(&garbage).await {}
    let error = host.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ChannelError::Garbage { bytes } if bytes > 1 << 20),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_guest_that_says_nothing_is_not_ready() {
    let (near, _rogue) = pair();
    let limits = ChannelLimits {
        hello_deadline: Duration::from_millis(30),
        ..ChannelLimits::default()
    };
    let error = GuestChannel::start(near, limits).await.unwrap_err();
    assert!(matches!(error, ChannelError::NotReady { .. }));
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_guest_of_another_version_is_named() {
    let (near, mut rogue) = pair();
    let host = tokio::spawn(GuestChannel::start(near, ChannelLimits::default()));
    let mut buffer = vec![0; 4096];
    let len = rogue.stream.read(&mut buffer).await.unwrap();
    rogue.decoder.extend(&buffer[..len]);
    let hello: Hello = rogue
        .decoder
        .next_frame()
        .unwrap()
        .unwrap()
        .message()
        .unwrap();
    rogue
        .send(Frame::new(
            Kind::Hello,
            0,
            &Hello {
                version: 9,
                ..hello
            },
        ))
        .await;
    let error = host.await.unwrap().unwrap_err();
    assert!(matches!(
        error,
        ChannelError::Version {
            guest: 9,
            host: PROTOCOL_VERSION
        }
    ));
}

#[tokio::test]
async fn a_guest_that_never_reads_is_unresponsive() {
    let limits = ChannelLimits {
        ping_deadline: Duration::from_millis(100),
        ping_interval: Duration::from_millis(10),
        ..ChannelLimits::default()
    };
    let (host, mut rogue) = greeted_with(limits).await;
    let (handle, _) = started(&host, &mut rogue).await;
    let input = handle.input();
    let writing = tokio::spawn(async move {
        loop {
            if let Err(error) = input.write_stdin(vec![0; MAX_PAYLOAD]).await {
                return error;
            }
        }
    });
    assert!(matches!(
        refused(&host).await,
        ChannelError::Unresponsive { .. }
    ));
    assert!(matches!(
        writing.await.unwrap(),
        ExecError::SandboxGone { .. }
    ));
}

#[tokio::test]
async fn a_guest_that_started_anew_has_lost_its_programs() {
    let (host, mut rogue) = greeted().await;
    let (mut handle, _) = started(&host, &mut rogue).await;
    let anew = Hello {
        boot: [8; 16],
        ..rogue.hello.clone()
    };
    rogue.send(Frame::new(Kind::Hello, 0, &anew)).await;
    assert!(matches!(refused(&host).await, ChannelError::Restarted));
    let last = handle.events.recv().await.unwrap();
    let source = ChannelError::Restarted;
    assert!(
        matches!(&last, Err(ExecError::SandboxGone { source: s }) if s.to_string() == source.to_string())
    );
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
        checksum: 1,
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

/// A small generator, so that a seed is one run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[tokio::test]
async fn random_frames_never_panic_or_hang() {
    for seed in 1..200_u64 {
        let (host, mut rogue) = greeted().await;
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut handle, stream) = started(&host, &mut rogue).await;
        let consuming = tokio::spawn(async move {
            while let Some(event) = handle.events.recv().await {
                if event.is_err() {
                    break;
                }
            }
        });
        for _ in 0..50 {
            let mut bytes = Vec::new();
            let len = random.next(40);
            let payload = (0..len)
                .map(|_| random.next(256).to_le_bytes()[0])
                .collect();
            let kinds = [
                Kind::Stdout,
                Kind::Stderr,
                Kind::Exit,
                Kind::Credit,
                Kind::Pong,
                Kind::Ping,
                Kind::StreamOpen,
                Kind::StreamData,
                Kind::Failed,
                Kind::Hello,
                Kind::Done,
            ];
            let kind = kinds[usize::try_from(random.next(11)).unwrap()];
            let stream = [stream, 0, 2, 4][usize::try_from(random.next(4)).unwrap()];
            Frame {
                kind,
                stream,
                payload,
            }
            .encode(&mut bytes)
            .unwrap();
            if random.next(10) == 0 {
                let at = usize::try_from(random.next(bytes.len() as u64)).unwrap();
                bytes[at] ^= 1 << random.next(8);
            }
            if !rogue.raw(&bytes).await {
                break;
            }
        }
        drop(rogue);
        refused(&host).await;
        consuming.await.unwrap();
    }
}
