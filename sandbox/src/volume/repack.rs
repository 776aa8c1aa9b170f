//! Repacking: what is still needed of packs that are mostly dead, or small, in packs of its own.
//!
//! A version never changes, and neither does a pack: live chunks are stored once more, in new
//! packs, and a version is said to lie in those from then on ([`Packed`]). Until it is, nothing is
//! given up, so a crash at any step leaves every version whole where it was or where it will be.

#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
};

use super::{Content, Digest, Node, Trees, VersionId, VolumeError};
use crate::chunks::{ChunkError, ChunkId, ChunkReader, ChunkStore, PackId, StoreKey};

/// Share of a pack in percent below which its live chunks are stored anew.
const LIVE_SHARE: u64 = 50;
/// Below this a pack is small, in bytes.
const SMALL_BYTES: u64 = 1024 * 1024;
/// How many small ones there have to be before they are put together.
const MANY_SMALL: usize = 8;
/// Most bytes that are stored anew at once; the rest is for the next time.
const MAX_REWRITTEN: u64 = 512 * 1024 * 1024;
/// Most different chunks that are kept track of: 256 GiB of average ones.
const MAX_CHUNKS: usize = 1 << 22;

/// A version that is to stay whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Which version.
    pub version: VersionId,
    /// Its tree.
    pub root: Content,
    /// All packs that it lies in now.
    pub packs: Vec<PackId>,
}

/// What is worth repacking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The packs to give up.
    pub packs: Vec<PackId>,
    /// Bytes of these packs.
    pub bytes: u64,
    /// Bytes in them that are needed, and stored anew.
    pub live_bytes: u64,
    /// Bytes of all packs that the versions lie in.
    pub all_bytes: u64,
    /// Whether there is more to do than is done at once.
    pub more: bool,
    /// What is to be stored anew, in the order in which it lies.
    chunks: Vec<ChunkId>,
    /// What need not be, since another pack has it for certain.
    elsewhere: BTreeMap<ChunkId, PackId>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repacked {
    /// The packs that were written, or found to hold what was needed.
    pub new: Vec<PackId>,
    /// Each version that lies elsewhere now, with all packs that it lies in.
    pub versions: Vec<(VersionId, Vec<PackId>)>,
}

/// Looks which packs of `kept`, all of which are here under `key`, are mostly dead or small. Packs
/// that something else needs too are left alone: nothing would be won.
///
/// # Errors
/// [`VolumeError::TooLarge`] if there is too much to keep track of; those of reading.
pub fn plan(
    store: &ChunkStore,
    key: &StoreKey,
    kept: &[Kept],
    needed_besides: &BTreeSet<PackId>,
) -> Result<Plan, VolumeError> {
    let all: BTreeSet<PackId> = kept.iter().flat_map(|one| &one.packs).copied().collect();
    let all: Vec<PackId> = all.into_iter().collect();
    let reader = store.reader(key, &all)?;
    let mut live = HashSet::new();
    let mut seen = HashSet::new();
    for one in kept {
        walk(&reader, &one.root, &mut seen, &mut |chunk| {
            live.insert(*chunk);
            match live.len() > MAX_CHUNKS {
                true => Err(VolumeError::TooLarge),
                false => Ok(()),
            }
        })?;
    }
    let size = |pack: &PackId| store.size_of(pack).unwrap_or(0);
    let mut plan = Plan {
        all_bytes: all.iter().map(size).sum(),
        ..Plan::default()
    };
    // A chunk counts where it is certain to be, once, in the pack of which most is needed; what
    // others sent may claim what it likes, and so takes nothing away from another.
    let mut order = Vec::new();
    for pack in all {
        let (mut needed, mut of) = (0, 0);
        for (chunk, bytes) in store.lengths_of(&pack)? {
            of += u64::from(bytes);
            needed += u64::from(bytes) * u64::from(live.contains(&chunk));
        }
        let share = needed * 1_000 / of.max(1);
        order.push((!store.is_own(&pack), Reverse(share), pack));
    }
    order.sort_unstable();
    let mut claimed: HashMap<ChunkId, PackId> = HashMap::new();
    let mut found = Vec::new();
    for (_, _, pack) in order {
        let (mut chunks, mut live_bytes, mut all_bytes) = (Vec::new(), 0, 0);
        for (chunk, bytes) in store.lengths_of(&pack)? {
            all_bytes += u64::from(bytes);
            if !live.contains(&chunk) {
                continue;
            }
            if let Some(other) = claimed.get(&chunk) {
                plan.elsewhere.insert(chunk, *other);
                continue;
            }
            live_bytes += u64::from(bytes);
            chunks.push(chunk);
        }
        if store.is_own(&pack) {
            claimed.extend(chunks.iter().map(|chunk| (*chunk, pack)));
        }
        if !needed_besides.contains(&pack) {
            let bytes = size(&pack);
            found.push(Part {
                pack,
                bytes,
                live_bytes,
                all_bytes,
                chunks,
            });
        }
    }
    let many = found.iter().filter(|part| part.is_small()).count() >= MANY_SMALL;
    found.retain(|part| part.is_mostly_dead() || (many && part.is_small()));
    // Those first that give up the most.
    found.sort_by_key(|part| (Reverse(part.all_bytes - part.live_bytes), part.pack));
    for part in found {
        if plan.live_bytes + part.live_bytes > MAX_REWRITTEN {
            plan.more = true;
            continue;
        }
        plan.packs.push(part.pack);
        plan.bytes += part.bytes;
        plan.live_bytes += part.live_bytes;
        plan.chunks.extend(part.chunks);
    }
    Ok(plan)
}

