//! The guests that wait: in memory, bounded in number and bytes, the least used going first.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;

use super::{super::entry::Machine, ready::Ready};
use crate::{
    Fingerprint, SandboxId, SandboxInfo,
    snapshot::{Frozen, HostFacts},
};

/// All that a copy of a guest depends on: when any of it changes, the guest that waits is not
/// found any more, and goes when there are too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::manager) struct Shape {
    /// The image: its kernel, its agent, its files.
    pub(super) image_id: String,
    pub(super) memory_mib: u32,
    pub(super) vcpus: u32,
    /// Monitor, machine, processor, counter, protocol.
    pub(super) host: HostFacts,
}

/// A guest that waits.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) shape: Shape,
    /// The name of its image, for people.
    pub(super) image: String,
    pub(super) frozen: Arc<Frozen>,
    pub(super) machine: Machine,
    /// What runs there, as the guest said.
    pub(super) fingerprint: Fingerprint,
    pub(super) made_ms: u64,
    /// How many sandboxes were made from it.
    pub(super) taken: u64,
    /// Where its devices and disks lie, for as long as anybody copies them.
    pub(super) scratch: Arc<Scratch>,
    /// A copy that was started ahead, if there is one.
    pub(super) ready: Arc<Mutex<Option<Arc<Ready>>>>,
}

/// A guest that waits, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolInfo {
    /// The name of its image.
    pub image: String,
    /// The image itself.
    pub image_id: String,
    /// Memory of the sandboxes that are made from it, in MiB.
    pub memory_mib: u32,
    /// Their virtual CPUs.
    pub vcpus: u32,
    /// Memory that it takes of the host, in bytes, shared by all that are made from it.
    pub resident_bytes: u64,
    /// When it was made, in Unix milliseconds.
    pub made_ms: u64,
    /// How many sandboxes were made from it.
    pub taken: u64,
}

impl Waiting {
    pub(super) fn info(&self) -> PoolInfo {
        PoolInfo {
            image: self.image.clone(),
            image_id: self.shape.image_id.clone(),
            memory_mib: self.shape.memory_mib,
            vcpus: self.shape.vcpus,
            resident_bytes: self.bytes(),
            made_ms: self.made_ms,
            taken: self.taken,
        }
    }

    fn bytes(&self) -> u64 {
        // A kernel that does not say would make it free; its full size is what it may take.
        let ram = &self.frozen.ram;
        let started = self.ready().as_ref().map_or(0, |ready| ready.bytes());
        ram.resident().unwrap_or_else(|_| ram.size()) + started
    }

    /// Whether a copy of it was started ahead and still stands.
    pub(super) fn has_ready(&self) -> bool {
        self.ready().as_ref().is_some_and(|ready| ready.is_alive())
    }

    /// Returns the copy that was started ahead; it is the caller's.
    pub(super) fn take_ready(&self) -> Option<Arc<Ready>> {
        self.ready().take().filter(|ready| ready.is_alive())
    }

    /// Has a copy stand by.
    pub(super) fn put_ready(&self, ready: Arc<Ready>) {
        *self.ready() = Some(ready);
    }

    fn ready(&self) -> MutexGuard<'_, Option<Arc<Ready>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shape {
    pub(super) fn of(info: &SandboxInfo, host: HostFacts) -> Self {
        Self {
            image_id: info.image_id.clone(),
            memory_mib: info.memory_mib,
            vcpus: info.vcpus,
            host,
        }
    }
}

/// A directory that goes with whoever holds this.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    kept: AtomicBool,
}

/// An id that no sandbox has yet.
#[derive(Debug)]
pub(super) struct Claim {
    ids: Arc<Mutex<BTreeSet<SandboxId>>>,
    id: SandboxId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.remove(&self.id);
    }
}

