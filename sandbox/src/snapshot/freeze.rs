//! A guest stopped at one moment, as files.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;
use tokio::task::spawn_blocking;

use super::{SnapshotError, manifest::is_disk_name, materialise::arrive};
use crate::{
    driver::{DriverError, GuestRam, SavedState, Vm, VmRequest, VmmDriver},
    sparse,
};

/// What the state of the devices is called.
pub(super) const DEVICE: &str = "device";

/// What becomes of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freeze {
    /// It stays paused, and what is taken is what it has: for a guest that will be ended, or was
    /// paused before. It must not run while the [`Frozen`] is used.
    Hold,
    /// It goes on after the pause, if it ran before; what is taken is a copy.
    Copy,
}

/// A guest at one moment.
#[derive(Debug)]
pub struct Frozen {
    /// The state of its devices.
    pub device: PathBuf,
    /// Its memory.
    pub ram: GuestRam,
    /// Its writable disks, by number.
    pub disks: Vec<FrozenDisk>,
    /// How long it stood still; zero if it stays paused.
    pub pause: Duration,
    /// Bytes that were copied during the pause.
    pub copied: u64,
}

/// A disk at one moment.
#[derive(Debug)]
pub struct FrozenDisk {
    /// Number of the disk: its serial is `disk<number>`.
    pub number: u32,
    /// Name of its file in the VM's directory.
    pub name: String,
    /// Its content.
    pub file: File,
    /// Its size in bytes.
    pub size: u64,
}

/// Stops a guest and takes it as it is. `dir` is the caller's: the state of the devices and the
/// copies of the disks go there, under names of ours (`device`, and the disks' own).
///
/// After an error the guest runs on if it ran before.
///
/// # Errors
/// [`SnapshotError::Driver`] and [`SnapshotError::Io`].
///
/// # Cancel safety
/// A dropped future may leave the guest paused.
pub async fn freeze(
    vm: &Vm,
    request: &VmRequest,
    dir: &Path,
    how: Freeze,
) -> Result<Frozen, SnapshotError> {
    // Whatever can fail without the guest standing still is done first.
    let mut disks = open_disks(request)?;
    let ran = vm.status().await.as_deref() == Some("running");
    let begun = Instant::now();
    vm.pause().await?;
    let taken = take(vm, dir, &mut disks, how).await;
    let goes_on = ran && (how == Freeze::Copy || taken.is_err());
    let resumed = if goes_on { vm.resume().await } else { Ok(()) };
    let (ram, copied) = taken?;
    resumed?;
    let pause = if goes_on {
        begun.elapsed()
    } else {
        Duration::ZERO
    };
    Ok(Frozen {
        device: dir.join(DEVICE),
        ram,
        disks,
        pause,
        copied,
    })
}

async fn take(
    vm: &Vm,
    dir: &Path,
    disks: &mut Vec<FrozenDisk>,
    how: Freeze,
) -> Result<(GuestRam, u64), SnapshotError> {
    vm.save_device(&dir.join(DEVICE)).await?;
    let ram = vm.ram()?;
    for disk in disks.iter_mut() {
        disk.size = disk.file.metadata().map_err(io_error(dir))?.len();
    }
    if how == Freeze::Hold && ram.is_whole() {
        return Ok((ram, 0));
    }
    let (dir, held) = (dir.to_owned(), std::mem::take(disks));
    let copies = spawn_blocking(move || match how {
        // What is in no file goes into one; the disks lie where they will stay.
        Freeze::Hold => {
            let ram = ram.copy().map_err(io_error(&dir))?;
            let bytes = ram.resident().map_err(io_error(&dir))?;
            Ok((ram, held, bytes))
        }
        Freeze::Copy => copy(&ram, held, &dir),
    });
    let (ram, taken, copied) = copies.await.map_err(|_| SnapshotError::Io {
        path: PathBuf::new(),
        source: io::Error::other("the copying was cut off"),
    })??;
    *disks = taken;
    Ok((ram, copied))
}

/// Copies memory and disks side by side.
fn copy(
    ram: &GuestRam,
    disks: Vec<FrozenDisk>,
    dir: &Path,
) -> Result<(GuestRam, Vec<FrozenDisk>, u64), SnapshotError> {
    std::thread::scope(|scope| {
        let memory = scope.spawn(|| {
            let copy = ram.copy()?;
            let bytes = copy.resident()?;
            io::Result::Ok((copy, bytes))
        });
        let mut copies = Vec::new();
        let mut copied = 0;
        for disk in disks {
            let path = dir.join(&disk.name);
            let file = create(&path).map_err(io_error(&path))?;
            copied += sparse::copy(&disk.file, &file, disk.size).map_err(io_error(&path))?;
            copies.push(FrozenDisk { file, ..disk });
        }
        let memory = memory.join().expect("copying does not panic");
        let (ram, bytes) = memory.map_err(io_error(dir))?;
        Ok((ram, copies, copied + bytes))
    })
}

