//! One control stream.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use iroh::endpoint::{RecvStream, SendStream};
use rhizome_identity::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
};

/// A byte stream with another member of the mesh.
///
/// The peer's key was proved by the handshake of its connection. The opener must write first:
/// only then does the other side learn of the stream. Shutting down the writing half is seen as
/// the end of the stream by the other side, which can still write; dropping the stream ends both.
#[derive(Debug)]
pub struct CtlStream {
    peer: NodeId,
    send: SendStream,
    recv: RecvStream,
    _held: HeldBy,
}

/// What a stream keeps for as long as it lives.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their drop alone")]
enum HeldBy {
    /// The mark that its connection is in use.
    Dialler(Arc<()>),
    /// Its place among the streams of its peer, and of all peers.
    Acceptor([OwnedSemaphorePermit; 2]),
}

impl CtlStream {
    pub(super) fn dialled(peer: NodeId, send: SendStream, recv: RecvStream, user: Arc<()>) -> Self {
        let _held = HeldBy::Dialler(user);
        Self {
            peer,
            send,
            recv,
            _held,
        }
    }

    pub(super) fn accepted(
        peer: NodeId,
        send: SendStream,
        recv: RecvStream,
        permits: [OwnedSemaphorePermit; 2],
    ) -> Self {
        let _held = HeldBy::Acceptor(permits);
        Self {
            peer,
            send,
            recv,
            _held,
        }
    }

    /// Returns the node at the other end.
    pub fn peer(&self) -> NodeId {
        self.peer
    }
}

impl AsyncRead for CtlStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), context, into)
    }
}

impl AsyncWrite for CtlStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), context)
    }
}
