//! Files between members, by hash: offered where they lie, fetched to where they are wanted.
//!
//! Serving goes through the blob store, which references the file and keeps its hash tree.
//! Fetching does not: the verified chunks are appended to `<to>.part`, whose length alone says how
//! far a broken transfer came, and the file is moved to its place when the last one is there. So
//! nothing of a fetched file stays behind in a store, and nobody but its owner deletes it.

use std::{
    io::{self, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use bao_tree::{ChunkNum, ChunkRanges, io::BaoContentItem};
use iroh_blobs::{
    BlobFormat, Hash as BlobHash,
    api::blobs::{AddPathOptions, BlobStatus, ImportMode},
    get::fsm::{self, BlobContentNext, ConnectedNext, EndBlobNext, RequestCounters},
    protocol::GetRequest,
};
use rhizome_identity::{Hash, NodeId};
use tokio::{
    fs::{File, OpenOptions},
    io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufWriter},
    time::timeout,
};
use tracing::debug;

use super::{Blobs, CONNECT_TIMEOUT, STALL_TIMEOUT};
use crate::net::endpoint::{DialError, Net};

/// Chunks are verified in groups of this size, so a transfer resumes at a multiple of it.
const GROUP_BYTES: u64 = 16 * 1024;
/// The chunks of BLAKE3, in which a request counts.
const CHUNK_BYTES: u64 = 1024;
/// What is gathered before it is written.
const WRITE_BUFFER: usize = 1024 * 1024;
/// Most providers that one fetch asks.
const MAX_PROVIDERS: usize = 16;

/// Told how many bytes are here, and of how many; the second is what a provider claims.
pub type FetchProgress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Why a file could not be offered or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file here could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file has another hash than it is offered under, or changed while it was fetched.
    #[error("`{}` is not the file {hash}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The hash it should have.
        hash: Hash,
    },
    /// Nobody was named who could give it.
    #[error("nobody is known who holds the file {hash}")]
    NoProvider {
        /// The file's hash.
        hash: Hash,
    },
    /// No provider gave all of it.
    #[error("the file {hash} could not be fetched: {}", said(.tried))]
    Failed {
        /// The file's hash.
        hash: Hash,
        /// Whom we asked, and why each could not give it.
        tried: Vec<(NodeId, ProviderError)>,
    },
}

impl FileError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { .. } => "check owner and free space of the directory".to_owned(),
            Self::Mismatch { .. } => "the file changed or its disk is failing".to_owned(),
            Self::NoProvider { .. } | Self::Failed { .. } => {
                "see which of its holders are up with `rhizome peers`, then try again; what has arrived is kept".to_owned()
            }
        })
    }

    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Why one provider did not give a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// It could not be reached.
    #[error("it cannot be reached")]
    Unreachable,
    /// It does not hold the file, or not all of it.
    #[error("it does not hold the file")]
    Absent,
    /// What it sent is not the file.
    #[error("it sent something else than the file")]
    Wrong,
    /// It says that the file is larger than was asked for.
    #[error("it offers {size} bytes; at most {limit} were asked for")]
    TooLarge {
        /// What it says.
        size: u64,
        /// What was allowed.
        limit: u64,
    },
    /// It sent nothing for a while.
    #[error("it sent nothing for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The connection broke.
    #[error("the transfer broke off: {0}")]
    Broken(String),
}

fn said(tried: &[(NodeId, ProviderError)]) -> String {
    let said = tried
        .iter()
        .map(|(node, error)| format!("{}: {error}", node.fmt_short()));
    said.collect::<Vec<_>>().join("; ")
}

impl Blobs {
    /// Offers the file at `path` under `hash`.
    pub(crate) async fn serve_file(&self, hash: Hash, path: &Path) -> Result<(), FileError> {
        let size = tokio::fs::metadata(path)
            .await
            .map_err(FileError::io(path))?
            .len();
        let blob = BlobHash::from_bytes(*hash.as_bytes());
        let status = self.store.blobs().status(blob).await;
        let served = matches!(status, Ok(BlobStatus::Complete { size: held }) if held == size);
        if served && self.is_readable(blob).await {
            return Ok(());
        }
        let options = AddPathOptions {
            path: path.to_owned(),
            format: BlobFormat::Raw,
            mode: ImportMode::TryReference,
        };
        let added = self.store.blobs().add_path_with_opts(options);
        let added = added.temp_tag().await.map_err(io::Error::other);
        let added = added.map_err(FileError::io(path))?;
        if added.hash() != blob {
            return Err(FileError::Mismatch {
                path: path.to_owned(),
                hash,
            });
        }
        let tagged = self
            .store
            .tags()
            .set(file_tag(hash), added.hash_and_format());
        tagged
            .await
            .map_err(|error| FileError::io(path)(io::Error::other(error)))
    }

