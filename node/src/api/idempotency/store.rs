//! The keys that were used, in memory and in a log of lines.
use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::api::token::write_private;

/// For how long a key is remembered.
pub(crate) const LIFETIME_MS: u64 = 24 * 60 * 60 * 1_000;
/// Keys of one caller; the oldest go first.
const MAX_KEYS: usize = 4_096;
/// Bytes of answers of one caller; the oldest go first.
const MAX_CALLER_BYTES: usize = 8 * 1024 * 1024;
/// Callers that are remembered; whoever has been silent longest goes first.
const MAX_CALLERS: usize = 64;
/// Bytes of one answer. A larger one is not told again.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Bytes that the log may have beyond twice what is alive in it.
const SLACK_BYTES: u64 = 1024 * 1024;

/// An answer that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    #[serde(rename = "s")]
    pub(crate) status: u16,
    #[serde(rename = "y")]
    pub(crate) kind: String,
    /// Absent if it is not told again.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing; from now on it is being worked on.
    New(Id),
    /// It was used for another request.
    Mismatch,
    /// Its request is being worked on.
    Working,
    /// The daemon ended while it was worked on.
    Interrupted,
    /// Its request was answered.
    Answered(Arc<Answer>),
}

/// Names a key of a caller.
pub(crate) type Id = [u8; 32];

/// The keys of all callers.
#[derive(Debug)]
pub(crate) struct Keys(Mutex<Store>);

#[derive(Debug)]
struct Store {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    live_bytes: u64,
    entries: BTreeMap<Id, Entry>,
    callers: BTreeMap<Id, Owned>,
}

#[derive(Debug, Clone)]
struct Entry {
    caller: Id,
    request: Id,
    at_ms: u64,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Working,
    Interrupted,
    Answered(Arc<Answer>),
}

#[derive(Debug, Default)]
struct Owned {
    /// The oldest first.
    order: VecDeque<Id>,
    bytes: usize,
    last_ms: u64,
}

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    #[serde(rename = "k")]
    id: String,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Begin {
        #[serde(rename = "c")]
        caller: String,
        #[serde(rename = "r")]
        request: String,
        #[serde(rename = "t")]
        at_ms: u64,
    },
    End(Answer),
    Forget(bool),
}

