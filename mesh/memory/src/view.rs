//! What the fragments add up to: documents, items, search. Always rebuildable.
//!
//! A [`View`] owns its directory and nothing else: `view.redb` with the saved documents, the items
//! made from them and how far it has got, and `tantivy/` with the search index. Whatever is damaged
//! or of another version is thrown away; the replica then replays its segments from
//! [`View::watermark`].
//!
//! A publish goes through here twice: `compose` makes the change, and once the fragment is durable
//! `apply` takes it in, by the same fence as a stranger's. Neither waits for a disk.

mod apply;
mod compose;
mod documents;
mod evict;
mod list;
mod live;
mod materialise;
mod purge;
mod tables;
mod waiting;
mod worker;

mod error;
mod read;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use redb::{ReadableTable, ReadableTableMetadata};
use rhizome_identity::{AgentId, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

pub(crate) use self::{apply::doc_key_of, compose::What, documents::Promise};
use self::{
    apply::{Applying, Renewed, Tally},
    documents::Documents,
    materialise::decode_item,
    tables::{Store, guarded},
    worker::Worker,
};
pub use self::{
    error::{ComposeError, ViewError},
    list::{ListPage, ListPlace, ListQuery},
    read::Reader,
    waiting::{MAX_WAITING, MAX_WAITING_PER_AUTHOR},
};
use crate::{
    ContextPatch, ContextState, ContextSummary, DocId, Draft, FileEdit, FilePath, FileSummary,
    FileText, FragmentId, Header, Hit, Hlc, Kind, MemoryItem, Reason, RecallError, RecallQuery,
    document::{DocKey, context_doc},
    fence::fenced,
    recall::{MAX_FRESH, Search},
    standing::{Judge, all_trusted},
};

/// A fragment whose body was decrypted.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The fragment.
    pub id: FragmentId,
    /// Its header, signature checked.
    pub header: Header,
    /// The automerge change in its body, without the version byte.
    pub change: Bytes,
}

/// Who composes, where and when.
#[derive(Debug, Clone, Copy)]
pub struct ComposeContext {
    /// The agent that will sign.
    pub author: AgentId,
    /// The node it writes on.
    pub node: NodeId,
    /// The moment that the header will carry; never the same twice for one author.
    pub now: Hlc,
    /// The space.
    pub space: SpaceId,
}

/// A change ready to be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composed {
    /// The document it changes.
    pub doc: DocId,
    /// The kind that the header has to carry.
    pub kind: Kind,
    /// The automerge change.
    pub change: Vec<u8>,
    /// The fragments it builds on; the header has to carry exactly these.
    pub deps: Vec<FragmentId>,
    /// What an edit came upon and left, if it is one of a file.
    pub file: Option<FileText>,
}

/// What became of a fragment in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// It is part of its document.
    Applied,
    /// It waits for these fragments.
    Waiting(Vec<FragmentId>),
    /// It was refused, and why; the rest of the space goes on.
    Quarantined(Reason),
    /// The view's database failed: it is tried again when the view is next opened.
    Deferred,
}

/// A fragment that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// The fragment.
    pub id: FragmentId,
    /// The space.
    pub space: SpaceId,
    /// Who signed it.
    pub author: AgentId,
    /// Why it was refused.
    pub reason: Reason,
}

/// What the view shares with its worker.
#[derive(Debug)]
struct Shared {
    store: Store,
    search: Search,
    /// One settling at a time.
    settling: Mutex<()>,
}

impl Shared {
    fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what is fresh into the search index.
    ///
    /// The index may get ahead of a database that is not yet synced: after a crash it finds
    /// documents that the database does not have, which are left out until the replay brings them.
    fn settle(&self) -> Result<(), ViewError> {
        let _one = self.settling();
        let settled = self
            .search
            .settle()
            .map_err(|error| ViewError::Index(Box::new(error)))?;
        if settled.is_empty() {
            Ok(())
        } else {
            self.store.indexed(&settled)
        }
    }
}

/// What the fragments add up to.
///
/// Composing locks the document it is on and nothing else. Locks, in the order in which they may be
/// taken: applying, a document, the list of documents.
#[derive(Debug)]
pub struct View {
    /// Declared first: the worker settles what is left when it is dropped.
    worker: Worker,
    shared: Arc<Shared>,
    documents: Documents,
    applying: Mutex<Applying>,
    /// What the last batch left over, for those who must not wait for the one at work.
    tally: Mutex<Tally>,
    generation: AtomicU64,
}