    /// Withdraws the offer of a file.
    pub(crate) async fn unserve_file(&self, hash: Hash) {
        if let Err(error) = self.store.tags().delete(file_tag(hash)).await {
            debug!(%hash, %error, "the offer of a file could not be withdrawn");
        }
    }

    /// Returns whether the file behind a complete entry is still there.
    async fn is_readable(&self, blob: BlobHash) -> bool {
        self.store.blobs().export_chunk(blob, 0).await.is_ok()
    }

    /// Fetches a file; see [`crate::net::Mesh::fetch_file`].
    pub(crate) async fn fetch_file(
        &self,
        net: &Net,
        hash: Hash,
        providers: &[NodeId],
        to: &Path,
        limit: u64,
        progress: FetchProgress<'_>,
    ) -> Result<u64, FileError> {
        let mut part = Part::open(to).await?;
        // Verified by an earlier call, perhaps of an earlier process: a crash may have torn it.
        let mut resumed = part.written > 0;
        let mut tried = Vec::new();
        let mut turns = providers.iter().take(MAX_PROVIDERS).copied();
        let mut again = None;
        while let Some(peer) = again.take().or_else(|| turns.next()) {
            let sent = fetch_from(net, hash, &peer, &mut part, limit, progress).await;
            part.flush().await?;
            match sent {
                Ok(size) => {
                    if !resumed || part.is(hash).await? {
                        part.place(to).await?;
                        return Ok(size);
                    }
                    debug!(%hash, "an earlier transfer left a damaged part; it starts anew");
                    part.clear().await?;
                    resumed = false;
                    again = Some(peer);
                }
                Err(Attempt::Here(error)) => return Err(error),
                Err(Attempt::There(error)) => {
                    debug!(peer = %peer.fmt_short(), %error, "file not fetched here");
                    tried.push((peer, error));
                }
            }
        }
        if part.written == 0 {
            part.discard().await;
        }
        Err(if tried.is_empty() {
            FileError::NoProvider { hash }
        } else {
            FileError::Failed { hash, tried }
        })
    }
}

/// Whose fault it was.
enum Attempt {
    Here(FileError),
    There(ProviderError),
}

impl From<FileError> for Attempt {
    fn from(error: FileError) -> Self {
        Self::Here(error)
    }
}

impl From<ProviderError> for Attempt {
    fn from(error: ProviderError) -> Self {
        Self::There(error)
    }
}

/// Asks `peer` for what is missing; returns the size of the whole file.
async fn fetch_from(
    net: &Net,
    hash: Hash,
    peer: &NodeId,
    part: &mut Part,
    limit: u64,
    progress: FetchProgress<'_>,
) -> Result<u64, Attempt> {
    let dialled = net.connect(peer, iroh_blobs::ALPN, CONNECT_TIMEOUT).await;
    let connection = dialled.map_err(|error| {
        debug!(peer = %peer.fmt_short(), %error, "provider not reached");
        match error {
            DialError::TimedOut(_) | DialError::NotAKey | DialError::Failed(_) => {
                ProviderError::Unreachable
            }
        }
    })?;
    let blob = BlobHash::from_bytes(*hash.as_bytes());
    let first = ChunkNum(part.written / CHUNK_BYTES);
    let request = GetRequest::blob_ranges(blob, ChunkRanges::from(first..));
    let start = fsm::start(connection, request, RequestCounters::default());
    let connected = patiently(start.next()).await?;
    let ConnectedNext::StartRoot(root) = patiently(connected.next()).await? else {
        return Err(ProviderError::Absent.into());
    };
    let header = timeout(STALL_TIMEOUT, root.next().next()).await;
    let header = header.map_err(|_| ProviderError::Stalled(STALL_TIMEOUT))?;
    let (mut content, size) = header.map_err(|error| match error {
        fsm::AtBlobHeaderNextError::NotFound { .. } => ProviderError::Absent,
        fsm::AtBlobHeaderNextError::Read { source, .. } => of_reading(&source),
    })?;
    if size > limit {
        return Err(ProviderError::TooLarge { size, limit }.into());
    }
    loop {
        let next = timeout(STALL_TIMEOUT, content.next()).await;
        match next.map_err(|_| ProviderError::Stalled(STALL_TIMEOUT))? {
            BlobContentNext::More((more, item)) => {
                content = more;
                if let BaoContentItem::Leaf(leaf) = item.map_err(of_decoding)? {
                    part.append(leaf.offset, &leaf.data).await?;
                    progress(part.written, size);
                }
            }
            BlobContentNext::Done(end) => {
                if let EndBlobNext::Closing(closing) = end.next() {
                    let _ = timeout(STALL_TIMEOUT, closing.next()).await;
                }
                break;
            }
        }
    }
    if part.written == size {
        Ok(size)
    } else {
        Err(ProviderError::Absent.into())
    }
}

