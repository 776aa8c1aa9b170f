//! Where each record is: a redb table beside the segments, and what is newer in memory.
//!
//! The index can be deleted at any time. It remembers how far into the segments it reaches, so
//! opening reads only what came later; a sum over all its rows tells a damaged index from a good
//! one, and any doubt has it built anew. If the database fails while it is in use, the rows stay
//! in memory.

mod row;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    mem::ManuallyDrop,
    panic,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rhizome_identity::Hash;
use tracing::warn;

pub(crate) use self::row::{Row, RowKind};
use super::log::Place;
use crate::Hlc;

/// Rows by arrival.
const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");
/// Arrivals by id.
const IDS: TableDefinition<'_, &[u8; 32], u64> = TableDefinition::new("ids");
/// One row: how far the index reaches.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const PLACE: &str = "place";
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// How many rows wait in memory before they are written.
pub(crate) const FLUSH_ROWS: usize = 8192;

/// Where each record is.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    inner: RwLock<Inner>,
    /// One flush at a time.
    flushing: Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    db: Option<Database>,
    sum: Sum,
    /// Rows that are not in the database yet.
    rows: BTreeMap<u64, Row>,
    ids: HashMap<Hash, u64>,
}

impl Inner {
    /// Closes the database, which may trip over damage of its file only now.
    fn drop_db(&mut self) {
        if let Some(db) = self.db.take() {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(db)));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.drop_db();
    }
}

/// How far an index reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reach {
    pub(crate) place: Place,
    /// The greatest clock among the rows that moved ours.
    pub(crate) hlc: Hlc,
}

impl Index {
    /// Opens the index in `path`, handing each row to `row` in the order of arrival.
    ///
    /// Returns no reach if it has to be built anew; what `row` was handed then is void.
    pub(crate) fn open(path: &Path, row: impl FnMut(&Row)) -> (Self, Option<Reach>) {
        let row = AssertUnwindSafe(row);
        // A damaged file may trip an assertion inside the database.
        let opened = panic::catch_unwind(|| {
            let AssertUnwindSafe(row) = { row };
            load(path, row)
        });
        let (db, sum, reach) = match opened {
            Ok(Ok(Some((db, sum, reach)))) => (Some(db), sum, Some(reach)),
            Ok(Ok(None)) => (None, Sum::default(), None),
            Ok(Err(error)) => {
                warn!(%error, "the index of the store is unusable and is built anew");
                (None, Sum::default(), None)
            }
            Err(_) => {
                warn!("the index of the store is damaged and is built anew");
                (None, Sum::default(), None)
            }
        };
        let inner = Inner {
            db,
            sum,
            rows: BTreeMap::new(),
            ids: HashMap::new(),
        };
        (
            Self {
                path: path.to_owned(),
                inner: RwLock::new(inner),
                flushing: Mutex::new(()),
            },
            reach,
        )
    }

    /// Throws away what is in the file and starts an empty one.
    pub(crate) fn reset(&self) {
        let mut inner = self.write();
        inner.drop_db();
        inner.sum = Sum::default();
        inner.rows.clear();
        inner.ids.clear();
        let created = panic::catch_unwind(|| {
            let _ = fs::remove_file(&self.path);
            create(&self.path)
        });
        match created {
            Ok(Ok(db)) => inner.db = Some(db),
            Ok(Err(error)) => {
                warn!(%error, "the index of the store cannot be written and stays in memory");
            }
            Err(_) => warn!("the index of the store cannot be written and stays in memory"),
        }
    }

    /// Adds a row.
    pub(crate) fn insert(&self, row: Row) {
        let mut inner = self.write();
        if row.kind.has_id() {
            inner.ids.insert(row.id, row.arrival);
        }
        inner.rows.insert(row.arrival, row);
    }

