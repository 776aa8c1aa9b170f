//! A guest's end of a channel with nobody behind it but the test.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its share; what a test prepares has to work"
)]

use std::time::Duration;

use rhizome_guest::wire::{Frame, FrameDecoder, Hello, Kind, PROTOCOL_VERSION, Ready};
use rhizome_sandbox::channel::{
    ChannelError, ChannelLimits, DoorStream, ExecHandle, ExecRequest, GuestChannel,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::mpsc,
};

/// The guest's end of a channel, with nobody behind it but the test.
pub(crate) struct Rogue {
    pub(crate) stream: DuplexStream,
    pub(crate) decoder: FrameDecoder,
    pub(crate) hello: Hello,
}

impl Rogue {
    pub(crate) async fn send(&mut self, frame: Frame) -> bool {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.raw(&bytes).await
    }

    /// Returns whether the host still listens.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Returns the next frame of the host that is neither a greeting nor a ping.
    pub(crate) async fn next(&mut self) -> Frame {
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

    pub(crate) fn data(kind: Kind, stream: u32, len: usize) -> Frame {
        Frame {
            kind,
            stream,
            payload: vec![b'x'; len],
        }
    }
}

pub(crate) type Host = (GuestChannel, mpsc::Receiver<DoorStream>);

pub(crate) fn pair() -> (DuplexStream, Rogue) {
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

pub(crate) async fn greeted_with(limits: ChannelLimits) -> (Host, Rogue) {
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

pub(crate) async fn greeted() -> (Host, Rogue) {
    greeted_with(ChannelLimits::default()).await
}

/// Starts an exec as a well-behaved guest would; returns its stream.
pub(crate) async fn started(host: &Host, rogue: &mut Rogue) -> (ExecHandle, u32) {
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

pub(crate) async fn refused(host: &Host) -> ChannelError {
    tokio::time::timeout(Duration::from_secs(20), host.0.closed())
        .await
        .expect("it ends")
}

pub(crate) async fn misbehaved(host: &Host) -> &'static str {
    match refused(host).await {
        ChannelError::Misbehaved { what } => what,
        other => panic!("{other:?}"),
    }
}
