//! What a hostile member does.

use bytes::Bytes;

/// How a node is hostile; everything else it does as an honest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hostility {
    /// Sends frames of random bytes.
    Garbage,
    /// Serves items whose signatures are broken.
    BrokenSignatures,
    /// Publishes a chain whose first fragment it keeps to itself.
    WithheldPredecessor,
    /// Repeats every frame it sends, many times.
    Flood,
}

/// Breaks the signature of an encoded fragment and nothing else.
///
/// The wire form is the envelope, which ends with the signature, and then the body; the
/// signature is the only byte string of 64 bytes, so its head is found from behind.
pub(super) fn broken(item: &Bytes) -> Bytes {
    let mut bytes = item.to_vec();
    let head = bytes.windows(2).rposition(|pair| pair == [0x58, 64]);
    // Whatever is flipped, the item is not what its author signed.
    let at = head.map_or(bytes.len() / 2, |head| head + 10);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1;
    }
    bytes.into()
}
