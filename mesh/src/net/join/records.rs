//! Authority records in frames: `length: u32 big-endian | record`, as many as fit.

use bytes::{BufMut, Bytes, BytesMut};

use crate::net::frame::MAX_FRAME;

/// Spells `records` for frames of at most [`MAX_FRAME`].
pub(super) fn encode(records: &[Bytes]) -> Vec<Bytes> {
    let mut frames = Vec::new();
    let mut frame = BytesMut::new();
    for record in records {
        if frame.len() + record.len() + 4 > MAX_FRAME - 1 && !frame.is_empty() {
            frames.push(frame.split().freeze());
        }
        frame.put_u32(u32::try_from(record.len()).expect("records are at most 64 KiB"));
        frame.put_slice(record);
    }
    if !frame.is_empty() {
        frames.push(frame.freeze());
    }
    frames
}

/// Reads the records of one frame; `None` when it breaks off.
pub(super) fn decode(frame: &Bytes) -> Option<Vec<Bytes>> {
    let mut rest = frame.clone();
    let mut records = Vec::new();
    while !rest.is_empty() {
        if rest.len() < 4 {
            return None;
        }
        let prefix: [u8; 4] = rest.split_to(4)[..].try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes(prefix)).ok()?;
        if length == 0 || length > rest.len() {
            return None;
        }
        records.push(rest.split_to(length));
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_frames() {
        let records: Vec<Bytes> = (1..40)
            .map(|n| vec![n; 1600 * usize::from(n)].into())
            .collect();
        let frames = encode(&records);
        assert!(frames.len() > 1 && frames.iter().all(|frame| frame.len() < MAX_FRAME));
        let back: Vec<Bytes> = frames.iter().flat_map(|f| decode(f).unwrap()).collect();
        assert_eq!(back, records);
    }

    #[test]
    fn broken_frames_are_refused() {
        for broken in [&[0, 0, 0][..], &[0, 0, 0, 0], &[0, 0, 0, 2, 1], &[255; 9]] {
            assert_eq!(decode(&Bytes::copy_from_slice(broken)), None);
        }
    }
}
