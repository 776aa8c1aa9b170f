//! The view's database: what is derived, kept so that a restart need not derive it again.
//!
//! Commits are not synced one by one: redb keeps them in order, so that after a crash the file holds
//! a prefix of them, and the watermark among them says truly how far it goes. The replica replays
//! the rest from its segments.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, Table,
    TableDefinition, WriteTransaction,
};

use super::ViewError;
use crate::fence::fenced;

/// What the tables and the rules behind them are; another number means: derive anew.
///
/// Raise it when the layout changes, and when automerge or a rule of the fence does.
const VERSION: u64 = 4;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Names of counters: version, watermark, crowded, damaged.
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
/// Document → saved automerge document.
const SAVED: Bytes = TableDefinition::new("saved");
/// Document → index of its changes.
const INDEX: Bytes = TableDefinition::new("index");
/// Document → memory item, JSON.
const ITEMS: Bytes = TableDefinition::new("items");
/// Document → context summary, JSON.
const SUMMARIES: Bytes = TableDefinition::new("summaries");
/// Space, moment from the newest, document → nothing.
const ORDER: Bytes = TableDefinition::new("order");
/// Fragment → what became of it.
const STATES: Bytes = TableDefinition::new("states");
/// Waiting fragment → all of it.
const WAITING: Bytes = TableDefinition::new("waiting");
/// Refused fragment → who, where and why, JSON.
const REFUSED: Bytes = TableDefinition::new("refused");
/// Space, document, document that says something of it → what, and who says so.
const SUPERSEDED: Bytes = TableDefinition::new("superseded");
/// Space, key, 0, document → its kind.
const KEYED: Bytes = TableDefinition::new("keyed");
/// Space, what is equal for memories that say the same, document → nothing.
const SAME: Bytes = TableDefinition::new("same");
/// Document not yet in the search index → its generation.
const UNINDEXED: Bytes = TableDefinition::new("unindexed");

macro_rules! tables {
    ($($field:ident: $definition:ident),*; alone: $($alone:ident: $of:ident),*) => {
        /// All tables, for one write transaction.
        pub(super) struct Tables<'txn> {
            pub(super) meta: Table<'txn, &'static str, u64>,
            $(pub(super) $field: Table<'txn, &'static [u8], &'static [u8]>,)*
            $(pub(super) $alone: Table<'txn, &'static [u8], &'static [u8]>,)*
        }

        impl<'txn> Tables<'txn> {
            pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, ViewError> {
                Ok(Self {
                    meta: txn.open_table(META)?,
                    $($field: txn.open_table($definition)?,)*
                    $($alone: txn.open_table($of)?,)*
                })
            }
        }

        /// All tables but those that are read alone, for reading.
        pub(crate) struct ReadTables {
            pub(crate) meta: ReadOnlyTable<&'static str, u64>,
            $(pub(crate) $field: ReadOnlyTable<&'static [u8], &'static [u8]>,)*
            /// Kept open while it is read, also when another file has taken its place.
            _database: Arc<Database>,
        }

        impl ReadTables {
            fn open(txn: &ReadTransaction, database: Arc<Database>) -> Result<Self, ViewError> {
                Ok(Self {
                    meta: txn.open_table(META)?,
                    $($field: txn.open_table($definition)?,)*
                    _database: database,
                })
            }
        }

        /// Copies all rows of all tables.
        fn copy(from: &ReadTransaction, to: &WriteTransaction) -> Result<(), ViewError> {
            let (source, mut target) = (from.open_table(META)?, to.open_table(META)?);
            for row in source.iter()? {
                let (key, value) = row?;
                target.insert(key.value(), value.value())?;
            }
            for definition in [$($definition,)* $($of,)*] {
                let (source, mut target) = (from.open_table(definition)?, to.open_table(definition)?);
                for row in source.iter()? {
                    let (key, value) = row?;
                    target.insert(key.value(), value.value())?;
                }
            }
            Ok(())
        }
    };
}

tables!(
    saved: SAVED,
    index: INDEX,
    items: ITEMS,
    summaries: SUMMARIES,
    order: ORDER,
    states: STATES,
    waiting: WAITING,
    refused: REFUSED,
    superseded: SUPERSEDED,
    keyed: KEYED,
    unindexed: UNINDEXED;
    alone: same: SAME
);

/// The open database.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    /// Another one takes its place when the file is rewritten.
    database: RwLock<Arc<Database>>,
}

