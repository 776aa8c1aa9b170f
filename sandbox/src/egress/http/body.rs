//! The body of a request, taken out of its framing.

use super::head::Length;

/// Longest line with the size of a chunk, in bytes; extensions of chunks are dropped.
const MAX_SIZE_LINE: usize = 256;
/// Longest trailer, in bytes; trailers are dropped.
const MAX_TRAILER: usize = 16 * 1024;

/// Why a body cannot be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body of its request is malformed")]
pub(in super::super) struct BodyError;

/// Where in a body we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Data(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer(usize),
    Done,
}

/// Takes a body out of its framing, piece by piece.
#[derive(Debug)]
pub(in super::super) struct BodyReader {
    state: State,
    is_chunked: bool,
}

/// What the next bytes of the connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Piece {
    /// So many bytes of framing, to be dropped.
    Framing(usize),
    /// So many bytes of the body.
    Data(usize),
    /// Not enough is there to tell.
    More,
    /// The body is over.
    End,
}

impl BodyReader {
    pub(in super::super) fn new(length: Length) -> Self {
        Self {
            state: match length {
                Length::Bytes(0) => State::Done,
                Length::Bytes(bytes) => State::Data(bytes),
                Length::Chunked => State::ChunkSize,
            },
            is_chunked: length == Length::Chunked,
        }
    }

    pub(in super::super) fn is_chunked(&self) -> bool {
        self.is_chunked
    }

    /// Tells what `bytes` begin with.
    pub(in super::super) fn next(&mut self, bytes: &[u8]) -> Result<Piece, BodyError> {
        match self.state {
            State::Done => Ok(Piece::End),
            _ if bytes.is_empty() => Ok(Piece::More),
            State::Data(left) => Ok(Piece::Data(self.take(
                left,
                bytes.len(),
                State::Data,
                State::Done,
            ))),
            State::Chunk(left) => Ok(Piece::Data(self.take(
                left,
                bytes.len(),
                State::Chunk,
                State::ChunkEnd,
            ))),
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    Ok(Piece::Framing(2))
                }
                [b'\r'] => Ok(Piece::More),
                _ => Err(BodyError),
            },
            State::ChunkSize => {
                let Some(line) = line(bytes, MAX_SIZE_LINE)? else {
                    return Ok(Piece::More);
                };
                let size = chunk_size(line)?;
                self.state = match size {
                    0 => State::Trailer(0),
                    size => State::Chunk(size),
                };
                Ok(Piece::Framing(line.len() + 2))
            }
            State::Trailer(seen) => {
                let Some(line) = line(bytes, MAX_TRAILER - seen)? else {
                    return Ok(Piece::More);
                };
                self.state = match line.len() {
                    0 => State::Done,
                    len if seen + len + 2 < MAX_TRAILER => State::Trailer(seen + len + 2),
                    _ => return Err(BodyError),
                };
                Ok(Piece::Framing(line.len() + 2))
            }
        }
    }

    fn take(&mut self, left: u64, have: usize, more: fn(u64) -> State, over: State) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(have);
        self.state = match left - taken as u64 {
            0 => over,
            left => more(left),
        };
        taken
    }
}

fn line(bytes: &[u8], max: usize) -> Result<Option<&[u8]>, BodyError> {
    let end = bytes.iter().take(max).position(|&byte| byte == b'\n');
    match end {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' => {
            let line = &bytes[..end - 1];
            // A bare CR could be the end of a line to somebody else.
            if line.contains(&b'\r') {
                Err(BodyError)
            } else {
                Ok(Some(line))
            }
        }
        Some(_) => Err(BodyError),
        None if bytes.len() >= max => Err(BodyError),
        None => Ok(None),
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, BodyError> {
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let rest = line[digits..].trim_ascii_start();
    if !(1..=15).contains(&digits) || !(rest.is_empty() || rest[0] == b';') {
        return Err(BodyError);
    }
    let text = std::str::from_utf8(&line[..digits]).map_err(|_| BodyError)?;
    u64::from_str_radix(text, 16).map_err(|_| BodyError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body that comes in pieces of `step`; returns it and what follows it.
    fn read(length: Length, bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), BodyError> {
        let mut reader = BodyReader::new(length);
        let (mut have, mut data, mut left) = (Vec::new(), Vec::new(), bytes);
        loop {
            match reader.next(&have)? {
                Piece::Framing(len) => drop(have.drain(..len)),
                Piece::Data(len) => data.extend(have.drain(..len)),
                Piece::End => {
                    have.extend_from_slice(left);
                    return Ok((data, have));
                }
                Piece::More if left.is_empty() => return Err(BodyError),
                Piece::More => {
                    let (piece, rest) = left.split_at(step.min(left.len()));
                    have.extend_from_slice(piece);
                    left = rest;
                }
            }
        }
    }

    #[test]
    fn bodies_end_where_they_say() {
        let chunked = b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET";
        for step in 1..chunked.len() {
            let (data, rest) = read(Length::Chunked, chunked, step).unwrap();
            assert_eq!((&data[..], &rest[..]), (&b"abc0123456789"[..], &b"GET"[..]));
            let (data, rest) = read(Length::Bytes(3), b"abcGET", step).unwrap();
            assert_eq!((&data[..], &rest[..]), (&b"abc"[..], &b"GET"[..]));
        }
        assert_eq!(read(Length::Bytes(0), b"GET", 9).unwrap().1, b"GET");
    }

    #[test]
    fn odd_framing_is_refused() {
        for bytes in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3\r\nabcd\r\n",
            b"-3\r\n",
            b"0x3\r\nabc",
            b"\r\n",
            b"3 3\r\nabc\r\n",
            b"10000000000000000\r\n",
            b"0\r\nX\rY\r\n\r\n",
            b"0\r\n\n",
        ] {
            assert_eq!(
                read(Length::Chunked, bytes, 64),
                Err(BodyError),
                "{bytes:?}"
            );
        }
        assert!(read(Length::Chunked, &[b'1'; 300], 300).is_err());
        let long = [b"0\r\n".to_vec(), vec![b'x'; MAX_TRAILER + 1]].concat();
        assert!(read(Length::Chunked, &long, long.len()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1_usize..50) {
            let _ = read(Length::Chunked, &bytes, step);
        }
    }
}
