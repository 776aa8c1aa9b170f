//! Between an upgraded connection and a running command.
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rhizome_sandbox::channel::{ExecEvent, ExecHandle, ExitStatus, PtySize};
use tokio::sync::mpsc;
use tokio_util::{codec::Framed, sync::CancellationToken};

use super::{
    exec_frame::{Frame, FrameCodec},
    types::sandbox::{ExecAttached, ExecEnd, Pty},
};
use crate::error::ApiError;

/// Frames of input that may wait for a command that does not read; then the client waits too.
const INPUT_QUEUE_FRAMES: usize = 16;

/// What there is to know of a command when its client begins to read it.
pub(super) struct Start {
    /// Whether the client may send input.
    pub(super) stdin: bool,
    /// The first frame, if the command was attached.
    pub(super) attached: Option<ExecAttached>,
}

/// Carries the streams of a command until it ends or the client goes away, which ends a command
/// that is not kept.
///
/// A client may read as slowly as it likes: that holds up its command, and nothing else. Whether
/// it still is there shows on the other direction.
pub(super) async fn pump(
    connection: Upgraded,
    mut handle: ExecHandle,
    start: Start,
    stop: CancellationToken,
) {
    let io = TokioIo::new(connection);
    let (mut sink, mut frames) = Framed::new(io, FrameCodec).split();
    let mut events = std::mem::replace(&mut handle.events, mpsc::channel(1).1);
    let output = async {
        if let Some(attached) = start.attached
            && sink.send(Frame::Attached(attached)).await.is_err()
        {
            return;
        }
        let end = loop {
            let frame = match events.recv().await {
                Some(Ok(ExecEvent::Stdout(bytes))) => Frame::Stdout(bytes),
                Some(Ok(ExecEvent::Stderr(bytes))) => Frame::Stderr(bytes),
                Some(Ok(ExecEvent::Exit(status))) => break end_of(status),
                // The guest keeps it for the next daemon; a client that hears no end asks that one.
                Some(Err(_)) | None if stop.is_cancelled() => return,
                Some(Err(error)) => {
                    break ExecEnd::Error(crate::daemon::exec_failed(&error).into_info());
                }
                None => break ExecEnd::Error(lost().into_info()),
            };
            if sink.send(frame).await.is_err() {
                return;
            }
        };
        let _ = sink.send(Frame::End(end)).await;
    };
    let (queue, mut queued) = mpsc::channel::<Option<Bytes>>(INPUT_QUEUE_FRAMES);
    // Apart from the reading of frames, so that a signal overtakes input that nobody reads.
    let feeding = async {
        while let Some(input) = queued.recv().await {
            let fed = match input {
                Some(bytes) if start.stdin => handle.write_stdin(bytes).await.is_ok(),
                Some(_) => true,
                None => handle.close_stdin().await.is_ok(),
            };
            if !fed {
                break;
            }
        }
        // Input for a command that takes no more is dropped; the command goes on.
        while queued.recv().await.is_some() {}
        std::future::pending::<()>().await;
    };
    let reading = async {
        while let Some(Ok(frame)) = frames.next().await {
            match frame {
                Frame::Stdin(bytes) => {
                    if queue.send(Some(bytes)).await.is_err() {
                        break;
                    }
                }
                Frame::StdinEnd => {
                    if queue.send(None).await.is_err() {
                        break;
                    }
                }
                Frame::Signal(number) => {
                    let _ = handle.signal(number).await;
                }
                Frame::Resize(size) => {
                    let _ = handle.resize(pty_size(size)).await;
                }
                Frame::Detach => return true,
                // Only we send those: the client is not one of ours.
                Frame::Stdout(_) | Frame::Stderr(_) | Frame::End(_) | Frame::Attached(_) => break,
            }
        }
        false
    };
    enum Over {
        Done,
        Detach,
        Stop,
    }
    let over = tokio::select! {
        biased; // What the command said last is delivered before anything ends.
        () = output => Over::Done,
        detach = reading => if detach { Over::Detach } else { Over::Done },
        () = feeding => Over::Done,
        () = stop.cancelled() => Over::Stop,
    };
    match over {
        // Dropping the handle kills a command that is not kept.
        Over::Done => drop(handle),
        // A command that has ended meanwhile needs no keeping.
        Over::Detach => drop(handle.detach().await),
        // Its client asks the next daemon for the rest.
        Over::Stop => handle.leave(),
    }
}

pub(super) fn pty_size(Pty { rows, columns }: Pty) -> PtySize {
    PtySize { rows, columns }
}

pub(crate) fn end_of(status: ExitStatus) -> ExecEnd {
    match status {
        ExitStatus::Code(code) => ExecEnd::Code(code),
        ExitStatus::Signal(number) => ExecEnd::Signal(number),
        ExitStatus::TimedOut => ExecEnd::TimedOut,
    }
}

fn lost() -> ApiError {
    ApiError::new(
        axum::http::StatusCode::GONE,
        "sandbox_gone",
        "the sandbox went away while the command ran",
    )
    .hint("its state is lost; `rhizome sandbox logs` shows what its console said last")
}
