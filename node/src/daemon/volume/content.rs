//! What is in a volume, entry by entry, without a sandbox.
//!
//! What is read is the newest version; a sandbox of this node that may write has its changes made
//! one first, so that what it wrote is seen. Each change is a version of its own, on top of that.
//! While a sandbox may write nothing is changed here: it would not see it, and two versions would
//! stand beside each other.
use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use rhizome_sandbox::{
    chunks::{ChunkReader, PackId},
    silent,
    volume::{Chunker, Content, Draft, Entry, Meta, Node as Item, Path, Trees, VolumeError},
};
use tokio::sync::mpsc;

use super::{Known, Node, blocking, commit::New, now_ms, volume};
use crate::{daemon::caller::Caller, error::ApiError};

/// Most entries of one listing.
const MAX_LISTED: usize = 10_000;
/// Bytes of a file that are held at once.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces of an upload that wait to be stored.
const WAITING_PIECES: usize = 4;
/// Largest file that is put into a volume.
const MAX_FILE_BYTES: u64 = 64 << 30;

/// Something in a volume.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Where it is; empty for the root.
    pub(crate) path: Path,
    pub(crate) meta: Meta,
    pub(crate) item: Item,
}

/// A file of a volume, to be read.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFile {
    content: Content,
    chunks: Arc<ChunkReader>,
}

/// Bytes that are stored and belong to no version yet.
#[derive(Debug)]
pub(crate) struct Stored {
    content: Content,
    packs: Vec<PackId>,
    pin: Option<String>,
    epoch: u32,
}

/// Mode and owner, as far as somebody says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ownership {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// What is to be done to an entry.
#[derive(Debug)]
pub(crate) enum Change {
    /// A file goes there, with the directories above it, in place of a file that is there.
    Put(Stored),
    /// A directory is made; with `above` those above it too, and it may be there already.
    MakeDir { above: bool },
    /// Mode and owner are set.
    Own,
    /// It goes, and all below it.
    Remove,
}

impl Ownership {
    fn apply(self, meta: Meta) -> Meta {
        Meta {
            mode: self.mode.map_or(meta.mode, |mode| mode & 0o7777),
            uid: self.uid.unwrap_or(meta.uid),
            gid: self.gid.unwrap_or(meta.gid),
            ..meta
        }
    }
}

impl VolumeFile {
    pub(crate) fn size(&self) -> u64 {
        self.content.size()
    }

    /// Returns some bytes from `at` on; none at the end.
    pub(crate) async fn piece(&self, at: u64) -> Result<Vec<u8>, ApiError> {
        let this = self.clone();
        let read = blocking(move || this.content.read(&*this.chunks, at, PIECE_BYTES));
        read.await?.map_err(|error| volume(&error))
    }
}

impl Node {
    /// Returns what is at a path of a volume.
    pub(crate) async fn volume_entry(&self, wanted: &str, path: Path) -> Result<Found, ApiError> {
        let (root, chunks) = self.newest_tree(wanted).await?;
        blocking(move || find(Trees::new(&*chunks), &root, &path))
            .await?
            .map_err(|error| volume(&error))
    }

    /// Returns what is in a directory of a volume, `depth` levels down.
    pub(crate) async fn volume_dir(
        &self,
        wanted: &str,
        path: Path,
        depth: usize,
    ) -> Result<Vec<Found>, ApiError> {
        let (root, chunks) = self.newest_tree(wanted).await?;
        let listed = blocking(move || {
            let trees = Trees::new(&*chunks);
            let found = find(trees, &root, &path)?;
            let Item::Dir(tree) = &found.item else {
                return Err(not_a_directory(&path));
            };
            let mut listed = Vec::new();
            list(trees, tree, &path, depth, &mut listed)?;
            Ok(listed)
        });
        let listed = listed.await?.map_err(|error| volume(&error))?;
        match listed.len() > MAX_LISTED {
            true => Err(
                ApiError::bad_request(format!("there are more than {MAX_LISTED} entries"))
                    .hint("list the directories below one by one"),
            ),
            false => Ok(listed),
        }
    }

