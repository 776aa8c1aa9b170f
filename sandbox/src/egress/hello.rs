//! The name in a TLS greeting (RFC 8446, section 4.1.2; RFC 6066, section 3).
//!
//! Strict where leniency would let a greeting mean one name to us and another to its server: one
//! `server_name`, one host in it, every length exact, no encrypted greeting. The greeting may come
//! in any number of records and pieces.

use super::name::{DomainName, NameError};

/// Longest greeting, with the headers of its records, in bytes.
pub(super) const MAX_HELLO: usize = 32 * 1024;
/// Longest record, in bytes.
const MAX_RECORD: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;

/// Why a greeting names no server that could be decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelloError {
    #[error("it does not begin with a TLS greeting")]
    NotTls,
    #[error("its TLS greeting is malformed")]
    Malformed,
    #[error("its TLS greeting is too long")]
    TooLong,
    #[error("its TLS greeting names no server")]
    NoName,
    #[error("its TLS greeting is encrypted (ECH), so nobody can tell which server it names")]
    Encrypted,
    #[error("its TLS greeting names no valid server: {0}")]
    Name(NameError),
}

/// Returns the name that a greeting says, or `None` if more of it has to come.
pub(super) fn server_name(bytes: &[u8]) -> Result<Option<DomainName>, HelloError> {
    if bytes.len() > MAX_HELLO {
        return Err(HelloError::TooLong);
    }
    let mut message = Vec::new();
    let mut records = bytes;
    loop {
        if let Some(length) = message_length(&message)? {
            let Some(body) = message.get(4..4 + length) else {
                if records.is_empty() {
                    return Ok(None);
                }
                take_record(&mut records, &mut message)?;
                continue;
            };
            // What follows the greeting in its record is nothing that a client could say yet.
            if message.len() > 4 + length {
                return Err(HelloError::Malformed);
            }
            return name_in(body).map(Some);
        }
        if records.is_empty() {
            return Ok(None);
        }
        take_record(&mut records, &mut message)?;
    }
}

fn message_length(message: &[u8]) -> Result<Option<usize>, HelloError> {
    let Some(&[kind, a, b, c]) = message.get(..4) else {
        return match message.first() {
            Some(&kind) if kind != CLIENT_HELLO => Err(HelloError::NotTls),
            _ => Ok(None),
        };
    };
    if kind != CLIENT_HELLO {
        return Err(HelloError::NotTls);
    }
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > MAX_HELLO {
        return Err(HelloError::TooLong);
    }
    Ok(Some(length))
}

/// Moves what is there of the next record to `message`, and all of `records` if it is cut.
fn take_record(records: &mut &[u8], message: &mut Vec<u8>) -> Result<(), HelloError> {
    let header = &records[..records.len().min(5)];
    if header[0] != HANDSHAKE || header.get(1).is_some_and(|&major| major != 3) {
        return Err(HelloError::NotTls);
    }
    let &[_, _, _, a, b] = header else {
        *records = &[];
        return Ok(());
    };
    let length = usize::from(u16::from_be_bytes([a, b]));
    if length == 0 || length > MAX_RECORD {
        return Err(HelloError::Malformed);
    }
    let rest = &records[5..];
    let (body, rest) = rest.split_at(length.min(rest.len()));
    message.extend_from_slice(body);
    *records = rest;
    Ok(())
}

fn name_in(body: &[u8]) -> Result<DomainName, HelloError> {
    let mut from = Reader(body);
    // Version and random.
    from.take(2 + 32)?;
    let session = from.block8()?;
    let suites = from.block16()?;
    let compressions = from.block8()?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return Err(HelloError::Malformed);
    }
    if from.0.is_empty() {
        return Err(HelloError::NoName);
    }
    let mut extensions = Reader(from.block16()?);
    if !from.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let (mut seen, mut name) = (Vec::new(), None);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.block16()?;
        if seen.contains(&kind) {
            return Err(HelloError::Malformed);
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => name = Some(host_in(content)?),
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => return Err(HelloError::Encrypted),
            _ => {}
        }
    }
    name.ok_or(HelloError::NoName)
}

