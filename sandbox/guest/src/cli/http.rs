//! As much of HTTP/1.1 as one request to our own node needs.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line of a head, in bytes.
const MAX_LINE: u64 = 16 * 1024;
/// Most lines of a head.
const MAX_LINES: usize = 100;

/// An answer whose body is still to be read.
#[derive(Debug)]
pub(crate) struct Response<R> {
    pub(crate) status: u16,
    pub(crate) body: Body<R>,
}

/// The body of an answer. It ends in an error if it was cut.
#[derive(Debug)]
pub(crate) struct Body<R> {
    source: BufReader<R>,
    rest: Rest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// So many bytes are left.
    Length(u64),
    /// So many bytes are left of this chunk; others follow.
    Chunk(u64),
    /// Another chunk begins here. It is looked for only when it is needed: it may be long in
    /// coming, and what came before it must not wait for it.
    NextChunk,
    /// All until the connection's end.
    UntilEnd,
    Done,
}

/// Returns the bytes of a request.
pub(crate) fn request(method: &str, target: &str, host: &str, body: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nhost: {host}\r\naccept: application/json\r\n\
         connection: close\r\n"
    )
    .into_bytes();
    if let Some(body) = body {
        let head = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        bytes.extend_from_slice(head.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body.unwrap_or_default());
    bytes
}

/// Returns the bytes of a request after whose answer the connection speaks `protocol`.
pub(crate) fn upgrade(target: &str, host: &str, protocol: &str) -> Vec<u8> {
    format!(
        "POST {target} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    )
    .into_bytes()
}

/// Reads the head of an answer.
pub(crate) fn response<R: Read>(source: R) -> io::Result<Response<R>> {
    let mut source = BufReader::new(source);
    loop {
        let (status, rest) = head(&mut source)?;
        // More is to come.
        if !(100..200).contains(&status) {
            let body = Body { source, rest };
            return Ok(Response { status, body });
        }
    }
}

/// Reads the head of an answer that should switch to another protocol: what follows it is of that one.
pub(crate) fn switched<R: Read>(source: R) -> io::Result<Result<BufReader<R>, Response<R>>> {
    let mut source = BufReader::new(source);
    let (status, rest) = head(&mut source)?;
    if status == 101 {
        return Ok(Ok(source));
    }
    let body = Body { source, rest };
    Ok(Err(Response { status, body }))
}

/// Reads one head: the status, and how the body ends.
fn head(source: &mut impl BufRead) -> io::Result<(u16, Rest)> {
    let line = line(source)?;
    let status = status(&line).ok_or_else(|| malformed("no status line"))?;
    let mut rest = Rest::UntilEnd;
    for count in 0.. {
        let line = self::line(source)?;
        if line.is_empty() {
            break;
        }
        if count > MAX_LINES {
            return Err(malformed("a head without end"));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("a header"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(malformed("an unknown transfer encoding"));
            }
            rest = Rest::NextChunk;
        } else if name.eq_ignore_ascii_case("content-length") && rest == Rest::UntilEnd {
            let length = value.parse().map_err(|_| malformed("a length"))?;
            rest = Rest::Length(length);
        }
    }
    if matches!(status, 204 | 304) {
        rest = Rest::Done;
    }
    Ok((status, rest))
}

/// Returns a text fit for a query.
pub(crate) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

impl<R: Read> Body<R> {
    fn next_chunk(&mut self) -> io::Result<()> {
        let line = line(&mut self.source)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| malformed("a chunk's size"))?;
        if size > 0 {
            self.rest = Rest::Chunk(size);
            return Ok(());
        }
        for _ in 0..MAX_LINES {
            if self::line(&mut self.source)?.is_empty() {
                self.rest = Rest::Done;
                return Ok(());
            }
        }
        Err(malformed("trailers without end"))
    }
}

impl<R: Read> Read for Body<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.rest == Rest::NextChunk {
            self.next_chunk()?;
        }
        let left = match self.rest {
            Rest::Done | Rest::Length(0) | Rest::NextChunk => return Ok(0),
            Rest::UntilEnd => return self.source.read(buf),
            Rest::Length(left) | Rest::Chunk(left) => left,
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        if most == 0 {
            return Ok(0);
        }
        let len = self.source.read(&mut buf[..most])?;
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the answer was cut",
            ));
        }
        let left = left - len as u64;
        self.rest = match self.rest {
            Rest::Chunk(_) if left == 0 => {
                // It was sent with the chunk, so it does not have to be waited for.
                if !line(&mut self.source)?.is_empty() {
                    return Err(malformed("a chunk's end"));
                }
                Rest::NextChunk
            }
            Rest::Chunk(_) => Rest::Chunk(left),
            _ => Rest::Length(left),
        };
        Ok(len)
    }
}

fn line(source: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    source.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(malformed("a line without end"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| malformed("a head that is no text"))
}

fn status(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("HTTP/1.")?;
    let status = rest.split(' ').nth(1)?.parse().ok()?;
    (100..600).contains(&status).then_some(status)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> io::Result<(u16, String)> {
        let mut response = response(answer.as_bytes())?;
        let mut body = String::new();
        response.body.read_to_string(&mut body)?;
        Ok((response.status, body))
    }

    #[test]
    fn bodies_are_read_by_length_by_chunks_and_to_the_end() {
        let by_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more";
        assert_eq!(read(by_length).unwrap(), (200, "hello".to_owned()));
        let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3;x=y\r\nhel\r\nA\r\nlo, world!\r\n0\r\ntrailer: x\r\n\r\n";
        assert_eq!(read(chunked).unwrap(), (404, "hello, world!".to_owned()));
        let to_the_end = "HTTP/1.0 200 OK\n\nhello";
        assert_eq!(read(to_the_end).unwrap(), (200, "hello".to_owned()));
        let continued = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(read(continued).unwrap(), (204, String::new()));
    }

    #[test]
    fn cut_and_malformed_answers_are_errors() {
        for answer in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        ] {
            assert!(read(answer).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_switch_leaves_what_follows_and_a_refusal_is_read() {
        let switched_to = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x/1\r\n\r\nfirst";
        let mut rest = String::new();
        let mut read = switched(switched_to.as_bytes()).unwrap().unwrap();
        read.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "first");
        let refusal = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
        let mut refused = switched(refusal.as_bytes()).unwrap().unwrap_err();
        let mut why = String::new();
        refused.body.read_to_string(&mut why).unwrap();
        assert_eq!((refused.status, &why[..]), (403, "no"));
        let asked = String::from_utf8(upgrade("/v1/mcp/pipe", "127.0.0.1:4580", "x/1")).unwrap();
        assert!(asked.contains("\r\nupgrade: x/1\r\n") && asked.ends_with("\r\n\r\n{}"));
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("a b&c=ä/~"), "a%20b%26c%3D%C3%A4%2F~");
    }
}
