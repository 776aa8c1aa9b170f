//! The frames of replication, for [`crate::fuzz`].

use bytes::Bytes;
use rhizome_identity::{Hash, SpaceId};
use rhizome_memory::Lane;

use super::frame::{Frame, Hello, Ranges, RangesRole};

/// A frame has one spelling.
pub(crate) fn frame(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(frame) = Frame::decode(&bytes) {
        assert_eq!(frame.encode(), bytes, "a second spelling of a frame");
    }
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let lane = Lane::Space(SpaceId::from_bytes([2; 32]));
    let ids = vec![Hash::of(b"one"), Hash::of(b"two")];
    let frames = [
        Frame::Hello(Hello {
            version: 1,
            oldest: 1,
            instance: 7,
            number: 1,
            heard: 0,
            spaces: vec![SpaceId::from_bytes([2; 32])],
        }),
        Frame::Ranges(Ranges {
            lane: Lane::Authority,
            salt: [3; 16],
            role: RangesRole::Open,
            question: 1,
            index: 0,
            count: 1,
            parts: Bytes::from_static(&[0x80, 33, 1, 2, 3, 4, 5, 6, 7, 8]),
        }),
        Frame::Items {
            lane,
            batch: 9,
            items: vec![Bytes::from_static(b"item"), Bytes::from_static(b"another")],
        },
        Frame::Ack {
            batch: 9,
            stored: vec![true, false],
        },
        Frame::Have {
            lane,
            ids: ids.clone(),
        },
        Frame::Get {
            lane,
            ids: ids.clone(),
        },
        Frame::Stored {
            lane: Lane::Authority,
            ids,
        },
    ];
    frames.map(|frame| frame.encode().to_vec()).to_vec()
}
