//! The ledger on disk: its sums in one file, and what came since in another.
//!
//! `ledger.json` names a generation; `journal-<generation>` holds the charges since then, one a
//! line behind a hash of it, each write synced. A journal that has grown long is folded into a new
//! `ledger.json` of the next generation, which takes its place by a rename: a crash before it
//! leaves the old pair, one after it the new, and a journal of another generation counts for
//! nothing.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rhizome_identity::Hash;
use serde::{Deserialize, Serialize};

use super::ledger::{Charge, Ledger, Written};

const LEDGER: &str = "ledger.json";
const VERSION: u32 = 1;
/// A journal of this size is folded into the ledger, in bytes.
const MAX_JOURNAL_BYTES: u64 = 2 * 1024 * 1024;
/// Largest files that are read back, in bytes: many times what is ever written.
const MAX_LEDGER_BYTES: u64 = 256 * 1024 * 1024;
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;
/// Digits of the hash before each line.
const HASH_DIGITS: usize = 16;

/// Why what was used cannot be written down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A file or the directory does not do what it should.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn at<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> UsageError + 'a {
    move |source| UsageError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// What opening found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Lines of the journal that are damaged; what they said is lost.
    pub(super) damaged: usize,
    /// Where a ledger went that could not be read.
    pub(super) set_aside: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct LedgerFile {
    version: u32,
    generation: u64,
    ledger: Written,
}

/// The files as their one writer has them.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    generation: u64,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Journal {
    /// Reads what is in `dir`, which is made if need be.
    pub(super) fn open(dir: &Path) -> Result<(Self, Ledger, Found), UsageError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(at("create", dir))?;
        let mut found = Found::default();
        let path = dir.join(LEDGER);
        let (generation, mut ledger) = match read_ledger(&path) {
            Ok(Some(file)) => (file.generation, Ledger::from(file.ledger)),
            Ok(None) => (0, Ledger::default()),
            Err(_) => {
                // A node that cannot count must run all the same; what was counted is kept for
                // whoever can mend it.
                let aside = dir.join("ledger.damaged.json");
                fs::rename(&path, &aside).map_err(at("set aside", &path))?;
                found.set_aside = Some(aside);
                let newest = journals(dir).into_iter().max();
                if let Some((_, journal)) = &newest {
                    let aside = dir.join("journal.damaged");
                    fs::rename(journal, aside).map_err(at("set aside", journal))?;
                }
                let generation = newest.map_or(0, |(generation, _)| generation + 1);
                (generation, Ledger::default())
            }
        };
        let path = name(dir, generation);
        let mut file = open_file(&path)?;
        let bytes = replay(&mut file, &mut ledger, &mut found).map_err(at("read", &path))?;
        sync_dir(dir)?;
        let mut journal = Self {
            dir: dir.to_owned(),
            generation,
            path,
            file,
            bytes,
        };
        if found.set_aside.is_some() {
            // So that the next start finds a ledger again, of this generation.
            journal.fold(&ledger)?;
        }
        journal.remove_others();
        Ok((journal, ledger, found))
    }

    /// Writes charges down; durable when this returns. Nothing of them counts if it fails.
    pub(super) fn append(&mut self, charges: &[Charge]) -> Result<(), UsageError> {
        let mut lines = Vec::new();
        for charge in charges {
            let json = serde_json::to_vec(charge).expect("a charge becomes JSON");
            lines.extend(hash_of(&json).into_bytes());
            lines.push(b' ');
            lines.extend(json);
            lines.push(b'\n');
        }
        let written = self
            .file
            .write_all(&lines)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // What is there in part must not be read back: it will be charged again.
            let _ = self.file.set_len(self.bytes);
            return Err(at("write to", &self.path)(error));
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Tells whether it is time to [`Self::fold`].
    pub(super) fn is_long(&self) -> bool {
        self.bytes >= MAX_JOURNAL_BYTES
    }

    /// Writes the sums down and begins a new journal.
    pub(super) fn fold(&mut self, ledger: &Ledger) -> Result<(), UsageError> {
        let generation = self.generation + 1;
        let content = LedgerFile {
            version: VERSION,
            generation,
            ledger: Written::from(ledger),
        };
        let next = name(&self.dir, generation);
        // One that is left there from a fold that failed half-way says nothing new.
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at("remove", &next)(error));
            }
            _ => {}
        }
        let file = open_file(&next)?;
        let path = self.dir.join(LEDGER);
        let draft = self.dir.join("ledger.new");
        let json = serde_json::to_vec(&content).expect("a ledger becomes JSON");
        write_synced(&draft, &json)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(at("write", &path))?;
        sync_dir(&self.dir)?;
        (self.generation, self.path, self.file, self.bytes) = (generation, next, file, 0);
        self.remove_others();
        Ok(())
    }

    /// Makes every write fail, as a full disk does.
    #[cfg(test)]
    pub(super) fn break_for_test(&mut self, path: &Path) {
        self.file = File::open(path).expect("the journal can be read");
    }

    fn remove_others(&self) {
        for (generation, path) in journals(&self.dir) {
            if generation != self.generation {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn read_ledger(path: &Path) -> io::Result<Option<LedgerFile>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.take(MAX_LEDGER_BYTES).read_to_end(&mut text)?;
    let read: LedgerFile = serde_json::from_slice(&text)?;
    match read.version {
        VERSION => Ok(Some(read)),
        _ => Err(io::Error::other("a ledger of another version")),
    }
}

/// Applies what the journal says; what a crash tore at its end is cut off.
fn replay(file: &mut File, ledger: &mut Ledger, found: &mut Found) -> io::Result<u64> {
    let mut text = Vec::new();
    (&mut *file).take(MAX_READ_BYTES).read_to_end(&mut text)?;
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    if whole < text.len() {
        file.set_len(whole as u64)?;
        file.sync_data()?;
    }
    for line in text[..whole].split(|byte| *byte == b'\n') {
        if line.is_empty() {
            continue;
        }
        match parse(line) {
            Some(charge) => ledger.apply(&charge),
            None => found.damaged += 1,
        }
    }
    Ok(whole as u64)
}

fn parse(line: &[u8]) -> Option<Charge> {
    let (hash, json) = line.split_at_checked(HASH_DIGITS)?;
    let json = json.strip_prefix(b" ")?;
    if hash != hash_of(json).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn hash_of(json: &[u8]) -> String {
    let mut hex = Hash::of(json).to_string();
    hex.truncate(HASH_DIGITS);
    hex
}

fn name(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("journal-{generation}"))
}

fn journals(dir: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let generation = name.to_str()?.strip_prefix("journal-")?.parse().ok()?;
            Some((generation, entry.path()))
        })
        .collect()
}

