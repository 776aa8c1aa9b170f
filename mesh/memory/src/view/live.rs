//! Documents kept loaded, a bounded number of them.

use std::collections::BTreeMap;

use automerge::Automerge;

use super::ViewError;
use crate::{
    ContextState,
    document::{DocIndex, DocKey, context_state, genesis},
    fence::{self, fenced},
};

/// Most documents kept loaded; a small one takes 19 KiB.
const MAX_LIVE: usize = 256;
/// Most bytes, as saved, of the documents kept loaded.
const MAX_LIVE_BYTES: usize = 32 * 1024 * 1024;

/// A loaded document and the index of its changes.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) document: Automerge,
    pub(super) index: DocIndex,
    /// Its size when it was last saved.
    pub(super) bytes: usize,
}

impl Live {
    /// Returns the whole state of the context this document is.
    pub(super) fn context_state(&self, key: &DocKey) -> Result<Option<ContextState>, ViewError> {
        fenced(|| context_state(key, &self.document, &self.index))
            .map_err(|_| ViewError::Damaged("a context"))
    }

    /// Loads a document from its rows, or begins it.
    pub(super) fn from_rows(
        key: &DocKey,
        saved: Option<&[u8]>,
        index: Option<&[u8]>,
    ) -> Result<Self, ViewError> {
        match (saved, index) {
            (Some(saved), Some(index)) => {
                let loaded = fenced(|| fence::load(saved)).and_then(|loaded| loaded);
                let document = loaded.map_err(|_| ViewError::Damaged("a saved document"))?;
                let index = DocIndex::decode(index).filter(|index| same_heads(&document, index));
                let index = index.ok_or(ViewError::Damaged("the index of a document"))?;
                Ok(Self {
                    document,
                    index,
                    bytes: saved.len(),
                })
            }
            (None, None) => {
                let document = genesis(key.shape).document.clone();
                Ok(Self {
                    document,
                    index: DocIndex::default(),
                    bytes: 0,
                })
            }
            _ => Err(ViewError::Damaged("half of a document")),
        }
    }
}

/// A document and an index that were not saved together belong to no state there ever was.
fn same_heads(document: &Automerge, index: &DocIndex) -> bool {
    let mut heads = document.get_heads();
    heads.sort_unstable();
    heads
        .iter()
        .map(|head| head.0)
        .eq(index.heads().into_iter().map(|head| index.at(head).hash))
}

/// The documents used last.
#[derive(Debug, Default)]
pub(super) struct LiveDocuments {
    documents: BTreeMap<DocKey, (u64, Live)>,
    clock: u64,
    bytes: usize,
}

impl LiveDocuments {
    pub(super) fn take(&mut self, key: &DocKey) -> Option<Live> {
        let (_, live) = self.documents.remove(key)?;
        self.bytes -= live.bytes;
        Some(live)
    }

    pub(super) fn peek(&self, key: &DocKey) -> Option<&Live> {
        self.documents.get(key).map(|(_, live)| live)
    }

    pub(super) fn put(&mut self, key: DocKey, live: Live) {
        self.clock += 1;
        self.bytes += live.bytes;
        if let Some((_, before)) = self.documents.insert(key, (self.clock, live)) {
            self.bytes -= before.bytes;
        }
        while self.documents.len() > MAX_LIVE
            || (self.bytes > MAX_LIVE_BYTES && self.documents.len() > 1)
        {
            let oldest = self
                .documents
                .iter()
                .min_by_key(|(_, (used, _))| *used)
                .map(|(key, _)| *key);
            self.take(&oldest.expect("there is more than one document"));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
