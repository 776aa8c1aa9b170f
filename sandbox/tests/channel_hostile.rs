//! Guests that break every rule of the channel that they can.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/rogue.rs"]
mod support;

use std::time::Duration;

use rhizome_guest::wire::{
    Credit, Frame, Hello, Kind, MAX_PAYLOAD, PROTOCOL_VERSION, Ready, WINDOW, WireError,
};
use rhizome_sandbox::channel::{ChannelError, ChannelLimits, ExecError, GuestChannel};
use support::{Rogue, greeted, greeted_with, misbehaved, pair, refused, started};
use tokio::io::AsyncReadExt;

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
