//! Listing memories, a page at a time.
//!
//! A list is a walk along one table: that of the moments, from the newest, or that of the keys, if
//! only some keys are wanted. Both begin their rows with the space; what follows it says where a
//! memory stands, so that the rows of several spaces merge into one list, and a page goes on at the
//! row where the page before ended, however far along that is.

use redb::{Range, ReadableTable};
use rhizome_identity::SpaceId;

use super::{
    View, ViewError,
    materialise::keyed_prefix,
    read::{Reader, doc_at, id_at, item},
    tables::ReadTables,
};
use crate::{
    Kind, MemoryItem,
    document::{DocKey, Shape},
    standing::{Judge, all_trusted},
};

/// Items of one answer, at most.
const MAX_LIST: usize = 10_000;
/// Items of one answer, if the question does not say.
const DEFAULT_LIST: usize = 50;
/// Bytes of a space at the beginning of a row, and of a document at its end.
const ID: usize = 32;
/// The longest place that is read back.
const MAX_PLACE: usize = 2_048;

/// Which memories to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// The spaces to look in, with none of them nothing is found; all if it is absent.
    pub spaces: Option<Vec<SpaceId>>,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only of this task.
    pub task: Option<String>,
    /// Only those whose key begins with one of these; they come in the order of their keys.
    pub key_prefixes: Option<Vec<String>>,
    /// Only what follows this place: [`ListPage::next`] of the page before.
    pub after: Option<ListPlace>,
    /// Most items wanted; 0 means 50.
    pub limit: usize,
}

/// A piece of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// The memories: the newest first, or in the order of their keys.
    pub items: Vec<MemoryItem>,
    /// Where the next page begins, if there is one.
    pub next: Option<ListPlace>,
    /// Rows of the list that were looked at for it.
    pub rows_read: usize,
}

/// Where a memory stands in a list.
///
/// It holds for the same question alone; asked another one, what follows it is another list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace {
    /// What follows the space in the row: the moment or the key, and the document.
    rest: Vec<u8>,
    space: SpaceId,
}

impl ListPlace {
    fn of(row: &[u8]) -> Result<Self, ViewError> {
        let space = SpaceId::from_bytes(id_at(row, 0)?);
        let rest = row.get(ID..).unwrap_or_default().to_vec();
        Ok(Self { rest, space })
    }

    /// Returns the bytes that [`Self::from_bytes`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.space.as_bytes(), &self.rest[..]].concat()
    }

    /// Reads what [`Self::to_bytes`] wrote; `None` if it is nothing like that.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if !(2 * ID..=MAX_PLACE).contains(&bytes.len()) {
            return None;
        }
        Self::of(bytes).ok()
    }
}

impl View {
    /// Lists memories, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ViewError> {
        self.reader().list(query)
    }

    /// Lists memories, with the place where the list goes on.
    ///
    /// # Errors
    /// If the database fails.
    pub fn page(&self, query: &ListQuery) -> Result<ListPage, ViewError> {
        self.reader().page_judged(query, &all_trusted)
    }
}

impl Reader {
    /// Lists memories, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ViewError> {
        self.page_judged(query, &all_trusted).map(|page| page.items)
    }

    /// Lists memories, as far as their authors are taken at their word.
    pub(crate) fn page_judged(
        &self,
        query: &ListQuery,
        judge: Judge<'_>,
    ) -> Result<ListPage, ViewError> {
        self.guarded(|| read_page(&self.shared.store.read()?, query, judge))
    }
}

fn read_page(
    tables: &ReadTables,
    query: &ListQuery,
    judge: Judge<'_>,
) -> Result<ListPage, ViewError> {
    let limit = match query.limit {
        0 => DEFAULT_LIST,
        limit => limit.min(MAX_LIST),
    };
    let mut walks = Vec::new();
    for space in wanted_spaces(tables, query)? {
        match &query.key_prefixes {
            None => walks.extend(Walk::begin(&tables.order, query, space, "")?),
            Some(prefixes) => {
                for prefix in prefixes {
                    walks.extend(Walk::begin(&tables.keyed, query, space, prefix)?);
                }
            }
        }
    }
    let mut page = ListPage {
        items: Vec::new(),
        next: None,
        rows_read: 0,
    };
    let mut last = None;
    // The first row of all walks is the next of the list.
    while let Some(at) = (0..walks.len()).min_by(|a, b| walks[*a].at.cmp(&walks[*b].at)) {
        let (place, key, is_unwanted) = walks[at].here(query)?;
        if !walks[at].go_on()? {
            walks.swap_remove(at);
        }
        page.rows_read += 1;
        // A key may begin with several of the prefixes.
        if is_unwanted || last.as_ref() == Some(&place) {
            continue;
        }
        let Some((found, _)) = item(tables, &key, judge)? else {
            continue;
        };
        if found.retracted || !is_wanted(query, &found) {
            continue;
        }
        if page.items.len() == limit {
            page.next = last;
            break;
        }
        page.items.push(found);
        last = Some(place);
    }
    Ok(page)
}

