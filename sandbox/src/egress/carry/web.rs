//! Requests of HTTP/1.1, each decided about before any byte of it goes out.

use std::{net::SocketAddrV4, sync::atomic::Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    super::{
        boundary::Boundary,
        denial::Attempt,
        http::{BodyReader, Head, Length, MAX_HEAD, Piece},
        name::DomainName,
        policy::Denied,
        secrets::{Scanner, Secrets},
    },
    Activity, Ended, Reading, allow, copy, explain, revoked, unnamed,
};

/// Bytes of a body that are passed on at once.
const PIECE_BYTES: usize = 32 * 1024;

/// Carries requests to an address that a name led to, `head` being the first and `heard` what
/// came behind it.
pub(super) async fn carry<G>(
    boundary: &Boundary,
    guest: &mut G,
    to: SocketAddrV4,
    mut head: Head,
    heard: Vec<u8>,
) -> Result<(), Ended>
where
    G: AsyncRead + AsyncWrite + Unpin,
{
    let secrets = boundary.secrets();
    if let Err(denied) = secrets.put_in(&mut head, None) {
        return explain(guest, boundary, Ended::Denied(Attempt::Secret, denied)).await;
    }
    let Ok(outside) = boundary.outside.connect(to).await else {
        return explain(guest, boundary, Ended::Broken).await;
    };
    boundary.count_connection();
    let activity = Activity::new();
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let name = head.host.clone();
    let asker = Asker {
        boundary,
        to,
        secrets: &secrets,
        sealed_for: None,
        activity: &activity,
    };
    let outward = asker.requests(head, heard, &mut from_guest, &mut to_outside);
    let inward = copy(
        &mut from_outside,
        &mut to_guest,
        &boundary.received,
        &activity,
    );
    tokio::select! {
        both = async { tokio::try_join!(outward, inward) } => both.map(drop),
        ended = revoked(boundary, to, Some(&name), Reading::Open) => Err(ended),
        () = activity.idle() => Err(Ended::Broken),
    }
}

/// Decides about a request by its `Host`.
pub(super) fn check(boundary: &Boundary, to: SocketAddrV4, head: &Head) -> Result<(), Ended> {
    if head.port.unwrap_or(80) != to.port() {
        let named = format!("{}:{}", head.host, head.port.unwrap_or(80));
        return Err(Ended::Denied(
            Attempt::Http,
            Denied {
                rule: "`Host`, which names another port than the one connected to".to_owned(),
                destination: format!("{named} at {to}"),
                how_to_ask: format!("connect to {named}"),
            },
        ));
    }
    allow(boundary, Attempt::Http, to, &head.host)
}

/// Whoever asks on one connection.
pub(super) struct Asker<'a> {
    pub(super) boundary: &'a Boundary,
    pub(super) to: SocketAddrV4,
    pub(super) secrets: &'a Secrets,
    /// The one name that requests may be for, where we end its TLS.
    pub(super) sealed_for: Option<&'a DomainName>,
    pub(super) activity: &'a Activity,
}

impl Asker<'_> {
    /// Passes requests on until the guest asks no more. `head` was decided about, and has its
    /// secrets in it.
    pub(super) async fn requests<R, W>(
        &self,
        mut head: Head,
        mut heard: Vec<u8>,
        guest: &mut R,
        outside: &mut W,
    ) -> Result<(), Ended>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            self.send(outside, &head.write()).await?;
            self.body(head.length, &mut heard, guest, outside).await?;
            outside.flush().await?;
            let Some(next) = self.next(&mut heard, guest).await? else {
                outside.shutdown().await?;
                return Ok(());
            };
            head = next;
        }
    }

    /// Reads a request and decides about it.
    pub(super) async fn next<R>(
        &self,
        heard: &mut Vec<u8>,
        guest: &mut R,
    ) -> Result<Option<Head>, Ended>
    where
        R: AsyncRead + Unpin,
    {
        loop {
            // Some clients send an empty line between requests (RFC 9112, section 2.2).
            while heard.starts_with(b"\r\n") {
                heard.drain(..2);
            }
            match Head::parse(heard) {
                Ok(None) => {}
                Ok(Some((mut head, len))) => {
                    heard.drain(..len);
                    self.decide(&mut head)?;
                    return Ok(Some(head));
                }
                Err(error) => return Err(unnamed(Attempt::Http, self.to, &error)),
            }
            heard.reserve(MAX_HEAD / 16);
            if guest.read_buf(heard).await? == 0 {
                return match heard.is_empty() {
                    true => Ok(None),
                    false => Err(Ended::Broken),
                };
            }
            self.activity.touch();
        }
    }

    fn decide(&self, head: &mut Head) -> Result<(), Ended> {
        match self.sealed_for {
            None => check(self.boundary, self.to, head)?,
            Some(name) => {
                if head.host != *name || head.port.unwrap_or(443) != self.to.port() {
                    return Err(Ended::Denied(
                        Attempt::Http,
                        Denied {
                            rule: format!("the TLS connection, which is for {name} alone"),
                            destination: format!("{} over TLS to {name}", head.host),
                            how_to_ask: "connect to that name".to_owned(),
                        },
                    ));
                }
                allow(self.boundary, Attempt::Http, self.to, name)?;
            }
        }
        let put = self.secrets.put_in(head, self.sealed_for);
        put.map_err(|denied| Ended::Denied(Attempt::Secret, denied))
    }

    async fn body<R, W>(
        &self,
        length: Length,
        heard: &mut Vec<u8>,
        guest: &mut R,
        outside: &mut W,
    ) -> Result<(), Ended>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut reader = BodyReader::new(length);
        let mut scanner = self.secrets.placeholders();
        loop {
            let piece = reader.next(heard);
            match piece.map_err(|error| unnamed(Attempt::Http, self.to, &error))? {
                Piece::Framing(len) => drop(heard.drain(..len)),
                Piece::Data(len) => {
                    let data = self.scan(&mut scanner, &heard[..len])?;
                    heard.drain(..len);
                    self.data(reader.is_chunked(), &data, outside).await?;
                }
                Piece::End => {
                    let data = scanner.finish();
                    self.data(reader.is_chunked(), &data, outside).await?;
                    if reader.is_chunked() {
                        self.send(outside, b"0\r\n\r\n").await?;
                    }
                    return Ok(());
                }
                Piece::More => {
                    // What has come goes out before more is waited for.
                    outside.flush().await?;
                    heard.reserve(PIECE_BYTES);
                    if guest.read_buf(heard).await? == 0 {
                        return Err(Ended::Broken);
                    }
                    self.activity.touch();
                }
            }
        }
    }

    fn scan(&self, scanner: &mut Scanner, data: &[u8]) -> Result<Vec<u8>, Ended> {
        scanner.pass(data).map_err(|found| {
            Ended::Denied(
                Attempt::Secret,
                Denied {
                    rule: format!("secret {found}, which goes into its header alone"),
                    destination: format!("the body of a request to {}", self.to),
                    how_to_ask: "take the placeholder out of the body".to_owned(),
                },
            )
        })
    }

    async fn data(
        &self,
        is_chunked: bool,
        data: &[u8],
        outside: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Ended> {
        if data.is_empty() {
            return Ok(());
        }
        if is_chunked {
            let chunk = [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
            return self.send(outside, &chunk).await;
        }
        self.send(outside, data).await
    }

    async fn send(
        &self,
        outside: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Result<(), Ended> {
        outside.write_all(bytes).await?;
        self.boundary
            .sent
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
