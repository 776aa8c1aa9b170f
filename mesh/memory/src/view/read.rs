//! Reading the view.

use std::sync::Arc;

use automerge::Automerge;
use redb::ReadableTable;
use rhizome_identity::{AgentId, SpaceId};

use super::{
    Applied, Quarantined, Shared, View, ViewError,
    apply::{STATE_APPLIED, STATE_REFUSED, STATE_WAITING},
    live::Live,
    materialise::{decode_item, same_prefix, superseded_prefix},
    tables::{ReadTables, guarded, with_prefix},
};
use crate::{
    ContextState, ContextSummary, DocId, FilePath, FileSummary, FragmentId, Hit, MAX_FILES,
    MemoryItem, RecallError, RecallQuery, Standing, Voice,
    document::{
        ChangeMeta, DocIndex, DocKey, Shape, context_doc, context_summary, file_doc, file_material,
        statements,
    },
    link::{Link, Says},
    recall::recall,
    standing::{Judge, all_trusted},
};

/// Most documents that are named as replacing one.
const MAX_SUPERSEDED_BY: usize = 64;
/// Most that others say of one document that is looked at.
const MAX_LINKS_READ: usize = 4_096;
/// Most memories that say the same that are looked at.
const MAX_SAME: usize = 64;
/// Most statements of one history, and documents it leads over.
const MAX_HISTORY: usize = 256;
/// Most contexts of one answer.
const MAX_CONTEXTS: usize = 10_000;
/// Where the row of a document says its shape.
const SHAPE_AT: usize = 32;

/// A handle for reading a view; cheap to copy, and never waits for what is being applied.
///
/// It sees what was committed when it was asked. The view's files stay open while a reader lives.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) shared: Arc<Shared>,
}

impl View {
    pub(super) fn read_state(&self, id: &FragmentId) -> Result<Option<Applied>, ViewError> {
        let tables = self.shared.store.read()?;
        let state = tables.states.get(&id.as_bytes()[..])?;
        Ok(match state.as_ref().map(|row| row.value()) {
            Some(STATE_APPLIED) => Some(Applied::Applied),
            Some(STATE_WAITING) => Some(Applied::Waiting(
                self.applying().waiting.on(id).unwrap_or_default().to_vec(),
            )),
            Some(STATE_REFUSED) => {
                let row = tables.refused.get(&id.as_bytes()[..])?;
                let refused =
                    row.and_then(|row| serde_json::from_slice::<Quarantined>(row.value()).ok());
                Some(Applied::Quarantined(
                    refused
                        .ok_or(ViewError::Damaged("a refused fragment"))?
                        .reason,
                ))
            }
            _ => None,
        })
    }
}

impl Reader {
    /// Finds memories by words; see [`RecallQuery`].
    ///
    /// # Errors
    /// If the query is blank or too long, or the index or the database fails.
    pub fn recall(&self, query: &RecallQuery) -> Result<Vec<Hit>, RecallError> {
        self.recall_judged(query, &all_trusted, &|_| true)
    }

    /// Finds memories by words, as far as their authors are taken at their word.
    pub(crate) fn recall_judged(
        &self,
        query: &RecallQuery,
        judge: Judge<'_>,
        passes: &dyn Fn(&MemoryItem) -> bool,
    ) -> Result<Vec<Hit>, RecallError> {
        let found = self.guarded(|| {
            let tables = self.shared.store.read()?;
            Ok(recall(&self.shared.search, query, |key| {
                let shown = item(&tables, key, judge)?;
                Ok(shown.filter(|(item, _)| !item.retracted && passes(item)))
            }))
        })?;
        if let Err(RecallError::Index(_)) = &found {
            self.shared.store.condemn();
        }
        found
    }

    /// Returns one memory.
    ///
    /// # Errors
    /// If the database fails.
    pub fn memory(&self, space: &SpaceId, doc: &DocId) -> Result<Option<MemoryItem>, ViewError> {
        self.memory_judged(space, doc, &all_trusted)
    }

