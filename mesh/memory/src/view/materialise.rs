//! From a document to what readers get.

use automerge::Automerge;
use redb::ReadableTable;
use rhizome_identity::SpaceId;

use super::{
    ViewError,
    apply::{Fresh, Renewed},
    tables::Tables,
};
use crate::{
    ContextSummary, DocId, FileSummary, Hlc,
    document::{DocIndex, DocKey, Shape, context_summary, file_material, memory_item},
    item::MemoryItem,
    link::links,
    same::same_text_of,
};

/// What readers get of a document.
pub(super) enum Material {
    Context(Box<ContextSummary>),
    Memory(Box<MemoryItem>),
    File(Box<(MemoryItem, FileSummary)>),
}

/// Reads a document; `None` if it says nothing yet.
pub(super) fn read_material(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
) -> Option<Material> {
    match key.shape {
        Shape::Context => context_summary(key, document, index, &|_| true)
            .map(|summary| Material::Context(Box::new(summary))),
        Shape::Memory => {
            memory_item(key, document, index).map(|item| Material::Memory(Box::new(item)))
        }
        Shape::File => file_material(key, document, index, &|_| true)
            .map(|file| Material::File(Box::new(file))),
    }
}

/// Renews what is kept of a document that has changed.
pub(super) fn materialise(
    tables: &mut Tables<'_>,
    key: &DocKey,
    material: Option<Material>,
    generation: u64,
    fresh: &mut Fresh,
) -> Result<(), ViewError> {
    let row = &key.to_bytes()[..];
    match material {
        None => {}
        Some(Material::Context(summary)) => {
            let json = serde_json::to_vec(&summary).expect("a summary has string keys only");
            tables.summaries.insert(row, &json[..])?;
        }
        Some(Material::File(file)) => {
            let (item, summary) = *file;
            let json = serde_json::to_vec(&summary).expect("a summary has string keys only");
            tables.summaries.insert(row, &json[..])?;
            renew(tables, key, item, generation, fresh)?;
        }
        Some(Material::Memory(item)) => renew(tables, key, *item, generation, fresh)?,
    }
    Ok(())
}

/// Renews an item, and what it is found by.
fn renew(
    tables: &mut Tables<'_>,
    key: &DocKey,
    item: MemoryItem,
    generation: u64,
    fresh: &mut Fresh,
) -> Result<(), ViewError> {
    let row = &key.to_bytes()[..];
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
    for (gone, _) in before.iter().flat_map(links) {
        tables.superseded.remove(&superseded_row(key, &gone)[..])?;
    }
    for (other, link) in links(&item) {
        tables
            .superseded
            .insert(&superseded_row(key, &other)[..], &link.to_bytes()[..])?;
    }
    if before.is_none() {
        let kind = [item.kind.number()];
        if let Some(named) = &item.key {
            tables.keyed.insert(&keyed_row(key, named)[..], &kind[..])?;
        } else if let Some(same) = same_text_of(&item) {
            tables.same.insert(&same_row(key, &same)[..], &[][..])?;
        }
    }
    let json = serde_json::to_vec(&item).expect("an item has string keys only");
    tables.items.insert(row, &json[..])?;
    tables
        .unindexed
        .insert(row, &generation.to_be_bytes()[..])?;
    // Twice in one batch, it is as new as the first time.
    let is_new = before.is_none() || fresh.get(key).is_some_and(|first| first.is_new);
    let renewed = Renewed {
        generation,
        item,
        is_new,
    };
    fresh.insert(*key, renewed);
    Ok(())
}

/// Takes back all that is kept of a document for readers. The search index need not hear of it:
/// what it finds is looked up.
pub(super) fn withdraw(tables: &mut Tables<'_>, key: &DocKey) -> Result<(), ViewError> {
    let row = &key.to_bytes()[..];
    let before = tables
        .items
        .get(row)?
        .map(|row| decode_item(row.value()))
        .transpose()?;
    if let Some(before) = before {
        tables.order.remove(&order_row(key, before.hlc)[..])?;
        for (gone, _) in links(&before) {
            tables.superseded.remove(&superseded_row(key, &gone)[..])?;
        }
        if let Some(named) = &before.key {
            tables.keyed.remove(&keyed_row(key, named)[..])?;
        } else if let Some(same) = same_text_of(&before) {
            tables.same.remove(&same_row(key, &same)[..])?;
        }
    }
    tables.items.remove(row)?;
    tables.summaries.remove(row)?;
    tables.unindexed.remove(row)?;
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

/// Finds a document by its key; those of a space lie in the order of their keys.
fn keyed_row(key: &DocKey, named: &str) -> Vec<u8> {
    let mut row = keyed_prefix(&key.space, named);
    // Ends the key: one that begins another one comes before it.
    row.push(0);
    row.extend(key.doc.as_bytes());
    row
}

pub(crate) fn keyed_prefix(space: &SpaceId, prefix: &str) -> Vec<u8> {
    let mut row = space.as_bytes().to_vec();
    row.extend(prefix.as_bytes());
    row
}

/// Finds a document by what it says.
fn same_row(key: &DocKey, same: &[u8; 32]) -> Vec<u8> {
    let mut row = same_prefix(&key.space, same);
    row.extend(key.doc.as_bytes());
    row
}

pub(crate) fn same_prefix(space: &SpaceId, same: &[u8; 32]) -> Vec<u8> {
    let mut row = space.as_bytes().to_vec();
    row.extend(same);
    row
}

/// `key` says something of `replaced`.
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
