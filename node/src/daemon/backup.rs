//! A backup of this node, while it runs.
use std::{
    io::{self, Write},
    sync::Arc,
};

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{fail, node::Node};
use crate::{
    api::types::backup::BackupBody,
    backup::{BackupError, Pack, Sealer},
    error::ApiError,
};

/// Pieces of 64 KiB that may wait for a slow reader.
const QUEUE_PIECES: usize = 16;

impl Node {
    /// Answers everything this node needs as one encrypted file.
    ///
    /// An error on the way breaks the connection, which the client sees, and is in the log.
    pub(crate) async fn backup(self: Arc<Self>, body: BackupBody) -> Result<Response, ApiError> {
        let one = Arc::clone(&self.backups).try_acquire_owned().map_err(|_| {
            let message = "another backup of this node is being made";
            ApiError::new(StatusCode::CONFLICT, "busy", message).hint("wait until it has ended")
        })?;
        let sealer = match (&body.recipients[..], &body.passphrase) {
            ([], Some(passphrase)) => Ok(Sealer::for_passphrase(passphrase)),
            (recipients, None) => Sealer::for_recipients(recipients),
            (_, Some(_)) => {
                let message = "a file opens with a passphrase or for recipients, not both";
                return Err(ApiError::bad_request(message));
            }
        };
        let sealer = sealer.map_err(|error| fail::backup(&error))?;
        let node = Arc::clone(&self);
        let pack = self
            .between_records(move || {
                let (name, replica) = (node.name(), &node.replica);
                Pack::collect(
                    node.data.path(),
                    &node.vault,
                    &node.key,
                    &name,
                    replica,
                    body.with_blobs,
                )
            })
            .await?
            .map_err(|error| fail::backup(&error))?;
        let (sender, mut pieces) = mpsc::channel(QUEUE_PIECES);
        self.tasks.spawn_blocking(move || {
            let (files, bytes) = (pack.contents().count(), pack.contents().bytes());
            match write(pack, &sealer, sender.clone()) {
                Ok(()) => info!(
                    files,
                    bytes = bytes.unwrap_or_default(),
                    "a backup was made"
                ),
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "a backup was given up"
                    );
                    let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
                }
            }
            drop(one);
        });
        let stream = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
        let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
        Ok((kind, Body::from_stream(stream)).into_response())
    }
}

fn write(
    pack: Pack,
    sealer: &Sealer,
    sender: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), BackupError> {
    let sealed = pack.write(sealer.seal(Pieces(sender))?)?;
    let ended = sealed.finish().map(|_| ());
    ended.map_err(BackupError::io("write", std::path::Path::new("the backup")))
}

/// Sends what is written to it.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
