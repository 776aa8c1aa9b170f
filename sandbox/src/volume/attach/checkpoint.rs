//! Takes back what a guest changed.
//!
//! The guest names its changes; files among them that changed since the last checkpoint are read
//! and stored. Programs may go on meanwhile: a file whose stamp differs afterwards is read again,
//! a few times, and then said to be unsettled.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_guest::wire::{VolumeEntry, VolumeKind};
use tokio::{
    io::AsyncReadExt,
    sync::{mpsc, oneshot},
};

use super::{AttachError, Attachment};
use crate::{
    channel::{FileError, GuestChannel},
    chunks::{ChunkReader, ChunkStore, PackId, PackWriter, StoreKey, WriteStats},
    volume::{Chunker, Content, Draft, Meta, Node, Path, Trees, VolumeError},
};

/// How often files are read that change while they are.
const ROUNDS: usize = 3;
/// Pieces of files between the guest and the store.
const PIECES: usize = 8;
/// Bytes read from the guest at once.
const READ_BYTES: usize = 64 * 1024;

/// Where a checkpoint is stored.
#[derive(Debug, Clone)]
pub struct Target {
    /// The store.
    pub store: ChunkStore,
    /// The key to store under.
    pub key: StoreKey,
    /// The packs of the tree that was attached, here or on their way.
    pub base_packs: Vec<PackId>,
    /// Most bytes of changed files that are taken.
    pub max_bytes: u64,
    /// A name to pin the packs under, so that they stay until the version is written.
    pub pin: String,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// What the volume is.
    pub root: Content,
    /// All packs that it lies in.
    pub packs: Vec<PackId>,
    /// Entries that differ from what was attached, as the guest counts.
    pub changes: u64,
    /// Files read for this.
    pub files_read: u64,
    /// Devices, pipes and sockets, which volumes don't hold.
    pub skipped: u64,
    /// Files that changed whenever they were read: what is stored may never have been.
    pub unsettled: Vec<String>,
    /// What was stored.
    pub stats: WriteStats,
}

/// What the checkpoints until now found of each changed file.
#[derive(Debug, Default)]
pub(super) struct Seen {
    files: BTreeMap<Path, SeenFile>,
    /// What each checkpoint put its files into, as long as one of them is as it was then. A reader
    /// keeps the packs from being removed.
    stored: BTreeMap<u64, ChunkReader>,
    /// The last checkpoint's number.
    last: u64,
}

#[derive(Debug)]
struct SeenFile {
    stamp: Stamp,
    content: Content,
    /// The checkpoint that stored it.
    by: u64,
}

impl Seen {
    /// Begins a checkpoint; what one that came to nothing found was never stored.
    fn begin(&mut self) {
        self.last += 1;
        let stored = &self.stored;
        self.files.retain(|_, file| stored.contains_key(&file.by));
    }

    /// Forgets files that are no changes any more, and what was kept for them.
    fn retain(&mut self, changes: &BTreeMap<Path, VolumeEntry>) {
        self.files.retain(|path, _| changes.contains_key(path));
        let needed: BTreeSet<u64> = self.files.values().map(|file| file.by).collect();
        self.stored.retain(|number, _| needed.contains(number));
    }

    /// Returns the packs that files lie in which are not read again.
    fn packs(&self) -> Vec<PackId> {
        let readers = self.stored.values();
        readers.flat_map(ChunkReader::packs).copied().collect()
    }
}

/// What tells whether a file was changed again: number and change time, size, modification time.
type Stamp = ([u64; 2], u64, i64);

fn stamp(entry: &VolumeEntry) -> Stamp {
    (entry.stamp, entry.size, entry.mtime_ns)
}

