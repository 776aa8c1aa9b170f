//! Files and directories of the guest.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use rhizome_guest::wire::{
    self, Entry, FileEnd, FileRead, FileWrite, Frame, Kind, MAX_PAYLOAD, MakeDir, PathOnly,
    Payload, Remove, Stat, contains_magic,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    sync::mpsc,
};

use super::{
    ChannelError, FileError,
    mux::{self, Purpose, Shared, Stream},
};
use crate::{DirEntry, FileKind, FileStat};

/// Longest path that goes to a guest, in bytes.
const MAX_PATH: usize = 4096;

/// A file on its way out of a guest.
///
/// It reads as [`AsyncRead`]; the end comes only after size and checksum were found right, and
/// anything else is an error, so that a cut file never looks whole.
#[derive(Debug)]
pub struct FileReader {
    stat: FileStat,
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
    ended: bool,
}

impl FileReader {
    /// Returns what the file was when it was opened. Its size may have changed since.
    #[must_use]
    pub fn stat(&self) -> &FileStat {
        &self.stat
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() && !self.ended {
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Err(error));
                }
                None => self.ended = true,
            }
        }
        let len = self.piece.len().min(buf.remaining());
        buf.put_slice(&self.piece[..len]);
        self.piece.advance(len);
        Poll::Ready(Ok(()))
    }
}

pub(super) async fn read(
    shared: &Arc<Shared>,
    path: &str,
    from: u64,
) -> Result<FileReader, FileError> {
    read_bytes(shared, checked(path)?, path, from).await
}

/// Like [`read`], for a path that was checked and need not be text; `path` is what people see.
pub(super) async fn read_bytes(
    shared: &Arc<Shared>,
    bytes: Vec<u8>,
    path: &str,
    from: u64,
) -> Result<FileReader, FileError> {
    let payload = FileRead { path: bytes, from }.to_payload();
    let mut stream = shared.open(Purpose::Read, Kind::FileRead, payload).await?;
    let frame = stream.expect().await?;
    let stat = match frame.kind {
        Kind::FileMeta => mux::decode(&frame)?,
        Kind::Failed => return Err(FileError::from_failure(mux::decode(&frame)?, path)),
        _ => return Err(fail(shared, "a file comes without its metadata").into()),
    };
    let (tx, pieces) = mpsc::channel(1);
    tokio::spawn(forward(stream, tx, path.to_owned()));
    Ok(FileReader {
        stat: to_stat(stat),
        pieces,
        piece: Bytes::new(),
        ended: false,
    })
}

async fn forward(mut stream: Stream, pieces: mpsc::Sender<io::Result<Bytes>>, path: String) {
    let mut size = 0;
    let mut hasher = blake3::Hasher::new();
    loop {
        let next = tokio::select! {
            // The reader is gone: dropping the stream ends the transfer.
            () = pieces.closed() => return,
            next = stream.expect() => next,
        };
        let piece = match next {
            Ok(frame) if frame.kind == Kind::FileData => {
                size += frame.payload.len() as u64;
                hasher.update(&frame.payload);
                Ok(Bytes::from(frame.payload))
            }
            Ok(frame) if frame.kind == Kind::FileEnd => {
                let seen = FileEnd {
                    size,
                    checksum: *hasher.finalize().as_bytes(),
                };
                match mux::decode::<FileEnd>(&frame) {
                    Ok(end) if end == seen => return,
                    Ok(_) => Err(FileError::Damaged { path: path.clone() }),
                    Err(error) => Err(error.into()),
                }
            }
            Ok(frame) if frame.kind == Kind::Failed => Err(match mux::decode(&frame) {
                Ok(failure) => FileError::from_failure(failure, &path),
                Err(error) => error.into(),
            }),
            Ok(_) => Err(fail(&stream.shared, "a file's metadata comes twice").into()),
            Err(error) => Err(error.into()),
        };
        let failed = piece.is_err();
        if pieces.send(piece.map_err(io::Error::other)).await.is_err() || failed {
            return;
        }
    }
}

pub(super) async fn write(
    shared: &Arc<Shared>,
    path: &str,
    mode: u32,
    parents: bool,
    source: impl AsyncRead + Unpin,
) -> Result<u64, FileError> {
    let request = FileWrite {
        path: checked(path)?,
        mode: mode & 0o7777,
        parents,
    };
    let mut stream = shared
        .open(Purpose::Write, Kind::FileWrite, request.to_payload())
        .await?;
    let (size, sent) = feed(&stream, path, source).await?;
    done(&mut stream, path).await?;
    if !sent {
        return Err(fail(shared, "a write is done before its end").into());
    }
    Ok(size)
}

