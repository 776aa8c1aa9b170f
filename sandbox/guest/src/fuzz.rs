//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `fuzz/` and `tests/fuzz.rs` both
//! drive them (`docs/howto/fuzz.md`); nothing else should.

use std::fmt::Debug;

use crate::wire::{
    Act, Attach, Attached, Connect, Credit, Entry, Exec, ExecEntry, ExecId, ExecSignal, Exit,
    Facts, Failure, FailureCode, FileAct, FileEnd, FileKind, FileRead, FileWrite, Frame,
    FrameDecoder, Hello, Info, Keep, Kind, MakeDir, PathOnly, Payload, PtySize, Quiesce, Quiesced,
    Ready, Remove, Reseed, Resumed, SetTime, Signal, Stat, Watch, WatchEvent, WireError,
};

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("guest_frames", frames, streams),
    ("guest_messages", messages, samples),
];

/// A byte stream gives the same frames however it is cut into pieces; the first byte says how,
/// and which side reads.
pub fn frames(bytes: &[u8]) {
    let Some((how, stream)) = bytes.split_first() else {
        return;
    };
    let decoder = || match how & 1 {
        0 => FrameDecoder::seeking(),
        _ => FrameDecoder::watching(),
    };
    let whole = read_all(decoder(), stream, stream.len().max(1));
    let piece = usize::from(how >> 1) + 1;
    let pieces = read_all(decoder(), stream, piece);
    // A side that looks out for a HELLO may have passed on a frame before the bytes that cut it
    // short were there; one that seeks once may not.
    if how & 1 == 0 {
        assert_eq!(whole, pieces, "frames depend on how the stream was cut");
    }
}

fn read_all(
    mut decoder: FrameDecoder,
    stream: &[u8],
    piece: usize,
) -> (Vec<Frame>, Option<WireError>) {
    let mut frames = Vec::new();
    for bytes in stream.chunks(piece) {
        decoder.extend(bytes);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    assert!(decoder.dropped() <= stream.len() as u64);
    (frames, None)
}

/// Every message has one spelling; the first byte says which one is read.
pub fn messages(bytes: &[u8]) {
    let Some((which, payload)) = bytes.split_first() else {
        return;
    };
    let all = readers();
    all[usize::from(*which) % all.len()](payload);
}

fn readers() -> [fn(&[u8]); 33] {
    [
        one::<Hello>,
        one::<Ready>,
        one::<Info>,
        one::<SetTime>,
        one::<Reseed>,
        lossy::<Failure>,
        one::<Credit>,
        one::<Exec>,
        one::<Signal>,
        one::<PtySize>,
        one::<Exit>,
        one::<PathOnly>,
        one::<FileWrite>,
        one::<MakeDir>,
        one::<Remove>,
        one::<Stat>,
        one::<FileEnd>,
        entries,
        one::<ExecId>,
        one::<Attach>,
        one::<Attached>,
        one::<Keep>,
        one::<ExecSignal>,
        one::<ExecEntry>,
        one::<Quiesce>,
        one::<Quiesced>,
        one::<Resumed>,
        one::<Watch>,
        one::<WatchEvent>,
        one::<Connect>,
        one::<FileRead>,
        one::<FileAct>,
        one::<Facts>,
    ]
}

fn one<P: Payload + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = P::from_payload(bytes) {
        assert_eq!(
            message.to_payload(),
            bytes,
            "a second spelling of {message:?}"
        );
    }
}

/// For messages in which a newer side's values read as something known.
fn lossy<P: Payload + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = P::from_payload(bytes) {
        let again = P::from_payload(&message.to_payload()).expect("our own spelling");
        assert_eq!(again, message);
    }
}

fn entries(bytes: &[u8]) {
    let mut from = crate::wire::Decoder::new(bytes);
    while !from.is_empty() {
        if Entry::decode(&mut from).is_err() {
            return;
        }
    }
}

fn streams() -> Vec<Vec<u8>> {
    let hello = Hello {
        version: 1,
        nonce: [1; 16],
        boot: [2; 16],
        flags: 0,
    };
    let ready = Ready {
        boot_ms: 1_234,
        warnings: vec!["no loopback".to_owned()],
    };
    let exit = Exit::Code(7);
    let frames = [
        Frame::new(Kind::Hello, 0, &hello),
        Frame::new(Kind::Ready, 0, &ready),
        Frame {
            kind: Kind::Stdout,
            stream: 1,
            payload: b"hello\n".to_vec(),
        },
        Frame::new(Kind::Exit, 1, &exit),
        Frame::empty(Kind::StreamOpen, 2),
    ];
    let mut stream = Vec::new();
    for frame in &frames {
        frame.encode(&mut stream).expect("short frames");
    }
    let again = [
        &b"\x06old rest"[..],
        &stream[..],
        &stream[..60],
        &stream[..],
    ]
    .concat();
    vec![
        [&[0], &stream[..]].concat(),
        [&[15], &stream[..]].concat(),
        again,
    ]
}

fn samples() -> Vec<Vec<u8>> {
    let stat = Stat {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: 12,
        modified_ms: 99,
        target: Vec::new(),
    };
    let failure = Failure {
        code: FailureCode::NotFound,
        message: "no such file".to_owned(),
    };
    let path = PathOnly {
        path: b"/etc/hosts".to_vec(),
    };
    let ready = Ready {
        boot_ms: 5,
        warnings: vec!["w".to_owned()],
    };
    let program = ExecEntry {
        id: ExecId::from_bytes([7; 8]),
        command: "sleep 1".to_owned(),
        user: "root".to_owned(),
        pid: 40,
        started_ms: 9,
        ran_ms: 8,
        exit: Some(Exit::Signal(9)),
        keep: true,
        pty: false,
        attached: false,
        dropped: 0,
        position: 12,
    };
    let quiesced = Quiesced {
        programs: true,
        disks: 1,
        notes: vec!["caches".to_owned()],
    };
    let write = FileAct {
        user: "ann".to_owned(),
        path: b"~/a".to_vec(),
        act: Act::Write {
            mode: None,
            attributes: vec![(b"user.a".to_vec(), b"1".to_vec())],
        },
    };
    let facts = Facts {
        path: b"/home/ann/a".to_vec(),
        kind: FileKind::File,
        is_link: true,
        mode: 0o777,
        uid: 1000,
        gid: 100,
        owner: "ann".to_owned(),
        group: "users".to_owned(),
        size: 1,
        modified_ns: -1,
        target: b"/b".to_vec(),
        attributes: Vec::new(),
    };
    let sample = |which: u8, payload: Vec<u8>| [&[which][..], &payload].concat();
    vec![
        sample(1, ready.to_payload()),
        sample(5, failure.to_payload()),
        sample(6, Credit { bytes: 4_096 }.to_payload()),
        sample(10, Exit::Code(3).to_payload()),
        sample(11, path.to_payload()),
        sample(15, stat.to_payload()),
        sample(23, program.to_payload()),
        sample(25, quiesced.to_payload()),
        sample(31, write.to_payload()),
        sample(32, facts.to_payload()),
    ]
}
