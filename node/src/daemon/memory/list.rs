//! Listing memories, a page at a time.
use data_encoding::BASE64URL_NOPAD;
use rhizome_identity::SpaceId;
use rhizome_memory::{ListPlace, ListQuery, MemoryItem};

use super::{
    super::{
        caller::Caller,
        fail,
        node::{Node, blocking},
    },
    parse_kind,
};
use crate::{
    api::{
        page::Cursor,
        types::{
            SCHEMA,
            memory::{ListParams, MemoryList},
        },
    },
    error::ApiError,
};

/// Memories of a page that says no limit.
const DEFAULT_PAGE: usize = 50;
/// The most memories of a page.
const MAX_PAGE: usize = 1_000;
/// Memories read at a time where all of a family are wanted.
const FAMILY_PAGE: usize = 4_096;

impl Node {
    /// Lists memories: newest first, or in the order of their keys.
    pub(crate) async fn list(
        &self,
        caller: &Caller,
        params: ListParams,
    ) -> Result<MemoryList, ApiError> {
        let scope = caller.readable(self, params.space.as_deref())?;
        let kind = params.kind.as_deref().map(parse_kind).transpose()?;
        self.note_distrust();
        let cursor = params.cursor.as_deref().map(Cursor::parse).transpose()?;
        let told = cursor.as_ref().map_or(0, |cursor| cursor.told);
        let query = ListQuery {
            spaces: Some(scope.0),
            kind,
            task: params.task,
            key_prefixes: params.key_prefix.map(|prefix| vec![prefix]),
            after: cursor.as_ref().map(place).transpose()?,
            limit: params.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE),
        };
        let replica = self.replica.clone();
        let page = blocking(move || replica.page(&query))
            .await?
            .map_err(fail::replica)?;
        let next = page.next.map(|next| Cursor {
            told: told.saturating_add(page.items.len()),
            key: BASE64URL_NOPAD.encode(&next.to_bytes()),
        });
        let authority = self.replica.authority();
        let memories = page
            .items
            .into_iter()
            .map(|item| self.memory_of(&authority, item))
            .collect();
        let memories = self.compare(caller, memories, |memory| memory).await?;
        Ok(MemoryList {
            schema: SCHEMA,
            next: next.map(|cursor| cursor.encode()),
            memories,
        })
    }

    /// Returns every memory of these spaces whose key begins with one of `prefixes`, of any kind, in
    /// the order of the keys; for views, which read whole families of keys.
    pub(crate) async fn keyed(
        &self,
        spaces: Vec<SpaceId>,
        prefixes: Vec<String>,
    ) -> Result<Vec<MemoryItem>, ApiError> {
        self.note_distrust();
        let mut query = ListQuery {
            spaces: Some(spaces),
            key_prefixes: Some(prefixes),
            limit: FAMILY_PAGE,
            ..ListQuery::default()
        };
        let replica = self.replica.clone();
        blocking(move || {
            let mut items = Vec::new();
            loop {
                let page = replica.page(&query).map_err(fail::replica)?;
                items.extend(page.items);
                if page.next.is_none() {
                    return Ok(items);
                }
                query.after = page.next;
            }
        })
        .await?
    }
}

/// Returns where a page begins.
fn place(cursor: &Cursor) -> Result<ListPlace, ApiError> {
    let bytes = BASE64URL_NOPAD.decode(cursor.key.as_bytes()).ok();
    let place = bytes.and_then(|bytes| ListPlace::from_bytes(&bytes));
    place.ok_or_else(Cursor::foreign)
}
