use std::fmt::Debug;

use proptest::prelude::*;

use super::{
    frame::{ALL_KINDS, find_magic},
    *,
};

fn hello(nonce: u8) -> Frame {
    let hello = Hello {
        version: PROTOCOL_VERSION,
        nonce: [nonce; 16],
        boot: [nonce ^ 1; 16],
        flags: 0,
    };
    Frame::new(Kind::Hello, 0, &hello)
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes).unwrap();
    }
    bytes
}

/// Feeds `bytes` in pieces of `step` and returns all frames.
fn decode(mut decoder: FrameDecoder, bytes: &[u8], step: usize) -> Result<Vec<Frame>, WireError> {
    let mut frames = Vec::new();
    for piece in bytes.chunks(step.max(1)) {
        decoder.extend(piece);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let kind = prop::sample::select(ALL_KINDS).prop_filter("no greeting", |k| *k != Kind::Hello);
    let payload = prop::collection::vec(any::<u8>(), 0..300)
        .prop_filter("magic", |payload| !contains_magic(payload));
    (kind, any::<u32>(), payload).prop_map(|(kind, stream, payload)| Frame {
        kind,
        stream,
        payload,
    })
}

fn round_trip<P: Payload + PartialEq + Debug>(message: &P) -> Vec<u8> {
    let bytes = message.to_payload();
    assert_eq!(&P::from_payload(&bytes).unwrap(), message);
    for end in 0..bytes.len() {
        assert!(P::from_payload(&bytes[..end]).is_err(), "cut at {end}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(
        P::from_payload(&longer),
        Err(WireError::Trailing { bytes: 1 })
    );
    bytes
}

fn stat() -> Stat {
    Stat {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1,
        gid: 2,
        size: 3,
        modified_ms: 4,
        target: b"../x".to_vec(),
    }
}

fn exec() -> Exec {
    Exec {
        argv: vec![b"sh".to_vec(), b"-c".to_vec(), b"exit 1".to_vec()],
        env: vec![(b"A".to_vec(), b"b=c".to_vec())],
        cwd: b"/tmp".to_vec(),
        user: "ann:users".to_owned(),
        stdin: true,
        timeout_ms: 9,
        id: ExecId::from_bytes([7; 8]),
        keep: true,
        pty: Some(PtySize {
            rows: 24,
            columns: 80,
        }),
    }
}

fn exec_entry(exit: Option<Exit>) -> ExecEntry {
    ExecEntry {
        id: ExecId::from_bytes([3; 8]),
        command: "sleep 1".to_owned(),
        user: "root".to_owned(),
        pid: 5,
        started_ms: 6,
        ran_ms: 7,
        exit,
        keep: true,
        pty: false,
        attached: true,
        dropped: 8,
        position: 9,
    }
}

/// Mutates `bytes` in every single byte to every value; decoding must not panic.
fn mutate<P: Payload>(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len() {
        let kept = bytes[at];
        for value in 0..=u8::MAX {
            bytes[at] = value;
            let _ = P::from_payload(&bytes);
        }
        bytes[at] = kept;
    }
}

#[test]
fn every_message_survives_its_encoding_and_no_cut_does() {
    mutate::<Hello>(&round_trip(&Hello {
        version: 1,
        nonce: [1; 16],
        boot: [2; 16],
        flags: 0,
    }));
    mutate::<Ready>(&round_trip(&Ready {
        boot_ms: 5,
        warnings: vec!["a".into(), "ü".into()],
    }));
    round_trip(&Credit { bytes: 7 });
    mutate::<Exec>(&round_trip(&exec()));
    round_trip(&Signal { number: 15 });
    round_trip(&PtySize {
        rows: 24,
        columns: 80,
    });
    round_trip(&Attach {
        id: ExecId::from_bytes([1; 8]),
        from: 9,
    });
    mutate::<Attached>(&round_trip(&Attached {
        position: 5,
        gap: 2,
        pty: true,
        stdin: false,
    }));
    round_trip(&Keep {
        id: ExecId::from_bytes([1; 8]),
        keep: true,
    });
    round_trip(&ExecSignal {
        id: ExecId::from_bytes([1; 8]),
        number: 15,
    });
    for exit in [None, Some(Exit::Code(3))] {
        mutate::<ExecEntry>(&round_trip(&exec_entry(exit)));
    }
    mutate::<Quiesce>(&round_trip(&Quiesce {
        hook: vec![b"sync".to_vec()],
        hook_ms: 1,
        hold_ms: 2,
    }));
    mutate::<Quiesced>(&round_trip(&Quiesced {
        programs: true,
        disks: 1,
        notes: vec!["no".to_owned()],
    }));
    // Its last field is one that guests of before do not know.
    for machine in [None, Some([9; 16])] {
        let resumed = Resumed {
            unix_ns: 1,
            seed: [2; 32],
            fork: true,
            hostname: "two".to_owned(),
            machine,
        };
        let bytes = resumed.to_payload();
        for end in (0..bytes.len()).filter(|end| machine.is_none() || end + 16 != bytes.len()) {
            assert!(
                Resumed::from_payload(&bytes[..end]).is_err(),
                "cut at {end}"
            );
        }
        mutate::<Resumed>(&bytes);
        assert_eq!(Resumed::from_payload(&bytes), Ok(resumed));
    }
    round_trip(&Watch {
        path: b"/a".to_vec(),
        recursive: true,
    });
    mutate::<WatchEvent>(&round_trip(&WatchEvent {
        op: WatchOp::Changed,
        directory: false,
        path: b"a/b".to_vec(),
    }));
    round_trip(&Connect { port: 80 });
    round_trip(&FileRead {
        path: b"/a".to_vec(),
        from: 7,
    });
    for exit in [Exit::Code(-1), Exit::Signal(9), Exit::TimedOut] {
        mutate::<Exit>(&round_trip(&exit));
    }
    let failure = Failure {
        code: FailureCode::NoSpace,
        message: "full".to_owned(),
    };
    mutate::<Failure>(&round_trip(&failure));
    round_trip(&PathOnly {
        path: b"/etc".to_vec(),
    });
    mutate::<FileWrite>(&round_trip(&FileWrite {
        path: b"/a".to_vec(),
        mode: 0o644,
        parents: true,
    }));
    round_trip(&MakeDir {
        path: b"/a".to_vec(),
        mode: 0o755,
        parents: false,
    });
    round_trip(&Remove {
        path: b"/a".to_vec(),
        recursive: true,
    });
    mutate::<Stat>(&round_trip(&stat()));
    mutate::<Entry>(&round_trip(&Entry {
        name: b"x".to_vec(),
        stat: stat(),
    }));
    for act in [
        Act::Look,
        Act::List { depth: 3 },
        Act::MakeDir,
        Act::Move { to: b"b".to_vec() },
        Act::Remove,
        Act::Write {
            mode: Some(0o600),
            attributes: vec![(b"user.k".to_vec(), b"v".to_vec())],
        },
        Act::Write {
            mode: None,
            attributes: Vec::new(),
        },
    ] {
        mutate::<FileAct>(&round_trip(&FileAct {
            user: "ann".to_owned(),
            path: b"~/a".to_vec(),
            act,
        }));
    }
    mutate::<Facts>(&round_trip(&Facts {
        path: b"/a".to_vec(),
        kind: FileKind::Directory,
        is_link: true,
        mode: 0o777,
        uid: 1,
        gid: 2,
        owner: "ann".to_owned(),
        group: "2".to_owned(),
        size: 3,
        modified_ns: 4,
        target: b"/b".to_vec(),
        attributes: vec![(b"user.k".to_vec(), Vec::new())],
    }));
    round_trip(&FileEnd {
        size: 1,
        checksum: [2; 32],
    });
    round_trip(&SetTime { unix_ns: 3 });
    round_trip(&Reseed { seed: [4; 32] });
    round_trip(&NetOpen {
        address: [10, 107, 0, 2],
        prefix: 24,
        gateway: [10, 107, 0, 1],
        mtu: 16_384,
        authority: "-----BEGIN".into(),
    });
    let info = Info {
        kernel: "6.1".to_owned(),
        cpus: 1,
        ..Info::default()
    };
    mutate::<Info>(&round_trip(&info));
}

#[test]
fn counts_are_checked_against_what_is_there() {
    // Four billion arguments in eight bytes.
    let bytes = [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0];
    assert_eq!(
        Exec::from_payload(&bytes),
        Err(WireError::Invalid { field: "argv" })
    );
    let mut ready = 0_u64.to_le_bytes().to_vec();
    ready.extend_from_slice(&[0xff; 4]);
    assert_eq!(
        Ready::from_payload(&ready),
        Err(WireError::Invalid { field: "warnings" })
    );
}

#[test]
fn what_the_kernel_must_not_see_is_refused() {
    let nul = Exec {
        argv: vec![b"a\0b".to_vec()],
        ..Exec::default()
    };
    assert_eq!(
        Exec::from_payload(&nul.to_payload()),
        Err(WireError::Invalid { field: "argv" })
    );
    let none = Exec::default();
    assert_eq!(
        Exec::from_payload(&none.to_payload()),
        Err(WireError::Invalid { field: "argv" })
    );
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        let entry = Entry {
            name: name.to_vec(),
            stat: stat(),
        };
        assert_eq!(
            Entry::decode_all(&entry.to_payload()),
            Err(WireError::Invalid { field: "name" }),
            "{name:?}"
        );
    }
    for path in [&b""[..], b"relative", b"/a\0"] {
        let path = PathOnly {
            path: path.to_vec(),
        };
        let error = PathOnly::from_payload(&path.to_payload());
        assert_eq!(error, Err(WireError::Invalid { field: "path" }));
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_before_anything_is_held_for_it() {
    let mut decoder = FrameDecoder::seeking();
    decoder.extend(&bytes_of(&[hello(1)]));
    assert!(decoder.next_frame().unwrap().is_some());
    decoder.extend(&[0xff, 0xff, 0xff, 0xff, Kind::Stdout as u8, 1, 0, 0, 0]);
    assert_eq!(
        decoder.next_frame(),
        Err(WireError::FrameTooLong { len: u32::MAX })
    );
    let frame = Frame {
        kind: Kind::Stdout,
        stream: 1,
        payload: vec![0; MAX_PAYLOAD + 1],
    };
    assert!(frame.encode(&mut Vec::new()).is_err());
}

#[test]
fn a_new_host_in_the_middle_of_any_frame_is_heard() {
    let long = Frame {
        kind: Kind::Stdin,
        stream: 1,
        payload: vec![9; 500],
    };
    let old = bytes_of(&[hello(1), Frame::empty(Kind::Ping, 0), long]);
    let next = Frame {
        kind: Kind::Ping,
        stream: 0,
        payload: b"new".to_vec(),
    };
    // The host greets until it is answered, so one greeting may be lost.
    let new = bytes_of(&[hello(2), hello(2), next.clone()]);
    for cut in Hello::LEN + HEADER_LEN..old.len() {
        for step in [1, 7, 10_000] {
            let bytes = [&old[..cut], &new].concat();
            let mut decoder = FrameDecoder::watching();
            let mut frames = Vec::new();
            for piece in bytes.chunks(step) {
                decoder.extend(piece);
                loop {
                    match decoder.next_frame() {
                        Ok(Some(frame)) => frames.push(frame),
                        Ok(None) => break,
                        Err(_) => decoder.lose_sync(),
                    }
                }
            }
            let greeted = frames.iter().position(|frame| *frame == hello(2));
            assert!(greeted.is_some(), "cut at {cut}, step {step}");
            assert_eq!(frames.last(), Some(&next), "cut at {cut}, step {step}");
        }
    }
}

#[test]
fn an_old_session_before_the_greeting_is_dropped() {
    let stale = vec![0x55; 100_000];
    let bytes = [stale, bytes_of(&[hello(3), Frame::empty(Kind::Ready, 0)])].concat();
    for step in [1000, 1 << 20] {
        let frames = decode(FrameDecoder::seeking(), &bytes, step).unwrap();
        assert_eq!(frames, [hello(3), Frame::empty(Kind::Ready, 0)]);
    }
}

#[test]
fn the_number_of_a_program_survives_its_text() {
    let id = ExecId::from_bytes([0, 1, 2, 3, 0xfc, 0xfd, 0xfe, 0xff]);
    assert_eq!(id.to_string(), "00010203fcfdfeff");
    assert_eq!(id.to_string().parse(), Ok(id));
    for text in [
        "",
        "1",
        "00010203FCFDFEFF",
        "+0010203fcfdfeff",
        "00010203fcfdfeff0",
    ] {
        assert!(text.parse::<ExecId>().is_err(), "{text}");
    }
}

#[test]
fn magic_is_found_wherever_it_stands() {
    let mut bytes = vec![MAGIC[0]; 5];
    bytes.extend_from_slice(&MAGIC);
    assert_eq!(find_magic(&bytes), Some(5));
    assert!(!contains_magic(&bytes[..20]));
}

proptest! {
    #[test]
    fn frames_survive_any_cutting(frames in prop::collection::vec(any_frame(), 0..8), step in 1_usize..400) {
        let all: Vec<Frame> = std::iter::once(hello(1)).chain(frames).collect();
        let bytes = bytes_of(&all);
        prop_assume!(find_magic(&bytes[HEADER_LEN + 1..]).is_none());
        prop_assert_eq!(&decode(FrameDecoder::watching(), &bytes, step).unwrap(), &all);
        prop_assert_eq!(&decode(FrameDecoder::seeking(), &bytes, step).unwrap(), &all);
    }

    #[test]
    fn garbage_is_an_error_or_waits(bytes in prop::collection::vec(any::<u8>(), 0..2000), step in 1_usize..300) {
        let mut all = bytes_of(&[hello(1)]);
        all.extend_from_slice(&bytes);
        for decoder in [FrameDecoder::watching(), FrameDecoder::seeking()] {
            if let Ok(frames) = decode(decoder, &all, step) {
                for frame in frames {
                    prop_assert!(frame.payload.len() <= MAX_PAYLOAD);
                    let _ = frame.message::<Exec>();
                    let _ = frame.message::<Info>();
                    let _ = Entry::decode_all(&frame.payload);
                    let _ = ExecEntry::decode_all(&frame.payload);
                    let _ = WatchEvent::decode_all(&frame.payload);
                }
            }
        }
    }

    #[test]
    fn mutated_sessions_do_not_panic(
        frames in prop::collection::vec(any_frame(), 1..6),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        step in 1_usize..300,
    ) {
        let mut bytes = bytes_of(&[hello(1)]);
        bytes.extend_from_slice(&bytes_of(&frames));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = decode(FrameDecoder::watching(), &bytes, step);
        let _ = decode(FrameDecoder::seeking(), &bytes, step);
    }
}