    /// Returns a file that stands.
    ///
    /// # Errors
    /// If the database fails.
    pub fn file(&self, space: &SpaceId, path: &FilePath) -> Result<Option<MemoryItem>, ViewError> {
        self.file_judged(space, path, &all_trusted)
    }

    /// Returns a file that stands, without what hidden authors wrote in it.
    pub(crate) fn file_judged(
        &self,
        space: &SpaceId,
        path: &FilePath,
        judge: Judge<'_>,
    ) -> Result<Option<MemoryItem>, ViewError> {
        let key = DocKey::file(*space, file_doc(space, path));
        let found = self.guarded(|| item(&self.shared.store.read()?, &key, judge))?;
        Ok(found.map(|(item, _)| item).filter(|item| !item.retracted))
    }

    /// Lists the files of a space that stand, in the order of their paths; at most
    /// [`MAX_FILES`].
    ///
    /// # Errors
    /// If the database fails.
    pub fn files(&self, space: &SpaceId) -> Result<Vec<FileSummary>, ViewError> {
        self.files_judged(space, &all_trusted)
    }

    /// Lists the files of a space that stand without what hidden authors wrote.
    pub(crate) fn files_judged(
        &self,
        space: &SpaceId,
        judge: Judge<'_>,
    ) -> Result<Vec<FileSummary>, ViewError> {
        self.guarded(|| self.read_files(space, judge))
    }

    /// Returns one memory, retracted or not, unless its author is hidden.
    pub(crate) fn memory_judged(
        &self,
        space: &SpaceId,
        doc: &DocId,
        judge: Judge<'_>,
    ) -> Result<Option<MemoryItem>, ViewError> {
        self.guarded(|| {
            let tables = self.shared.store.read()?;
            let found = match item(&tables, &DocKey::memory(*space, *doc), judge)? {
                Some(found) => Some(found),
                None => item(&tables, &DocKey::file(*space, *doc), judge)?,
            };
            Ok(found.map(|(item, _)| item))
        })
    }

    /// Returns every statement of a memory, and of those it replaces or is replaced by, the latest
    /// first; what a hidden author said is left out.
    pub(crate) fn history(
        &self,
        space: &SpaceId,
        doc: &DocId,
        judge: Judge<'_>,
    ) -> Result<Vec<MemoryItem>, ViewError> {
        self.guarded(|| self.read_history(space, doc, judge))
    }

    /// Returns the oldest memory that says what `same` stands for.
    pub(crate) fn same(
        &self,
        space: &SpaceId,
        same: &[u8; 32],
        judge: Judge<'_>,
    ) -> Result<Option<MemoryItem>, ViewError> {
        self.guarded(|| {
            let found = self
                .shared
                .store
                .read_same(&same_prefix(space, same), MAX_SAME)?;
            let Some((rows, tables)) = found else {
                return Ok(None);
            };
            let mut oldest: Option<MemoryItem> = None;
            for (row, _) in rows {
                let key = DocKey::memory(*space, doc_at(&row, 64)?);
                let Some((item, standing)) = item(&tables, &key, judge)? else {
                    continue;
                };
                let counts = standing == Standing::Trusted && !item.retracted;
                if counts
                    && oldest
                        .as_ref()
                        .is_none_or(|oldest| (item.hlc, item.doc) < (oldest.hlc, oldest.doc))
                {
                    oldest = Some(item);
                }
            }
            Ok(oldest)
        })
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
        self.guarded(|| self.read_context(space, task, judge))
    }

