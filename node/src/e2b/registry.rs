//! What E2B knows of a sandbox and the node does not, kept on disk.
//!
//! ```text
//! e2b/sandboxes/<id>.json       a Record
//! e2b/snapshots/<id>.json       a SnapshotRecord
//! e2b/templates/<id>.json       a TemplateRecord
//! e2b/volumes/<id>.json         a VolumeRecord
//! e2b/keys/<hash>.json          a KeyRecord: what was made for an idempotency key
//! ```
//! Every file is written beside its place, synced, and renamed into it before anybody is told; the
//! directory is then synced too. So what was acknowledged is there after a crash, and a file is
//! never half of itself. A file that cannot be read is left where it is and named in the log.
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tracing::warn;

use super::signature::constant_time_eq;
use crate::error::ApiError;

/// Most records of a kind; a client could otherwise fill memory and disk.
pub(crate) const MAX_RECORDS: usize = 10_000;
/// Bytes of a record on disk; larger ones are none of ours.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 24;

/// What becomes of a sandbox when its time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnTimeout {
    /// It is ended.
    #[default]
    Kill,
    /// It is put to sleep.
    Pause,
}

/// What E2B knows of a sandbox.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The sandbox's id, here and there.
    pub(crate) id: String,
    /// What it was made from: a template's id, or a snapshot's.
    pub(crate) template: String,
    /// That template's name.
    pub(crate) alias: Option<String>,
    /// What its maker wrote on it.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Environment of every process that is started through this door, below what that sets.
    pub(crate) envs: BTreeMap<String, String>,
    /// The user that processes and paths are for when nobody says; root if absent.
    pub(crate) user: Option<String>,
    /// The directory that processes start in when nobody says; the user's home if absent.
    pub(crate) cwd: Option<String>,
    /// What opens its data plane.
    pub(crate) access_token: String,
    /// What opens its other ports, where those are not for everybody.
    pub(crate) traffic_token: Option<String>,
    /// See [`OnTimeout`].
    pub(crate) on_timeout: OnTimeout,
    /// Whether a request to its data plane wakes it.
    pub(crate) auto_resume: bool,
    /// Seconds that it was last given.
    pub(crate) timeout_secs: u64,
    /// When it was made, or last woken.
    pub(crate) started_ms: u64,
    /// Whether it may reach the internet, as its maker said.
    pub(crate) internet: Option<bool>,
    /// Its network as its maker said it.
    pub(crate) network: Option<Value>,
    /// Volumes that are in it.
    pub(crate) mounts: Vec<Mount>,
    /// Whether it was shut down with its disk kept, rather than put to sleep.
    pub(crate) stopped: bool,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// The volume's name.
    pub(crate) name: String,
    /// Where it is in the sandbox.
    pub(crate) path: String,
}

// Tokens stay out of logs.
impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("id", &self.id)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

/// A snapshot that a client took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRecord {
    /// Its id, here and there.
    pub(crate) id: String,
    /// The sandbox it was taken of.
    pub(crate) sandbox: String,
    /// Its names.
    pub(crate) names: Vec<String>,
    /// When it was taken.
    pub(crate) created_ms: u64,
    /// What the sandbox was made from.
    pub(crate) template: String,
    /// What a sandbox that is made from it starts with.
    pub(crate) envs: BTreeMap<String, String>,
    /// See [`Record::user`].
    pub(crate) user: Option<String>,
    /// See [`Record::cwd`].
    pub(crate) cwd: Option<String>,
}

/// A template that a client built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateRecord {
    /// Its id.
    pub(crate) id: String,
    /// Its names, without tags.
    pub(crate) names: Vec<String>,
    /// Its tags.
    pub(crate) tags: Vec<String>,
    /// Processors of its sandboxes; the node's default if 0.
    pub(crate) vcpus: u32,
    /// Memory of its sandboxes in MiB; the node's default if 0.
    pub(crate) memory_mib: u32,
    /// When it was asked for.
    pub(crate) created_ms: u64,
    /// When it last changed.
    pub(crate) updated_ms: u64,
    /// The image of the last build that worked.
    pub(crate) image: Option<String>,
    /// The builds, by id.
    pub(crate) builds: BTreeMap<String, BuildRecord>,
    /// What opens the door for the files of its builds.
    pub(crate) upload_token: String,
    /// Sandboxes that were made from it.
    pub(crate) spawned: u64,
}

