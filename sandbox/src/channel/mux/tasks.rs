//! The three tasks that own a connection: one reads, one writes, one pings.

use std::sync::Arc;

use rhizome_guest::wire::{Frame, FrameDecoder, MAX_PAYLOAD};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::{interval, timeout},
};

use super::{Shared, Stream, malformed};
use crate::channel::ChannelError;

/// Bytes read at once.
const READ_BYTES: usize = 128 * 1024;

pub(super) async fn read<R: AsyncRead + Unpin>(
    shared: Arc<Shared>,
    mut reader: R,
    mut decoder: FrameDecoder,
    boot: [u8; 16],
    doors: mpsc::Sender<Stream>,
) {
    let mut buffer = vec![0; READ_BYTES];
    let reason = loop {
        match drain(&shared, &mut decoder, boot, &doors) {
            Ok(()) => {}
            Err(reason) => break reason,
        }
        let read = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => return,
            read = reader.read(&mut buffer) => read,
        };
        match read {
            Ok(0) => break ChannelError::Gone,
            Ok(len) => decoder.extend(&buffer[..len]),
            Err(error) => break lost(error),
        }
        // A flood must not keep the runtime's other tasks from running.
        tokio::task::coop::consume_budget().await;
    };
    shared.close(reason);
}

fn drain(
    shared: &Arc<Shared>,
    decoder: &mut FrameDecoder,
    boot: [u8; 16],
    doors: &mpsc::Sender<Stream>,
) -> Result<(), ChannelError> {
    while let Some(frame) = decoder.next_frame().map_err(malformed)? {
        shared.receive(frame, boot, doors)?;
    }
    Ok(())
}

pub(super) async fn write<W: AsyncWrite + Unpin>(
    shared: Arc<Shared>,
    mut writer: W,
    mut outgoing: mpsc::Receiver<Frame>,
    mut urgent: mpsc::Receiver<Frame>,
) {
    let patience = shared.limits.ping_deadline;
    let mut bytes = Vec::with_capacity(MAX_PAYLOAD + 64);
    loop {
        let frame = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => break,
            Some(frame) = urgent.recv() => frame,
            Some(frame) = outgoing.recv() => frame,
            else => break,
        };
        bytes.clear();
        if let Err(error) = frame.encode(&mut bytes) {
            shared.close(malformed(error));
            break;
        }
        let written = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => break,
            written = timeout(patience, writer.write_all(&bytes)) => written,
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.close(lost(error)),
            Err(_) => shared.close(ChannelError::Unresponsive { after: patience }),
        }
    }
    // The other end sees the end even while someone holds the channel.
    let _ = writer.shutdown().await;
}

pub(super) async fn keep_alive(shared: Arc<Shared>) {
    let deadline = shared.limits.ping_deadline;
    let mut ticks = interval(shared.limits.ping_interval);
    loop {
        tokio::select! {
            () = shared.cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        match timeout(deadline, shared.ping()).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                shared.close(ChannelError::Unresponsive { after: deadline });
                return;
            }
        }
    }
}

/// Tells the other end's end from a fault of the connection.
fn lost(error: std::io::Error) -> ChannelError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => ChannelError::Gone,
        _ => ChannelError::io(error),
    }
}