/// Returns the spaces to look in: those that are asked for, or all that have a row.
fn wanted_spaces(tables: &ReadTables, query: &ListQuery) -> Result<Vec<SpaceId>, ViewError> {
    if let Some(spaces) = &query.spaces {
        let mut spaces = spaces.clone();
        spaces.sort_unstable();
        spaces.dedup();
        return Ok(spaces);
    }
    let mut spaces: Vec<SpaceId> = Vec::new();
    loop {
        let from = match spaces.last() {
            // After every row of that space: they are a moment and a document longer than it.
            Some(space) => [space.as_bytes(), &[0xff; 2 * ID][..]].concat(),
            None => Vec::new(),
        };
        let Some(row) = tables.order.range(&from[..]..)?.next() else {
            return Ok(spaces);
        };
        spaces.push(SpaceId::from_bytes(id_at(row?.0.value(), 0)?));
    }
}

/// A walk along the rows of one space.
struct Walk<'a> {
    rows: Range<'a, &'static [u8], &'static [u8]>,
    /// What every row begins with.
    prefix: Vec<u8>,
    at: ListPlace,
    kind: Vec<u8>,
}

impl<'a> Walk<'a> {
    /// Begins where `query` does among the rows that begin with `prefix`; `None` if the space has
    /// none there.
    fn begin(
        table: &'a impl ReadableTable<&'static [u8], &'static [u8]>,
        query: &ListQuery,
        space: SpaceId,
        prefix: &str,
    ) -> Result<Option<Self>, ViewError> {
        let prefix = keyed_prefix(&space, prefix);
        let mut from = prefix.clone();
        if let Some(after) = &query.after {
            let row = [space.as_bytes(), &after.rest[..]].concat();
            from = from.max(row);
        }
        let mut walk = Self {
            rows: table.range(&from[..]..)?,
            prefix,
            at: ListPlace {
                rest: Vec::new(),
                space,
            },
            kind: Vec::new(),
        };
        while walk.go_on()? {
            if query.after.as_ref().is_none_or(|after| walk.at > *after) {
                return Ok(Some(walk));
            }
        }
        Ok(None)
    }

    /// Goes to the next row; `false` if there is none.
    fn go_on(&mut self) -> Result<bool, ViewError> {
        let Some(row) = self.rows.next() else {
            return Ok(false);
        };
        let (row, kind) = row?;
        if !row.value().starts_with(&self.prefix) {
            return Ok(false);
        }
        self.at = ListPlace::of(row.value())?;
        self.kind = kind.value().to_vec();
        Ok(true)
    }

    /// Returns the row at which the walk is, and whether it is none that the list wants; records
    /// are in none unasked.
    fn here(&self, query: &ListQuery) -> Result<(ListPlace, DocKey, bool), ViewError> {
        let rest = &self.at.rest;
        let kind = match self.kind[..] {
            [number] => Kind::from_number(number),
            _ => None,
        };
        let key = DocKey {
            space: self.at.space,
            shape: kind.map_or(Shape::Memory, Shape::of),
            doc: doc_at(rest, rest.len().saturating_sub(ID))?,
        };
        let is_unwanted = match query.kind {
            Some(wanted) => kind != Some(wanted),
            None => kind.is_some_and(Kind::is_record),
        };
        Ok((self.at.clone(), key, is_unwanted))
    }
}

fn is_wanted(query: &ListQuery, item: &MemoryItem) -> bool {
    // The document follows the key in the row, and a prefix may be meant for both.
    let begins = |prefix: &String| item.key.as_ref().is_some_and(|key| key.starts_with(prefix));
    let is_keyed = match &query.key_prefixes {
        None => true,
        Some(prefixes) => prefixes.iter().any(begins),
    };
    is_keyed && (query.task.is_none() || item.task == query.task)
}