impl View {
    /// Opens the view in `dir`, or starts an empty one; a damaged view is thrown away.
    ///
    /// # Errors
    /// If the directory cannot be written, or another process has the view open.
    pub fn open(dir: &Path) -> Result<Self, ViewError> {
        let io = |source| ViewError::Io {
            path: dir.to_owned(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(io)?;
        match guarded(|| Self::open_as_is(dir)) {
            Err(ViewError::Damaged(what)) => {
                tracing::warn!(dir = %dir.display(), what, "the view is damaged and is derived anew");
                match std::fs::remove_file(dir.join("view.redb")) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(error)),
                    _ => Self::open_as_is(dir),
                }
            }
            opened => opened,
        }
    }

    fn open_as_is(dir: &Path) -> Result<Self, ViewError> {
        let store = Store::open(&dir.join("view.redb"))?.ok_or(ViewError::Damaged("view.redb"))?;
        let tables = store.read()?;
        let number = |name: &str| -> Result<Option<u64>, ViewError> {
            Ok(tables.meta.get(name)?.map(|value| value.value()))
        };
        let watermark = number("watermark")?
            .unwrap_or(0)
            .min(number("crowded")?.unwrap_or(u64::MAX));

        let mut applying = Applying::default();
        applying.watermark = watermark;
        for row in tables.waiting.iter()? {
            let (id, row) = row?;
            let id = <[u8; 32]>::try_from(id.value())
                .map_err(|_| ViewError::Damaged("a waiting fragment"))?;
            let restored = applying
                .waiting
                .restore(FragmentId::from_bytes(id), row.value());
            restored.ok_or(ViewError::Damaged("a waiting fragment"))?;
        }
        for row in tables.refused.iter()? {
            let row: Quarantined = serde_json::from_slice(row?.1.value())
                .map_err(|_| ViewError::Damaged("a refused fragment"))?;
            if row.reason != Reason::Redacted {
                *applying.refused.entry(row.space).or_default() += 1;
            }
        }
        let (search, generation) = open_search(&dir.join("tantivy"), &tables)?;
        if number("crowded")?.is_some() {
            store.forget_crowded()?;
        }

        let shared = Arc::new(Shared {
            store,
            search,
            settling: Mutex::new(()),
        });
        let worker = Worker::start(shared.clone())?;
        Ok(Self {
            worker,
            shared,
            documents: Documents::default(),
            tally: Mutex::new(applying.tally()),
            applying: Mutex::new(applying),
            generation: AtomicU64::new(generation + 1),
        })
    }

    /// Returns the arrival up to which everything is applied; replay begins after it.
    #[must_use]
    pub fn watermark(&self) -> u64 {
        self.applying().watermark
    }

    /// Composes the change that publishes `draft`.
    ///
    /// Afterwards call [`Self::reserve`] with the fragment made of it, or [`Self::release`] if there
    /// will be none, before composing on the same document again.
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose(&self, ctx: ComposeContext, draft: &Draft) -> Result<Composed, ComposeError> {
        self.compose_unnamed(ctx, What::Draft(draft))
    }

    /// Composes the change that publishes a `draft` without a key: as its document is new, no view
    /// has a say in it, and there is nothing to reserve or to release.
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose_new(ctx: ComposeContext, draft: &Draft) -> Result<Composed, ComposeError> {
        fenced(|| compose::compose_new(ctx, draft))
            .unwrap_or_else(|what| Err(ComposeError::Automerge(what)))
    }

    /// Composes the change that checkpoints `patch`; see [`Self::compose`].
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose_context(
        &self,
        ctx: ComposeContext,
        task: &str,
        patch: &ContextPatch,
    ) -> Result<Composed, ComposeError> {
        self.compose_unnamed(ctx, What::Patch(task, patch))
    }

    /// Composes the change that edits a file; see [`Self::compose`].
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose_file(
        &self,
        ctx: ComposeContext,
        path: &FilePath,
        edit: &FileEdit,
    ) -> Result<Composed, ComposeError> {
        self.compose_unnamed(ctx, What::File(path, edit))
    }

    /// Names the fragment that carries a composed change, so that the next one can build on it
    /// before this one is durable and applied.
    pub fn reserve(&self, space: &SpaceId, composed: &Composed, id: FragmentId) {
        if let Some(cell) = self.documents.peek(&composed_key(space, composed)) {
            let mut document = documents::lock(&cell);
            let composed = document
                .pending
                .iter_mut()
                .find(|pending| pending.change.raw_bytes() == composed.change);
            if let Some(pending) = composed {
                pending.fragment = Some((id, Promise::default()));
            }
        }
    }

