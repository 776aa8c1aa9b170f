//! Answers what a guest asks about the tree it has.

use std::{collections::VecDeque, sync::Arc};

use rhizome_guest::wire::{
    MAX_VOLUME_READ, VolumeAnswer, VolumeAsk, VolumeEntry, VolumeFramer, VolumeKind, VolumeReply,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Semaphore, mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::AttachError;
use crate::{
    channel::DoorStream,
    chunks::ReadChunks,
    volume::{Content, Entry, Node, Path, Trees, VolumeError},
};

/// Questions that are worked on at once; the guest waits for room to ask more.
const QUESTIONS: usize = 8;
/// Answers that wait to be sent.
const ANSWERS: usize = 8;
/// Bytes of entries in one answer.
const LIST_BYTES: usize = 256 * 1024;
/// Directories that are kept for the next question.
const KEPT_DIRS: usize = 64;
/// Bytes read from the guest at once.
const READ_BYTES: usize = 16 * 1024;

/// The service of one attached volume; ends when dropped.
#[derive(Debug)]
pub(super) struct Server {
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Server {
    /// Serves from now on; returns once the guest has mounted the volume.
    pub(super) async fn start(
        stream: DoorStream,
        root: Content,
        chunks: Arc<dyn ReadChunks>,
    ) -> Result<Self, AttachError> {
        let server = Self {
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let (told, mounted) = oneshot::channel();
        let (stop, ended) = (server.stop.clone(), server.ended.clone());
        let library = Arc::new(Library {
            root,
            chunks,
            dirs: std::sync::Mutex::default(),
        });
        tokio::spawn(async move {
            // Whatever ends it, dropping the stream tells the guest.
            tokio::select! {
                () = stop.cancelled() => {}
                _ = answer_all(stream, library, told) => {}
            }
            ended.cancel();
        });
        match mounted.await {
            Ok(Ok(())) => Ok(server),
            Ok(Err(message)) => Err(AttachError::Mount {
                message: crate::channel::printable(&message),
            }),
            Err(_) => Err(AttachError::Gone),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// Returns when the guest ends the stream, or breaks its rules.
async fn answer_all(
    stream: DoorStream,
    library: Arc<Library>,
    told: oneshot::Sender<Result<(), String>>,
) -> Option<()> {
    let (mut from_guest, mut to_guest) = tokio::io::split(stream);
    let (answers, mut ready) = mpsc::channel::<Vec<u8>>(ANSWERS);
    let send = async {
        while let Some(answer) = ready.recv().await {
            to_guest.write_all(&answer).await.ok()?;
        }
        Some(())
    };
    let questions = Arc::new(Semaphore::new(QUESTIONS));
    let mut told = Some(told);
    let take = async move {
        let mut framer = VolumeFramer::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let len = from_guest.read(&mut buffer).await.ok()?;
            if len == 0 {
                return None::<()>;
            }
            framer.extend(&buffer[..len]);
            while let Some(ask) = framer.message::<VolumeAsk>().ok()? {
                let outcome = match ask {
                    VolumeAsk::Mounted => Ok(()),
                    VolumeAsk::Failed { message } => Err(message),
                    question => {
                        let permit = Arc::clone(&questions).acquire_owned().await.ok()?;
                        let (library, answers) = (Arc::clone(&library), answers.clone());
                        tokio::spawn(async move {
                            let answered =
                                tokio::task::spawn_blocking(move || library.answer(question));
                            if let Ok(answer) = answered.await {
                                // The guest is gone if nobody takes it.
                                let _ = answers.send(VolumeFramer::frame(&answer)).await;
                            }
                            drop(permit);
                        });
                        continue;
                    }
                };
                // Once is enough; saying it again means nothing.
                if let Some(told) = told.take() {
                    let _ = told.send(outcome);
                }
            }
        }
    };
    tokio::select! {
        _ = send => None,
        _ = take => None,
    }
}

/// The one tree that the guest may read.
struct Library {
    root: Content,
    chunks: Arc<dyn ReadChunks>,
    dirs: std::sync::Mutex<VecDeque<(Path, Arc<Vec<Entry>>)>>,
}

impl Library {
    fn answer(&self, ask: VolumeAsk) -> VolumeAnswer {
        let (tag, answered) = match ask {
            VolumeAsk::List { tag, path, after } => (tag, self.list(&path, &after)),
            VolumeAsk::Read {
                tag,
                path,
                offset,
                len,
            } => (tag, self.read(&path, offset, len)),
            VolumeAsk::Mounted | VolumeAsk::Failed { .. } => (0, Ok(None)),
        };
        let answer = match answered {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(VolumeError::BadPath { .. }) => VolumeReply::NotFound,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot serve a volume"
                );
                VolumeReply::Failed
            }
        };
        VolumeAnswer { tag, answer }
    }

    fn list(&self, path: &[u8], after: &[u8]) -> Result<Option<VolumeReply>, VolumeError> {
        let Some(entries) = self.dir(&Path::parse(path)?)? else {
            return Ok(None);
        };
        let from = entries.partition_point(|entry| entry.name.as_bytes() <= after);
        let (mut listed, mut bytes) = (Vec::new(), 0);
        for entry in &entries[from..] {
            let entry = told(entry);
            bytes += 64 + entry.path.len() + entry.target.len();
            let attributes = entry.attributes.iter().flatten();
            bytes += attributes
                .map(|(name, value)| 8 + name.len() + value.len())
                .sum::<usize>();
            listed.push(entry);
            if bytes > LIST_BYTES {
                break;
            }
        }
        let more = from + listed.len() < entries.len();
        Ok(Some(VolumeReply::Entries(listed, more)))
    }

    fn read(&self, path: &[u8], offset: u64, len: u32) -> Result<Option<VolumeReply>, VolumeError> {
        let path = Path::parse(path)?;
        let Some((above, name)) = path.split() else {
            return Ok(None);
        };
        let Some(entries) = self.dir(&above)? else {
            return Ok(None);
        };
        let found = entries.binary_search_by(|entry| entry.name.cmp(name));
        let Some(Node::File(content)) = found.ok().map(|at| &entries[at].node) else {
            return Ok(None);
        };
        let len = len.min(MAX_VOLUME_READ) as usize;
        let bytes = content.read(&*self.chunks, offset, len)?;
        Ok(Some(VolumeReply::Data(bytes)))
    }

    /// Returns the entries of a directory, if it is one.
    fn dir(&self, path: &Path) -> Result<Option<Arc<Vec<Entry>>>, VolumeError> {
        {
            let mut dirs = self.dirs();
            if let Some(at) = dirs.iter().position(|(known, _)| known == path) {
                let kept = dirs.remove(at).expect("the position was just found");
                let entries = Arc::clone(&kept.1);
                dirs.push_front(kept);
                return Ok(Some(entries));
            }
        }
        let trees = Trees::new(&*self.chunks);
        let tree = match path.split() {
            None => self.root.clone(),
            Some((above, name)) => {
                // As deep as paths can be; what is above is mostly kept.
                let Some(entries) = self.dir(&above)? else {
                    return Ok(None);
                };
                let found = entries.binary_search_by(|entry| entry.name.cmp(name));
                match found.ok().map(|at| &entries[at].node) {
                    Some(Node::Dir(tree)) => tree.clone(),
                    _ => return Ok(None),
                }
            }
        };
        let entries = Arc::new(trees.list(&tree)?);
        let mut dirs = self.dirs();
        dirs.push_front((path.clone(), Arc::clone(&entries)));
        dirs.truncate(KEPT_DIRS);
        Ok(Some(entries))
    }

    fn dirs(&self) -> std::sync::MutexGuard<'_, VecDeque<(Path, Arc<Vec<Entry>>)>> {
        // Every section leaves it whole.
        let dirs = self.dirs.lock();
        dirs.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What the guest is told of an entry.
fn told(entry: &Entry) -> VolumeEntry {
    let (kind, size, target) = match &entry.node {
        Node::File(content) => (VolumeKind::File, content.size(), Vec::new()),
        Node::Dir(_) => (VolumeKind::Directory, 4096, Vec::new()),
        Node::Symlink(target) => (VolumeKind::Symlink, target.len() as u64, target.clone()),
    };
    VolumeEntry {
        path: entry.name.as_bytes().to_vec(),
        kind,
        mode: entry.meta.mode,
        uid: entry.meta.uid,
        gid: entry.meta.gid,
        size,
        mtime_ns: entry.meta.mtime_ns,
        stamp: [0, 0],
        target,
        attributes: Some(entry.meta.attributes.clone()),
    }
}
