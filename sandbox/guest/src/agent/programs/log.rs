//! What a program said, as much of it as is kept.
//!
//! Output is one sequence of bytes with positions; which of them were standard output and which
//! standard error is noted beside it. The newest are in memory. Older ones go to a file that has
//! no name, when nobody reads, and are dropped when they were read. Beyond the file's bound the
//! oldest are lost; whoever reads then learns how many.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
};

use rhizome_guest::wire::{Kind, MAX_PAYLOAD};
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of a program's output that are held in memory.
pub(super) const MEMORY_BYTES: usize = 1024 * 1024;
/// Bytes that are held although they were sent: what can be on its way to the reader, in the
/// stream's window, in the node and in its client. Whoever attaches after a loss gets them again.
pub(super) const HISTORY_BYTES: usize = 768 * 1024;
/// Bytes of a program's output that are held in a file.
pub(super) const SPILL_BYTES: u64 = 16 * 1024 * 1024;
/// Turns between standard output and standard error that are noted.
const MAX_RUNS: usize = 16 * 1024;
/// Where the file may be made; a memory file system would not help.
const SPILL_DIRS: [&str; 2] = ["/var/tmp", "/tmp"];

/// Output of a program.
#[derive(Default)]
pub(super) struct Log {
    /// Position of the oldest byte that is kept.
    base: u64,
    /// Position of the oldest byte in memory.
    memory_base: u64,
    memory: VecDeque<u8>,
    runs: VecDeque<Run>,
    spill: Spill,
}

/// Bytes of one kind, up to `end`.
struct Run {
    end: u64,
    kind: Kind,
}

#[derive(Default)]
enum Spill {
    #[default]
    Unused,
    Ring(File),
    /// No file can be made here; what does not fit memory is lost.
    None,
}

impl Log {
    /// Position of the oldest byte that is kept.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Position after the newest byte.
    pub(super) fn end(&self) -> u64 {
        self.memory_base + self.memory.len() as u64
    }

    /// Bytes that are kept.
    pub(super) fn len(&self) -> u64 {
        self.end() - self.base
    }

    /// Returns how much can be added without losing what a reader at `position` has yet to get.
    pub(super) fn room(&self, position: u64) -> usize {
        if self.runs.len() >= MAX_RUNS && self.runs.front().is_some_and(|run| run.end > position) {
            return 0;
        }
        let read = usize::try_from(position.saturating_sub(self.memory_base)).unwrap_or(usize::MAX);
        MEMORY_BYTES - self.memory.len().min(MEMORY_BYTES) + read.saturating_sub(HISTORY_BYTES)
    }

    /// Adds output. With a reader, at `position`, no more than there is room for.
    pub(super) fn append(&mut self, kind: Kind, data: &[u8], reader: Option<u64>) {
        let over = (self.memory.len() + data.len()).saturating_sub(MEMORY_BYTES);
        if over > 0 {
            // More than all that is there: its beginning won't be kept either.
            let evicted = over.min(self.memory.len());
            match reader {
                Some(_) => self.drop_before(self.memory_base + evicted as u64),
                None => self.spill(evicted),
            }
        }
        self.memory.extend(data);
        let end = self.end();
        match self.runs.back_mut() {
            Some(last) if last.kind == kind => last.end = end,
            _ => self.runs.push_back(Run { end, kind }),
        }
        while self.runs.len() > MAX_RUNS {
            let oldest = self.runs.front().map_or(self.base, |run| run.end);
            self.drop_before(oldest);
        }
    }

    /// Copies some bytes of one kind from `position` on to `into`; `None` at the end.
    pub(super) fn read(&self, position: u64, into: &mut Vec<u8>) -> io::Result<Option<Kind>> {
        into.clear();
        let at = self.runs.partition_point(|run| run.end <= position);
        let Some(run) = self.runs.get(at) else {
            return Ok(None);
        };
        let wanted = (run.end - position).min(MAX_PAYLOAD as u64);
        if position < self.memory_base {
            let Spill::Ring(file) = &self.spill else {
                return Err(io::Error::other("kept output is gone"));
            };
            let offset = position % SPILL_BYTES;
            let len = wanted
                .min(self.memory_base - position)
                .min(SPILL_BYTES - offset);
            into.resize(to_usize(len), 0);
            file.read_exact_at(into, offset)?;
        } else {
            let from = to_usize(position - self.memory_base);
            self.copy(from, to_usize(wanted), into);
        }
        Ok(Some(run.kind))
    }

    /// Forgets all bytes before `position`.
    pub(super) fn drop_before(&mut self, position: u64) {
        let position = position.clamp(self.base, self.end());
        self.base = position;
        if position > self.memory_base {
            self.memory.drain(..to_usize(position - self.memory_base));
            self.memory_base = position;
        }
        while self.runs.front().is_some_and(|run| run.end <= position) {
            self.runs.pop_front();
        }
        if self.base == self.memory_base && matches!(self.spill, Spill::Ring(_)) {
            self.spill = Spill::Unused;
        }
    }

