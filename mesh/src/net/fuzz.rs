//! What strangers, members and the disk send to the shell, for [`crate::fuzz`].

use bytes::Bytes;

use super::{book, join, sync};
use crate::fuzz::counted;

/// Join frames, each from whoever sends it; the first byte is the kind.
pub(crate) fn join(bytes: &[u8]) {
    if let Some((kind, payload)) = bytes.split_first() {
        join::fuzz::frame(*kind, &Bytes::copy_from_slice(payload));
    }
}

pub(crate) fn joins() -> Vec<Vec<u8>> {
    join::fuzz::frames()
}

/// A list of address-book entries is read as it was written.
pub(crate) fn infos(bytes: &[u8]) {
    let payload = Bytes::copy_from_slice(bytes);
    if let Some(infos) = sync::decode_infos(&payload) {
        let again: Vec<Bytes> = sync::encode_infos(&infos)
            .iter()
            .flat_map(|frame| sync::decode_infos(frame).expect("our own spelling"))
            .collect();
        assert_eq!(again, infos);
    }
}

pub(crate) fn info_frames() -> Vec<Vec<u8>> {
    let entries = [Bytes::from(vec![1; 70]), Bytes::from(vec![2; 200])];
    let frames = sync::encode_infos(&entries);
    frames.iter().map(|frame| frame.to_vec()).collect()
}

/// A damaged address book reads as none; without its checksum first, which a fuzzer cannot make.
pub(crate) fn book(bytes: &[u8]) {
    book::probe(bytes);
}

pub(crate) fn books() -> Vec<Vec<u8>> {
    book::samples()
}

/// Records as an inviter sends them.
pub(crate) fn record_frame() -> Vec<u8> {
    [counted(b"a record"), counted(&[7; 300])].concat()
}