impl Store {
    /// Opens or creates the database; `None` if what is there has another version or is damaged.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, ViewError> {
        // What rewriting left half done says nothing.
        let _ = fs::remove_file(path.with_extension(ANEW));
        let database = match Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create(path)
        {
            Ok(database) => database,
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => {
                return Err(redb::DatabaseError::DatabaseAlreadyOpen.into());
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the view's database is unusable");
                return Ok(None);
            }
        };
        let store = Self {
            path: path.to_owned(),
            database: RwLock::new(Arc::new(database)),
        };
        match store.prepare() {
            Ok(true) => Ok(Some(store)),
            Ok(false) => Ok(None),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the view's database is damaged");
                Ok(None)
            }
        }
    }

    fn prepare(&self) -> Result<bool, ViewError> {
        let txn = self.write(Durability::Immediate)?;
        let usable = {
            let mut tables = Tables::open(&txn)?;
            let version = tables.meta.get("version")?.map(|value| value.value());
            let damaged = tables.meta.get("damaged")?.is_some();
            match version {
                _ if damaged => false,
                Some(version) => version == VERSION,
                None => {
                    tables.meta.insert("version", VERSION)?;
                    true
                }
            }
        };
        txn.commit()?;
        Ok(usable)
    }

    pub(super) fn write(&self, durability: Durability) -> Result<WriteTransaction, ViewError> {
        let mut txn = self.database().begin_write()?;
        txn.set_durability(durability)?;
        Ok(txn)
    }

    pub(crate) fn read(&self) -> Result<ReadTables, ViewError> {
        let database = self.database();
        ReadTables::open(&database.begin_read()?, database)
    }

    fn database(&self) -> Arc<Database> {
        let database = self.database.read();
        Arc::clone(&database.unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a copy in the place of the file, which holds what was deleted; durable on return.
    ///
    /// Call it only while nobody writes.
    pub(super) fn rewrite(&self) -> Result<(), ViewError> {
        let io = |source| ViewError::Io {
            path: self.path.clone(),
            source,
        };
        let partial = self.path.with_extension(ANEW);
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        let copied = || -> Result<Database, ViewError> {
            let anew = Database::builder()
                .set_cache_size(CACHE_BYTES)
                .create(&partial)?;
            let to = anew.begin_write()?;
            copy(&self.database().begin_read()?, &to)?;
            to.commit()?;
            fs::rename(&partial, &self.path).map_err(io)?;
            if let Some(dir) = self.path.parent() {
                File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)?;
            }
            Ok(anew)
        };
        let anew = copied().inspect_err(|_| drop(fs::remove_file(&partial)))?;
        *self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(anew);
        Ok(())
    }

    /// Returns the documents that say what `prefix` stands for, with all tables if there are any.
    ///
    /// Nearly every text that is published is new, and opening one table rather than all is most of
    /// what it costs to know that.
    pub(super) fn read_same(
        &self,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Option<(Vec<KeyValue>, ReadTables)>, ViewError> {
        let database = self.database();
        let txn = database.begin_read()?;
        let rows = with_prefix(&txn.open_table(SAME)?, prefix, limit)?;
        match rows.is_empty() {
            true => Ok(None),
            false => Ok(Some((rows, ReadTables::open(&txn, database)?))),
        }
    }

    /// Makes every commit so far durable.
    pub(crate) fn sync(&self) -> Result<(), ViewError> {
        Ok(self.write(Durability::Immediate)?.commit()?)
    }

    /// Has the next opening throw everything away.
    pub(crate) fn condemn(&self) {
        let mark = || -> Result<(), ViewError> {
            let txn = self.write(Durability::Immediate)?;
            txn.open_table(META)?.insert("damaged", 1)?;
            Ok(txn.commit()?)
        };
        if let Err(error) = guarded(mark) {
            tracing::warn!(%error, "cannot mark the view as damaged");
        }
    }

    /// Forgets that fragments were left out: the replay from the lowered watermark brings them.
    ///
    /// The lowered watermark is written with it, so that a crash in between loses nothing.
    pub(super) fn forget_crowded(&self) -> Result<(), ViewError> {
        let txn = self.write(Durability::Immediate)?;
        {
            let mut meta = txn.open_table(META)?;
            let crowded = meta.remove("crowded")?.map(|since| since.value());
            let watermark = meta.get("watermark")?.map(|watermark| watermark.value());
            if let (Some(crowded), Some(watermark)) = (crowded, watermark) {
                meta.insert("watermark", watermark.min(crowded))?;
            }
        }
        Ok(txn.commit()?)
    }

    /// Forgets that fragments were left out: the replay has brought them.
    pub(super) fn brought_crowded(&self) -> Result<(), ViewError> {
        let txn = self.write(Durability::Immediate)?;
        txn.open_table(META)?.remove("crowded")?;
        Ok(txn.commit()?)
    }

    /// Forgets that these documents are not in the search index, unless they have changed since.
    pub(crate) fn indexed(&self, documents: &[([u8; 65], u64)]) -> Result<(), ViewError> {
        let txn = self.write(Durability::None)?;
        {
            let mut unindexed = txn.open_table(UNINDEXED)?;
            for (key, generation) in documents {
                let same = unindexed
                    .get(&key[..])?
                    .is_some_and(|found| found.value() == generation.to_be_bytes());
                if same {
                    unindexed.remove(&key[..])?;
                }
            }
        }
        Ok(txn.commit()?)
    }
}

/// Runs work on the database; a panic becomes an error.
///
/// The file is checked when it is opened, but the disk may lie later, and redb then panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, ViewError>) -> Result<T, ViewError> {
    fenced(work).unwrap_or_else(|what| {
        tracing::error!(what, "the view's database panicked");
        Err(ViewError::Damaged("view.redb"))
    })
}

/// The name's end of a copy that is to take the database's place.
const ANEW: &str = "anew";
/// Most bytes of the database that are kept in memory.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// A row as it is stored.
pub(crate) type KeyValue = (Vec<u8>, Vec<u8>);

/// Returns the rows whose key begins with `prefix`, at most `limit`.
pub(crate) fn with_prefix(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    prefix: &[u8],
    limit: usize,
) -> Result<Vec<KeyValue>, ViewError> {
    let mut rows = Vec::new();
    for row in table.range(prefix..)? {
        let (key, value) = row?;
        if !key.value().starts_with(prefix) || rows.len() >= limit {
            break;
        }
        rows.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(rows)
}