/// A pack that is looked at.
struct Part {
    pack: PackId,
    /// Bytes of its file.
    bytes: u64,
    /// Bytes of the chunks that are needed.
    live_bytes: u64,
    /// Bytes of all its chunks.
    all_bytes: u64,
    /// What is needed of it.
    chunks: Vec<ChunkId>,
}

impl Part {
    fn is_small(&self) -> bool {
        self.bytes < SMALL_BYTES
    }

    fn is_mostly_dead(&self) -> bool {
        self.live_bytes * 100 < self.all_bytes * LIVE_SHARE
    }
}

/// Stores what is needed of the packs of a plan anew, pinned as `pin`, and says where each version
/// lies then. Nothing is given up yet. `told` hears how many chunks of how many are stored.
///
/// # Errors
/// Those of reading and storing; every version is then where it was.
pub fn rewrite(
    store: &ChunkStore,
    key: &StoreKey,
    kept: &[Kept],
    plan: &Plan,
    pin: &str,
    told: &mut dyn FnMut(usize, usize),
) -> Result<Repacked, VolumeError> {
    let all: BTreeSet<PackId> = kept.iter().flat_map(|one| &one.packs).copied().collect();
    let all: Vec<PackId> = all.into_iter().collect();
    // All of them: where one does not hold what it says, another may.
    let reader = store.reader(key, &all)?;
    let mut writer = store.writer(key).avoiding(&plan.packs);
    for (done, chunk) in plan.chunks.iter().enumerate() {
        writer.put(&reader.read(chunk)?)?;
        told(done + 1, plan.chunks.len());
    }
    let new = writer.finish_pinned(pin)?;
    let mut at = plan.elsewhere.clone();
    for pack in &new {
        let chunks = store.chunks_of(pack)?.into_iter();
        at.extend(chunks.map(|chunk| (chunk, *pack)));
    }
    let given_up: BTreeSet<&PackId> = plan.packs.iter().collect();
    let mut versions = Vec::new();
    for one in kept {
        if !one.packs.iter().any(|pack| given_up.contains(pack)) {
            continue;
        }
        let mut packs: BTreeSet<PackId> = one.packs.iter().copied().collect();
        packs.retain(|pack| !given_up.contains(pack));
        walk(&reader, &one.root, &mut HashSet::new(), &mut |chunk| {
            packs.extend(at.get(chunk));
            Ok(())
        })?;
        let packs: Vec<PackId> = packs.into_iter().collect();
        is_whole(store, key, &one.root, &packs)?;
        versions.push((one.version, packs));
    }
    Ok(Repacked { new, versions })
}

/// Makes sure that a tree can be read from these packs alone.
fn is_whole(
    store: &ChunkStore,
    key: &StoreKey,
    root: &Content,
    packs: &[PackId],
) -> Result<(), VolumeError> {
    let reader = store.reader(key, packs)?;
    walk(
        &reader,
        root,
        &mut HashSet::new(),
        &mut |chunk| match reader.contains(chunk) {
            true => Ok(()),
            false => Err(ChunkError::MissingChunk { chunk: *chunk }.into()),
        },
    )
}

/// Names every chunk of a tree, but for those of contents that were seen before.
fn walk(
    reader: &ChunkReader,
    root: &Content,
    seen: &mut HashSet<Digest>,
    see: &mut dyn FnMut(&ChunkId) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let trees = Trees::new(reader);
    let mut budget = super::tree::Budget::default();
    let mut left = vec![root.clone()];
    if !seen.insert(root.digest()) {
        return Ok(());
    }
    while let Some(tree) = left.pop() {
        see_all(reader, &tree, see)?;
        for entry in trees.list(&tree)? {
            budget.spend(&super::Path::default())?;
            match entry.node {
                Node::File(content) if seen.insert(content.digest()) => {
                    see_all(reader, &content, see)?;
                }
                Node::Dir(content) if seen.insert(content.digest()) => left.push(content),
                _ => {}
            }
        }
    }
    Ok(())
}

fn see_all(
    reader: &ChunkReader,
    content: &Content,
    see: &mut dyn FnMut(&ChunkId) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let mut seen = Ok(());
    content.for_each_chunk(reader, &mut |chunk| {
        if seen.is_ok() {
            seen = see(chunk);
        }
    })?;
    seen
}