    /// Forgets a composed change, and what was composed upon it, that will never be durable.
    pub fn release(&self, space: &SpaceId, composed: &Composed) {
        if let Some(cell) = self.documents.peek(&composed_key(space, composed)) {
            documents::lock(&cell).release(&composed.change);
        }
    }

    /// Applies durable fragments; `arrival` is that of the last of them.
    ///
    /// Fragments of one author in one space come in the order of their chain. Applying again what
    /// was applied changes nothing. The answer names every fragment of the batch in its order, then
    /// the earlier ones that had waited for them.
    pub fn apply(&self, arrival: u64, batch: Vec<Opened>) -> Vec<(FragmentId, Applied)> {
        self.apply_all(arrival, batch, Vec::new())
    }

    /// The same with fragments whose body was redacted, and which therefore come without a change:
    /// what builds on them never will be applied.
    pub(crate) fn apply_all(
        &self,
        arrival: u64,
        mut batch: Vec<Opened>,
        redacted: Vec<Opened>,
    ) -> Vec<(FragmentId, Applied)> {
        let gone = redacted.iter().map(|opened| opened.id).collect();
        batch.extend(redacted);
        let ids: Vec<FragmentId> = batch.iter().map(|opened| opened.id).collect();
        let mut applying = self.applying();
        let applied = guarded(|| self.apply_in(&mut applying, arrival, batch, &gone));
        if applied.is_err() {
            // Before anybody may read rows again that are older than what was composed upon.
            self.documents.unload();
        }
        self.documents.note_committed();
        let (mut verdicts, fresh) = match applied {
            Ok(applied) => applied,
            Err(error) => {
                tracing::error!(%error, "the view failed; it is derived anew when it is next opened");
                self.shared.store.condemn();
                return ids.into_iter().map(|id| (id, Applied::Deferred)).collect();
            }
        };
        applying.watermark = applying.watermark.max(arrival);
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner) = applying.tally();
        let mut waiting = 0;
        for (key, renewed) in fresh {
            let Renewed {
                generation,
                item,
                is_new,
            } = renewed;
            waiting = self.shared.search.add(key, generation, item, is_new);
        }
        self.worker.notify(waiting);
        if waiting > MAX_FRESH {
            // A long replay: wait for the index rather than hold everything in memory.
            if let Err(error) = guarded(|| self.shared.settle()) {
                tracing::warn!(%error, "the search index could not be fed");
            }
        }
        let mut answer: Vec<(FragmentId, Applied)> = ids
            .iter()
            .filter_map(|id| Some((*id, verdicts.remove(id)?)))
            .collect();
        answer.extend(verdicts);
        answer
    }

    /// Returns what became of a fragment, if it was ever applied.
    #[must_use]
    pub fn state(&self, id: &FragmentId) -> Option<Applied> {
        guarded(|| self.read_state(id)).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read a fragment's state");
            None
        })
    }

    /// Returns a handle for reading, which needs no access to the view.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader {
            shared: self.shared.clone(),
        }
    }

    /// Finds memories by words; see [`RecallQuery`].
    ///
    /// # Errors
    /// See [`Reader::recall`].
    pub fn recall(&self, query: &RecallQuery) -> Result<Vec<Hit>, RecallError> {
        self.reader().recall(query)
    }

    /// Returns one memory.
    ///
    /// # Errors
    /// If the database fails.
    pub fn memory(&self, space: &SpaceId, doc: &DocId) -> Result<Option<MemoryItem>, ViewError> {
        self.reader().memory(space, doc)
    }

    /// Returns the context of a task.
    ///
    /// # Errors
    /// If the database fails.
    pub fn context(&self, space: &SpaceId, task: &str) -> Result<Option<ContextState>, ViewError> {
        self.context_judged(space, task, &all_trusted)
    }

    /// Returns the context of a task without what hidden authors changed in it.
    pub(crate) fn context_judged(
        &self,
        space: &SpaceId,
        task: &str,
        judge: Judge<'_>,
    ) -> Result<Option<ContextState>, ViewError> {
        let key = DocKey::context(*space, context_doc(space, task));
        if let Some(cell) = self.documents.peek(&key)
            && let Some(live) = &documents::lock(&cell).live
        {
            return live.context_state(&key, &|change| change.is_shown(&key, judge));
        }
        self.reader().context_judged(space, task, judge)
    }

    /// Lists contexts, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn contexts(&self, space: Option<&SpaceId>) -> Result<Vec<ContextSummary>, ViewError> {
        self.reader().contexts(space)
    }

    /// Returns a file that stands.
    ///
    /// # Errors
    /// If the database fails.
    pub fn file(&self, space: &SpaceId, path: &FilePath) -> Result<Option<MemoryItem>, ViewError> {
        self.reader().file(space, path)
    }

    /// Lists the files of a space that stand; see [`Reader::files`].
    ///
    /// # Errors
    /// If the database fails.
    pub fn files(&self, space: &SpaceId) -> Result<Vec<FileSummary>, ViewError> {
        self.reader().files(space)
    }

    /// Lists what was refused; at most `limit`, in the order of the fragments' ids.
    ///
    /// # Errors
    /// If the database fails.
    pub fn quarantine(
        &self,
        space: Option<&SpaceId>,
        limit: usize,
    ) -> Result<Vec<Quarantined>, ViewError> {
        self.reader().quarantine(space, limit)
    }

    /// Returns how many fragments of a space wait, and how many were refused; never waits for a batch.
    #[must_use]
    pub fn counts(&self, space: &SpaceId) -> (usize, usize) {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.get(space).copied().unwrap_or_default()
    }

    /// Returns after which arrival to apply again, if fragments were left out for want of room and
    /// there is some now; [`Self::end_replay`] follows.
    #[must_use]
    pub fn begin_replay(&self) -> Option<u64> {
        self.applying().begin_replay()
    }

    /// Notes that everything up to the watermark was applied again.
    ///
    /// # Errors
    /// If the database fails; the replay is then repeated when the view is next opened.
    pub fn end_replay(&self) -> Result<(), ViewError> {
        if self.applying().end_replay() {
            guarded(|| self.shared.store.brought_crowded())?;
        }
        Ok(())
    }

    /// Makes everything applied so far durable, and feeds the search index on disk.
    ///
    /// # Errors
    /// If the database or the index fails.
    pub fn flush(&self) -> Result<(), ViewError> {
        guarded(|| self.shared.store.sync().and_then(|()| self.shared.settle()))
    }

    fn applying(&self) -> MutexGuard<'_, Applying> {
        self.applying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }
}

