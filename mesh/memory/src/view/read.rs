//! Reading the view.

use std::sync::Arc;

use redb::ReadableTable;
use rhizome_identity::SpaceId;

use super::{
    Applied, ListQuery, Quarantined, Shared, View, ViewError,
    apply::{STATE_APPLIED, STATE_REFUSED, STATE_WAITING},
    live::Live,
    materialise::{decode_item, superseded_prefix},
    tables::{ReadTables, guarded, with_prefix},
};
use crate::{
    ContextState, ContextSummary, DocId, FilePath, FileSummary, FragmentId, Hit, Kind, MAX_FILES,
    MemoryItem, RecallError, RecallQuery,
    document::{DocKey, RETRACTED, Shape, context_doc, file_doc},
    recall::recall,
};

/// Most documents that are named as replacing one.
const MAX_SUPERSEDED_BY: usize = 64;
/// Items of one answer, at most.
const MAX_LIST: usize = 10_000;
/// Where the row of a document says its shape.
const SHAPE_AT: usize = 32;
/// Items of one answer, if the question does not say.
const DEFAULT_LIST: usize = 50;

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
        let found = self.guarded(|| {
            let tables = self.shared.store.read()?;
            let standing = |key: &_| Ok(item(&tables, key)?.filter(|item| !is_deleted(item)));
            Ok(recall(&self.shared.search, query, standing))
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
        self.guarded(|| {
            let tables = self.shared.store.read()?;
            match item(&tables, &DocKey::memory(*space, *doc))? {
                Some(found) => Ok(Some(found)),
                None => item(&tables, &DocKey::file(*space, *doc)),
            }
        })
    }

    /// Returns a file that stands.
    ///
    /// # Errors
    /// If the database fails.
    pub fn file(&self, space: &SpaceId, path: &FilePath) -> Result<Option<MemoryItem>, ViewError> {
        let key = DocKey::file(*space, file_doc(space, path));
        let found = self.guarded(|| item(&self.shared.store.read()?, &key))?;
        Ok(found.filter(|item| !is_deleted(item)))
    }

    /// Lists the files of a space that stand, in the order of their paths; at most
    /// [`MAX_FILES`].
    ///
    /// # Errors
    /// If the database fails.
    pub fn files(&self, space: &SpaceId) -> Result<Vec<FileSummary>, ViewError> {
        self.guarded(|| self.read_files(space))
    }

    /// Lists memories, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ViewError> {
        self.guarded(|| self.read_list(query))
    }

    /// Returns the context of a task.
    ///
    /// # Errors
    /// If the database fails.
    pub fn context(&self, space: &SpaceId, task: &str) -> Result<Option<ContextState>, ViewError> {
        self.guarded(|| self.read_context(space, task))
    }

    /// Lists contexts, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn contexts(&self, space: Option<&SpaceId>) -> Result<Vec<ContextSummary>, ViewError> {
        self.guarded(|| self.read_contexts(space))
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
    fn guarded<T>(&self, read: impl FnOnce() -> Result<T, ViewError>) -> Result<T, ViewError> {
        let result = guarded(read);
        if let Err(ViewError::Damaged(_)) = &result {
            self.shared.store.condemn();
        }
        result
    }

    fn read_list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ViewError> {
        let limit = if query.limit == 0 {
            DEFAULT_LIST
        } else {
            query.limit.min(MAX_LIST)
        };
        let tables = self.shared.store.read()?;
        let wanted = |item: &MemoryItem| {
            (query.task.is_none() || item.task == query.task) && !is_deleted(item)
        };
        let mut items = Vec::new();
        let prefix = query
            .space
            .map(|space| space.as_bytes().to_vec())
            .unwrap_or_default();
        for row in tables.order.range(&prefix[..]..)? {
            let (row, kind) = row?;
            if !row.value().starts_with(&prefix) {
                break;
            }
            let unwanted = match query.kind {
                Some(wanted) => kind.value() != [wanted.number()],
                None => Kind::ALL
                    .into_iter()
                    .any(|of| of.is_record() && kind.value() == [of.number()]),
            };
            if unwanted {
                continue;
            }
            let space = SpaceId::from_bytes(id_at(row.value(), 0)?);
            let key = DocKey {
                space,
                shape: shape_of(kind.value()),
                doc: doc_at(row.value(), 40)?,
            };
            items.extend(item(&tables, &key)?.filter(wanted));
            // Rows of one space come from the newest; those of several have to be merged first.
            if query.space.is_some() && items.len() >= limit {
                break;
            }
            if items.len() >= 2 * MAX_LIST {
                newest(&mut items, limit);
            }
        }
        newest(&mut items, limit);
        Ok(items)
    }

    fn read_context(&self, space: &SpaceId, task: &str) -> Result<Option<ContextState>, ViewError> {
        let key = DocKey::context(*space, context_doc(space, task));
        let tables = self.shared.store.read()?;
        let row = &key.to_bytes()[..];
        let (saved, index) = (tables.saved.get(row)?, tables.index.get(row)?);
        let saved = saved.as_ref().map(|row| row.value());
        let live = Live::from_rows(&key, saved, index.as_ref().map(|row| row.value()))?;
        live.context_state(&key)
    }

    fn read_contexts(&self, space: Option<&SpaceId>) -> Result<Vec<ContextSummary>, ViewError> {
        let tables = self.shared.store.read()?;
        let prefix = space
            .map(|space| space.as_bytes().to_vec())
            .unwrap_or_default();
        let mut contexts = Vec::new();
        for row in tables.summaries.range(&prefix[..]..)? {
            let (row, summary) = row?;
            if !row.value().starts_with(&prefix) || contexts.len() >= MAX_LIST {
                break;
            }
            if row.value().get(SHAPE_AT) == Some(&(Shape::Context as u8)) {
                let summary = serde_json::from_slice(summary.value())
                    .map_err(|_| ViewError::Damaged("a context's summary"))?;
                contexts.push(summary);
            }
        }
        contexts
            .sort_by_key(|context: &ContextSummary| std::cmp::Reverse((context.hlc, context.doc)));
        Ok(contexts)
    }

    fn read_files(&self, space: &SpaceId) -> Result<Vec<FileSummary>, ViewError> {
        let tables = self.shared.store.read()?;
        let mut prefix = space.as_bytes().to_vec();
        prefix.push(Shape::File as u8);
        let mut files = Vec::new();
        for row in tables.summaries.range(&prefix[..]..)? {
            let (row, summary) = row?;
            if !row.value().starts_with(&prefix) || files.len() >= MAX_FILES {
                break;
            }
            let file: FileSummary = serde_json::from_slice(summary.value())
                .map_err(|_| ViewError::Damaged("a file's summary"))?;
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

/// Reads one item, with what replaces it.
fn item(tables: &ReadTables, key: &DocKey) -> Result<Option<MemoryItem>, ViewError> {
    let Some(row) = tables.items.get(&key.to_bytes()[..])? else {
        return Ok(None);
    };
    let mut item = decode_item(row.value())?;
    let prefix = superseded_prefix(key, &key.doc);
    for (row, _) in with_prefix(&tables.superseded, &prefix, MAX_SUPERSEDED_BY)? {
        item.superseded_by.push(doc_at(&row, 64)?);
    }
    Ok(Some(item))
}

/// Returns whether this is a file that was deleted; why and watch still show it.
fn is_deleted(item: &MemoryItem) -> bool {
    item.kind == Kind::File && item.fields.contains_key(RETRACTED)
}

fn shape_of(kind: &[u8]) -> Shape {
    match kind {
        [number] => Kind::from_number(*number).map_or(Shape::Memory, Shape::of),
        _ => Shape::Memory,
    }
}

fn newest(items: &mut Vec<MemoryItem>, limit: usize) {
    items.sort_by_key(|item| std::cmp::Reverse((item.hlc, item.doc)));
    items.truncate(limit);
}

fn doc_at(row: &[u8], at: usize) -> Result<DocId, ViewError> {
    id_at(row, at).map(DocId::from_bytes)
}

fn id_at(row: &[u8], at: usize) -> Result<[u8; 32], ViewError> {
    let bytes = row
        .get(at..at + 32)
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    bytes.ok_or(ViewError::Damaged("a row of the view"))
}