async fn patiently<T, E: std::error::Error>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, ProviderError> {
    match timeout(STALL_TIMEOUT, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(ProviderError::Broken(error.to_string())),
        Err(_) => Err(ProviderError::Stalled(STALL_TIMEOUT)),
    }
}

fn of_decoding(error: fsm::DecodeError) -> ProviderError {
    use fsm::DecodeError as E;
    match error {
        E::ChunkNotFound { .. } | E::ParentNotFound { .. } | E::LeafNotFound { .. } => {
            ProviderError::Absent
        }
        E::Read { source, .. } => of_reading(&source),
        E::ParentHashMismatch { .. } | E::LeafHashMismatch { .. } => ProviderError::Wrong,
        error => ProviderError::Broken(error.to_string()),
    }
}

fn of_reading(error: &io::Error) -> ProviderError {
    match error.kind() {
        // A provider gives up on a request it cannot meet by resetting the stream alone.
        io::ErrorKind::ConnectionReset => ProviderError::Absent,
        _ => ProviderError::Broken(error.to_string()),
    }
}

fn file_tag(hash: Hash) -> String {
    format!("file/{hash}")
}

/// The file that a transfer fills; its first `written` bytes are verified.
struct Part {
    path: PathBuf,
    file: BufWriter<File>,
    written: u64,
}

impl Part {
    /// Opens what an earlier transfer left, or an empty file.
    async fn open(to: &Path) -> Result<Self, FileError> {
        let mut name = to.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let opened = async {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .await?;
            let length = file.metadata().await?.len();
            let written = length - length % GROUP_BYTES;
            file.set_len(written).await?;
            file.seek(SeekFrom::Start(written)).await?;
            Ok((file, written))
        };
        let (file, written) = opened.await.map_err(FileError::io(&path))?;
        Ok(Self {
            file: BufWriter::with_capacity(WRITE_BUFFER, file),
            path,
            written,
        })
    }

    /// Appends a verified leaf; what is here already is passed over.
    async fn append(&mut self, offset: u64, data: &[u8]) -> Result<(), Attempt> {
        let end = offset + data.len() as u64;
        if end <= self.written {
            return Ok(());
        }
        // Leaves come in the order of the file; one that skips some is not what was asked for.
        let skip = self
            .written
            .checked_sub(offset)
            .ok_or(ProviderError::Wrong)?;
        let skip = usize::try_from(skip).map_err(|_| ProviderError::Wrong)?;
        let written = self.file.write_all(&data[skip..]).await;
        written.map_err(FileError::io(&self.path))?;
        self.written = end;
        Ok(())
    }

    /// Writes out what is buffered and goes back to where the next transfer resumes.
    async fn flush(&mut self) -> Result<(), FileError> {
        self.file.flush().await.map_err(FileError::io(&self.path))
    }

    /// Returns whether the file's content has this hash.
    async fn is(&mut self, hash: Hash) -> Result<bool, FileError> {
        let reading = async {
            let file = self.file.get_mut();
            file.seek(SeekFrom::Start(0)).await?;
            let mut hasher = blake3::Hasher::new();
            let mut buffer = vec![0; WRITE_BUFFER];
            loop {
                match file.read(&mut buffer).await? {
                    0 => break Ok(hasher.finalize()),
                    length => hasher.update(&buffer[..length]),
                };
            }
        };
        let found = reading.await.map_err(FileError::io(&self.path))?;
        Ok(found.as_bytes() == hash.as_bytes())
    }

    async fn clear(&mut self) -> Result<(), FileError> {
        let cleared = async {
            let file = self.file.get_mut();
            file.set_len(0).await?;
            file.seek(SeekFrom::Start(0)).await
        };
        cleared.await.map_err(FileError::io(&self.path))?;
        self.written = 0;
        Ok(())
    }

    async fn place(&self, to: &Path) -> Result<(), FileError> {
        tokio::fs::rename(&self.path, to)
            .await
            .map_err(FileError::io(to))
    }

    async fn discard(self) {
        // Empty: all that is lost is its name.
        let _ = tokio::fs::remove_file(&self.path).await;
    }
}