fn composed_key(space: &SpaceId, composed: &Composed) -> DocKey {
    DocKey {
        space: *space,
        shape: crate::document::Shape::of(composed.kind),
        doc: composed.doc,
    }
}

/// Opens the search index, or makes it anew from the items; returns it and the last generation.
fn open_search(dir: &Path, tables: &tables::ReadTables) -> Result<(Search, u64), ViewError> {
    let index = |error| ViewError::Index(Box::new(error));
    let mut generation = 0;
    let mut unindexed = Vec::new();
    for row in tables.unindexed.iter()? {
        let (key, row) = row?;
        let key = DocKey::from_bytes(key.value()).ok_or(ViewError::Damaged("a document's name"))?;
        let of_row = row.value().try_into().map(u64::from_be_bytes);
        let of_row = of_row.map_err(|_| ViewError::Damaged("a generation"))?;
        generation = generation.max(of_row);
        unindexed.push((key, of_row));
    }
    match Search::open(dir) {
        Ok(search) if search.len() + unindexed.len() as u64 >= tables.items.len()? => {
            if search.len() + unindexed.len() as u64 != tables.items.len()? {
                search.set_ahead();
            }
            for (key, generation) in unindexed {
                if let Some(row) = tables.items.get(&key.to_bytes()[..])? {
                    search.add(key, generation, decode_item(row.value())?, false);
                }
            }
            return Ok((search, generation));
        }
        Ok(_) => {
            tracing::warn!(dir = %dir.display(), "the search index lacks documents and is made anew")
        }
        Err(error) if dir.exists() => {
            tracing::warn!(dir = %dir.display(), %error, "the search index is damaged and is made anew");
        }
        Err(_) => {}
    }
    let search = Search::create(dir).map_err(index)?;
    for row in tables.items.iter()? {
        let (key, row) = row?;
        let key = DocKey::from_bytes(key.value()).ok_or(ViewError::Damaged("a document's name"))?;
        search
            .write([(key, &decode_item(row.value())?)])
            .map_err(index)?;
    }
    search.commit().map_err(index)?;
    Ok((search, generation))
}

#[cfg(test)]
mod tests;