    /// Opens a file of a volume.
    pub(crate) async fn volume_file(
        &self,
        wanted: &str,
        path: Path,
    ) -> Result<VolumeFile, ApiError> {
        let (root, chunks) = self.newest_tree(wanted).await?;
        let reading = Arc::clone(&chunks);
        let found = blocking(move || find(Trees::new(&*reading), &root, &path));
        let found = found.await?.map_err(|error| volume(&error))?;
        match found.item {
            Item::File(content) => Ok(VolumeFile { content, chunks }),
            _ => {
                let path = String::from_utf8_lossy(&found.path.to_bytes()).into_owned();
                Err(ApiError::bad_request(format!("`{path}` is no file")))
            }
        }
    }

    /// Stores bytes that are to become a file. They stay until [`Self::change_volume`] has had
    /// them, whether or not it succeeds.
    pub(crate) async fn store_for_volume<E: std::error::Error + 'static>(
        &self,
        wanted: &str,
        bytes: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<Stored, ApiError> {
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let (_, epoch) = self.store_key(&known.space)?;
        let (give, mut take) = mpsc::channel::<Bytes>(WAITING_PIECES);
        let storing = self.store_tree(&known, move |_, writer| {
            let mut chunker = Chunker::default();
            while let Some(bytes) = take.blocking_recv() {
                chunker.push(writer, &bytes)?;
            }
            chunker.finish(writer)
        });
        let feeding = async move {
            let mut bytes = std::pin::pin!(bytes);
            let mut size = 0;
            while let Some(piece) = bytes.next().await {
                let piece = piece.map_err(|error| {
                    ApiError::bad_request("the bytes of the file ended early")
                        .caused_by(Some(&error))
                })?;
                size += piece.len() as u64;
                if size > MAX_FILE_BYTES {
                    return Err(ApiError::bad_request(format!(
                        "a file has at most {MAX_FILE_BYTES} bytes"
                    )));
                }
                if give.send(piece).await.is_err() {
                    // What could not be stored says why itself.
                    break;
                }
            }
            Ok(())
        };
        let (stored, fed) = tokio::join!(storing, feeding);
        let (content, packs, pin) = stored?;
        let stored = Stored {
            content,
            packs,
            pin,
            epoch,
        };
        match fed {
            Ok(()) => Ok(stored),
            Err(error) => {
                self.unpin_new(stored.pin).await?;
                Err(error)
            }
        }
    }

    /// Changes an entry of a volume and returns what is there then.
    pub(crate) async fn change_volume(
        self: Arc<Self>,
        wanted: &str,
        path: Path,
        change: Change,
        ownership: Ownership,
    ) -> Result<Option<Found>, ApiError> {
        // One at a time with what attaches: who does so sees the version that is made here.
        let _one_at_a_time = self.volumes.changing.lock().await;
        let pin = match &change {
            Change::Put(stored) => stored.pin.clone(),
            _ => None,
        };
        let changed = self.change_newest(wanted, path, change, ownership).await;
        // Its version keeps what came of it.
        self.unpin_new(pin).await?;
        changed
    }

    async fn change_newest(
        &self,
        wanted: &str,
        path: Path,
        change: Change,
        ownership: Ownership,
    ) -> Result<Option<Found>, ApiError> {
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        self.is_not_written_to(&known)?;
        if !matches!(change, Change::Remove) {
            self.may_store(&known.space, None).await?;
        }
        let parent = known.choose(None, true)?;
        let tree = self.tree_of(&known, parent, &silent()).await?;
        let mut packs = tree.packs;
        if let Change::Put(stored) = &change {
            if stored.epoch != self.store_key(&known.space)?.1 {
                let message = "the space got a new key while the file was stored";
                return Err(ApiError::new(StatusCode::CONFLICT, "new_key", message)
                    .hint("send the file again"));
            }
            packs.extend(&stored.packs);
        }
        let shown = String::from_utf8_lossy(&path.to_bytes()).into_owned();
        let message = match &change {
            Change::Put(_) => format!("wrote {shown}"),
            Change::MakeDir { .. } => format!("made {shown}"),
            Change::Own => format!("changed mode or owner of {shown}"),
            Change::Remove => format!("removed {shown}"),
        };
        let before = tree.root.clone();
        let stored = self.store_with(&known, packs, move |trees, writer| {
            let mut draft = Draft::from_tree(trees, &before)?;
            let found = apply(trees, &before, &mut draft, &path, change, ownership)?;
            Ok((draft.store(writer)?, found))
        });
        let ((root, found), packs, pin) = stored.await?;
        if root == tree.root {
            self.unpin_new(pin).await?;
            return Ok(found);
        }
        let new = New {
            root,
            packs,
            parents: vec![parent.version],
            message,
            replicas: None,
            pin,
            bytes_stored: 0,
            agent: None,
        };
        self.commit_version(&known, new, &silent()).await?;
        Ok(found)
    }

