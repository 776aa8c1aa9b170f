//! What compresses, packs and writes behind a writer's back.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use super::super::{
    ChunkError, ChunkId, PackId, StoreKey,
    format::{PackBuilder, SealedChunk, Sealer},
    store::Inner,
};

/// Most compressing threads.
const MAX_WORKERS: usize = 8;
/// Chunks on their way to a pack, for each compressing thread.
const CHUNKS_PER_WORKER: u64 = 8;
/// Whole packs that wait to be written, beside the one being written.
const PACKS_WAITING: usize = 1;

/// The threads of one writer.
#[derive(Debug)]
pub(super) struct Line {
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    next: u64,
    window: u64,
    threads: Vec<JoinHandle<()>>,
}

/// What a line made.
#[derive(Debug)]
pub(super) struct Ended {
    /// Packs, each held once for the writer.
    pub(super) written: Vec<PackId>,
    pub(super) stored_bytes: u64,
    pub(super) error: Option<ChunkError>,
}

#[derive(Debug)]
struct Job {
    number: u64,
    id: ChunkId,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Shared {
    progress: Mutex<Progress>,
    moved: Condvar,
    /// Nothing more is to be packed.
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Progress {
    /// Chunks packed.
    packed: u64,
    stored_bytes: u64,
    written: Vec<PackId>,
    error: Option<ChunkError>,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Every section leaves its state whole.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: ChunkError) {
        self.progress().error.get_or_insert(error);
        self.halt();
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Under the lock, or the one who waits could miss it.
        let _progress = self.progress();
        self.moved.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Stops the line when its thread panics: the others would wait for ever.
struct Alarm(Arc<Shared>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(ChunkError::WriterFailed);
        }
    }
}

impl Line {
    pub(super) fn start(inner: &Arc<Inner>, key: &StoreKey) -> Result<Self, ChunkError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = cores.min(MAX_WORKERS);
        let window = workers as u64 * CHUNKS_PER_WORKER;
        let (jobs, taken) = sync_channel::<Job>(workers);
        let (sealed, arriving) = sync_channel::<(u64, SealedChunk)>(workers);
        let (whole, leaving) = sync_channel::<PackBuilder>(PACKS_WAITING);
        let mut line = Self {
            shared: Arc::default(),
            jobs: Some(jobs),
            next: 0,
            window,
            threads: Vec::new(),
        };
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..workers {
            let (taken, sealed) = (Arc::clone(&taken), sealed.clone());
            let sealer = Sealer::new(key.clone());
            line.spawn(inner, "chunk-seal", move |shared| {
                compress(shared, &taken, &sealed, sealer);
            })?;
        }
        let key = key.clone();
        line.spawn(inner, "chunk-pack", move |shared| {
            pack(shared, &arriving, &whole, &key);
        })?;
        let store = Arc::clone(inner);
        line.spawn(inner, "chunk-write", move |shared| {
            write(shared, &leaving, &store);
        })?;
        Ok(line)
    }

    fn spawn(
        &mut self,
        inner: &Inner,
        name: &str,
        body: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), ChunkError> {
        let alarm = Alarm(Arc::clone(&self.shared));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(&alarm.0));
        self.threads.push(thread.map_err(inner.cannot_work())?);
        Ok(())
    }

    /// Takes a chunk; waits while too many are on their way. False once the line has failed.
    pub(super) fn push(&mut self, id: ChunkId, bytes: Vec<u8>) -> bool {
        let mut progress = self.shared.progress();
        while self.next - progress.packed >= self.window && !self.shared.is_stopped() {
            progress = (self.shared.moved.wait(progress)).unwrap_or_else(PoisonError::into_inner);
        }
        drop(progress);
        if self.shared.is_stopped() {
            return false;
        }
        let number = self.next;
        self.next += 1;
        let job = Job { number, id, bytes };
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.shared.progress().stored_bytes
    }

    /// Drops what is not written yet.
    pub(super) fn abandon(&self) {
        self.shared.halt();
    }

    /// Waits until all is written.
    pub(super) fn end(mut self) -> Ended {
        self.stop_threads();
        let mut progress = self.shared.progress();
        let lost = progress.packed < self.next;
        Ended {
            written: std::mem::take(&mut progress.written),
            stored_bytes: progress.stored_bytes,
            error: (progress.error.take()).or(lost.then_some(ChunkError::WriterFailed)),
        }
    }

    fn stop_threads(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has raised the alarm.
            let _ = thread.join();
        }
    }
}

impl Drop for Line {
    /// Only a line that did not start whole comes here with threads.
    fn drop(&mut self) {
        self.stop_threads();
    }
}

fn compress(
    shared: &Shared,
    jobs: &Mutex<Receiver<Job>>,
    sealed: &SyncSender<(u64, SealedChunk)>,
    mut sealer: Sealer,
) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { number, id, bytes }) = job else {
            return;
        };
        if shared.is_stopped() {
            // Taken on, so that nobody waits for room in the queue.
            continue;
        }
        if sealed
            .send((number, sealer.seal_chunk(id, &bytes)))
            .is_err()
        {
            return;
        }
    }
}

fn pack(
    shared: &Shared,
    arriving: &Receiver<(u64, SealedChunk)>,
    whole: &SyncSender<PackBuilder>,
    key: &StoreKey,
) {
    // Those that overtook others: no more than are on their way at once.
    let mut early = BTreeMap::new();
    let mut next = 0;
    let mut builder = PackBuilder::new(key);
    for (number, chunk) in arriving {
        early.insert(number, chunk);
        while let Some(chunk) = early.remove(&next) {
            if !builder.fits(&chunk) {
                let full = std::mem::replace(&mut builder, PackBuilder::new(key));
                if whole.send(full).is_err() {
                    return;
                }
            }
            builder.push(&chunk);
            next += 1;
        }
        shared.progress().packed = next;
        shared.moved.notify_all();
    }
    if !shared.is_stopped() && !builder.is_empty() {
        // If the one who writes is gone, it has said why.
        let _ = whole.send(builder);
    }
}

fn write(shared: &Shared, leaving: &Receiver<PackBuilder>, inner: &Inner) {
    for builder in leaving {
        if shared.is_stopped() {
            return;
        }
        let (bytes, chunks) = builder.finish();
        let id = PackId::from_bytes(*blake3::hash(&bytes).as_bytes());
        if let Err(error) = inner.commit(&id, &bytes, &chunks, true) {
            shared.fail(error);
            return;
        }
        let mut progress = shared.progress();
        progress.stored_bytes += bytes.len() as u64;
        progress.written.push(id);
    }
}
