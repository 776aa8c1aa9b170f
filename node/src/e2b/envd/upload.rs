//! The body of an upload: as it comes, or packed with gzip.
use std::{
    io::{self, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures::{Stream, StreamExt, stream::BoxStream};
use rhizome_sandbox::channel::FileError;

use crate::e2b::error::E2bError;

/// Packed bytes that are unpacked at once. Deflate makes at most a thousand of one, so this is what
/// bounds the memory that a hostile archive takes.
const PACKED_BYTES: usize = 1024;

/// Returns the bytes of a body, unpacked if they were packed.
pub(in crate::e2b) fn bytes_of(
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<BoxStream<'static, io::Result<Bytes>>, E2bError> {
    let plain = body
        .into_data_stream()
        .map(|bytes| bytes.map_err(io::Error::other));
    let said = headers.get(header::CONTENT_ENCODING);
    match said.map(|said| said.to_str().unwrap_or("?").trim()) {
        None | Some("" | "identity") => Ok(plain.boxed()),
        Some("gzip" | "x-gzip") => Ok(Unpacked::of(plain.boxed()).boxed()),
        Some(other) => Err(E2bError::bad_request(format!(
            "the content encoding `{}` is not known here; `gzip` is",
            crate::daemon::memory::clip(other)
        ))),
    }
}

/// Unpacks as it is read.
struct Unpacked {
    packed: BoxStream<'static, io::Result<Bytes>>,
    waiting: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
    ended: bool,
}

impl Unpacked {
    fn of(packed: BoxStream<'static, io::Result<Bytes>>) -> Self {
        Self {
            packed,
            waiting: Bytes::new(),
            decoder: MultiGzDecoder::new(Vec::new()),
            ended: false,
        }
    }
}

impl Stream for Unpacked {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            if self.waiting.is_empty() {
                match ready!(self.packed.poll_next_unpin(cx)) {
                    Some(Ok(bytes)) => self.waiting = bytes,
                    Some(Err(error)) => {
                        self.ended = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => {
                        self.ended = true;
                        // An archive that is cut ends in an error, so that no half of a file does.
                        if let Err(error) = self.decoder.try_finish() {
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                }
            }
            let len = self.waiting.len().min(PACKED_BYTES);
            let piece = self.waiting.split_to(len);
            if let Err(error) = self.decoder.write_all(&piece) {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            let unpacked = std::mem::take(self.decoder.get_mut());
            if !unpacked.is_empty() {
                return Poll::Ready(Some(Ok(unpacked.into())));
            }
        }
    }
}

/// Whether a write failed because the client sent too little, or nonsense.
pub(super) fn is_clients_fault(error: &FileError) -> bool {
    matches!(error, FileError::Source { .. })
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use futures::TryStreamExt;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    async fn unpack(bytes: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let pieces: Vec<_> = bytes
            .chunks(piece)
            .map(|bytes| Ok::<_, axum::Error>(Bytes::copy_from_slice(bytes)))
            .collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        let body = axum::body::Body::from_stream(futures::stream::iter(pieces));
        let unpacked = bytes_of(&headers, body).unwrap();
        let all: Vec<Bytes> = unpacked.try_collect().await?;
        Ok(all.concat())
    }

    #[tokio::test]
    async fn an_upload_is_unpacked_however_it_comes() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let packed = packed(&text);
        for piece in [1, 1000, packed.len()] {
            assert_eq!(unpack(&packed, piece).await.unwrap(), text);
        }
        let twice = [&packed[..], &packed[..]].concat();
        assert_eq!(unpack(&twice, 9999).await.unwrap().len(), 2 * text.len());
    }

    #[tokio::test]
    async fn an_archive_that_is_cut_or_none_is_an_error() {
        let packed = packed(b"some text that is packed");
        for end in [5, packed.len() / 2, packed.len() - 1] {
            assert!(unpack(&packed[..end], 7).await.is_err(), "cut at {end}");
        }
        assert!(unpack(b"plain text", 3).await.is_err());
    }

    #[tokio::test]
    async fn a_bomb_comes_in_pieces() {
        let bomb = packed(&vec![0; 32 << 20]);
        let body = futures::stream::iter([Ok(Bytes::from(bomb))]);
        let mut unpacked = Unpacked::of(body.boxed());
        let mut size = 0;
        while let Some(piece) = unpacked.next().await {
            let piece = piece.unwrap();
            assert!(piece.len() <= 2 << 20, "{} bytes at once", piece.len());
            size += piece.len();
        }
        assert_eq!(size, 32 << 20);
    }

    #[test]
    fn unknown_encodings_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "br".parse().unwrap());
        assert!(bytes_of(&headers, axum::body::Body::empty()).is_err());
    }
}
