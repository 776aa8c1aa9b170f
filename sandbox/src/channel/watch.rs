//! Changes in a directory of the guest, as they happen.

use std::sync::Arc;

use rhizome_guest::wire::{self, Kind, Payload, Watch, WatchEvent};
use tokio::sync::mpsc;

use super::{
    FileError,
    files::{checked, fail},
    mux::{self, Purpose, Shared, Stream},
};

pub use rhizome_guest::wire::WatchOp;

/// Lists of changes that wait between the channel and whoever reads them; the rest waits in the
/// guest, which tells of an overflow when it has no more room.
const CHANGE_QUEUE: usize = 4;

/// One change in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirChange {
    /// What happened.
    pub op: WatchOp,
    /// Whether to a directory.
    pub directory: bool,
    /// To what, below the directory that is watched; empty for that itself. As the guest says:
    /// it may be called anything, but never leads out of the directory.
    pub path: String,
}

/// A directory that is watched, until this is dropped.
#[derive(Debug)]
pub struct DirWatch {
    /// What happens there, in order; an error is the last.
    pub changes: mpsc::Receiver<Result<Vec<DirChange>, FileError>>,
}

pub(super) async fn watch(
    shared: &Arc<Shared>,
    path: &str,
    recursive: bool,
) -> Result<DirWatch, FileError> {
    begin(shared, Kind::Watch, path, recursive).await
}

/// As [`watch`], and what is moved away is told apart from what is removed.
pub(super) async fn watch_moves(
    shared: &Arc<Shared>,
    path: &str,
    recursive: bool,
) -> Result<DirWatch, FileError> {
    begin(shared, Kind::WatchMoves, path, recursive).await
}

async fn begin(
    shared: &Arc<Shared>,
    kind: Kind,
    path: &str,
    recursive: bool,
) -> Result<DirWatch, FileError> {
    let request = Watch {
        path: checked(path)?,
        recursive,
    }
    .to_payload();
    let mut stream = shared.open(Purpose::Watch, kind, request).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Started => {}
        Kind::Failed => return Err(FileError::from_failure(mux::decode(&frame)?, path)),
        _ => return Err(fail(shared, "a watch tells before it starts").into()),
    }
    let (tx, changes) = mpsc::channel(CHANGE_QUEUE);
    tokio::spawn(forward(stream, tx, path.to_owned()));
    Ok(DirWatch { changes })
}

async fn forward(
    mut stream: Stream,
    changes: mpsc::Sender<Result<Vec<DirChange>, FileError>>,
    path: String,
) {
    loop {
        let next = tokio::select! {
            // The reader is gone: dropping the stream ends the watch.
            () = changes.closed() => return,
            next = stream.expect() => next,
        };
        let told = match next {
            Ok(frame) if frame.kind == Kind::WatchEvents => decode(&stream.shared, &frame.payload),
            Ok(frame) if frame.kind == Kind::Failed => Err(match mux::decode(&frame) {
                Ok(failure) => FileError::from_failure(failure, &path),
                Err(error) => error.into(),
            }),
            Ok(_) => Err(fail(&stream.shared, "a watch starts twice").into()),
            Err(error) => Err(error.into()),
        };
        let failed = told.is_err();
        if changes.send(told).await.is_err() || failed {
            return;
        }
    }
}

fn decode(shared: &Shared, payload: &[u8]) -> Result<Vec<DirChange>, FileError> {
    let events = WatchEvent::decode_all(payload).map_err(|error: wire::WireError| {
        let error = mux::malformed(error);
        shared.close(error.clone());
        error
    })?;
    let changes = events.into_iter().map(|event| DirChange {
        op: event.op,
        directory: event.directory,
        path: String::from_utf8_lossy(&event.path).into_owned(),
    });
    let changes: Vec<_> = changes.collect();
    let leads_out = |path: &str| {
        path.starts_with('/') || path.split('/').any(|part| part == ".." || part == ".")
    };
    if changes.iter().any(|change| leads_out(&change.path)) {
        return Err(fail(shared, "a change is told of another directory").into());
    }
    Ok(changes)
}