/// A build of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BuildRecord {
    /// `waiting`, `building`, `ready` or `error`.
    pub(crate) status: String,
    /// Why it failed.
    pub(crate) reason: Option<String>,
    /// Tags that it gets.
    pub(crate) tags: Vec<String>,
    /// The image it made.
    pub(crate) image: Option<String>,
    /// When it was asked for.
    pub(crate) created_ms: u64,
}

/// A volume that a client made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeRecord {
    /// Its id, here and there.
    pub(crate) id: String,
    /// Its name.
    pub(crate) name: String,
    /// The space it belongs to.
    pub(crate) space: String,
    /// What opens its content.
    pub(crate) token: String,
}

/// What was made for an idempotency key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KeyRecord {
    /// The key's hash.
    pub(crate) id: String,
    /// The hash of the request that came with it.
    pub(crate) request: String,
    /// When it came.
    pub(crate) at_ms: u64,
    /// The sandbox; absent while it is being made.
    pub(crate) sandbox: Option<String>,
}

/// Why what is kept cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The system refused.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There are as many as may be.
    #[error("there are {MAX_RECORDS} of them already")]
    Full,
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        use axum::http::StatusCode;
        if crate::error::is_disk_full(&error) {
            return Self::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", &error);
        }
        match error {
            RegistryError::Full => Self::of(StatusCode::TOO_MANY_REQUESTS, "limit_reached", &error),
            error => Self::of(StatusCode::INTERNAL_SERVER_ERROR, "registry_failed", &error),
        }
    }
}

/// Something that is kept in a file of its own.
pub(crate) trait Kept: Clone + Serialize + DeserializeOwned {
    /// The directory of its kind.
    const DIR: &'static str;
    /// Its id, which names its file.
    fn id(&self) -> &str;
}

macro_rules! kept {
    ($($kind:ty => $dir:literal),* $(,)?) => {$(
        impl Kept for $kind {
            const DIR: &'static str = $dir;
            fn id(&self) -> &str {
                &self.id
            }
        }
    )*};
}

kept! {
    Record => "sandboxes",
    SnapshotRecord => "snapshots",
    TemplateRecord => "templates",
    VolumeRecord => "volumes",
    KeyRecord => "keys",
}

/// All records of a kind, in memory and on disk. Its writing methods wait for the disk.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    dir: PathBuf,
    all: RwLock<BTreeMap<String, Arc<T>>>,
    /// Files of one name are written one after another.
    writing: std::sync::Mutex<()>,
}

impl<T: Kept> Shelf<T> {
    fn open(root: &Path) -> Result<Self, RegistryError> {
        let dir = root.join(T::DIR);
        let at = |what| {
            let path = dir.clone();
            move |source| RegistryError::Io { what, path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(at("create"))?;
        let mut all = BTreeMap::new();
        for found in fs::read_dir(&dir).map_err(at("read"))? {
            let path = found.map_err(at("read"))?.path();
            if path.extension().is_none_or(|kind| kind != "json") {
                // Half of a write that nobody was told of.
                let _ = fs::remove_file(&path);
                continue;
            }
            match read::<T>(&path) {
                Ok(record) => drop(all.insert(record.id().to_owned(), Arc::new(record))),
                Err(error) => warn!(path = %path.display(), %error, "a record cannot be read"),
            }
        }
        Ok(Self {
            dir,
            all: RwLock::new(all),
            writing: std::sync::Mutex::new(()),
        })
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.read().get(id).cloned()
    }

    /// Returns every record, by id.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.read().values().cloned().collect()
    }

    /// Keeps a record; it is on disk when this returns.
    ///
    /// # Errors
    /// [`RegistryError`]; what was there before then stays.
    pub(crate) fn put(&self, record: T) -> Result<Arc<T>, RegistryError> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(|e| e.into_inner());
        self.write(record)
    }