/// Sends a file's data and end. Returns its size, and false if the stream ended before: then the
/// guest says why.
pub(super) async fn feed(
    stream: &Stream,
    path: &str,
    mut source: impl AsyncRead + Unpin,
) -> Result<(u64, bool), FileError> {
    let sender = stream.sender();
    let mut size = 0;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; MAX_PAYLOAD];
    let sent = loop {
        let len = source
            .read(&mut buffer)
            .await
            .map_err(|source| FileError::Source {
                path: path.to_owned(),
                source,
            })?;
        if len == 0 {
            let end = FileEnd {
                size,
                checksum: *hasher.finalize().as_bytes(),
            };
            break sender.plain(Kind::FileEnd, end.to_payload()).await;
        }
        hasher.update(&buffer[..len]);
        size += len as u64;
        if let Err(error) = sender.data(Kind::FileData, &buffer[..len]).await {
            break Err(error);
        }
    };
    match sent {
        Ok(()) => Ok((size, true)),
        Err(ChannelError::Closed) => Ok((size, false)),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn stat(shared: &Arc<Shared>, path: &str) -> Result<FileStat, FileError> {
    let payload = PathOnly {
        path: checked(path)?,
    }
    .to_payload();
    let mut stream = shared.open(Purpose::Ask, Kind::FileStat, payload).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::FileMeta => Ok(to_stat(mux::decode(&frame)?)),
        Kind::Failed => Err(FileError::from_failure(mux::decode(&frame)?, path)),
        _ => Err(fail(shared, "a question has another's answer").into()),
    }
}

pub(super) async fn list(shared: &Arc<Shared>, path: &str) -> Result<Vec<DirEntry>, FileError> {
    let payload = PathOnly {
        path: checked(path)?,
    }
    .to_payload();
    let mut stream = shared.open(Purpose::List, Kind::FileList, payload).await?;
    let limit = shared.limits.max_entries;
    let mut entries = Vec::new();
    loop {
        let frame = stream.expect().await?;
        match frame.kind {
            Kind::FileEntries => {
                for entry in Entry::decode_all(&frame.payload).map_err(mux::malformed)? {
                    if entries.len() == limit {
                        return Err(FileError::TooManyEntries {
                            path: path.to_owned(),
                            limit,
                        });
                    }
                    entries.push(DirEntry {
                        name: String::from_utf8_lossy(&entry.name).into_owned(),
                        stat: to_stat(entry.stat),
                    });
                }
            }
            Kind::Done => break,
            _ => return Err(FileError::from_failure(mux::decode(&frame)?, path)),
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

pub(super) async fn make_dir(
    shared: &Arc<Shared>,
    path: &str,
    mode: u32,
    parents: bool,
) -> Result<(), FileError> {
    let request = MakeDir {
        path: checked(path)?,
        mode: mode & 0o7777,
        parents,
    };
    let mut stream = shared
        .open(Purpose::Ask, Kind::FileMakeDir, request.to_payload())
        .await?;
    done(&mut stream, path).await
}

pub(super) async fn remove(
    shared: &Arc<Shared>,
    path: &str,
    recursive: bool,
) -> Result<(), FileError> {
    let request = Remove {
        path: checked(path)?,
        recursive,
    };
    let mut stream = shared
        .open(Purpose::Ask, Kind::FileRemove, request.to_payload())
        .await?;
    done(&mut stream, path).await
}

async fn done(stream: &mut Stream, path: &str) -> Result<(), FileError> {
    let frame: Frame = stream.expect().await?;
    match frame.kind {
        Kind::Done => Ok(()),
        Kind::Failed => Err(FileError::from_failure(mux::decode(&frame)?, path)),
        _ => Err(fail(&stream.shared, "a request has another's answer").into()),
    }
}

pub(super) fn checked(path: &str) -> Result<Vec<u8>, FileError> {
    let sound = path.starts_with('/')
        && path.len() <= MAX_PATH
        && !path.contains('\0')
        && !contains_magic(path.as_bytes());
    if sound {
        Ok(path.as_bytes().to_vec())
    } else {
        Err(FileError::InvalidPath {
            path: path.to_owned(),
        })
    }
}

fn to_stat(stat: Stat) -> FileStat {
    let kind = match stat.kind {
        wire::FileKind::File => FileKind::File,
        wire::FileKind::Directory => FileKind::Directory,
        wire::FileKind::Symlink => FileKind::Symlink,
        wire::FileKind::Other => FileKind::Other,
    };
    FileStat {
        kind,
        size: stat.size,
        mode: stat.mode,
        modified_ms: stat.modified_ms,
        link: (kind == FileKind::Symlink)
            .then(|| String::from_utf8_lossy(&stat.target).into_owned()),
    }
}

pub(super) fn fail(shared: &Shared, what: &'static str) -> ChannelError {
    let error = mux::misbehaved(what);
    shared.close(error.clone());
    error
}
