//! Substreams of one iroh connection.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{AsyncRead, AsyncWrite, FutureExt, future::BoxFuture};
use iroh::endpoint::{Connection, ConnectionError, RecvStream, SendStream};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};

use crate::net::{connections::Close, transport::IrohTransportError};

type Opening = BoxFuture<'static, Result<(SendStream, RecvStream), ConnectionError>>;

/// A [`StreamMuxer`] over the bidirectional streams of one connection.
///
/// No byte is exchanged when a stream opens: multistream-select makes the opener write first,
/// which is when QUIC tells the other side.
pub(crate) struct IrohMuxer {
    connection: Connection,
    inbound: Option<Opening>,
    outbound: Option<Opening>,
    closing: Option<BoxFuture<'static, ()>>,
}

impl IrohMuxer {
    /// Wraps a connection that has completed its handshake.
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            inbound: None,
            outbound: None,
            closing: None,
        }
    }
}

impl fmt::Debug for IrohMuxer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IrohMuxer")
            .field("peer", &self.connection.remote_id())
            .finish_non_exhaustive()
    }
}

impl StreamMuxer for IrohMuxer {
    type Substream = Substream;
    type Error = IrohTransportError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Substream, IrohTransportError>> {
        let connection = self.connection.clone();
        let accept = self
            .inbound
            .get_or_insert_with(|| async move { connection.accept_bi().await }.boxed());
        let streams = ready!(accept.poll_unpin(cx));
        self.inbound = None;
        Poll::Ready(Ok(streams?.into()))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Substream, IrohTransportError>> {
        let connection = self.connection.clone();
        let open = self
            .outbound
            .get_or_insert_with(|| async move { connection.open_bi().await }.boxed());
        let streams = ready!(open.poll_unpin(cx));
        self.outbound = None;
        Poll::Ready(Ok(streams?.into()))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), IrohTransportError>> {
        let connection = self.connection.clone();
        let closing = self.closing.get_or_insert_with(|| {
            Close::Done.apply(&connection);
            async move {
                connection.closed().await;
            }
            .boxed()
        });
        closing.poll_unpin(cx).map(Ok)
    }

    fn poll(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, IrohTransportError>> {
        // A path switch changes no libp2p address, because those carry no socket address.
        Poll::Pending
    }
}

/// One QUIC bidirectional stream.
#[derive(Debug)]
pub(crate) struct Substream {
    send: SendStream,
    recv: RecvStream,
}

impl From<(SendStream, RecvStream)> for Substream {
    fn from((send, recv): (SendStream, RecvStream)) -> Self {
        Self { send, recv }
    }
}

impl AsyncRead for Substream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.recv.poll_read(cx, buf).map_err(Into::into)
    }
}

impl AsyncWrite for Substream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send)
            .poll_write(cx, buf)
            .map_err(Into::into)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // QUIC sends as soon as congestion control allows; there is nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream that was reset or finished before is closed already.
        let _ = self.send.finish();
        Poll::Ready(Ok(()))
    }
}
