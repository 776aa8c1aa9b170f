//! From chunks to a guest at rest.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    thread,
};

use super::{
    CHUNK_BYTES, Manifest, Map, SnapshotError,
    freeze::{DEVICE, create, io_error},
};
use crate::{
    Progress, ProgressEvent,
    chunks::{ChunkId, ChunkReader},
    driver::{GuestRam, SavedState},
};

/// Most threads that open chunks.
const MAX_THREADS: usize = 8;
/// Chunks between two reports of progress.
const REPORT_CHUNKS: usize = 128;

/// A guest at rest, ready for [`crate::driver::VmmDriver::restore`].
#[derive(Debug)]
pub struct Materialised {
    /// Memory and devices.
    pub saved: SavedState,
    /// The writable disks, by number, as they lie in the VM's directory.
    pub disks: Vec<(u32, PathBuf)>,
    /// Bytes that were read from the store, as they are in the guest.
    pub bytes_read: u64,
}

/// Makes a guest's memory, devices and disks from a snapshot; the files go into `dir`, the new
/// VM's directory, and have holes where they are zero. Blocks.
///
/// # Errors
/// [`SnapshotError::Chunks`]; [`SnapshotError::Manifest`] for a chunk of another size than its
/// place; [`SnapshotError::Io`].
pub fn materialise(
    manifest: &Manifest,
    reader: &ChunkReader,
    dir: &Path,
    progress: &Progress,
) -> Result<Materialised, SnapshotError> {
    let ram = GuestRam::create(manifest.about.memory_mib).map_err(io_error(dir))?;
    let device = dir.join(DEVICE);
    let mut targets = vec![
        Target::make(&device, &manifest.device)?,
        Target {
            path: PathBuf::from("memory"),
            file: ram.file().try_clone().map_err(io_error(dir))?,
            map: &manifest.ram,
        },
    ];
    let mut disks = Vec::with_capacity(manifest.disks.len());
    for disk in &manifest.disks {
        let path = dir.join(&disk.name);
        targets.push(Target::make(&path, &disk.map)?);
        disks.push((disk.number, path));
    }
    let bytes_read = fill(&targets, reader, progress)?;
    Ok(Materialised {
        saved: SavedState { device, ram },
        disks,
        bytes_read,
    })
}

/// A file to be filled.
#[derive(Debug)]
struct Target<'a> {
    path: PathBuf,
    file: File,
    map: &'a Map,
}

impl<'a> Target<'a> {
    fn make(path: &Path, map: &'a Map) -> Result<Self, SnapshotError> {
        let file = create(path).map_err(io_error(path))?;
        file.set_len(map.size).map_err(io_error(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            map,
        })
    }

    /// Writes one chunk to its place and returns its size.
    fn put(&self, number: usize, id: &ChunkId, reader: &ChunkReader) -> Result<u64, SnapshotError> {
        let at = number as u64 * CHUNK_BYTES as u64;
        let length = (self.map.size - at).min(CHUNK_BYTES as u64);
        let bytes = reader.read(id)?;
        if bytes.len() as u64 != length {
            return Err(SnapshotError::Manifest {
                what: "a chunk has another size than its place".to_owned(),
            });
        }
        let written = self.file.write_all_at(&bytes, at);
        written.map_err(io_error(&self.path))?;
        Ok(length)
    }
}

/// Fills every target with several threads; the first error ends the others.
fn fill(
    targets: &[Target<'_>],
    reader: &ChunkReader,
    progress: &Progress,
) -> Result<u64, SnapshotError> {
    let pieces: Vec<(&Target<'_>, usize, &ChunkId)> = targets
        .iter()
        .flat_map(|target| {
            let chunks = target.map.chunks.iter().enumerate();
            chunks.filter_map(move |(number, id)| Some((target, number, id.as_ref()?)))
        })
        .collect();
    let (next, bytes, failed) = (
        AtomicUsize::new(0),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((target, place, id)) = pieces.get(number) else {
                break;
            };
            match target.put(*place, id, reader) {
                Ok(length) => bytes.fetch_add(length, Ordering::Relaxed),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            };
            if number % REPORT_CHUNKS == REPORT_CHUNKS - 1 {
                progress(ProgressEvent {
                    step: "load",
                    detail: "making memory and disks",
                    done: number as u64,
                    total: pieces.len() as u64,
                });
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(MAX_THREADS))
            .map(|_| scope.spawn(work))
            .collect();
        let mut ended = work();
        for other in others {
            ended = ended.and(other.join().expect("filling does not panic"));
        }
        ended
    })?;
    Ok(bytes.into_inner())
}
