//! Taking what was redacted out of the view's files.
//!
//! What a database or a search index deletes stays in its file until something else is written there.
//! So after an eviction the database is copied, row by row, into a new file that takes the place of
//! the old one, and the segments of the search index that held one of the documents are merged anew.
//! Either may be repeated: a crash in between costs that and nothing else.

use std::collections::BTreeSet;

use redb::ReadableTable;
use rhizome_identity::SpaceId;

use super::{Applied, Quarantined, View, ViewError, materialise::decode_item, tables::guarded};
use crate::{
    DocId, FragmentId, Reason,
    document::{DocIndex, DocKey, Shape},
};

impl View {
    /// Rewrites the files of the view so that they hold nothing of what these documents said before
    /// they were evicted.
    ///
    /// # Errors
    /// If the database or the index fails; what was there stays then, and goes on being used.
    pub(crate) fn purge(&self, documents: &BTreeSet<DocKey>) -> Result<(), ViewError> {
        // Nobody writes meanwhile; readers go on with the old file until the new one is there.
        let _applying = self.applying();
        let _settling = self.shared.settling();
        guarded(|| {
            // What somebody has said there since is to be found as before.
            let tables = self.shared.store.read()?;
            let mut said = Vec::new();
            for key in documents {
                if let Some(row) = tables.items.get(&key.to_bytes()[..])? {
                    said.push((*key, decode_item(row.value())?));
                }
            }
            drop(tables);
            self.shared
                .search
                .purge(documents, &said)
                .map_err(|error| ViewError::Index(Box::new(error)))?;
            self.shared.store.rewrite()
        })
    }

    /// Returns whether a fragment was told of as one whose body was redacted.
    pub(crate) fn is_redacted(&self, id: &FragmentId) -> bool {
        self.state(id) == Some(Applied::Quarantined(Reason::Redacted))
    }

    /// Returns whether the view may hold something of what a fragment says.
    pub(crate) fn has_seen(&self, id: &FragmentId) -> bool {
        let state = self.state(id);
        state.is_some_and(|state| state != Applied::Quarantined(Reason::Redacted))
    }

    /// Returns the fragments that may be of a document: those applied to it, those that wait, and
    /// all that were refused in the space.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) fn fragments_of(
        &self,
        space: &SpaceId,
        doc: &DocId,
    ) -> Result<BTreeSet<FragmentId>, ViewError> {
        let mut found: BTreeSet<FragmentId> = self.applying().waiting.of_document(space, doc);
        guarded(|| {
            let tables = self.shared.store.read()?;
            for shape in [Shape::Memory, Shape::Context, Shape::File] {
                let key = DocKey {
                    space: *space,
                    shape,
                    doc: *doc,
                };
                if let Some(row) = tables.index.get(&key.to_bytes()[..])? {
                    let index = DocIndex::decode(row.value());
                    let index = index.ok_or(ViewError::Damaged("the index of a document"))?;
                    found.extend(index.changes().iter().map(|change| change.fragment));
                }
            }
            for row in tables.refused.iter()? {
                let refused: Quarantined = serde_json::from_slice(row?.1.value())
                    .map_err(|_| ViewError::Damaged("a refused fragment"))?;
                if refused.space == *space && refused.reason != Reason::Redacted {
                    found.insert(refused.id);
                }
            }
            Ok(found)
        })
    }
}
