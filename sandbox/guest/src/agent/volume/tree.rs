//! What the kernel knows of a volume: nodes by number, directories once they were listed.
//!
//! The tree does not change while it is mounted, so what was learned stays true.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::{Arc, Mutex},
};

use rhizome_guest::wire::{VolumeEntry, VolumeKind};

use super::super::lock;

/// The number of the root.
pub(super) const ROOT: u64 = 1;
/// Entries of listings that are kept; the oldest listings go first.
const MAX_KEPT: usize = 500_000;

/// Where directories and files come from.
pub(super) trait Source: Send + Sync {
    /// Returns a directory's entries, in the order of their names.
    fn list(&self, path: &[u8]) -> io::Result<Vec<VolumeEntry>>;
    /// Returns a file's bytes; fewer than asked for only at the end.
    fn read(&self, path: &[u8], offset: u64, len: u32) -> io::Result<Vec<u8>>;
}

/// The tree, as far as it was looked at.
pub(super) struct Tree<S> {
    source: Arc<S>,
    state: Mutex<State>,
}

/// The entries of one directory with their numbers, in the order of their names.
pub(super) type Listing = Vec<(u64, VolumeEntry)>;

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Known>,
    listings: BTreeMap<u64, Arc<Listing>>,
    order: VecDeque<u64>,
    kept: usize,
}

#[derive(Clone)]
struct Known {
    path: Arc<[u8]>,
    entry: VolumeEntry,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
}

impl<S: Source> Tree<S> {
    pub(super) fn new(source: Arc<S>) -> Self {
        let root = Known {
            path: Arc::from(&b""[..]),
            entry: VolumeEntry {
                path: Vec::new(),
                kind: VolumeKind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                size: 4096,
                mtime_ns: 0,
                stamp: [0, 0],
                target: Vec::new(),
                attributes: None,
            },
            lookups: 1,
        };
        let state = State {
            nodes: HashMap::from([(ROOT, root)]),
            ..State::default()
        };
        Self {
            source,
            state: Mutex::new(state),
        }
    }

    /// Returns a node that the kernel was told of.
    pub(super) fn node(&self, number: u64) -> Option<VolumeEntry> {
        let state = lock(&self.state);
        state.nodes.get(&number).map(|known| known.entry.clone())
    }

    /// Finds a name in a directory, and counts that the kernel knows it.
    pub(super) fn look_up(&self, dir: u64, name: &[u8]) -> io::Result<Option<(u64, VolumeEntry)>> {
        let listing = self.list(dir)?;
        let found = listing.binary_search_by(|(_, entry)| entry.path.as_slice().cmp(name));
        let Ok(at) = found else {
            return Ok(None);
        };
        let (number, entry) = listing[at].clone();
        let mut state = lock(&self.state);
        let path = state.path_of(dir)?;
        let known = state.nodes.entry(number).or_insert_with(|| Known {
            path: Arc::from(join(&path, name)),
            entry: entry.clone(),
            lookups: 0,
        });
        known.lookups += 1;
        Ok(Some((number, entry)))
    }

    /// Returns a directory's entries.
    pub(super) fn list(&self, dir: u64) -> io::Result<Arc<Listing>> {
        let path = {
            let state = lock(&self.state);
            if let Some(listing) = state.listings.get(&dir) {
                return Ok(Arc::clone(listing));
            }
            state.path_of(dir)?
        };
        let mut entries = self.source.list(&path)?;
        // The node sends them in order; what is not would never be found.
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let numbered = |entry: VolumeEntry| (number_of(&join(&path, &entry.path)), entry);
        let listing: Arc<Listing> = Arc::new(entries.into_iter().map(numbered).collect());
        let mut state = lock(&self.state);
        if state.listings.insert(dir, Arc::clone(&listing)).is_none() {
            state.order.push_back(dir);
            state.kept += listing.len();
        }
        while state.kept > MAX_KEPT && state.order.len() > 1 {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            if let Some(gone) = state.listings.remove(&oldest) {
                state.kept -= gone.len();
            }
        }
        Ok(listing)
    }

    pub(super) fn read(&self, file: u64, offset: u64, len: u32) -> io::Result<Vec<u8>> {
        let path = lock(&self.state).path_of(file)?;
        self.source.read(&path, offset, len)
    }

    /// The kernel forgets a node as often as this.
    pub(super) fn forget(&self, number: u64, times: u64) {
        let mut state = lock(&self.state);
        if number == ROOT {
            return;
        }
        if let Some(known) = state.nodes.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 {
                state.nodes.remove(&number);
            }
        }
    }
}

impl State {
    fn path_of(&self, number: u64) -> io::Result<Arc<[u8]>> {
        let known = self.nodes.get(&number);
        known
            .map(|known| Arc::clone(&known.path))
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}

/// The number of a path: the same after it was forgotten, as programs expect of an inode.
fn number_of(path: &[u8]) -> u64 {
    // FNV-1a. Two of a million paths share one with a chance of 1 to 37 million; a volume made
    // so on purpose shows a program of its own guest the wrong one of its own files.
    let hash = path.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(ROOT + 1)
}