/// Why keys cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("cannot {what} `{}`", path.display())]
pub struct IdempotencyError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Keys {
    /// Opens the log at `path`; lines that are torn or damaged cost themselves alone.
    pub(crate) fn open(path: PathBuf, now_ms: u64) -> Result<Self, IdempotencyError> {
        let failed = |what| {
            let path = path.clone();
            move |source| IdempotencyError { what, path, source }
        };
        let text = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read")(error)),
        };
        let mut entries = BTreeMap::new();
        let mut damaged = 0;
        for line in text.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let read = serde_json::from_slice(line).ok();
            if read.and_then(|line| replay(&mut entries, line)).is_none() {
                damaged += 1;
            }
        }
        if damaged > 0 {
            warn!(
                damaged,
                "lines of the log of idempotency keys were left out"
            );
        }
        entries.retain(|_, entry: &mut Entry| now_ms < entry.at_ms.saturating_add(LIFETIME_MS));
        let mut store = Store {
            file: append_to(&path).map_err(failed("open"))?,
            path: path.clone(),
            file_bytes: 0,
            live_bytes: 0,
            entries,
            callers: BTreeMap::new(),
        };
        let mut by_age: Vec<_> = store.entries.iter().map(|(id, e)| (e.at_ms, *id)).collect();
        by_age.sort_unstable();
        for (at_ms, id) in by_age {
            let entry = &store.entries[&id];
            let owned = store.callers.entry(entry.caller).or_default();
            owned.order.push_back(id);
            owned.bytes += entry.bytes();
            owned.last_ms = at_ms;
        }
        store.rewrite().map_err(failed("write"))?;
        Ok(Self(Mutex::new(store)))
    }

    /// Looks a key up; a new one is durably begun when this returns.
    pub(crate) fn begin(
        &self,
        caller: &str,
        key: &str,
        request: Id,
        now_ms: u64,
    ) -> Result<Found, IdempotencyError> {
        let caller = hash(&[caller.as_bytes()]);
        let id = hash(&[&caller, key.as_bytes()]);
        let mut store = self.lock();
        store.expire(&caller, now_ms);
        if let Some(entry) = store.entries.get(&id) {
            return Ok(match &entry.state {
                _ if entry.request != request => Found::Mismatch,
                State::Working => Found::Working,
                State::Interrupted => Found::Interrupted,
                State::Answered(answer) => Found::Answered(Arc::clone(answer)),
            });
        }
        store.append(&Line {
            id: hex(&id),
            what: What::Begin {
                caller: hex(&caller),
                request: hex(&request),
                at_ms: now_ms,
            },
        })?;
        let entry = Entry {
            caller,
            request,
            at_ms: now_ms,
            state: State::Working,
        };
        store.entries.insert(id, entry);
        let owned = store.callers.entry(caller).or_default();
        owned.order.push_back(id);
        owned.last_ms = now_ms;
        store.bound(&caller);
        Ok(Found::New(id))
    }

    /// Keeps the answer; durable when this returns.
    pub(crate) fn finish(&self, id: Id, answer: Answer) -> Result<(), IdempotencyError> {
        let mut store = self.lock();
        let line = Line {
            id: hex(&id),
            what: What::End(answer.clone()),
        };
        store.append(&line)?;
        let bytes = answer.body.as_ref().map_or(0, String::len);
        let Some(entry) = store.entries.get_mut(&id) else {
            return Ok(());
        };
        entry.state = State::Answered(Arc::new(answer));
        let caller = entry.caller;
        if let Some(owned) = store.callers.get_mut(&caller) {
            owned.bytes += bytes;
        }
        store.bound(&caller);
        store.rewrite_if_long();
        Ok(())
    }

    /// Forgets a key whose request came to nothing, so that it may be tried again.
    pub(crate) fn forget(&self, id: Id) -> Result<(), IdempotencyError> {
        let mut store = self.lock();
        store.append(&Line {
            id: hex(&id),
            what: What::Forget(true),
        })?;
        store.remove(&id);
        Ok(())
    }

    /// Says of a key that nobody knows what became of its request.
    pub(crate) fn interrupt(&self, id: Id) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.state = State::Interrupted;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn append(&mut self, line: &Line) -> Result<(), IdempotencyError> {
        let mut bytes = serde_json::to_vec(line).expect("lines become JSON");
        bytes.push(b'\n');
        let written = self
            .file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_data());
        written.map_err(|source| {
            // What was written of the line would be glued to the next one.
            let _ = self.file.set_len(self.file_bytes);
            IdempotencyError {
                what: "write to",
                path: self.path.clone(),
                source,
            }
        })?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.file_bytes = self.file_bytes.saturating_add(length);
        self.live_bytes = self.live_bytes.saturating_add(length);
        Ok(())
    }

    /// Forgets what has lived its time.
    fn expire(&mut self, caller: &Id, now_ms: u64) {
        while let Some(oldest) = self
            .callers
            .get(caller)
            .and_then(|owned| owned.order.front())
        {
            let oldest = *oldest;
            let over = self.entries.get(&oldest).is_none_or(|entry| {
                now_ms >= entry.at_ms.saturating_add(LIFETIME_MS)
                    && !matches!(entry.state, State::Working)
            });
            if !over {
                break;
            }
            self.remove(&oldest);
        }
    }

    /// Forgets the oldest beyond what a caller may have.
    fn bound(&mut self, caller: &Id) {
        while let Some(owned) = self.callers.get(caller) {
            if owned.order.len() <= MAX_KEYS && owned.bytes <= MAX_CALLER_BYTES {
                break;
            }
            let settled = owned.order.iter().find(|id| {
                let entry = self.entries.get(*id);
                entry.is_none_or(|entry| !matches!(entry.state, State::Working))
            });
            let Some(oldest) = settled.copied() else {
                break;
            };
            self.remove(&oldest);
        }
        while self.callers.len() > MAX_CALLERS {
            let others = self.callers.iter().filter(|(id, _)| *id != caller);
            let Some(silent) = others.min_by_key(|(_, owned)| owned.last_ms) else {
                break;
            };
            let (id, ids) = (*silent.0, silent.1.order.clone());
            for one in ids {
                self.remove(&one);
            }
            self.callers.remove(&id);
        }
    }

    fn remove(&mut self, id: &Id) {
        let Some(entry) = self.entries.remove(id) else {
            for owned in self.callers.values_mut() {
                owned.order.retain(|other| other != id);
            }
            return;
        };
        self.live_bytes = self.live_bytes.saturating_sub(entry.line_bytes());
        if let Some(owned) = self.callers.get_mut(&entry.caller) {
            owned.bytes = owned.bytes.saturating_sub(entry.bytes());
            if owned.order.front() == Some(id) {
                owned.order.pop_front();
            } else {
                owned.order.retain(|other| other != id);
            }
            if owned.order.is_empty() {
                self.callers.remove(&entry.caller);
            }
        }
    }

    fn rewrite_if_long(&mut self) {
        if self.file_bytes
            > self
                .live_bytes
                .saturating_mul(2)
                .saturating_add(SLACK_BYTES)
            && let Err(error) = self.rewrite()
        {
            // The long log serves as well.
            warn!(%error, "the log of idempotency keys could not be shortened");
        }
    }

    /// Writes what is alive, and nothing else.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for owned in self.callers.values() {
            for id in &owned.order {
                let Some(entry) = self.entries.get(id) else {
                    continue;
                };
                for line in entry.lines(id) {
                    serde_json::to_writer(&mut bytes, &line).expect("lines become JSON");
                    bytes.push(b'\n');
                }
            }
        }
        write_private(&self.path, &bytes)?;
        self.file = append_to(&self.path)?;
        self.file_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.live_bytes = self.file_bytes;
        Ok(())
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match &self.state {
            State::Answered(answer) => answer.body.as_ref().map_or(0, String::len),
            State::Working | State::Interrupted => 0,
        }
    }

    /// About what it takes in the log.
    fn line_bytes(&self) -> u64 {
        u64::try_from(self.bytes() + 400).unwrap_or(u64::MAX)
    }

    fn lines(&self, id: &Id) -> Vec<Line> {
        let line = |what| Line { id: hex(id), what };
        let mut lines = vec![line(What::Begin {
            caller: hex(&self.caller),
            request: hex(&self.request),
            at_ms: self.at_ms,
        })];
        if let State::Answered(answer) = &self.state {
            lines.push(line(What::End(Answer::clone(answer))));
        }
        lines
    }
}

