//! A disk in memory that fails the way disks fail.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{Disk, DiskFile};

/// What a write reaches at once: a page may be on the disk while its neighbour is not.
const SECTOR: usize = 512;

/// A disk in memory; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What a running process sees.
    live: BTreeMap<String, u64>,
    /// What the directories say on the platter.
    synced: BTreeMap<String, u64>,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// Bytes that may still be written before the disk is full.
    room: Option<usize>,
    /// How many syncs may succeed before one fails.
    syncs_left: Option<usize>,
    /// How many changes of any sort may happen before the process is killed.
    steps_left: Option<usize>,
}

#[derive(Debug, Default, Clone)]
struct Inode {
    live: Vec<u8>,
    synced: Vec<u8>,
}

impl SimDisk {
    /// Cuts the power; `seed` decides what survives.
    pub(crate) fn random_power_loss(&self, seed: u64) {
        let mut state = seed;
        self.power_loss(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 63 == 1
        });
    }

    /// Cuts the power: everything not synced survives sector by sector as `keep` says.
    pub(crate) fn power_loss(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.state();
        let State {
            live,
            synced,
            inodes,
            ..
        } = &mut *state;
        for (name, inode) in live.iter() {
            // A directory entry that was not synced may have reached the platter or not.
            if !synced.contains_key(name) && keep() {
                synced.insert(name.clone(), *inode);
            }
        }
        for inode in inodes.values_mut() {
            let longest = inode.live.len().max(inode.synced.len());
            let mut after = inode.synced.clone();
            if inode.live.len() != inode.synced.len() && keep() {
                after.resize(if keep() { inode.live.len() } else { longest }, 0);
            }
            for at in (0..after.len()).step_by(SECTOR) {
                let end = (at + SECTOR).min(after.len());
                let changed = inode.live.get(at..end) != Some(&after[at..end]);
                if changed && keep() {
                    for (place, byte) in (at..end).zip(after[at..end].iter_mut()) {
                        *byte = inode.live.get(place).copied().unwrap_or(0);
                    }
                }
            }
            inode.live.clone_from(&after);
            inode.synced = after;
        }
        *live = synced.clone();
        state.room = None;
        state.syncs_left = None;
        state.steps_left = None;
    }

    /// Lets `count` more changes happen, as after them the process is killed: nothing it tries
    /// then has an effect.
    pub(crate) fn kill_after(&self, count: usize) {
        self.state().steps_left = Some(count);
    }

    /// Lets `bytes` more be written, then the disk is full.
    pub(crate) fn set_room(&self, bytes: Option<usize>) {
        self.state().room = bytes;
    }

    /// Lets `count` more syncs succeed; the next one fails and forgets what it was to write.
    pub(crate) fn fail_sync_after(&self, count: Option<usize>) {
        self.state().syncs_left = count;
    }

    /// Changes one bit of a file, on the platter.
    pub(crate) fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.state();
        let inode = state.live[name];
        let inode = state
            .inodes
            .get_mut(&inode)
            .expect("every name has an inode");
        inode.live[byte] ^= 1 << bit;
        inode.synced[byte] ^= 1 << bit;
    }

    /// Returns another disk with the same content.
    pub(crate) fn copy(&self) -> Self {
        let state = self.state();
        let copy = State {
            live: state.live.clone(),
            synced: state.synced.clone(),
            inodes: state.inodes.clone(),
            next_inode: state.next_inode,
            room: None,
            syncs_left: None,
            steps_left: None,
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test panics while it holds the disk")
    }
}

impl State {
    /// Counts a change; fails if it is one too many.
    fn step(&mut self) -> io::Result<()> {
        match &mut self.steps_left {
            Some(0) => Err(io::Error::other("the process was killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk for SimDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let inside = state
            .live
            .keys()
            .filter_map(|name| name.strip_prefix(dir)?.strip_prefix('/'));
        Ok(inside.map(str::to_owned).collect())
    }

    fn create_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        let inode = match state.live.get(name) {
            Some(inode) => *inode,
            None => {
                state.next_inode += 1;
                let inode = state.next_inode;
                state.live.insert(name.to_owned(), inode);
                state.inodes.insert(inode, Inode::default());
                inode
            }
        };
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            inode,
        }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        let inode = state.live.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.inodes[inode].live.clone())
    }

    fn exists(&self, name: &str) -> bool {
        self.state().live.contains_key(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let inode = state.live.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.live.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state
            .live
            .remove(name)
            .map(drop)
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let inside = |name: &str| {
            name.strip_prefix(dir)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        state.synced.retain(|name, _| !inside(name));
        let live: Vec<_> = state
            .live
            .iter()
            .filter(|(name, _)| inside(name))
            .map(|(n, i)| (n.clone(), *i))
            .collect();
        state.synced.extend(live);
        Ok(())
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
}

impl SimFile {
    fn with<R>(&self, act: impl FnOnce(&mut Inode) -> R) -> R {
        act(self
            .disk
            .state()
            .inodes
            .get_mut(&self.inode)
            .expect("an open file has an inode"))
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|inode| inode.live.len() as u64))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let fits = state.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        if let Some(room) = &mut state.room {
            *room -= fits;
        }
        let at = usize::try_from(offset).expect("a small file");
        let inode = state
            .inodes
            .get_mut(&self.inode)
            .expect("an open file has an inode");
        if inode.live.len() < at + fits {
            inode.live.resize(at + fits, 0);
        }
        inode.live[at..at + fits].copy_from_slice(&bytes[..fits]);
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).expect("a small file");
        self.with(|inode| match inode.live.get(at..at + bytes.len()) {
            Some(found) => {
                bytes.copy_from_slice(found);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.with(|inode| {
            inode
                .live
                .resize(usize::try_from(len).expect("a small file"), 0)
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        if let Some(left) = &mut state.syncs_left {
            if *left == 0 {
                return Err(io::Error::other("the disk did not take it"));
            }
            *left -= 1;
        }
        let inode = state
            .inodes
            .get_mut(&self.inode)
            .expect("an open file has an inode");
        inode.synced = inode.live.clone();
        Ok(())
    }
}
