//! Between an upgraded connection and a running command.
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rhizome_sandbox::channel::{ExecEvent, ExecHandle, ExitStatus};
use tokio::sync::mpsc;
use tokio_util::codec::Framed;

use super::{
    exec_frame::{Frame, FrameCodec},
    serve::{STALL_TIMEOUT, StallGuard},
    types::sandbox::ExecEnd,
};
use crate::error::ApiError;

/// Frames of input that may wait for a command that does not read; then the client waits too.
const INPUT_QUEUE_FRAMES: usize = 16;

/// Carries the streams of a command until it ends or the client goes away, which ends it.
pub(super) async fn pump(connection: Upgraded, mut handle: ExecHandle, stdin: bool) {
    let io = StallGuard::new(TokioIo::new(connection), STALL_TIMEOUT);
    let (mut sink, mut frames) = Framed::new(io, FrameCodec).split();
    let mut events = std::mem::replace(&mut handle.events, mpsc::channel(1).1);
    let output = async {
        let end = loop {
            let frame = match events.recv().await {
                Some(Ok(ExecEvent::Stdout(bytes))) => Frame::Stdout(bytes),
                Some(Ok(ExecEvent::Stderr(bytes))) => Frame::Stderr(bytes),
                Some(Ok(ExecEvent::Exit(status))) => break end_of(status),
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
                Some(bytes) if stdin => handle.write_stdin(bytes).await.is_ok(),
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
                // Only we send those: the client is not one of ours.
                Frame::Stdout(_) | Frame::Stderr(_) | Frame::End(_) => break,
            }
        }
    };
    tokio::select! {
        biased; // What the command said last is delivered before anything ends.
        () = output => {}
        () = reading => {
            let _ = handle.kill().await;
        }
        () = feeding => {}
    }
}

fn end_of(status: ExitStatus) -> ExecEnd {
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
