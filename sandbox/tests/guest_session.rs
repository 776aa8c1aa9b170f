//! One agent, hosts that come and go.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use rhizome_guest::wire::{
    Exec, ExecId, Frame, FrameDecoder, Hello, Kind, PROTOCOL_VERSION, Payload, Ready, cost,
};
use rhizome_sandbox::channel::{ExecEvent, ExecRequest};
use support::{Listening, process_ends, sh};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// A host that writes frames by hand.
struct Host {
    stream: UnixStream,
    decoder: FrameDecoder,
    execs: u64,
}

impl Host {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::seeking(),
            execs: 0,
        }
    }

    async fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn next(&mut self) -> Frame {
        let mut buffer = vec![0; 65_536];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let len = self.stream.read(&mut buffer).await.unwrap();
            assert!(len > 0, "the agent hung up");
            self.decoder.extend(&buffer[..len]);
        }
    }

    /// Greets and reads up to the agent's readiness.
    async fn greet(&mut self, nonce: u8) -> Hello {
        let hello = Hello {
            version: PROTOCOL_VERSION,
            nonce: [nonce; 16],
            boot: [0; 16],
            flags: 0,
        };
        self.decoder.lose_sync();
        self.send(&Frame::new(Kind::Hello, 0, &hello)).await;
        loop {
            let frame = self.next().await;
            match frame.message::<Hello>() {
                Ok(answer) if answer.nonce == [nonce; 16] => {
                    let ready = self.next().await;
                    assert!(ready.message::<Ready>().is_ok());
                    return answer;
                }
                // What was left of the session before.
                _ => {}
            }
        }
    }

    async fn exec(&mut self, stream: u32, script: &str) {
        let exec = Exec {
            argv: [&b"sh"[..], b"-c", script.as_bytes()]
                .map(<[u8]>::to_vec)
                .to_vec(),
            id: ExecId::from_bytes(self.execs.to_be_bytes()),
            ..Exec::default()
        };
        self.execs += 1;
        self.send(&Frame::new(Kind::Exec, stream, &exec)).await;
    }
}

#[tokio::test]
async fn the_agent_outlives_its_hosts() {
    let listening = Listening::start().await;
    for _ in 0..5 {
        let channel = listening.connect().await;
        let output = channel
            .exec(sh("echo hi"))
            .await
            .unwrap()
            .output(100)
            .await
            .unwrap();
        assert_eq!(output.stdout, b"hi\n");
    }
}

#[tokio::test]
async fn a_program_that_nobody_keeps_waits_a_while_for_a_new_host() {
    let listening = Listening::start_with(&["--grace-ms", "50"]).await;
    let channel = listening.connect().await;
    let mut handle = channel.exec(sh("echo $$; exec sleep 600")).await.unwrap();
    let Some(Ok(ExecEvent::Stdout(pid))) = handle.events.recv().await else {
        panic!()
    };
    let pid: u32 = String::from_utf8_lossy(&pid).trim().parse().unwrap();
    channel.close();
    process_ends(pid).await;
    let channel = listening.connect().await;
    // Its end is taken in a moment after its death.
    while channel.info().await.unwrap().execs > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_program_that_is_kept_needs_no_host() {
    let listening = Listening::start_with(&["--grace-ms", "1"]).await;
    let channel = listening.connect().await;
    let request = ExecRequest {
        keep: true,
        stdin: true,
        ..sh("cat")
    };
    let handle = channel.exec(request).await.unwrap();
    let id = handle.id();
    channel.close();
    drop(handle);
    let channel = listening.connect().await;
    // Longer than the grace, which a ping's way is not: another program's whole life.
    let output = channel.exec(sh("sleep 0.05; echo hi")).await.unwrap();
    assert_eq!(output.output(100).await.unwrap().stdout, b"hi\n");
    let handle = channel.attach(id, 0).await.unwrap();
    handle.write_stdin("still here").await.unwrap();
    handle.close_stdin().await.unwrap();
    let output = handle.output(100).await.unwrap();
    assert_eq!(output.stdout, b"still here");
}

#[tokio::test]
async fn a_new_host_on_the_same_bytes_begins_anew() {
    let listening = Listening::start_with(&["--grace-ms", "10"]).await;
    let mut host = Host::new(listening.stream().await);
    let first = host.greet(1).await;
    host.exec(1, "echo $$; exec cat /dev/zero").await;
    let pid = loop {
        let frame = host.next().await;
        if frame.kind == Kind::Stdout {
            break String::from_utf8_lossy(&frame.payload)
                .lines()
                .next()
                .unwrap()
                .parse()
                .unwrap();
        }
    };
    // The host dies in the middle of a frame, and another one greets on the same port, which
    // the guest is not told. As hosts do, it greets until it is answered.
    let half = Frame {
        kind: Kind::Stdin,
        stream: 1,
        payload: vec![b'x'; 40],
    };
    let mut bytes = Vec::new();
    half.encode(&mut bytes).unwrap();
    host.stream.write_all(&bytes[..20]).await.unwrap();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        nonce: [2; 16],
        boot: [0; 16],
        flags: 0,
    };
    host.send(&Frame::new(Kind::Hello, 0, &hello)).await;
    let second = host.greet(2).await;
    assert_eq!(first.boot, second.boot);
    process_ends(pid).await;
    host.exec(1, "exit 5").await;
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Kind::Exit) {
        kinds.push(host.next().await.kind);
    }
    // A greeting that was repeated is answered again, and changes nothing.
    kinds.retain(|kind| !matches!(kind, Kind::Hello | Kind::Ready));
    assert_eq!(kinds, [Kind::Started, Kind::Exit]);
}

