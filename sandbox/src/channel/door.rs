//! Connections that programs in the guest open to their node.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rhizome_guest::wire::Kind;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::mux::{Sender, Stream};

/// Bytes that a connection buffers in each direction on this side, beside its window.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection that a program in the guest opened to its node, or the packets of its network.
///
/// Shutting it down ends our direction; the guest may go on sending. Dropping it ends both.
#[derive(Debug)]
pub struct DoorStream(DuplexStream);

impl DoorStream {
    /// Returns a connection and its other end, for tests of what serves the door.
    #[must_use]
    pub fn pair() -> (Self, DuplexStream) {
        let (near, far) = tokio::io::duplex(BUFFER_BYTES);
        (Self(near), far)
    }
}

impl AsyncRead for DoorStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for DoorStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Turns the streams that the guest opens into connections.
pub(super) async fn accept(mut streams: mpsc::Receiver<Stream>, doors: mpsc::Sender<DoorStream>) {
    while let Some(stream) = streams.recv().await {
        let (near, far) = DoorStream::pair();
        // If nobody takes connections any more, both ends drop and the guest sees a reset.
        if doors.send(near).await.is_err() {
            return;
        }
        tokio::spawn(carry(stream, far));
    }
}

pub(super) async fn carry(mut stream: Stream, far: DuplexStream) {
    let sender = stream.sender();
    let (mut from_node, mut to_node) = tokio::io::split(far);
    let node_ended = CancellationToken::new();
    let outward = async {
        outward(&sender, &mut from_node).await.map_err(drop)?;
        node_ended.cancel();
        Ok(())
    };
    let inward = async {
        loop {
            match stream.next().await.map_err(drop)? {
                Some(frame) if frame.kind == Kind::StreamData => {
                    to_node.write_all(&frame.payload).await.map_err(drop)?;
                }
                Some(frame) if frame.kind == Kind::StreamEof => break,
                _ => return Err(()),
            }
        }
        to_node.shutdown().await.map_err(drop)?;
        // The guest has ended its direction; it may still cut the other one.
        tokio::select! {
            () = node_ended.cancelled() => Ok(()),
            _ = stream.next() => Err(()),
        }
    };
    // Both directions end on their own; a reset, or the channel's end, ends them together. Then
    // dropping the stream tells the guest, and dropping `far` tells the node.
    let ended: Result<((), ()), ()> = tokio::try_join!(outward, inward);
    if ended.is_ok() {
        stream.finish();
    }
}

async fn outward(
    sender: &Sender,
    from_node: &mut (impl AsyncRead + Unpin),
) -> Result<(), super::ChannelError> {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match from_node.read(&mut buffer).await {
            Ok(0) | Err(_) => return sender.plain(Kind::StreamEof, Vec::new()).await,
            Ok(len) => sender.data(Kind::StreamData, &buffer[..len]).await?,
        }
    }
}
