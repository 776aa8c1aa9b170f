//! From chunks to a guest at rest.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use futures::future::FutureExt;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    Behind, CHUNK_BYTES, Manifest, Map, SnapshotError,
    freeze::{DEVICE, create, io_error},
};
use crate::{
    Progress, ProgressEvent,
    chunks::{ChunkId, ReadChunks},
    driver::{Arriving, DriverError, GuestRam, SavedState, Vm, VmRequest, VmmDriver},
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
    reader: &dyn ReadChunks,
    dir: &Path,
    progress: &Progress,
) -> Result<Materialised, SnapshotError> {
    let blank = Blank::make(manifest, dir)?;
    let bytes_read = blank.fill(manifest, reader, true, progress)?;
    Ok(Materialised {
        saved: SavedState {
            device: blank.device,
            ram: blank.ram,
        },
        disks: blank.disks,
        bytes_read,
    })
}

/// Starts a guest from a snapshot, as [`materialise`] and [`VmmDriver::restore`] do one after the
/// other; here the monitor starts while the memory is made. The guest is paused when this returns.
///
/// `request` names the disks of the manifest in its directory; nothing of them is there yet.
///
/// # Errors
/// Those of [`materialise`], and [`SnapshotError::Driver`].
pub async fn wake(
    driver: &dyn VmmDriver,
    request: &VmRequest,
    manifest: Arc<Manifest>,
    reader: Arc<dyn ReadChunks>,
    progress: Progress,
) -> Result<(Vm, u64), SnapshotError> {
    let blank = Blank::make(&manifest, &request.dir)?;
    let ram = blank.ram.try_clone().map_err(io_error(&request.dir))?;
    let device = blank.device.clone();
    let filling = spawn_blocking(move || blank.fill(&manifest, &*reader, true, &progress));
    arrive(driver, request, ram, device, filling, Vec::new()).await
}

/// As [`wake`], and the guest can go on when its memory is there: its disks come behind it, and
/// what it asks of them first comes first. What is there is written down in the directory `marks`,
/// so that another process can go on with it ([`Behind::find`]).
///
/// For a driver that can: [`crate::driver::Capabilities::disks_behind`].
///
/// # Errors
/// Those of [`wake`].
pub async fn wake_ahead(
    driver: &dyn VmmDriver,
    request: &VmRequest,
    manifest: Arc<Manifest>,
    reader: Arc<dyn ReadChunks>,
    marks: &Path,
    progress: Progress,
) -> Result<(Vm, Behind), SnapshotError> {
    let blank = Blank::make(&manifest, &request.dir)?;
    let behind = Behind::begin(&manifest, &reader, &request.dir, marks)?;
    behind.listen(request)?;
    let numbers = blank.disks.iter().map(|(number, _)| *number).collect();
    let ram = blank.ram.try_clone().map_err(io_error(&request.dir))?;
    let device = blank.device.clone();
    let filling = spawn_blocking(move || blank.fill(&manifest, &*reader, false, &progress));
    let (vm, _) = arrive(driver, request, ram, device, filling, numbers).await?;
    Ok((vm, behind))
}

/// Starts a guest whose parts are on their way.
pub(super) async fn arrive(
    driver: &dyn VmmDriver,
    request: &VmRequest,
    ram: GuestRam,
    device: PathBuf,
    filling: JoinHandle<Result<u64, SnapshotError>>,
    behind: Vec<u32>,
) -> Result<(Vm, u64), SnapshotError> {
    // What filling ended with: the driver is only told that it did not end well.
    let filled = Mutex::new(None);
    let whole = async {
        let ended = filling.await.unwrap_or_else(|_| {
            Err(SnapshotError::Io {
                path: request.dir.clone(),
                source: io::Error::other("the making was cut off"),
            })
        });
        let well = ended.is_ok();
        *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        well.then_some(device).ok_or_else(|| DriverError::Saved {
            what: "it did not arrive".to_owned(),
        })
    };
    let arriving = Arriving {
        ram,
        whole: whole.boxed(),
        behind,
    };
    let started = driver.restore_arriving(request, arriving).await;
    match filled.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(Err(error)) => Err(error),
        Some(Ok(bytes)) => Ok((started?, bytes)),
        // The driver failed first.
        None => Err(started.err().unwrap_or_else(|| DriverError::Saved {
            what: "the driver did not wait for it".to_owned(),
        }))?,
    }
}

/// A guest's files, of the right size and empty.
#[derive(Debug)]
struct Blank {
    device: PathBuf,
    ram: GuestRam,
    disks: Vec<(u32, PathBuf)>,
    /// In the order of the manifest: devices, memory, disks.
    files: Vec<(PathBuf, File)>,
}

impl Blank {
    fn make(manifest: &Manifest, dir: &Path) -> Result<Self, SnapshotError> {
        let ram = GuestRam::create(manifest.about.memory_mib).map_err(io_error(dir))?;
        let device = dir.join(DEVICE);
        let memory = ram.file().try_clone().map_err(io_error(dir))?;
        let mut files = vec![
            sized(&device, manifest.device.size)?,
            (PathBuf::from("memory"), memory),
        ];
        let mut disks = Vec::with_capacity(manifest.disks.len());
        for disk in &manifest.disks {
            let path = dir.join(&disk.name);
            files.push(sized(&path, disk.map.size)?);
            disks.push((disk.number, path));
        }
        Ok(Self {
            device,
            ram,
            disks,
            files,
        })
    }

    /// Fills the files; those of the `disks` only if that is wanted.
    fn fill(
        &self,
        manifest: &Manifest,
        reader: &dyn ReadChunks,
        disks: bool,
        progress: &Progress,
    ) -> Result<u64, SnapshotError> {
        let wanted = if disks { &manifest.disks[..] } else { &[] };
        let disks = wanted.iter().map(|disk| &disk.map);
        let maps = [&manifest.device, &manifest.ram].into_iter().chain(disks);
        let files = self.files.iter().zip(maps);
        let targets: Vec<_> = files
            .map(|((path, file), map)| Target { path, file, map })
            .collect();
        fill(&targets, reader, progress)
    }
}

fn sized(path: &Path, size: u64) -> Result<(PathBuf, File), SnapshotError> {
    let made = create(path).and_then(|file| file.set_len(size).map(|()| file));
    Ok((path.to_owned(), made.map_err(io_error(path))?))
}

/// A file to be filled.
#[derive(Debug)]
struct Target<'a> {
    path: &'a Path,
    file: &'a File,
    map: &'a Map,
}

impl Target<'_> {
    /// Writes one chunk to its place and returns its size.
    fn put(
        &self,
        number: usize,
        id: &ChunkId,
        reader: &dyn ReadChunks,
    ) -> Result<u64, SnapshotError> {
        let at = number as u64 * CHUNK_BYTES as u64;
        let length = (self.map.size - at).min(CHUNK_BYTES as u64);
        let bytes = reader.read(id)?;
        if bytes.len() as u64 != length {
            return Err(SnapshotError::Manifest {
                what: "a chunk has another size than its place".to_owned(),
            });
        }
        let written = self.file.write_all_at(&bytes, at);
        written.map_err(io_error(self.path))?;
        Ok(length)
    }
}

/// Fills every target with several threads; the first error ends the others.
fn fill(
    targets: &[Target<'_>],
    reader: &dyn ReadChunks,
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