    /// Returns the newest tree of a volume, all of it here.
    async fn newest_tree(&self, wanted: &str) -> Result<(Content, Arc<ChunkReader>), ApiError> {
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        self.checkpoint_volume_everywhere(&known.volume.volume, "read", &silent())
            .await?;
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let version = known.choose(None, true)?;
        let tree = self.tree_of(&known, version, &silent()).await?;
        let (key, _) = self.store_key(&known.space)?;
        let store = self.volume_store()?;
        let chunks = blocking(move || store.reader(&key, &tree.packs)).await?;
        let chunks = chunks.map_err(|error| super::stored(&error))?;
        Ok((tree.root, Arc::new(chunks)))
    }

    fn is_not_written_to(&self, known: &Known) -> Result<(), ApiError> {
        let now = now_ms();
        let writer = known
            .attached
            .iter()
            .find(|one| one.attached && one.writable && one.until_ms > now);
        let Some(writer) = writer else { return Ok(()) };
        let message = format!(
            "the sandbox {} has the volume `{}` and may write in it",
            writer.sandbox, known.volume.name
        );
        Err(ApiError::new(StatusCode::CONFLICT, "volume_busy", message)
            .hint("write in the sandbox, or detach the volume first"))
    }

    async fn unpin_new(&self, pin: Option<String>) -> Result<(), ApiError> {
        let Some(pin) = pin else { return Ok(()) };
        let store = self.volume_store()?;
        let unpinned = blocking(move || store.unpin(&pin)).await?;
        unpinned.map(drop).map_err(|error| super::stored(&error))
    }
}

fn apply(
    trees: Trees<'_>,
    root: &Content,
    draft: &mut Draft,
    path: &Path,
    change: Change,
    ownership: Ownership,
) -> Result<Option<Found>, VolumeError> {
    let there = match find(trees, root, path) {
        Ok(found) => Some(found),
        Err(VolumeError::NotFound { .. } | VolumeError::NotADirectory { .. }) => None,
        Err(error) => return Err(error),
    };
    let mtime_ns = i64::try_from(now_ms())
        .unwrap_or(i64::MAX)
        .saturating_mul(1_000_000);
    let found = |meta: Meta, item: Item| {
        Some(Found {
            path: path.clone(),
            meta,
            item,
        })
    };
    let new = |mode| Meta {
        mode,
        uid: 0,
        gid: 0,
        mtime_ns,
        attributes: Vec::new(),
    };
    match (change, there) {
        (Change::Put(_), Some(there)) if matches!(there.item, Item::Dir(_)) => {
            Err(bad(path, "a directory is there"))
        }
        (Change::Put(stored), there) => {
            above(trees, root, path)?;
            let old = there.filter(|there| matches!(there.item, Item::File(_)));
            let meta = old.map_or_else(
                || new(0o644),
                |old| Meta {
                    mtime_ns,
                    ..old.meta
                },
            );
            let meta = ownership.apply(meta);
            let item = Item::File(stored.content);
            draft.put(trees, path, meta.clone(), item.clone())?;
            Ok(found(meta, item))
        }
        (Change::MakeDir { above: true }, Some(there)) if matches!(there.item, Item::Dir(_)) => {
            own(trees, draft, there, ownership)
        }
        (Change::MakeDir { .. }, Some(_)) => Err(bad(path, "something is there already")),
        (Change::MakeDir { above: makes }, None) => {
            let is_deep = above(trees, root, path)?;
            if !makes && is_deep {
                return Err(not_found(path));
            }
            let meta = ownership.apply(new(0o755));
            draft.put_dir(trees, path, meta.clone(), true)?;
            Ok(found(meta, Item::Dir(Content::default())))
        }
        (Change::Own, Some(there)) => own(trees, draft, there, ownership),
        (Change::Remove, Some(_)) if path.names().is_empty() => {
            draft.clear();
            Ok(None)
        }
        (Change::Remove, Some(_)) => {
            draft.remove(trees, path)?;
            Ok(None)
        }
        (Change::Own | Change::Remove, None) => Err(not_found(path)),
    }
}

