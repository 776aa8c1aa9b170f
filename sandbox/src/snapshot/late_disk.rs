//! A disk that is used while its content is on its way.
//!
//! All of it lies in the disk's own file, which is what remains when everything is there. Which
//! chunks of it are there stands in a second file, a byte for each, written after the chunk: both
//! outlive this process, and the host's end ends the guest anyway.
//!
//! What the guest writes counts as there, whatever the snapshot holds in its place.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use rustix::fs::{FallocateFlags, fallocate};

use super::{CHUNK_BYTES, Map, SnapshotError, freeze::io_error};
use crate::chunks::{ChunkError, ChunkId, ReadChunks};

const CHUNK: u64 = CHUNK_BYTES as u64;
/// Locks that chunks share.
const LOCKS: usize = 64;

/// Why a part of a disk is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum Absent {
    /// Nobody has said yet where its content comes from.
    #[error("it is not known where its content comes from")]
    NoSource,
    /// The chunk cannot be had, for now.
    #[error("a part of its content cannot be had")]
    Chunk(#[from] ChunkError),
    /// The file failed, or the chunk is not what belongs there.
    #[error("its file cannot be used")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct LateDisk {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) size: u64,
    file: File,
    marks: File,
    here: Vec<AtomicBool>,
    /// Chunks that are not here.
    left: AtomicU64,
    /// Where the search for the next absent chunk begins.
    next: AtomicUsize,
    /// Held while an absent chunk is written, so that what the guest wrote meanwhile stays.
    locks: [Mutex<()>; LOCKS],
    source: RwLock<Option<Source>>,
}

#[derive(Debug, Clone)]
struct Source {
    chunks: Arc<[Option<ChunkId>]>,
    reader: Arc<dyn ReadChunks>,
}

impl LateDisk {
    /// Begins: `file` is empty and of its full size.
    pub(super) fn begin(
        number: u32,
        name: &str,
        map: &Map,
        file: &Path,
        marks: &Path,
    ) -> Result<Self, SnapshotError> {
        let here: Vec<u8> = map
            .chunks
            .iter()
            .map(|chunk| chunk.is_none().into())
            .collect();
        fs::write(marks, &here).map_err(io_error(marks))?;
        Self::find(number, name, file, marks)
    }

    /// Goes on where another process was.
    pub(super) fn find(
        number: u32,
        name: &str,
        path: &Path,
        marks: &Path,
    ) -> Result<Self, SnapshotError> {
        let open = |path: &Path| {
            let opened = fs::OpenOptions::new().read(true).write(true).open(path);
            opened.map_err(io_error(path))
        };
        let file = open(path)?;
        let size = file.metadata().map_err(io_error(path))?.len();
        let here = fs::read(marks).map_err(io_error(marks))?;
        if here.len() as u64 != size.div_ceil(CHUNK) {
            let what = "its marks are of another size";
            return Err(io_error(marks)(io::Error::other(what)));
        }
        let left = here.iter().filter(|mark| **mark == 0).count() as u64;
        Ok(Self {
            number,
            name: name.to_owned(),
            size,
            file,
            marks: open(marks)?,
            here: here
                .iter()
                .map(|mark| AtomicBool::new(*mark != 0))
                .collect(),
            left: AtomicU64::new(left),
            next: AtomicUsize::new(0),
            locks: [const { Mutex::new(()) }; LOCKS],
            source: RwLock::new(None),
        })
    }

    /// Says where the content comes from.
    pub(super) fn feed(&self, map: &Map, reader: &Arc<dyn ReadChunks>) {
        let source = Source {
            chunks: map.chunks.as_slice().into(),
            reader: Arc::clone(reader),
        };
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    pub(super) fn has_source(&self) -> bool {
        self.source().is_some()
    }

    /// Bytes that are not here, in whole chunks.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire) * CHUNK
    }

    /// Whether everything that a request for these bytes touches is here.
    pub(super) fn is_here(&self, at: u64, length: u64) -> bool {
        self.touched(at, length).all(|chunk| self.has(chunk))
    }

    /// Has everything here that a read of these bytes needs. Blocks, and may be left alone: what
    /// it does changes nothing that the guest wrote.
    pub(super) fn bring(&self, at: u64, length: u64) -> Result<(), Absent> {
        self.touched(at, length)
            .try_for_each(|chunk| self.ensure(chunk))
    }

    /// Has everything here that a write of these bytes needs: the chunks that it changes in part.
    pub(super) fn bring_edges(&self, at: u64, length: u64) -> Result<(), Absent> {
        let mut touched = self
            .touched(at, length)
            .filter(|chunk| !self.covers(*chunk, at, length));
        touched.try_for_each(|chunk| self.ensure(chunk))
    }

