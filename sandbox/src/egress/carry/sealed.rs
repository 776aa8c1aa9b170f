//! Connections to a name that has a secret: their TLS ends here, on both sides.

use std::{
    io,
    net::SocketAddrV4,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::{
    super::{
        boundary::Boundary, denial::Attempt, name::DomainName, policy::Denied, secrets::Scanner,
    },
    Activity, COPY_BYTES, Ended, Reading, explain, revoked,
    web::Asker,
};

/// Carries requests over TLS to `name`; `heard` is the guest's greeting.
pub(super) async fn carry<G>(
    boundary: &Boundary,
    guest: &mut G,
    to: SocketAddrV4,
    name: &DomainName,
    heard: Vec<u8>,
) -> Result<(), Ended>
where
    G: AsyncRead + AsyncWrite + Unpin,
{
    let secrets = boundary.secrets();
    // They may have changed since we were asked.
    let (acceptor, connector) = secrets.ends_of(name).ok_or(Ended::Broken)?;
    // The server first: without it there is nothing to promise to the guest.
    let outside = boundary.outside.connect(to).await?;
    let outside = connector.connect(server_name(name)?, outside).await;
    let outside = outside.map_err(|error| {
        Ended::Denied(
            Attempt::Secret,
            Denied {
                rule: format!("secrets, which go to verified servers alone: {error}"),
                destination: format!("{name}:{}", to.port()),
                how_to_ask: "the server's certificate must be one that the node trusts".to_owned(),
            },
        )
    })?;
    boundary.count_connection();
    let guest = Heard {
        bytes: heard,
        at: 0,
        inner: guest,
    };
    let mut guest = acceptor.accept(guest).await?;
    let activity = Activity::new();
    let asker = Asker {
        boundary,
        to,
        secrets: &secrets,
        sealed_for: Some(name),
        activity: &activity,
    };
    let mut heard = Vec::new();
    let head = tokio::select! {
        head = asker.next(&mut heard, &mut guest) => head,
        ended = revoked(boundary, to, Some(name), Reading::Sealed) => Err(ended),
        () = activity.idle() => Err(Ended::Broken),
    };
    let head = match head {
        Ok(Some(head)) => head,
        Ok(None) => return Ok(()),
        Err(ended) => return explain(&mut guest, boundary, ended).await,
    };
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let outward = asker.requests(head, heard, &mut from_guest, &mut to_outside);
    let mut scanner = secrets.values(name);
    let inward = async {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            // A server that ends without TLS's goodbye ends all the same.
            let len = from_outside.read(&mut buffer).await.unwrap_or(0);
            let data = match len {
                0 => scanner.finish(),
                len => screen(&mut scanner, &buffer[..len], name)?,
            };
            activity.touch();
            to_guest.write_all(&data).await?;
            to_guest.flush().await?;
            boundary
                .received
                .fetch_add(data.len() as u64, Ordering::Relaxed);
            if len == 0 {
                to_guest.shutdown().await?;
                return Ok(());
            }
        }
    };
    tokio::select! {
        both = async { tokio::try_join!(outward, inward) } => both.map(drop),
        ended = revoked(boundary, to, Some(name), Reading::Sealed) => Err(ended),
        () = activity.idle() => Err(Ended::Broken),
    }
}

fn screen(scanner: &mut Scanner, data: &[u8], name: &DomainName) -> Result<Vec<u8>, Ended> {
    scanner.pass(data).map_err(|found| {
        Ended::Denied(
            Attempt::Secret,
            Denied {
                rule: format!("secret {found}, whose value never enters a sandbox"),
                destination: format!("an answer of {name} that holds it"),
                how_to_ask: "ask the server for something that does not repeat the secret"
                    .to_owned(),
            },
        )
    })
}

fn server_name(name: &DomainName) -> io::Result<rustls::pki_types::ServerName<'static>> {
    let name = name.as_str().to_owned();
    name.try_into().map_err(io::Error::other)
}

/// A stream some of whose bytes have been read already.
struct Heard<'a, S> {
    bytes: Vec<u8>,
    at: usize,
    inner: &'a mut S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.bytes[self.at..];
        if left.is_empty() {
            return Pin::new(&mut *self.inner).poll_read(cx, buf);
        }
        let len = left.len().min(buf.remaining());
        buf.put_slice(&left[..len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}