fn own(
    trees: Trees<'_>,
    draft: &mut Draft,
    there: Found,
    ownership: Ownership,
) -> Result<Option<Found>, VolumeError> {
    let meta = ownership.apply(there.meta);
    match &there.item {
        Item::Dir(_) => draft.put_dir(trees, &there.path, meta.clone(), false)?,
        item => draft.put(trees, &there.path, meta.clone(), item.clone())?,
    }
    Ok(Some(Found { meta, ..there }))
}

/// Sees that what is above a path is directories, or nothing; returns whether some are missing.
fn above(trees: Trees<'_>, root: &Content, path: &Path) -> Result<bool, VolumeError> {
    let mut at = path.clone();
    while let Some((up, _)) = at.split() {
        match find(trees, root, &up) {
            Ok(found) if matches!(found.item, Item::Dir(_)) => return Ok(up != parent_of(path)),
            Ok(_) => return Err(not_a_directory(&up)),
            Err(VolumeError::NotFound { .. } | VolumeError::NotADirectory { .. }) => at = up,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn parent_of(path: &Path) -> Path {
    path.split().map(|(up, _)| up).unwrap_or_default()
}

fn find(trees: Trees<'_>, root: &Content, path: &Path) -> Result<Found, VolumeError> {
    if path.names().is_empty() {
        return Ok(Found {
            path: path.clone(),
            meta: Meta {
                mode: 0o755,
                uid: 0,
                gid: 0,
                mtime_ns: 0,
                attributes: Vec::new(),
            },
            item: Item::Dir(root.clone()),
        });
    }
    let entry = trees.find(root, path)?.ok_or_else(|| not_found(path))?;
    Ok(of_entry(path.clone(), entry))
}

fn of_entry(path: Path, entry: Entry) -> Found {
    Found {
        path,
        meta: entry.meta,
        item: entry.node,
    }
}

/// Lists a directory, what is in one behind it; one entry more than may be if there are more.
fn list(
    trees: Trees<'_>,
    tree: &Content,
    path: &Path,
    depth: usize,
    into: &mut Vec<Found>,
) -> Result<(), VolumeError> {
    for entry in trees.list(tree)? {
        if into.len() > MAX_LISTED {
            return Ok(());
        }
        let below = path.join(&entry.name);
        let found = of_entry(below.clone(), entry);
        let inner = match &found.item {
            Item::Dir(inner) if depth > 1 => Some(inner.clone()),
            _ => None,
        };
        into.push(found);
        if let Some(inner) = inner {
            list(trees, &inner, &below, depth - 1, into)?;
        }
    }
    Ok(())
}

fn text(path: &Path) -> String {
    format!("/{}", String::from_utf8_lossy(&path.to_bytes()))
}

fn not_found(path: &Path) -> VolumeError {
    VolumeError::NotFound { path: text(path) }
}

fn not_a_directory(path: &Path) -> VolumeError {
    VolumeError::NotADirectory { path: text(path) }
}

fn bad(path: &Path, reason: &'static str) -> VolumeError {
    VolumeError::BadPath {
        path: text(path),
        reason,
    }
}