/// Takes a line of the log over; `None` if it makes no sense.
fn replay(entries: &mut BTreeMap<Id, Entry>, line: Line) -> Option<()> {
    let id = unhex(&line.id)?;
    match line.what {
        What::Begin {
            caller,
            request,
            at_ms,
        } => {
            let entry = Entry {
                caller: unhex(&caller)?,
                request: unhex(&request)?,
                at_ms,
                // Unless its end follows.
                state: State::Interrupted,
            };
            entries.insert(id, entry);
        }
        What::End(answer) => entries.get_mut(&id)?.state = State::Answered(Arc::new(answer)),
        What::Forget(_) => {
            entries.remove(&id)?;
        }
    }
    Some(())
}

fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(path)
}

/// Hashes parts so that no two lists of parts are the same text.
pub(crate) fn hash(parts: &[&[u8]]) -> Id {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn hex(id: &Id) -> String {
    data_encoding::HEXLOWER.encode(id)
}

fn unhex(text: &str) -> Option<Id> {
    let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Answer {
        Answer {
            status: 200,
            kind: "application/json".into(),
            body: Some(body.into()),
        }
    }

    fn begin(keys: &Keys, caller: &str, key: &str, request: u8, now_ms: u64) -> Found {
        keys.begin(caller, key, [request; 32], now_ms).unwrap()
    }

    #[test]
    fn a_key_is_answered_once_and_then_the_same_also_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idempotency.log");
        let keys = Keys::open(path.clone(), 0).unwrap();
        let Found::New(id) = begin(&keys, "owner", "k", 1, 10) else {
            panic!("it is new");
        };
        assert_eq!(begin(&keys, "owner", "k", 1, 11), Found::Working);
        assert_eq!(begin(&keys, "owner", "k", 2, 11), Found::Mismatch);
        assert!(matches!(begin(&keys, "token", "k", 2, 11), Found::New(_)));
        keys.finish(id, answer("one")).unwrap();
        let told = Found::Answered(Arc::new(answer("one")));
        assert_eq!(begin(&keys, "owner", "k", 1, 12), told);
        assert_eq!(begin(&keys, "owner", "k", 2, 12), Found::Mismatch);
        // Nothing was closed in order: the next daemon reads what is on disk.
        let keys = Keys::open(path.clone(), 20).unwrap();
        assert_eq!(begin(&keys, "owner", "k", 1, 20), told);
        assert_eq!(begin(&keys, "token", "k", 2, 20), Found::Interrupted);
        // A torn line costs itself alone.
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(br#"{"k":"00"#);
        fs::write(&path, bytes).unwrap();
        let keys = Keys::open(path.clone(), 20).unwrap();
        assert_eq!(begin(&keys, "owner", "k", 1, 20), told);
        // And a day later it is a new one.
        let later = 10 + LIFETIME_MS;
        assert!(matches!(
            begin(&keys, "owner", "k", 1, later),
            Found::New(_)
        ));
        assert!(
            Keys::open(path, later * 3)
                .unwrap()
                .lock()
                .entries
                .is_empty()
        );
    }

    #[test]
    fn what_came_to_nothing_may_be_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idempotency.log");
        let keys = Keys::open(path.clone(), 0).unwrap();
        let Found::New(id) = begin(&keys, "owner", "k", 1, 10) else {
            panic!("it is new");
        };
        keys.forget(id).unwrap();
        assert!(matches!(begin(&keys, "owner", "k", 2, 11), Found::New(_)));
        let keys = Keys::open(path, 12).unwrap();
        assert_eq!(begin(&keys, "owner", "k", 2, 12), Found::Interrupted);
    }

    #[test]
    fn keys_are_bounded_in_number_and_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idempotency.log");
        let keys = Keys::open(path, 0).unwrap();
        let large = "x".repeat(MAX_ANSWER_BYTES);
        for number in 0..40_u64 {
            let key = format!("k{number}");
            let Found::New(id) = begin(&keys, "owner", &key, 1, number) else {
                panic!("it is new");
            };
            keys.finish(id, answer(&large)).unwrap();
        }
        let store = keys.lock();
        let owned = store.callers.values().next().unwrap();
        assert!(owned.bytes <= MAX_CALLER_BYTES);
        assert_eq!(owned.order.len(), MAX_CALLER_BYTES / MAX_ANSWER_BYTES);
        assert!(store.file_bytes <= 3 * u64::try_from(MAX_CALLER_BYTES).unwrap());
    }
}
