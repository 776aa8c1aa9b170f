//! The files of the audit log: lines of JSON, each naming the hash of the one before.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rhizome_identity::Hash;
use rhizome_memory::now_ms;

use super::{Entry, Note, clip};

/// A file of this size is followed by another, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// Files that are kept.
const MAX_FILES: usize = 16;
/// Longest line that is read back, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Why the audit log cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
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

fn at<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> AuditError + 'a {
    move |source| AuditError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Some entries, oldest first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// The first entry that does not follow from the one before it: one was changed or taken out.
    pub(crate) broken_at: Option<u64>,
}

/// The log as its one writer has it.
#[derive(Debug)]
pub(super) struct Log {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    bytes: u64,
    next: u64,
    prev: String,
}

impl Log {
    pub(super) fn open(dir: &Path) -> Result<Self, AuditError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(at("create", dir))?;
        let files = files(dir)?;
        let path = files
            .last()
            .map_or_else(|| name(dir, 0), |(_, path)| path.clone());
        let mut file = open_file(&path)?;
        let bytes = cut_torn_line(&mut file).map_err(at("mend the end of", &path))?;
        let (next, prev) = end(&files)?;
        Ok(Self {
            dir: dir.to_owned(),
            path,
            file,
            bytes,
            next,
            prev,
        })
    }

    pub(super) fn append(&mut self, note: Note) -> Result<(), AuditError> {
        if self.bytes >= MAX_FILE_BYTES {
            self.turn()?;
        }
        let entry = Entry {
            seq: self.next,
            at_ms: now_ms(),
            who: note.who,
            action: clip(&note.action),
            on: note.on.as_deref().map(clip),
            outcome: clip(&note.outcome),
            detail: note.detail.as_deref().map(clip),
            took_ms: note.took_ms,
            prev: self.prev.clone(),
        };
        let mut line = serde_json::to_vec(&entry).expect("an entry becomes JSON");
        let prev = link(&line);
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            // Half a line must not run into the next one.
            let _ = self.file.set_len(self.bytes);
            let _ = self.file.seek(SeekFrom::End(0));
            return Err(at("write to", &self.path)(error));
        }
        self.bytes += line.len() as u64;
        (self.next, self.prev) = (self.next + 1, prev);
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), AuditError> {
        self.file.sync_data().map_err(at("sync", &self.path))
    }

    /// Begins the next file, and takes away the oldest if there are too many.
    fn turn(&mut self) -> Result<(), AuditError> {
        self.sync()?;
        let path = name(&self.dir, self.next);
        self.file = open_file(&path)?;
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(at("sync", &self.dir))?;
        (self.path, self.bytes) = (path, 0);
        let files = files(&self.dir)?;
        for (_, old) in files.iter().take(files.len().saturating_sub(MAX_FILES)) {
            fs::remove_file(old).map_err(at("remove", old))?;
        }
        Ok(())
    }
}

/// Returns entries from number `after` on.
pub(super) fn read(dir: &Path, after: u64, limit: usize) -> Result<Page, AuditError> {
    let files = files(dir)?;
    let first = files.iter().rposition(|(first, _)| *first <= after);
    let mut page = Page::default();
    let mut prev: Option<String> = None;
    for (_, path) in &files[first.unwrap_or(0)..] {
        let file = match File::open(path) {
            // Turned away while we were reading.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(at("read", path))?,
        };
        let mut reader = BufReader::new(file);
        loop {
            let mut line = Vec::new();
            let read = reader
                .by_ref()
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line)
                .map_err(at("read", path))?;
            if read == 0 || line.last() != Some(&b'\n') {
                break;
            }
            line.pop();
            let entry = serde_json::from_slice::<Entry>(&line).ok();
            let follows = match (&entry, &prev) {
                (Some(entry), Some(prev)) => entry.prev == *prev,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if !follows && page.broken_at.is_none() {
                let seen = page.entries.last().map_or(after, |entry| entry.seq + 1);
                page.broken_at = Some(entry.as_ref().map_or(seen, |entry| entry.seq));
            }
            prev = Some(link(&line));
            if let Some(entry) = entry.filter(|entry| entry.seq >= after) {
                page.entries.push(entry);
                if page.entries.len() >= limit {
                    return Ok(page);
                }
            }
        }
    }
    Ok(page)
}

/// Returns the number that the next entry gets.
pub(super) fn next(dir: &Path) -> Result<u64, AuditError> {
    Ok(end(&files(dir)?)?.0)
}