pub(super) async fn take(
    attached: &Attachment,
    channel: &GuestChannel,
    target: Target,
    seen: &mut Seen,
) -> Result<Taken, AttachError> {
    let storing = Storing::start(target.store.clone(), target.key.clone());
    seen.begin();
    let number = seen.last;
    let mut left_bytes = target.max_bytes;
    let mut files_read = 0;
    let (mut changes, mut stale) = (scan(attached, channel).await?, Vec::new());
    for _ in 0..ROUNDS {
        stale = stale_files(&changes, seen);
        if stale.is_empty() {
            break;
        }
        for path in &stale {
            let entry = &changes[path];
            let read = read_file(attached, channel, path, &storing, &mut left_bytes).await?;
            files_read += 1;
            match read {
                Some(content) => {
                    let stamp = stamp(entry);
                    let by = number;
                    let file = SeenFile { stamp, content, by };
                    seen.files.insert(path.clone(), file)
                }
                // It went; the next look at the directory says so.
                None => seen.files.remove(path),
            };
        }
        changes = scan(attached, channel).await?;
    }
    seen.retain(&changes);
    let unsettled = stale.iter().filter(|path| {
        let now = changes.get(path).map(stamp);
        seen.files.get(path).map(|file| file.stamp) != now
    });
    let unsettled = unsettled.map(ToString::to_string).collect();
    let count = changes.len() as u64;
    let skipped = changes
        .values()
        .filter(|entry| entry.kind == VolumeKind::Other);
    let skipped = skipped.count() as u64;
    let contents = seen.files.iter();
    let contents = contents.map(|(path, file)| (path.clone(), file.content.clone()));
    let mut others = target.base_packs;
    others.extend(seen.packs());
    let edit = Edit {
        base: attached.base.clone(),
        chunks: std::sync::Arc::clone(&attached.chunks),
        changes,
        contents: contents.collect(),
        others,
        pin: target.pin,
    };
    let stored = storing.finish(edit).await?;
    let Stored {
        root,
        packs,
        reader,
        stats,
    } = stored;
    seen.stored.insert(number, reader);
    Ok(Taken {
        root,
        packs,
        changes: count,
        files_read,
        skipped,
        unsettled,
        stats,
    })
}

/// Asks for the changes and makes sure that they are some.
async fn scan(
    attached: &Attachment,
    channel: &GuestChannel,
) -> Result<BTreeMap<Path, VolumeEntry>, AttachError> {
    let mount = &attached.mount;
    let told = channel.scan_volume(mount.volume, &mount.path).await?;
    let mut changes = BTreeMap::new();
    for entry in told {
        let path = Path::parse(&entry.path)?;
        if path.names().is_empty() {
            let path = path.to_string();
            let reason = "the root stays";
            return Err(VolumeError::BadPath { path, reason }.into());
        }
        // Named twice, the last counts: the guest harms itself alone.
        changes.insert(path, entry);
    }
    Ok(changes)
}

fn stale_files(changes: &BTreeMap<Path, VolumeEntry>, seen: &Seen) -> Vec<Path> {
    let files = changes.iter().filter(|(path, entry)| {
        let known = seen.files.get(path).map(|file| file.stamp);
        entry.kind == VolumeKind::File && known != Some(stamp(entry))
    });
    files.map(|(path, _)| path.clone()).collect()
}

