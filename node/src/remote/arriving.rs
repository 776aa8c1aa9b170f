//! Versions of volumes, and snapshots, that are read while their packs are on their way.
//!
//! A holder says which chunks are in which pack. That is a hint, no more: a pack is checked
//! against its hash and a chunk against its name, so a holder that lies costs a detour. What
//! somebody waits for comes first, then what is known to be needed first, the rest behind it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rhizome_identity::NodeId;
use rhizome_sandbox::{
    SandboxId,
    chunks::{ChunkError, ChunkId, ChunkReader, ChunkStore, PackId, ReadChunks, StoreKey},
    silent,
};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api::types::{
        SCHEMA,
        volume::{PackChunks, PackChunksBody},
    },
    daemon::{
        caller::Caller,
        fail,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// Most bytes that are fetched for one version or snapshot.
const MAX_BYTES: u64 = 1 << 40;
/// Packs that one question is about.
const ASKED: usize = 64;
/// Bytes of names after which an answer leaves the other packs out.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// How long a holder may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Most chunks whose packs are remembered; a volume of more is fetched in the order of its packs.
const MAX_KNOWN: usize = 4_000_000;
/// Packs that are fetched together while nobody waits for one.
const BEHIND: usize = 4;
/// How long until what could not be had is tried again.
const AGAIN: Duration = Duration::from_secs(20);
/// Bytes of a chunk's name that tell it from others of its volume.
const SHORT: usize = 8;

pub(crate) type Short = [u8; SHORT];

/// What is to be read, and from where it comes.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) packs: Vec<PackId>,
    /// The nodes that have them, as far as is known.
    pub(crate) holders: Vec<NodeId>,
    /// Chunks that are needed before all others, in this order.
    pub(crate) first: Vec<ChunkId>,
    /// The snapshot that it is, if it is one: by its record new holders are found.
    pub(crate) snapshot: Option<(SandboxId, PackId)>,
}

/// The chunks of a version or a snapshot.
pub(crate) struct Arriving {
    node: Weak<Node>,
    runtime: Handle,
    store: ChunkStore,
    key: StoreKey,
    packs: Vec<PackId>,
    /// Those of them that were absent and are needed first, in order.
    first: Vec<PackId>,
    holders: Mutex<Vec<NodeId>>,
    snapshot: Option<(SandboxId, PackId)>,
    /// Bytes that came.
    came: AtomicU64,
    state: Mutex<State>,
    /// How many wait for a pack; the rest waits for them.
    waiting: tokio::sync::watch::Sender<usize>,
    /// Whether what is not needed first is fetched too, before somebody asks for it.
    behind: tokio::sync::watch::Sender<bool>,
    /// Whether all is here.
    whole: tokio::sync::watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// What was here at first; at the end, everything.
    here: Option<Arc<ChunkReader>>,
    /// What came since because somebody waited for it.
    came: BTreeMap<PackId, Arc<ChunkReader>>,
    /// Which of the absent packs holds a chunk, as somebody says.
    said: HashMap<Short, PackId>,
    whole: bool,
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arriving")
            .field("packs", &self.packs.len())
            .field("whole", &self.state().whole)
            .finish_non_exhaustive()
    }
}

