//! Large bodies: served to members, fetched by hash, verified as they arrive.
//!
//! iroh-blobs verifies every chunk against the hash, resumes what broke off, and serves only what
//! its store holds. Everything kept is tagged (`body/<hash>`, `file/<hash>`); what lost its tag, or
//! never got whole enough for one, is collected within the hour.

mod files;

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use futures::StreamExt;
use iroh_blobs::{
    BlobFormat, BlobsProtocol, Hash as BlobHash, HashAndFormat,
    api::{
        blobs::{AddPathOptions, ImportMode},
        remote::GetProgressItem,
    },
    store::{
        GcConfig,
        fs::{
            FsStore,
            options::{Options, PathOptions},
        },
    },
};
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{MAX_BODY, Replica};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, debug, debug_span, warn};

pub use self::files::{FetchProgress, FileError, ProviderError};
use crate::net::{StartError, endpoint::Net, sync::Sync};

/// Bodies that are wanted and not fetched yet; more are found again by the next sweep.
const WANT_QUEUE: usize = 1024;
/// Bodies fetched at the same time: at most 64 MiB in memory when they are handed over.
const PARALLEL_FETCHES: usize = 4;
/// How long connecting to one provider may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A provider that sends nothing for this long is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often what has no tag is collected.
const COLLECT_EVERY: Duration = Duration::from_secs(3600);
/// How often bodies that nobody could give are asked for again.
const RETRY_EVERY: Duration = Duration::from_secs(15);

/// A handle to the store of large bodies.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    store: FsStore,
    /// Where the store keeps the content of what is long.
    files: Arc<PathOptions>,
    wants: mpsc::Sender<Hash>,
    sweep: Arc<Notify>,
}

/// The receiving end of [`Blobs::want`], taken by [`Blobs::run`].
pub(crate) type Wants = mpsc::Receiver<Hash>;

impl Blobs {
    /// Opens or creates the store in `dir`.
    pub(crate) async fn open(dir: &Path) -> Result<(Self, Wants), StartError> {
        let mut options = Options::new(dir);
        options.gc = Some(GcConfig {
            interval: COLLECT_EVERY,
            add_protected: None,
        });
        let files = Arc::new(options.path.clone());
        let loaded = FsStore::load_with_opts(dir.join("blobs.db"), options).await;
        let store = loaded.map_err(|e| StartError::Blobs {
            path: dir.to_owned(),
            source: e.into(),
        })?;
        let (wants, wanted) = mpsc::channel(WANT_QUEUE);
        let blobs = Self {
            store,
            files,
            wants,
            sweep: Arc::new(Notify::new()),
        };
        Ok((blobs, wanted))
    }

    /// Returns the handler that serves the store.
    pub(crate) fn protocol(&self) -> BlobsProtocol {
        BlobsProtocol::new(&self.store, None)
    }

    /// Writes what is not written yet and closes the store.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.store.shutdown().await {
            debug!(%error, "the blob store was closed already");
        }
    }

    /// Offers a body file of the replica to others; the file is referenced, not copied.
    pub(crate) async fn offer(&self, hash: Hash, path: &Path) -> Result<(), io::Error> {
        let options = AddPathOptions {
            path: path.to_owned(),
            format: BlobFormat::Raw,
            mode: ImportMode::TryReference,
        };
        let added = self.store.blobs().add_path_with_opts(options);
        let added = added
            .with_named_tag(tag(hash))
            .await
            .map_err(io::Error::other)?;
        if *added.hash.as_bytes() == *hash.as_bytes() {
            Ok(())
        } else {
            Err(io::Error::other("the body file does not match its hash"))
        }
    }

    /// Lets a redacted body go: nobody is served it any more, and its content leaves the disk.
    ///
    /// The store itself deletes only what it collects, within the hour, and has no call for one
    /// body; what is left to it then is an entry without content.
    pub(crate) async fn withdraw(&self, hash: Hash) {
        if let Err(error) = self.store.tags().delete(tag(hash)).await {
            debug!(%hash, %error, "a redacted body keeps its tag");
        }
        let blob = BlobHash::from_bytes(*hash.as_bytes());
        for path in [self.files.data_path(&blob), self.files.outboard_path(&blob)] {
            match tokio::fs::remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!(%hash, %error, "a redacted body cannot be removed");
                }
                _ => {}
            }
        }
    }

    /// Asks for `hash` to be fetched; a full queue leaves it to the next sweep.
    pub(crate) fn want(&self, hash: Hash) {
        if self.wants.try_send(hash).is_err() {
            self.sweep.notify_one();
        }
    }

    /// Looks for missing bodies again, as a peer that may hold them came up.
    pub(crate) fn sweep(&self) {
        self.sweep.notify_one();
    }

    /// Fetches wanted bodies until `stop`.
    pub(crate) async fn run(
        self,
        mut wanted: Wants,
        net: Net,
        sync: Sync,
        replica: Replica,
        stop: CancellationToken,
    ) {
        let fetches = TaskTracker::new();
        let slots = Arc::new(Semaphore::new(PARALLEL_FETCHES));
        let (done_in, mut done) = mpsc::channel(PARALLEL_FETCHES);
        // When each body that is being fetched, or was not to be had, may be tried again.
        let mut busy: BTreeMap<Hash, Option<Instant>> = BTreeMap::new();
        self.sweep.notify_one();
        loop {
            let candidates = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((hash, found)) = done.recv() => {
                    if found {
                        busy.remove(&hash);
                    } else {
                        busy.insert(hash, Some(Instant::now() + RETRY_EVERY));
                    }
                    continue;
                }
                Some(hash) = wanted.recv() => vec![hash],
                () = self.sweep.notified() => {
                    busy.retain(|_, retry| retry.is_none());
                    missing(&replica).await
                }
                () = sleep_until_first(&busy) => {
                    let now = Instant::now();
                    busy.retain(|_, retry| retry.is_none_or(|at| at > now));
                    missing(&replica).await
                }
            };
            for hash in candidates {
                if busy.contains_key(&hash) || busy.len() >= WANT_QUEUE {
                    continue;
                }
                busy.insert(hash, None);
                let fetch = Fetch {
                    hash,
                    store: self.store.clone(),
                    net: net.clone(),
                    sync: sync.clone(),
                    replica: replica.clone(),
                };
                let (slots, done, stop) = (Arc::clone(&slots), done_in.clone(), stop.clone());
                let span = debug_span!("body", %hash);
                fetches.spawn(
                    async move {
                        let Ok(_slot) = slots.acquire().await else {
                            return;
                        };
                        let found = stop.run_until_cancelled(fetch.run()).await;
                        // A stopped task needs no news.
                        let _ = done.send((hash, found == Some(true))).await;
                    }
                    .instrument(span),
                );
            }
        }
        slots.close();
        drop(done);
        fetches.close();
        fetches.wait().await;
    }
}