fn open_file(path: &Path) -> Result<File, UsageError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(at("open", path))
}

fn sync_dir(dir: &Path) -> Result<(), UsageError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(at("sync", dir))
}

/// Writes a file that is its owner's alone, durable when this returns.
pub(in crate::control) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::usage::ledger::{Account, Used};

    fn charge(cpu_ms: u64) -> Charge {
        Charge {
            at_ms: 1_000_000_000,
            over_ms: 10,
            account: Account {
                agent: Some("mender".into()),
                sandbox: Some("box".into()),
                ..Account::default()
            },
            used: Used {
                cpu_ms,
                ..Used::default()
            },
            monitor: None,
            network: None,
            disk: None,
        }
    }

    fn total(ledger: &Ledger) -> u64 {
        ledger.ever().values().map(|used| used.cpu_ms).sum()
    }

    fn reopened(dir: &Path) -> (u64, Found) {
        let (_, ledger, found) = Journal::open(dir).unwrap();
        (total(&ledger), found)
    }

    #[test]
    fn a_journal_torn_at_any_byte_costs_the_write_that_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, ..) = Journal::open(dir.path()).unwrap();
        journal.append(&[charge(1), charge(2)]).unwrap();
        let kept = usize::try_from(journal.bytes).unwrap();
        journal.append(&[charge(4)]).unwrap();
        let path = journal.path.clone();
        let whole = fs::read(&path).unwrap();
        for cut in kept..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(reopened(dir.path()), (3, Found::default()), "cut at {cut}");
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(reopened(dir.path()), (7, Found::default()));
    }

    #[test]
    fn a_damaged_line_costs_that_line_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, ..) = Journal::open(dir.path()).unwrap();
        journal.append(&[charge(1), charge(2), charge(4)]).unwrap();
        let text = fs::read_to_string(&journal.path).unwrap();
        fs::write(&journal.path, text.replace("\"cpu_ms\":2", "\"cpu_ms\":9")).unwrap();
        let (sum, found) = reopened(dir.path());
        assert_eq!((sum, found.damaged), (5, 1));
    }

    #[test]
    fn folding_counts_once_wherever_it_stops() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, mut ledger, _) = Journal::open(dir.path()).unwrap();
        for cpu_ms in [1, 2] {
            journal.append(&[charge(cpu_ms)]).unwrap();
            ledger.apply(&charge(cpu_ms));
        }
        let old = fs::read(&journal.path).unwrap();
        let old_path = journal.path.clone();
        journal.fold(&ledger).unwrap();
        assert!(!old_path.exists());
        journal.append(&[charge(4)]).unwrap();
        assert_eq!(reopened(dir.path()).0, 7);
        // It stopped after the rename: the old journal is still there, and counts for nothing.
        fs::write(&old_path, &old).unwrap();
        assert_eq!(reopened(dir.path()).0, 7);
        assert!(!old_path.exists());
        // It stopped before: a journal of the next generation is there, and the old pair counts.
        let (mut journal, ledger, _) = Journal::open(dir.path()).unwrap();
        fs::write(name(dir.path(), journal.generation + 1), b"nonsense\n").unwrap();
        assert_eq!(reopened(dir.path()).0, 7);
        fs::write(name(dir.path(), journal.generation + 1), b"nonsense\n").unwrap();
        journal.fold(&ledger).unwrap();
        assert_eq!(reopened(dir.path()), (7, Found::default()));
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, ledger, _) = Journal::open(dir.path()).unwrap();
        journal.fold(&ledger).unwrap();
        journal.append(&[charge(1)]).unwrap();
        fs::write(dir.path().join(LEDGER), b"{\"version\": 99}").unwrap();
        let (sum, found) = reopened(dir.path());
        assert_eq!(sum, 0);
        assert!(found.set_aside.unwrap().exists());
        // From here on it counts again.
        let (mut journal, ..) = Journal::open(dir.path()).unwrap();
        journal.append(&[charge(8)]).unwrap();
        assert_eq!(reopened(dir.path()).0, 8);
    }
}
