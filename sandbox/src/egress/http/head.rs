//! The head of a request.

use super::super::name::{DomainName, NameError};

/// Longest head, in bytes.
pub(in super::super) const MAX_HEAD: usize = 64 * 1024;
/// Most headers.
const MAX_HEADERS: usize = 128;
/// Headers that end here: they are about the connection to us.
const OURS: [&str; 4] = [
    "upgrade",
    "http2-settings",
    "proxy-connection",
    "keep-alive",
];

/// Why a request cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum HeadError {
    #[error("it is not HTTP/1.1")]
    NotHttp,
    #[error("the head of its request is malformed: {0}")]
    Malformed(&'static str),
    #[error("the head of its request is too long")]
    TooLong,
    #[error("its request has no `Host`, or more than one")]
    NoHost,
    #[error("its request names no valid host: {0}")]
    Host(NameError),
    #[error("`{0}` is not carried")]
    Method(&'static str),
}

/// How long the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Length {
    Bytes(u64),
    Chunked,
}

/// The head of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Head {
    method: String,
    /// In origin form, or `*`.
    target: String,
    pub(in super::super) host: DomainName,
    pub(in super::super) port: Option<u16>,
    /// In order, names in lower case; `Host` and the body's length are not among them.
    headers: Vec<(String, Vec<u8>)>,
    pub(in super::super) length: Length,
    is_1_0: bool,
}

impl Head {
    /// Reads a head, and returns it with its length in bytes; `None` if more has to come.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadError> {
        check_beginning(bytes)?;
        let window = &bytes[..bytes.len().min(MAX_HEAD)];
        let Some(end) = window.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() >= MAX_HEAD {
                Err(HeadError::TooLong)
            } else {
                Ok(None)
            };
        };
        let mut lines = Lines(&window[..end + 2]);
        let (method, target, is_1_0) = request_line(lines.next().unwrap_or_default())?;
        let mut headers = Vec::new();
        for line in lines {
            if headers.len() == MAX_HEADERS {
                return Err(HeadError::Malformed("too many headers"));
            }
            headers.push(header(line)?);
        }
        let length = length(&headers, is_1_0)?;
        let host = one(&headers, "host")?.ok_or(HeadError::NoHost)?;
        let (host, port) = authority(host)?;
        let target = origin_form(target, &host, port)?;
        let connection: Vec<String> = values(&headers, "connection")
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase())
            .collect();
        // `Connection` may name any header to be dropped; those that say what is meant are not its.
        headers.retain(|(name, _)| {
            !OURS.contains(&name.as_str())
                && !matches!(
                    name.as_str(),
                    "host" | "content-length" | "transfer-encoding" | "connection"
                )
                && !connection.contains(name)
        });
        if connection.iter().any(|word| word == "close")
            || (is_1_0 && !connection.iter().any(|word| word == "keep-alive"))
        {
            headers.push(("connection".to_owned(), b"close".to_vec()));
        } else if is_1_0 {
            headers.push(("connection".to_owned(), b"keep-alive".to_vec()));
        }
        let head = Self {
            method,
            target,
            host,
            port,
            headers,
            length,
            is_1_0,
        };
        Ok(Some((head, end + 4)))
    }

    /// Returns the head as it is passed on.
    pub(in super::super) fn write(&self) -> Vec<u8> {
        let version = if self.is_1_0 { "1.0" } else { "1.1" };
        let mut out = format!(
            "{} {} HTTP/{version}\r\nhost: {}",
            self.method, self.target, self.host
        )
        .into_bytes();
        if let Some(port) = self.port {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
        for (name, value) in &self.headers {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
        }
        match self.length {
            Length::Chunked => out.extend_from_slice(b"\r\ntransfer-encoding: chunked"),
            // A server tells a missing body from an empty one.
            Length::Bytes(0) if !matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") => {}
            Length::Bytes(length) => {
                out.extend_from_slice(format!("\r\ncontent-length: {length}").as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n\r\n");
        out
    }

    /// Returns every part of the head but the value of the header `except`.
    pub(in super::super) fn texts<'a>(&'a self, except: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let line = [self.method.as_bytes(), self.target.as_bytes()];
        let headers = self.headers.iter().flat_map(move |(name, value)| {
            let value: &[u8] = if name == except { b"" } else { value };
            [name.as_bytes(), value]
        });
        line.into_iter().chain(headers)
    }

    /// Returns the values of a header, by its name in lower case.
    pub(in super::super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        values(&self.headers, name)
    }

    /// Puts `value` in the place of every header of that name.
    pub(in super::super) fn set(&mut self, name: &str, value: Vec<u8>) {
        self.remove(name);
        self.headers.push((name.to_owned(), value));
    }

    pub(in super::super) fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| own != name);
    }

    /// Returns what to call the request, for an event.
    pub(in super::super) fn method(&self) -> &str {
        &self.method
    }
}

struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.windows(2).position(|two| two == b"\r\n")?;
        let line = &self.0[..end];
        self.0 = &self.0[end + 2..];
        Some(line)
    }
}

/// Tells early what will never be a request.
fn check_beginning(bytes: &[u8]) -> Result<(), HeadError> {
    let is_in_method = |byte: &&u8| byte.is_ascii_uppercase() || **byte == b'-';
    let word = bytes.iter().take_while(is_in_method).count();
    match bytes.get(word) {
        _ if word > 16 => Err(HeadError::NotHttp),
        None => Ok(()),
        Some(b' ') if word > 0 => Ok(()),
        Some(_) => Err(HeadError::NotHttp),
    }
}

fn request_line(line: &[u8]) -> Result<(String, &str, bool), HeadError> {
    let malformed = HeadError::Malformed("its first line");
    let line = std::str::from_utf8(line).map_err(|_| malformed.clone())?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(malformed);
    };
    let is_1_0 = match version {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        _ => return Err(HeadError::NotHttp),
    };
    if method == "CONNECT" {
        return Err(HeadError::Method("CONNECT"));
    }
    let is_token =
        !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
    if !is_token || target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(malformed);
    }
    Ok((method.to_owned(), target, is_1_0))
}

fn header(line: &[u8]) -> Result<(String, Vec<u8>), HeadError> {
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, value) = line.split_at(colon.ok_or(HeadError::Malformed("a header has no colon"))?);
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(token) {
        return Err(HeadError::Malformed("the name of a header"));
    }
    let value = value[1..].trim_ascii();
    if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(HeadError::Malformed("the value of a header"));
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Ok((name, value.to_vec()))
}

fn values<'a>(headers: &'a [(String, Vec<u8>)], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |(own, _)| own == name)
        .map(|(_, value)| value.as_slice())
}

/// Returns the value of a header that may be there once.
fn one<'a>(headers: &'a [(String, Vec<u8>)], name: &'a str) -> Result<Option<&'a [u8]>, HeadError> {
    let mut found = values(headers, name);
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) if name == "host" => Err(HeadError::NoHost),
        Some(_) => Err(HeadError::Malformed("a header is repeated")),
    }
}

fn length(headers: &[(String, Vec<u8>)], is_1_0: bool) -> Result<Length, HeadError> {
    let given = one(headers, "content-length")?;
    let Some(coding) = one(headers, "transfer-encoding")? else {
        let Some(given) = given else {
            return Ok(Length::Bytes(0));
        };
        let digits = !given.is_empty() && given.len() <= 18 && given.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(given).ok().filter(|_| digits);
        let length = text.and_then(|text| text.parse().ok());
        return length
            .map(Length::Bytes)
            .ok_or(HeadError::Malformed("its length"));
    };
    if given.is_some() || is_1_0 || !coding.eq_ignore_ascii_case(b"chunked") {
        return Err(HeadError::Malformed("its length"));
    }
    Ok(Length::Chunked)
}

