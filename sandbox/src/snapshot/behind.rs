//! The disks of a guest that goes on before they are there.
//!
//! Its monitor asks for them over a socket each ([`super::nbd`]). What is there is answered from
//! the disk's file; what is not is brought first, and the rest behind it. A request for what cannot
//! be had now fails after a moment: the monitor holds its guest then, and asks again when the
//! guest goes on.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{net::UnixListener, sync::watch, task::spawn_blocking, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    Manifest, SnapshotError,
    freeze::io_error,
    late_disk::{Absent, LateDisk},
    nbd,
};
use crate::{
    chunks::ReadChunks,
    driver::{VmRequest, open_disk_socket},
};

/// How long a request tries to have what it needs before it fails.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same while nobody has said where the disk's content comes from: a daemon that just began.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(30);
/// How long until it tries again.
const AGAIN: Duration = Duration::from_millis(250);
/// Chunks that are brought between two looks at what else there is to do.
const STEP: usize = 16;

/// How far the disks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes that are not there yet, in whole chunks.
    pub left: u64,
}

/// A request that failed.
#[derive(Debug, Clone)]
struct Failure {
    why: String,
    disk: u32,
    at: u64,
    length: u64,
}

/// The disks of one guest. Dropping it ends their service.
#[derive(Debug)]
pub struct Behind {
    disks: Vec<Arc<LateDisk>>,
    /// The last request that failed.
    failed: watch::Sender<Option<Failure>>,
    /// The one that was told of last.
    told: Mutex<Option<Failure>>,
    /// Whether the guest is about to be held: nothing is waited for then.
    hold: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Behind {
    /// Begins with the disks of a manifest; their files are in `dir`, empty and of their full size.
    /// What is there of them is written down in `marks`, a directory of theirs alone.
    pub(super) fn begin(
        manifest: &Manifest,
        reader: &Arc<dyn ReadChunks>,
        dir: &Path,
        marks: &Path,
    ) -> Result<Self, SnapshotError> {
        let _ = fs::remove_dir_all(marks);
        fs::create_dir_all(marks).map_err(io_error(marks))?;
        let disks = manifest.disks.iter().map(|disk| {
            let (file, marks) = (
                dir.join(&disk.name),
                marks_of(marks, disk.number, &disk.name),
            );
            let late = LateDisk::begin(disk.number, &disk.name, &disk.map, &file, &marks)?;
            late.feed(&disk.map, reader);
            Ok(Arc::new(late))
        });
        Ok(Self::of(disks.collect::<Result<_, SnapshotError>>()?))
    }

    /// Finds what another process began.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn find(dir: &Path, marks: &Path) -> Result<Self, SnapshotError> {
        let mut disks = Vec::new();
        for found in fs::read_dir(marks).map_err(io_error(marks))? {
            let found = found.map_err(io_error(marks))?;
            let name = found.file_name().to_string_lossy().into_owned();
            let Some((number, name)) = name.split_once('.') else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            let disk = LateDisk::find(number, name, &dir.join(name), &found.path())?;
            disks.push(Arc::new(disk));
        }
        disks.sort_by_key(|disk| disk.number);
        Ok(Self::of(disks))
    }

    fn of(disks: Vec<Arc<LateDisk>>) -> Self {
        Self {
            disks,
            failed: watch::Sender::new(None),
            told: Mutex::new(None),
            hold: watch::Sender::new(false),
            stop: CancellationToken::new(),
        }
    }

    /// Says where the content comes from.
    ///
    /// # Errors
    /// [`SnapshotError::Manifest`] if it is of other disks.
    pub fn feed(
        &self,
        manifest: &Manifest,
        reader: &Arc<dyn ReadChunks>,
    ) -> Result<(), SnapshotError> {
        for late in &self.disks {
            let mut all = manifest.disks.iter();
            let disk = all.find(|disk| disk.number == late.number && disk.map.size == late.size);
            let what = || "it has other disks than the guest".to_owned();
            let disk = disk.ok_or_else(|| SnapshotError::Manifest { what: what() })?;
            late.feed(&disk.map, reader);
        }
        Ok(())
    }