impl Frozen {
    /// Makes what a new guest starts from: its own memory, its own disks in `dir` (the new VM's
    /// directory), and the same device state. Blocks.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn instance(&self, dir: &Path) -> Result<SavedState, SnapshotError> {
        let ram = self.ram.blank().map_err(io_error(dir))?;
        self.ram.copy_to(&ram).map_err(io_error(&self.device))?;
        self.copy_disks(self.blank_disks(dir)?)?;
        Ok(SavedState {
            device: self.device.clone(),
            ram,
        })
    }

    /// Starts another guest from this one. It is paused when this returns.
    ///
    /// With a driver that can, it shares this memory until it writes to it; otherwise it gets a
    /// copy, while its monitor starts.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] and [`SnapshotError::Driver`].
    pub async fn fork(
        self: &Arc<Self>,
        driver: &dyn VmmDriver,
        request: &VmRequest,
    ) -> Result<Vm, SnapshotError> {
        if self.ram.is_template() && driver.capabilities().copy_on_write {
            let ram = self.ram.try_clone().map_err(io_error(&request.dir))?;
            match self.fork_on(driver, request, ram).await {
                Err(SnapshotError::Driver(DriverError::Unsupported { .. })) => {}
                forked => return forked,
            }
        }
        let ram = self.ram.blank().map_err(io_error(&request.dir))?;
        self.fork_on(driver, request, ram).await
    }

    /// Starts a guest on this very memory, or on a blank one that it is copied to.
    async fn fork_on(
        self: &Arc<Self>,
        driver: &dyn VmmDriver,
        request: &VmRequest,
        ram: GuestRam,
    ) -> Result<Vm, SnapshotError> {
        let disks = self.blank_disks(&request.dir)?;
        let to = match ram.is_template() {
            true => None,
            false => Some(ram.try_clone().map_err(io_error(&request.dir))?),
        };
        let of = Arc::clone(self);
        let filling = spawn_blocking(move || {
            let ram = match &to {
                Some(to) => of.ram.copy_to(to).map_err(io_error(&of.device))?,
                None => 0,
            };
            Ok(ram + of.copy_disks(disks)?)
        });
        let device = self.device.clone();
        let forked = arrive(driver, request, ram, device, filling, Vec::new()).await?;
        Ok(forked.0)
    }

    fn blank_disks(&self, dir: &Path) -> Result<Vec<File>, SnapshotError> {
        let disks = self.disks.iter().map(|disk| {
            let path = dir.join(&disk.name);
            let made = create(&path).and_then(|file| file.set_len(disk.size).map(|()| file));
            made.map_err(io_error(&path))
        });
        disks.collect()
    }

    fn copy_disks(&self, to: Vec<File>) -> Result<u64, SnapshotError> {
        let mut copied = 0;
        for (disk, to) in self.disks.iter().zip(to) {
            let path = Path::new(&disk.name);
            copied += sparse::copy(&disk.file, &to, disk.size).map_err(io_error(path))?;
        }
        Ok(copied)
    }
}

/// Opens the writable disks of a VM.
///
/// They are files that the monitor writes to; names in its directory are not its to change.
fn open_disks(request: &VmRequest) -> Result<Vec<FrozenDisk>, SnapshotError> {
    let mut disks = Vec::new();
    for (number, disk) in (0_u32..).zip(&request.disks) {
        if !disk.writable {
            continue;
        }
        let failed = io_error(&disk.path);
        let name = disk.path.file_name().unwrap_or_default().to_string_lossy();
        if !is_disk_name(&name) {
            return Err(failed(io::Error::other("no name for a disk")));
        }
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&disk.path)
            .and_then(|file| match file.metadata()? {
                meta if meta.is_file() && meta.nlink() == 1 => Ok((file, meta.len())),
                _ => Err(io::Error::other("no file of this VM alone")),
            });
        let (file, size) = opened.map_err(failed)?;
        disks.push(FrozenDisk {
            number,
            name: name.into_owned(),
            file,
            size,
        });
    }
    Ok(disks)
}

/// Makes a file of ours, and reads it too.
pub(super) fn create(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError + '_ {
    move |source| SnapshotError::Io {
        path: path.to_owned(),
        source,
    }
}