async fn missing(replica: &Replica) -> Vec<Hash> {
    let replica = replica.clone();
    tokio::task::spawn_blocking(move || replica.missing_bodies())
        .await
        .unwrap_or_default()
}

async fn sleep_until_first(busy: &BTreeMap<Hash, Option<Instant>>) {
    match busy.values().flatten().min() {
        Some(at) => tokio::time::sleep_until(*at).await,
        None => std::future::pending().await,
    }
}

fn tag(hash: Hash) -> String {
    format!("body/{hash}")
}

struct Fetch {
    hash: Hash,
    store: FsStore,
    net: Net,
    sync: Sync,
    replica: Replica,
}

impl Fetch {
    /// Asks the connected members one after the other; returns whether the body is here now.
    async fn run(self) -> bool {
        let blob = BlobHash::from_bytes(*self.hash.as_bytes());
        // Keeps what has arrived from being collected until it has a tag.
        let _kept = self.store.tags().temp_tag(HashAndFormat::raw(blob)).await;
        if self.store.blobs().has(blob).await.unwrap_or(false) {
            return self.hand_over(blob).await;
        }
        for peer in self.sync.connected() {
            match self.from(&peer, blob).await {
                Ok(()) => return self.hand_over(blob).await,
                Err(error) => debug!(peer = %peer.fmt_short(), %error, "body not fetched here"),
            }
        }
        false
    }

    async fn from(&self, peer: &NodeId, blob: BlobHash) -> Result<(), FetchError> {
        let connection = self
            .net
            .connect(peer, iroh_blobs::ALPN, CONNECT_TIMEOUT)
            .await?;
        let mut progress = Box::pin(
            self.store
                .remote()
                .fetch(connection, HashAndFormat::raw(blob))
                .stream(),
        );
        loop {
            let item = tokio::time::timeout(STALL_TIMEOUT, progress.next()).await;
            match item.map_err(|_| FetchError::Stalled)? {
                Some(GetProgressItem::Done(_)) => return Ok(()),
                Some(GetProgressItem::Error(error)) => {
                    return Err(FetchError::Transfer(io::Error::other(error)));
                }
                // The hash says nothing of the size, so whoever names a huge blob is stopped here.
                Some(GetProgressItem::Progress(bytes)) if bytes > MAX_BODY as u64 => {
                    return Err(FetchError::TooLarge);
                }
                Some(GetProgressItem::Progress(_)) => {}
                None => return Err(FetchError::Stalled),
            }
        }
    }

    async fn hand_over(&self, blob: BlobHash) -> bool {
        let tags = self.store.tags();
        if let Err(error) = tags.set(tag(self.hash), HashAndFormat::raw(blob)).await {
            debug!(%error, "body not tagged");
        }
        let body = match self.store.blobs().get_bytes(blob).await {
            Ok(body) => body,
            Err(error) => {
                debug!(%error, "fetched body cannot be read back");
                return false;
            }
        };
        let (replica, hash) = (self.replica.clone(), self.hash);
        let put = tokio::task::spawn_blocking(move || replica.put_body(hash, body)).await;
        match put {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                debug!(%error, "body not taken by the replica");
                // Redacted meanwhile, perhaps: it is left to be collected.
                if let Err(error) = self.store.tags().delete(tag(self.hash)).await {
                    debug!(%error, "body keeps its tag");
                }
                false
            }
            Err(_) => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("cannot reach the provider")]
    Dial(#[from] crate::net::endpoint::DialError),
    #[error("the transfer failed: {0}")]
    Transfer(io::Error),
    #[error("the provider sent nothing for {} s", STALL_TIMEOUT.as_secs())]
    Stalled,
    #[error("the body is larger than {MAX_BODY} bytes")]
    TooLarge,
}