    /// Lists contexts, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn contexts(&self, space: Option<&SpaceId>) -> Result<Vec<ContextSummary>, ViewError> {
        self.contexts_judged(space, &all_trusted)
    }

    /// Lists contexts without what hidden authors changed in them.
    pub(crate) fn contexts_judged(
        &self,
        space: Option<&SpaceId>,
        judge: Judge<'_>,
    ) -> Result<Vec<ContextSummary>, ViewError> {
        self.guarded(|| self.read_contexts(space, judge))
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
        self.guarded(|| self.read_quarantine(space, limit))
    }

    /// Reads; what is found damaged is derived anew when the view is next opened.
    pub(super) fn guarded<T>(
        &self,
        read: impl FnOnce() -> Result<T, ViewError>,
    ) -> Result<T, ViewError> {
        let result = guarded(read);
        if let Err(ViewError::Damaged(_)) = &result {
            self.shared.store.condemn();
        }
        result
    }

    fn read_history(
        &self,
        space: &SpaceId,
        doc: &DocId,
        judge: Judge<'_>,
    ) -> Result<Vec<MemoryItem>, ViewError> {
        let tables = self.shared.store.read()?;
        let mut docs = vec![*doc];
        let mut found = Vec::new();
        let mut at = 0;
        while at < docs.len() && found.len() < MAX_HISTORY {
            let key = DocKey::memory(*space, docs[at]);
            at += 1;
            let Some(mut live) = load(&tables, &key)? else {
                continue;
            };
            let (document, index) = live.parts()?;
            let said = statements(&key, document, index, MAX_HISTORY);
            let beside = beside(&tables, &key, judge, Standing::Doubtful, None)?;
            let mut is_first = true;
            for mut item in said {
                if judge(&Voice::of(&item)) == Standing::Hidden {
                    continue;
                }
                beside.clone().note(&mut item);
                if !is_first {
                    // What the same document says now stands in its place.
                    item.superseded_by.insert(0, key.doc);
                }
                is_first = false;
                let next = item.supersedes.iter().chain(&item.superseded_by);
                let next: Vec<_> = next.filter(|doc| !docs.contains(doc)).copied().collect();
                docs.extend(next);
                found.push(item);
            }
        }
        found.sort_by_key(|item| std::cmp::Reverse((item.hlc, item.doc)));
        found.truncate(MAX_HISTORY);
        Ok(found)
    }

    fn read_context(
        &self,
        space: &SpaceId,
        task: &str,
        judge: Judge<'_>,
    ) -> Result<Option<ContextState>, ViewError> {
        let key = DocKey::context(*space, context_doc(space, task));
        let tables = self.shared.store.read()?;
        let row = &key.to_bytes()[..];
        let (saved, index) = (tables.saved.get(row)?, tables.index.get(row)?);
        let saved = saved.as_ref().map(|row| row.value());
        let live = Live::from_rows(&key, saved, index.as_ref().map(|row| row.value()))?;
        live.context_state(&key, &|change| change.is_shown(&key, judge))
    }

    fn read_contexts(
        &self,
        space: Option<&SpaceId>,
        judge: Judge<'_>,
    ) -> Result<Vec<ContextSummary>, ViewError> {
        let tables = self.shared.store.read()?;
        let prefix = space
            .map(|space| space.as_bytes().to_vec())
            .unwrap_or_default();
        let mut contexts = Vec::new();
        for row in tables.summaries.range(&prefix[..]..)? {
            let (row, summary) = row?;
            if !row.value().starts_with(&prefix) || contexts.len() >= MAX_CONTEXTS {
                break;
            }
            if row.value().get(SHAPE_AT) == Some(&(Shape::Context as u8)) {
                let summary: ContextSummary = serde_json::from_slice(summary.value())
                    .map_err(|_| ViewError::Damaged("a context's summary"))?;
                let key = DocKey::context(summary.space, summary.doc);
                match rejudged(&tables, &key, judge, &context_summary)? {
                    Rejudged::AsStored => contexts.push(summary),
                    Rejudged::Gone => {}
                    Rejudged::Anew(judged) => contexts.push(judged),
                }
            }
        }
        contexts
            .sort_by_key(|context: &ContextSummary| std::cmp::Reverse((context.hlc, context.doc)));
        Ok(contexts)
    }

    fn read_files(&self, space: &SpaceId, judge: Judge<'_>) -> Result<Vec<FileSummary>, ViewError> {
        let tables = self.shared.store.read()?;
        let mut prefix = space.as_bytes().to_vec();
        prefix.push(Shape::File as u8);
        let mut files = Vec::new();
        for row in tables.summaries.range(&prefix[..]..)? {
            let (row, summary) = row?;
            if !row.value().starts_with(&prefix) || files.len() >= MAX_FILES {
                break;
            }
            let mut file: FileSummary = serde_json::from_slice(summary.value())
                .map_err(|_| ViewError::Damaged("a file's summary"))?;
            let key = DocKey::file(*space, file.doc);
            match rejudged(&tables, &key, judge, &file_material)? {
                Rejudged::AsStored => {}
                Rejudged::Gone => continue,
                Rejudged::Anew(judged) => file = judged.1,
            }
            files.extend((!file.deleted).then_some(file));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    fn read_quarantine(
        &self,
        space: Option<&SpaceId>,
        limit: usize,
    ) -> Result<Vec<Quarantined>, ViewError> {
        let tables = self.shared.store.read()?;
        let mut found = Vec::new();
        for row in tables.refused.iter()? {
            let (_, row) = row?;
            let refused: Quarantined = serde_json::from_slice(row.value())
                .map_err(|_| ViewError::Damaged("a refused fragment"))?;
            if found.len() >= limit {
                break;
            }
            if space.is_none_or(|space| refused.space == *space) {
                found.push(refused);
            }
        }
        Ok(found)
    }
}

/// What others say of a document.
#[derive(Debug, Clone, Default)]
struct Beside {
    superseded_by: Vec<DocId>,
    retracted: bool,
    confirmations: u64,
    confirmed_by: u64,
}

impl Beside {
    fn note(self, item: &mut MemoryItem) {
        item.superseded_by.extend(self.superseded_by);
        item.retracted |= self.retracted;
        item.confirmations += self.confirmations;
        item.confirmed_by += self.confirmed_by;
    }
}

/// Reads what others say of a document; what is said by a lesser voice than `least` counts for
/// nothing, and what a doubtful one confirms never does.
fn beside(
    tables: &ReadTables,
    key: &DocKey,
    judge: Judge<'_>,
    least: Standing,
    author: Option<&AgentId>,
) -> Result<Beside, ViewError> {
    let mut beside = Beside::default();
    let prefix = superseded_prefix(key, &key.doc);
    for (row, value) in with_prefix(&tables.superseded, &prefix, MAX_LINKS_READ)? {
        let link = Link::from_bytes(key, &value).ok_or(ViewError::Damaged("a row of the view"))?;
        let standing = judge(&link.voice);
        match link.says {
            _ if standing < least || standing == Standing::Hidden => {}
            Says::Replaces => {
                if beside.superseded_by.len() < MAX_SUPERSEDED_BY {
                    beside.superseded_by.push(doc_at(&row, 64)?);
                }
            }
            Says::Retracts => beside.retracted = true,
            Says::Confirms(times) if standing == Standing::Trusted => {
                beside.confirmations = beside.confirmations.saturating_add(times);
                // Its author is among those who say it anyway.
                beside.confirmed_by += u64::from(author != Some(&link.voice.author));
            }
            Says::Confirms(_) => {}
        }
    }
    Ok(beside)
}

/// Reads one item, with what others say of it; `None` if there is nothing that may be shown.
///
/// Where a doubtful or hidden author overwrote, or stands before, somebody better, the better one's
/// statement is the memory.
pub(super) fn item(
    tables: &ReadTables,
    key: &DocKey,
    judge: Judge<'_>,
) -> Result<Option<(MemoryItem, Standing)>, ViewError> {
    let Some(row) = tables.items.get(&key.to_bytes()[..])? else {
        return Ok(None);
    };
    let mut item = decode_item(row.value())?;
    item.buried = String::new();
    if key.shape == Shape::File {
        match rejudged(tables, key, judge, &file_material)? {
            Rejudged::AsStored => {}
            Rejudged::Gone => return Ok(None),
            Rejudged::Anew(judged) => item = judged.0,
        }
    }
    let mut standing = judge(&Voice::of(&item));
    if standing < Standing::Trusted {
        (item, standing) = best_statement(tables, key, item, standing, judge)?;
    }
    if standing == Standing::Hidden {
        return Ok(None);
    }
    item.conflicts.retain(|conflict| {
        let voice = Voice {
            space: key.space,
            author: conflict.author,
            node: conflict.node,
            fragment: conflict.id,
            kind: conflict.kind,
        };
        judge(&voice) > Standing::Hidden
    });
    let author = item.author;
    beside(tables, key, judge, standing, Some(&author))?.note(&mut item);
    Ok(Some((item, standing)))
}

/// What is left of a document without what hidden authors wrote in it.
enum Rejudged<T> {
    /// None of them did.
    AsStored,
    /// Nobody else did.
    Gone,
    Anew(T),
}

/// Reads what a document amounts to as far as its changes count.
type Material<'a, T> =
    &'a dyn Fn(&DocKey, &Automerge, &DocIndex, &dyn Fn(&ChangeMeta) -> bool) -> Option<T>;

fn rejudged<T>(
    tables: &ReadTables,
    key: &DocKey,
    judge: Judge<'_>,
    material: Material<'_, T>,
) -> Result<Rejudged<T>, ViewError> {
    let Some(index) = tables.index.get(&key.to_bytes()[..])? else {
        return Ok(Rejudged::AsStored);
    };
    let index = DocIndex::decode(index.value());
    let index = index.ok_or(ViewError::Damaged("the index of a document"))?;
    let counts = |change: &ChangeMeta| change.is_shown(key, judge);
    // Without the document, which is costly to load.
    if index.changes().iter().all(counts) {
        return Ok(Rejudged::AsStored);
    }
    let Some(mut live) = load(tables, key)? else {
        return Ok(Rejudged::Gone);
    };
    let (document, index) = live.parts()?;
    let judged = material(key, document, index, &counts);
    Ok(judged.map_or(Rejudged::Gone, Rejudged::Anew))
}

/// Returns the latest statement by the best author of a document.
fn best_statement(
    tables: &ReadTables,
    key: &DocKey,
    shown: MemoryItem,
    standing: Standing,
    judge: Judge<'_>,
) -> Result<(MemoryItem, Standing), ViewError> {
    // A memory without a key is stated once.
    if shown.key.is_none() || key.shape != Shape::Memory {
        return Ok((shown, standing));
    }
    let Some(mut live) = load(tables, key)? else {
        return Ok((shown, standing));
    };
    let (document, index) = live.parts()?;
    let mut best = (shown, standing);
    for item in statements(key, document, index, usize::MAX) {
        let standing = judge(&Voice::of(&item));
        if standing > best.1 {
            best = (item, standing);
        }
        if best.1 == Standing::Trusted {
            break;
        }
    }
    Ok(best)
}

fn load(tables: &ReadTables, key: &DocKey) -> Result<Option<Live>, ViewError> {
    let row = &key.to_bytes()[..];
    let (saved, index) = (tables.saved.get(row)?, tables.index.get(row)?);
    let Some(saved) = saved else { return Ok(None) };
    let index = index.as_ref().map(|row| row.value());
    Live::from_rows(key, Some(saved.value()), index).map(Some)
}

pub(super) fn doc_at(row: &[u8], at: usize) -> Result<DocId, ViewError> {
    id_at(row, at).map(DocId::from_bytes)
}

pub(super) fn id_at(row: &[u8], at: usize) -> Result<[u8; 32], ViewError> {
    let bytes = row
        .get(at..at + 32)
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.ok_or(ViewError::Damaged("a row of the view"))
}