impl Arriving {
    /// Reads what is wanted, and fetches what of it is not here until what is returned beside is
    /// dropped.
    ///
    /// # Errors
    /// What is here cannot be read. What is not is missed when it is needed.
    pub(crate) async fn open(
        node: &Arc<Node>,
        key: StoreKey,
        wanted: Wanted,
    ) -> Result<(Arc<Self>, DropGuard), ApiError> {
        let Wanted { packs, holders, .. } = wanted;
        let store = node.sandboxes()?.chunks().clone();
        let absent = store.missing(&packs);
        let here: Vec<PackId> = packs
            .iter()
            .filter(|pack| !absent.contains(pack))
            .copied()
            .collect();
        let (reading, key_here) = (store.clone(), key.clone());
        let reader = blocking(move || reading.reader(&key_here, &here)).await?;
        let reader = reader.map_err(|error| fail::chunks(&error))?;
        let said = node.who_has_what(&absent, &holders).await;
        let mut first = Vec::new();
        let lacking = wanted.first.iter().filter(|chunk| !reader.contains(chunk));
        for pack in lacking.filter_map(|chunk| said.get(&short(chunk))) {
            if !first.contains(pack) {
                first.push(*pack);
            }
        }
        let stop = CancellationToken::new();
        let arriving = Arc::new(Self {
            node: Arc::downgrade(node),
            runtime: Handle::current(),
            store,
            key,
            packs,
            first,
            holders: Mutex::new(holders),
            snapshot: wanted.snapshot,
            came: AtomicU64::new(0),
            state: Mutex::new(State {
                here: Some(Arc::new(reader)),
                said,
                whole: absent.is_empty(),
                ..State::default()
            }),
            waiting: tokio::sync::watch::Sender::new(0),
            behind: tokio::sync::watch::Sender::new(wanted.first.is_empty()),
            whole: tokio::sync::watch::Sender::new(absent.is_empty()),
        });
        if !absent.is_empty() {
            let weak = Arc::downgrade(&arriving);
            let (ends, stop) = (node.stop.clone(), stop.clone());
            node.tasks.spawn(async move {
                tokio::select! {
                    () = ends.cancelled() => {}
                    () = stop.cancelled() => {}
                    () = fetch_rest(weak) => {}
                }
            });
        }
        Ok((arriving, stop.drop_guard()))
    }

    /// Has all of it here.
    ///
    /// # Errors
    /// `packs_missing` if nobody has some of it any more.
    pub(crate) async fn finish(&self) -> Result<(), ApiError> {
        if self.state().whole {
            return Ok(());
        }
        let node = self.node.upgrade();
        let node = node.ok_or_else(|| ApiError::internal("the node is stopping"))?;
        self.bring(&node, &self.packs).await?;
        let (store, key, packs) = (self.store.clone(), self.key.clone(), self.packs.clone());
        let reader = blocking(move || store.reader(&key, &packs)).await?;
        let reader = reader.map_err(|error| fail::chunks(&error))?;
        *self.state() = State {
            here: Some(Arc::new(reader)),
            whole: true,
            ..State::default()
        };
        self.whole.send_replace(true);
        Ok(())
    }

    /// Fetches the rest too: what was needed first has been read.
    pub(crate) fn go_on_behind(&self) {
        self.behind.send_replace(true);
    }

    /// Waits until all of it is here.
    pub(crate) async fn whole(&self) {
        let mut whole = self.whole.subscribe();
        // The sender is ours, so it is there.
        let _ = whole.wait_for(|whole| *whole).await;
    }