/// Returns the number of the next entry, and the hash it names.
fn end(files: &[(u64, PathBuf)]) -> Result<(u64, String), AuditError> {
    // A file may be new and empty: the last line is then the last of the one before.
    for (first, path) in files.iter().rev() {
        let Some(line) = last_line(path).map_err(at("read", path))? else {
            continue;
        };
        // A line that is no entry breaks the chain, which reading shows; writing goes on.
        let seq = serde_json::from_slice::<Entry>(&line).map_or(*first, |entry| entry.seq + 1);
        return Ok((seq, link(&line)));
    }
    let first = files.last().map_or(0, |(first, _)| *first);
    Ok((first, link(b"")))
}

fn link(line: &[u8]) -> String {
    let mut hex = Hash::of(line).to_string();
    hex.truncate(32);
    hex
}

/// The name of the file whose first entry has this number.
fn name(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:012}.log"))
}

/// Returns the files, the oldest first, each with the number of its first entry.
fn files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, AuditError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(at("list", dir))? {
        let path = entry.map_err(at("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name
            .and_then(|name| name.strip_suffix(".log"))
            .and_then(|number| number.parse().ok());
        if let Some(first) = first {
            files.push((first, path));
        }
    }
    files.sort();
    Ok(files)
}

fn open_file(path: &Path) -> Result<File, AuditError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(at("open", path))
}

/// Cuts off what follows the last line end; returns the length that is left.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let from = len.saturating_sub(MAX_LINE_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let whole = tail
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let keep = from + whole as u64;
    if keep < len {
        file.set_len(keep)?;
        file.sync_data()?;
    }
    Ok(keep)
}

fn last_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(2 * MAX_LINE_BYTES)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let line = tail
        .split(|b| *b == b'\n')
        .rfind(|line| !line.is_empty())
        .map(<[u8]>::to_vec);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::audit::Who;

    fn note(number: u64) -> Note {
        Note::of_daemon("test", None, "ok").detail(number.to_string())
    }

    fn log_of(count: u64) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(dir.path()).unwrap();
        for number in 0..count {
            log.append(note(number)).unwrap();
        }
        log.sync().unwrap();
        let path = log.path.clone();
        (dir, path)
    }

    #[test]
    fn a_line_torn_at_any_byte_costs_that_line_alone() {
        let (dir, path) = log_of(3);
        let whole = fs::read(&path).unwrap();
        let two = whole.iter().rposition(|b| *b == b'\n').unwrap();
        let two = whole[..two].iter().rposition(|b| *b == b'\n').unwrap() + 1;
        for cut in two..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut log = Log::open(dir.path()).unwrap();
            assert_eq!(log.next, 2, "cut at {cut}");
            log.append(note(7)).unwrap();
            let page = read(dir.path(), 0, 10).unwrap();
            assert_eq!((page.entries.len(), page.broken_at), (3, None));
            assert_eq!(page.entries[2].who, Who::Daemon);
        }
    }

    #[test]
    fn a_line_that_was_changed_or_taken_out_shows() {
        let (dir, path) = log_of(4);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            text.replacen("\"detail\":\"1\"", "\"detail\":\"9\"", 1),
        )
        .unwrap();
        assert_eq!(read(dir.path(), 0, 10).unwrap().broken_at, Some(2));
        let lines: Vec<&str> = text.lines().collect();
        fs::write(&path, format!("{}\n{}\n{}\n", lines[0], lines[2], lines[3])).unwrap();
        assert_eq!(read(dir.path(), 0, 10).unwrap().broken_at, Some(2));
        fs::write(&path, format!("{}\nnonsense\n{}\n", lines[0], lines[3])).unwrap();
        let page = read(dir.path(), 0, 10).unwrap();
        assert_eq!((page.entries.len(), page.broken_at), (2, Some(1)));
    }

    #[test]
    fn the_log_is_bounded_and_its_numbers_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(dir.path()).unwrap();
        let files_before = 3 * MAX_FILES as u64;
        for number in 0..files_before {
            log.append(note(number)).unwrap();
            log.turn().unwrap();
        }
        drop(log);
        assert!(files(dir.path()).unwrap().len() <= MAX_FILES);
        let mut log = Log::open(dir.path()).unwrap();
        log.append(note(0)).unwrap();
        let page = read(dir.path(), 0, 1000).unwrap();
        assert_eq!(page.entries.last().unwrap().seq, files_before);
        assert_eq!(page.broken_at, None);
    }
}