/// Stores a file; `None` if it is not there any more.
async fn read_file(
    attached: &Attachment,
    channel: &GuestChannel,
    path: &Path,
    storing: &Storing,
    left_bytes: &mut u64,
) -> Result<Option<Content>, AttachError> {
    let volume = &attached.mount.volume;
    let mut reader = match channel.read_volume(volume, &path.to_bytes()).await {
        Ok(reader) => reader,
        Err(FileError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let len = reader.read(&mut buffer).await.map_err(|source| {
            let path = path.to_string();
            FileError::Source { path, source }
        })?;
        if len == 0 {
            return storing.end_file().await.map(Some);
        }
        *left_bytes = left_bytes
            .checked_sub(len as u64)
            .ok_or(VolumeError::TooLarge)?;
        storing.push(Bytes::copy_from_slice(&buffer[..len])).await?;
    }
}

/// What becomes of the tree that was attached.
struct Edit {
    base: Content,
    chunks: std::sync::Arc<dyn crate::chunks::ReadChunks>,
    changes: BTreeMap<Path, VolumeEntry>,
    contents: BTreeMap<Path, Content>,
    /// The packs of what is not stored anew.
    others: Vec<PackId>,
    pin: String,
}

/// A tree that was stored.
struct Stored {
    root: Content,
    packs: Vec<PackId>,
    /// Keeps what was put for it.
    reader: ChunkReader,
    stats: WriteStats,
}

enum Order {
    Push(Bytes),
    EndFile(oneshot::Sender<Result<Content, VolumeError>>),
    Finish(Box<Edit>, oneshot::Sender<Result<Stored, VolumeError>>),
}

/// A thread that stores, since that blocks.
struct Storing(mpsc::Sender<Order>);

impl Storing {
    fn start(store: ChunkStore, key: StoreKey) -> Self {
        let (orders, taken) = mpsc::channel(PIECES);
        tokio::task::spawn_blocking(move || store_all(&store, &key, taken));
        Self(orders)
    }

    async fn push(&self, bytes: Bytes) -> Result<(), AttachError> {
        let sent = self.0.send(Order::Push(bytes)).await;
        sent.map_err(|_| AttachError::Stopping)
    }

    async fn end_file(&self) -> Result<Content, AttachError> {
        let (tx, content) = oneshot::channel();
        let sent = self.0.send(Order::EndFile(tx)).await;
        sent.map_err(|_| AttachError::Stopping)?;
        Ok(content.await.map_err(|_| AttachError::Stopping)??)
    }

    async fn finish(self, edit: Edit) -> Result<Stored, AttachError> {
        let (tx, stored) = oneshot::channel();
        let sent = self.0.send(Order::Finish(Box::new(edit), tx)).await;
        sent.map_err(|_| AttachError::Stopping)?;
        Ok(stored.await.map_err(|_| AttachError::Stopping)??)
    }
}

/// Ends when nobody gives orders any more; what is not finished then is dropped.
fn store_all(store: &ChunkStore, key: &StoreKey, mut orders: mpsc::Receiver<Order>) {
    let mut writer = store.writer(key);
    let mut chunker = Chunker::default();
    // The first error of a file is told at its end.
    let mut failed = None;
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Push(bytes) => {
                if failed.is_none() {
                    failed = chunker.push(&mut writer, &bytes).err();
                }
            }
            Order::EndFile(told) => {
                let ended = std::mem::take(&mut chunker);
                let content = match failed.take() {
                    Some(error) => Err(error),
                    None => ended.finish(&mut writer),
                };
                // Who asked is gone: the next order is the last.
                let _ = told.send(content);
            }
            Order::Finish(edit, told) => {
                let _ = told.send(finish(store, key, writer, *edit));
                return;
            }
        }
    }
}

fn finish(
    store: &ChunkStore,
    key: &StoreKey,
    mut writer: PackWriter,
    edit: Edit,
) -> Result<Stored, VolumeError> {
    let trees = Trees::new(&*edit.chunks);
    let mut draft = Draft::from_tree(trees, &edit.base)?;
    // In the order of paths: a directory comes before what is in it.
    for (path, entry) in edit.changes {
        let meta = Meta {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime_ns: entry.mtime_ns,
            attributes: match entry.attributes {
                Some(attributes) => attributes,
                // One that was removed and made anew has none of the old.
                None if entry.kind == VolumeKind::FreshDirectory => Vec::new(),
                None => draft.attributes(trees, &path)?,
            },
        };
        match entry.kind {
            VolumeKind::Gone => draft.remove(trees, &path)?,
            VolumeKind::Directory => draft.put_dir(trees, &path, meta, false)?,
            VolumeKind::FreshDirectory => draft.put_dir(trees, &path, meta, true)?,
            VolumeKind::Symlink => draft.put(trees, &path, meta, Node::Symlink(entry.target))?,
            VolumeKind::File => {
                // Without contents it went while we looked; another checkpoint sees that.
                if let Some(content) = edit.contents.get(&path) {
                    draft.put(trees, &path, meta, Node::File(content.clone()))?;
                }
            }
            VolumeKind::Other => {}
        }
    }
    let root = draft.store(&mut writer)?;
    let (mut packs, stats) = writer.finish_with_stats()?;
    let reader = store.reader(key, &packs)?;
    packs.extend(edit.others);
    packs.sort_unstable();
    packs.dedup();
    // Some of what was attached may still be on its way.
    store.pin_ahead(&edit.pin, &packs)?;
    Ok(Stored {
        root,
        packs,
        reader,
        stats,
    })
}