fn authority(value: &[u8]) -> Result<(DomainName, Option<u16>), HeadError> {
    let (host, port) = match value.iter().rposition(|&byte| byte == b':') {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value, None),
    };
    let port = match port {
        None => None,
        Some(port) => {
            let digits = port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(port).ok().filter(|_| digits);
            let number = text.and_then(|text| text.parse().ok());
            Some(number.ok_or(HeadError::Malformed("the port in `Host`"))?)
        }
    };
    Ok((DomainName::from_wire(host).map_err(HeadError::Host)?, port))
}

/// Returns the target without scheme and authority, which must be those of `Host`.
fn origin_form(target: &str, host: &DomainName, port: Option<u16>) -> Result<String, HeadError> {
    if target.starts_with('/') || target == "*" {
        return Ok(target.to_owned());
    }
    let differs = HeadError::Malformed("its first line and its `Host` differ");
    let rest = target
        .get(..7)
        .filter(|scheme| scheme.eq_ignore_ascii_case("http://"))
        .map(|_| &target[7..])
        .ok_or(HeadError::Malformed("its target"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (named, path) = rest.split_at(end);
    let (name, named_port) = authority(named.as_bytes())?;
    if name != *host || named_port.unwrap_or(80) != port.unwrap_or(80) {
        return Err(differs);
    }
    Ok(if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Option<(Head, usize)>, HeadError> {
        Head::parse(text.as_bytes())
    }

    fn written(text: &str) -> String {
        let (head, _) = parse(text).unwrap().unwrap();
        String::from_utf8(head.write()).unwrap()
    }

    #[test]
    fn a_request_is_written_as_it_was_read() {
        assert_eq!(
            written("GET /a?b=c HTTP/1.1\r\nHost: Example.ORG\r\nAccept: */*\r\n\r\nrest"),
            "GET /a?b=c HTTP/1.1\r\nhost: example.org\r\naccept: */*\r\n\r\n"
        );
        assert_eq!(
            written(
                "POST http://example.org/x HTTP/1.1\r\nHost: example.org:80\r\nContent-Length: 3\r\n\r\n"
            ),
            "POST /x HTTP/1.1\r\nhost: example.org:80\r\ncontent-length: 3\r\n\r\n"
        );
        assert_eq!(
            written(
                "GET / HTTP/1.1\r\nhost: a.example\r\nConnection: Upgrade, X-Mine, close\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX-Mine: 1\r\n\r\n"
            ),
            "GET / HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n\r\n"
        );
    }

    #[test]
    fn a_head_comes_in_pieces() {
        let whole = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), Ok(None), "{end}");
        }
        assert_eq!(parse(whole).unwrap().unwrap().1, whole.len());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (text, error) in [
            ("\x16\x03\x01", HeadError::NotHttp),
            ("SSH-2.0-x\r\n", HeadError::NotHttp),
            ("get / HTTP/1.1\r\n\r\n", HeadError::NotHttp),
            ("PRI * HTTP/2.0\r\n\r\n", HeadError::NotHttp),
            ("GET / HTTP/1.1\r\n\r\n", HeadError::NoHost),
            (
                "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
                HeadError::NoHost,
            ),
            (
                "GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n",
                HeadError::Host(NameError::Numeric),
            ),
            (
                "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
                HeadError::Host(NameError::Character),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a@b.example\r\n\r\n",
                HeadError::Host(NameError::Character),
            ),
            (
                "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
                HeadError::Method("CONNECT"),
            ),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        for text in [
            "GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\nX: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example:port\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: +1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let long = format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\nX: {}",
            "y".repeat(MAX_HEAD)
        );
        assert_eq!(parse(&long), Err(HeadError::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_the_same(
            text in "(GET|POST) /[a-z ?#]{0,5} HTTP/1\\.[01]\r\nHost: [a-c.:0-9]{1,8}\r\n([A-Za-z-]{1,6}: [ -~]{0,8}\r\n){0,4}\r\n"
        ) {
            if let Ok(Some((head, _))) = parse(&text) {
                let bytes = head.write();
                let (again, len) = Head::parse(&bytes).unwrap().unwrap();
                prop_assert_eq!(len, bytes.len());
                prop_assert_eq!(again.write(), bytes);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&bytes);
        }
    }
}