impl Scratch {
    /// Makes the directory anew.
    pub(super) fn make(path: PathBuf) -> std::io::Result<Self> {
        let _ = fs::remove_dir_all(&path);
        crate::staging::make_private_dir(&path)?;
        Ok(Self {
            path,
            kept: AtomicBool::new(false),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets it stay: it is somebody else's from now on.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The guests that wait for this daemon.
#[derive(Debug)]
pub(in crate::manager) struct Pool {
    dir: PathBuf,
    /// How many are kept; none at 0.
    limit: usize,
    /// Bytes of memory that they take together.
    limit_bytes: u64,
    /// The least used first.
    waiting: Mutex<Vec<Waiting>>,
    /// One is booted at a time.
    pub(super) growing: tokio::sync::Mutex<()>,
    /// Those of copies that were started ahead.
    ids: Arc<Mutex<BTreeSet<SandboxId>>>,
}

impl Pool {
    pub(in crate::manager) fn new(dir: PathBuf, limit: usize, limit_mib: u32) -> Self {
        Self {
            dir,
            limit,
            limit_bytes: u64::from(limit_mib) << 20,
            waiting: Mutex::default(),
            growing: tokio::sync::Mutex::new(()),
            ids: Arc::default(),
        }
    }

    /// Keeps an id for a copy that is started ahead.
    pub(super) fn claim(&self, id: SandboxId) -> Claim {
        let ids = Arc::clone(&self.ids);
        let mut held = ids.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(id);
        drop(held);
        Claim { ids, id }
    }

    /// Whether a copy that was started ahead has this id.
    pub(in crate::manager) fn has_id(&self, id: &SandboxId) -> bool {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.contains(id)
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Where guests are made that will wait; a directory below for each.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn has(&self, shape: &Shape) -> bool {
        self.waiting().iter().any(|guest| guest.shape == *shape)
    }

    /// Returns the guest of this shape that waits, and has no copy that was started ahead.
    pub(super) fn bare(&self, shape: &Shape) -> Option<Waiting> {
        let waiting = self.waiting();
        let found = waiting.iter().find(|guest| guest.shape == *shape)?;
        (!found.has_ready()).then(|| found.clone())
    }

    /// Whether what waits is within its bound in bytes.
    pub(super) fn fits(&self) -> bool {
        self.waiting().iter().map(Waiting::bytes).sum::<u64>() <= self.limit_bytes
    }

    /// Returns the guest of this shape that waits; it goes on waiting for others.
    pub(super) fn take(&self, shape: &Shape) -> Option<Waiting> {
        let mut waiting = self.waiting();
        let found = waiting.iter().position(|guest| guest.shape == *shape)?;
        let mut guest = waiting.remove(found);
        guest.taken += 1;
        waiting.push(guest.clone());
        Some(guest)
    }

    /// Removes the guest of this shape: a copy of it did not work.
    pub(super) fn remove(&self, shape: &Shape) {
        self.waiting().retain(|guest| guest.shape != *shape);
    }

    /// Keeps a guest, and removes the least used beyond the limits; tells whether it was kept.
    pub(super) fn keep(&self, guest: Waiting) -> bool {
        if guest.bytes() > self.limit_bytes || !self.is_on() {
            return false;
        }
        let mut waiting = self.waiting();
        waiting.retain(|other| other.shape != guest.shape);
        waiting.push(guest);
        let too_many = |waiting: &[Waiting]| {
            let bytes: u64 = waiting.iter().map(Waiting::bytes).sum();
            waiting.len() > self.limit || bytes > self.limit_bytes
        };
        while too_many(&waiting) {
            waiting.remove(0);
        }
        true
    }

    /// Returns what waits, the most used last.
    pub(super) fn list(&self) -> Vec<PoolInfo> {
        self.waiting().iter().map(Waiting::info).collect()
    }

    /// Removes all and returns how many there were.
    pub(in crate::manager) fn clear(&self) -> usize {
        self.waiting().drain(..).count()
    }

    /// Removes all, and waits until no monitor of theirs runs.
    pub(in crate::manager) async fn end(&self) {
        let all: Vec<_> = self.waiting().drain(..).collect();
        for guest in all {
            if let Some(ready) = guest.take_ready() {
                ready.end().await;
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::FileExt, time::Duration};

    use super::*;
    use crate::{Accel, driver::GuestRam};

    fn shape(vcpus: u32) -> Shape {
        Shape {
            image_id: "1".into(),
            memory_mib: 8,
            vcpus,
            host: HostFacts {
                driver: "d".into(),
                vmm: "v".into(),
                machine: "m".into(),
                accel: Accel::Tcg,
                cpu: "c".into(),
                tsc_khz: 1,
                max_memory_mib: 1,
                protocol: 1,
            },
        }
    }

    /// A guest that has so many KiB in its memory.
    fn guest(pool: &Pool, vcpus: u32, kib: usize) -> Waiting {
        let ram = GuestRam::create(8).unwrap();
        ram.file().write_all_at(&vec![1; kib << 10], 0).unwrap();
        let scratch = Scratch::make(pool.dir().join(vcpus.to_string())).unwrap();
        Waiting {
            shape: shape(vcpus),
            image: "minimal".into(),
            frozen: Arc::new(Frozen {
                device: scratch.path().join("device"),
                ram: ram.copy().unwrap(),
                disks: Vec::new(),
                pause: Duration::ZERO,
                copied: 0,
            }),
            machine: Machine {
                kernel: "k".into(),
                initramfs: "i".into(),
                disks: Vec::new(),
                kernel_args: Vec::new(),
            },
            fingerprint: Fingerprint::default(),
            made_ms: 0,
            taken: 0,
            scratch: Arc::new(scratch),
            ready: Arc::default(),
        }
    }

    #[test]
    fn the_least_used_go_first_with_their_files() {
        let home = tempfile::tempdir().unwrap();
        let pool = Pool::new(home.path().to_owned(), 2, 1024);
        assert!(pool.keep(guest(&pool, 1, 4)) && pool.keep(guest(&pool, 2, 4)));
        let one = pool.take(&shape(1)).unwrap();
        assert_eq!(one.taken, 1);
        assert!(pool.keep(guest(&pool, 3, 4)));
        assert!(pool.has(&shape(1)) && !pool.has(&shape(2)) && pool.has(&shape(3)));
        assert!(!home.path().join("2").exists());
        let mut other = shape(1);
        other.host.vmm = "w".into();
        assert!(pool.take(&other).is_none());
        // Whoever copies one that goes still has its files.
        assert_eq!(pool.clear(), 2);
        assert!(home.path().join("1").exists());
        drop(one);
        assert!(!home.path().join("1").exists());
        assert!(pool.list().is_empty());
    }

    #[test]
    fn memory_is_bounded_too() {
        let home = tempfile::tempdir().unwrap();
        let pool = Pool::new(home.path().to_owned(), 9, 1);
        assert!(!pool.keep(guest(&pool, 1, 2048)), "alone beyond the limit");
        assert!(pool.keep(guest(&pool, 2, 600)));
        assert!(pool.keep(guest(&pool, 3, 600)));
        let left = pool.list();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].vcpus, 3);
        assert!(left[0].resident_bytes >= 600 << 10);
        let off = Pool::new(home.path().to_owned(), 0, 1024);
        assert!(!off.keep(guest(&off, 4, 4)));
    }
}