fn host_in(content: &[u8]) -> Result<DomainName, HelloError> {
    let mut from = Reader(content);
    let mut list = Reader(from.block16()?);
    let kind = list.take(1)?[0];
    let host = list.block16()?;
    if kind != 0 || !list.0.is_empty() || !from.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    DomainName::from_wire(host).map_err(HelloError::Name)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn block8(&mut self) -> Result<&'a [u8], HelloError> {
        let len = self.take(1)?[0];
        self.take(len.into())
    }

    fn block16(&mut self) -> Result<&'a [u8], HelloError> {
        let len = self.u16()?;
        self.take(len.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block16(bytes: &[u8]) -> Vec<u8> {
        let mut block = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
        block.extend_from_slice(bytes);
        block
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), block16(content)].concat()
    }

    fn sni(host: &[u8]) -> Vec<u8> {
        extension(0, &block16(&[vec![0], block16(host)].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [
            vec![3, 3],
            vec![7; 32],
            vec![0],
            block16(&[0x13, 0x01]),
            vec![1, 0],
            block16(extensions),
        ]
        .concat();
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [vec![1, len[1], len[2], len[3]], body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |piece| [vec![22, 3, 1], block16(piece)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_name_is_found_however_the_greeting_is_cut() {
        let whole = message(&[extension(43, &[2, 3, 4]), sni(b"Example.ORG")].concat());
        for size in [1, 2, 3, 4, 5, 60, whole.len(), 4096] {
            let bytes = records(&whole, size);
            for end in 0..bytes.len() {
                assert_eq!(server_name(&bytes[..end]), Ok(None), "{size} {end}");
            }
            let name = server_name(&bytes).unwrap().unwrap();
            assert_eq!(name.as_str(), "example.org");
        }
    }

    #[test]
    fn greetings_that_could_mean_two_things_are_refused() {
        let refused =
            |extensions: &[u8]| server_name(&records(&message(extensions), 4096)).unwrap_err();
        assert_eq!(refused(&[]), HelloError::NoName);
        assert_eq!(refused(&extension(43, &[2, 3, 4])), HelloError::NoName);
        assert_eq!(
            refused(&[sni(b"a.example"), sni(b"b.example")].concat()),
            HelloError::Malformed
        );
        let two = [
            vec![0],
            block16(b"a.example"),
            vec![0],
            block16(b"b.example"),
        ]
        .concat();
        assert_eq!(
            refused(&extension(0, &block16(&two))),
            HelloError::Malformed
        );
        assert_eq!(refused(&extension(0, &[])), HelloError::Malformed);
        for kind in [0xfe0d, 0xffce] {
            let hidden = [sni(b"a.example"), extension(kind, &[0; 20])].concat();
            assert_eq!(refused(&hidden), HelloError::Encrypted);
        }
        assert_eq!(
            refused(&sni(b"10.0.0.1")),
            HelloError::Name(NameError::Numeric)
        );
        assert_eq!(refused(&sni(b"")), HelloError::Name(NameError::Empty));
        assert_eq!(
            refused(&sni(b"a\0.example")),
            HelloError::Name(NameError::Character)
        );
        let mut cut = sni(b"a.example");
        cut.pop();
        assert_eq!(refused(&cut), HelloError::Malformed);
    }

    #[test]
    fn what_is_no_greeting_is_refused_at_its_first_byte() {
        assert_eq!(server_name(b"G"), Err(HelloError::NotTls));
        assert_eq!(server_name(&[22, 2]), Err(HelloError::NotTls));
        assert_eq!(server_name(&[22, 3, 1, 0, 0]), Err(HelloError::Malformed));
        assert_eq!(
            server_name(&[22, 3, 1, 0xff, 0xff]),
            Err(HelloError::Malformed)
        );
        assert_eq!(server_name(&[22, 3, 1, 0, 1, 2]), Err(HelloError::NotTls));
        assert_eq!(
            server_name(&[22, 3, 1, 0, 4, 1, 0xff, 0, 0]),
            Err(HelloError::TooLong)
        );
        // An alert between two records of a greeting.
        let bytes = records(&message(&sni(b"a.example")), 20);
        let cut = [&bytes[..25], &[21, 3, 3, 0, 2, 1, 0]].concat();
        assert_eq!(server_name(&cut), Err(HelloError::NotTls));
    }

    #[test]
    fn a_greeting_of_rustls_is_read() {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = "example.org".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        assert_eq!(
            server_name(&bytes).unwrap().unwrap().as_str(),
            "example.org"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = server_name(&bytes);
        }

        #[test]
        fn a_changed_greeting_never_names_what_it_does_not_hold(
            at in 0_usize..120, value in any::<u8>(), size in 1_usize..200,
        ) {
            let mut bytes = records(&message(&sni(b"example.org")), size);
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(Some(name)) = server_name(&bytes) {
                // Whatever it says, it is spelled out somewhere in the greeting.
                prop_assert_eq!(name.as_str().len(), "example.org".len());
            }
        }
    }
}