    /// Returns the row of a fragment or an authority record.
    pub(crate) fn find(&self, id: &Hash) -> Option<Row> {
        let inner = self.read();
        if let Some(arrival) = inner.ids.get(id) {
            return inner.rows.get(arrival).cloned();
        }
        let db = inner.db.as_ref()?;
        let found = self.checked(|| {
            let read = db.begin_read()?;
            let Some(arrival) = read.open_table(IDS)?.get(id.as_bytes())? else {
                return Ok(None);
            };
            row_at(&read, arrival.value())
        });
        // Of a row under another id nothing can be believed.
        found.flatten().filter(|row| row.id == *id)
    }

    /// Returns up to `limit` rows that arrived after `after`, in order.
    pub(crate) fn after(&self, after: u64, limit: usize) -> Vec<Row> {
        let inner = self.read();
        let Some(first) = after.checked_add(1) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        if let Some(db) = &inner.db {
            let found = self.checked(|| {
                let read = db.begin_read()?;
                let table = read.open_table(ROWS)?;
                let mut rows = Vec::new();
                for entry in table.range(first..)?.take(limit) {
                    let (arrival, bytes) = entry?;
                    rows.extend(Row::read(arrival.value(), bytes.value()));
                }
                Ok(rows)
            });
            rows = found.unwrap_or_default();
        }
        let missing = limit.saturating_sub(rows.len());
        let first = rows.last().map_or(first, |row| row.arrival + 1);
        rows.extend(
            inner
                .rows
                .range(first..)
                .take(missing)
                .map(|(_, row)| row.clone()),
        );
        rows
    }

    /// Returns whether enough rows wait in memory to be worth writing.
    pub(crate) fn is_due(&self) -> bool {
        self.read().rows.len() >= FLUSH_ROWS
    }

    /// Writes the rows that wait in memory. `reach` has to cover exactly the rows up to its arrival
    /// and all of that has to be durable in the segments.
    pub(crate) fn flush(&self, reach: Reach) {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let (rows, sum) = {
            let inner = self.read();
            if inner.db.is_none() {
                return;
            }
            let rows: Vec<Row> = inner
                .rows
                .range(..=reach.place.arrival)
                .map(|(_, row)| row.clone())
                .collect();
            let mut sum = inner.sum;
            rows.iter().for_each(|row| sum.add(row));
            (rows, sum)
        };
        let written = {
            let inner = self.read();
            let Some(db) = &inner.db else { return };
            panic::catch_unwind(AssertUnwindSafe(|| store(db, &rows, sum, reach)))
        };
        let mut inner = self.write();
        match written {
            Ok(Ok(())) => {
                inner.sum = sum;
                for row in &rows {
                    inner.rows.remove(&row.arrival);
                    inner.ids.remove(&row.id);
                }
            }
            // The rows stay in memory; the file, if it is whole, is brought up to date next time.
            Ok(Err(error)) => warn!(%error, "the index of the store cannot be written"),
            Err(_) => warn!("the index of the store cannot be written"),
        }
    }

    /// Reads from the database; on any failure has the index built anew by the next start.
    fn checked<T>(&self, read: impl FnOnce() -> Result<T, redb::Error>) -> Option<T> {
        let error = match panic::catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it is damaged".to_owned(),
        };
        warn!(
            error,
            "the index of the store cannot be read; the next start builds it anew"
        );
        let _ = fs::write(doubt(&self.path), b"");
        None
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sum over rows that does not depend on their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum(u128);

impl Sum {
    fn add(&mut self, row: &Row) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&row.arrival.to_be_bytes());
        hasher.update(&row.to_bytes());
        let hash = hasher.finalize();
        let part = u128::from_be_bytes(hash.as_bytes()[..16].try_into().expect("16 bytes"));
        self.0 = self.0.wrapping_add(part);
    }
}

type Loaded = (Database, Sum, Reach);