    /// Reads what is here.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// Writes; what it changes in part is here.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(at, bytes.len() as u64, |part| {
            let from = usize::try_from(part.start - at).expect("within the bytes");
            let to = usize::try_from(part.end - at).expect("within the bytes");
            self.file.write_all_at(&bytes[from..to], part.start)
        })
    }

    /// Makes bytes zero, as a hole unless they are to `keep` their room; what it changes in part
    /// is here.
    pub(super) fn zero(&self, at: u64, length: u64, keep: bool) -> io::Result<()> {
        self.change(at, length, |part| {
            let how = match keep {
                true => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                false => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            };
            Ok(fallocate(
                &self.file,
                how,
                part.start,
                part.end - part.start,
            )?)
        })
    }

    /// Forgets bytes that the guest has no use for; a chunk that is absent and keeps a part stays
    /// absent.
    pub(super) fn discard(&self, at: u64, length: u64) -> io::Result<()> {
        for chunk in self.touched(at, length) {
            if self.has(chunk) || self.covers(chunk, at, length) {
                let part = self.place(chunk);
                let (from, to) = (part.start.max(at), part.end.min(at + length));
                self.zero(from, to - from, false)?;
            }
        }
        Ok(())
    }

    /// Brings the next chunk that is absent; returns whether there was one. Blocks.
    pub(super) fn bring_next(&self) -> Result<bool, Absent> {
        let from = self.next.load(Ordering::Relaxed);
        let Some(chunk) = (from..self.here.len()).find(|chunk| !self.has(*chunk)) else {
            return Ok(false);
        };
        self.ensure(chunk)?;
        self.next.store(chunk + 1, Ordering::Relaxed);
        Ok(true)
    }

    /// Does something to the bytes, a chunk at a time; those that it covers are here after that.
    fn change(
        &self,
        at: u64,
        length: u64,
        make: impl Fn(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.is_here(at, length) {
            return make(at..at + length);
        }
        for chunk in self.touched(at, length) {
            let place = self.place(chunk);
            let part = place.start.max(at)..place.end.min(at + length);
            let _lock = self.lock(chunk);
            if self.has(chunk) {
                make(part)?;
                continue;
            }
            if part != place {
                return Err(io::Error::other(
                    "a part of an absent chunk was to be changed",
                ));
            }
            make(part)?;
            self.mark(chunk)?;
        }
        Ok(())
    }

    fn ensure(&self, chunk: usize) -> Result<(), Absent> {
        if self.has(chunk) {
            return Ok(());
        }
        let source = self.source().ok_or(Absent::NoSource)?;
        let place = self.place(chunk);
        // Without a lock: this may take as long as it takes, and the guest may write meanwhile.
        let bytes = match source.chunks.get(chunk).copied().flatten() {
            Some(id) => Some(source.reader.read(&id)?),
            None => None,
        };
        if bytes
            .as_ref()
            .is_some_and(|bytes| bytes.len() as u64 != place.end - place.start)
        {
            return Err(io::Error::other("a chunk has another size than its place").into());
        }
        let _lock = self.lock(chunk);
        if self.has(chunk) {
            return Ok(());
        }
        if let Some(bytes) = bytes {
            self.file.write_all_at(&bytes, place.start)?;
        }
        Ok(self.mark(chunk)?)
    }

    /// Writes down that a chunk is here; its lock is held.
    fn mark(&self, chunk: usize) -> io::Result<()> {
        self.marks.write_all_at(&[1], chunk as u64)?;
        self.here[chunk].store(true, Ordering::Release);
        self.left.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    fn has(&self, chunk: usize) -> bool {
        self.here[chunk].load(Ordering::Acquire)
    }

    fn place(&self, chunk: usize) -> Range<u64> {
        let start = chunk as u64 * CHUNK;
        start..(start + CHUNK).min(self.size)
    }

    fn covers(&self, chunk: usize, at: u64, length: u64) -> bool {
        let place = self.place(chunk);
        at <= place.start && place.end <= at + length
    }

    /// Returns the chunks in which these bytes lie, which are within the disk.
    fn touched(&self, at: u64, length: u64) -> Range<usize> {
        let number = |at: u64| usize::try_from(at).expect("a disk has fewer than 2^32 chunks");
        match length {
            0 => 0..0,
            _ => number(at / CHUNK)..number((at + length).div_ceil(CHUNK)),
        }
    }

    fn source(&self) -> Option<Source> {
        self.source
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn lock(&self, chunk: usize) -> MutexGuard<'_, ()> {
        self.locks[chunk % LOCKS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Chunks that are had once they were allowed.
    #[derive(Debug, Default)]
    pub(in crate::snapshot) struct Shelf(pub(in crate::snapshot) Mutex<Vec<(ChunkId, Vec<u8>)>>);

    impl ReadChunks for Shelf {
        fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
            let shelf = self.0.lock().unwrap();
            let found = shelf.iter().find(|(other, _)| other == id);
            let found = found.map(|(_, bytes)| bytes.clone());
            found.ok_or(ChunkError::MissingChunk { chunk: *id })
        }
    }

    pub(in crate::snapshot) fn id(byte: u8) -> ChunkId {
        ChunkId::from_bytes([byte; 32])
    }

    /// Four chunks and a half, the third zero.
    pub(in crate::snapshot) fn map() -> Map {
        Map {
            size: 4 * CHUNK + 100,
            chunks: [1, 2, 0, 4, 5]
                .map(|byte| (byte != 0).then(|| id(byte)))
                .to_vec(),
        }
    }

    pub(in crate::snapshot) fn shelf(bytes: &[u8]) -> Shelf {
        let chunk = |byte: &u8| {
            let length = if *byte == 5 { 100 } else { CHUNK_BYTES };
            (id(*byte), vec![*byte; length])
        };
        Shelf(Mutex::new(bytes.iter().map(chunk).collect()))
    }

    fn begin(dir: &Path) -> LateDisk {
        let (file, marks) = (dir.join("upper"), dir.join("marks"));
        File::create(&file).unwrap().set_len(map().size).unwrap();
        LateDisk::begin(1, "upper", &map(), &file, &marks).unwrap()
    }

    fn byte(disk: &LateDisk, at: u64) -> u8 {
        let mut read = [0];
        disk.read(at, &mut read).unwrap();
        read[0]
    }

    #[test]
    fn what_was_written_stays_and_the_rest_comes() {
        let dir = tempfile::tempdir().unwrap();
        let disk = begin(dir.path());
        assert_eq!(disk.left(), 4 * CHUNK);
        assert!(matches!(disk.bring(0, 1), Err(Absent::NoSource)));
        let reader: Arc<dyn ReadChunks> = Arc::new(shelf(&[1, 2, 4, 5]));
        disk.feed(&map(), &reader);
        // A whole chunk needs nothing of what was there; a part of one does.
        disk.bring_edges(CHUNK, CHUNK).unwrap();
        disk.write(CHUNK, &vec![9; CHUNK_BYTES]).unwrap();
        assert_eq!(disk.left(), 3 * CHUNK);
        disk.bring_edges(3 * CHUNK + 10, 20).unwrap();
        disk.write(3 * CHUNK + 10, &[8; 20]).unwrap();
        // The guest goes, and so does the process.
        drop(disk);
        let (file, marks) = (dir.path().join("upper"), dir.path().join("marks"));
        let disk = LateDisk::find(1, "upper", &file, &marks).unwrap();
        assert_eq!(disk.left(), 2 * CHUNK);
        disk.feed(&map(), &reader);
        while disk.bring_next().unwrap() {}
        assert_eq!(disk.left(), 0);
        let found: Vec<u8> = (0..5).map(|chunk| byte(&disk, chunk * CHUNK)).collect();
        assert_eq!(found, [1, 9, 0, 4, 5]);
        assert_eq!(byte(&disk, 3 * CHUNK + 10), 8);
        assert_eq!(byte(&disk, 3 * CHUNK + 30), 4);
    }

    #[test]
    fn what_nobody_has_is_absent_and_can_be_had_later() {
        let dir = tempfile::tempdir().unwrap();
        let disk = begin(dir.path());
        let some = Arc::new(shelf(&[1]));
        disk.feed(&map(), &(Arc::clone(&some) as Arc<dyn ReadChunks>));
        disk.bring(0, CHUNK).unwrap();
        assert!(matches!(disk.bring(CHUNK, 1), Err(Absent::Chunk(_))));
        assert!(matches!(disk.bring_next(), Err(Absent::Chunk(_))));
        some.0
            .lock()
            .unwrap()
            .extend(shelf(&[2, 4, 5]).0.into_inner().unwrap());
        while disk.bring_next().unwrap() {}
        assert_eq!(byte(&disk, CHUNK), 2);
    }

    #[test]
    fn a_chunk_of_another_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let disk = begin(dir.path());
        let wrong = Shelf(Mutex::new(vec![(id(5), vec![5; 101])]));
        disk.feed(&map(), &(Arc::new(wrong) as Arc<dyn ReadChunks>));
        assert!(matches!(disk.bring(4 * CHUNK, 1), Err(Absent::Io(_))));
    }

    #[test]
    fn zeroes_and_discards_leave_nothing_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let disk = begin(dir.path());
        let reader: Arc<dyn ReadChunks> = Arc::new(shelf(&[1, 2, 4, 5]));
        disk.feed(&map(), &reader);
        disk.bring_edges(100, CHUNK).unwrap();
        disk.zero(100, CHUNK, true).unwrap();
        disk.discard(3 * CHUNK + 1, CHUNK).unwrap();
        assert_eq!(disk.left(), 2 * CHUNK, "a part of a chunk that is absent");
        while disk.bring_next().unwrap() {}
        let found = [0, 100, CHUNK + 99, CHUNK + 100, 3 * CHUNK].map(|at| byte(&disk, at));
        assert_eq!(found, [1, 0, 0, 2, 4]);
    }
}