#[tokio::test]
async fn a_repeated_greeting_changes_nothing() {
    let listening = Listening::start().await;
    let mut host = Host::new(listening.stream().await);
    host.greet(1).await;
    host.exec(1, "read line; exit 3").await;
    assert_eq!(host.next().await.kind, Kind::Started);
    // Its input is empty, so it ends; the greeting does not end it before that.
    let hello = Hello {
        version: PROTOCOL_VERSION,
        nonce: [1; 16],
        boot: [0; 16],
        flags: 0,
    };
    host.send(&Frame::new(Kind::Hello, 0, &hello)).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(host.next().await.kind);
    }
    for kind in [Kind::Hello, Kind::Ready, Kind::Exit] {
        assert!(seen.contains(&kind), "{seen:?}");
    }
}

#[tokio::test]
async fn another_version_is_answered_and_not_served() {
    let listening = Listening::start().await;
    let mut host = Host::new(listening.stream().await);
    let hello = Hello {
        version: 99,
        nonce: [1; 16],
        boot: [0; 16],
        flags: 0,
    };
    host.send(&Frame::new(Kind::Hello, 0, &hello)).await;
    let answer: Hello = host.next().await.message().unwrap();
    assert_eq!(answer.version, PROTOCOL_VERSION);
}

#[tokio::test]
async fn output_stops_at_the_credit_and_goes_on_with_more() {
    let listening = Listening::start().await;
    let mut host = Host::new(listening.stream().await);
    host.greet(1).await;
    host.exec(1, "exec cat /dev/zero").await;
    assert_eq!(host.next().await.kind, Kind::Started);
    let mut used = 0;
    let mut granted = rhizome_guest::wire::WINDOW;
    for _ in 0..3 {
        // Everything comes, up to the last frame that the credit allows.
        while used + rhizome_guest::wire::FRAME_COST < granted {
            let frame = host.next().await;
            assert_eq!(frame.kind, Kind::Stdout);
            used += cost(frame.payload.len());
        }
        assert!(used <= granted);
        // Nothing more comes: the next frame is the answer to this.
        host.send(&Frame {
            kind: Kind::Ping,
            stream: 0,
            payload: vec![1],
        })
        .await;
        assert_eq!(host.next().await.kind, Kind::Pong);
        let more = rhizome_guest::wire::Credit { bytes: 100_000 };
        host.send(&Frame::new(Kind::Credit, 1, &more)).await;
        granted += more.bytes;
    }
}

#[tokio::test]
async fn malformed_requests_fail_and_harm_nobody() {
    let listening = Listening::start().await;
    let mut host = Host::new(listening.stream().await);
    host.greet(1).await;
    let mut random = 7_u64;
    let kinds = [
        Kind::Exec,
        Kind::FileStat,
        Kind::FileList,
        Kind::FileRead,
        Kind::FileWrite,
        Kind::FileMakeDir,
        Kind::FileRemove,
        Kind::SetTime,
        Kind::Reseed,
        Kind::Attach,
        Kind::Keep,
        Kind::ExecSignal,
        Kind::Quiesce,
        Kind::Resumed,
        Kind::Watch,
        Kind::Connect,
    ];
    for round in 0..300_u32 {
        let kind = kinds[round as usize % kinds.len()];
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // All begin with a length that nothing stands behind.
        let payload = random.to_le_bytes()[..round as usize % 7 + 1].to_vec();
        let stream = 2 * round + 1;
        host.send(&Frame {
            kind,
            stream,
            payload,
        })
        .await;
        let answer = host.next().await;
        assert_eq!(
            (answer.kind, answer.stream),
            (Kind::Failed, stream),
            "{kind:?}"
        );
    }
    host.send(&Frame {
        kind: Kind::Ping,
        stream: 0,
        payload: vec![1],
    })
    .await;
    assert_eq!(host.next().await.kind, Kind::Pong);
}

#[tokio::test]
async fn garbage_is_dropped_until_a_host_greets() {
    let listening = Listening::start().await;
    let mut host = Host::new(listening.stream().await);
    host.stream.write_all(&vec![0xee; 300_000]).await.unwrap();
    host.greet(1).await;
    // A host of ours does not do this, but the agent must stand it.
    host.stream.write_all(&vec![0xee; 300_000]).await.unwrap();
    host.greet(2).await;
    host.exec(1, "exit 0").await;
    assert_eq!(host.next().await.kind, Kind::Started);
}

#[tokio::test]
async fn a_shutdown_ends_the_agent() {
    let mut listening = Listening::start().await;
    let channel = listening.connect().await;
    channel.shutdown().await.unwrap();
    channel.closed().await;
    assert!(listening.process.wait().unwrap().success());
}

#[test]
fn a_request_is_no_longer_than_a_frame() {
    let exec = Exec {
        argv: vec![vec![b'x'; 70_000]],
        ..Exec::default()
    };
    assert!(
        Frame::new(Kind::Exec, 1, &exec)
            .encode(&mut Vec::new())
            .is_err()
    );
    assert!(exec.to_payload().len() > 70_000);
}