    /// Returns how many bytes came until now.
    pub(crate) fn came_bytes(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Brings packs from whoever has them; looks for others that do when it fails.
    async fn bring(&self, node: &Node, packs: &[PackId]) -> Result<(), ApiError> {
        let quiet = silent();
        let holders = self.holders();
        let brought = match node.bring(packs, &holders, MAX_BYTES, &quiet).await {
            Err(error) => match self.other_holders(node).await {
                Some(others) => node.bring(packs, &others, MAX_BYTES, &quiet).await,
                None => Err(error),
            },
            brought => brought,
        };
        self.came.fetch_add(brought?, Ordering::Relaxed);
        Ok(())
    }

    /// Looks who else has it by now; `None` if nobody is known that was not asked.
    async fn other_holders(&self, node: &Node) -> Option<Vec<NodeId>> {
        let (sandbox, manifest) = self.snapshot?;
        let others = node.holders_now(&sandbox, &manifest).await?;
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if others.iter().all(|node| holders.contains(node)) {
            return None;
        }
        holders.clone_from(&others);
        Some(others)
    }

    fn holders(&self) -> Vec<NodeId> {
        self.holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Fetches what is not here, some at a time, whenever nobody waits for anything else.
    async fn fetch_behind(&self) -> Result<(), ApiError> {
        // What is needed first is what somebody waits for, or will in a moment.
        for some in self.store.missing(&self.first).chunks(BEHIND) {
            let node = self.node.upgrade();
            let node = node.ok_or_else(|| ApiError::internal("the node is stopping"))?;
            self.bring(&node, some).await?;
            for pack in some {
                self.read_from(*pack).await?;
            }
        }
        let mut behind = self.behind.subscribe();
        // The sender is ours, so it is there.
        let _ = behind.wait_for(|behind| *behind).await;
        for some in self.store.missing(&self.packs).chunks(BEHIND) {
            let mut waiting = self.waiting.subscribe();
            // The sender is ours, so it is there.
            let _ = waiting.wait_for(|waiting| *waiting == 0).await;
            let node = self.node.upgrade();
            let node = node.ok_or_else(|| ApiError::internal("the node is stopping"))?;
            if let Err(error) = self.bring(&node, some).await {
                tracing::debug!(%error, "some packs cannot be had yet");
            }
        }
        self.finish().await
    }

    /// Returns how many of its packs there are, and how many are here.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let missing = self.store.missing(&self.packs).len();
        (self.packs.len(), self.packs.len() - missing)
    }

    /// Returns what reads a chunk, as far as is known, and else the pack to fetch, if one is said
    /// to hold it.
    fn find(&self, id: &ChunkId) -> Result<Arc<ChunkReader>, Option<PackId>> {
        let state = self.state();
        if let Some(here) = state
            .here
            .as_ref()
            .filter(|here| state.whole || here.contains(id))
        {
            return Ok(Arc::clone(here));
        }
        let said = state.said.get(&short(id)).copied();
        match said.and_then(|pack| state.came.get(&pack)) {
            Some(reader) if reader.contains(id) => Ok(Arc::clone(reader)),
            // It was said to be there and is not.
            Some(_) => Err(None),
            None => Err(said),
        }
    }

    /// Fetches a pack that somebody waits for.
    async fn fetch(&self, pack: PackId) -> Result<(), ApiError> {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let fetched = self.fetch_now(pack).await;
        self.waiting.send_modify(|waiting| *waiting -= 1);
        fetched
    }

    async fn fetch_now(&self, pack: PackId) -> Result<(), ApiError> {
        let node = self.node.upgrade();
        let node = node.ok_or_else(|| ApiError::internal("the node is stopping"))?;
        self.bring(&node, &[pack]).await?;
        self.read_from(pack).await
    }

    /// Reads from a pack that came.
    async fn read_from(&self, pack: PackId) -> Result<(), ApiError> {
        let (store, key) = (self.store.clone(), self.key.clone());
        let reader = blocking(move || store.reader(&key, &[pack])).await?;
        let reader = reader.map_err(|error| fail::chunks(&error))?;
        let mut state = self.state();
        if !state.whole {
            state.came.insert(pack, Arc::new(reader));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every section leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadChunks for Arriving {
    /// Blocks, and so is called off the runtime's own threads.
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        let pack = match self.find(id) {
            Ok(reader) => return reader.read(id),
            Err(pack) => pack,
        };
        let fetched = match pack {
            Some(pack) => self.runtime.block_on(self.fetch(pack)),
            None => Ok(()),
        };
        if let Err(error) = &fetched {
            tracing::debug!(chunk = %id, %error, "a pack that is read cannot be had");
        }
        match self.find(id) {
            Ok(reader) => return reader.read(id),
            Err(_) if fetched.is_err() => {
                let packs = pack.into_iter().collect();
                return Err(ChunkError::MissingPacks { packs });
            }
            Err(_) => {}
        }
        // Nobody said where it is, or somebody said what is not so: all of it, then.
        if let Err(error) = self.runtime.block_on(self.finish()) {
            tracing::debug!(chunk = %id, %error, "what is read cannot be had");
            let packs = self.store.missing(&self.packs);
            return Err(ChunkError::MissingPacks { packs });
        }
        match self.find(id) {
            Ok(reader) => reader.read(id),
            Err(_) => Err(ChunkError::MissingChunk { chunk: *id }),
        }
    }
}

/// Brings what nobody waits for, until all is here.
async fn fetch_rest(arriving: Weak<Arriving>) {
    loop {
        let Some(reading) = arriving.upgrade() else {
            return;
        };
        match reading.fetch_behind().await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the rest cannot be had yet"),
        }
        drop(reading);
        tokio::time::sleep(AGAIN).await;
    }
}

impl Node {
    /// Returns who holds a snapshot, by all that is known now.
    pub(crate) async fn holders_now(
        &self,
        sandbox: &SandboxId,
        manifest: &PackId,
    ) -> Option<Vec<NodeId>> {
        let records = self.records(&Caller::Owner).await.ok()?;
        let mut records = records.into_iter();
        let newest = records.find(|one| {
            one.record.sandbox == *sandbox && one.record.snapshot.manifest == *manifest
        });
        newest.map(|one| one.holders)
    }

    /// Asks the holders which chunks are in which packs, each pack of the first who knows.
    pub(crate) async fn who_has_what(
        &self,
        packs: &[PackId],
        holders: &[NodeId],
    ) -> HashMap<Short, PackId> {
        let mut said = HashMap::new();
        let mut left = packs.to_vec();
        for holder in self.reachable_first(holders) {
            let mut unknown = Vec::new();
            while !left.is_empty() && said.len() < MAX_KNOWN {
                let asked: Vec<PackId> = left[..left.len().min(ASKED)].to_vec();
                let body = PackChunksBody {
                    packs: asked.clone(),
                };
                let answer: Result<PackChunks, ApiError> = self
                    .tell(holder, "/v1/remote/pack-chunks", &body, ASK_TIMEOUT)
                    .await;
                let answer = match answer {
                    Ok(answer) => answer,
                    Err(error) => {
                        tracing::debug!(node = %holder.fmt_short(), %error, "no answer about packs");
                        break;
                    }
                };
                // What it left out for want of room is asked again; what it does not have is not.
                let done = answer.looked_at.clamp(1, asked.len());
                for (pack, names) in &answer.packs {
                    if asked[..done].contains(pack) {
                        let names = shorts(names).take(MAX_KNOWN - said.len().min(MAX_KNOWN));
                        said.extend(names.map(|name| (name, *pack)));
                    }
                }
                let has = |pack: &&PackId| !answer.packs.contains_key(*pack);
                unknown.extend(asked[..done].iter().filter(has).copied());
                left.drain(..done);
            }
            left.append(&mut unknown);
            if left.is_empty() {
                break;
            }
        }
        said
    }

    /// Says which chunks are in those of the packs that are here. Whoever knows the name of a pack
    /// may have the pack; this is less.
    pub(crate) async fn pack_chunks(&self, body: PackChunksBody) -> Result<PackChunks, ApiError> {
        if body.packs.len() > ASKED {
            return Err(ApiError::bad_request("too many packs in one request"));
        }
        let store = self.sandboxes()?.chunks().clone();
        blocking(move || {
            let mut answer = PackChunks {
                schema: SCHEMA,
                packs: BTreeMap::new(),
                looked_at: 0,
            };
            let mut bytes = 0;
            for pack in body.packs {
                if bytes > ANSWER_BYTES {
                    break;
                }
                answer.looked_at += 1;
                if !store.has(&pack) {
                    continue;
                }
                // Damaged here is as good as absent.
                let Ok(chunks) = store.chunks_of(&pack) else {
                    continue;
                };
                let names: String = chunks
                    .iter()
                    .flat_map(short)
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                bytes += names.len();
                answer.packs.insert(pack, names);
            }
            answer
        })
        .await
    }
}

fn short(id: &ChunkId) -> Short {
    *id.as_bytes().first_chunk().expect("8 of 32 bytes")
}

/// Reads names that stand one behind the other; what is none is left out.
fn shorts(text: &str) -> impl Iterator<Item = Short> + '_ {
    let (all, _) = text.as_bytes().as_chunks::<{ 2 * SHORT }>();
    all.iter().filter_map(|digits| {
        let mut name = [0; SHORT];
        let (pairs, _) = digits.as_chunks::<2>();
        for (byte, pair) in name.iter_mut().zip(pairs) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
        }
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        let names = [[0xab; SHORT], [0x01; SHORT]];
        let text: String = names
            .iter()
            .flatten()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(shorts(&text).collect::<Vec<_>>(), names);
        let cut = format!("{text}0123");
        assert_eq!(shorts(&cut).collect::<Vec<_>>(), names);
        let wrong = format!("{}{}", "x".repeat(2 * SHORT), text);
        assert_eq!(shorts(&wrong).collect::<Vec<_>>(), names);
        assert_eq!(shorts("é").count(), 0);
    }
}