    /// Opens the sockets, at which the monitor of `request` then finds the disks.
    ///
    /// # Errors
    /// [`SnapshotError::Driver`], [`SnapshotError::Io`].
    pub fn listen(&self, request: &VmRequest) -> Result<(), SnapshotError> {
        for disk in &self.disks {
            let socket =
                std::os::unix::net::UnixListener::from(open_disk_socket(request, disk.number)?);
            let listener = socket
                .set_nonblocking(true)
                .and_then(|()| UnixListener::from_std(socket));
            let listener = listener.map_err(io_error(&request.dir))?;
            let served = Arc::new(Served {
                disk: Arc::clone(disk),
                failed: self.failed.clone(),
                hold: self.hold.subscribe(),
                stop: self.stop.clone(),
            });
            tokio::spawn(async move {
                let stop = served.stop.clone();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = accept(listener, served) => {}
                }
            });
        }
        Ok(())
    }

    /// Returns the disks by number and name.
    #[must_use]
    pub fn disks(&self) -> Vec<(u32, String)> {
        let named = self
            .disks
            .iter()
            .map(|disk| (disk.number, disk.name.clone()));
        named.collect()
    }

    /// Returns how far they are.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            bytes: self.disks.iter().map(|disk| disk.size).sum(),
            left: self.disks.iter().map(|disk| disk.left()).sum(),
        }
    }

    /// Brings some of what is not there, in order; returns whether more is missing.
    ///
    /// # Errors
    /// Why the next part cannot be had now, for people.
    pub async fn bring_some(&self) -> Result<bool, String> {
        let disks = self.disks.clone();
        let brought = spawn_blocking(move || {
            for _ in 0..STEP {
                let mut brought = false;
                for disk in &disks {
                    brought = disk.bring_next().map_err(|absent| told(&absent))?;
                    if brought {
                        break;
                    }
                }
                if !brought {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        brought
            .await
            .unwrap_or_else(|_| Err("the process ends".to_owned()))
    }

    /// Waits until a request of the guest's fails, and returns why.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.subscribe();
        let failure = failed.wait_for(Option::is_some).await;
        let failure = failure.expect("the sender is ours").clone();
        let failure = failure.expect("it was waited for");
        self.failed.send_replace(None);
        let why = failure.why.clone();
        *self.told() = Some(failure);
        why
    }

    /// Has that here which the last request asked for in vain that [`Self::failed`] told of.
    ///
    /// # Errors
    /// Why it cannot be had now, for people.
    pub async fn bring_failed(&self) -> Result<(), String> {
        let Some(failure) = self.told().clone() else {
            return Ok(());
        };
        let mut disks = self.disks.iter();
        let Some(disk) = disks.find(|disk| disk.number == failure.disk).cloned() else {
            return Ok(());
        };
        let brought = spawn_blocking(move || disk.bring(failure.at, failure.length));
        match brought.await {
            Ok(Ok(())) => {
                *self.told() = None;
                Ok(())
            }
            Ok(Err(absent)) => Err(told(&absent)),
            Err(_) => Err("the process ends".to_owned()),
        }
    }

    /// Whether it is known where the content comes from.
    #[must_use]
    pub fn is_fed(&self) -> bool {
        self.disks.iter().all(|disk| disk.has_source())
    }

    fn told(&self) -> MutexGuard<'_, Option<Failure>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nothing wait any more, or lets it wait again: a guest cannot be held while a request
    /// of its is at work. One that fails then is asked again when the guest goes on.
    pub fn hold(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    /// Ends the service.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the service has ended.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

fn marks_of(marks: &Path, number: u32, name: &str) -> PathBuf {
    marks.join(format!("{number}.{name}"))
}

/// One disk, as its monitor asks for it.
#[derive(Debug)]
struct Served {
    disk: Arc<LateDisk>,
    failed: watch::Sender<Option<Failure>>,
    hold: watch::Receiver<bool>,
    stop: CancellationToken,
}

/// Serves one monitor after the other: there is one, which may come again.
async fn accept(listener: UnixListener, served: Arc<Served>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "a disk's socket failed");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let (reader, writer) = stream.into_split();
        if let Err(error) = nbd::serve(reader, writer, &served).await {
            debug!(disk = served.disk.number, %error, "a monitor's session ended");
        }
    }
}

impl Served {
    /// Waits until what a request needs is there; `false` if it cannot be had now.
    async fn bring(&self, at: u64, length: u64, edges: bool) -> bool {
        if self.disk.is_here(at, length) {
            return true;
        }
        let mut hold = self.hold.clone();
        tokio::select! {
            biased;
            _ = hold.wait_for(|hold| *hold) => false,
            () = self.stop.cancelled() => false,
            brought = self.try_to_bring(at, length, edges) => brought,
        }
    }

    async fn try_to_bring(&self, at: u64, length: u64, edges: bool) -> bool {
        let began = Instant::now();
        loop {
            // It goes on also when nobody waits for it any more: what it brings stays.
            let disk = Arc::clone(&self.disk);
            let bring = move || match edges {
                true => disk.bring_edges(at, length),
                false => disk.bring(at, length),
            };
            let absent = match spawn_blocking(bring).await {
                Ok(Ok(())) => return true,
                Ok(Err(absent)) => absent,
                Err(_) => return false,
            };
            let patience = match absent {
                Absent::NoSource => PATIENCE_AT_FIRST,
                _ => PATIENCE,
            };
            if began.elapsed() >= patience {
                self.fail(&absent, at, length);
                return false;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn fail(&self, absent: &Absent, at: u64, length: u64) {
        self.failed.send_replace(Some(Failure {
            why: told(absent),
            disk: self.disk.number,
            at,
            length,
        }));
    }

    /// Does what does not wait for anybody, to its end.
    async fn now<T: Send + 'static>(
        &self,
        at: u64,
        work: impl FnOnce(&LateDisk) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        let disk = Arc::clone(&self.disk);
        let done = spawn_blocking(move || work(&disk)).await.ok()?;
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.fail(&Absent::Io(error), at, 0);
                None
            }
        }
    }
}

impl nbd::Export for Served {
    fn name(&self) -> String {
        format!("disk{}", self.disk.number)
    }

    fn size(&self) -> u64 {
        self.disk.size
    }

    async fn answer(&self, request: nbd::Request) -> Option<Vec<u8>> {
        match request {
            nbd::Request::Read { at, length } => {
                if !self.bring(at, length.into(), false).await {
                    return None;
                }
                self.now(at, move |disk| {
                    let mut bytes = vec![0; length as usize];
                    disk.read(at, &mut bytes).map(|()| bytes)
                })
                .await
            }
            nbd::Request::Write { at, bytes } => {
                if !self.bring(at, bytes.len() as u64, true).await {
                    return None;
                }
                let written = self.now(at, move |disk| disk.write(at, &bytes)).await;
                written.map(|()| Vec::new())
            }
            nbd::Request::Zero { at, length, keep } => {
                if !self.bring(at, length.into(), true).await {
                    return None;
                }
                let zeroed = self
                    .now(at, move |disk| disk.zero(at, length.into(), keep))
                    .await;
                zeroed.map(|()| Vec::new())
            }
            nbd::Request::Discard { at, length } => {
                let forgot = self
                    .now(at, move |disk| disk.discard(at, length.into()))
                    .await;
                forgot.map(|()| Vec::new())
            }
        }
    }
}

/// Says why something is absent, with what is behind it.
fn told(absent: &Absent) -> String {
    match std::error::Error::source(absent) {
        Some(source) => format!("{absent}: {source}"),
        None => absent.to_string(),
    }
}
