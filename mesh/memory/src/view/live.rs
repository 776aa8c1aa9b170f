//! A loaded document.

use automerge::{Automerge, Change};

use super::ViewError;
use crate::{
    ContextState,
    document::{ChangeMeta, DocIndex, DocKey, context_state, document_of_first, genesis},
    fence::{self, fenced},
};

/// Where a chunk of automerge says what it is, and what it says if it is a change.
const CHUNK_TYPE: usize = 8;
const CHANGE_CHUNK: u8 = 1;

/// A document and the index of its changes.
#[derive(Debug, Clone)]
pub(super) struct Live {
    form: Form,
    pub(super) index: DocIndex,
    /// Its size when it was last saved.
    pub(super) bytes: usize,
}

#[derive(Debug, Clone)]
enum Form {
    Document(Box<Automerge>),
    /// A memory of one change in the form that all have: that is all there is to save, and the
    /// document is built when somebody wants to go on with it.
    First(Box<Change>),
}

impl Live {
    /// Returns the document and the index of its changes.
    pub(super) fn parts(&mut self) -> Result<(&Automerge, &DocIndex), ViewError> {
        let damaged = ViewError::Damaged("a saved document");
        if let Form::First(change) = &self.form {
            let built = fenced(|| document_of_first(change)).and_then(|built| built);
            let Ok(document) = built else {
                return Err(damaged);
            };
            self.form = Form::Document(Box::new(document));
        }
        match &self.form {
            Form::Document(document) => Ok((document, &self.index)),
            Form::First(_) => Err(damaged),
        }
    }

    /// Puts another document in the place of this one.
    pub(super) fn replace(&mut self, document: Automerge) {
        self.form = Form::Document(Box::new(document));
    }

    /// Makes it a memory of one change, which has passed the fence and has the form of all firsts.
    pub(super) fn begin_with(&mut self, change: Change) {
        self.form = Form::First(Box::new(change));
    }

    /// Returns the whole state of the context this document is,
    /// as far as its changes count.
    pub(super) fn context_state(
        &self,
        key: &DocKey,
        counts: &dyn Fn(&ChangeMeta) -> bool,
    ) -> Result<Option<ContextState>, ViewError> {
        let Form::Document(document) = &self.form else {
            return Ok(None);
        };
        fenced(|| context_state(key, document, &self.index, counts))
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
                let index = DocIndex::decode(index);
                let index = index.ok_or(ViewError::Damaged("the index of a document"))?;
                let form = if saved.get(CHUNK_TYPE) == Some(&CHANGE_CHUNK) {
                    Form::First(Box::new(load_first(saved, &index)?))
                } else {
                    Form::Document(Box::new(load(saved, &index)?))
                };
                Ok(Self {
                    form,
                    index,
                    bytes: saved.len(),
                })
            }
            (None, None) => Ok(Self {
                form: Form::Document(Box::new(genesis(key.shape).document.clone())),
                index: DocIndex::default(),
                bytes: 0,
            }),
            _ => Err(ViewError::Damaged("half of a document")),
        }
    }
}

fn load(saved: &[u8], index: &DocIndex) -> Result<Automerge, ViewError> {
    let loaded = fenced(|| fence::load(saved)).and_then(|loaded| loaded);
    let document = loaded.map_err(|_| ViewError::Damaged("a saved document"))?;
    // A document and an index that were not saved together belong to no state there ever was.
    let mut heads = document.get_heads();
    heads.sort_unstable();
    let same = heads
        .iter()
        .map(|head| head.0)
        .eq(index.heads().into_iter().map(|head| index.at(head).hash));
    same.then_some(document)
        .ok_or(ViewError::Damaged("the index of a document"))
}

fn load_first(saved: &[u8], index: &DocIndex) -> Result<Change, ViewError> {
    let change = fenced(|| Change::from_bytes(saved.to_vec()).map_err(|error| error.to_string()));
    let change = change.and_then(|change| change);
    let change = change.map_err(|_| ViewError::Damaged("a saved document"))?;
    if index.len() == 1 && index.at(0).hash == change.hash().0 {
        Ok(change)
    } else {
        Err(ViewError::Damaged("the index of a document"))
    }
}
