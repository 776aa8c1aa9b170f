//! Taking fragments out of the view again: their documents are derived anew without them.

use std::collections::{BTreeMap, BTreeSet};

use redb::{Durability, ReadableTable};
use rhizome_identity::SpaceId;

use super::{
    Quarantined, View, ViewError,
    apply::{Applying, STATE_APPLIED, STATE_REFUSED, STATE_WAITING},
    documents::lock,
    materialise::withdraw,
    tables::{Tables, guarded},
};
use crate::{
    FragmentId, Reason,
    document::{DocIndex, DocKey},
};

impl View {
    /// Forgets these fragments and the documents that hold one of them; `gone` names each with the
    /// document that it claims to be of.
    ///
    /// Whatever else was applied to those documents, and whatever of their spaces was refused, is
    /// as if it had never been applied: apply it again. What was redacted stays so, unless it is
    /// among these.
    ///
    /// Returns whether there is anything to apply again.
    ///
    /// # Errors
    /// If the database fails; nothing is forgotten then.
    pub(crate) fn evict(&self, gone: &BTreeMap<FragmentId, DocKey>) -> Result<bool, ViewError> {
        if gone.is_empty() {
            return Ok(false);
        }
        let mut applying = self.applying();
        let evicted = guarded(|| self.evict_in(&mut applying, gone));
        if evicted.is_err() {
            self.documents.unload();
        }
        self.documents.note_committed();
        *self
            .tally
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = applying.tally();
        evicted
    }

    fn evict_in(
        &self,
        applying: &mut Applying,
        gone: &BTreeMap<FragmentId, DocKey>,
    ) -> Result<bool, ViewError> {
        let mut is_any = false;
        let mut is_more = false;
        let txn = self.shared.store.write(Durability::None)?;
        {
            let mut tables = Tables::open(&txn)?;
            let mut documents: BTreeSet<DocKey> = BTreeSet::new();
            for (id, key) in gone {
                let row = &id.as_bytes()[..];
                let state = tables.states.get(row)?.map(|state| state.value().to_vec());
                match state.as_deref() {
                    Some(STATE_APPLIED) => {
                        documents.insert(*key);
                    }
                    Some(STATE_WAITING) => {
                        // Later ones of its author may have waited for it to have its verdict.
                        is_more = true;
                        applying.forget_waiting(&mut tables, id)?;
                        tables.states.remove(row)?;
                    }
                    Some(STATE_REFUSED) => {
                        tables.refused.remove(row)?;
                        tables.states.remove(row)?;
                    }
                    _ => continue,
                }
                is_any = true;
            }
            for key in &documents {
                is_more |= self.forget_document(&mut tables, key, gone)?;
            }
            let spaces: BTreeSet<SpaceId> = if is_any {
                gone.values().map(|key| key.space).collect()
            } else {
                BTreeSet::new()
            };
            for space in spaces {
                is_more |= applying.forget_refused(&mut tables, &space)?;
            }
        }
        txn.commit()?;
        Ok(is_more)
    }

    /// Returns whether it held anything but what is `gone`.
    fn forget_document(
        &self,
        tables: &mut Tables<'_>,
        key: &DocKey,
        gone: &BTreeMap<FragmentId, DocKey>,
    ) -> Result<bool, ViewError> {
        let cell = self.documents.cell(key);
        // Whoever composes on it waits, and nobody else.
        let mut document = lock(&cell);
        self.documents.note_uncommitted(*key);
        document.live = None;
        document.tip = None;
        let row = &key.to_bytes()[..];
        let index = tables.index.get(row)?.map(|row| row.value().to_vec());
        let index = index.as_deref().map(DocIndex::decode);
        let index = index.map(|index| index.ok_or(ViewError::Damaged("the index of a document")));
        let mut is_more = false;
        if let Some(index) = index.transpose()? {
            for change in index.changes() {
                is_more |= !gone.contains_key(&change.fragment);
                tables.states.remove(&change.fragment.as_bytes()[..])?;
            }
        }
        tables.saved.remove(row)?;
        tables.index.remove(row)?;
        withdraw(tables, key)?;
        drop(document);
        self.documents.keep(key, 0);
        Ok(is_more)
    }

    /// Returns whether something that is here waits for this fragment.
    pub(crate) fn is_awaited(&self, id: &FragmentId) -> bool {
        !self.applying().waiting.woken_by(id).is_empty()
    }
}

impl Applying {
    /// Forgets what was refused in a space: it may have been for the sake of what is gone. Returns
    /// whether that was anything.
    fn forget_refused(
        &mut self,
        tables: &mut Tables<'_>,
        space: &SpaceId,
    ) -> Result<bool, ViewError> {
        let mut of_space = Vec::new();
        for row in tables.refused.iter()? {
            let (id, row) = row?;
            let refused: Quarantined = serde_json::from_slice(row.value())
                .map_err(|_| ViewError::Damaged("a refused fragment"))?;
            if refused.space == *space && refused.reason != Reason::Redacted {
                of_space.push(id.value().to_vec());
            }
        }
        let is_any = !of_space.is_empty();
        for id in of_space {
            tables.refused.remove(&id[..])?;
            let state = tables
                .states
                .get(&id[..])?
                .map(|state| state.value().to_vec());
            if state.as_deref() == Some(STATE_REFUSED) {
                tables.states.remove(&id[..])?;
            }
        }
        self.refused.remove(space);
        Ok(is_any)
    }
}
