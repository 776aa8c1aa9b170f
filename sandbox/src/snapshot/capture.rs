//! From a guest at rest to chunks.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::mpsc, thread};

use super::{About, CHUNK_BYTES, DiskMap, Frozen, Manifest, Map, SnapshotError, freeze::io_error};
use crate::{Progress, ProgressEvent, chunks::PackWriter, sparse};

/// Chunks that are read ahead of the one that is named and stored.
const READ_AHEAD: usize = 32;
/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 8 * 1024 * 1024;
/// What a chunk is compared with: far faster than looking at each byte.
static ZERO: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// A snapshot whose chunks were put into a writer; it is whole once the writer has finished.
#[derive(Debug)]
pub struct Captured {
    /// What it is made of.
    pub manifest: Manifest,
    /// Bytes that were read: what is no hole.
    pub bytes_read: u64,
    /// Bytes of it that no snapshot before had.
    pub bytes_new: u64,
    /// Bytes that these took in the store, compressed and sealed, when this returned; the writer
    /// knows the whole of it when it has finished.
    pub bytes_stored: u64,
}

/// Puts a guest at rest into the chunk store. Blocks.
///
/// The caller then finishes the writer, and stores the manifest beside the packs.
///
/// # Errors
/// [`SnapshotError::Chunks`] and [`SnapshotError::Io`].
pub fn capture(
    frozen: &Frozen,
    about: About,
    writer: &mut PackWriter,
    progress: &Progress,
) -> Result<Captured, SnapshotError> {
    let before = writer.stats();
    let device = File::open(&frozen.device).map_err(io_error(&frozen.device))?;
    let device_size = device.metadata().map_err(io_error(&frozen.device))?.len();
    let allocated = |file: &File| {
        use std::os::unix::fs::MetadataExt;
        file.metadata().map_or(0, |meta| meta.blocks() * 512)
    };
    let disks = frozen.disks.iter().map(|disk| allocated(&disk.file));
    let mut work = Work {
        writer,
        progress,
        read: 0,
        reported: 0,
        total: device_size + allocated(frozen.ram.file()) + disks.sum::<u64>(),
    };
    // What a guest that is resumed needs first comes first.
    let device = work.store(&device, device_size, &frozen.device)?;
    let ram = work.store(frozen.ram.file(), frozen.ram.size(), Path::new("memory"))?;
    let mut disks = Vec::with_capacity(frozen.disks.len());
    for disk in &frozen.disks {
        disks.push(DiskMap {
            number: disk.number,
            name: disk.name.clone(),
            map: work.store(&disk.file, disk.size, Path::new(&disk.name))?,
        });
    }
    let bytes_read = work.read;
    let after = writer.stats();
    Ok(Captured {
        manifest: Manifest {
            about,
            ram,
            disks,
            device,
        },
        bytes_read,
        bytes_new: after.new_bytes - before.new_bytes,
        bytes_stored: after.stored_bytes - before.stored_bytes,
    })
}

struct Work<'a> {
    writer: &'a mut PackWriter,
    progress: &'a Progress,
    read: u64,
    reported: u64,
    total: u64,
}

impl Work<'_> {
    /// Stores one file; another thread reads it meanwhile.
    fn store(&mut self, file: &File, size: u64, path: &Path) -> Result<Map, SnapshotError> {
        let count = usize::try_from(size.div_ceil(CHUNK_BYTES as u64));
        let count = count.map_err(|_| io_error(path)(io::ErrorKind::FileTooLarge.into()))?;
        let mut chunks = vec![None; count];
        thread::scope(|scope| {
            let (send, receive) = mpsc::sync_channel(READ_AHEAD);
            let reader = scope.spawn(move || read(file, size, &send));
            for (number, bytes) in &receive {
                let (number, bytes): (usize, Vec<u8>) = (number, bytes);
                if bytes != ZERO[..bytes.len()] {
                    chunks[number] = Some(self.writer.put(&bytes)?);
                }
                self.read += bytes.len() as u64;
                self.report();
            }
            let read = reader.join().expect("reading does not panic");
            read.map_err(io_error(path))
        })?;
        Ok(Map { size, chunks })
    }

    fn report(&mut self) {
        if self.read - self.reported < REPORT_BYTES {
            return;
        }
        self.reported = self.read;
        (self.progress)(ProgressEvent {
            step: "store",
            detail: "storing memory and disks",
            done: self.read.min(self.total),
            total: self.total,
        });
    }
}

/// Reads every chunk that is no hole. Ends early, and well, when nobody takes them any more.
fn read(file: &File, size: u64, chunks: &mpsc::SyncSender<(usize, Vec<u8>)>) -> io::Result<()> {
    const STEP: u64 = CHUNK_BYTES as u64;
    let mut at = 0;
    while let Some(data) = sparse::next_data(file, at, size)? {
        // A range may begin within a chunk that the one before ended in.
        at = at.max(data.start / STEP * STEP);
        while at < data.end {
            let length = usize::try_from((size - at).min(STEP)).expect("a chunk fits");
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at)?;
            let number = usize::try_from(at / STEP).expect("checked with the size");
            if chunks.send((number, bytes)).is_err() {
                return Ok(());
            }
            at += STEP;
        }
    }
    Ok(())
}
