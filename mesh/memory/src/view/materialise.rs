//! From a document to what readers get.

use std::collections::BTreeSet;

use automerge::Automerge;
use redb::ReadableTable;

use super::{ViewError, apply::Fresh, live::Live, tables::Tables};
use crate::{
    DocId, Hlc,
    document::{DocIndex, DocKey, Shape, context_summary, memory_item},
    item::MemoryItem,
};

/// Reads a document as [`materialise`] will, to see whether it can be read.
pub(super) fn probe(key: &DocKey, document: &Automerge, index: &DocIndex) {
    match key.shape {
        Shape::Context => drop(context_summary(key, document, index)),
        Shape::Memory => drop(memory_item(key, document, index)),
    }
}

/// Renews what is kept of a document that has changed.
pub(super) fn materialise(
    tables: &mut Tables<'_>,
    key: &DocKey,
    live: &Live,
    generation: u64,
    fresh: &mut Fresh,
) -> Result<(), ViewError> {
    let row = &key.to_bytes()[..];
    match key.shape {
        Shape::Context => {
            if let Some(summary) = context_summary(key, &live.document, &live.index) {
                let json = serde_json::to_vec(&summary).expect("a summary has string keys only");
                tables.summaries.insert(row, &json[..])?;
            }
        }
        Shape::Memory => {
            let Some(item) = memory_item(key, &live.document, &live.index) else {
                return Ok(());
            };
            let before = tables
                .items
                .get(row)?
                .map(|row| decode_item(row.value()))
                .transpose()?;
            if let Some(before) = &before {
                tables.order.remove(&order_row(key, before.hlc)[..])?;
            }
            tables
                .order
                .insert(&order_row(key, item.hlc)[..], &[item.kind.number()][..])?;
            let links =
                |item: &MemoryItem| item.supersedes.iter().copied().collect::<BTreeSet<DocId>>();
            for gone in before.iter().flat_map(links) {
                tables.superseded.remove(&superseded_row(key, &gone)[..])?;
            }
            for replaced in links(&item) {
                if replaced != item.doc {
                    tables
                        .superseded
                        .insert(&superseded_row(key, &replaced)[..], &[][..])?;
                }
            }
            let json = serde_json::to_vec(&item).expect("an item has string keys only");
            tables.items.insert(row, &json[..])?;
            tables
                .unindexed
                .insert(row, &generation.to_be_bytes()[..])?;
            fresh.insert(*key, (generation, item));
        }
    }
    Ok(())
}

pub(crate) fn decode_item(row: &[u8]) -> Result<MemoryItem, ViewError> {
    serde_json::from_slice(row).map_err(|_| ViewError::Damaged("a memory item"))
}

/// Sorts the items of a space from the newest.
fn order_row(key: &DocKey, hlc: Hlc) -> Vec<u8> {
    let mut row = key.space.as_bytes().to_vec();
    row.extend((!hlc.as_u64()).to_be_bytes());
    row.extend(key.doc.as_bytes());
    row
}

/// `key` replaces `replaced`.
fn superseded_row(key: &DocKey, replaced: &DocId) -> Vec<u8> {
    let mut row = superseded_prefix(key, replaced);
    row.extend(key.doc.as_bytes());
    row
}

pub(crate) fn superseded_prefix(key: &DocKey, replaced: &DocId) -> Vec<u8> {
    let mut row = key.space.as_bytes().to_vec();
    row.extend(replaced.as_bytes());
    row
}