fn load(path: &Path, mut row: impl FnMut(&Row)) -> Result<Option<Loaded>, redb::Error> {
    let doubt = doubt(path);
    if doubt.exists() {
        let _ = fs::remove_file(doubt);
        return Ok(None);
    }
    if !path.exists() {
        return Ok(None);
    }
    // Left alone if the reading panics: dropping it then might panic as well, and that would abort.
    let db = ManuallyDrop::new(Database::builder().set_cache_size(CACHE_BYTES).open(path)?);
    let loaded = load_rows(&db, &mut row);
    let db = ManuallyDrop::into_inner(db);
    Ok(loaded?.map(|(sum, reach)| (db, sum, reach)))
}

fn load_rows(
    db: &Database,
    row: &mut impl FnMut(&Row),
) -> Result<Option<(Sum, Reach)>, redb::Error> {
    let read = db.begin_read()?;
    let Some((reach, expected)) = read
        .open_table(META)?
        .get(PLACE)?
        .and_then(|bytes| read_meta(bytes.value()))
    else {
        return Ok(None);
    };
    let mut sum = Sum::default();
    for entry in read.open_table(ROWS)?.iter()? {
        let (arrival, bytes) = entry?;
        let Some(found) = Row::read(arrival.value(), bytes.value()) else {
            return Ok(None);
        };
        sum.add(&found);
        row(&found);
    }
    Ok((sum == expected).then_some((sum, reach)))
}

/// Returns the file whose presence says that the index is not to be believed.
fn doubt(path: &Path) -> PathBuf {
    path.with_extension("doubtful")
}

fn create(path: &Path) -> Result<Database, redb::Error> {
    let db = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create(path)?;
    let write = db.begin_write()?;
    write.open_table(ROWS)?;
    write.open_table(IDS)?;
    write.open_table(META)?.insert(
        PLACE,
        write_meta(Reach::default(), Sum::default()).as_slice(),
    )?;
    write.commit()?;
    Ok(db)
}

fn store(db: &Database, rows: &[Row], sum: Sum, reach: Reach) -> Result<(), redb::Error> {
    let write = db.begin_write()?;
    {
        let mut table = write.open_table(ROWS)?;
        let mut ids = write.open_table(IDS)?;
        for row in rows {
            table.insert(row.arrival, row.to_bytes().as_slice())?;
            if row.kind.has_id() {
                ids.insert(row.id.as_bytes(), row.arrival)?;
            }
        }
        write
            .open_table(META)?
            .insert(PLACE, write_meta(reach, sum).as_slice())?;
    }
    write.commit()?;
    Ok(())
}

fn row_at(read: &redb::ReadTransaction, arrival: u64) -> Result<Option<Row>, redb::Error> {
    let table = read.open_table(ROWS)?;
    let bytes = table.get(arrival)?;
    Ok(bytes.and_then(|bytes| Row::read(arrival, bytes.value())))
}

/// The format of the index; another one is thrown away.
const VERSION: u8 = 1;

fn write_meta(reach: Reach, sum: Sum) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&reach.place.segment.to_be_bytes());
    for number in [
        reach.place.offset,
        reach.place.batch,
        reach.place.arrival,
        reach.hlc.as_u64(),
    ] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.extend_from_slice(&sum.0.to_be_bytes());
    let check = blake3::hash(&bytes);
    bytes.extend_from_slice(&check.as_bytes()[..16]);
    bytes
}

fn read_meta(bytes: &[u8]) -> Option<(Reach, Sum)> {
    let (fields, check) = bytes.split_at_checked(1 + 4 + 4 * 8 + 16)?;
    if fields[0] != VERSION || check != &blake3::hash(fields).as_bytes()[..16] {
        return None;
    }
    let number = |at: usize| u64::from_be_bytes(fields[at..at + 8].try_into().expect("8 bytes"));
    let place = Place {
        segment: u32::from_be_bytes(fields[1..5].try_into().expect("4 bytes")),
        offset: number(5),
        batch: number(13),
        arrival: number(21),
    };
    let sum = Sum(u128::from_be_bytes(
        fields[37..53].try_into().expect("16 bytes"),
    ));
    Some((
        Reach {
            place,
            hlc: Hlc::from_u64(number(29)),
        },
        sum,
    ))
}