    /// Gives back memory that is not needed any more.
    pub(super) fn settle(&mut self) {
        self.memory.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// Appends bytes in memory to `into`.
    fn copy(&self, from: usize, len: usize, into: &mut Vec<u8>) {
        let (first, second) = self.memory.as_slices();
        let end = from + len;
        into.extend_from_slice(&first[from.min(first.len())..end.min(first.len())]);
        let shift = |at: usize| at.saturating_sub(first.len());
        into.extend_from_slice(&second[shift(from)..shift(end)]);
    }

    /// Moves the oldest bytes from memory to the file.
    fn spill(&mut self, len: usize) {
        if matches!(self.spill, Spill::Unused) {
            self.spill = nameless_file().map_or(Spill::None, Spill::Ring);
        }
        let Spill::Ring(file) = &self.spill else {
            return self.drop_before(self.memory_base + len as u64);
        };
        let mut bytes = Vec::new();
        self.copy(0, len, &mut bytes);
        let mut at = self.memory_base;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let offset = at % SPILL_BYTES;
            let fits = rest.len().min(to_usize(SPILL_BYTES - offset));
            if file.write_all_at(&rest[..fits], offset).is_err() {
                // The disk is full: what is in the file stays readable only up to a hole.
                self.spill = Spill::None;
                return self.drop_before(self.memory_base + len as u64);
            }
            at += fits as u64;
            rest = &rest[fits..];
        }
        self.memory.drain(..len);
        self.memory_base += len as u64;
        self.drop_before(self.memory_base.saturating_sub(SPILL_BYTES));
    }
}

fn nameless_file() -> io::Result<File> {
    let mut last = io::Error::other("no directory for it");
    for dir in SPILL_DIRS {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let path = format!("{dir}/.rhizome-output-{:016x}", u64::from_ne_bytes(random));
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match opened {
            Ok(file) => {
                fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("what is kept fits memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(log: &Log, mut position: u64) -> Vec<(Kind, Vec<u8>)> {
        let mut read: Vec<(Kind, Vec<u8>)> = Vec::new();
        let mut piece = Vec::new();
        while let Some(kind) = log.read(position, &mut piece).unwrap() {
            position += piece.len() as u64;
            match read.last_mut() {
                Some((last, bytes)) if *last == kind => bytes.extend(&piece),
                _ => read.push((kind, piece.clone())),
            }
        }
        assert_eq!(position, log.end());
        read
    }

    #[test]
    fn kinds_stay_in_order() {
        let mut log = Log::default();
        log.append(Kind::Stdout, b"one", None);
        log.append(Kind::Stdout, b" two", None);
        log.append(Kind::Stderr, b"no", None);
        log.append(Kind::Stdout, b"three", None);
        let expected = [
            (Kind::Stdout, b"one two".to_vec()),
            (Kind::Stderr, b"no".to_vec()),
            (Kind::Stdout, b"three".to_vec()),
        ];
        assert_eq!(all(&log, 0), expected);
        assert_eq!(all(&log, 8)[0], (Kind::Stderr, b"o".to_vec()));
        assert!(all(&log, log.end()).is_empty());
    }

    #[test]
    fn what_nobody_reads_goes_to_the_file_and_then_its_beginning_is_lost() {
        let mut log = Log::default();
        let total = SPILL_BYTES + 3 * MEMORY_BYTES as u64;
        let byte = |position: u64| (position % 251) as u8;
        let mut position = 0;
        while position < total {
            let piece: Vec<u8> = (position..position + 10_000).map(byte).collect();
            log.append(Kind::Stdout, &piece, None);
            position += 10_000;
        }
        assert_eq!(log.end(), position);
        assert!(log.len() <= SPILL_BYTES + MEMORY_BYTES as u64);
        assert!(log.len() > SPILL_BYTES);
        let kept = all(&log, log.base());
        assert_eq!(kept.len(), 1);
        for (at, seen) in (log.base()..).zip(&kept[0].1) {
            assert_eq!(*seen, byte(at), "at {at}");
        }
    }

    #[test]
    fn a_reader_loses_nothing_and_has_some_history() {
        let mut log = Log::default();
        let mut read = 0;
        for _ in 0..1000 {
            while log.room(read) >= 5_000 {
                log.append(Kind::Stdout, &[1; 5_000], Some(read));
                assert!(log.base() <= read.saturating_sub(HISTORY_BYTES as u64));
                assert!(log.memory.len() <= MEMORY_BYTES);
            }
            read = (read + 30_000).min(log.end());
        }
        assert!(matches!(log.spill, Spill::Unused));
    }

    #[test]
    fn turns_have_a_bound_of_their_own() {
        let mut log = Log::default();
        for turn in 0..3 * MAX_RUNS {
            let kind = if turn % 2 == 0 {
                Kind::Stdout
            } else {
                Kind::Stderr
            };
            log.append(kind, b"x", None);
        }
        assert_eq!(log.runs.len(), MAX_RUNS);
        assert_eq!(log.len(), MAX_RUNS as u64);
        // With a reader that is behind, there is no room instead.
        assert_eq!(log.room(log.base()), 0);
        assert!(log.room(log.end()) > 0);
    }
}