    /// Changes a record, if it is there.
    ///
    /// # Errors
    /// [`RegistryError`]; what was there before then stays.
    pub(crate) fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut T),
    ) -> Result<Option<Arc<T>>, RegistryError> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(|e| e.into_inner());
        let Some(present) = self.get(id) else {
            return Ok(None);
        };
        let mut record = T::clone(&present);
        change(&mut record);
        self.write(record).map(Some)
    }

    fn write(&self, record: T) -> Result<Arc<T>, RegistryError> {
        let id = record.id().to_owned();
        let count = self.read().len();
        if count >= MAX_RECORDS && self.get(&id).is_none() {
            return Err(RegistryError::Full);
        }
        let path = self.path(&id);
        let bytes = serde_json::to_vec_pretty(&record).expect("records are plain data");
        write_synced(&self.dir, &path, &bytes).map_err(|source| RegistryError::Io {
            what: "write",
            path,
            source,
        })?;
        let record = Arc::new(record);
        let mut all = self.all.write().unwrap_or_else(|e| e.into_inner());
        all.insert(id, Arc::clone(&record));
        Ok(record)
    }

    /// Forgets a record; returns whether there was one.
    ///
    /// # Errors
    /// [`RegistryError::Io`]; it then stays.
    pub(crate) fn remove(&self, id: &str) -> Result<bool, RegistryError> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(|e| e.into_inner());
        if self.get(id).is_none() {
            return Ok(false);
        }
        let path = self.path(id);
        let removed = fs::remove_file(&path).and_then(|()| File::open(&self.dir)?.sync_all());
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                let what = "remove";
                return Err(RegistryError::Io { what, path, source });
            }
            _ => {}
        }
        let mut all = self.all.write().unwrap_or_else(|e| e.into_inner());
        Ok(all.remove(id).is_some())
    }

    fn path(&self, id: &str) -> PathBuf {
        debug_assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
        self.dir.join(format!("{id}.json"))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<T>>> {
        self.all.read().unwrap_or_else(|e| e.into_inner())
    }
}

/// Everything that is kept for clients of E2B.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) sandboxes: Shelf<Record>,
    pub(crate) snapshots: Shelf<SnapshotRecord>,
    pub(crate) templates: Shelf<TemplateRecord>,
    pub(crate) volumes: Shelf<VolumeRecord>,
    pub(crate) keys: Shelf<KeyRecord>,
}

impl Registry {
    /// Reads what is kept below `root`, making it if it is not there.
    ///
    /// # Errors
    /// [`RegistryError::Io`].
    pub(crate) fn open(root: &Path) -> Result<Self, RegistryError> {
        Ok(Self {
            sandboxes: Shelf::open(root)?,
            snapshots: Shelf::open(root)?,
            templates: Shelf::open(root)?,
            volumes: Shelf::open(root)?,
            keys: Shelf::open(root)?,
        })
    }

    /// Returns what is known of a sandbox.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Record>> {
        self.sandboxes.get(id)
    }

    /// Returns the sandbox that a token opens.
    pub(crate) fn by_token(&self, token: &str) -> Option<Arc<Record>> {
        let opens = |record: &&Arc<Record>| {
            constant_time_eq(record.access_token.as_bytes(), token.as_bytes())
        };
        self.sandboxes.all().iter().find(opens).cloned()
    }
}

/// Draws a token that nobody guesses.
pub(crate) fn new_token() -> Result<String, ApiError> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).map_err(|error| {
            ApiError::internal("there is no randomness").caused_by(Some(&error))
        })?;
    }
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    if fs::metadata(path)?.len() > MAX_RECORD_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Writes a private file whole or not at all.
pub(super) fn write_synced(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record {
            id: id.to_owned(),
            access_token: format!("token-{id}"),
            ..Record::default()
        }
    }

    #[test]
    fn what_was_put_is_there_after_a_restart_and_a_torn_write_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let registry = Registry::open(temp.path()).unwrap();
        registry.sandboxes.put(record("a")).unwrap();
        registry.sandboxes.put(record("b")).unwrap();
        assert!(registry.sandboxes.remove("b").unwrap());
        assert!(!registry.sandboxes.remove("b").unwrap());
        let dir = temp.path().join("sandboxes");
        fs::write(dir.join("c.new"), "{\"id\":").unwrap();
        fs::write(dir.join("d.json"), "{\"id\":").unwrap();
        drop(registry);
        let again = Registry::open(temp.path()).unwrap();
        let ids: Vec<_> = again.sandboxes.all().iter().map(|r| r.id.clone()).collect();
        assert_eq!(ids, ["a"]);
        assert!(!dir.join("c.new").exists());
        assert!(dir.join("d.json").exists(), "damage is evidence");
        assert_eq!(again.by_token("token-a").unwrap().id, "a");
        assert!(again.by_token("token-").is_none());
        let changed = again.sandboxes.change("a", |r| r.timeout_secs = 7).unwrap();
        assert_eq!(changed.unwrap().timeout_secs, 7);
        assert!(again.sandboxes.change("b", |_| ()).unwrap().is_none());
    }

    #[test]
    fn tokens_differ_and_stay_out_of_logs() {
        assert_ne!(new_token().unwrap(), new_token().unwrap());
        assert!(!format!("{:?}", record("a")).contains("token-a"));
    }
}
